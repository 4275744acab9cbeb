"""Instruction and normalised state -> the prompt a checkpoint was trained with -> token ids."""
from __future__ import annotations

import string
from bisect import bisect_right
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oxygen_ros.policy.tokenizer import Tokenizer

Template = Literal['state', 'task', 'oxygen']
BINS = np.linspace(-1, 1, 257)[:-1]
OXYGEN_MAX_TOKENS = 100


def discretise(state: np.ndarray) -> np.ndarray:
    """Normalised state [n] -> bin numbers [n]: 0..255 inside [-1, 1], -1 below, 255 above (as in training)."""
    return np.digitize(state, BINS) - 1


@dataclass(frozen=True)
class Encoded:
    """One prompt. ``note`` says what was cut off the task, or is empty."""

    ids: list[int]
    text: str
    note: str = ''


@dataclass(frozen=True)
class Prompt:
    """How one checkpoint words its prompt.

    template: ``state`` is ``Task: {task}, State: {bins};\\nAction: `` (pi0.5); ``task`` is ``{task}\\n`` (openpi
        configurations with discrete_state_input=False); ``oxygen`` is ``Task: {task}. Subtask: `` (OxyGen).
    max_tokens: longest prompt, bos included. Only the task is shortened for it: a prompt that lost its state or its
        cue still gives actions, but wrong ones.
    pad_state: the state is filled up with zeros to this many values (checkpoints trained with LeRobot 0.4 saw 32).
    """

    tokenizer: Tokenizer
    template: Template = 'state'
    max_tokens: int = 200
    pad_state: int = 0

    def encode(self, task: str, state: np.ndarray) -> Encoded:
        """Prompt of ``task`` and normalised ``state`` [n]. Raises ValueError on an empty task or hopeless limit."""
        head, task, tail = self._parts(task, state)
        ids = self.tokenizer.encode(head + task + tail, bos=True)
        if len(ids) <= self.max_tokens:
            return Encoded(ids, head + task + tail)
        return self._shortened(head, task, tail)

    def _parts(self, task: str, state: np.ndarray) -> tuple[str, str, str]:
        """The text before, of and after the task."""
        task = task.strip().replace('_', ' ').replace('\n', ' ')
        if not task.strip():
            raise ValueError('the instruction is empty: say what the robot is to do')
        if self.template == 'task':
            return '', task, '\n'
        if self.template == 'oxygen':
            task = task.lower()
            return 'Task: ', task[:-1] if task[-1] in string.punctuation else task, '. Subtask: '
        padded = np.pad(state, (0, max(0, self.pad_state - len(state))))
        return 'Task: ', task, f', State: {" ".join(map(str, discretise(padded)))};\nAction: '

    def _shortened(self, head: str, task: str, tail: str) -> Encoded:
        def tokens(length: int) -> int:
            return len(self.tokenizer.encode(head + task[:length] + tail, bos=True))

        length = bisect_right(range(len(task) + 1), self.max_tokens, key=tokens) - 1
        while length > 0 and tokens(length) > self.max_tokens:   # more text may, rarely, be fewer tokens
            length -= 1
        if length <= 0:
            raise ValueError(f'the prompt without its task takes {tokens(0)} tokens of {self.max_tokens}: '
                             f'no room for the instruction')
        kept = task[:length]
        if task[length] != ' ' and ' ' in kept:   # end at a word
            kept = kept[:kept.rindex(' ')]
        kept = kept.rstrip()
        text = head + kept + tail
        return Encoded(self.tokenizer.encode(text, bos=True), text,
                       f'instruction cut from {len(task)} to {len(kept)} characters: '
                       f'the prompt may have {self.max_tokens} tokens')
