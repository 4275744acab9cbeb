"""From stored frames to what training reads: an instruction, the expert's chunk, questions and true answers, noise.

Everything but the pictures is drawn anew each time, so that a picture teaches every task that is possible in it.
"""
from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from oxygen_ros.model.normalise import Normaliser
from oxygen_ros.model.prompt import Prompt
from oxygen_ros.model.tokenizer import Tokenizer
from oxygen_ros.tabletop import arm, words
from oxygen_ros.tabletop.data import VERBS, Frames
from oxygen_ros.tabletop.expert import chunk
from oxygen_ros.tabletop.network import Batch
from oxygen_ros.tabletop.task import COLOURS, Intent, Layout, random_intent

# Joint positions that stand for -1 and 1: the workspace with some margin. The redundant joints 3, 5 and 7 get a wide
# range although they stay near zero, so that their ripple weighs little in the loss.
LOW = np.array([-0.75, 0.0, -0.5, -2.09, -0.5, 0.2, -0.5], np.float32)
HIGH = np.array([0.75, 1.35, 0.5, -0.6, 0.5, 1.7, 0.5], np.float32)
MAX_PROMPT = 64                     # tokens; the longest true prompt has 24, the rest is for free phrasing
_OWN = 0.5                          # share of observations whose instruction is the one their state comes from
_OFTEN, _SELDOM = ('narration', 'where'), ('memory', 'doing', 'count', 'distance')


def normaliser(what: str) -> Normaliser:
    """The map between rad and [-1, 1] for 'state' or 'action'."""
    return Normaliser.make(what, 'MIN_MAX', {'min': LOW, 'max': HIGH}, 'lerobot', 7, arm.JOINTS)


class Batches:
    """An endless, seeded stream of batches over ``frames``."""

    def __init__(self, frames: Frames, tokenizer: Tokenizer, size: int, seed: int, horizon: int = 10,
                 samples: int = 4) -> None:
        self.frames, self.size, self.samples, self.horizon = frames, size, samples, horizon
        self.tokenizer = tokenizer
        self._prompt = Prompt(tokenizer, max_tokens=MAX_PROMPT)
        self._norm = normaliser('state')
        self._rng = np.random.default_rng(seed)

    def __iter__(self) -> Iterator[Batch]:
        while True:
            order = self._rng.permutation(len(self.frames))
            for start in range(0, len(order) - self.size + 1, self.size):
                yield self.make(order[start:start + self.size])

    def make(self, rows: np.ndarray) -> Batch:
        """One batch of the given frames, with freshly drawn tasks and noise."""
        frames, rng = self.frames.take(rows), self._rng
        layouts = [Layout.of(cubes) for cubes in frames.cubes]
        tips = arm.fingertip(frames.q)
        intents = [self._intent(layout, VERBS[verb], COLOURS[colour])
                   for layout, verb, colour in zip(layouts, frames.verb, frames.colour)]
        goals = np.array([np.full(3, np.nan) if i.verb == 'stay' else i.goal(layout) for i, layout in zip(intents, layouts)])
        state = self._norm.normalise(frames.q)
        prompts = [self._prompt.encode(words.instruction(intent, rng), q).ids for intent, q in zip(intents, state)]
        texts = [self._text(layout, intent, tip) for layout, intent, tip in zip(layouts, intents, tips)]
        actions = torch.from_numpy(self._norm.normalise(chunk(frames.q, goals, self.horizon)).astype(np.float32))
        noise = rng.standard_normal((len(rows), self.samples, *actions.shape[1:]), np.float32)
        # as openpi draws them: more often near pure noise, never quite 0
        times = rng.beta(1.5, 1.0, (len(rows), self.samples)).astype(np.float32) * 0.999 + 0.001
        text, owner, step, targets = (_padded(column, fill) for column, fill in zip(zip(*texts), (0, -1, 0, -1)))
        return Batch(torch.from_numpy(frames.images), _padded(prompts, 0), torch.tensor([len(p) for p in prompts]),
                     text, owner, step, targets, actions, torch.from_numpy(noise), torch.from_numpy(times))

    def _intent(self, layout: Layout, verb: str, colour: str) -> Intent:
        if self._rng.random() < _OWN:
            return Intent(verb, colour)
        return random_intent(layout, self._rng, stay=0.15)

    def _text(self, layout: Layout, intent: Intent, tip: np.ndarray) -> tuple[list[int], ...]:
        """Ids, owners, steps and targets of this observation's requests."""
        ids, owners, steps, targets = [], [], [], []
        for owner, kind in enumerate((*_OFTEN, _SELDOM[self._rng.integers(len(_SELDOM))])):
            seed, colour = words.ask(kind, layout, self._rng)
            head = self.tokenizer.encode(seed)
            tail = self.tokenizer.encode(words.answer(kind, layout, intent, tip, colour))
            ids += head + tail
            owners += [owner] * (len(head) + len(tail))
            steps += range(len(head) + len(tail))
            targets += [-1] * (len(head) - 1) + tail + [self.tokenizer.eos_id]
        return ids, owners, steps, targets


def _padded(rows: tuple[list[int], ...] | list[list[int]], fill: int) -> torch.Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])
