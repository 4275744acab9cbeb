"""The executable: ``ros2 run oxygen_ros tabletop_robot`` or ``python -m oxygen_ros.tabletop.main``."""
from __future__ import annotations

import sys

from oxygen_ros.interrupts import interrupts
from oxygen_ros.missing import explained


def main(args: list[str] | None = None) -> None:
    """Run the robot until it is told to stop; exit code 0 then, 2 when its parameters make no sense."""
    with interrupts() as check:     # before the slow imports: a traceback is no answer to Ctrl-C
        with explained('tabletop_robot'):
            import rclpy
            from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
            from rclpy.executors import ExternalShutdownException
            from rclpy.signals import SignalHandlerOptions

            from oxygen_ros.node.executor import Executor
            from oxygen_ros.tabletop.node import TabletopRobot

        # rclpy's own handlers would take away the publishers while a callback uses them.
        rclpy.init(args=args, signal_handler_options=SignalHandlerOptions.NO)
        try:
            node = TabletopRobot()
        except (InvalidParameterTypeException, InvalidParameterValueException) as error:
            print(f'tabletop_robot: {error}', file=sys.stderr)
            sys.exit(2)
        executor = Executor()
        executor.add_node(node)
        try:
            while True:
                check()
                executor.spin_once(timeout_sec=0.1)
        except (KeyboardInterrupt, ExternalShutdownException):
            pass
        finally:
            executor.shutdown()
            node.destroy_node()
            rclpy.try_shutdown()


if __name__ == '__main__':
    main()
