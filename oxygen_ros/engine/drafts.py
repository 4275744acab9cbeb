"""Cross-frame drafts: what a channel said last is the guess for what it says next.

A robot's narration repeats itself from frame to frame. The guess is verified as rows of a pass that runs anyway, so a
hit saves its decode steps and a miss costs a few rows. A channel whose guesses keep failing is only tried now and then.
"""
from __future__ import annotations

from dataclasses import dataclass

_PATIENCE = 2  # whole misses in a row before a channel is tried only every _RETRY-th time
_RETRY = 16
_LONGEST = 48  # tokens of a guess: a pass cannot be interrupted, and a sentence is shorter
_KEYS = 64     # utterances that are remembered: standing requests have few keys, questions may have any number


@dataclass
class _Memory:
    ids: list[int]
    misses: int = 0
    skipped: int = 0


class Drafts:
    """Guesses per key (channel and seed)."""

    def __init__(self) -> None:
        self._memory: dict[tuple[str, str], _Memory] = {}

    def propose(self, key: tuple[str, str], limit: int) -> list[int]:
        """Ids that may come next, at most `limit`; empty when there is nothing worth trying."""
        memory = self._memory.get(key)
        if memory is None:
            return []
        if memory.misses >= _PATIENCE and memory.skipped < _RETRY:
            memory.skipped += 1
            return []
        memory.skipped = 0
        return memory.ids[:min(limit, _LONGEST)]

    def learn(self, key: tuple[str, str], ids: list[int]) -> None:
        """Remember a finished utterance, with its stop id if it had one."""
        memory = self._memory.pop(key, None) or _Memory(ids)
        memory.ids = ids
        self._memory[key] = memory  # the newest is the last
        if len(self._memory) > _KEYS:
            del self._memory[next(iter(self._memory))]

    def verified(self, key: tuple[str, str], right: int) -> None:
        """A guess for this key was tried and `right` of its tokens were right."""
        memory = self._memory.get(key)
        if memory is not None:
            memory.misses = 0 if right else memory.misses + 1
