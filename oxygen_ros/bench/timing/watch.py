"""Watches the node from outside: its stamps, an endless question that keeps the engine busy, and its parameters."""
from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import rclpy
from rcl_interfaces.srv import GetParameters, SetParameters
from rclpy.executors import ExternalShutdownException
from rclpy.parameter import Parameter
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import SpeechRequest, SpeechToken
from oxygen_ros.node.executor import Executor
from oxygen_ros.processes import Process

_CALL_EVERY_S = 0.1


class Watch:
    """A node in this process, spun by a thread, while the context is open."""

    def __init__(self, namespace: str) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context)
        self._node = rclpy.create_node('watch', namespace=namespace, context=self._context)
        self._executor = Executor(context=self._context)
        self._executor.add_node(self._node)
        self._stamps: list[int] = []
        self._asked = False
        self._ask = self._node.create_publisher(SpeechRequest, 'ask', 10)
        self._node.create_subscription(JointTrajectory, 'actions', self._on_actions, 100)
        self._node.create_subscription(SpeechToken, 'speech', self._on_speech, 100)
        self._get = self._node.create_client(GetParameters, 'oxygen/get_parameters')
        self._set = self._node.create_client(SetParameters, 'oxygen/set_parameters')
        self._thread = threading.Thread(target=self._spin, daemon=True)

    def __enter__(self) -> Watch:
        sys.setswitchinterval(0.0005)  # else our two threads add 5 ms to a call
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._executor.shutdown()
        self._thread.join(5.0)
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def wait_for_actions(self, timeout: float, node: Process) -> None:
        """Until the node publishes, with a question to answer; RuntimeError with its output when it does not."""
        deadline, states = time.monotonic() + timeout, []
        robot = self._node.create_subscription(JointState, 'joint_states', states.append, 10)
        while len(states) < 10:  # a new robot: the node goes on for a while with what the last one said
            self._stamps.clear()
            self._check(deadline, node)
        self._node.destroy_subscription(robot)
        while len(self._stamps) < 10 or not self._ask.get_subscription_count():
            self._check(deadline, node)
        if not self._asked:
            self._question()
            self._asked = True

    def _check(self, deadline: float, node: Process) -> None:
        if time.monotonic() > deadline or node.returncode is not None:
            raise RuntimeError(f'the node published nothing:\n{node.output[-3000:]}')
        time.sleep(0.1)

    def watch(self, seconds: float) -> dict[str, Any]:
        """Intervals between stamps of `actions`, and how long parameter calls took, ms."""
        self._stamps.clear()
        calls, deadline, value = [], time.monotonic() + seconds, 0.2
        while time.monotonic() < deadline:
            value = 0.5 - value  # 0.2, 0.3, 0.2, ...
            calls.append(self._call(self._get, GetParameters.Request(names=['publish_rate_hz', 'blend_s'])))
            calls.append(self._call(self._set, SetParameters.Request(
                parameters=[Parameter('blend_s', value=value).to_parameter_msg()])))
            time.sleep(_CALL_EVERY_S)
        return {'intervals_ms': (np.diff(self._stamps) / 1e6).tolist(), 'calls_ms': calls}

    def _call(self, client, request) -> float:
        done, began = threading.Event(), time.monotonic()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        if not done.wait(10.0):
            raise RuntimeError(f'{client.srv_name} did not answer within 10 s')
        return (time.monotonic() - began) * 1e3

    def _question(self) -> None:
        # Sampled: a greedy answer to the same question would be drafted and be there at once.
        self._ask.publish(SpeechRequest(seed='why? ', max_tokens=512, temperature=1.0))

    def _on_actions(self, message: JointTrajectory) -> None:
        self._stamps.append(message.header.stamp.sec * 10**9 + message.header.stamp.nanosec)

    def _on_speech(self, message: SpeechToken) -> None:
        if message.is_final:
            self._question()

    def _spin(self) -> None:
        try:
            self._executor.spin()
        except ExternalShutdownException:
            pass
