"""What happens to cameras, joint states and the robot as a whole."""
from __future__ import annotations

import math
import os
import sys
import time
from array import array
from collections.abc import Iterator
from functools import partial

import rclpy
from sensor_msgs.msg import Image, JointState

from oxygen_ros.bench.trust.fault import Fault
from oxygen_ros.bench.trust.live import NAMESPACE, Live
from oxygen_ros.bench.trust.robot import CAMERA_AGE, CAMERAS, JOINT_AGE, JOINTS, Camera, Joints, Robot, stamped
from oxygen_ros.processes import Process

_NAME = CAMERAS[1]


def _camera(way: Camera, live: Live) -> Iterator[None]:
    live.robot.cameras[_NAME] = way
    yield None
    live.robot.mend()


def _joints(way: Joints, live: Live) -> Iterator[None]:
    live.robot.joints = way
    yield None
    live.robot.mend()


def _nothing(message: Image | JointState) -> list:
    return []


def _frozen() -> Camera:
    first: list[Image] = []

    def way(image: Image) -> list[Image]:
        first.append(image) if not first else None
        return first
    return way


def _late(image: Image) -> list[Image]:
    stamp = image.header.stamp
    return [stamped(image, stamp.sec + stamp.nanosec * 1e-9 - 1.0)]


def _reordered() -> Camera:
    kept: list[Image] = []

    def way(image: Image) -> list[Image]:
        kept.append(image)
        if len(kept) < 2:
            return []
        pair = kept[::-1]
        kept.clear()
        return pair
    return way


def _cut(image: Image) -> list[Image]:
    image.data = array('B', image.data[:1000])
    return [image]


def _strange(image: Image) -> list[Image]:
    image.encoding = 'rgb8\x1b[31m' + 'x' * 5000
    return [image]


def _burst(image: Image) -> list[Image]:
    return [image] * 10


def _partial(state: JointState) -> list[JointState]:
    return [JointState(header=state.header, name=state.name[:3] + state.name[4:],
                       position=state.position[:3] + state.position[4:])]


def _nan(state: JointState) -> list[JointState]:
    state.position[2] = math.nan
    return [state]


def _two_publishers(live: Live) -> Iterator[None]:
    """A second driver that says something else, as after a forgotten terminal."""
    other = Robot(live.ros, NAMESPACE)
    other.cameras = dict.fromkeys(CAMERAS, _nothing)
    other.positions = dict.fromkeys(JOINTS, 0.5)
    yield None
    other.close()


def _participant_leaves(live: Live) -> Iterator[float]:
    """The robot's DDS participant says goodbye and comes back as another one."""
    live.stop_robot()
    context = rclpy.Context()
    rclpy.init(args=[], context=context)
    robot = Robot(rclpy.create_node('robot', context=context), NAMESPACE)
    _taken_over(live)
    broken = time.time()
    robot.close()
    rclpy.try_shutdown(context=context)
    yield broken
    live.start_robot()


def _participant_dies(live: Live) -> Iterator[float]:
    """The robot's process is killed: nobody says goodbye."""
    live.stop_robot()
    program = Process('robot', [sys.executable, '-m', 'oxygen_ros.bench.trust.robot', NAMESPACE], env=os.environ)
    try:
        _taken_over(live)
    finally:
        broken = time.time()
        program.kill()
    yield broken
    live.start_robot()


def _taken_over(live: Live) -> None:
    """Wait until the node moves by another robot's inputs, and has said so."""
    time.sleep(2 * CAMERA_AGE)    # what came from the one before is too old by now
    live.moves()
    time.sleep(1.5)
    live.moves()


FAULTS = (
    Fault('camera stopped', partial(_camera, _nothing), rf'camera {_NAME}.*nothing received for', limit=CAMERA_AGE),
    Fault('camera frozen', lambda live: _camera(_frozen(), live), rf'camera {_NAME}.*the same stamp', limit=CAMERA_AGE),
    Fault('camera late', partial(_camera, _late), rf'camera {_NAME}.*stamps are 1\.\d+ s old'),
    Fault('camera reordered', lambda live: _camera(_reordered(), live), stops=False, lasts=2.0),
    Fault('camera corrupted', partial(_camera, _cut), rf'camera {_NAME}.*1000 bytes of data'),
    Fault('camera of a strange encoding', partial(_camera, _strange), rf'camera {_NAME}.*encoding'),
    Fault('camera in bursts', partial(_camera, _burst), stops=False, lasts=2.0),
    Fault('joint states stopped', partial(_joints, _nothing), r'joint_states: joint .*nothing received for',
          limit=JOINT_AGE),
    Fault('joint states partial', partial(_joints, _partial), r'joint_states: joint joint_4: nothing received for',
          limit=JOINT_AGE),
    Fault('joint states with NaN', partial(_joints, _nan), r'joint_states: joint joint_3: position is nan'),
    Fault('joint states from two publishers', _two_publishers, r'disagree about who owns it', stops=False, within=1.0),
    Fault('DDS participant leaves', _participant_leaves, r'joint_states: joint .*nothing received for',
          limit=JOINT_AGE),
    Fault('DDS participant killed', _participant_dies, r'joint_states: joint .*nothing received for', limit=JOINT_AGE),
)
