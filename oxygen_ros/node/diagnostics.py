"""What `/diagnostics` says, once a second: every input, the motion, the engine, and all that is wrong now."""
from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import psutil
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from std_msgs.msg import Header

from oxygen_ros.node.freshness import SECOND, Problem
from oxygen_ros.node.messages import time

if TYPE_CHECKING:
    from oxygen_ros.node.inference_node import InferenceNode
    from oxygen_ros.node.session import Session

_OK, _WARN, _ERROR = DiagnosticStatus.OK, DiagnosticStatus.WARN, DiagnosticStatus.ERROR


class Diagnostics:
    """Asks the node for its parts; works in every lifecycle state and with a clock that stands still."""

    def __init__(self, node: InferenceNode) -> None:
        self._node = node
        self._name = node.get_fully_qualified_name()
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._counts: dict[str, tuple[int, int]] = {}
        self._process = psutil.Process()

    def publish(self, now: int, clock: int) -> None:
        """now: steady ns; clock: the node's, ns."""
        self._publisher.publish(DiagnosticArray(header=Header(stamp=time(clock)), status=list(self._statuses(now))))

    def _statuses(self, now: int) -> Iterable[DiagnosticStatus]:
        node, session = self._node, self._node.session
        values = {'state': node.state, 'memory_mb': f'{self._process.memory_info().rss / 1e6:.0f}'}
        if session is None:
            yield self._status('node', [], node.state, values)
            return
        problems = session.notices.present if session.active else []
        yield self._status('node', problems, 'paused' if session.paused else node.state, {
            **values, 'robot': session.contract.robot, 'paused': session.paused, 'requests': len(session.requests),
            'image_decoder': session.decoder})
        for camera in session.inputs.cameras.values():
            problems += self._mismatch(session, camera.source, camera.camera.topic)
            yield self._input(camera.source, camera.count, camera.freshness.received, now, problems)
        for topic, (count, received) in session.inputs.joints.arrivals().items():
            problems += self._mismatch(session, topic, topic)
            yield self._input(topic, count, received, now, problems)
        yield self._motion(session, now, problems)
        yield self._engine(session, now, problems)

    def _mismatch(self, session: Session, source: str, topic: str) -> list[Problem]:
        found = session.interface.mismatches.get(self._node.resolve_topic_name(topic))
        return [Problem(source, 'qos', found, blocking=False)] if found else []

    def _input(self, source: str, count: int, received: int | None, now: int, problems: list[Problem]
               ) -> DiagnosticStatus:
        before, then = self._counts.get(source, (count, now))
        self._counts[source] = count, now
        before = before if before <= count else 0  # counted anew, as after a jump of time
        rate = (count - before) * SECOND / (now - then) if now > then else 0.0
        age = f'{(now - received) / SECOND:.3f}' if received else 'never received'
        return self._status(source, [p for p in problems if p.source == source], f'{rate:.1f} Hz',
                            {'rate_hz': f'{rate:.2f}', 'age_s': age, 'messages': count})

    def _motion(self, session: Session, now: int, problems: list[Problem]) -> DiagnosticStatus:
        values = {}
        if timeline := session.motion.timeline:
            counts = timeline.counts
            values = {'chunks_used': counts.chunks, 'chunks_refused': counts.refused,
                      'position_clamps': counts.position_clamps, 'velocity_clamps': counts.velocity_clamps,
                      **{f'seam_{name}': f'{value:.4f}' for name, value in timeline.seam._asdict().items()}}
        rate = session.pace.rate_hz(now)
        jitter = session.pace.jitter_s(1.0 / self._node.parameters.publish_rate_hz)
        return self._status('motion', [p for p in problems if p.source in ('motion', 'observation')],
                            f'actions at {rate:.1f} Hz',
                            {'publish_rate_hz': f'{rate:.2f}', 'jitter_p99_ms': f'{jitter * 1e3:.2f}', **values})

    def _engine(self, session: Session, now: int, problems: list[Problem]) -> DiagnosticStatus:
        totals, model, last = session.totals, session.model, session.totals.last
        stages = {f'{stage}_ms': f'p50 {p50 * 1e3:.1f}, p95 {p95 * 1e3:.1f}'
                  for stage, (p50, p95) in totals.stage_percentiles().items()}
        return self._status('engine', [p for p in problems if p.source == 'engine'], model.model, {
            'dtype': model.dtype, 'device': model.device, 'mode': last.mode, 'load_s': f'{model.load_s:.1f}',
            'restarts': session.engine.restarts, 'cycles': totals.total('cycles'),
            'misses': totals.total('misses'), 'tokens_per_second': f'{totals.tokens_per_second(now):.1f}',
            'live_requests': last.live, 'queued_requests': last.queued, 'kv_bytes': last.kv_bytes,
            'kv_bytes_peak': last.kv_bytes_peak, 'kv_bytes_capacity': last.kv_bytes_capacity,
            'memory_mb': f'{last.memory_bytes / 1e6:.0f}', **stages,
            **{f'note_{i}': note for i, note in enumerate(last.notes)}})

    def _status(self, name: str, problems: Iterable[Problem], well: str, values: Mapping[str, object]
                ) -> DiagnosticStatus:
        problems = list(problems)
        level = _ERROR if any(p.blocking for p in problems) else _WARN if problems else _OK
        return DiagnosticStatus(
            name=f'{self._name}: {name}', level=level,
            message='; '.join(map(str, problems)) or well,
            values=[KeyValue(key=key, value=str(value)) for key, value in values.items()])
