"""Random weights that behave: for tests, benchmarks and files of any size (``random:tiny`` and so on)."""
from __future__ import annotations

import hashlib
from collections.abc import Callable

import torch
from torch import Tensor

from oxygen_ros.model.config import ModelConfig
from oxygen_ros.model.names import LANGUAGE, LM_HEAD, VISION, expected

_LANGUAGE_GAIN = {'q_proj': 2.0, 'k_proj': 2.0, 'o_proj': 8.0, 'down_proj': 4.0}


def random_tensors(config: ModelConfig, seed: int = 0) -> Callable[[str], Tensor]:
    """A getter of float32 CPU tensors, made on demand: the same (seed, name) always gives the same tensor.

    The scales keep every activation near 1 and leave nothing at zero (norm weights, biases, adaRMS), so that a
    network that skips any one of the tensors gives different actions. Raises KeyError for a name the config lacks.
    """
    shapes = expected(config)

    def get(name: str) -> Tensor:
        shape = shapes[name]
        digest = hashlib.sha256(f'{seed}/{name}'.encode()).digest()
        generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], 'big') >> 1)
        tensor = torch.empty(shape).normal_(generator=generator)
        if len(shape) > 1 and 'position_embedding' not in name:
            tensor.mul_(tensor[0].numel() ** -0.5)   # keeps the variance of a matrix product's input
            if name == LM_HEAD:   # tied: beside a strong embedding greedy text would only repeat its last token
                tensor.mul_(0.3)
            elif name.startswith(LANGUAGE):   # and attention must tell rows apart, or all texts end alike
                tensor.mul_(_LANGUAGE_GAIN.get(name.split('.')[-2], 1.0))
            return tensor
        tensor.mul_(0.1)
        if name.startswith(VISION) and 'norm' in name and name.endswith('.weight'):
            tensor.add_(1.0)   # LayerNorm weights sit around 1; Gemma's around 0, for they are added to 1
        return tensor

    return get
