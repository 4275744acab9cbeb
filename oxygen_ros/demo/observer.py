"""A ROS node that listens to everything the inference node says, asks it questions, and keeps the figures."""
from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable

import numpy as np
import rclpy
from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import DurabilityPolicy, QoSProfile
from rclpy.time import Time
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.demo.figures import Figures
from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken

_DEPTH = 100  # more than any burst: what we miss would falsify the figures


class Observer:
    """Everything is relative to ``namespace``; the caller spins it. Nothing is counted before ``begin``."""

    def __init__(self, namespace: str) -> None:
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context)
        self._node = rclpy.create_node('demo', namespace=namespace, context=self._context)
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self.figures: Figures | None = None
        self.status: EngineStatus | None = None
        self.task = ''
        self.said: deque[str] = deque(maxlen=6)               # finished sentences, newest last
        self.question = ''                                    # the last one asked
        self.answer = ''                                      # what was answered to it so far
        self.episodes = 0
        self.successes = 0
        self.actions_heard = 0
        self._request_id = ''

        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        for kind, topic, callback, qos in (
                (JointTrajectory, 'actions', self._on_actions, _DEPTH),
                (ActionChunk, 'action_chunk', self._on_chunk, _DEPTH),
                (SpeechToken, 'speech', self._on_speech, _DEPTH),
                (String, 'said', self._on_said, _DEPTH),
                (EngineStatus, 'status', self._on_status, _DEPTH),
                (String, 'task', self._on_task, latched),
                (String, 'episode', self._on_episode, _DEPTH)):
            self._node.create_subscription(kind, topic, callback, qos)
        self._ask = self._node.create_publisher(SpeechRequest, 'ask', 10)
        self._cancel = self._node.create_publisher(String, 'cancel', 10)

    # --- driven by the demo -------------------------------------------------------------------------------------
    def spin(self, until: Callable[[], object], timeout: float, each: Callable[[], None] = lambda: None) -> bool:
        """Handle messages until ``until()`` is true; False after ``timeout`` s. ``each`` runs between messages."""
        deadline = time.monotonic() + timeout
        while not until():
            if time.monotonic() >= deadline:
                return False
            self._executor.spin_once(0.02)
            each()
        return True

    def parameter(self, node: str, name: str, timeout: float = 10.0) -> float | None:
        """A number among the parameters of another node, or None when it does not answer."""
        client = self._node.create_client(GetParameters, f'{node}/get_parameters')
        try:
            if not self.spin(client.service_is_ready, timeout):
                return None
            future = client.call_async(GetParameters.Request(names=[name]))
            if not self.spin(future.done, timeout):
                return None
            value = future.result().values[0]
            return value.double_value or float(value.integer_value) or None
        finally:
            self._node.destroy_client(client)

    def begin(self, publish_rate_hz: float) -> None:
        """Count from now on."""
        self.figures = Figures(publish_rate_hz, began=self.now())

    def end(self) -> None:
        """Count no more, except the answers to questions that are under way."""
        self.figures.ended = self.now()

    def ask(self, question: str, seed: str) -> None:
        """Ask the robot; ``seed`` is the question in the words that the model continues."""
        self._request_id = f'demo-{uuid.uuid4().hex[:8]}'
        self.question, self.answer = question, ''
        self.figures.question(self._request_id, self.now())
        self._ask.publish(SpeechRequest(request_id=self._request_id, channel='question', seed=seed))

    def cancel_all(self) -> None:
        """Cancel every request."""
        self._cancel.publish(String(data=''))

    def now(self) -> float:
        """ROS time, s."""
        return self._node.get_clock().now().nanoseconds * 1e-9

    def close(self) -> None:
        """Leave the domain."""
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    # --- heard --------------------------------------------------------------------------------------------------
    @property
    def _counting(self) -> bool:
        return self.figures is not None and not self.figures.ended

    def _on_actions(self, message: JointTrajectory) -> None:
        self.actions_heard += 1
        if not self._counting:
            return
        received = self.now()
        # A zero stamp means "from the moment it arrives", as for joint_trajectory_controller.
        published = _seconds(message.header.stamp) or received
        due = [published + Duration.from_msg(point.time_from_start).nanoseconds * 1e-9 for point in message.points]
        finite = all(np.isfinite([*point.positions, *point.velocities, *point.accelerations]).all()
                     for point in message.points)
        self.figures.trajectory(received, published, due, finite)

    def _on_chunk(self, message: ActionChunk) -> None:
        if self._counting:
            length = message.horizon * Duration.from_msg(message.period).nanoseconds * 1e-9
            self.figures.chunk(_seconds(message.header.stamp), length, bool(np.isfinite(message.data).all()))

    def _on_speech(self, message: SpeechToken) -> None:
        if message.request_id == self._request_id:
            self.answer = message.text
        if self.figures is not None:
            self.figures.speech(message.request_id, self.now(), len(message.token_ids), message.finish_reason)

    def _on_said(self, message: String) -> None:
        self.said.append(message.data)
        if self._counting:
            self.figures.sentences += 1

    def _on_status(self, message: EngineStatus) -> None:
        self.status = message
        if self._counting:
            self.figures.status(message)

    def _on_task(self, message: String) -> None:
        self.task = message.data

    def _on_episode(self, message: String) -> None:
        if self._counting:
            self.episodes += 1
            self.successes += bool(json.loads(message.data)['success'])


def _seconds(stamp) -> float:
    return Time.from_msg(stamp).nanoseconds * 1e-9
