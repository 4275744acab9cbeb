"""Reading time: the wall's, or the processor's own, and the device's where there is one."""
from __future__ import annotations

import time
from typing import Any, Literal

import torch

Kind = Literal['wall', 'cpu']


class Clock:
    """kind ``cpu`` counts only time in which this process ran: on a busy machine it is the steadier one. It adds up
    over threads, so it means elapsed time with a single thread only."""

    def __init__(self, kind: Kind = 'wall', device: torch.device | str = 'cpu') -> None:
        self._read = time.perf_counter if kind == 'wall' else time.process_time
        self._cuda = torch.device(device).type == 'cuda'
        if self._cuda and kind == 'cpu':
            raise ValueError('the cpu clock does not see the work of a CUDA device: use the wall clock')

    def now(self) -> float:
        """Seconds, once the device has done everything that was asked of it."""
        if self._cuda:
            torch.cuda.synchronize()
        return self._read()

    def mark(self) -> Any:
        """A moment in the order of work, without waiting for the device."""
        if not self._cuda:
            return self._read()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between(self, begin: Any, end: Any) -> float:
        """Seconds between two marks; the device must have passed both."""
        return begin.elapsed_time(end) / 1e3 if self._cuda else end - begin
