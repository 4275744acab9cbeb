"""The node's topics and services, with their QoS. Names are relative: they live in the node's namespace."""
from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from rclpy.event_handler import PublisherEventCallbacks, SubscriptionEventCallbacks
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy, qos_policy_name_from_kind
from rclpy.qos_overriding_options import QoSOverridingOptions
from sensor_msgs.msg import CompressedImage, Image, JointState
from std_msgs.msg import Float64MultiArray, String
from std_srvs.srv import SetBool, Trigger
from trajectory_msgs.msg import JointTrajectory
from visualization_msgs.msg import MarkerArray

from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken

if TYPE_CHECKING:
    from oxygen_ros.node.inference_node import InferenceNode
    from oxygen_ros.node.session import Session

_UTTERANCE = 256  # messages of the longest text, so that a late reader of a burst loses none
_BURST = 1000     # questions or cancels that come at once; one that is lost here would never be answered


def _qos(depth: int, reliable: bool = True, latched: bool = False) -> QoSProfile:
    return QoSProfile(
        depth=depth, reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
        durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE)


class Interface:
    """Made at configure, destroyed at cleanup. Publishers are silent unless the node is active, but for ``speech``: who
    asks an inactive node is told so.

    Inputs are best effort, so that any publisher matches; their QoS may be overridden by the usual parameters
    (``qos_overrides.<topic>.subscription.reliability`` and so on). ``mismatches`` holds topics on which a
    publisher was found whose QoS does not match, and from which nothing came since.
    """

    def __init__(self, node: InferenceNode, session: Session) -> None:
        self._node, self._session, contract = node, session, session.contract
        self.mismatches: dict[str, str] = {}
        self.actions = self._publisher(JointTrajectory, 'actions', _qos(1))
        self.action_chunk = self._publisher(ActionChunk, 'action_chunk', _qos(2))
        self.speech = node.create_publisher(SpeechToken, 'speech', _qos(_UTTERANCE),
                                            event_callbacks=self._reader_events('speech'))
        self.said = self._publisher(String, 'said', _qos(10))
        self.status = self._publisher(EngineStatus, 'status', _qos(10))
        self.markers = self._publisher(MarkerArray, 'markers', _qos(1, latched=True))
        self._publishers = [self.actions, self.action_chunk, self.said, self.status, self.markers]
        self.commands = None
        if node.parameters.forward_commands:
            self.commands = self._publisher(Float64MultiArray, 'commands', _qos(1))
            self._publishers.append(self.commands)

        self._subscriptions = []
        for camera in contract.cameras:
            self._input(CompressedImage if camera.compressed else Image, camera.topic,
                        self._image(camera.name, camera.topic), _qos(1, reliable=False))
        for topic in contract.joint_topics:
            # Deeper than 1: arm and gripper may each send their part on the same topic.
            self._input(JointState, topic.topic, self._joint_state(topic.topic), _qos(10, reliable=False))
        self._subscribe(SpeechRequest, 'ask', session.on_ask, _qos(_BURST))
        self._subscribe(String, 'cancel', session.on_cancel, _qos(_BURST))
        # Two readers of one topic: a latched reader gets the task that was set before the node came, but no message
        # at all from a plain publisher ("ros2 topic pub"); the plain reader gets those.
        self._subscriptions.append(node.create_subscription(
            String, 'task', session.on_task, _qos(1, latched=True),
            event_callbacks=SubscriptionEventCallbacks(use_default_callbacks=False)))
        self._subscribe(String, 'task', session.on_task, _qos(1))
        self._subscribe(String, contract.description_topic, session.on_description, _qos(1, latched=True))
        self._services = [node.create_service(Trigger, 'reset', session.on_reset),
                          node.create_service(SetBool, 'pause', session.on_pause)]

    def destroy(self) -> None:
        for publisher in self._publishers:
            self._node.destroy_lifecycle_publisher(publisher)
        self._node.destroy_publisher(self.speech)
        for subscription in self._subscriptions:
            self._node.destroy_subscription(subscription)
        for service in self._services:
            self._node.destroy_service(service)

    def _publisher(self, kind: type, topic: str, qos: QoSProfile):
        return self._node.create_lifecycle_publisher(kind, topic, qos, event_callbacks=self._reader_events(topic))

    def _reader_events(self, topic: str) -> PublisherEventCallbacks:
        return PublisherEventCallbacks(incompatible_qos=partial(self._reader_differs, topic),
                                       use_default_callbacks=False)

    def _subscribe(self, kind: type, topic: str, callback, qos: QoSProfile, remedy: str = 'make them equal', **options
                   ) -> None:
        self._subscriptions.append(self._node.create_subscription(
            kind, topic, callback, qos, event_callbacks=SubscriptionEventCallbacks(
                incompatible_qos=partial(self._writer_differs, topic, remedy), use_default_callbacks=False), **options))

    def _input(self, kind: type, topic: str, callback, qos: QoSProfile) -> None:
        self._subscribe(kind, topic, callback, qos, 'make them equal, or set qos_overrides of this topic',
                        qos_overriding_options=QoSOverridingOptions.with_default_policies())

    def _image(self, name: str, topic: str):
        resolved = self._node.resolve_topic_name(topic)

        def store(message) -> None:
            self.mismatches.pop(resolved, None)
            self._session.inputs.image(name, message, time.monotonic_ns())
        return store

    def _joint_state(self, topic: str):
        resolved = self._node.resolve_topic_name(topic)

        def store(message: JointState, info) -> None:
            self.mismatches.pop(resolved, None)
            gid = info.get('publisher_gid')
            self._session.inputs.joint_state(topic, message, time.monotonic_ns(), str(gid) if gid else None)
        return store

    def _writer_differs(self, topic: str, remedy: str, event) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        name = self._node.resolve_topic_name(topic)
        if name not in self.mismatches:
            self._node.get_logger().error(f'{name}: the other end wants another {policy}, so no message passes: '
                                          f'{remedy}')
        self.mismatches[name] = f'incompatible {policy}, {event.total_count} times'

    def _reader_differs(self, topic: str, event) -> None:
        policy = qos_policy_name_from_kind(event.last_policy_kind)
        self._node.get_logger().warning(f'{self._node.resolve_topic_name(topic)}: a subscriber wants another {policy} '
                                        'and gets no message: make them equal', throttle_duration_sec=5.0)
