"""The node: topics in, observations to the engine, actions and speech out.

Everything runs on one executor thread. Callbacks store the newest input or enqueue; one steady timer first publishes
`actions`, then begins a cycle when one is due. The engine is another process; its events wake the executor, so that
speech does not wait for a tick.
"""
from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from lifecycle_msgs.msg import Transition
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.task import Future

from oxygen_ros.contract import Contract, ContractError, load_contract
from oxygen_ros.engine.supervisor import Supervisor
from oxygen_ros.engine.wire import Ask, Cancel, Chunk, Failed, FromEngine, Ready, Rejected, Report, Reset, Speech
from oxygen_ros.model.observation import Observation
from oxygen_ros.node import messages
from oxygen_ros.node.diagnostics import Diagnostics
from oxygen_ros.node.freshness import SECOND, Problem
from oxygen_ros.node.inputs import Inputs, Snapshot
from oxygen_ros.node.interface import Interface
from oxygen_ros.node.motion import Motion
from oxygen_ros.node.notices import Notices
from oxygen_ros.node.parameters import NodeParameters, ParameterError
from oxygen_ros.node.requests import Requests, refusal
from oxygen_ros.node.ros_parameters import RosParameters
from oxygen_ros.node.status import EngineTotals, Pace
from oxygen_ros.share import share

_IMAGE_BYTES = 3840 * 2160 * 3  # room for one picture; memory is taken only where pictures are written


class CannotConfigure(RuntimeError):
    """The engine did not come up; the text says why and what to do."""


class InferenceNode(LifecycleNodeMixin, Node):
    """A managed node. See docs/parameters.md for its parameters and interface.py for its topics.

    Loading a model takes long, and a transition callback blocks the executor. So a configure request, from the service
    or by ``autostart``, first awaits the load while everything else is served, then runs the transition; until then
    the state is still "unconfigured". ``trigger_configure`` called directly blocks instead.
    """

    def __init__(self, make_engine: Callable[..., Supervisor] = Supervisor, **options: object) -> None:
        Node.__init__(self, 'oxygen', **options)
        # Of their own, so that one that waits for the model does not keep the others from being answered.
        waiting = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(self, callback_group=waiting)
        self._make_engine = make_engine
        self._engine: Supervisor | None = None
        self._contract: Contract | None = None
        self._loading: Future | None = None
        self._answer: Ready | Failed | None = None
        self._answered = threading.Event()
        self._events: deque[FromEngine] = deque()
        self._wake = self.create_guard_condition(self._drain)
        self._interface: Interface | None = None
        self._ticker = None
        self._sequence = 0       # of the newest observation; goes on over all configurations
        self._steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.totals, self.notices, self.pace = EngineTotals(), Notices(), Pace()
        self._forget()

        self._settings = RosParameters(self, self._veto, self._on_parameters)
        self._change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state
        self._diagnostics = Diagnostics(self)
        self.create_timer(1.0, self._diagnose, clock=self._steady)
        self._jumps = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True),
            post_callback=self._on_jump)
        if self.parameters.autostart:
            self._starter = self.create_timer(0.0, self._start, callback_group=waiting, clock=self._steady)

    # --- what diagnostics shows ----------------------------------------------------------------------------------
    @property
    def parameters(self) -> NodeParameters:
        return self._settings.values

    @property
    def engine(self) -> Supervisor | None:
        return self._engine

    @property
    def interface(self) -> Interface | None:
        return self._interface

    @property
    def model(self) -> Ready | None:
        return self._answer if isinstance(self._answer, Ready) else None

    @property
    def robot(self) -> str:
        return self._contract.robot if self._contract else ''

    @property
    def state(self) -> str:
        return self._state_machine.current_state[1]

    @property
    def active(self) -> bool:
        return self._ticker is not None

    def _forget(self) -> None:
        """What belongs to one configuration or one activation."""
        self.inputs: Inputs | None = None
        self.motion: Motion | None = None
        self.requests = Requests()
        self.paused = False
        self._instruction = ''
        self._barrier = 0        # chunks of observations before this one are from before a stop
        self._sent: dict[int, np.ndarray] = {}
        self._next_cycle = 0
        self._troubles: dict[str, Problem] = {}  # found outside of the inputs, until they are over
        self._moved = False

    # --- lifecycle -----------------------------------------------------------------------------------------------
    async def _start(self) -> None:
        self._starter.cancel()
        await self._load()
        if self.state == 'unconfigured' and self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    async def _on_change_state(self, request, response):
        wanted = request.transition.label or request.transition.id
        if self.state == 'unconfigured' and wanted in ('configure', Transition.TRANSITION_CONFIGURE):
            await self._load()
        return self._change_state(request, response)

    async def _load(self) -> None:
        """Wait until the engine has answered; whatever went wrong is reported by the transition that follows."""
        try:
            self._begin_loading()
        except Exception:
            return
        await self._loading

    def _begin_loading(self) -> None:
        if self._engine is not None:
            return
        path = self.parameters.contract
        contract = load_contract(share('config/tabletop_contract.yaml') if path == 'tabletop' else path)
        options = self.parameters.engine_options(contract.checkpoint)
        self._contract, self._answer, self._loading = contract, None, Future()
        self._answered.clear()
        self.get_logger().info(f'loading {options.checkpoint} for {contract.robot}')
        self._engine = self._make_engine(options, self._on_event, len(contract.cameras) * _IMAGE_BYTES,
                                         load_timeout_s=self.parameters.load_timeout_s)
        self._engine.start()

    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('configure', self._configure)

    def _configure(self) -> None:
        self._begin_loading()
        self._answered.wait()  # set already, unless trigger_configure was called directly
        ready, contract = self._answer, self._contract
        if isinstance(ready, Failed):
            self.get_logger().debug(ready.traceback)
            raise CannotConfigure(ready.why)
        if found := contract.mismatches(ready.cameras, ready.state_dim, ready.action_dim):
            raise ContractError(f'contract {self.parameters.contract} does not fit the checkpoint: {"; ".join(found)}')
        self.inputs = Inputs(contract, self.resolve_topic_name)
        self._interface = Interface(self, contract)
        self.motion = Motion(contract, self._publish_actions, self._clock_ns, self.parameters.stamp_mode,
                             self.parameters.blend_s)
        self._instruction = self.parameters.instruction.strip() or contract.instruction.strip()
        self.get_logger().info(f'ready: {ready.model}')

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('activate', partial(self._activate, state))

    def _activate(self, state: LifecycleState) -> None:
        super().on_activate(state)
        self.totals.activate()
        self._barrier = self._sequence + 1
        self._next_cycle = time.monotonic_ns()
        self._restart_ticker()
        self.get_logger().info('active')

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('deactivate', partial(self._deactivate, state))

    def _deactivate(self, state: LifecycleState) -> None:
        self._stop_output('the node was deactivated')
        super().on_deactivate(state)

    def _stop_output(self, why: str) -> None:
        """Hold the robot and end all speech, while the publishers still work."""
        if self._ticker is not None:
            self.destroy_timer(self._ticker)
            self._ticker = None
            self._halt()
            for last in self.requests.end_all('cancelled', why):
                self._publish_speech(last)
            self._engine.send(Reset())

    def on_cleanup(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('clean up', self._free)

    def on_shutdown(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('shut down', self._free)

    def on_error(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('recover', self._free)

    def _transition(self, name: str, work: Callable[[], None]) -> TransitionCallbackReturn:
        """Run a transition; a failure is told once and leaves the node safe, freed and manageable."""
        try:
            work()
            return TransitionCallbackReturn.SUCCESS
        except (ContractError, ParameterError, CannotConfigure, FileNotFoundError) as error:
            self.get_logger().error(f'cannot {name}: {error}')
        except Exception:
            self.get_logger().error(f'cannot {name}:\n{traceback.format_exc()}')
        if name == 'configure':
            self._free()
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.ERROR

    def _free(self) -> None:
        """Back to the state of a new node."""
        self._stop_output('the node was stopped')
        engine, self._engine = self._engine, None
        if engine is not None:
            engine.stop()
            if not self._loading.done():
                self._loading.set_result(None)
        self._events.clear()
        if self._interface is not None:
            self._interface.destroy()
        self._interface = self._contract = self._answer = None
        self._forget()

    def close(self) -> None:
        """Make the robot safe and free everything, before the node is destroyed."""
        try:
            self._free()
        except Exception:
            self.get_logger().error(f'while stopping:\n{traceback.format_exc()}')

    def panic(self) -> None:
        """After an error of ours in a callback: say it once, stop the robot, stay manageable."""
        self.get_logger().error(f'unexpected error, stopping the robot:\n{traceback.format_exc()}',
                                throttle_duration_sec=5.0)
        if self.state == 'active':
            self.trigger_deactivate()

    # --- the tick ------------------------------------------------------------------------------------------------
    def _restart_ticker(self) -> None:
        if self._ticker is not None:
            self.destroy_timer(self._ticker)
        self._ticker = self.create_timer(1.0 / self.parameters.publish_rate_hz, self._tick, clock=self._steady)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        moves = self.motion.tick(now)
        if self._moved and not moves:
            self._trouble('motion', 'starved', 'the chunk has run out and no newer one came: the robot stands still',
                          blocking=False)
        self._moved = moves
        if now >= self._next_cycle:
            self._cycle(now)

    def _cycle(self, now: int) -> None:
        """Look at the inputs; hand an observation to the engine when all is well and it is free."""
        period = round(SECOND / self.parameters.cycle_rate_hz)
        problems = [*self._troubles.values(), *self.inputs.problems(now, self._clock_ns(), self.parameters.max_skew_s)]
        if not self._instruction:
            problems.append(Problem('task', 'empty', 'no instruction: publish one, or set the parameter instruction'))
        thinking = self._engine.busy
        if not thinking and not any(problem.blocking for problem in problems):
            snapshot, found = self.inputs.snapshot(self._clock_ns())
            problems += found
            if snapshot is not None:
                problems += self._observe(snapshot, now + period)
        if not thinking:  # else look again at the next tick: a slow engine sets the pace
            self._next_cycle = max(self._next_cycle + period, now)
        begun, over = self.notices.update(problems, now)
        for problem in begun:
            if problem.blocking:  # two lines: rclpy's logger keeps one severity per line of code
                self.get_logger().error(f'{problem}; not moving until it is over')
            else:
                self.get_logger().warning(str(problem))
        for problem in over:
            self.get_logger().info(f'{problem.source}: {problem.kind} is over')
        if any(problem.blocking for problem in problems):
            self._stop_moving()

    def _observe(self, snapshot: Snapshot, deadline: int) -> list[Problem]:
        self._sequence += 1
        observation = Observation(snapshot.images, snapshot.state, self._instruction, self._sequence, snapshot.stamp,
                                  snapshot.image_stamps)
        try:
            self._engine.observe(observation, snapshot.received, deadline)
        except ValueError as error:
            return [Problem('observation', 'size', str(error))]
        # The engine may have answered the one before without our having seen it yet.
        before = self._sequence - 1
        self._sent = {n: state for n, state in self._sent.items() if n == before} | {self._sequence: snapshot.state}
        return []

    def _stop_moving(self) -> None:
        """As configured: at once, or when the chunk runs out."""
        if self.parameters.stop_mode == 'hold':
            self._halt()

    def _halt(self) -> None:
        """Hold the robot where it is; chunks that are under way no longer count."""
        self._barrier = self._sequence + 1
        self._moved = False
        self.motion.halt(time.monotonic_ns())

    def _trouble(self, source: str, kind: str, text: str, blocking: bool = True) -> None:
        self._troubles[source] = Problem(source, kind, text, blocking)

    # --- from the engine -----------------------------------------------------------------------------------------
    def _on_event(self, event: FromEngine) -> None:
        """Runs on the supervisor's thread."""
        if isinstance(event, Ready | Failed) and not self._answered.is_set():
            self._answer = event
            self._answered.set()
        self._events.append(event)
        self._wake.trigger()

    def _drain(self) -> None:
        while self._events:
            event = self._events.popleft()
            now = time.monotonic_ns()
            match event:
                case Speech():
                    if (speech := self.requests.take(event)) is not None:
                        self._publish_speech(speech)
                case Chunk():
                    self._on_chunk(event, now)
                case Report():
                    self.totals.take(event, now)
                    if self._interface is not None:
                        self._interface.status.publish(
                            self.totals.message(self._clock_ns(), now, self._engine.ready, self._engine.restarts))
                case Rejected():
                    self._on_rejected(event)
                case Ready() | Failed():
                    self._on_engine_state(event)

    def _on_engine_state(self, event: Ready | Failed) -> None:
        if not self._loading.done():
            self._loading.set_result(None)
        elif isinstance(event, Ready):
            self._troubles.pop('engine', None)
            self.get_logger().info('the engine is back')
        else:
            self.totals.engine_ended()
            self._trouble('engine', 'failed', event.why)
            if self.active:
                self._stop_moving()

    def _on_chunk(self, chunk: Chunk, now: int) -> None:
        state = self._sent.get(chunk.sequence)
        if not self.active or self.paused or state is None or chunk.sequence < self._barrier:
            return
        expected = self.model.horizon, self.model.action_dim
        if chunk.actions.shape != expected or not np.isfinite(chunk.actions).all():
            self._on_rejected(Rejected(chunk.sequence, f'the chunk is {list(chunk.actions.shape)} instead of '
                                       f'{list(expected)}, or not finite: check the checkpoint'))
            return
        self._troubles.pop('observation', None)
        self._troubles.pop('motion', None)
        self._interface.action_chunk.publish(messages.action_chunk(chunk, self._contract))
        if refused := self.motion.take(chunk, state, self.inputs.positions(), now):
            self._trouble('motion', 'refused', f'chunk {chunk.sequence} was not used: {refused}', blocking=False)

    def _on_rejected(self, event: Rejected) -> None:
        if event.sequence < self._barrier or event.sequence not in self._sent:
            return  # of something that was given up already
        self._trouble('observation', 'rejected', event.why, blocking=False)  # the next one may be good
        self._stop_moving()

    # --- from topics and services --------------------------------------------------------------------------------
    def on_task(self, message) -> None:
        text = message.data.strip()
        if not text:
            self.get_logger().warning(f'task rejected: it is empty; going on with {self._instruction!r}')
        elif text != self._instruction:
            self._instruction = text
            self.get_logger().info(f'task: {text!r}')

    def on_ask(self, message) -> None:
        try:
            ask = self.requests.open(messages.ask(message))
            detail = '' if self.active and self._engine.send(ask) else 'the node is not active or its engine not ready'
        except ValueError as error:
            detail = str(error)
            ask = self.requests.open(Ask(message.request_id, message.seed, message.channel or 'question'))
        if detail:
            self.get_logger().warning(f'request {ask.request_id!r} refused: {detail}', throttle_duration_sec=5.0)
            self._publish_speech(self.requests.take(refusal(ask, detail)))

    def on_cancel(self, message) -> None:
        self._engine.send(Cancel(message.data))

    def on_reset(self, request, response):
        """Drop every request and the chunk in use."""
        if self.active:
            self._halt()
        self._engine.send(Reset())
        response.success, response.message = True, 'requests and chunk dropped'
        return response

    def on_pause(self, request, response):
        """Stop moving but keep talking; or move again."""
        self.paused = request.data
        self._halt()
        response.success, response.message = True, 'paused' if self.paused else 'moving'
        return response

    def _veto(self, wanted: NodeParameters) -> str:
        """Why a run-time change is impossible although it is valid."""
        if self._engine is not None and wanted.speech.max_tokens > self.parameters.speech.max_tokens:
            return 'speech.max_tokens: may only go down while the engine runs, its memory is sized for the start value'
        return ''

    def _on_parameters(self, old: NodeParameters, new: NodeParameters) -> None:
        if new.publish_rate_hz != old.publish_rate_hz and self.active:
            self._restart_ticker()
        if self.motion is not None and self.motion.timeline is not None:
            self.motion.timeline.blend = round(new.blend_s * SECOND)
        if new.speech != old.speech and self._engine is not None:
            self._engine.send(new.speech.configure())

    def _on_jump(self, jump) -> None:
        """Time went back (a bag loops) or its source changed: nothing received before means anything now."""
        if self.inputs is not None:
            self.inputs.clear()
        if self.active:
            self._halt()
            self.get_logger().warning('ROS time jumped: inputs and chunk dropped')

    # --- out -----------------------------------------------------------------------------------------------------
    def _publish_actions(self, message) -> None:
        self._interface.actions.publish(message)
        self.pace.tick(time.monotonic_ns())

    def _publish_speech(self, speech: Speech) -> None:
        if self._interface is None:
            return
        stamp = self._clock_ns()
        self._interface.speech.publish(messages.speech_token(speech, stamp))
        if text := self.requests.news(speech, self.parameters.speech.say_unchanged):
            self._interface.said.publish(messages.said(text))
            self._interface.markers.publish(messages.sentence_marker(text, self.parameters.marker_frame, stamp))

    def _diagnose(self) -> None:
        self._diagnostics.publish(time.monotonic_ns(), self._clock_ns())

    def _clock_ns(self) -> int:
        return self.get_clock().now().nanoseconds
