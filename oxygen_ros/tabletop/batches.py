"""From stored frames to what training reads: an instruction, the expert's chunk, questions and true answers, noise.

Everything but the pictures is drawn anew each time, so that a picture teaches every task that is possible in it.
"""
from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.prompt import Prompt
from oxygen_ros.policy.tokenizer import Tokenizer
from oxygen_ros.tabletop import arm, words
from oxygen_ros.tabletop.data import VERBS, Frames
from oxygen_ros.tabletop.expert import chunk
from oxygen_ros.tabletop.network import Batch
from oxygen_ros.tabletop.task import COLOURS, Intent, Layout, random_intent
from oxygen_ros.tabletop.warm_up import where

# Joint positions that stand for -1 and 1: the workspace with some margin. The redundant joints 3, 5 and 7 get a wide
# range although they stay near zero, so that their ripple weighs little in the loss.
LOW = np.array([-0.75, 0.0, -0.5, -2.09, -0.5, 0.2, -0.5], np.float32)
HIGH = np.array([0.75, 1.35, 0.5, -0.6, 0.5, 1.7, 0.5], np.float32)
MAX_PROMPT = 64                     # tokens; the longest true prompt has 24, the rest is for free phrasing
_OWN = 0.45                         # share of observations whose instruction is the one their state comes from
_STAY = 0.35                        # share of "stay" among the others: it teaches to read the state exactly
_OTHERS = tuple(kind for kind in words.KINDS if kind != 'narration')


def normaliser(what: str) -> Normaliser:
    """The map between rad and [-1, 1] for 'state' or 'action'."""
    return Normaliser.make(what, 'MIN_MAX', {'min': LOW, 'max': HIGH}, 'lerobot', 7, arm.JOINTS)


class Batches:
    """A seeded series of batches over ``frames``: the same (seed, step) always gives the same batch."""

    def __init__(self, frames: Frames, tokenizer: Tokenizer, size: int, seed: int, horizon: int = 10,
                 samples: int = 4) -> None:
        self.frames, self.size, self.seed, self.samples, self.horizon = frames, size, seed, samples, horizon
        self.tokenizer = tokenizer
        self._prompt = Prompt(tokenizer, max_tokens=MAX_PROMPT)
        self._norm = normaliser('state')

    def at(self, step: int) -> tuple[Batch, Tensor, list[list[str]]]:
        """The batch of one step, where its cubes are (see `where`), and its kinds of speech [observation][request]."""
        rng = np.random.default_rng((self.seed, step))
        frames = self.frames.take(rng.integers(len(self.frames), size=self.size))
        layouts = [Layout.of(cubes) for cubes in frames.cubes]
        intents = [_intent(layout, VERBS[verb], COLOURS[colour], rng)
                   for layout, verb, colour in zip(layouts, frames.verb, frames.colour)]
        goals = np.array([intent.goal(layout) if intent.colour else np.full(3, np.nan)
                          for intent, layout in zip(intents, layouts)])
        # On the robot the pictures are older than the joint states, by less than a period: so the arm has moved on.
        q = frames.q + rng.random((self.size, 1)) * (chunk(frames.q, goals, 1)[:, 0] - frames.q)
        tips, state = arm.fingertip(q), self._norm.normalise(q.astype(np.float32))
        prompts = [self._prompt.encode(words.instruction(intent, rng), q).ids for intent, q in zip(intents, state)]
        kinds = [['narration', _OTHERS[rng.integers(len(_OTHERS))]] for _ in layouts]
        texts = [self._text(*task, rng) for task in zip(kinds, layouts, intents, tips)]
        actions = torch.from_numpy(self._norm.normalise(chunk(q, goals, self.horizon)).astype(np.float32))
        noise = rng.standard_normal((self.size, self.samples, *actions.shape[1:]), np.float32)
        # as openpi draws them: more often near pure noise, never quite 0
        times = rng.beta(1.5, 1.0, (self.size, self.samples)).astype(np.float32) * 0.999 + 0.001
        text, owner, step_of, targets = (_padded(column, fill) for column, fill in zip(zip(*texts), (0, -1, 0, -1)))
        batch = Batch(torch.from_numpy(frames.images), _padded(prompts, 0), torch.tensor([len(p) for p in prompts]),
                      text, owner, step_of, targets, actions, torch.from_numpy(noise), torch.from_numpy(times))
        return batch, where(frames), kinds

    def _text(self, kinds: list[str], layout: Layout, intent: Intent, tip: np.ndarray,
              rng: np.random.Generator) -> tuple[list[int], ...]:
        """Ids, owners, steps and targets of one observation's requests."""
        ids, owners, steps, targets = [], [], [], []
        for owner, kind in enumerate(kinds):
            seed, colour = words.ask(kind, layout, rng)
            head = self.tokenizer.encode(seed)
            tail = self.tokenizer.encode(words.answer(kind, layout, intent, tip, colour))
            ids += head + tail
            owners += [owner] * (len(head) + len(tail))
            steps += range(len(head) + len(tail))
            targets += [-1] * (len(head) - 1) + tail + [self.tokenizer.eos_id]
        return ids, owners, steps, targets


def _intent(layout: Layout, verb: str, colour: str, rng: np.random.Generator) -> Intent:
    if rng.random() < _OWN:
        return Intent(verb, colour)
    return random_intent(layout, rng, _STAY)


def _padded(rows: tuple[list[int], ...] | list[list[int]], fill: int) -> Tensor:
    width = max(map(len, rows))
    return torch.tensor([row + [fill] * (width - len(row)) for row in rows])
