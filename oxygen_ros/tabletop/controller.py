"""The simulated robot's joint_trajectory_controller and its joints.

Motion is kinematic: the joints track the controller's reference exactly up to their speed limit, as a stiff industrial
arm does.
"""
from __future__ import annotations

import numpy as np

from oxygen_ros.tabletop import arm


class Controller:
    """Follows the newest trajectory as joint_trajectory_controller does: linear between its points, then holds.

    The first segment starts at the reference that was being tracked when the trajectory began, so that a new
    trajectory never makes the reference jump. Times are in s on any one steady clock.
    """

    def __init__(self, q: np.ndarray) -> None:
        self.reset(q)

    def reset(self, q: np.ndarray) -> None:
        """Forget the trajectory and hold ``q``."""
        self._times = np.zeros(1)
        self._points = np.array(q, dtype=np.float64)[None]
        self.q = np.array(q, dtype=np.float64)
        self._now: float | None = None

    def follow(self, start: float, times: np.ndarray, points: np.ndarray) -> None:
        """Take a new trajectory: ``times`` [n] s after ``start``, strictly increasing; ``points`` [n, 7] rad.

        Points that lie before the current time are skipped. ValueError, and no motion, when it is not usable.
        """
        times, points = np.asarray(times, np.float64), np.asarray(points, np.float64)
        if times.ndim != 1 or points.shape != (len(times), 7) or not len(times):
            raise ValueError(f'trajectory of {times.shape} times and {points.shape} points: need [n] and [n, 7], n > 0')
        if not (np.isfinite(times).all() and np.isfinite(points).all()):
            raise ValueError('trajectory with a non-finite value')
        if (np.diff(times) <= 0).any():
            raise ValueError('time_from_start must increase strictly')
        now = start if self._now is None else max(self._now, start)
        here = self._reference(now)
        ahead = start + times > now
        if ahead.any():
            self._times = np.concatenate(([now], start + times[ahead]))
            self._points = np.concatenate((here[None], points[ahead]))

    def advance(self, now: float) -> np.ndarray:
        """Move to the time ``now`` and return the joint positions [7]."""
        elapsed = 0.0 if self._now is None else max(0.0, now - self._now)
        self._now = now
        reference = np.clip(self._reference(now), -arm.LIMIT, arm.LIMIT)
        step = arm.MAX_VELOCITY * elapsed
        self.q = self.q + np.clip(reference - self.q, -step, step)
        return self.q

    def _reference(self, now: float) -> np.ndarray:
        return np.array([np.interp(now, self._times, column) for column in self._points.T])
