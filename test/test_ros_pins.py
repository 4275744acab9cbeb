"""The wheels that `make test ROS=jazzy` installs."""
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip('tomllib')
HERE = Path(__file__).resolve().parents[1]


def run(*arguments: str) -> str:
    return subprocess.run([sys.executable, 'cmake/ros_pins.py', *arguments], cwd=HERE, check=True, capture_output=True,
                          text=True).stdout


def test_the_newest_distribution_is_pinned_by_constraints_txt():
    assert run('kilted').split() == (HERE / 'constraints.txt').read_text().split()


def test_an_older_one_is_pinned_by_its_own_wheels_and_nothing_else_changes():
    pins, packages = run('jazzy'), run('jazzy', '--packages').split()
    assert 'torch==' in pins and not re.search('^ros-', pins, re.M)
    assert not [name for name in packages if name.startswith('ros-') and not name.startswith('ros-jazzy-')]
    declared = set(re.findall(r'"ros-([a-z-]+)', (HERE / 'pyproject.toml').read_text())) - {'ament-cmake-ros-core'}
    assert {f'ros-jazzy-{name}' for name in declared} <= set(packages)
