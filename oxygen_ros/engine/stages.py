"""Times of the stages of one cycle, without waiting for the device in between."""
from __future__ import annotations

import time

import torch


class Stages:
    """Marks in the order of work; on CUDA they are events on the stream, read when the work is known to be done."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == 'cuda'
        self._names: list[str] = []
        self._times: list[float] = []
        self._events: list[torch.cuda.Event] = []
        self._now()

    def mark(self, stage: str) -> None:
        """`stage` ends here."""
        self._names.append(stage)
        self._now()

    def seconds(self) -> dict[str, float]:
        """Seconds per stage; on CUDA only after the last mark has been reached."""
        if self._cuda:
            spans = [a.elapsed_time(b) / 1e3 for a, b in zip(self._events, self._events[1:], strict=False)]
        else:
            spans = [b - a for a, b in zip(self._times, self._times[1:], strict=False)]
        return dict(zip(self._names, spans, strict=True))

    def _now(self) -> None:
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)
        else:
            self._times.append(time.perf_counter())
