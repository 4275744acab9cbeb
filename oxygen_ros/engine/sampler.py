"""Choosing the next token of each request from its logits: greedy, or sampled with a seed of its own."""
from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor


class Sampler:
    """How one request chooses its tokens. ``temperature`` 0 is greedy.

    Sampling uses one uniform number per token from the request's own generator, so the same seed gives the same text
    whatever else is in the batch.
    """

    def __init__(self, temperature: float = 0.0, seed: int = 0):
        if not (math.isfinite(temperature) and temperature >= 0):
            raise ValueError(f'temperature {temperature} is not a finite number >= 0')
        self.temperature = temperature
        self._generator = torch.Generator().manual_seed(seed) if temperature else None

    def uniform(self) -> float:
        """The request's next number in [0, 1)."""
        return torch.rand((), dtype=torch.float64, generator=self._generator).item()


@torch.no_grad()
def sample(logits: Tensor, samplers: Sequence[Sampler]) -> list[int]:
    """One token id per row of ``logits`` [rows, vocab], row i chosen as ``samplers[i]`` says.

    The device is waited for once, however many rows there are. Ties go to the lowest id.
    """
    ids = logits.argmax(-1)
    drawn = [row for row, sampler in enumerate(samplers) if sampler.temperature]
    if drawn:
        where = torch.tensor(drawn, device=logits.device)
        heat, number = torch.tensor([[samplers[row].temperature, samplers[row].uniform()] for row in drawn],
                                    dtype=torch.float64, device=logits.device).T[..., None]
        rows = logits[where].double()
        # Subtract the largest first: a tiny temperature must give greedy, not inf - inf.
        total = ((rows - rows.amax(-1, keepdim=True)) / heat).exp().cumsum(-1)
        # The first id whose cumulative weight passes the number (inversion sampling).
        ids[where] = torch.searchsorted(total, number * total[:, -1:], right=True).squeeze(-1).clamp(
            max=logits.shape[-1] - 1)
    return ids.tolist()
