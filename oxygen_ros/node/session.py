"""Everything between configure and cleanup: one contract, one loaded engine, the cycle that joins them.

All of it runs on the executor's thread, but for the ticker, which publishes `actions` whatever else happens. A timer of
the same rate looks at the inputs and begins a cycle when one is due. Events of the engine come as they are made, so
that speech does not wait.
"""
from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

import numpy as np
from rclpy.timer import Timer
from std_msgs.msg import Float64MultiArray, String

from oxygen_ros.contract import Contract
from oxygen_ros.engine.wire import (
    Ask,
    Cancel,
    Chunk,
    Failed,
    FromEngine,
    Ready,
    Rejected,
    Report,
    Reset,
    Speech,
    refusal,
)
from oxygen_ros.node import messages
from oxygen_ros.node.bridge import choose_decoder
from oxygen_ros.node.freshness import SECOND, Problem, blocks
from oxygen_ros.node.inputs import Inputs, Snapshot
from oxygen_ros.node.interface import Interface
from oxygen_ros.node.markers import Markers
from oxygen_ros.node.motion import Motion
from oxygen_ros.node.notices import Notices
from oxygen_ros.node.parameters import NodeParameters
from oxygen_ros.node.requests import Requests
from oxygen_ros.node.robot_model import Described, RobotModel
from oxygen_ros.node.status import EngineTotals, Pace
from oxygen_ros.node.ticker import Ticker
from oxygen_ros.policy.observation import Observation
from oxygen_ros.worker.supervisor import Supervisor
from oxygen_ros.worker.worker import HEARTBEAT_S

if TYPE_CHECKING:
    from oxygen_ros.node.inference_node import InferenceNode

_SILENCE = round(3.2 * HEARTBEAT_S * SECOND)  # three heartbeats of the engine and a little
_START_UP = 2 * SECOND       # in which inputs may still come for the first time
_SHOWN = 200                 # characters of a text from outside that go into a log line


class Session:
    """Made when the engine is ready; ``close`` ends it."""

    def __init__(self, node: InferenceNode, contract: Contract, engine: Supervisor, model: Ready) -> None:
        self._node, self.contract, self.engine, self.model = node, contract, engine, model
        self._log = node.get_logger()
        decode, self.decoder = choose_decoder()
        self.inputs = Inputs(contract, node.resolve_topic_name, decode)
        self.interface = Interface(node, self)
        self.motion = Motion(contract, self._publish_actions, self._publish_commands, node.clock_ns,
                             node.parameters.stamp_mode, node.parameters.blend_s)
        self.robot_model = RobotModel(contract, node.resolve_topic_name(contract.description_topic), node.post)
        self.markers = Markers(self.interface.markers, node.clock_ns, node.parameters.marker_frame)
        self.requests, self.notices, self.totals, self.pace = Requests(), Notices(), EngineTotals(), Pace()
        self.paused = False
        self._instruction = node.parameters.instruction.strip() or contract.instruction.strip()
        self._ticker: Ticker | None = None
        self._timer: Timer | None = None
        self._sequence = 0       # of the newest observation
        self._barrier = 0        # chunks of observations before this one are from before a stop
        self._sent: dict[int, tuple[np.ndarray, int]] = {}  # observation -> its state, and when the engine was given it
        self._activated = self._next_cycle = 0
        self._troubles: dict[str, Problem] = {}  # found outside of the inputs, until they are over
        self._unseen: list[Problem] = []         # what was wrong with the last snapshot
        self._blind = ''                         # why nothing can be said about what the robot sees now
        self._moved = False
        self._heard = time.monotonic_ns()        # when the engine last gave a sign of life
        self._latencies = deque([round(model.act_s * SECOND)], maxlen=10)
        if node.parameters.robot_description:
            self.robot_model.read(node.parameters.robot_description)

    @property
    def active(self) -> bool:
        return self._ticker is not None

    def activate(self) -> None:
        self.totals.activate()
        self._barrier = self._sequence + 1
        self._activated = self._next_cycle = time.monotonic_ns()
        self._unseen, self._blind = [], ''
        self.notices = Notices()  # what still is wrong is said again, what was wrong with the last motion is not
        self._troubles = {source: trouble for source, trouble in self._troubles.items() if source == 'engine'}
        self._start_ticker()

    def deactivate(self, why: str) -> None:
        """Hold the robot and end all speech, while the publishers still work."""
        if self._ticker is None:
            return
        self._stop_ticker()
        self._halt()
        for last in self.requests.end_all('cancelled', why):
            self._publish_speech(last)
        self.engine.send(Reset())

    def close(self) -> None:
        self.interface.destroy()

    # --- the tick ------------------------------------------------------------------------------------------------
    def _start_ticker(self) -> None:
        period = 1.0 / self._node.parameters.publish_rate_hz
        self._ticker = Ticker(self.motion.tick, period)
        self._timer = self._node.create_timer(period, self._tick, clock=self._node.steady)

    def _stop_ticker(self) -> None:
        if self._ticker is not None and self._timer is not None:
            self._ticker.stop()
            self._node.destroy_timer(self._timer)
            self._ticker = self._timer = None

    def _tick(self) -> None:
        if self._ticker is not None:
            self._ticker.check()
        now = time.monotonic_ns()
        moves = self.motion.moving(now)
        if self._moved and not moves:
            self._trouble('motion', 'starved', 'the chunk has run out and no newer one came: the robot stands still',
                          blocking=False)
            self.markers.stop()
        self._moved = moves
        self._look(now)

    def _look(self, now: int) -> None:
        """At the inputs; hand an observation to the engine when all is well, one is due, and it is free."""
        clock = self._node.clock_ns()
        to_see = [*self.robot_model.problems(), *self.inputs.problems(now, clock, self._node.parameters.max_skew_s)]
        if not self._instruction:
            to_see.append(Problem('task', 'empty', 'no instruction: publish one, or set the parameter instruction'))
        problems = [*self._troubles.values(), *to_see, *self._silence(now)]
        # A slow engine sets the pace, and what was wrong is over at once when it is mended.
        if now >= self._next_cycle and not self.engine.busy and not blocks(problems):
            self._unseen = self._observe(now, clock)
        self._blind = next((str(problem) for problem in [*to_see, *self._unseen] if problem.blocking), '')
        problems += self._unseen
        self._tell(problems, now)
        if blocks(problems):
            self._stop_moving()

    def _silence(self, now: int) -> list[Problem]:
        """An engine that is quiet for longer than its work explains: it may hang, and be replaced in a while. The robot
        goes on with the chunk that it has."""
        silent = now - self._heard
        if not self.engine.ready or silent <= self._patience:
            return []
        return [Problem('engine', 'silent', f'no sign of life for {silent / SECOND:.1f} s: it hangs, or the machine is '
                        'too busy', blocking=False)]

    @property
    def _patience(self) -> int:
        """How long the engine may take for an observation, ns: twice what is usual. The longest of the last times is
        left out, so that one stall does not excuse the next."""
        return max(_SILENCE, 2 * sorted(self._latencies)[-2:][0])

    def _tell(self, problems: list[Problem], now: int) -> None:
        begun, over = self.notices.update(problems, now)
        for problem in begun:
            if problem.blocking:  # two lines: rclpy's logger keeps one severity per line of code
                self._log.error(f'{problem}; not moving until it is over')
            else:
                self._log.warning(str(problem))
        for problem in over:
            self._log.info(f'{problem.source}: {problem.kind} is over')

    def _observe(self, now: int, clock: int) -> list[Problem]:
        """Begin a cycle; what is wrong with what there is to see."""
        period = round(SECOND / self._node.parameters.cycle_rate_hz)
        self._next_cycle = max(self._next_cycle + period, now)
        snapshot, problems = self.inputs.snapshot(now, clock)
        return problems if snapshot is None else problems + self._give(snapshot, now, now + period)

    def _give(self, snapshot: Snapshot, now: int, deadline: int) -> list[Problem]:
        self._sequence += 1
        committed = None
        if self._node.parameters.real_time_chunking and not self.paused:
            committed = self.motion.committed(snapshot.state, snapshot.received, now)
        observation = Observation(snapshot.images, snapshot.state, self._instruction, self._sequence, snapshot.stamp,
                                  snapshot.image_stamps, committed)
        try:
            self.engine.observe(observation, snapshot.received, deadline)
        except ValueError as error:
            return [Problem('observation', 'size', str(error))]
        # The engine may have answered the one before without our having seen it yet.
        before = self._sequence - 1
        self._sent = {n: sent for n, sent in self._sent.items() if n == before}
        self._sent[self._sequence] = snapshot.state, now
        return []

    def _stop_moving(self) -> None:
        """As configured: at once, or when the chunk runs out."""
        if self._node.parameters.stop_mode == 'hold':
            self._halt()

    def _halt(self) -> None:
        """Hold the robot where it is; chunks that are under way no longer count."""
        self._barrier = self._sequence + 1
        self._moved = False
        if self.motion.halt():
            self.markers.stop()

    def _trouble(self, source: str, kind: str, text: str, blocking: bool = True) -> None:
        self._troubles[source] = Problem(source, kind, text, blocking)

    # --- from the engine -----------------------------------------------------------------------------------------
    def handle(self, event: FromEngine | Described) -> None:
        """One event of the engine, or of a reader of ours."""
        if not isinstance(event, Described):
            self._heard = time.monotonic_ns()
        match event:
            case Speech():
                if (request := self.requests.take(event)) is not None and self.active:
                    self._publish_speech(event)
                    self._say(self.requests.news(request, self._node.parameters.speech.say_unchanged))
            case Chunk():
                self._on_chunk(event)
            case Report():
                self.totals.take(event, time.monotonic_ns())
                self.publish_status()
            case Rejected():
                self._on_rejected(event)
            case Ready():
                self._troubles.pop('engine', None)
                self._log.info('the engine is back')
            case Described() if event.model is self.robot_model:
                self._on_described(event)
            case Failed():
                self.totals.engine_ended()
                self.publish_status()
                self._trouble('engine', 'failed', event.why)
                if self.active:
                    self._stop_moving()
                else:
                    self._log.error(f'engine: {event.why}')  # nobody else does

    def _on_chunk(self, chunk: Chunk) -> None:
        if chunk.sequence not in self._sent:
            return
        now, patience, (state, given) = time.monotonic_ns(), self._patience, self._sent[chunk.sequence]
        self._latencies.append(chunk.ready_ns - given)
        if not self.active or chunk.sequence < self._barrier:
            return
        if (took := now - given) > patience:
            # At once: the next chunk may be here before the next look, and all is well again.
            self._log.warning(f'observation: its chunk came {took / SECOND:.1f} s after it and was not used: the '
                              'engine was held up, or the machine is too busy', throttle_duration_sec=5.0)
            return
        if fault := self._fault(chunk):
            self._on_rejected(Rejected(chunk.sequence, fault))
            return
        self._troubles.pop('observation', None)
        self._troubles.pop('motion', None)
        if self.paused:
            return
        self.interface.action_chunk.publish(messages.action_chunk(chunk, self.contract))
        if refused := self.motion.take(chunk, state, self.inputs.positions(), now):
            self._trouble('motion', 'refused', f'chunk {chunk.sequence} was not used: {refused}', blocking=False)
        elif not self.markers.watched:
            self.markers.stop()
        elif planned := self.motion.planned(now):
            still = {joint: np.asarray(value) for joint, value in self.inputs.measured().items()}
            self.markers.plan({**still, **planned})

    def _fault(self, chunk: Chunk) -> str:
        """What makes a chunk unusable whatever it is used for."""
        shape, expected = list(chunk.actions.shape), [self.model.horizon, self.model.action_dim]
        if shape != expected:
            return f'the chunk is {shape} instead of {expected} as the checkpoint said'
        return '' if np.isfinite(chunk.actions).all() else 'the chunk is not finite: check the checkpoint'

    def _on_rejected(self, event: Rejected) -> None:
        if event.sequence < self._barrier or event.sequence not in self._sent:
            return  # of something that was given up already
        self._trouble('observation', 'rejected', event.why, blocking=False)  # the next one may be good
        self._stop_moving()

    # --- from topics and services --------------------------------------------------------------------------------
    def on_task(self, message) -> None:
        try:
            text = messages.task(message)
        except ValueError as error:
            self._log.warning(f'task rejected: {error}; going on with {self._instruction[:_SHOWN]!r}',
                              throttle_duration_sec=1.0)
            return
        if text != self._instruction:
            self._instruction = text
            self._log.info(f'task: {text[:_SHOWN]!r}')

    def on_description(self, message) -> None:
        self.robot_model.read(message.data)

    def _on_described(self, event: Described) -> None:
        contract = self.robot_model.take(event)
        self.markers.kinematics = kinematics = self.robot_model.kinematics
        if kinematics is None:
            self._log.warning(f'robot description: {self.robot_model.why}')
            return
        self._log.info(f'robot description: path of {", ".join(kinematics.tools)} in {kinematics.base}')
        if contract is not None and contract != self.contract:
            self._halt()  # the motion under way was made within other limits
            self.contract = self.inputs.contract = contract
            self.motion.limit(contract)
            self._log.info('joint limits: the stricter of the contract and the robot description')

    def on_ask(self, message) -> None:
        try:
            ask = self.requests.named(messages.ask(message))
            if not self.active:
                detail = 'the node is not active'
            elif self._blind and (self._sequence or time.monotonic_ns() > self._activated + _START_UP):
                detail = f'there is nothing new to speak about: {self._blind}'
            else:
                detail = '' if self.engine.send(ask) else 'its engine is not ready'
        except ValueError as error:
            ask = self.requests.named(Ask(message.request_id, message.seed, message.channel or 'question'))
            detail = str(error)
        if not detail:
            self.requests.open(ask)
            return
        self._log.warning(f'request {ask.request_id[:_SHOWN]!r} refused: {detail}', throttle_duration_sec=5.0)
        # As with the engine, the same id again replaces the unfinished request of that id.
        if replaced := self.requests.end(ask.request_id, 'cancelled', 'another request of this id was asked for'):
            self.engine.send(Cancel(ask.request_id))
        for last in (*replaced, refusal(ask, detail)):
            self._publish_speech(last)

    def on_cancel(self, message) -> None:
        self.engine.send(Cancel(message.data))

    def on_reset(self, request, response):
        """Drop every request and the chunk in use."""
        self._halt()
        self.engine.send(Reset())
        response.success, response.message = True, 'requests and chunk dropped'
        return response

    def on_pause(self, request, response):
        """Stop moving but keep talking; or move again."""
        self.paused = request.data
        self._halt()
        response.success, response.message = True, 'paused' if self.paused else 'moving'
        return response

    def apply(self, old: NodeParameters, new: NodeParameters) -> None:
        """Parameters were changed."""
        if new.publish_rate_hz != old.publish_rate_hz and self.active:
            self._stop_ticker()
            self._start_ticker()
        if new.cycle_rate_hz != old.cycle_rate_hz:
            self._next_cycle = time.monotonic_ns()
        if new.speech != old.speech:
            self.engine.send(new.speech.configure())
        self.motion.set_blend(new.blend_s)

    def time_jumped(self) -> None:
        """Time went back (a bag loops) or its source changed: nothing received before means anything now."""
        self.inputs.clear()
        if self.active:
            self._halt()
            self._log.warning('ROS time jumped: inputs and chunk dropped')

    # --- out -----------------------------------------------------------------------------------------------------
    def _publish_actions(self, message) -> None:
        self.interface.actions.publish(message)
        self.pace.tick(time.monotonic_ns())

    def publish_status(self) -> None:
        """As last reported by the engine; also while it is silent."""
        self.interface.status.publish(self.totals.message(
            self._node.clock_ns(), time.monotonic_ns(), self.engine.ready, self.engine.restarts,
            self.motion.seam))

    def _publish_commands(self, row: np.ndarray) -> None:
        if self.interface.commands is not None:
            self.interface.commands.publish(Float64MultiArray(data=row.tolist()))

    def _publish_speech(self, speech: Speech) -> None:
        stamp = self._node.clock_ns()
        self.interface.speech.publish(messages.speech_token(speech, stamp))

    def _say(self, text: str) -> None:
        if text:
            self.interface.said.publish(String(data=messages.sendable(text)))
            self.markers.said(text)
