"""The figures as pictures."""
from __future__ import annotations

from pathlib import Path
from typing import Any

from oxygen_ros.bench.results import STAGES


def draw(result: dict[str, Any], folder: Path) -> list[Path]:
    """Write the plots that these figures allow into a folder, as PNG; returns their paths."""
    from matplotlib.figure import Figure  # without pyplot there is no window and nothing to close

    title = f'{result["preset"]}, {result["dtype"]}, {result["threads"]} threads, {result["machine"]}'
    written = []
    for name, plot in (('frequency', _frequency), ('stages', _stages), ('latency', _latency)):
        figure = Figure(figsize=(7, 4.2), layout='constrained')
        axes = figure.subplots()
        if plot(result, axes):
            axes.set_title(title, fontsize=9)
            written.append(folder / f'{name}.png')
            figure.savefig(written[-1], dpi=130)
    return written


def _frequency(result: dict[str, Any], axes: Any) -> bool:
    """Chunks per second against tokens per request; needs a sweep."""
    rows = result['sweep']
    for mode in dict.fromkeys(row['mode'] for row in rows):
        points = sorted((row['tokens'], 1e3 / row['frame_ms_p50']) for row in rows if row['mode'] == mode)
        axes.plot(*zip(*points, strict=True), marker='o', label=mode)
    axes.set(xlabel='tokens per request', ylabel='observations (chunks) per second', ylim=(0, None))
    if rows:
        axes.legend(fontsize=8)
    return bool(rows)


def _stages(result: dict[str, Any], axes: Any) -> bool:
    """Where a frame goes, with its counted floor beside it."""
    runs = result['runs'] + result['references']
    left = [0.0] * len(runs)
    names = [run['mode'] for run in runs]
    for stage in STAGES:
        ms = [run['stages'][stage]['ms_per_frame'] for run in runs]
        axes.barh(names, ms, left=left, label=stage, height=0.6)
        left = [a + b for a, b in zip(left, ms, strict=True)]
    axes.plot([run['frame_floor_ms'] for run in runs], names, 'k|', markersize=18, label='counted floor')
    axes.invert_yaxis()
    axes.set_xlabel('ms per frame (median)')
    axes.legend(fontsize=8)
    return True


def _latency(result: dict[str, Any], axes: Any) -> bool:
    """Distribution of frame times."""
    for run in result['runs']:
        values = sorted(run['frame_ms'])
        axes.step(values, [(i + 1) / len(values) for i in range(len(values))], where='post', label=run['mode'])
    axes.set(xlabel='frame, ms', ylabel='part of the frames that is faster', ylim=(0, 1), xscale='log')
    axes.legend(fontsize=8)
    return True
