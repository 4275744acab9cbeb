"""Book-keeping of language requests: exactly one last message each, also when the node stops before the engine does."""
from __future__ import annotations

from dataclasses import replace

from oxygen_ros.engine.wire import Ask, FinishReason, Speech


class Requests:
    """Unfinished requests, each with the newest that was said about it."""

    def __init__(self) -> None:
        self._live: dict[str, Speech] = {}
        self._ended: set[str] = set()  # ended here; the engine's own last message is still to come
        self._asked: set[str] = set()
        self._said: dict[str, str] = {}
        self._made = 0

    def __len__(self) -> int:
        return len(self._live)

    def open(self, ask: Ask) -> Ask:
        """Enter a request from outside; one without an id is given one."""
        if not ask.request_id:
            self._made += 1
            ask = replace(ask, request_id=f'request-{self._made}')
        self._live[ask.request_id] = replace(refusal(ask, ''), sequence=-1)
        self._asked.add(ask.request_id)
        self._ended.discard(ask.request_id)
        return ask

    def take(self, speech: Speech) -> Speech | None:
        """The message to publish, or None for one of a request that was ended here."""
        if speech.request_id in self._ended:
            if speech.final:
                self._ended.discard(speech.request_id)
            return None
        if speech.final:
            self._live.pop(speech.request_id, None)
        else:
            self._live[speech.request_id] = speech
        return speech

    def end_all(self, reason: FinishReason, detail: str) -> list[Speech]:
        """A last message for every unfinished request; what the engine still says about them is dropped."""
        last = [replace(s, sequence=s.sequence + 1, token_ids=(), delta='', final=True, reason=reason, detail=detail)
                for s in self._live.values()]
        self._ended |= set(self._live)
        self._live.clear()
        return last

    def news(self, speech: Speech, say_unchanged: bool) -> str:
        """The finished text if it is worth saying aloud: complete, and news unless somebody asked for it."""
        if not speech.final:
            return ''
        asked = speech.request_id in self._asked
        self._asked.discard(speech.request_id)
        text = speech.text.strip()
        if speech.reason not in ('stop', 'length'):
            return ''
        unchanged = self._said.get(speech.channel) == text
        self._said[speech.channel] = text
        return '' if unchanged and not asked and not say_unchanged else text


def refusal(ask: Ask, detail: str) -> Speech:
    """The only message of a request that cannot begin."""
    return Speech(ask.request_id, ask.channel, 0, 0, 0, (), '', '', True, 'error', detail)
