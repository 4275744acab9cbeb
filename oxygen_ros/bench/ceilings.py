"""What this machine can do at best, measured between the frames of the same run: a large product, a large copy."""
from __future__ import annotations

import statistics
from dataclasses import dataclass

import torch

from oxygen_ros.bench.clock import Clock


@dataclass(frozen=True)
class Ceilings:
    """Peak FLOP/s and bytes/s."""

    flops: float
    bytes: float


class CeilingMeter:
    """Samples of both ceilings, taken whenever ``sample`` is called.

    The medians are the ceilings: on a busy machine they suffer from its other work as the frames beside them do. On an
    idle one they equal the best. A copy counts its bytes twice, read and written.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, clock: Clock) -> None:
        self._clock = clock
        side, copied = (8192, 1 << 30) if device.type == 'cuda' else (1024, 1 << 27)
        self._a, self._b = torch.randn(2, side, side, device=device).to(dtype)
        self._out = torch.empty_like(self._a)
        self._from = torch.zeros(copied, dtype=torch.uint8, device=device)
        self._to = torch.zeros_like(self._from)
        self._flops: list[float] = []
        self._bytes: list[float] = []
        self._product()
        self._copy()

    def sample(self) -> None:
        """Measure both once."""
        self._flops.append(2 * self._a.shape[0] ** 3 / self._product())
        self._bytes.append(2 * self._from.nbytes / self._copy())

    @property
    def ceilings(self) -> Ceilings:
        """Medians of the samples."""
        return Ceilings(statistics.median(self._flops), statistics.median(self._bytes))

    @property
    def best(self) -> Ceilings:
        """The best samples: how much the machine's other work took is the difference to the medians."""
        return Ceilings(max(self._flops), max(self._bytes))

    def _product(self) -> float:
        began = self._clock.now()
        torch.mm(self._a, self._b, out=self._out)
        return self._clock.now() - began

    def _copy(self) -> float:
        began = self._clock.now()
        self._to.copy_(self._from)
        return self._clock.now() - began
