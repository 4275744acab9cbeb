"""Says each problem once: when it begins, and when it is over."""
from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from oxygen_ros.node.freshness import SECOND, Problem

_PATIENCE = SECOND * 4 // 5  # an input, or a part of it, that was never there may still be starting
_STARTING = ('missing', 'unnamed')
_OVER = SECOND           # a problem that comes back sooner is the same one, not news


@dataclass
class _Episode:
    problem: Problem
    began: int
    seen: int
    said: bool = False


class Notices:
    """Turns the problems found at each look into news: begun, and over."""

    def __init__(self) -> None:
        self._episodes: dict[tuple[str, str], _Episode] = {}

    @property
    def present(self) -> list[Problem]:
        """What is wrong now, with the newest text."""
        return [episode.problem for episode in self._episodes.values()]

    def update(self, problems: Iterable[Problem], now: int) -> tuple[list[Problem], list[Problem]]:
        """(problems that begin to be worth saying, problems that are over), at steady time ``now``, ns."""
        for problem in problems:
            episode = self._episodes.setdefault((problem.source, problem.kind), _Episode(problem, now, now))
            episode.problem, episode.seen = problem, now
        begun, over = [], []
        for key, episode in list(self._episodes.items()):
            if now - episode.seen > _OVER:
                del self._episodes[key]
                if episode.said:
                    over.append(episode.problem)
            elif episode.seen == now and not episode.said and (
                    episode.problem.kind not in _STARTING or now - episode.began >= _PATIENCE):
                episode.said = True
                begun.append(episode.problem)
        return begun, over
