"""What a demo leaves to look at: a short film of both cameras with what was asked and said, and a plot of timing."""
from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

_SIDE, _CAPTION = 256, 66   # px of one camera's picture and of the text below
_PER_S, _MOST = 2, 240      # pictures kept per second of the demo, and in all


class Film:
    """Keeps a picture now and then; times in s."""

    def __init__(self) -> None:
        self._frames: list[Image.Image] = []
        self._next = 0.0

    def wants(self, now: float) -> bool:
        """Whether it is time for another picture."""
        return now >= self._next and len(self._frames) < _MOST

    def add(self, now: float, cameras: Sequence[np.ndarray], lines: Sequence[str]) -> None:
        """Pictures, uint8 RGB [height, width, 3], side by side above up to three lines of text."""
        self._next = now + 1.0 / _PER_S
        frame = Image.new('RGB', (_SIDE * len(cameras), _SIDE + _CAPTION), 'white')
        for i, pixels in enumerate(cameras):
            frame.paste(Image.fromarray(pixels).resize((_SIDE, _SIDE), Image.Resampling.NEAREST), (i * _SIDE, 0))
        draw = ImageDraw.Draw(frame)
        for i, line in enumerate(lines[:3]):
            draw.text((6, _SIDE + 4 + 20 * i), line, fill='black', font_size=14)
        self._frames.append(frame)

    def write(self, path: Path) -> bool:
        """As an animated GIF at twice the speed; False when there is nothing to show."""
        if self._frames:
            first, *others = (frame.quantize(64) for frame in self._frames)
            first.save(path, save_all=True, append_images=others, duration=500 // _PER_S, loop=0)
        return bool(self._frames)


def plot_timing(path: Path, published: Sequence[float], period: float, cycles: Sequence[dict[str, float]]) -> bool:
    """Intervals between trajectories, and the stages of each cycle, as a PNG; False when there is nothing to show.

    published: s, of each message of `actions`. cycles: 'stamp' in s and the seconds of each stage.
    """
    if len(published) < 2 or not cycles:
        return False
    from matplotlib.figure import Figure  # slow to import, and only needed at the end
    figure = Figure(figsize=(10, 6), layout='constrained')
    intervals, stages = figure.subplots(2, 1, sharex=True)
    start = published[0]
    intervals.plot(np.array(published[1:]) - start, np.diff(published) * 1e3, '.', markersize=2)
    intervals.axhline(period * 1e3, color='grey', linewidth=0.5)
    intervals.set(ylabel='between actions, ms', ylim=(0, None), title='actions are published at a fixed rate ...')
    times = np.array([cycle['stamp'] for cycle in cycles]) - start
    names = [name for name in cycles[0] if name != 'stamp']
    stages.stackplot(times, *(np.array([cycle[name] for cycle in cycles]) * 1e3 for name in names), labels=names)
    stages.set(xlabel='s', ylabel='of each cycle, ms', title='... while the engine sees, moves and speaks')
    stages.legend(loc='upper right', ncols=len(names))
    figure.savefig(path, dpi=110)
    return True
