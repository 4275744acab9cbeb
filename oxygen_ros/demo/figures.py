"""What the demo measures, from what an observer outside the node received: plain numbers in, a report out, no ROS."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


def rate_hz(times: Sequence[float]) -> float:
    """Mean rate of events at ``times`` (s); 0 for fewer than two."""
    return (len(times) - 1) / (times[-1] - times[0]) if len(times) > 1 and times[-1] > times[0] else 0.0


def jitter_p99_ms(times: Sequence[float], period: float) -> float:
    """99th percentile of how far intervals between ``times`` (s) stray from ``period`` (s), in ms; 0 without any."""
    if len(times) < 2:
        return 0.0
    return float(np.percentile(np.abs(np.diff(times) - period), 99) * 1e3)


@dataclass
class Figures:
    """Grows while messages arrive. All times are s on the ROS clock of this machine.

    A trajectory is stale when the newest chunk has expired, that is, has been executed in full since it was there, or
    when all its points lie in the past: it says nothing worth following then.
    """

    publish_rate_hz: float
    began: float = 0.0
    ended: float = 0.0
    published: list[float] = field(default_factory=list)     # stamps of `actions`, by its publisher
    received: list[float] = field(default_factory=list)      # the same messages at our end
    chunks: int = 0
    sentences: int = 0
    stale: int = 0
    nonfinite: int = 0
    asked: dict[str, float] = field(default_factory=dict)    # request id -> when
    first_token: dict[str, float] = field(default_factory=dict)      # request id -> s after asking
    answers: dict[str, str] = field(default_factory=dict)    # request id -> finish reason
    kv_bytes_peak: int = 0
    kv_bytes_end: int | None = None                           # in use after every request was dropped
    _first_status: Any = None
    _last_status: Any = None

    def trajectory(self, received: float, published: float, due: Sequence[float], finite: bool, expires: float) -> None:
        """One message of `actions`: when each of its points is due, and when the newest chunk expires."""
        self.received.append(received)
        self.published.append(published)
        self.nonfinite += not finite
        self.stale += published > expires or not len(due) or max(due) <= received

    def chunk(self, finite: bool) -> None:
        """One message of `action_chunk`."""
        self.chunks += 1
        self.nonfinite += not finite

    def question(self, request_id: str, now: float) -> None:
        """A question of ours was sent."""
        self.asked[request_id] = now

    def speech(self, request_id: str, now: float, tokens: int, reason: str) -> None:
        """One message of `speech`; those of other requests than ours only count as sentences (see ``said``)."""
        if request_id not in self.asked:
            return
        if tokens:
            self.first_token.setdefault(request_id, now - self.asked[request_id])
        if reason:
            self.answers[request_id] = reason

    def status(self, status: Any) -> None:
        """One message of `status` (oxygen_ros/EngineStatus)."""
        if self._first_status is None:
            self._first_status = status
        self._last_status = status
        self.kv_bytes_peak = max(self.kv_bytes_peak, status.kv_bytes_peak)

    def counted(self, name: str) -> int:
        """How much a counter of `status` has grown since the first one."""
        return getattr(self._last_status, name) - getattr(self._first_status, name) if self._last_status else 0

    def report(self) -> dict[str, Any]:
        """The content of demo_report.json."""
        period = 1.0 / self.publish_rate_hz
        seconds = self.ended - self.began
        first = sorted(self.first_token.values())
        last = self._last_status
        return {
            'seconds': round(seconds, 2),
            'cycles': self.counted('cycles'),
            'prefills': self.counted('prefills'),
            'chunks_published': self.chunks,
            'publish_rate_hz': round(rate_hz(self.published), 3),
            'publish_rate_set_hz': self.publish_rate_hz,
            # How far the intervals stray from the set period: by the publisher's own stamps, and as they arrived here.
            'jitter_p99_ms': round(jitter_p99_ms(self.published, period), 3),
            'jitter_p99_received_ms': round(jitter_p99_ms(self.received, period), 3),
            'tokens': self.counted('tokens'),
            'tokens_per_s': round(self.counted('tokens') / seconds, 1) if seconds > 0 else 0.0,
            'sentences': self.sentences,
            'questions': len(self.asked),
            'questions_answered': sum(reason in ('stop', 'length') for reason in self.answers.values()),
            'time_to_first_token_ms': round(float(np.median(first)) * 1e3, 1) if first else None,
            'time_to_first_token_max_ms': round(first[-1] * 1e3, 1) if first else None,
            'kv_bytes_peak': self.kv_bytes_peak,
            'kv_bytes_end': self.kv_bytes_end,
            'decode_steps': self.counted('decode_steps'),
            'misses': self.counted('misses'),
            'restarts': last.restarts if last else 0,
            'stale_published': self.stale,
            'nonfinite_published': self.nonfinite,
        }

    def faults(self) -> list[str]:
        """What must not be, in words; empty when all is well."""
        report = self.report()
        checks = [
            (report['chunks_published'] == 0, 'no action chunk was published'),
            (report['stale_published'] > 0, f'{report["stale_published"]} stale trajectories were published'),
            (report['nonfinite_published'] > 0, f'{report["nonfinite_published"]} non-finite messages were published'),
            (report['prefills'] != report['cycles'],
             f'{report["prefills"]} prefills in {report["cycles"]} cycles: not one per observation'),
            (report['restarts'] > 0, f'the engine was restarted {report["restarts"]} times'),
            # A busy machine costs some of the rate, which the report shows; only half of it is a fault of ours.
            (report['publish_rate_hz'] < 0.5 * self.publish_rate_hz,
             f'actions came at {report["publish_rate_hz"]:.1f} Hz instead of {self.publish_rate_hz:g} Hz'),
            (bool(report['kv_bytes_end']),
             f'{report["kv_bytes_end"]} bytes of KV were in use after every request had been dropped'),
            (report['questions'] > 0 and report['questions_answered'] == 0, 'no question was answered'),
        ]
        return [words for wrong, words in checks if wrong]
