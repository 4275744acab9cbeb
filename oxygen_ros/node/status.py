"""What the engine reports, made continuous over restarts, as EngineStatus; and rates measured from arrivals."""
from __future__ import annotations

from collections import Counter, deque

import numpy as np
from std_msgs.msg import Header

from oxygen_ros.engine.wire import Report
from oxygen_ros.msg import EngineStatus
from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.messages import time
from oxygen_ros.node.timeline import Seam

_COUNTERS = ('cycles', 'prefills', 'images', 'rows', 'decode_steps', 'tokens', 'drafted', 'accepted', 'misses')
_STAGES = ('vision', 'prefill', 'act', 'speak', 'cycle')


class Pace:
    """How regularly something happens, over the last events (steady ns). May be told from another thread."""

    def __init__(self, keep: int = 500) -> None:
        self._times: deque[int] = deque(maxlen=keep)

    def tick(self, now: int) -> None:
        self._times.append(now)

    def rate_hz(self, now: int) -> float:
        """Events per second over the last two seconds; 0 when there were fewer than two."""
        recent = [t for t in list(self._times) if now - t <= 2 * SECOND]
        span = recent[-1] - recent[0] if recent else 0
        return (len(recent) - 1) * SECOND / span if span else 0.0

    def jitter_s(self, period_s: float) -> float:
        """99th percentile of how far intervals stray from ``period_s``; pauses above five periods are not intervals."""
        intervals = np.diff(list(self._times)) / SECOND
        intervals = intervals[intervals < 5 * period_s]
        return float(np.percentile(np.abs(intervals - period_s), 99)) if intervals.size else 0.0


class EngineTotals:
    """Counters since activation, over any number of engine processes."""

    def __init__(self) -> None:
        self.last = Report()
        self._before: Counter[str] = Counter()  # of engine processes that have ended, less what was at activation
        self._tokens: deque[tuple[int, int]] = deque(maxlen=200)
        self._stages: dict[str, deque[float]] = {stage: deque(maxlen=200) for stage in _STAGES}

    def activate(self) -> None:
        """Count from here."""
        self._before = Counter({name: -getattr(self.last, name) for name in _COUNTERS})
        self._tokens.clear()

    def engine_ended(self) -> None:
        """The next report comes from a new process that counts from 0."""
        self._before.update({name: getattr(self.last, name) for name in _COUNTERS})
        self.last = Report()

    def take(self, report: Report, now: int) -> None:
        self.last = report
        self._tokens.append((now, self.total('tokens')))
        if not report.heartbeat:
            for stage, values in self._stages.items():
                values.append(getattr(report, f'{stage}_s'))

    def total(self, name: str) -> int:
        return self._before[name] + getattr(self.last, name)

    def tokens_per_second(self, now: int) -> float:
        recent = [(t, n) for t, n in self._tokens if now - t <= SECOND]
        if len(recent) < 2 or recent[-1][0] == recent[0][0]:
            return 0.0
        return max(0.0, (recent[-1][1] - recent[0][1]) * SECOND / (recent[-1][0] - recent[0][0]))

    def stage_percentiles(self) -> dict[str, tuple[float, float]]:
        """Stage -> (p50, p95) in s, of the last cycles."""
        return {stage: tuple(np.percentile(values, (50, 95))) for stage, values in self._stages.items() if values}

    def message(self, stamp: int, now: int, healthy: bool, restarts: int, seam: Seam) -> EngineStatus:
        report = self.last
        return EngineStatus(
            header=Header(stamp=time(stamp)), mode=report.mode, healthy=healthy, observation=report.observation,
            live_requests=report.live, queued_requests=report.queued, kv_bytes=report.kv_bytes,
            kv_bytes_peak=report.kv_bytes_peak, kv_bytes_capacity=report.kv_bytes_capacity, budget=report.budget_s,
            tokens_per_second=self.tokens_per_second(now), restarts=restarts,
            **{f'seam_{name}': value for name, value in seam._asdict().items()},
            **{name: self.total(name) for name in _COUNTERS},
            **{f'{stage}_time': getattr(report, f'{stage}_s') for stage in _STAGES})
