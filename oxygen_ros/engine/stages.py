"""Times of the stages of one cycle, without waiting for the device in between."""
from __future__ import annotations

import time

import torch


class Stages:
    """Marks in the order of work; on CUDA they are events on the stream, read when the work is known to be done."""

    def __init__(self, device: torch.device) -> None:
        self._cuda = device.type == 'cuda'
        self._marks: list[tuple[str, float | torch.cuda.Event]] = []
        self.mark('')

    def mark(self, stage: str) -> None:
        """`stage` ends here."""
        if self._cuda:
            now = torch.cuda.Event(enable_timing=True)
            now.record()
        else:
            now = time.perf_counter()
        self._marks.append((stage, now))

    def seconds(self) -> dict[str, float]:
        """Seconds per stage; on CUDA only after the last mark has been reached."""
        pairs = zip(self._marks, self._marks[1:], strict=False)
        if self._cuda:
            return {stage: begin.elapsed_time(end) / 1e3 for (_, begin), (stage, end) in pairs}
        return {stage: end - begin for (_, begin), (stage, end) in pairs}
