"""A ROS domain of one's own on this machine, so that a demo or a test never meets a real robot or another run."""
from __future__ import annotations

import os
import socket
from collections.abc import MutableMapping
from importlib.metadata import distributions
from pathlib import Path

# Domain 0 is everybody's default; above 101 the DDS ports reach into Linux's ephemeral range.
_DOMAINS = range(1, 102)
_held: list[socket.socket] = []
_KILTED = 9  # its rclpy; Fast DDS was renamed with it


def reserve_domain() -> int:
    """Return a ROS domain id that no other process asking here holds; kept until this process ends."""
    for offset in range(len(_DOMAINS)):
        domain = _DOMAINS[(os.getpid() + offset) % len(_DOMAINS)]
        lock = socket.socket(socket.AF_UNIX)
        try:
            lock.bind(f'\0oxygen_ros.domain.{domain}')  # abstract name: freed by the kernel, even after a kill
        except OSError:
            lock.close()
            continue
        _held.append(lock)
        return domain
    raise RuntimeError(f'all {len(_DOMAINS)} ROS domains are in use by demos or tests on this machine: end some')


def isolate(env: MutableMapping[str, str], domain: int) -> None:
    """Make programs started with ``env`` see only ``domain`` and only this machine."""
    env['ROS_DOMAIN_ID'] = str(domain)
    env['ROS_AUTOMATIC_DISCOVERY_RANGE'] = 'LOCALHOST'
    for name in ('ROS_LOCALHOST_ONLY', 'ROS_STATIC_PEERS', 'ROS_DISCOVERY_SERVER'):  # would overrule it
        env.pop(name, None)


def use_fast_dds_profiles(env: MutableMapping[str, str], path: Path) -> None:
    """Make programs started with ``env`` read Fast DDS profiles from ``path``, unless it names others."""
    versions = [int(d.version.split('.')[0]) for d in distributions() if d.name in ('rclpy', 'ros-rclpy')]
    product = 'FASTRTPS' if versions and min(versions) < _KILTED else 'FASTDDS'
    env.setdefault(f'{product}_DEFAULT_PROFILES_FILE', str(path))
