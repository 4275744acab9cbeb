"""The simulated robot as a ROS 2 node: cameras and joint states out, a joint trajectory in, one task after another.

Topics (relative to the node's namespace):

    out  front/image, wrist/image   sensor_msgs/Image rgb8, best effort
    out  joint_states               sensor_msgs/JointState, positions in rad
    out  task                       std_msgs/String, latched: the instruction of the episode that begins
    out  episode                    std_msgs/String, JSON at the end of each episode: number, task, success, seconds
    out  robot_description          std_msgs/String, latched: the URDF
    in   joint_trajectory           trajectory_msgs/JointTrajectory, what joint_trajectory_controller would take
"""
from __future__ import annotations

import json
import time

import numpy as np
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.clock import Clock, ClockType
from rclpy.exceptions import InvalidParameterValueException
from rclpy.node import Node
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from rclpy.time import Time
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.controller import Controller
from oxygen_ros.tabletop.description import description
from oxygen_ros.tabletop.episode import TIME_LIMIT, make_episode
from oxygen_ros.tabletop.scene import CAMERAS, HOME, Scene
from oxygen_ros.tabletop.task import Judge


class TabletopRobot(Node):
    """A kinematic iiwa with two cameras. Everything runs on one thread; rendering takes about 5 ms per image."""

    def __init__(self, **options: object) -> None:
        super().__init__('tabletop_robot', **options)
        self._seed = self._integer('seed', 0, 'series of episodes; the same seed gives the same episodes', 0, 2**31 - 1)
        size = self._integer('camera_size', 64, 'side of the square camera images, px', 16, 1024)
        camera_rate = self._number('camera_rate_hz', 10.0, 'images per second and camera', 0.1, 60.0)
        joint_rate = self._number('joint_rate_hz', 50.0, 'joint states and controller updates per second', 1.0, 1000.0)
        self._limit = self._number('episode_s', TIME_LIMIT, 'an episode not solved in time has failed, s', 0.1, 3600)
        self._pause = self._number('pause_s', 1.5, 'time between a success and the next episode, s', 0.0, 60.0)
        self._layout_every = self._integer('layout_every', 3, 'episodes that share one layout of the cubes', 1, 1000)

        self.scene = Scene(size)
        self._controller = Controller(HOME)
        self._joints = self.create_publisher(JointState, 'joint_states', 10)
        self._images = {c: self.create_publisher(Image, f'{c}/image', qos_profile_sensor_data) for c in CAMERAS}
        latched = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
        self._task = self.create_publisher(String, 'task', latched)
        self._description = self.create_publisher(String, 'robot_description', latched)
        self._description.publish(String(data=description()))
        self._outcome = self.create_publisher(String, 'episode', 10)
        self.create_subscription(JointTrajectory, 'joint_trajectory', self._follow, 2)

        self._number_of_episode = 0
        self._solved_at: float | None = None
        self._complaint = ''
        self._begin()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(1.0 / joint_rate, self._move, clock=steady)
        self.create_timer(1.0 / camera_rate, self._look, clock=steady)

    def destroy_node(self) -> None:
        """Free the renderer with the node."""
        self.scene.close()
        super().destroy_node()

    def _begin(self) -> None:
        """Lay out the table for the next episode and say what is to be done; the arm goes on from where it is."""
        self.episode = episode = make_episode(self._seed, self._number_of_episode, self._layout_every)
        self.scene.reset(episode.layout, self.scene.q)
        self._judge = Judge(episode.layout, episode.intent, self.scene.tip)
        self._instruction = episode.instruction
        self._began = time.monotonic()
        self._solved_at = None
        self._task.publish(String(data=self._instruction))
        self.get_logger().info(f'episode {self._number_of_episode}: {self._instruction}')

    def _move(self) -> None:
        now = time.monotonic()
        self.scene.q = self._controller.advance(now)
        message = JointState(name=list(arm.JOINTS), position=self.scene.q.tolist())
        message.header.stamp = self.get_clock().now().to_msg()
        self._joints.publish(message)

        elapsed = now - self._began
        if self._solved_at is None and self._judge.watch(elapsed, self.scene.tip):
            self._solved_at = now
            self._end(True, elapsed)
        if self._solved_at is not None:
            if now - self._solved_at >= self._pause:
                self._begin_next()
        elif self._judge.failed or elapsed > self._limit:
            self._end(False, elapsed)
            self._begin_next()

    def _begin_next(self) -> None:
        self._number_of_episode += 1
        self._begin()

    def _end(self, success: bool, seconds: float) -> None:
        self._outcome.publish(String(data=json.dumps({
            'episode': self._number_of_episode, 'task': self._instruction, 'success': success,
            'seconds': round(seconds, 2)})))
        self.get_logger().info(f'episode {self._number_of_episode}: {"success" if success else "failure"} '
                               f'after {seconds:.1f} s')

    def _look(self) -> None:
        """Both cameras at one moment, with one stamp, as triggered cameras do."""
        stamp = self.get_clock().now().to_msg()
        size = self.scene.camera_size
        for camera in CAMERAS:
            message = Image(height=size, width=size, encoding='rgb8', step=3 * size)
            message.header.stamp = stamp
            message.header.frame_id = f'{camera}_camera'
            message.data.frombytes(self.scene.render(camera).tobytes())
            self._images[camera].publish(message)

    def _follow(self, message: JointTrajectory) -> None:
        try:
            missing = set(arm.JOINTS) - set(message.joint_names)
            if missing or len(message.joint_names) != len(arm.JOINTS):
                raise ValueError(f'joints {list(message.joint_names)}: need exactly {", ".join(arm.JOINTS)}')
            order = [message.joint_names.index(name) for name in arm.JOINTS]
            if any(len(point.positions) != len(order) for point in message.points):
                raise ValueError('a point without a position for every joint')
            times = [p.time_from_start.sec + 1e-9 * p.time_from_start.nanosec for p in message.points]
            points = np.array([p.positions for p in message.points]).reshape(-1, len(order))[:, order]
            start = time.monotonic()
            stamp = Time.from_msg(message.header.stamp, clock_type=ClockType.ROS_TIME)
            if stamp.nanoseconds:       # zero means: from now on, as for joint_trajectory_controller
                start += 1e-9 * (stamp - self.get_clock().now()).nanoseconds
            self._controller.follow(start, np.array(times), points)
            self._complaint = ''
        except ValueError as error:
            if str(error) != self._complaint:
                self.get_logger().warning(f'joint_trajectory ignored: {error}')
            self._complaint = str(error)

    def _integer(self, name: str, default: int, description: str, low: int, high: int) -> int:
        bounds = [IntegerRange(from_value=low, to_value=high, step=1)]
        return self.declare_parameter(name, default, ParameterDescriptor(
            description=description, read_only=True, integer_range=bounds)).value

    def _number(self, name: str, default: float, description: str, low: float, high: float) -> float:
        bounds = [FloatingPointRange(from_value=low, to_value=float(high), step=0.0)]
        value = self.declare_parameter(name, default, ParameterDescriptor(
            description=description, read_only=True, floating_point_range=bounds, dynamic_typing=True)).value
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise InvalidParameterValueException(name, value, f'a number from {low:g} to {high:g} is needed')
        return float(value)  # 5 is as good as 5.0
