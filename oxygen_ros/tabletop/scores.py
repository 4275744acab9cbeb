"""What an evaluation adds up to: success with its confidence interval, and exactness of speech by kind."""
from __future__ import annotations

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Said:
    """One finished sentence and what it should have been; ``observation`` is the one it talks about.

    An observation joins pictures of one moment with joint positions of a later one: ``truth`` is what holds at the
    newer, or at the older if that was said; ``newest`` is what holds at the newer where that is another.
    """

    kind: str
    observation: int
    text: str
    truth: str
    newest: str = ''


@dataclass
class Scores:
    """Counts over episodes and sentences."""

    tried: Counter[str] = field(default_factory=Counter)
    done: Counter[str] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)
    exact: Counter[str] = field(default_factory=Counter)
    newest: Counter[str] = field(default_factory=Counter)
    mistakes: dict[str, Counter[tuple[str, str]]] = field(default_factory=lambda: defaultdict(Counter))

    def episode(self, verb: str, success: bool) -> None:
        """Count one episode."""
        self.tried[verb] += 1
        self.done[verb] += success

    def sentence(self, said: Said) -> None:
        """Count one sentence. "how far" is right within 3 cm both ways: nobody sees single centimetres in 64 px."""
        same = _close if said.kind == 'distance' else str.__eq__
        self.asked[said.kind] += 1
        self.newest[said.kind] += same(said.text, said.newest or said.truth)
        if same(said.text, said.truth):
            self.exact[said.kind] += 1
        else:
            self.mistakes[said.kind][said.text, said.truth] += 1

    @property
    def episodes(self) -> int:
        return self.tried.total()

    def report(self) -> dict[str, Any]:
        """Plain figures for JSON."""
        low, high = wilson(self.done.total(), self.episodes)
        kinds = sorted(self.asked)
        return {
            'success_rate': round(self.done.total() / max(1, self.episodes), 4), 'episodes': self.episodes,
            'success_interval_95': [round(low, 4), round(high, 4)],
            'success_by_verb': {verb: [self.done[verb], self.tried[verb]] for verb in sorted(self.tried)},
            'speech_exact': {kind: round(self.exact[kind] / self.asked[kind], 4) for kind in kinds},
            'speech_exact_newest': {kind: round(self.newest[kind] / self.asked[kind], 4) for kind in kinds},
            'speech_asked': dict(sorted(self.asked.items())),
            'mistakes': {kind: [{'said': said, 'truth': truth, 'times': n} for (said, truth), n in pairs.most_common(3)]
                         for kind, pairs in sorted(self.mistakes.items())}}


def wilson(done: int, tried: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % confidence interval of a rate (Wilson, 1927)."""
    if not tried:
        return 0.0, 1.0
    rate, share = done / tried, z * z / tried
    middle = (rate + share / 2) / (1 + share)
    half = z * math.sqrt(rate * (1 - rate) / tried + share / tried / 4) / (1 + share)
    return max(0.0, middle - half), min(1.0, middle + half)


def _close(text: str, truth: str) -> bool:
    places = [_place(t) for t in (text, truth)]
    return None not in places and all(abs(a - b) <= 3 for a, b in zip(*places))


def _place(text: str) -> tuple[int, int] | None:
    """(cm ahead, cm to the left) of a sentence like '52 cm ahead, 18 cm left'."""
    words = text.split()
    if len(words) != 6 or not (words[0].isdigit() and words[3].isdigit()):
        return None
    return int(words[0]), int(words[3]) * (1 if words[5] == 'left' else -1)
