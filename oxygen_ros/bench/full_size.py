"""Loads a checkpoint in a fresh process, makes one chunk and a few tokens, and tells what that took.

    OMP_NUM_THREADS=2 python -m oxygen_ros.bench.full_size /tmp/pi05 --dtype float32

Peak memory is that of the whole process, so load nothing else in it. `docs/full_size.md` has the figures.
"""
from __future__ import annotations

import resource
import time
from collections import defaultdict

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from oxygen_ros.bench import counting
from oxygen_ros.bench.ceilings import CeilingMeter
from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.probe import Call, Probe, Recorder
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Speech
from oxygen_ros.policy.checkpoint import Dtype, read, torch_dtype
from oxygen_ros.policy.observation import Observation

_TOKENS = 5


def full_size(path: tyro.conf.Positional[str], dtype: Dtype = 'auto', device: str = 'cpu', cameras: int = 3,
              denoise_steps: int = 10, load_only: bool = False) -> None:
    """Measure one load, one chunk and five tokens.

    Args:
        path: folder of a checkpoint, or random:pi05
        dtype: to load it in
        device: to load it on
        cameras: how many of the policy's cameras are there
        denoise_steps: flow-matching steps of the chunk
        load_only: stop after loading
    """
    before = _peak()
    checkpoint = read(path)
    began = time.monotonic()
    policy = checkpoint.load(device, dtype, denoise_steps)
    took = time.monotonic() - began
    weights = checkpoint.weight_bytes(torch_dtype(dtype, torch.device(device)))
    console = Console(width=120)
    console.print(policy.describe(), highlight=False)
    console.print(f'load {took:.1f} s; weights {weights / 1e9:.2f} GB; peak resident {_peak() / 1e9:.2f} GB '
                  f'({before / 1e9:.2f} GB before loading): {(_peak() - before) / weights:.3f} x the weights')
    if load_only:
        return
    clock = Clock(device=device)
    meter, recorder = CeilingMeter(policy.net.device, policy.net.dtype, clock), Recorder(clock)
    policy.net = Probe(policy.net, recorder)
    events: list[FromEngine] = []
    engine = Engine(policy, EngineOptions(max_live=1, max_tokens=_TOKENS, noise_seed=0), events.append)
    picture = np.random.default_rng(0).integers(0, 256, (480, 640, 3), np.uint8)
    state = policy.recipe.state.unnormalise(np.zeros(policy.state_dim)).astype(np.float32)
    meter.sample()
    engine.act(Observation(dict.fromkeys(policy.cameras[:cameras], picture), state, 'put the cup on the plate'))
    engine.ask(Ask('full size', 'Subtask: '))
    engine.speak()
    meter.sample()
    engine.reset()
    chunk, = (event.actions for event in events if isinstance(event, Chunk))
    speech = [event for event in events if isinstance(event, Speech)]
    console.print(f'chunk {chunk.shape[0]} x {chunk.shape[1]}, finite: {np.isfinite(chunk).all()}; '
                  f'text {speech[-1].text!r}, {sum(len(event.token_ids) for event in speech)} tokens; '
                  f'peak resident {_peak() / 1e9:.2f} GB')
    console.print(_table(recorder.take(), meter))


def _table(calls: list[Call], meter: CeilingMeter) -> Table:
    best = meter.best
    table = Table('stage', 'calls', 's', 'counted GFLOP', 'GFLOP/s', 'floor s', 'x floor',
                  title=f'ceilings: {best.flops / 1e9:.0f} GFLOP/s, {best.bytes / 1e9:.1f} GB/s')
    stages: dict[str, list[Call]] = defaultdict(list)
    for call in calls:
        stages[call.stage].append(call)
    for stage, same in stages.items():
        works = [work for call in same for work in call.works]
        if not works:
            continue
        seconds, flops, floor = sum(call.seconds for call in same), counting.flops(works), counting.floor(works, best)
        table.add_row(stage, str(len(same)), f'{seconds:.2f}', f'{flops / 1e9:.0f}', f'{flops / seconds / 1e9:.0f}',
                      f'{floor:.2f}', f'{seconds / floor:.2f}')
    return table


def _peak() -> int:
    """Highest resident size of this process so far, bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == '__main__':
    tyro.cli(full_size)
