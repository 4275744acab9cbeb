"""A ROS node that listens to everything the inference node says, asks it questions, and keeps the figures."""
from __future__ import annotations

import json
import time
import uuid
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
import rclpy
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState
from rcl_interfaces.srv import GetParameters
from rclpy.duration import Duration
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import Image
from std_msgs.msg import String
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.ask import printable
from oxygen_ros.demo.figures import Figures
from oxygen_ros.demo.film import Film
from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken
from oxygen_ros.node.executor import Executor
from oxygen_ros.node.images import to_rgb

_CAMERAS = ('front', 'wrist')
_DEPTH = 100  # more than any burst: what we miss would falsify the figures


class Observer:
    """Watches the managed node ``node`` in ``namespace``; the caller spins it. Nothing is counted before ``begin``."""

    def __init__(self, namespace: str, node: str) -> None:
        self._watched = node
        self._context = rclpy.Context()
        rclpy.init(args=[], context=self._context)
        self._node = rclpy.create_node('demo', namespace=namespace, context=self._context)
        self._executor = Executor(context=self._context)
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
        self.film = Film()
        self.cycles: list[dict[str, float]] = []              # stage times of each cycle, for the plot
        self._pictures: dict[str, np.ndarray] = {}            # the newest of each camera
        self._request_id = ''
        self._expires = 0.0                                   # when the newest chunk has nothing more to say

        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        for kind, topic, callback, qos in (  # of what waits, the executor takes a chunk before the actions made from it
                (ActionChunk, 'action_chunk', self._on_chunk, _DEPTH),
                (JointTrajectory, 'actions', self._on_actions, _DEPTH),
                (SpeechToken, 'speech', self._on_speech, _DEPTH),
                (String, 'said', self._on_said, _DEPTH),
                (EngineStatus, 'status', self._on_status, _DEPTH),
                (String, 'task', self._on_task, latched),
                (String, 'episode', self._on_episode, _DEPTH)):
            self._node.create_subscription(kind, topic, callback, qos)
        for camera in _CAMERAS:
            self._node.create_subscription(Image, f'{camera}/image', partial(self._on_image, camera),
                                           qos_profile_sensor_data)
        self._ask = self._node.create_publisher(SpeechRequest, 'ask', 10)

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

    def transition(self, label: str, timeout: float, each: Callable[[], None] = lambda: None) -> bool:
        """Ask the watched node for a lifecycle transition ('configure', 'activate'); whether it was done."""
        request = ChangeState.Request(transition=Transition(label=label))
        response = self._call(ChangeState, f'{self._watched}/change_state', request, timeout, each)
        return response is not None and response.success

    def parameter(self, name: str, timeout: float = 10.0) -> float | None:
        """A number among the parameters of the watched node, or None when it does not answer."""
        request = GetParameters.Request(names=[name])
        response = self._call(GetParameters, f'{self._watched}/get_parameters', request, timeout)
        return parameter_value_to_python(response.values[0]) if response else None  # 50 is as good as 50.0

    def _call(self, kind: type, name: str, request: object, timeout: float, each: Callable[[], None] = lambda: None):
        """The response of a service in our namespace, or None when it does not answer in time."""
        client = self._node.create_client(kind, name)
        try:
            if not self.spin(client.service_is_ready, timeout, each):
                return None
            future = client.call_async(request)
            return future.result() if self.spin(future.done, timeout, each) else None
        finally:
            self._node.destroy_client(client)

    def begin(self, publish_rate_hz: float) -> None:
        """Count from now on."""
        self.figures = Figures(publish_rate_hz, began=self.now())

    def end(self) -> None:
        """Count no more, except the answers to questions that are under way."""
        if self.figures is not None and not self.figures.ended:
            self.figures.ended = self.now()

    def ask(self, question: str, seed: str) -> None:
        """Ask the robot; ``seed`` is the question in the words that the model continues."""
        self._request_id = f'demo-{uuid.uuid4().hex[:8]}'
        self.question, self.answer = question, ''
        self.figures.question(self._request_id, self.now())
        self._ask.publish(SpeechRequest(request_id=self._request_id, channel='question', seed=seed))

    def drop_all(self, timeout: float = 3.0) -> None:
        """Have every request dropped; note how much KV is still in use then."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:  # again while pictures that came before the robot ended are still fresh
            if self._call(Trigger, 'reset', Trigger.Request(), timeout) is None:
                return
            self.status = None
            if self.spin(lambda: self.status and not self.status.live_requests and not self.status.kv_bytes, 0.7):
                break
        if self.status:
            self.figures.kv_bytes_end = self.status.kv_bytes

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
        self.figures.trajectory(received, published, due, finite, self._expires)

    def _on_chunk(self, message: ActionChunk) -> None:
        length = message.horizon * Duration.from_msg(message.period).nanoseconds * 1e-9
        self._expires = max(self._expires, _seconds(message.header.stamp) + message.latency + length)
        if self._counting:
            self.figures.chunk(bool(np.isfinite(message.data).all()))

    def _on_speech(self, message: SpeechToken) -> None:
        if message.request_id == self._request_id:
            self.answer = ' '.join(printable(message.text).split())
        if self.figures is not None:
            self.figures.speech(message.request_id, self.now(), len(message.token_ids), message.finish_reason)

    def _on_said(self, message: String) -> None:
        self.said.append(' '.join(printable(message.data).split()))
        if self._counting:
            self.figures.sentences += 1

    def _on_status(self, message: EngineStatus) -> None:
        self.status = message
        if self._counting:
            self.figures.status(message)
            self.cycles.append({'stamp': _seconds(message.header.stamp), **{
                stage: getattr(message, f'{stage}_time') for stage in ('vision', 'prefill', 'act', 'speak')}})

    def _on_image(self, camera: str, message: Image) -> None:
        now = self.now()
        if not self._counting or not self.film.wants(now):
            return
        self._pictures[camera] = to_rgb(message)
        if len(self._pictures) == len(_CAMERAS):
            said = self.said[-1] if self.said else ''
            asked = f'"{self.question}"  {self.answer}' if self.question else ''
            self.film.add(now, [self._pictures.pop(name) for name in _CAMERAS], [f'task: {self.task}', said, asked])

    def _on_task(self, message: String) -> None:
        self.task = ' '.join(printable(message.data).split())

    def _on_episode(self, message: String) -> None:
        if self._counting:
            self.episodes += 1
            self.successes += bool(json.loads(message.data)['success'])


def _seconds(stamp) -> float:
    return Time.from_msg(stamp).nanoseconds * 1e-9
