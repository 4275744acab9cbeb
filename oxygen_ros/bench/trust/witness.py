"""Judges what the node publishes, from outside: plain numbers in, counts and the first example out. No ROS."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

_ROUNDING = 1e-6
REASONS = ('stop', 'length', 'cancelled', 'expired', 'error')


@dataclass
class Limits:
    """What the contract allows: rad or m, and per second."""

    low: np.ndarray
    high: np.ndarray
    speed: np.ndarray


@dataclass
class MotionWitness:
    """Every trajectory must be finite, within the limits of position and speed, about the future, and from a chunk that
    has not expired; and while ``blind`` is set, nothing may move at all (one point that says where to hold is fine).

    A chunk expires when it has been executed in full from the moment it was there. Messages of two topics may overtake
    each other: a trajectory is stale unless some chunk, heard earlier or later, covers it.

    All times are s on one clock. The robot is told to be at a point at its ``due`` time.
    """

    limits: Limits
    bad: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    expires: float = 0.0
    uncovered: list[float] = field(default_factory=list)    # stamps of trajectories that no chunk covers
    blind: bool = False
    messages: int = 0
    moved: float = 0.0      # when the last trajectory with more than one point arrived
    held: float = 0.0       # when the last one with a single point did

    def chunk(self, stamp: float, latency: float, length: float, values: Sequence[float]) -> None:
        """One message of `action_chunk`: of an observation at ``stamp``, made in ``latency`` s, of actions for
        ``length`` s."""
        expires = stamp + latency + length
        self.expires = max(self.expires, expires)
        self.uncovered = [when for when in self.uncovered if not stamp <= when <= expires]
        if not np.isfinite(values).all():
            self._count('non-finite', f'chunk at {stamp:.3f}')

    def trajectory(self, received: float, stamp: float, due: Sequence[float], positions: Sequence[Sequence[float]]
                   ) -> None:
        """One message of `actions`, published at ``stamp``."""
        self.messages += 1
        rows, times = np.asarray(positions, float), np.asarray(due, float)
        if rows.shape != (len(times), len(self.limits.low)) or not len(times):
            self._count('malformed', f'{rows.shape} positions, {len(times)} times')
            return
        moving = len(times) > 1
        if moving:
            self.moved = received
        else:
            self.held = received
        if not np.isfinite(rows).all():
            self._count('non-finite', str(rows.tolist()))
        elif (rows < self.limits.low - _ROUNDING).any() or (rows > self.limits.high + _ROUNDING).any():
            self._count('out of limits', f'{rows.min(axis=0).tolist()} .. {rows.max(axis=0).tolist()}')
        elif moving:
            steps, spans = np.abs(np.diff(rows, axis=0)), np.diff(times)[:, None]
            if (spans <= 0).any() or (steps > self.limits.speed * (1 + 1e-3) * spans + _ROUNDING).any():
                self._count('out of limits', f'steps of {steps.max(axis=0).tolist()} at due times {times.tolist()}')
        if moving and times[-1] <= stamp:
            self._count('stale', f'published at {stamp:.3f}, last due at {times[-1]:.3f}')
        if moving and stamp > self.expires:
            self.uncovered.append(stamp)
        if moving and self.blind:
            self._count('moved blindly', f'{len(times)} points at {stamp:.3f}')

    def findings(self) -> dict[str, tuple[int, str]]:
        """What was wrong: kind -> (how often, the first example)."""
        found = {kind: (count, self.example[kind]) for kind, count in self.bad.items()}
        if self.uncovered:
            found['stale'] = (len(self.uncovered) + self.bad['stale'],
                              f'published at {self.uncovered[0]:.3f} without a chunk that still counted')
        return found

    def _count(self, kind: str, example: str) -> None:
        self.bad[kind] += 1
        self.example.setdefault(kind, example)


@dataclass
class SpeechWitness:
    """Every request must end exactly once with a reason, in sequence, and its pieces must be its text."""

    bad: Counter[str] = field(default_factory=Counter)
    example: dict[str, str] = field(default_factory=dict)
    reasons: Counter[str] = field(default_factory=Counter)
    asked: set[str] = field(default_factory=set)                        # ours that have not ended
    _begun: dict[str, tuple[int, str]] = field(default_factory=dict)    # messages so far, text so far
    _ended: set[str] = field(default_factory=set)

    def ask(self, request_id: str) -> None:
        self.asked.add(request_id)

    def speech(self, request_id: str, sequence: int, delta: str, text: str, final: bool, reason: str) -> None:
        """One message of `speech`."""
        if request_id in self._ended:
            self._count('after the end', request_id)
            return
        expected, before = self._begun.get(request_id, (0, ''))
        if sequence != expected:
            self._count('out of sequence', f'{request_id}: {sequence} instead of {expected}')
        if before + delta != text:
            self._count('pieces are not the text', f'{request_id}: {before!r} + {delta!r} != {text!r}')
        if final != bool(reason) or final and reason not in REASONS:
            self._count('no single reason', f'{request_id}: final {final}, {reason!r}')
        self._begun[request_id] = sequence + 1, text
        if final:
            self.reasons[reason] += 1
            self._ended.add(request_id)
            self._begun.pop(request_id, None)
            self.asked.discard(request_id)

    def findings(self) -> dict[str, tuple[int, str]]:
        """What was wrong: kind -> (how often, the first example)."""
        return {kind: (count, self.example[kind]) for kind, count in self.bad.items()}

    def _count(self, kind: str, example: str) -> None:
        self.bad[kind] += 1
        self.example.setdefault(kind, example)
