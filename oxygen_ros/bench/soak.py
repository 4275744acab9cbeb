"""``oxygen bench soak``: the node at work for minutes or days, under a random workload, and what it keeps of it."""
from __future__ import annotations

import json as json_format
import os
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from oxygen_ros.outputs import unwritable

if TYPE_CHECKING:
    from oxygen_ros.bench.trust.live import Live

_SAMPLE_S = 1.0
_SHORTEST_MIN = 0.1       # for some samples at all
_WARM = 1 / 3              # of the time: allocator pools and caches fill up
_SLOPE_MB_PER_H = 1.0      # or, in a run too short to tell that, as many MB in all
_DRIFT = 0.02              # of the rate, between the middle and the last third
_TASKS = ('stack the red cube on the blue one', 'stay', 'bring me the green cube, then the yellow one', 'tidy up')
_SEEDS = ('Subtask: ', 'Where is the red cube?\nAnswer: ', 'What is in front of you?\nAnswer: ')


@dataclass(frozen=True)
class Sample:
    """Once a second, from /proc and from the topics. t: s since the start; node, engine: RSS in MB."""

    t: float
    node: float
    engine: float
    descriptors: int
    threads: int
    shared: int         # files in /dev/shm of the two processes
    kv: int
    rate: float         # of `actions`, Hz, since the sample before
    tokens: float       # per second, since the sample before


def soak(minutes: float = 10.0, json: Path | None = None, plot: Path | None = None, seed: int = 0) -> int:
    """Let the node work with a random workload and tell whether anything grows, leaks or drifts.

    The node is the real one with a small random model, in a ROS domain of its own on this machine. Questions come at
    random with random lengths, some sampled, cancelled or expiring; the task changes; it narrates all the while.
    Exit code: 0 when everything holds, 1 when something does not, 2 when it cannot run.

    Args:
        minutes: how long.
        json: where to write all samples and the verdicts.
        plot: where to draw memory, KV and rate over time (PNG).
        seed: of the workload.
    """
    if why := f'--minutes: at least {_SHORTEST_MIN}' if minutes < _SHORTEST_MIN else unwritable(json=json, plot=plot):
        print(f'oxygen bench soak: {why}', file=sys.stderr)
        return 2
    from oxygen_ros.bench.trust.live import START_S, Broken, Live
    with tempfile.TemporaryDirectory() as folder:
        live = Live(Path(folder), module='oxygen_ros.node.main', **{'speech.narration.every_cycles': 10})
        try:
            live.moves(timeout=START_S)
            live.connected()
            base = _rest(live)
            samples = _work(live, 60.0 * minutes, random.Random(seed))
            end = _rest(live)
            found = [f'{kind}: {count} times, e.g. {example}' for kind, (count, example) in live.findings().items()]
            asked, reasons = sum(live.speech.reasons.values()), dict(live.speech.reasons)
            restarts = live.status.restarts if live.status else 0
        except Broken as error:
            print(f'oxygen bench soak: {error}', file=sys.stderr)
            return 1
        finally:
            code = live.close()
    checks = [*verdicts(samples), ('KV bytes at rest, before and after', base, end, base == end),
              ('messages stale, non-finite, out of limits, out of order', len(found), 0, not found),
              ('restarts of the engine', restarts, 0, not restarts),
              ('exit code after SIGINT', code, 0, code == 0)]
    _show(samples, checks, found, asked, reasons)
    if json:
        json.write_text(json_format.dumps({
            'minutes': minutes, 'seed': seed, 'requests': reasons, 'found': found,
            'verdicts': [{'name': n, 'value': v, 'bound': b, 'holds': h} for n, v, b, h in checks],
            'samples': [asdict(sample) for sample in samples]}, indent=1) + '\n')
        print(f'figures: {json}')
    if plot:
        draw(samples, plot)
        print(f'plot: {plot}')
    return 0 if all(holds for *_, holds in checks) else 1


def _rest(live: Live) -> int:
    """KV bytes of one observation and nothing else: after the first task, between two narrations."""
    live.robot.task(_TASKS[0])
    live.moves(25)
    return live.at_rest().kv_bytes


def _work(live: Live, seconds: float, rng: random.Random) -> list[Sample]:
    samples: list[Sample] = []
    began = last = time.monotonic()
    messages, tokens = live.motion.messages, live.status.tokens if live.status else 0
    recent: list[str] = []
    with Progress(transient=True) as progress:
        bar = progress.add_task('soak', total=seconds)
        while (now := time.monotonic()) - began < seconds:
            live.check()
            _disturb(live, rng, recent)
            time.sleep(rng.expovariate(4.0) if now - last < _SAMPLE_S - 0.2 else 0.02)
            now = time.monotonic()
            if now - last >= _SAMPLE_S:
                held, status = live.footprint(), live.status
                assert status is not None
                samples.append(Sample(
                    now - began, held.node_mb, held.engine_mb, held.descriptors, held.threads, _shared(live),
                    status.kv_bytes, (live.motion.messages - messages) / (now - last),
                    (status.tokens - tokens) / (now - last)))
                messages, tokens, last = live.motion.messages, status.tokens, now
                progress.update(bar, completed=now - began)
    return samples


def _disturb(live: Live, rng: random.Random, recent: list[str]) -> None:
    """One thing that people do to a robot that works."""
    what = rng.random()
    if what < 0.02:
        live.robot.task(rng.choice(_TASKS))
    elif what < 0.12 and recent:
        live.cancel(rng.choice(recent))
    elif what < 0.14:
        for _ in range(rng.randint(5, 60)):     # more at once than may wait
            live.ask(rng.choice(_SEEDS), max_tokens=rng.randint(1, 8))
    elif what < 0.6:
        sampled = rng.random() < 0.3
        recent.append(live.ask(
            f'{rng.choice(_SEEDS)}{rng.random()}', channel=rng.choice(('question', 'memory', 'note')),
            max_tokens=rng.randint(1, 48), temperature=rng.random() if sampled else 0.0,
            random_seed=rng.randrange(1 << 32), stop=['.'] if rng.random() < 0.2 else [],
            deadline=rng.choice((0.0, 0.0, 0.3, 2.0))))
        del recent[:-20]


def _shared(live: Live) -> int:
    """Files of shared memory that the node and the engine have mapped."""
    pids = [live.node.pid, *([engine.pid] if (engine := live.engine()) else [])]
    names = {line.split(maxsplit=5)[-1] for pid in pids for line in Path(f'/proc/{pid}/maps').read_text().splitlines()
             if '/dev/shm/' in line or 'memfd:' in line}
    return len(names)


def verdicts(samples: list[Sample]) -> list[tuple[str, float, float, bool]]:
    """(figure, value, bound, whether it holds) of everything that must not grow or drift."""
    warm = [s for s in samples if s.t >= samples[-1].t * _WARM]
    hours = (warm[-1].t - warm[0].t) / 3600.0
    bound = max(_SLOPE_MB_PER_H, _SLOPE_MB_PER_H / hours) if hours else float('inf')
    t = np.array([s.t for s in warm]) / 3600.0
    out = []
    for name in ('node', 'engine'):
        slope = theil_sen(t, np.array([getattr(s, name) for s in warm]))
        out.append((f'memory of the {name}, MB/h', slope, bound, slope < bound))
    for name, words in (('descriptors', 'open descriptors'), ('threads', 'threads'), ('shared', 'shared-memory files')):
        first, last = getattr(warm[0], name), max(getattr(s, name) for s in warm[-5:])
        out.append((f'{words}, at the end', last, first, last <= first))
    half = len(warm) // 2
    rates = [float(np.mean([s.rate for s in part])) for part in (warm[:half], warm[half:]) if part]
    drift = abs(rates[-1] / rates[0] - 1.0) if rates and rates[0] else float('inf')
    out.append(('drift of the rate of actions', drift, _DRIFT, drift < _DRIFT))
    return out


def theil_sen(t: np.ndarray, values: np.ndarray) -> float:
    """Median of the slopes between all pairs of points: steady growth shows, one step or spike does not."""
    pick = np.linspace(0, len(t) - 1, min(len(t), 600)).astype(int)
    t, values = t[pick], values[pick]
    i, j = np.triu_indices(len(t), 1)
    return float(np.median((values[j] - values[i]) / (t[j] - t[i]))) if len(i) else 0.0


def _show(samples: list[Sample], checks: list[tuple], found: list[str], asked: int, reasons: dict[str, int]) -> None:
    console = Console()
    ended = ', '.join(f'{count} {reason}' for reason, count in reasons.items())
    console.print(f'{samples[-1].t:.0f} s on {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}: {asked} requests '
                  f'({ended}), {np.mean([s.tokens for s in samples]):.0f} tokens/s, actions at '
                  f'{np.mean([s.rate for s in samples]):.2f} Hz', highlight=False, soft_wrap=True)
    table = Table(title='what must hold', title_justify='left')
    for i, column in enumerate(('figure', 'value', 'bound', '')):
        table.add_column(column, justify='right' if 0 < i < 3 else 'left')
    for name, value, bound, holds in checks:
        table.add_row(name, f'{value:.4g}' if isinstance(value, float) else str(value),
                      f'{bound:.4g}' if isinstance(bound, float) else str(bound), 'holds' if holds else '[bold red]NO')
    console.print(table)
    for line in found:
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def draw(samples: list[Sample], path: Path) -> None:
    """Memory, KV and rate over time, as PNG."""
    from matplotlib.figure import Figure  # as in plots.py

    figure = Figure(figsize=(7, 7), layout='constrained')
    axes = figure.subplots(4, 1, sharex=True)
    t = [s.t / 60.0 for s in samples]
    for axis, label, lines in (
            (axes[0], 'RSS, MB', (('node', [s.node for s in samples]), ('engine', [s.engine for s in samples]))),
            (axes[1], 'KV in use, kB', (('', [s.kv / 1e3 for s in samples]),)),
            (axes[2], 'actions, Hz', (('', [s.rate for s in samples]),)),
            (axes[3], 'tokens/s', (('', [s.tokens for s in samples]),))):
        for name, values in lines:
            axis.plot(t, values, linewidth=0.8, label=name)
        axis.set(ylabel=label, ylim=(0, None))
    axes[0].legend(fontsize=8)
    axes[-1].set_xlabel('minutes')
    figure.savefig(path, dpi=120)
