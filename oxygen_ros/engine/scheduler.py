"""Who waits, who is admitted, and who takes part in the next pass."""
from __future__ import annotations

import math
from bisect import insort
from collections.abc import Iterable, Iterator

from oxygen_ros.engine.budget import StepTimes
from oxygen_ros.engine.request import Request


def _urgent_first(request: Request) -> tuple[float, int]:
    """A point of priority is worth a second of waiting: the urgent come first, and nobody waits for ever."""
    return request.arrived - request.priority, request.order


class Scheduler:
    """The queue of waiting requests and the list of live ones (those that hold KV)."""

    def __init__(self, max_live: int, max_queued: int) -> None:
        self.max_live, self.max_queued = max_live, max_queued
        self.queue: list[Request] = []  # the most urgent first
        self.live: list[Request] = []
        self._by_id: dict[str, Request] = {}
        self._soonest = math.inf  # nobody's time runs out before
        self.times = StepTimes()
        self._turn = 0

    def __iter__(self) -> Iterator[Request]:
        return iter([*self.live, *self.queue])

    def find(self, request_id: str) -> Request | None:
        """The unfinished request of this id."""
        return self._by_id.get(request_id)

    def enqueue(self, request: Request) -> Request | None:
        """Let it wait. Returns the request that has no room: the newest of the lowest priority, perhaps this one."""
        insort(self.queue, request, key=_urgent_first)
        self._by_id[request.ask.request_id] = request
        self._soonest = min(self._soonest, request.expires)
        if self._free >= 0:
            return None
        crowded = self.queue[-1]
        self.remove(crowded)
        return crowded

    @property
    def full(self) -> bool:
        """One more would leave somebody without room."""
        return self._free <= 0

    @property
    def _free(self) -> int:
        return self.max_queued + self.max_live - len(self.live) - len(self.queue)

    def next_waiting(self) -> Request | None:
        """The request to admit next, if there is one and not too many are live."""
        return self.queue[0] if self.queue and len(self.live) < self.max_live else None

    def admit(self, request: Request) -> None:
        """It holds KV now."""
        self.queue.remove(request)
        self.live.append(request)

    def remove(self, request: Request) -> None:
        """It is done."""
        (self.live if request in self.live else self.queue).remove(request)
        del self._by_id[request.ask.request_id]

    def expired(self, now: float) -> list[Request]:
        """Requests whose time has run out; to be ended by the caller, as each is told once."""
        if now < self._soonest:
            return []
        self._soonest = min((r.expires for r in self if r.expires > now), default=math.inf)
        return [r for r in self if r.expires <= now]

    def batch(self, seconds: float = math.inf, rows: float = math.inf) -> list[Request]:
        """Live requests for the next pass: by priority, those served longest ago first.

        As many as fit into `rows` rows and, by measured p99, into `seconds`; one that is too long keeps no other back.
        """
        chosen: list[Request] = []
        total = 0
        for request in self._by_turn():
            more = total + len(request.rows)
            if more <= rows and self.times.p99(more) <= seconds:
                chosen.append(request)
                total = more
        return chosen

    def _by_turn(self) -> list[Request]:
        return sorted(self.live, key=lambda r: (-r.priority, r.served, r.order))

    def relent(self, budget: float) -> None:
        """A cycle with this many seconds for speech is over: doubt what kept a live request out of all of it, and what
        kept requests from sharing a pass though it is said to cost more than a pass for each."""
        p99, total, doubted = self.times.p99, 0, []
        for request in self._by_turn() if budget > 0 else ():
            rows = len(request.rows)
            if p99(total + rows) <= budget:
                total += rows
            elif not total or p99(total + rows) > p99(total) + p99(rows):
                doubted.append(total + rows)
        self.times.relent(doubted)

    def serve(self, batch: Iterable[Request]) -> None:
        """Note that these had their turn."""
        self._turn += 1
        for request in batch:
            request.served = self._turn
