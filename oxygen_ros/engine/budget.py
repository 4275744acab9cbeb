"""How long a pass takes, and so how much speech fits before a deadline."""
from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable

_WINDOW = 128
_RELENT = 0.95  # per cycle


class StepTimes:
    """Measured durations of language passes by their number of rows, in powers of two; answers with the p99."""

    def __init__(self) -> None:
        self._windows: dict[int, deque[float]] = {}
        self._p99: dict[int, float] = {}  # of windows that have not changed since
        self._guess: dict[int, float] = {}  # of sizes that were too slow to be tried again

    @staticmethod
    def _bucket(rows: int) -> int:
        return (rows - 1).bit_length()

    def add(self, rows: int, seconds: float) -> None:
        """A pass of `rows` rows took `seconds`."""
        bucket = self._bucket(rows)
        if self._guess.pop(bucket, None) is not None:
            self._windows.pop(bucket, None)  # what kept it from being tried was wrong, or is no longer so
        self._windows.setdefault(bucket, deque(maxlen=_WINDOW)).append(seconds)
        self._p99.pop(bucket, None)

    def relent(self, sizes: Iterable[int]) -> None:
        """A whole cycle had no room for passes of so many rows. What never runs is never measured again, so the
        estimate comes down until it is tried: else one slow spell of the machine would silence a request for good."""
        for rows in {1 << self._bucket(rows) for rows in sizes}:
            self._guess[self._bucket(rows)] = _RELENT * self.p99(rows)

    def forget(self, rows: int) -> None:
        """Drop what was measured for this size."""
        self._windows.pop(self._bucket(rows), None)
        self._p99.pop(self._bucket(rows), None)

    def p99(self, rows: int) -> float:
        """Seconds that a pass of `rows` rows stays below, 99 times in 100; 0 when nothing was measured yet.

        An unmeasured size counts as the next larger measured one, or in proportion to the largest smaller one.
        """
        bucket = self._bucket(rows)
        if bucket in self._guess:
            return self._guess[bucket]
        if bucket in self._windows:
            return self._quantile(bucket)
        if larger := [b for b in self._windows if b > bucket]:
            return self._quantile(min(larger))
        if not self._windows:
            return 0.0
        nearest = max(self._windows)
        return self._quantile(nearest) * 2 ** (bucket - nearest)

    def _quantile(self, bucket: int) -> float:
        if bucket not in self._p99:
            window = sorted(self._windows[bucket])
            self._p99[bucket] = window[math.ceil(0.99 * len(window)) - 1]
        return self._p99[bucket]
