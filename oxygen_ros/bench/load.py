"""The model that is measured."""
from __future__ import annotations

from typing import Literal

from oxygen_ros.policy.checkpoint import load
from oxygen_ros.policy.policy import Policy


def load_random(preset: str, device: str, dtype: Literal['auto', 'float32', 'bfloat16'], denoise_steps: int) -> Policy:
    """A policy with random weights that never ends a text by itself, so that every request has its full length."""
    policy = load(f'random:{preset}', device, dtype, denoise_steps)
    policy.tokenizer.stop_ids = frozenset()
    return policy
