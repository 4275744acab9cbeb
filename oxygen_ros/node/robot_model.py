"""The robot's description as it arrives: read beside the executor's thread, then used for limits and for `markers`."""
from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass

from oxygen_ros.contract import Contract, ContractError
from oxygen_ros.node.freshness import Problem
from oxygen_ros.node.kinematics import Kinematics, KinematicsError

_NO_LIBRARY = "yourdfpy is not installed: pip install 'oxygen-ros[urdf]'"


@dataclass(frozen=True)
class Described:
    """A description was read for ``model``: its kinematics, or why there are none."""

    model: RobotModel
    kinematics: Kinematics | None
    why: str = ''


class RobotModel:
    """One contract's view of the robot's URDF. ``post`` hands over a Described, from another thread."""

    def __init__(self, contract: Contract, topic: str, post: Callable[[Described], None]) -> None:
        self._declared, self._topic, self._post = contract, topic, post
        self._unlimited = [action.label for action in contract.joints if action.position is None]
        self.why = 'none has been received: is it published, as a latched std_msgs/String?'
        self._contradicted = False
        self.kinematics: Kinematics | None = None

    def read(self, urdf: str) -> None:
        """Begin to read a URDF, on a thread of its own."""
        threading.Thread(target=self._read, args=(urdf,), name='robot description', daemon=True).start()

    def _read(self, urdf: str) -> None:
        moved = [action.label for action in self._declared.joints]
        try:
            self._post(Described(self, Kinematics(urdf, moved, self._declared.tools)))
        except KinematicsError as error:
            self._post(Described(self, None, str(error)))
        except ModuleNotFoundError:
            self._post(Described(self, None, _NO_LIBRARY))

    def take(self, described: Described) -> Contract | None:
        """The contract within the URDF's limits; None when there is nothing to go by, and problems() says why."""
        self.kinematics, self.why, self._contradicted = described.kinematics, described.why, False
        if self.kinematics is None or not self._declared.moves_joints:
            return None
        try:
            limits = {action.label: self.kinematics.limits(action.label) for action in self._declared.joints}
            return self._declared.limited(limits)
        except ContractError as error:
            self.kinematics, self.why, self._contradicted = None, str(error), True
            return None

    def problems(self) -> list[Problem]:
        """Why the robot may not move: joints without limits, or limits that contradict each other."""
        source = f'robot description on {self._topic}'
        if self._contradicted:
            return [Problem(source, 'limits', self.why)]
        if self.kinematics is None and self._unlimited:
            return [Problem(source, 'missing', f'{self.why}; {", ".join(self._unlimited)} of the contract takes its '
                            'limits from it')]
        return []
