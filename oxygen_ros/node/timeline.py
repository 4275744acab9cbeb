"""One continuous motion made from overlapping chunks: where each joint should be at any time from now on.

The timeline is a broken line through knots on the steady clock. Action k of a chunk is where the robot should be
k + 1 policy periods after the observation, minus the time it stood still meanwhile. A new chunk takes over at the
moment it arrives: what was executed while it was computed is skipped, exactly that and no more, and over ``blend``
seconds the motion moves from the old line to the new one. Limits apply to the result, so nothing that leaves here is
non-finite or too fast, and no target is out of bounds. A joint that stands a little beyond its bounds when the motion
begins is led back from there, so the first points may lie beyond them too.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from oxygen_ros.contract import Action
from oxygen_ros.node.freshness import SECOND

_JUST = SECOND // 5
_APART = SECOND // 1000  # a knot closer than this to the point before it says nothing new


@dataclass
class Counts:
    """What the limits did, in values (one joint at one knot) since the timeline was made."""

    chunks: int = 0
    refused: int = 0
    position_clamps: int = 0
    velocity_clamps: int = 0


class Seam(NamedTuple):
    """How much the motion bent where a chunk took over: the worst joint, in rad or m per power of a second.

    Measured on the motion as it is published, after blending and limits; chunks that agree leave zeros.
    """

    position: float = 0.0  # jump of the first published point, one policy period ahead
    velocity: float = 0.0  # change of velocity at the moment of taking over
    jerk: float = 0.0      # third difference over four policy periods around it


class Timeline:
    """The motion of ``joints`` (contract order). All times are steady nanoseconds, positions rad or m."""

    def __init__(self, joints: Sequence[Action], period_s: float, blend_s: float) -> None:
        self.period = round(period_s * SECOND)
        self.blend = round(blend_s * SECOND)
        self.counts = Counts()
        self.seam = Seam()  # of the newest chunk
        self.limit(joints)
        self._times = np.empty(0, np.int64)
        self._knots = np.empty((0, len(joints)))
        self._since = self._until = 0  # the last span of motion
        self._sequence = -1

    def limit(self, joints: Sequence[Action]) -> None:
        """Keep to the limits of ``joints`` from the next chunk on."""
        self._joints = joints
        limits = [joint.position or (-np.inf, np.inf) for joint in joints]
        self._low, self._high = (np.array(side) for side in zip(*limits, strict=True))
        period_s = self.period / SECOND
        self._speed = np.array([min(joint.velocity, (joint.max_delta or np.inf) / period_s) for joint in joints])

    def push(self, targets: np.ndarray, sequence: int, observed: int, measured: np.ndarray, now: int) -> str:
        """Take over a chunk; returns why it was refused, or ''.

        targets: [horizon, joints], of observation ``sequence`` made at time ``observed``.
        measured: [joints] where the robot is; the motion starts there when it was standing still.
        """
        if refusal := self._refusal(targets, sequence, measured):
            self.counts.refused += 1
            return refusal
        executed = max(0, min(now, self._until) - max(observed, self._since))
        times = now - executed + self.period * np.arange(1, len(targets) + 1, dtype=np.int64)
        ahead = times > now
        if not ahead.any():
            self.counts.refused += 1
            return f'it came {(now - observed) / SECOND:.2f} s after its observation: all of its actions have elapsed'
        times, targets = times[ahead], targets[ahead]
        within = np.clip(targets, self._low, self._high)
        self.counts.position_clamps += int(np.count_nonzero(within != targets))
        if self.moving(now):
            self._continue(now, times, within)
        else:
            start = np.asarray(measured, np.float64)
            self._times = np.append(now, times)
            self._knots = np.vstack([start, self._limited(start, now, times, within)])
            self._since, self.seam = now, Seam()
        self._until = int(times[-1])
        self._sequence = sequence
        self.counts.chunks += 1
        return ''

    def _continue(self, now: int, times: np.ndarray, targets: np.ndarray) -> None:
        """Move over from the line in use to ``targets`` at ``times``, and measure the seam."""
        blend = min(self.blend, self._until - now)  # beyond its end the old line has nothing to say
        share = np.minimum((times - now) / blend, 1.0)[:, None] if blend else 1.0
        past, probes = self._past(now), [now + self.period, times[0]]
        history, before, old = np.split(self._at(np.concatenate([past, [now], probes, times])),
                                        [len(past) + 1, len(past) + 3])
        knots = self._limited(history[-1], now, times, share * targets + (1.0 - share) * old)
        self._times = np.concatenate([past, [now], times])
        self._knots = np.vstack([history, knots])
        after = self._at(np.concatenate([probes, now + self.period * np.arange(-1, 3)]))
        jump, bend = np.abs(after[:2] - before).max(axis=1)
        third = np.diff(after[2:], n=3, axis=0)
        self.seam = Seam(float(jump), float(bend / (times[0] - now) * SECOND),
                         float(np.abs(third).max() / (self.period / SECOND) ** 3))

    def _past(self, now: int) -> np.ndarray:
        """Times of the knots of the last period, kept for what is measured over it."""
        begin = max(now - self.period, int(self._times[0]))
        kept = self._times[(self._times > begin) & (self._times < now)]
        return np.append(begin, kept) if begin < now else kept

    def moving(self, now: int) -> bool:
        """Whether there is motion left."""
        return now < self._until

    def points(self, now: int) -> tuple[np.ndarray, np.ndarray] | None:
        """(ns ahead of now [n], positions [n, joints]) still to come; None when the chunk has run out.

        The first point is one policy period ahead, the others are the knots beyond it.
        """
        if not self.moving(now):
            return None
        first = now + self.period
        later = self._times > first + _APART
        return (np.concatenate([[first], self._times[later]]) - now,
                np.concatenate([self._at(first)[None], self._knots[later]]))

    def upcoming(self, observed: int, count: int) -> np.ndarray:
        """[<= count, joints] where the robot will be 1, 2, ... periods after ``observed``, as far as the line goes."""
        times = observed + self.period * np.arange(1, count + 1, dtype=np.int64)
        return self._at(times[times <= self._until]) if len(self._times) else self._knots

    def position(self, now: int) -> np.ndarray | None:
        """[joints] where the robot should be now; None when nothing moves."""
        return self._at(now) if self.moving(now) else None

    def ended(self, now: int) -> np.ndarray | None:
        """[joints] where a motion has just ended; None when that is longer ago, or has yet to be."""
        return self._knots[-1] if 0 <= now - self._until <= _JUST and len(self._knots) else None

    def stop(self, now: int) -> np.ndarray | None:
        """End the motion; returns the position to hold, or None when nothing moved."""
        held = self.position(now)
        self._until = min(self._until, now)
        return held

    def _refusal(self, targets: np.ndarray, sequence: int, measured: np.ndarray) -> str:
        if sequence <= self._sequence:
            return f'its observation {sequence} is not newer than {self._sequence}, which is in use'
        if not np.isfinite(targets).all():
            return 'it holds non-finite actions: check the weights and the normalisation statistics'
        for joint, position in zip(self._joints, measured, strict=True):
            if not joint.plausible(position):  # also when it is NaN
                return f'{joint.joint} is said to be at {position:g}, beyond its limits {list(joint.position or ())}'
        return ''

    def _at(self, times: np.ndarray | int) -> np.ndarray:
        after = np.searchsorted(self._times, times).clip(1, len(self._times) - 1)
        begin, end = self._times[after - 1], self._times[after]
        share = ((times - begin) / (end - begin)).clip(0.0, 1.0)[..., None]  # differences first: ns fill a float
        return (1.0 - share) * self._knots[after - 1] + share * self._knots[after]

    def _limited(self, start: np.ndarray, now: int, times: np.ndarray, wanted: np.ndarray) -> np.ndarray:
        """``wanted`` with no joint faster than its limit, beginning at ``start``."""
        reaches = self._speed * (np.diff(times, prepend=now)[:, None] / SECOND)
        if (np.abs(np.diff(wanted, axis=0, prepend=start[None])) <= reaches).all():
            return wanted
        knots, previous = np.empty_like(wanted), start
        for i, reach in enumerate(reaches):
            knots[i] = previous = np.clip(wanted[i], previous - reach, previous + reach)
            self.counts.velocity_clamps += int(np.count_nonzero(previous != wanted[i]))
        return knots
