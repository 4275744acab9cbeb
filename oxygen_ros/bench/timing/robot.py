"""Three cameras and joint states at fixed rates: ``python -m oxygen_ros.bench.timing.robot WIDTH HEIGHT ...``."""
from __future__ import annotations

import sys
from array import array

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState

from oxygen_ros.node.realtime import prefer
from oxygen_ros.worker.memory import keep_memory

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')   # of random:tiny
JOINTS = tuple(f'joint_{i}' for i in range(1, 9))
CAMERA_HZ, JOINT_HZ = 30.0, 100.0
_PRIORITY = 50               # of ros2_control's loop: what the sender waits for a core is none of the node's time


class Robot(Node):
    def __init__(self, width: int, height: int) -> None:
        super().__init__('robot')
        pixels = np.random.default_rng(0).integers(0, 256, height * width * 3, dtype=np.uint8)
        self._image = Image(height=height, width=width, encoding='rgb8', step=3 * width,
                            data=array('B', pixels.tobytes()))
        self._state = JointState(name=JOINTS, position=[0.0] * len(JOINTS))
        self._images = [self.create_publisher(Image, f'{name}/image', qos_profile_sensor_data) for name in CAMERAS]
        self._joints = self.create_publisher(JointState, 'joint_states', 10)
        self.create_timer(1 / CAMERA_HZ, self._look)
        self.create_timer(1 / JOINT_HZ, self._feel)

    def _look(self) -> None:
        for publisher in self._images:
            self._image.header.stamp = self.get_clock().now().to_msg()
            publisher.publish(self._image)

    def _feel(self) -> None:
        self._state.header.stamp = self.get_clock().now().to_msg()
        self._joints.publish(self._state)


def main() -> None:
    keep_memory()
    prefer(_PRIORITY)
    rclpy.init(args=sys.argv)
    try:
        rclpy.spin(Robot(*map(int, sys.argv[1:3])))
    except (KeyboardInterrupt, ExternalShutdownException):
        pass
    finally:
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
