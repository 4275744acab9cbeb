"""Time that passes only when somebody says so, and a network that only takes time.

With both, thousands of cycles of the real engine run in seconds, and what comes out depends on the engine's decisions
alone, not on the machine.
"""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

from oxygen_ros.engine import engine, stages
from oxygen_ros.kv import Pool
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.model.segments import Segment


class VirtualTime:
    """Stands in for the module ``time``."""

    def __init__(self) -> None:
        self._ns = 1_000_000_000

    def monotonic_ns(self) -> int:
        """As in ``time``; so are the others."""
        return self._ns

    def monotonic(self) -> float:  # noqa: D102
        return self._ns / 1e9

    perf_counter = monotonic

    def sleep(self, seconds: float) -> None:  # noqa: D102
        self._ns += max(0, round(seconds * 1e9))

    @contextmanager
    def rule(self) -> Iterator[None]:
        """Inside, the engine reads this time."""
        with patch.object(engine, 'time', self), patch.object(stages, 'time', self):
            yield


class VirtualNet:
    """Stands in for a Pi05: zeros come out, time passes.

    prefill_s, denoise_s: per call; step_s, row_s: of a pass without an observation, and more for each of its rows. All
    vary by a few per cent, log-normally.
    """

    def __init__(self, net: Pi05, time: VirtualTime, prefill_s: float, denoise_s: float, step_s: float, row_s: float,
                 spread: float = 0.05, seed: int = 0) -> None:
        self._net, self._time = net, time
        self._prefill, self._denoise, self._step, self._row = prefill_s, denoise_s, step_s, row_s
        self._spread, self._rng = spread, np.random.default_rng(seed)

    def __getattr__(self, name: str) -> object:
        return getattr(self._net, name)

    def encode(self, images: Tensor) -> Tensor:
        """As Pi05.encode; so are the others."""
        return torch.zeros(len(images), self._net.config.image_tokens, self._net.config.width)

    def embed(self, ids: Sequence[int]) -> Tensor:  # noqa: D102
        return torch.zeros(len(ids), self._net.config.width)

    def forward(self, rows: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:  # noqa: D102
        observed = any(s.position == 0 for s in segments)
        self._pass(self._prefill if observed else self._step + self._row * len(rows))
        return torch.zeros(sum(s.outputs for s in segments), self._net.config.vocab)

    def denoise(self, noise: Tensor, *rest: object) -> Tensor:  # noqa: D102
        self._pass(self._denoise)
        return torch.zeros_like(noise)

    def _pass(self, seconds: float) -> None:
        self._time.sleep(seconds * float(self._rng.lognormal(0.0, self._spread)))
