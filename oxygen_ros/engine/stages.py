"""Times of the stages of one cycle, without waiting for the device in between."""
from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

import torch


class Stages:
    """Marks in the order of work; on CUDA they are events on the stream, read when the work is known to be done."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == 'cuda'
        self._marks: list[tuple[str, Any]] = []
        self.mark('')

    def mark(self, stage: str) -> None:
        """`stage` ends here."""
        if self._cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._marks.append((stage, event))
        else:
            self._marks.append((stage, time.perf_counter()))

    def seconds(self) -> dict[str, float]:
        """Seconds per stage; on CUDA only after the last mark has been reached."""
        return {stage: begin.elapsed_time(end) / 1e3 if self._cuda else end - begin
                for (_, begin), (stage, end) in pairwise(self._marks)}
