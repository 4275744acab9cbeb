"""A robot for the node: two cameras and joint states from a thread, and joints that follow what they are told.

    python -m oxygen_ros.bench.trust.robot /namespace

runs it as a program of its own, so that it can be killed as a whole.
"""
from __future__ import annotations

import sys
import threading
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import yaml
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb')     # of random:tiny, which has a third
JOINTS = tuple(f'joint_{i}' for i in range(1, 9))
MOVED = JOINTS[:7]
CAMERA_AGE, JOINT_AGE = 0.5, 0.25                # the contract's defaults, s
LIMIT, SPEED, PERIOD = 1.0, 1.0, 0.1             # rad, rad/s, s per action
_RATE_HZ = 25.0
_LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)

Camera = Callable[[Image], Iterable[Image]]
Joints = Callable[[JointState], Iterable[JointState]]


def write_contract(folder: Path) -> Path:
    """The contract of this robot for random:tiny."""
    path = folder / 'contract.yaml'
    path.write_text(yaml.safe_dump({
        'robot': 'trust', 'checkpoint': 'random:tiny', 'semantics': 'absolute_position', 'policy_period': PERIOD,
        'instruction': 'work', 'cameras': [
            {'name': name, 'topic': f'{name}/image', 'max_age': CAMERA_AGE} for name in CAMERAS],
        'joint_topics': [{'topic': 'joint_states', 'max_age': JOINT_AGE}],
        'state': [{'joint': joint} for joint in JOINTS],
        'actions': [{'joint': joint, 'position': [-LIMIT, LIMIT], 'velocity': SPEED} for joint in MOVED]}))
    return path


def as_it_is(message):
    """The way of a message when nothing is wrong."""
    return [message]


class Robot:
    """Publishes until closed. ``cameras`` and ``joints`` say what becomes of each message on its way: replace them to
    break something.
    """

    def __init__(self, node: Node, namespace: str, clock: Callable[[], float] = time.time) -> None:
        self._node, self._clock = node, clock
        self.cameras: dict[str, Camera] = dict.fromkeys(CAMERAS, as_it_is)
        self.joints: Joints = as_it_is
        self.positions = dict.fromkeys(JOINTS, 0.0)
        self._images = {name: node.create_publisher(Image, f'{namespace}/{name}/image', qos_profile_sensor_data)
                        for name in CAMERAS}
        self._states = node.create_publisher(JointState, f'{namespace}/joint_states', 10)
        self._task = node.create_publisher(String, f'{namespace}/task', _LATCHED)
        self._pictures = [array('B', np.random.default_rng(i).bytes(64 * 48 * 3)) for i in range(8)]
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='robot', daemon=True)
        self._thread.start()

    def task(self, text: str) -> None:
        self._task.publish(String(data=text))

    def follow(self, names: Iterable[str], target: Iterable[float]) -> None:
        """A step of the way that a trajectory's first point asks for."""
        for name, value in zip(names, target, strict=True):
            self.positions[name] += 0.2 * (value - self.positions[name])

    def mend(self) -> None:
        """Nothing is wrong any more."""
        self.cameras = dict.fromkeys(CAMERAS, as_it_is)
        self.joints = as_it_is

    def close(self) -> None:
        self._stop.set()
        self._thread.join()
        executor = self._node.executor
        for publisher in (*self._images.values(), self._states, self._task):
            if executor is None:
                self._node.destroy_publisher(publisher)
            else:  # on its own thread: rclpy may hang when another one destroys what it waits on
                executor.create_task(self._node.destroy_publisher, publisher)

    def _run(self) -> None:
        turn = 0
        while not self._stop.wait(1.0 / _RATE_HZ):
            turn += 1
            now = self._clock()
            state = JointState(name=list(JOINTS), position=[self.positions[name] for name in JOINTS])
            stamped(state, now)
            for message in self.joints(state):
                self._states.publish(message)
            for name, way in list(self.cameras.items()):
                image = Image(height=48, width=64, encoding='rgb8', step=64 * 3, data=self._pictures[turn % 8])
                stamped(image, now)
                for message in way(image):
                    self._images[name].publish(message)


def stamped(message, seconds: float):
    """``message`` with this stamp."""
    message.header.stamp.sec, message.header.stamp.nanosec = int(seconds), int(seconds % 1 * 1e9)
    return message


def main() -> None:
    """Run it until killed."""
    import rclpy
    rclpy.init(args=[])
    node = rclpy.create_node('robot')
    Robot(node, sys.argv[1])
    rclpy.spin(node)


if __name__ == '__main__':
    main()
