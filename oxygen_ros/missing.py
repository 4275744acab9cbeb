"""What to say when a library is missing: the usual cause is another Python than the one it was installed for."""
from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

_ROS = 'source /opt/ros/$ROS_DISTRO/setup.bash, or in a virtual environment: pip install ros-'
_MESSAGES = 'the messages are not built: "colcon build" and source install/setup.bash, or "pip install ."'
# What pip calls them, where it is not the module's own name.
_PACKAGES = {'torch': "'torch>=2.6'", 'cv2': 'opencv-python-headless', 'yaml': 'PyYAML', 'PIL': 'pillow',
             'pybullet_data': 'pybullet'}


def remedy(module: str) -> str | None:
    """How to get a module that cannot be imported; None for one of our own, which is no fault of the installation."""
    package = module.partition('.')[0]
    if package == 'oxygen_ros':
        return _MESSAGES if module.startswith('oxygen_ros.msg') else None
    if package == 'rclpy' or package.endswith(('_msgs', '_srvs', '_interfaces')):
        return _ROS + package.replace('_', '-')
    return f'pip install {_PACKAGES.get(package, package)}'


@contextmanager
def explained(program: str) -> Iterator[None]:
    """End the program with code 2 and the remedy on stderr when a module is missing within the block."""
    try:
        yield
    except ModuleNotFoundError as error:
        module = error.name or ''
        if (how := remedy(module)) is None:
            raise
        print(f'{program}: {module!r} is not installed for {sys.executable}.\n  {how}\n'
              '  If it is installed elsewhere, activate that environment first.', file=sys.stderr)
        sys.exit(2)
