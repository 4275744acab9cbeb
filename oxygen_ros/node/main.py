"""The executable: ``ros2 run oxygen_ros oxygen_node`` or ``python -m oxygen_ros.node.main``.

Ctrl-C or SIGTERM, at any moment: the robot is told to hold, the engine process is ended, exit code 0.
"""
from __future__ import annotations

import os
import signal
import sys
from typing import Any

from oxygen_ros.missing import explained

_HAND_OVER_S = 0.0001  # longest that one thread keeps the GIL while the ticker wants it


def main(args: list[str] | None = None, **options: Any) -> None:
    """Run the node until it is told to stop. ``options`` go to InferenceNode."""
    stop: list[int] = []
    for number in (signal.SIGINT, signal.SIGTERM):  # nothing is there to tidy up, and the imports may take long
        signal.signal(number, lambda number, frame: os._exit(0))

    with explained('oxygen_node'):
        import rclpy
        from rclpy.executors import ExternalShutdownException
        from rclpy.signals import SignalHandlerOptions

        from oxygen_ros.node.executor import Executor
        from oxygen_ros.node.inference_node import InferenceNode
        from oxygen_ros.node.parameters import ParameterError
        from oxygen_ros.node.realtime import prefer
        from oxygen_ros.worker.memory import keep_memory

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: stop.append(number))
    sys.setswitchinterval(_HAND_OVER_S)
    keep_memory()
    # rclpy's own handlers would take away the publishers before the robot can be told to hold.
    rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = InferenceNode(namespace='oxygen', **options)
    except ParameterError as error:
        print(f'oxygen: {error}', file=sys.stderr)
        rclpy.try_shutdown()
        sys.exit(2)
    priority = node.parameters.realtime_priority
    if priority and (denied := prefer(priority)):
        node.get_logger().info(f'no real-time priority {priority}: {denied}')
    executor = Executor()
    executor.add_node(node)
    try:
        while not stop:
            try:
                executor.spin_once(timeout_sec=0.1)
            except ExternalShutdownException:
                break
            except Exception:
                node.panic()
    finally:
        node.close()
        executor.shutdown()
        node.destroy_node()
        rclpy.try_shutdown()


if __name__ == '__main__':
    main()
