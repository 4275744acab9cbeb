"""A device against the CPU: the same job in float32 by another implementation, and bfloat16 within its rounding.

    python -m oxygen_ros.bench.parity --device cuda
"""
from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.load import load_random
from oxygen_ros.bench.peer import PeerNet
from oxygen_ros.bench.runners import EngineRunner, PeerRunner, Runner
from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Speech
from oxygen_ros.policy.random_weights import random_tensors

EXACT, ROUNDED = 2e-5, 0.05     # bfloat16: measured 0.03-0.04 between the public implementations
_FRAMES = 4


def parity(preset: Literal['tiny', 'small'] = 'tiny', device: str = 'cuda') -> int:
    """Compare actions and greedy text of the engine on `device` with the plain network on the CPU in float32.

    With fixed-shape passes (CUDA graphs on CUDA) and without. Exit code 0 if everything is within its bound, 1 if not.
    """
    torch.backends.cuda.matmul.allow_tf32 = False
    workload = Workload(tokens=8, per_frame=2)
    policy = load_random(preset, 'cpu', 'float32', 10)
    net = PeerNet(policy.config, random_tensors(policy.config), policy.net.device, policy.net.dtype, 10)
    heard: list[FromEngine] = []
    want, words = _play(PeerRunner(policy, net, workload, Clock(), heard.append), heard, workload)
    table = Table('engine', 'actions differ by', 'bound', 'equal tokens', '', title=f'{preset} on {device}')
    good = True
    for dtype, bound in (('float32', EXACT), ('bfloat16', ROUNDED)):
        other = load_random(preset, device, dtype, 10)
        for graphs in ('never', 'always'):
            heard = []
            options = {'mode': 'continuous', 'ride': True, 'draft': False, 'graphs': graphs}
            runner = EngineRunner(other, workload, Clock(device=device), heard.append, options)
            got, said = _play(runner, heard, workload)
            error = max(float(np.abs(a - b).max()) for a, b in zip(want, got, strict=True))
            equal = sum(a == b for a, b in zip(words, said, strict=True)) / len(words)
            holds = error <= bound and (dtype == 'bfloat16' or equal == 1)   # rounding may turn a close choice
            table.add_row(f'{dtype}, fixed shapes {graphs}', f'{error:.1e}', f'{bound:.0e}', f'{equal:.0%}',
                          'holds' if holds else 'NO')
            good &= holds
    Console(width=100).print(table)
    return 0 if good else 1


def _play(runner: Runner, heard: Sequence[FromEngine], workload: Workload) -> tuple[list[np.ndarray], list[int]]:
    """Some frames with one request each -> chunks, and all tokens by request."""
    policy = runner.policy
    for number in range(1, _FRAMES + 1):
        runner.cycle(workload.observation(policy, number), [Ask(str(number), 'Subtask: ', max_tokens=workload.tokens)])
    runner.finish()
    chunks = [event.actions for event in heard if isinstance(event, Chunk)]
    tokens = [(int(event.request_id), token) for event in heard if isinstance(event, Speech)
              for token in event.token_ids]
    return chunks, [token for _, token in sorted(tokens, key=lambda pair: pair[0])]


if __name__ == '__main__':
    sys.exit(tyro.cli(parity))
