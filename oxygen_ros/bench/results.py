"""From the frames of a track to the figures of a run."""
from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from oxygen_ros.bench import counting
from oxygen_ros.bench.ceilings import Ceilings
from oxygen_ros.bench.modes import Track
from oxygen_ros.bench.workload import SHORTEST

Run = dict[str, Any]
STAGES = ('vision', 'prefill', 'denoise', 'decode')


def p(values: Iterable[float], percent: float = 50) -> float:
    """Percentile; 0 when there is nothing."""
    values = list(values)
    return float(np.percentile(values, percent)) if values else 0.0


def summarise(track: Track, ceilings: Ceilings, copied: float, deadline_ms: float = 0.0) -> Run:
    """The figures of one mode. Times in ms are of whole frames, chunks, single prefills and single decode steps."""
    frames, horizon = track.frames, track.policy.config.horizon
    seconds, calls = sum(f.seconds for f in frames), [call for f in frames for call in f.calls]
    tokens, steps = sum(f.tokens for f in frames), [c for c in calls if c.stage == 'decode']
    ended = [s for s in track.stories.values() if s.counts and s.ended is not None]
    frame_ms = [1e3 * f.seconds for f in frames]
    floors = [counting.floor(works_of(f.calls), ceilings) for f in frames]
    drafted = sum(f.drafted for f in frames)
    finished = tokens / mean_length(track) if tokens else 0.0
    return {
        'mode': track.mode.name,
        'frame_ms_p50': p(frame_ms),
        'frame_ms_p99': p(frame_ms, 99),
        'chunk_ms_p50': 1e3 * p(f.chunk for f in frames),
        'prefill_ms_p50': 1e3 * p(c.seconds for c in calls if c.stage == 'prefill'),
        'decode_step_ms_p50': 1e3 * p(c.seconds for c in steps),
        'tokens_per_s': tokens / seconds,
        'time_to_first_token_ms_p50': 1e3 * p(s.first - s.asked for s in ended if s.first is not None),
        'request_ms_p50': 1e3 * p(s.ended - s.asked for s in ended),
        'decode_steps_per_sentence': len(steps) / finished if finished else 0.0,
        'kv_bytes_copied_per_frame': copied,
        'deadline_misses': sum(ms > deadline_ms for ms in frame_ms) if deadline_ms else 0,
        'rows_per_frame': sum(c.rows for c in calls) / len(frames),
        'share_of_floor': p(floors) / p(f.seconds for f in frames),
        # what explains the figures above
        'frames': len(frames),
        'frame_ms_min': min(frame_ms),
        'frame_floor_ms': 1e3 * p(floors),
        'frame_ms': frame_ms,
        'chunks_per_s': len(frames) / seconds,
        'actions_per_s': horizon * len(frames) / seconds,
        'horizon': horizon,
        'tokens_per_frame': tokens / len(frames),
        'requests_finished': len(ended),
        'request_ms': [1e3 * (s.ended - s.asked) for s in ended],
        'requests_per_decode_step': sum(c.requests for c in steps) / len(steps) if steps else 0.0,
        'prefills_per_frame': sum(c.stage == 'prefill' for c in calls) / len(frames),
        'draft_acceptance': sum(f.accepted for f in frames) / drafted if drafted else 0.0,
        'gflop_per_frame': counting.flops(works_of(calls)) / len(frames) / 1e9,
        'gbytes_per_frame': counting.moved(works_of(calls)) / len(frames) / 1e9,
        'bookkeeping_share': p((f.seconds - sum(c.seconds for c in f.calls)) / f.seconds for f in frames),
        'stages': {stage: _stage(stage, track, ceilings) for stage in STAGES},
    }


def works_of(calls: Iterable[Any]) -> list[counting.Work]:
    """All operations of some calls."""
    return [work for call in calls for work in call.works]


def mean_length(track: Track) -> float:
    """Tokens of one sentence of this workload, on average."""
    w = track.workload
    return (SHORTEST + w.tokens) / 2 if w.mixed else w.tokens


def _stage(stage: str, track: Track, ceilings: Ceilings) -> dict[str, float]:
    """Of all calls of one stage in a frame: ms, counted floor in ms, their ratio (medians over frames)."""
    spent, floor = [], []
    for frame in track.frames:
        calls = [c for c in frame.calls if c.stage == stage]
        spent.append(sum(c.seconds for c in calls))
        floor.append(counting.floor(works_of(calls), ceilings))
    ms, floor_ms = 1e3 * p(spent), 1e3 * p(floor)
    return {'ms_per_frame': ms, 'floor_ms_per_frame': floor_ms, 'share': floor_ms / ms if ms else 0.0}


def ratio(a: Sequence[float], b: Sequence[float]) -> dict[str, float]:
    """a / b of frames that ran side by side: the median of the pairs, and the middle half of them."""
    pairs = [x / y for x, y in zip(a, b, strict=True)]
    return {'ratio': p(pairs), 'low': p(pairs, 25), 'high': p(pairs, 75)}


# What the project promises (docs/benchmarks.md) of its standard workload, the small preset on one CPU thread.
# name, of, to, figure, bound: `of` may cost at most this part of `to`
_BOUNDS = (
    ('ride frame / peer frame', 'ride', 'peer', 'seconds', 0.30),
    ('ride frame / isolated frame', 'ride', 'isolated', 'seconds', 0.55),
    ('ride frame / shared frame', 'ride', 'shared', 'seconds', 0.85),
    ('ride chunk / peer chunk', 'ride', 'peer', 'chunk', 0.50),
    ('repeating draft frame / action-only frame', 'draft', 'act', 'seconds', 1.06),
    ('never-matching draft frame / ride frame', 'draft_miss', 'ride', 'seconds', 1.05),
)


def verdicts(tracks: dict[str, Track], runs: dict[str, Run], batches: dict[int, float]) -> list[dict[str, Any]]:
    """What must hold, as far as these modes tell: name, value, bound, and whether it holds."""
    out: list[dict[str, Any]] = []

    def judge(name: str, value: float, bound: float, at_least: bool = False, **more: float) -> None:
        out.append({'name': name, 'value': value, 'bound': bound, 'at_least': at_least,
                    'holds': value >= bound if at_least else value <= bound, **more})

    for name, of, to, figure, bound in _BOUNDS:
        if of in tracks and to in tracks:
            r = ratio(*([getattr(f, figure) for f in tracks[mode].frames] for mode in (of, to)))
            judge(name, r['ratio'], bound, low=r['low'], high=r['high'])
    if 1 in batches and 8 in batches:
        judge('decode step, batch 8 / batch 1', batches[8] / batches[1], 2.0)
    if 'draft' in runs:
        judge('decode steps per repeated sentence', runs['draft']['decode_steps_per_sentence'], 0.0)
    if 'ride' in runs:
        for stage in ('prefill', 'decode'):
            judge(f'{stage}: share of its floor (ride)', runs['ride']['stages'][stage]['share'], 0.75, at_least=True)
    for mode in ('ride', 'draft'):
        if mode in runs:
            judge(f'engine bookkeeping ({mode})', runs[mode]['bookkeeping_share'], 0.01)
            judge(f'KV bytes copied per frame ({mode})', runs[mode]['kv_bytes_copied_per_frame'], 0.0)
    return out
