"""``oxygen bench``: run modes side by side, frame by frame in turn, and say where they stand."""
from __future__ import annotations

import json as json_format
import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from rich.progress import track as progress

from oxygen_ros.bench import plots as plotting
from oxygen_ros.bench import report
from oxygen_ros.bench.ceilings import CeilingMeter
from oxygen_ros.bench.clock import Clock, Kind
from oxygen_ros.bench.decode import DecodeSteps
from oxygen_ros.bench.faults import faults
from oxygen_ros.bench.load import load_random
from oxygen_ros.bench.modes import MODES, REFERENCES, Track
from oxygen_ros.bench.paced import paced
from oxygen_ros.bench.peer import PeerNet
from oxygen_ros.bench.results import summarise, verdicts
from oxygen_ros.bench.ros import ros
from oxygen_ros.bench.soak import soak
from oxygen_ros.bench.workload import Arrivals, Workload
from oxygen_ros.outputs import unwritable
from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.policy import Policy
from oxygen_ros.policy.random_weights import random_tensors

Preset = Literal['tiny', 'small', 'pi05']
_COUNTED_FRAMES = 2     # frames watched for copies; watching slows them, so they are not timed


def engine(
    preset: Preset = 'small',
    modes: str = 'peer,isolated,shared,continuous,ride,draft',
    json: Path | None = None,
    plots: Path | None = None,
    threads: int = 1,
    repeat: int = 15,
    device: str = 'cpu',
    dtype: Literal['auto', 'float32', 'bfloat16'] = 'auto',
    tokens: int = 30,
    per_frame: int = 5,
    arrivals: Arrivals = 'steady',
    rate: float = 1.0,
    mixed: bool = False,
    prompt: int = 60,
    cameras: int = 2,
    denoise_steps: int = 10,
    deadline_ms: float = 0.0,
    sweep: tuple[int, ...] = (),
    clock: Kind = 'wall',
    seed: int = 0,
) -> int:
    """Compare ways to run one model on one workload, as fast as they go.

    The modes take turns frame by frame in one process, so that a busy machine is unfair to none; ratios are medians of
    frames that ran side by side. Random weights: times do not depend on them. Exit code: 0, or 2 when it cannot run.

    Args:
        preset: size of the model.
        modes: which, separated by commas: peer, padded, isolated, shared, continuous, ride, draft, act,
            draft_miss (see docs/benchmarks.md).
        json: where to write all figures.
        plots: folder to write plots (PNG) to.
        threads: CPU threads of torch.
        repeat: measured frames of each mode.
        device: torch device.
        dtype: auto is float32 on the CPU and bfloat16 on CUDA.
        tokens: tokens per request.
        per_frame: tokens per frame of each live request where text goes on across frames.
        arrivals: how requests come: evenly, as a Poisson process, or in bursts.
        rate: requests per frame, on average.
        mixed: draw lengths evenly from 5 to `tokens`.
        prompt: prompt tokens.
        cameras: cameras that are there; the model knows three.
        denoise_steps: flow-matching steps per chunk.
        deadline_ms: count frames that take longer than this as deadline misses; 0 = there is no deadline.
        sweep: also measure frames for these numbers of tokens per request (for the plot), e.g. 5 10 20 30.
        clock: wall; or cpu, which counts only time in which this process ran: steadier on a busy machine, one thread.
        seed: of the workload.
    """
    names = [name.strip() for name in modes.split(',') if name.strip()]
    try:
        if plots:
            plots.mkdir(parents=True, exist_ok=True)
        if why := unwritable(json=json, plots=plots and plots / 'stages.png'):
            raise ValueError(why)
        if unknown := [name for name in names if name not in MODES] or not names:
            raise ValueError(f'--modes: {", ".join(unknown) if names else "none"}: known are {", ".join(MODES)}')
        if not 1 <= repeat <= 1000 or threads < 1 or min(sweep, default=1) < 1:
            raise ValueError('--repeat must be 1 to 1000, --threads and --sweep at least 1')
        workload = Workload(tokens, per_frame, arrivals, rate, mixed, prompt, cameras, seed)
        if clock == 'cpu' and threads > 1:
            raise ValueError('--clock cpu adds up over threads: use it with --threads 1')
        sweeps = [replace(workload, tokens=n) for n in sweep]
        reader = Clock(clock, device)
        torch.set_num_threads(threads)
        policy = load_random(preset, device, dtype, denoise_steps)
        peer = cache(lambda: PeerNet(policy.config, random_tensors(policy.config), policy.net.device, policy.net.dtype,
                                     denoise_steps))
        bench = Bench(policy, names, workload, reader, peer)
    except (ValueError, CheckpointError, OSError, RuntimeError) as error:  # RuntimeError: of torch, for a device
        print(f'oxygen bench: {" ".join(str(error).split())}', file=sys.stderr)
        return 2
    result = {'preset': preset, 'denoise_steps': denoise_steps, 'clock': clock, **facts(policy, threads),
              **bench.run(repeat, deadline_ms)}
    shorter = (Bench(policy, names, other, reader, peer) for other in sweeps)
    result['sweep'] = [row for other in shorter for row in other.brief(max(3, repeat // 3))]
    report.show(result, Console())
    if json:
        json.write_text(json_format.dumps(result, indent=1) + '\n')
        print(f'figures: {json}')
    if plots:
        print('plots:', *plotting.draw(result, plots))
    return 0


def facts(policy: Policy, threads: int) -> dict[str, Any]:
    """What the figures depend on."""
    cuda = policy.net.device.type == 'cuda'
    return {'model': policy.describe(), 'dtype': str(policy.net.dtype).removeprefix('torch.'), 'threads': threads,
            'machine': torch.cuda.get_device_name() if cuda else _processor(), 'cores': os.cpu_count(),
            'load_average': os.getloadavg()[0], 'torch': torch.__version__, 'python': platform.python_version()}


def _processor() -> str:
    for line in Path('/proc/cpuinfo').read_text().splitlines():
        if line.startswith('model name'):
            return line.split(':')[1].strip()
    return platform.machine()


class Bench:
    """Some modes on one workload; the references that their ratios need run beside them."""

    def __init__(self, policy: Policy, names: list[str], workload: Workload, clock: Clock,
                 peer: Callable[[], PeerNet]) -> None:
        self.policy, self.names, self.workload, self.clock = policy, list(dict.fromkeys(names)), workload, clock
        references = [name for name, users in REFERENCES.items() if any(user in names for user in users)]
        self.tracks = {name: Track(MODES[name], workload, policy, clock, peer)
                       for name in dict.fromkeys([*self.names, *references])}
        self.meter = CeilingMeter(policy.net.device, policy.net.dtype, clock)

    def run(self, repeat: int, deadline_ms: float = 0.0) -> dict[str, Any]:
        """All figures of `repeat` measured frames per mode."""
        steps = DecodeSteps(self.policy, self.workload, repeat, self.clock)
        self._frames(repeat, steps)
        ceilings = self.meter.ceilings
        runs = {name: summarise(track, ceilings, track.copied(_COUNTED_FRAMES), deadline_ms)
                for name, track in self.tracks.items()}
        return {
            'workload': asdict(self.workload),
            'ceilings': {'gflop_per_s': ceilings.flops / 1e9, 'gbytes_per_s': ceilings.bytes / 1e9,
                         'best_gflop_per_s': self.meter.best.flops / 1e9,
                         'best_gbytes_per_s': self.meter.best.bytes / 1e9},
            'runs': [runs[name] for name in self.names],
            'references': [run for name, run in runs.items() if name not in self.names],
            'decode_by_batch': steps.table(ceilings),
            'verdicts': verdicts(self.tracks, runs, steps.medians()),
        }

    def brief(self, repeat: int) -> list[dict[str, Any]]:
        """Only how long frames take, for a row of a sweep."""
        self._frames(repeat)
        ceilings = self.meter.ceilings
        keys = ('mode', 'frame_ms_p50', 'chunks_per_s', 'actions_per_s', 'tokens_per_s')
        return [{'tokens': self.workload.tokens} | {key: run[key] for key in keys}
                for run in (summarise(self.tracks[name], ceilings, 0.0) for name in self.names)]

    def _frames(self, repeat: int, steps: DecodeSteps | None = None) -> None:
        tracks = list(self.tracks.values())
        for track in progress(tracks, 'warming up', transient=True):
            track.warm_up()
        for i in progress(range(repeat), f'{repeat} frames of each mode', transient=True):
            turn = i % len(tracks)  # nobody always runs behind the same neighbour
            for track in tracks[turn:] + tracks[:turn]:
                self.meter.sample()
                track.frame()
            if steps:
                steps.round()


VERBS = {'engine': engine, 'paced': paced, 'faults': faults, 'soak': soak, 'ros': ros}
