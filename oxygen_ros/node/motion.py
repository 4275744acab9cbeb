"""From chunks to what the controller gets: one trajectory per tick, a hold when the motion has to end early."""
from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Literal

import numpy as np
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.contract import Contract
from oxygen_ros.engine.wire import Chunk
from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.messages import trajectory
from oxygen_ros.node.timeline import Seam, Timeline


class Motion:
    """Publishes the timeline: trajectories, and for controllers that only forward, the row of positions of now.

    When a contract's actions are no joint positions it never publishes anything. ``tick`` may be called from a thread
    of its own; what it publishes and what the others do to the motion is then still one after the other.

    stamp_mode: what the stamp means to joint_trajectory_controller. zero: the trajectory starts on arrival; now: at
    the stamp, which needs synchronised clocks; observation: the stamp is that of the observation and the points keep
    their place on its time line. In each mode a point is due at stamp + time_from_start, and all points lie ahead.
    """

    def __init__(self, contract: Contract, publish: Callable[[JointTrajectory], None],
                 publish_row: Callable[[np.ndarray], None], clock: Callable[[], int],
                 stamp_mode: Literal['zero', 'now', 'observation'], blend_s: float) -> None:
        self._contract, self._publish, self._publish_row = contract, publish, publish_row
        self._clock, self._stamp_mode = clock, stamp_mode
        self._names = [action.label for action in contract.joints]
        self.timeline = (Timeline(contract.joints, contract.policy_period, blend_s) if contract.moves_joints else None)
        self._latencies: deque[int] = deque(maxlen=10)
        self._stamp = 0  # of the observation behind the newest chunk
        self._under_way = False  # rows of a motion were published, but not its last
        self._lock = threading.Lock()

    def take(self, chunk: Chunk, state: np.ndarray, measured: np.ndarray, now: int) -> str:
        """Move by a chunk, made from policy-unit ``state``; returns why it was refused, or ''."""
        if self.timeline is None:
            return ''
        targets = self._contract.joint_targets(chunk.actions, state)
        with self._lock:
            refusal = self.timeline.push(targets, chunk.sequence, chunk.received_ns, measured, now)
            if not refusal:
                self._stamp = chunk.stamp
                self._latencies.append(now - chunk.received_ns)
        return refusal

    def committed(self, state: np.ndarray, observed: int, now: int) -> np.ndarray | None:
        """The actions that will be executed while the next chunk is computed, [n, actions] in policy units.

        Real-time chunking (Black et al., arXiv 2506.07339): the next chunk is made to begin with them, so that it
        continues the motion instead of disagreeing with it. n covers the longest of the last latencies.
        """
        if self.timeline is None or not self._latencies or not self.timeline.moving(now):
            return None
        count = -(-max(self._latencies) // self.timeline.period)
        return self._contract.policy_actions(self.timeline.upcoming(observed, count), state)

    @property
    def seam(self) -> Seam:
        """Where the newest chunk took over; zeros when it started from standstill."""
        return self.timeline.seam if self.timeline is not None else Seam()

    def limit(self, contract: Contract) -> None:
        """Keep to the limits of ``contract``, the same one otherwise."""
        self._contract = contract
        if self.timeline is not None:
            self.timeline.limit(contract.joints)

    def moving(self, now: int) -> bool:
        """Whether there is motion left."""
        return self.timeline is not None and self.timeline.moving(now)

    def planned(self, now: int) -> dict[str, np.ndarray]:
        """Joint -> [n] positions from now to the end of the motion; empty when nothing moves."""
        if self.timeline is None or (points := self.timeline.points(now)) is None:
            return {}
        here = self.timeline.position(now)
        return dict(zip(self._names, np.vstack([here, points[1]]).T, strict=True)) if here is not None else {}

    def set_blend(self, seconds: float) -> None:
        if self.timeline is not None:
            self.timeline.blend = round(seconds * SECOND)

    def tick(self) -> None:
        """Publish what lies ahead, if anything does."""
        if self.timeline is None:
            return
        with self._lock:
            now = time.monotonic_ns()
            if (points := self.timeline.points(now)) is not None:
                self._send(*points)
                if (here := self.timeline.position(now)) is not None:
                    self._publish_row(here)
                    self._under_way = True
            elif self._under_way:
                self._under_way = False
                if (end := self.timeline.ended(now)) is not None:  # a trajectory holds it, rows have to say it
                    self._publish_row(end)

    def halt(self) -> bool:
        """End the motion where it is now: one point, then silence. False when nothing moved."""
        if self.timeline is None:
            return False
        with self._lock:
            self._under_way = False
            if (held := self.timeline.stop(time.monotonic_ns())) is None:
                return False
            self._send(np.array([self.timeline.period]), held[None])
            self._publish_row(held)
            return True

    def _send(self, ahead: np.ndarray, positions: np.ndarray) -> None:
        if self._stamp_mode == 'zero':
            stamp = offset = 0
        else:
            stamp, offset = self._clock(), 0
            if self._stamp_mode == 'observation' and 0 < self._stamp <= stamp:
                stamp, offset = self._stamp, stamp - self._stamp
        self._publish(trajectory(self._names, stamp, offset, ahead, positions))
