"""Which wheels of a ROS 2 distribution `make` installs, and by which pinned versions.

    python cmake/ros_pins.py DISTRIBUTION              constraints for pip
    python cmake/ros_pins.py DISTRIBUTION --packages   what building and running need of ROS, and other build tools

Wheels named ``ros-NAME`` are those of the newest distribution, which constraints.txt pins. Each older one has wheels
``ros-DISTRIBUTION-NAME``, which are empty and pin ``ros-NAME`` to a version of theirs: they need no other pins.
"""
import re
import sys
import tomllib
from pathlib import Path

NEWEST = 'kilted'
# The wheels do not declare what building needs; Jazzy has not split ament_cmake_ros yet.
INSTEAD = {'jazzy': {'ament-cmake-ros-core': [
    'ament-cmake-ros', 'ament-cmake-gmock', 'ament-cmake-gtest', 'ament-cmake-pytest', 'gmock-vendor', 'gtest-vendor',
    'domain-coordinator']}}


def constraints(distribution: str) -> str:
    lines = Path('constraints.txt').read_text().splitlines()
    return '\n'.join(line for line in lines if distribution == NEWEST or not line.startswith('ros-'))


def packages(distribution: str) -> str:
    project = tomllib.loads(Path('pyproject.toml').read_text())
    build = project['build-system']['requires']
    if distribution == NEWEST:
        return ' '.join(build)
    run = project['project']['dependencies']
    others = INSTEAD.get(distribution, {})
    names = [re.match('ros-([a-z0-9-]+)', wheel)[1] for wheel in build + run if wheel.startswith('ros-')]
    wheels = [f'ros-{distribution}-{name}' for given in names for name in others.get(given, [given])]
    return ' '.join([*(tool for tool in build if not tool.startswith('ros-')), *dict.fromkeys(wheels)])


if __name__ == '__main__':
    print((packages if '--packages' in sys.argv else constraints)(sys.argv[1]))
