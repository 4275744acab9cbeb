"""One episode of the tabletop task, from a seed: the layout, the instruction and where the arm begins."""
from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oxygen_ros.tabletop import arm, words
from oxygen_ros.tabletop.task import Intent, Layout, random_intent, random_layout

TIME_LIMIT = 8.0        # s


@dataclass(frozen=True)
class Episode:
    """start: joint positions [7], rad."""

    layout: Layout
    intent: Intent
    instruction: str
    start: np.ndarray


def random_start(rng: np.random.Generator) -> np.ndarray:
    """Joint positions [7] with the fingertip somewhere above the table and the arm a little twisted."""
    tip = rng.uniform((0.46, -0.28, 0.14), (0.66, 0.28, 0.36))
    return arm.inverse(tip) + rng.normal(0.0, 0.05, 7)


def make_episode(seed: int, index: int, layout_every: int = 1) -> Episode:
    """Episode ``index`` of the series ``seed``; the same numbers always give the same episode.

    layout_every: so many episodes in a row share one layout of the cubes.
    """
    layout = random_layout(np.random.default_rng((seed, index // layout_every)))
    rng = np.random.default_rng((seed, index, 1))
    intent = random_intent(layout, rng)
    return Episode(layout, intent, words.instruction(intent, rng), random_start(rng))
