"""The tabletop task: where cubes may lie, what the robot may be told, and when it has done it.

Robot frame: x away from the base, y to the robot's left, z up; the table top is z = 0. Cubes lie in six cells (three
sides, two depths) with free space between the cells, so that "left" or "near" is never a matter of millimetres.
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

COLOURS = ('red', 'green', 'blue', 'yellow')
SIDES = {'left': (0.14, 0.30), 'middle': (-0.06, 0.06), 'right': (-0.30, -0.14)}    # y of cube centres, m
DEPTHS = {'near': (0.45, 0.52), 'far': (0.62, 0.69)}                                # x of cube centres, m
CUBE = 0.06             # edge, m
TOUCH_HEIGHT = 0.02     # fingertip above the cube's top that counts as touching, m
POINT_HEIGHT = 0.14     # fingertip above the cube's top when pointing, m
REACHED = 0.04          # distance of the fingertip to its goal that counts as being there, m
HOLD = 0.5              # how long it must stay there, s
STAY = 3.0              # how long "stay" must be obeyed, s
STAYED = 0.08           # distance of the fingertip from where it began that is not staying any more, m

Verb = Literal['touch', 'point', 'stay']


@dataclass(frozen=True)
class Layout:
    """Centres of the cubes on the table: colour -> (x, y) in m. Colours that are not there have no key."""

    cubes: dict[str, tuple[float, float]]

    def side(self, colour: str) -> str:
        """'left', 'middle' or 'right', seen from the robot."""
        y = self.cubes[colour][1]
        return next(side for side, (low, high) in SIDES.items() if low - 0.03 <= y <= high + 0.03)

    def depth(self, colour: str) -> str:
        """'near' or 'far'."""
        return 'near' if self.cubes[colour][0] < 0.57 else 'far'

    def array(self) -> np.ndarray:
        """Float [4, 2] in the order of COLOURS; NaN where a cube is absent."""
        return np.array([self.cubes.get(colour, (np.nan, np.nan)) for colour in COLOURS])

    @staticmethod
    def of(array: np.ndarray) -> Layout:
        """The inverse of ``array``."""
        return Layout({colour: (float(x), float(y)) for colour, (x, y) in zip(COLOURS, array) if x == x})


def random_layout(rng: np.random.Generator) -> Layout:
    """Three or four cubes of different colours in different cells."""
    colours = rng.permutation(len(COLOURS))[:rng.integers(3, 5)]
    cells = rng.permutation(len(SIDES) * len(DEPTHS))
    sides, depths = list(SIDES.values()), list(DEPTHS.values())
    return Layout({COLOURS[colour]: (float(rng.uniform(*depths[cell % 2])), float(rng.uniform(*sides[cell // 2])))
                   for colour, cell in zip(sorted(colours), cells)})


@dataclass(frozen=True)
class Intent:
    """What an instruction asks for; ``colour`` is '' for "stay"."""

    verb: Verb
    colour: str = ''

    def goal(self, layout: Layout) -> np.ndarray | None:
        """Where the fingertip should go [3], m; None for "stay"."""
        if self.verb == 'stay':
            return None
        height = TOUCH_HEIGHT if self.verb == 'touch' else POINT_HEIGHT
        return np.array([*layout.cubes[self.colour], CUBE + height])


def random_intent(layout: Layout, rng: np.random.Generator, stay: float = 0.1) -> Intent:
    """Touch (3 in 4) or point at a cube that is there, or stay with probability ``stay``."""
    if rng.random() < stay:
        return Intent('stay')
    return Intent('touch' if rng.random() < 0.75 else 'point', str(rng.choice(list(layout.cubes))))


class Judge:
    """Watches one episode: reached and held (touch, point), or never left (stay)."""

    def __init__(self, layout: Layout, intent: Intent, tip: np.ndarray) -> None:
        goal = intent.goal(layout)
        self._goal = np.array(tip) if goal is None else goal
        self._radius, self._needed = (STAYED, STAY) if goal is None else (REACHED, HOLD)
        self._must_stay = goal is None
        self._since: float | None = None
        self.failed = False
        self.succeeded = False

    def watch(self, time: float, tip: np.ndarray) -> bool:
        """Call with the episode time in s and the fingertip; True once the episode has succeeded."""
        if self.succeeded or self.failed:
            return self.succeeded
        if np.linalg.norm(tip - self._goal) > self._radius:
            self._since = None
            self.failed = self._must_stay
            return False
        if self._since is None:
            self._since = time
        self.succeeded = time - self._since >= self._needed - 1e-9
        return self.succeeded
