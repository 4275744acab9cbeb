"""The node as a user runs it, in a ROS domain of its own, with a robot that feeds it and witnesses of all it says."""
from __future__ import annotations

import os
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import psutil
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from std_msgs.msg import String
from std_srvs.srv import SetBool
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.bench.trust.robot import LIMIT, MOVED, SPEED, Robot, write_contract
from oxygen_ros.bench.trust.witness import Limits, MotionWitness, SpeechWitness
from oxygen_ros.isolation import isolate, reserve_domain
from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken
from oxygen_ros.processes import Process

NAMESPACE = '/trust'
START_S = 120.0
_DEPTH = 4000    # more than any burst: what the witness misses would look like the node's fault
_LINE = re.compile(r'\[(\w+)\] \[(\d+\.\d+)\] \[[^\]]*\]: (.*)')
_T = TypeVar('_T')


class Broken(RuntimeError):
    """What must happen did not, or the node has ended; the text says which and what the node said last."""


@dataclass(frozen=True)
class Footprint:
    """What a process tree holds. RSS in MB; ``engine_mb`` is 0 while there is no engine."""

    node_mb: float
    engine_mb: float
    descriptors: int
    threads: int


class Live:
    """Node, robot and witnesses until ``close``. ``module``: what to run, the node or the node with a faulty engine."""

    def __init__(self, folder: Path, *, module: str = 'oxygen_ros.bench.trust.faulty', robot: bool = True,
                 sim_time: bool = False, **parameters: object) -> None:
        if 'ROS_DOMAIN_ID' not in os.environ or 'ROS_AUTOMATIC_DISCOVERY_RANGE' not in os.environ:
            isolate(os.environ, reserve_domain())
        self.motion = MotionWitness(Limits(*(np.full(len(MOVED), value) for value in (-LIMIT, LIMIT, SPEED))))
        self.speech = SpeechWitness()
        self.status: EngineStatus | None = None
        self.clock: Callable[[], float] = time.time
        self._heard = threading.Condition()
        self._numbers = 0
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context)
        self.ros = rclpy.create_node('witness', context=self._context)
        for kind, topic, callback in ((JointTrajectory, 'actions', self._on_actions),
                                      (ActionChunk, 'action_chunk', self._on_chunk),
                                      (SpeechToken, 'speech', self._on_speech),
                                      (EngineStatus, 'status', self._on_status)):
            self.ros.create_subscription(kind, f'{NAMESPACE}/{topic}', partial(self._hear, callback), _DEPTH)
        self._ask = self.ros.create_publisher(SpeechRequest, f'{NAMESPACE}/ask', _DEPTH)
        self._cancel = self.ros.create_publisher(String, f'{NAMESPACE}/cancel', _DEPTH)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self.ros)
        self._thread = threading.Thread(target=self._spin, name='witness', daemon=True)
        self._thread.start()
        self._robot: Robot | None = None
        if robot:
            self.start_robot()
        settings = {'contract': write_contract(folder), 'stamp_mode': 'now', 'use_sim_time': str(sim_time).lower(),
                    'speech.narration.every_cycles': 0, **parameters}
        self.node = Process('node', [
            sys.executable, '-m', module, '--ros-args', '-r', f'__ns:={NAMESPACE}',
            *(part for name, value in settings.items() for part in ('-p', f'{name}:={value}'))])

    @property
    def robot(self) -> Robot:
        """The one that feeds the node."""
        if self._robot is None:
            raise Broken('there is no robot')
        return self._robot

    def start_robot(self) -> None:
        """Let a new robot feed the node, in place of the one before."""
        self.stop_robot()
        self._robot = Robot(self.ros, NAMESPACE, lambda: self.clock())

    def stop_robot(self) -> None:
        if self._robot is not None:
            self._robot.close()
        self._robot = None

    # --- waiting -------------------------------------------------------------------------------------------------
    def wait(self, condition: Callable[[], _T | None], what: str, timeout: float = 30.0) -> _T:
        """The first true value of ``condition()``, looked at after every message; Broken when there is none."""
        deadline = time.monotonic() + timeout
        with self._heard:
            while not (value := condition()):
                self.check()
                if time.monotonic() > deadline:
                    raise Broken(f'no {what} within {timeout:g} s; the node said {self._last()}')
                self._heard.wait(0.02)
            return value

    def check(self) -> None:
        """Broken when the node has ended."""
        if self.node.returncode is not None:
            raise Broken(f'the node ended with {self.node.returncode}: {self._last()}')

    def _last(self) -> str:
        lines = [text for _, text in self.lines(0.0)]
        return f'{lines[-1]!r}' if lines else f'{self.node.output[-300:]!r}'

    def moves(self, messages: int = 3, timeout: float = 30.0) -> float:
        """Wait for trajectories that move; when the first one came, s."""
        began, have, first = time.time(), self.motion.messages, 0.0

        def moving() -> bool:
            nonlocal first
            if not first and self.motion.moved > began:
                first = self.motion.moved
            return bool(first) and self.motion.messages >= have + messages and self.motion.moved > self.motion.held
        self.wait(moving, 'moving trajectories', timeout)
        return first

    def said(self, pattern: str, since: float) -> float | None:
        """When the node wrote a line that matches, s; None if it has not."""
        return next((when for when, text in self.lines(since) if re.search(pattern, text)), None)

    def lines(self, since: float) -> Iterator[tuple[float, str]]:
        """(time, text) of what the node has logged since ``since``, s."""
        for match in _LINE.finditer(self.node.output):
            if (when := float(match[2])) >= since:
                yield when, match[3]

    def at_rest(self, timeout: float = 30.0) -> EngineStatus:
        """Wait until no request is left; the status then."""
        self.wait(lambda: not self.speech.asked, 'end of every request', timeout)
        seen = self.status

        def idle() -> EngineStatus | None:
            now = self.status
            if now is None or now is seen or not now.healthy or now.live_requests + now.queued_requests:
                return None
            return now
        return self.wait(idle, 'healthy status without requests', timeout)

    # --- talking to it -------------------------------------------------------------------------------------------
    def connected(self) -> None:
        """Wait until the node hears our questions and we its answers."""
        self.wait(lambda: self._ask.get_subscription_count() and self._cancel.get_subscription_count()
                  and self.ros.count_publishers(f'{NAMESPACE}/speech'), 'discovery', START_S)

    def ask(self, seed: str = 'Subtask: ', **fields: Any) -> str:
        """Send a question; its id."""
        self._numbers += 1
        name = f'trust-{self._numbers}'
        self.speech.ask(name)
        self._ask.publish(SpeechRequest(request_id=name, seed=seed, **fields))
        return name

    def cancel(self, request_id: str = '') -> None:
        self._cancel.publish(String(data=request_id))

    def pause(self, on: bool) -> None:
        self._call(SetBool, 'pause', SetBool.Request(data=on))

    def transition(self, name: str) -> bool:
        """'configure', 'activate', 'deactivate' or 'cleanup'; whether it was done."""
        request = ChangeState.Request(transition=Transition(label=name))
        return self._call(ChangeState, 'oxygen/change_state', request, START_S).success

    def _call(self, kind: type, name: str, request: object, timeout: float = 30.0) -> Any:
        client: Any = self.ros.create_client(kind, f'{NAMESPACE}/{name}')
        try:
            self.wait(client.service_is_ready, f'service {name}', timeout)
            future = client.call_async(request)
            self.wait(future.done, f'answer of {name}', timeout)
            return future.result()
        finally:
            self.ros.destroy_client(client)

    def findings(self) -> dict[str, tuple[int, str]]:
        """What both witnesses have to say so far: kind -> (how often, the first example)."""
        return {**self.motion.findings(), **self.speech.findings()}

    # --- what it holds -------------------------------------------------------------------------------------------
    def engine(self) -> psutil.Process | None:
        """The engine process, if there is one."""
        children = psutil.Process(self.node.pid).children()
        return children[0] if children else None

    def footprint(self) -> Footprint:
        node, engine = psutil.Process(self.node.pid), self.engine()
        return Footprint(node.memory_info().rss / 1e6, engine.memory_info().rss / 1e6 if engine else 0.0,
                         node.num_fds() + (engine.num_fds() if engine else 0),
                         node.num_threads() + (engine.num_threads() if engine else 0))

    def close(self) -> int | None:
        """End the node as Ctrl-C does; its exit code, None if it had to be killed."""
        self.stop_robot()
        code = self.node.interrupt(10.0)
        self.node.kill()
        self._executor.shutdown()
        self._thread.join(5.0)
        self.ros.destroy_node()
        rclpy.try_shutdown(context=self._context)
        return code

    # --- heard ---------------------------------------------------------------------------------------------------
    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass

    def _hear(self, callback: Callable[[Any], None], message: Any) -> None:
        with self._heard:
            callback(message)
            self._heard.notify_all()

    def _on_actions(self, message: JointTrajectory) -> None:
        stamp = seconds(message.header.stamp)
        self.motion.trajectory(time.time(), stamp, [stamp + seconds(point.time_from_start) for point in message.points],
                               [point.positions for point in message.points])
        if self._robot is not None:
            self._robot.follow(message.joint_names, message.points[0].positions)

    def _on_chunk(self, message: ActionChunk) -> None:
        self.motion.chunk(seconds(message.header.stamp), message.latency,
                          message.horizon * seconds(message.period), message.data)

    def _on_speech(self, message: SpeechToken) -> None:
        self.speech.speech(message.request_id, message.sequence, message.delta, message.text, message.is_final,
                           message.finish_reason)

    def _on_status(self, message: EngineStatus) -> None:
        self.status = message


def seconds(time_or_duration: Any) -> float:
    """Of a ROS Time or Duration."""
    return time_or_duration.sec + time_or_duration.nanosec * 1e-9
