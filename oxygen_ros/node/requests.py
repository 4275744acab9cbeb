"""Book-keeping of language requests: exactly one last message each, also when the node stops before the engine does."""
from __future__ import annotations

from dataclasses import dataclass, replace

from oxygen_ros.engine.wire import Ask, FinishReason, Speech, refusal


@dataclass
class Request:
    """One that the engine has not finished. ended: here; what the engine still says about it is dropped."""

    newest: Speech
    asked: bool  # by somebody, not begun by the engine itself
    ended: bool = False


class Requests:
    """All that the engine has not finished.

    An id that is used again names several of them: the engine ends one before it begins the next, so that what it says
    is about the oldest.
    """

    def __init__(self) -> None:
        self._unfinished: dict[str, list[Request]] = {}
        self._said: dict[str, str] = {}  # by channel, of the requests that the engine begins
        self._made = 0

    def __len__(self) -> int:
        return sum(not request.ended for same in self._unfinished.values() for request in same)

    def named(self, ask: Ask) -> Ask:
        """A request from outside; one without an id is given one."""
        if ask.request_id:
            return ask
        self._made += 1
        return replace(ask, request_id=f'request-{self._made}')

    def open(self, ask: Ask) -> None:
        """Enter a request that the engine was given."""
        self._enter(Request(replace(refusal(ask, ''), sequence=-1), asked=True))

    def _enter(self, request: Request) -> list[Request]:
        same = self._unfinished.setdefault(request.newest.request_id, [])
        same.append(request)
        return same

    def take(self, speech: Speech) -> Request | None:
        """The request that a message of the engine is about, or None when it was ended here."""
        same = self._unfinished.get(speech.request_id) or self._enter(Request(speech, asked=False))
        request = same[0]
        if speech.final:
            del same[0]
            if not same:
                del self._unfinished[speech.request_id]
        if request.ended:
            return None
        request.newest = speech
        return request

    def end_all(self, reason: FinishReason, detail: str) -> list[Speech]:
        """A last message for every unfinished request; what the engine still says about them is dropped."""
        return [last for request_id in self._unfinished for last in self.end(request_id, reason, detail)]

    def end(self, request_id: str, reason: FinishReason, detail: str) -> list[Speech]:
        """As end_all, for those of one id."""
        last = []
        for request in self._unfinished.get(request_id, ()):
            if not request.ended:
                request.ended = True
                last.append(request.newest.ended(reason, detail))
        return last

    def news(self, request: Request, say_unchanged: bool) -> str:
        """The finished text if it is worth saying aloud: complete, and news unless somebody asked for it."""
        speech = request.newest
        text = speech.text.strip()
        if not speech.final or speech.reason not in ('stop', 'length'):
            return ''
        if request.asked:
            return text
        unchanged = self._said.get(speech.channel) == text
        self._said[speech.channel] = text
        return '' if unchanged and not say_unchanged else text
