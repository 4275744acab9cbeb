"""Training the embedded robot's pi0.5: first the tower, then everything jointly. Seeded, resumable, one CPU core.

Flow matching for the actions and cross-entropy for the text are minimised together; an average of the weights over
recent steps is what is evaluated and exported.
"""
from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import tokenizers
import torch
import torch.nn.functional as F
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from oxygen_ros.model import names
from oxygen_ros.model.config import ModelConfig
from oxygen_ros.policy.tokenizer import Tokenizer
from oxygen_ros.tabletop.batches import MAX_PROMPT, Batches
from oxygen_ros.tabletop.data import Frames
from oxygen_ros.tabletop.network import Batch, Network, Parameters, initial
from oxygen_ros.tabletop.vocabulary import FILE, SIZE, number_ids
from oxygen_ros.tabletop.warm_up import Where, where

CONFIG = ModelConfig(image=64, patch=16, vision_width=96, vision_layers=3, vision_heads=4, vision_mlp=192, width=128,
                     depth=4, mlp=256, heads=4, head_dim=32, vocab=SIZE, expert_width=64, expert_mlp=128, horizon=10,
                     action_dim=7, max_prompt=MAX_PROMPT)


@dataclass(frozen=True)
class Plan:
    """How long and how fast to learn.

    warm_up_steps: of 32 observations, for the tower alone. steps: joint steps of `batch` observations; the learning
    rate falls to zero over the last `fall` of them. text, where: weights of the text loss and of the tower's lesson
    against the action loss. insulate: keep the gradient of the actions out of everything but the expert (knowledge
    insulation). average: memory of the averaged weights, per step.
    """

    steps: int = 6000
    batch: int = 32
    rate: float = 1.5e-3
    fall: float = 0.6
    warm_up_steps: int = 1200
    text: float = 0.5
    where: float = 0.2
    insulate: bool = False
    average: float = 0.998
    seed: int = 1
    save_every: int = 500

    def rate_at(self, step: int) -> float:
        """Learning rate of one joint step: rises over 200 steps, stays, falls."""
        left = (self.steps - step) / (self.fall * self.steps)
        return self.rate * min(1.0, (step + 1) / 200, left)


class Training:
    """One run in one folder: ``state.pt`` to go on from, ``log.jsonl`` with the learning curve."""

    def __init__(self, folder: Path, frames: Frames, held_out: Frames, plan: Plan) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder, self.plan = folder, plan
        self.tokenizer = Tokenizer.from_folder(FILE)
        self.frames = frames
        self.batches = Batches(frames, self.tokenizer, plan.batch, plan.seed)
        self.held_out = Batches(held_out, self.tokenizer, min(128, len(held_out)), seed=0)
        numbers = number_ids(tokenizers.Tokenizer.from_file(str(FILE)))
        self.parameters: Parameters = initial(CONFIG, plan.seed, numbers)
        self.lesson = Where(CONFIG, plan.seed)
        for tensor in (*self.parameters.values(), self.lesson.weight, self.lesson.bias):
            tensor.requires_grad_()
        self.network = Network(CONFIG, self.parameters)
        self.averaged = {name: tensor.detach().clone() for name, tensor in self.parameters.items()}
        self.optimiser = torch.optim.AdamW(self._groups(), betas=(0.9, 0.98), weight_decay=0.0, foreach=True)
        self.step = self.seconds = 0
        if (folder / 'state.pt').exists():
            self._load()

    def run(self) -> None:
        """Go on to the end of the plan; safe to stop at any time and to start again."""
        columns = (TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(),
                   TextColumn('{task.fields[note]}'))
        with Progress(*columns) as progress:
            if not self.step:
                self._warm_up(progress)
            task = progress.add_task('joint training', total=self.plan.steps, completed=self.step, note='')
            began, losses = time.monotonic(), Counter()
            while self.step < self.plan.steps:
                losses.update(self._learn())
                self.step += 1
                progress.update(task, advance=1)
                if self.step % self.plan.save_every == 0 or self.step == self.plan.steps:
                    self.seconds += time.monotonic() - began
                    began = time.monotonic()
                    note = self._log({name: value / self.plan.save_every for name, value in losses.items()})
                    progress.update(task, note=note)
                    losses.clear()
                    self.save()

    def save(self) -> None:
        """Write ``state.pt``, whole or not at all."""
        part = self.folder / 'state.part'
        torch.save({'parameters': self.parameters, 'averaged': self.averaged, 'step': self.step,
                    'lesson': [self.lesson.weight, self.lesson.bias],
                    'optimiser': self.optimiser.state_dict(), 'seconds': self.seconds}, part)
        os.replace(part, self.folder / 'state.pt')

    def _load(self) -> None:
        state = torch.load(self.folder / 'state.pt', weights_only=True)
        with torch.no_grad():
            for name, tensor in state['parameters'].items():
                self.parameters[name].copy_(tensor)
            for mine, saved in zip((self.lesson.weight, self.lesson.bias), state['lesson']):
                mine.copy_(saved)
        self.averaged = state['averaged']
        self.optimiser.load_state_dict(state['optimiser'])
        self.step, self.seconds = state['step'], state['seconds']

    def _tower(self) -> list[Tensor]:
        tower = [t for name, t in self.parameters.items() if name.startswith((names.VISION, names.PROJECTOR))]
        return [*tower, self.lesson.weight, self.lesson.bias]

    def _groups(self) -> list[dict]:
        """The tower is taught already and goes slower."""
        rest = [t for name, t in self.parameters.items() if not name.startswith((names.VISION, names.PROJECTOR))]
        return [{'params': self._tower(), 'share': 0.5}, {'params': rest, 'share': 1.0}]

    def _warm_up(self, progress: Progress) -> None:
        steps, targets = self.plan.warm_up_steps, where(self.frames)
        optimiser = torch.optim.AdamW(self._tower(), betas=(0.9, 0.98), weight_decay=0.0, foreach=True)
        generator = torch.Generator().manual_seed(self.plan.seed)
        images = torch.from_numpy(self.frames.images)
        task = progress.add_task('tower: where things are', total=steps, note='')
        for step in range(steps):
            rows = torch.randint(len(images), (32,), generator=generator)
            loss, error = self.lesson.loss(self.network.see(images[rows].flatten(0, 1)), targets[rows].flatten(0, 1))
            loss.backward()
            optimiser.param_groups[0]['lr'] = 1e-3 * min(1.0, (step + 1) / 50, (steps - step) / (0.3 * steps))
            optimiser.step()
            optimiser.zero_grad()
            progress.update(task, advance=1, note=f'loss {loss.item():.2f}, {100 * error:.1f} % of the picture off')
        with torch.no_grad():
            for name, tensor in self.parameters.items():
                self.averaged[name].copy_(tensor)

    def _learn(self) -> dict[str, float]:
        batch, targets, _ = self.batches.at(self.step)
        logits, velocity, seen = self.network(batch, self.plan.insulate)
        text, action = F.cross_entropy(logits, batch.targets[batch.targets >= 0]), F.mse_loss(velocity, _flow(batch))
        tower, error = self.lesson.loss(seen, targets.flatten(0, 1))
        (action + self.plan.text * text + self.plan.where * tower).backward()
        norm = torch.nn.utils.clip_grad_norm_(self.parameters.values(), 1.0)
        for group in self.optimiser.param_groups:
            group['lr'] = group['share'] * self.plan.rate_at(self.step)
        self.optimiser.step()
        self.optimiser.zero_grad()
        share = 1 - min(self.plan.average, self.step / (self.step + 10))
        with torch.no_grad():
            torch._foreach_lerp_(list(self.averaged.values()), list(self.parameters.values()), share)
        return {'text': text.item(), 'action': action.item(), 'where_error': error, 'gradient': norm.item()}

    def _log(self, losses: dict[str, float]) -> str:
        entry = {'step': self.step, 'seconds': round(self.seconds), **{k: round(v, 4) for k, v in losses.items()},
                 **self.validate()}
        with open(self.folder / 'log.jsonl', 'a') as log:
            log.write(json.dumps(entry) + '\n')
        return f'text {entry["text"]:.3f}, action {entry["action"]:.4f}, narration {entry["narration"]:.0%} exact'

    @torch.no_grad()
    def validate(self, batches: int = 4) -> dict[str, float]:
        """On held-out scenes with the averaged weights: losses, and the share of sentences whose every next token is
        right, by kind (the same as exact match under greedy decoding)."""
        network = Network(CONFIG, self.averaged)
        totals, right, asked = Counter(), Counter(), Counter()
        for step in range(batches):
            batch, _, kinds = self.held_out.at(step)
            logits, velocity, _ = network(batch)
            learnt = batch.targets >= 0
            totals['val_text'] += F.cross_entropy(logits, batch.targets[learnt]).item() / batches
            totals['val_action'] += F.mse_loss(velocity, _flow(batch)).item() / batches
            wrong = torch.zeros_like(learnt)
            wrong[learnt] = logits.argmax(-1) != batch.targets[learnt]
            for i, row in enumerate(kinds):
                for owner, kind in enumerate(row):
                    asked[kind] += 1
                    right[kind] += not wrong[i][batch.owner[i] == owner].any()
        return {**{k: round(v, 4) for k, v in totals.items()}, **{k: round(right[k] / asked[k], 4) for k in asked}}


def _flow(batch: Batch) -> Tensor:
    """What the expert should answer: from the actions towards the noise."""
    return batch.noise - batch.actions[:, None]
