"""One language request: what was asked, what it holds in the cache, and what it has said so far."""
from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from oxygen_ros.engine.sampler import Sampler
from oxygen_ros.engine.text import TextStream
from oxygen_ros.engine.wire import Ask, FinishReason, Speech
from oxygen_ros.kv import Prefix, Tail
from oxygen_ros.model.segments import Segment, tail_segment


@dataclass(eq=False)
class Request:
    """States: queued -> running (holds a tail and a prefix) -> done (holds nothing, `reason` is set).

    pending: ids whose keys and values are not in the cache yet: the seed at first, then the last token.
    draft: ids that are guessed to follow `pending`; they ride behind it and are kept as far as they prove right.
    """

    ask: Ask
    seed: list[int]
    stream: TextStream
    sampler: Sampler
    priority: int
    order: int
    arrived: float
    expires: float = math.inf
    pending: list[int] = field(default_factory=list)
    draft: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    prefix: Prefix = field(init=False)
    tail: Tail = field(init=False)
    seen: int = 0
    observation: int = 0
    stamp: int = 0
    served: int = 0
    running: bool = False
    reason: FinishReason = ''
    _sent: int = 0

    def start(self, prefix: Prefix, tail: Tail, last_prompt_id: int, observation: int, stamp: int) -> None:
        """Begin to read a prefix. Without a seed the last prompt token is repeated as the tail's first row."""
        self.prefix, self.tail, self.running = prefix.hold(), tail, True
        self.observation, self.stamp = observation, stamp
        self.pending = self.seed or [last_prompt_id]
        self.seen = prefix.rows if self.seed else prefix.rows - 1

    @property
    def rows(self) -> list[int]:
        """Ids of this request's rows in the next pass."""
        return self.pending + self.draft

    def segment(self) -> Segment:
        """Where those rows go; a token is chosen after the last pending row and after each drafted one."""
        return tail_segment(self.prefix, self.seen, self.tail, len(self.rows), 1 + len(self.draft))

    def accept(self, chosen: Sequence[int], stop_ids: frozenset[int]) -> tuple[list[int], int]:
        """Take the tokens chosen after the pending row and each drafted row.

        A drafted row counts only if its token is the one that was chosen before it (greedy verification, lossless).
        Returns the new ids (without a stop id) and how many drafted tokens were right; sets `reason` at the end.
        """
        right = 0
        while right < len(self.draft) and self.draft[right] == chosen[right]:
            right += 1
        self.tail.rows += len(self.pending) + right
        self.draft = []
        new: list[int] = []
        for token in chosen[:right + 1]:
            if token in stop_ids:
                self.reason = 'stop'
                break
            new.append(token)
            self.stream.push(token)
            if self.stream.stopped:
                self.reason = 'stop'
                break
            if len(self.ids) + len(new) >= self.ask.max_tokens:
                self.reason = 'length'
                break
        self.ids += new
        self.pending = [chosen[right]]
        return new, right

    def speech(self, ids: Sequence[int], before: int, detail: str = '') -> Speech:
        """The message for what came since the text was `before` characters long."""
        if self.reason:
            self.stream.finish()
        text = self.stream.text
        message = Speech(self.ask.request_id, self.ask.channel, self._sent, self.observation, self.stamp, tuple(ids),
                         text[before:], text, bool(self.reason), self.reason, detail)
        self._sent += 1
        return message

    def free(self) -> None:
        """Give back everything it holds."""
        if self.running:
            self.tail.release()
            self.prefix.release()
            self.running = False
