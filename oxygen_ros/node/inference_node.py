"""The managed node: parameters, lifecycle, and the loading of the model. What it does once loaded is in session.py."""
from __future__ import annotations

import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from lifecycle_msgs.msg import Transition
from rclpy.callback_groups import ReentrantCallbackGroup
from rclpy.clock import Clock, ClockType, JumpThreshold
from rclpy.duration import Duration
from rclpy.lifecycle import LifecycleNodeMixin, LifecycleState, TransitionCallbackReturn
from rclpy.node import Node
from rclpy.task import Future

from oxygen_ros.contract import Contract, ContractError, load_contract
from oxygen_ros.engine.wire import Failed, FromEngine, Ready
from oxygen_ros.node.diagnostics import Diagnostics
from oxygen_ros.node.images import MOST_PIXELS
from oxygen_ros.node.kinematics import preload
from oxygen_ros.node.parameters import NodeParameters
from oxygen_ros.node.realtime import settle
from oxygen_ros.node.robot_model import Described
from oxygen_ros.node.ros_parameters import RosParameters
from oxygen_ros.node.session import Session
from oxygen_ros.node.wakeful import Wakeful
from oxygen_ros.share import share
from oxygen_ros.worker.supervisor import Supervisor


class CannotConfigure(RuntimeError):
    """The engine did not come up; the text says why and what to do."""


def _unfit(parameters: NodeParameters, contract: Contract) -> str:
    """What the parameters want and this contract does not allow; '' = nothing."""
    if parameters.real_time_chunking and not contract.only_joints:
        return ('real_time_chunking: needs every action of the contract to be the position of a joint, so that what is '
                'executed can be given to the policy; set it to false')
    return ''


class InferenceNode(LifecycleNodeMixin, Node):
    """See docs/parameters.md for its parameters and interface.py for its topics.

    Loading a model takes long, and a transition callback blocks the executor. So a configure request, from the service
    or by ``autostart``, first awaits the load while everything else is served, then runs the transition; until then
    the state is still "unconfigured". ``trigger_configure`` called directly blocks instead.
    """

    def __init__(self, make_engine: Callable[..., Supervisor] = Supervisor, **options: Any) -> None:
        Node.__init__(self, 'oxygen', **options)
        # Of their own, so that one that waits for the model does not keep the others from being answered.
        waiting = ReentrantCallbackGroup()
        LifecycleNodeMixin.__init__(self, callback_group=waiting)
        self._make_engine = make_engine
        self._contract: Contract | None = None
        self._most_tokens: int | None = None        # of a request, in the memory of the engine
        self._engine: Supervisor | None = None
        self._answer: Ready | Failed | None = None  # of the engine that is being loaded
        self._answered = threading.Event()
        self._loading: Future[None] = Future()
        self._events: deque[FromEngine | Described] = deque()
        self._wake = self.create_guard_condition(self._drain)
        self.session: Session | None = None
        self._wakeful = Wakeful()
        self.steady = Clock(clock_type=ClockType.STEADY_TIME)

        self._settings = RosParameters(self, self._veto, self._apply)
        self._change_state = self._service_change_state.callback
        self._service_change_state.callback = self._on_change_state
        self._diagnostics = Diagnostics(self)
        self.create_timer(1.0, self._diagnose, clock=self.steady)
        self._jumps = self.get_clock().create_jump_callback(
            JumpThreshold(min_forward=None, min_backward=Duration(nanoseconds=-1), on_clock_change=True),
            post_callback=self._on_jump)
        if self.parameters.autostart:
            self._starter = self.create_timer(0.0, self._start, callback_group=waiting,  # type: ignore[arg-type]
                                              clock=self.steady)  # rclpy's types know no coroutine

    @property
    def parameters(self) -> NodeParameters:
        return self._settings.values

    @property
    def state(self) -> str:
        """Of the lifecycle: 'unconfigured', 'inactive', 'active', ..."""
        return self._state_machine.current_state[1]

    def clock_ns(self) -> int:
        """The node's clock, for stamps; simulated time with ``use_sim_time``."""
        return self.get_clock().now().nanoseconds

    # --- loading -------------------------------------------------------------------------------------------------
    async def _start(self) -> None:
        self._starter.cancel()
        if not await self._load() or self.state != 'unconfigured':
            return
        if self.trigger_configure() == TransitionCallbackReturn.SUCCESS:
            self.trigger_activate()

    async def _on_change_state(self, request, response):
        wanted = request.transition.label or request.transition.id
        if self.state == 'unconfigured' and wanted in ('configure', Transition.TRANSITION_CONFIGURE):
            if not await self._load():
                response.success = False
                return response
        # Asked for what is impossible, Jazzy's rclpy raises instead of answering.
        if all(wanted not in transition[:2] for transition in self._state_machine.available_transitions):
            self.get_logger().warning(f'no transition {wanted!r} from the state {self.state!r}')
            response.success = False
            return response
        return self._change_state(request, response)

    async def _load(self) -> bool:
        """Wait until the engine has answered; whatever went wrong is reported by the transition that follows.

        False: no transition may follow, for the engine is gone. Another request waited for it too, and went first.
        """
        try:
            self._begin_loading()
        except Exception:
            return True
        engine = self._engine
        await self._loading
        return self._engine is engine

    def _begin_loading(self) -> None:
        if self._engine is not None:
            return
        path = self.parameters.contract
        contract = load_contract(share('config/tabletop_contract.yaml') if path == 'tabletop' else path)
        options = self.parameters.engine_options(contract.checkpoint)
        if not options.checkpoint:
            raise CannotConfigure(f'no checkpoint: set the parameter checkpoint, or name one in the contract {path}')
        self._contract, self._answer, self._loading = contract, None, Future()
        self._most_tokens = options.max_tokens
        self._answered.clear()
        self.get_logger().info(f'loading {options.checkpoint} for {contract.robot}')
        room = len(contract.cameras) * MOST_PIXELS * 3  # bytes; memory is taken only where pictures are written
        engine = self._make_engine(options, self._on_event, room, hang_s=self.parameters.hang_timeout_s,
                                   load_timeout_s=self.parameters.load_timeout_s)
        engine.start()
        self._engine = engine  # only now: one that could not be started is tried again
        threading.Thread(target=preload, name='urdf library', daemon=True).start()

    def _on_event(self, event: FromEngine) -> None:
        """Runs on the supervisor's thread."""
        if isinstance(event, Ready | Failed) and not self._answered.is_set():
            self._answer = event
            self._answered.set()
        self.post(event)

    def post(self, event: FromEngine | Described) -> None:
        """From any thread: have the session handle an event on the executor's."""
        self._events.append(event)
        self._wake.trigger()

    def _drain(self) -> None:
        for _ in range(len(self._events)):  # those that come meanwhile have triggered it again
            event = self._events.popleft()
            if not self._loading.done() and isinstance(event, Ready | Failed):
                self._loading.set_result(None)
            elif self.session is not None:
                self.session.handle(event)

    # --- lifecycle -----------------------------------------------------------------------------------------------
    def on_configure(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('configure', self._configure)

    def _configure(self) -> None:
        self._begin_loading()
        self._answered.wait()  # set already, unless trigger_configure was called directly
        answer, contract, engine = self._answer, self._contract, self._engine
        assert answer is not None and contract is not None and engine is not None
        if isinstance(answer, Failed):
            self.get_logger().debug(answer.traceback)
            raise CannotConfigure(answer.why)
        if found := contract.mismatches(answer.cameras, answer.state_dim, answer.action_dim, answer.relative):
            raise ContractError(f'contract {self.parameters.contract} does not fit the checkpoint: {"; ".join(found)}')
        if unfit := _unfit(self.parameters, contract):
            raise CannotConfigure(unfit)
        self.session = Session(self, contract, engine, answer)
        engine.send(self.parameters.speech.configure())  # they may have changed while it was loaded
        settle()
        self.get_logger().info(f'ready: {answer.model}')

    def on_activate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('activate', partial(self._activate, state))

    def _activate(self, state: LifecycleState) -> None:
        assert self.session is not None
        super().on_activate(state)  # the publishers
        self.session.activate()
        if denied := self._wakeful.hold(self.parameters.wake_latency_us):
            self.get_logger().info(denied, once=True)
        self.get_logger().info('active')

    def on_deactivate(self, state: LifecycleState) -> TransitionCallbackReturn:
        return self._transition('deactivate', partial(self._deactivate, state))

    def _deactivate(self, state: LifecycleState) -> None:
        assert self.session is not None
        self._wakeful.release()
        self.session.deactivate('the node was deactivated')
        super().on_deactivate(state)

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
        except (ContractError, CannotConfigure, FileNotFoundError) as error:
            self.get_logger().error(f'cannot {name}: {error}')
        except Exception:
            self.get_logger().error(f'cannot {name}:\n{traceback.format_exc()}')
        if name == 'configure':
            self._free()
            return TransitionCallbackReturn.FAILURE
        return TransitionCallbackReturn.ERROR  # leads to on_error

    def _free(self) -> None:
        """Back to the state of a new node."""
        self._wakeful.release()
        if self.session is not None:
            self.session.deactivate('the node was stopped')
        engine, self._engine, self._most_tokens = self._engine, None, None
        if engine is not None:
            engine.stop()
        if not self._loading.done():
            self._loading.set_result(None)
        self._events.clear()
        session, self.session = self.session, None
        if session is not None:
            session.close()

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

    # --- parameters, time, diagnostics ---------------------------------------------------------------------------
    def _veto(self, wanted: NodeParameters) -> str:
        """Why a change of parameters is impossible although it is valid; '' = it is not."""
        if self._most_tokens is not None and wanted.speech.max_tokens > self._most_tokens:
            return f'speech.max_tokens: at most {self._most_tokens}, the start value for which memory was reserved'
        return _unfit(wanted, self.session.contract) if self.session is not None else ''

    def _apply(self, old: NodeParameters, new: NodeParameters) -> None:
        if self.session is not None:
            self.session.apply(old, new)

    def _on_jump(self, jump) -> None:
        if self.session is not None:
            self.session.time_jumped()

    def _diagnose(self) -> None:
        if self.session is not None and not self.session.engine.ready:
            self.session.publish_status()  # nobody else does
        self._diagnostics.publish(time.monotonic_ns(), self.clock_ns())
