"""The robot's URDF: where its tools will be along a motion, and what its joints can do. Needs no ROS.

yourdfpy reads the file. Its own forward kinematics pose one configuration at a time, 2 ms each, which is too long for
the thread that publishes actions; here the transforms of a chain are multiplied for all points of a motion at once.
"""
from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

_MOVES = ('revolute', 'continuous', 'prismatic')
_FREE = 1e9  # rad or m: the limit of a joint that has none


class KinematicsError(ValueError):
    """A robot description that cannot be used; the text says why."""


class Limits(NamedTuple):
    """Of one joint: positions in rad or m, velocity per second."""

    low: float
    high: float
    velocity: float


def preload() -> None:
    """Import the library while nothing moves: it takes a second of processor time, at the node's priority."""
    with suppress(ImportError):
        import yourdfpy  # noqa: F401


class Kinematics:
    """The chains from the base to each tool.

    urdf: the XML text. moved: joints that the policy moves. tools: links to follow; by default the last link of every
    branch that ends with a moved joint. Raises KinematicsError; ModuleNotFoundError without yourdfpy.
    """

    def __init__(self, urdf: str, moved: Sequence[str], tools: Sequence[str] = ()) -> None:
        import yourdfpy  # optional
        try:
            model = yourdfpy.URDF.load(io.BytesIO(urdf.encode()), load_meshes=False, build_scene_graph=False)
            self._joints = {joint.name: joint for joint in model.robot.joints}
        except Exception as error:  # of lxml, numpy or yourdfpy itself: whatever a broken file leads to
            raise KinematicsError(f'cannot be read as a URDF: {error}') from None
        self._parent = {joint.child: joint for joint in self._joints.values()}
        if unknown := [name for name in moved if name not in self._joints]:
            raise KinematicsError(f'it has no joint {", ".join(unknown)}: is it the URDF of this robot?')
        if unknown := [link for link in tools if link not in self._parent]:
            raise KinematicsError(f'it has no link {", ".join(unknown)} below a joint: correct tools in the contract')
        chains = {link: self._chain(link) for link in tools or self._ends(moved)}
        self.tools = tuple(chains)
        self.base = next((link for link in model.link_map if link not in self._parent), '')
        self._chains = list(chains.values())

    def limits(self, name: str) -> Limits:
        """What the URDF allows a joint."""
        joint = self._joints[name]
        declared = joint.limit
        bounded = declared is not None and joint.type != 'continuous'
        low, high = ((declared.lower, declared.upper) if bounded else (None, None))
        velocity = declared.velocity if declared is not None else None
        return Limits(-_FREE if low is None else low, _FREE if high is None else high, velocity or _FREE)

    def paths(self, positions: Mapping[str, np.ndarray]) -> np.ndarray:
        """[tools, n, 3] where the tools are, m in ``base``.

        positions: joint -> [n], or one value for all n; a joint that is left out is at 0.
        """
        n = max(np.size(values) for values in positions.values())
        positions = {joint: np.broadcast_to(values, n) for joint, values in positions.items()}
        return np.stack([self._forward(chain, positions, n) for chain in self._chains])

    def _forward(self, chain: Sequence, positions: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        pose = np.broadcast_to(np.eye(4), (n, 4, 4))
        for joint in chain:
            if joint.origin is not None:
                pose = pose @ joint.origin
            if joint.type in _MOVES:  # a floating base stays where it is: the path is told from there
                pose = pose @ _moved(joint, self._value(joint, positions, n))
        return pose[:, :3, 3]

    def _value(self, joint, positions: Mapping[str, np.ndarray], n: int) -> np.ndarray:
        if joint.mimic is not None and joint.name not in positions:
            times = 1.0 if joint.mimic.multiplier is None else joint.mimic.multiplier
            return times * positions.get(joint.mimic.joint, np.zeros(n)) + (joint.mimic.offset or 0.0)
        return positions.get(joint.name, np.zeros(n))

    def _chain(self, link: str) -> list:
        """The joints from the base to a link."""
        chain = []
        while (joint := self._parent.get(link)) is not None:
            if joint in chain:
                raise KinematicsError(f'its links form a ring at {link}')
            chain.append(joint)
            link = joint.parent
        return chain[::-1]

    def _ends(self, moved: Sequence[str]) -> list[str]:
        """The links behind the last moved joints, followed along fixed joints as long as there is one way."""
        above = {joint.name for name in moved for joint in self._chain(self._joints[name].parent)}
        ends = []
        for name in moved:
            if name in above:
                continue
            link = self._joints[name].child
            while len(on := [j for j in self._joints.values() if j.parent == link]) == 1 and on[0].type == 'fixed':
                link = on[0].child
            ends.append(link)
        return list(dict.fromkeys(ends))


def _moved(joint, values: np.ndarray) -> np.ndarray:
    """[n, 4, 4] motion of a joint: along its axis, or about it (Rodrigues)."""
    axis = np.array((1.0, 0.0, 0.0) if joint.axis is None else joint.axis, np.float64)
    axis /= np.linalg.norm(axis) or 1.0
    moved = np.broadcast_to(np.eye(4), (len(values), 4, 4)).copy()
    if joint.type == 'prismatic':
        moved[:, :3, 3] = values[:, None] * axis
        return moved
    x, y, z = axis
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    moved[:, :3, :3] += np.sin(values)[:, None, None] * cross + (1 - np.cos(values))[:, None, None] * (cross @ cross)
    return moved
