"""How fresh an input is, and what is wrong with it in words.

Two clocks are kept apart: arrival is measured on the steady clock of this machine, stamps are compared with the
node's clock (which may be simulated, paused or jump).
"""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oxygen_ros.contract import Input

SECOND = 1_000_000_000
NEVER = ('missing', 'nothing received yet: is the publisher running, with a matching QoS, under this name? (In the '
         'contract, a leading / keeps a topic out of the namespace of the node.)')


@dataclass(frozen=True)
class Problem:
    """Why an input cannot be used (``blocking``), or what its owner should know.

    kind groups what is the same trouble while its text changes with time: a kind is reported once per source.
    """

    source: str
    kind: str
    text: str
    blocking: bool = True

    def __str__(self) -> str:
        return f'{self.source}: {self.text}'


def blocks(problems: Iterable[Problem]) -> bool:
    """Whether one of them keeps the robot from moving."""
    return any(problem.blocking for problem in problems)


class Freshness:
    """Times of the newest message of one input."""

    def __init__(self, declared: Input) -> None:
        self._declared = declared
        self._max_age = round(declared.max_age * SECOND)
        self.received: int | None = None
        self.stamp = 0
        self._changed = 0

    def seen(self, stamp: int, received: int) -> None:
        """Note a message: its stamp (ns, 0 = none) and when it arrived (steady ns)."""
        if self.received is None or stamp != self.stamp:
            self._changed = received
        self.stamp, self.received = stamp, received

    @property
    def trusted(self) -> int:
        """The stamp if it is to be trusted; 0 = none."""
        return self.stamp if self._declared.trust_stamp else 0

    @property
    def delay(self) -> int | None:
        """From stamp to arrival, ns, up to the constant between the two clocks; None without a stamp to trust."""
        return self._changed - self.stamp if self.trusted else None

    def fault(self, now: int, clock: int) -> tuple[str, str] | None:
        """(kind, text) of what makes the input unusable at ``now`` (steady ns), ``clock`` (node clock, ns)."""
        limit = f'max_age is {self._declared.max_age:g} s'
        if self.received is None:
            return NEVER
        if (age := now - self.received) > self._max_age:
            return 'stale', f'nothing received for {age / SECOND:.2f} s ({limit}): check the publisher'
        if not self.trusted:
            return None
        if (age := now - self._changed) > self._max_age:
            return 'frozen', f'the same stamp for {age / SECOND:.2f} s ({limit}): its source has stopped'
        if abs(age := clock - self.stamp) > self._max_age:
            side = 'old' if age > 0 else 'in the future'
            return 'late', (f'stamps are {abs(age) / SECOND:.2f} s {side} ({limit}): check use_sim_time and clock '
                            'synchronisation, or set trust_stamp: false in the contract')
        return None
