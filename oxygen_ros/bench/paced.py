"""``oxygen bench paced``: a fixed rate, stalls and bursts: is speech ever to blame for a late chunk?"""
from __future__ import annotations

import itertools
import json as json_format
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from oxygen_ros.bench.load import load_random
from oxygen_ros.bench.results import p
from oxygen_ros.bench.virtual import VirtualNet, VirtualTime
from oxygen_ros.bench.workload import SHORTEST, SizedPolicy, Workload
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Speech
from oxygen_ros.kv import Pool
from oxygen_ros.model.segments import Segment
from oxygen_ros.outputs import unwritable
from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.policy import Policy

CHANNELS = ('question', 'narration', 'memory')
_SHARES = (0.1, 0.8, 0.1)
_ACT_STALLS, _STEP_STALLS = 0.02, 0.003     # parts of the acts and of the decode steps that are held up
_ACT_STALL, _STEP_STALL = (0.1, 0.9), (0.02, 0.1)   # for how long, in periods
STARVED = 10                                # cycles without a token, once it has begun


class Time(Protocol):
    """The part of the module ``time`` that is used."""

    def monotonic_ns(self) -> int: ...
    def sleep(self, seconds: float, /) -> None: ...


def paced(cycles: int = 10_000, virtual: bool = False, preset: str = 'tiny', rate_hz: float = 0.0, load: float = 0.7,
          max_live: int = 8, guard_ms: float = 2.0, threads: int = 1, seed: int = 0, json: Path | None = None) -> int:
    """Run the engine at a fixed observation rate with real deadlines, stalls in acts and steps, and bursts of requests.

    Exit code: 0, or 2 when it cannot run.

    Args:
        cycles: observations.
        virtual: let time pass in the computer's mind only: a network that takes 50 ms per chunk and 5 ms per step at
            10 Hz, the same on every machine. Otherwise the model of `preset` runs in real time.
        preset: size of the model.
        rate_hz: observations per second; 0 = as long per cycle as four acts take.
        load: text asked for, as a part of what would fit.
        max_live: requests that hold KV at once.
        guard_ms: time that the engine keeps free before a deadline.
        threads: CPU threads of torch.
        seed: of stalls and requests.
        json: where to write the figures.
    """
    try:
        if why := unwritable(json=json):
            raise ValueError(why)
        if min(cycles, threads) < 1 or load <= 0 or rate_hz < 0:
            raise ValueError('--cycles and --threads must be at least 1, --load above 0, --rate-hz at least 0')
        torch.set_num_threads(threads)
        pace = Pace(load_random(preset, 'cpu', 'auto', 10), virtual, rate_hz, load, max_live, guard_ms / 1e3, seed)
    except (ValueError, CheckpointError) as error:
        print(f'oxygen bench: {error}', file=sys.stderr)
        return 2
    with pace.clock.rule() if virtual else nullcontext():
        figures = pace.run(cycles)
    title = f'{cycles} cycles of {1e3 * pace.period:.1f} ms' + ', virtual time' * virtual
    table = Table(title=title, show_header=False)
    for name, value in figures.items():
        table.add_row(name.replace('_', ' '), f'{value:.4g}' if isinstance(value, float) else str(value))
    Console().print(table)
    if json:
        json.write_text(json_format.dumps(figures, indent=1) + '\n')
    return 0


class _Stalls:
    """Around a network: now and then an act or a decode step takes longer, as if something else had the machine."""

    def __init__(self, net: Any, clock: Time, seed: int) -> None:
        self._net, self._clock, self._rng = net, clock, np.random.default_rng(seed)
        self.period = 0.0   # 0: no stalls

    def __getattr__(self, name: str) -> object:
        return getattr(self._net, name)

    def forward(self, rows: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """As Pi05.forward."""
        logits = self._net.forward(rows, segments, pool)
        if not any(s.position == 0 for s in segments):
            self._stall(_STEP_STALLS, _STEP_STALL)
        return logits

    def denoise(self, *args: Any) -> Tensor:
        """As Pi05.denoise."""
        self._stall(_ACT_STALLS, _ACT_STALL)
        return self._net.denoise(*args)

    def _stall(self, often: float, long: tuple[float, float]) -> None:
        if self.period and self._rng.random() < often:
            self._clock.sleep(self.period * self._rng.uniform(*long))


@dataclass
class _Talk:
    """One request. Cycles: when it was asked, its last token; the waits for the first token and between two."""

    channel: str
    asked: int
    last: int | None = None
    first_wait: int = 0
    gap: int = 0
    done: str = ''


@dataclass
class _Log:
    """What the cycles add up."""

    act: list[float] = field(default_factory=list)
    late_start: list[float] = field(default_factory=list)   # overrun of speech into the next cycle, where there is one
    missed: int = 0
    blamed: int = 0
    skipped: int = 0
    speaking: float = 0.0                                   # seconds, in all
    left: list[tuple[float, int]] = field(default_factory=list)     # time left, requests that could have used it


class Pace:
    """An engine and a clock; ``run`` drives it as the worker would."""

    def __init__(self, policy: Policy, virtual: bool, rate_hz: float, load: float, max_live: int, guard_s: float,
                 seed: int) -> None:
        self.clock: Any = VirtualTime() if virtual else time
        net = VirtualNet(policy.net, self.clock, 0.02, 0.03, 5e-3, 2e-4, seed=seed) if virtual else policy.net
        self._stalls = _Stalls(net, self.clock, seed)
        self._workload = Workload(tokens=30, mixed=True, arrivals='bursty', seed=seed)
        sized = SizedPolicy(policy, self._workload.prompt)
        sized.net = self._stalls
        options = EngineOptions(max_live=max_live, max_queued=4096, max_tokens=self._workload.tokens, guard_s=guard_s,
                                draft=False, noise_seed=1)
        self._engine = Engine(sized, options, self._hear)
        self._policy, self._load, self._max_live, self._guard = policy, load, max_live, guard_s
        self._rng = np.random.default_rng(seed)
        self._talks: dict[str, _Talk] = {}
        self._cycle, self._ready = 0, 0
        self.period = 1 / rate_hz if rate_hz else 0.0
        self._tokens_per_s = 0.0

    def run(self, cycles: int) -> dict[str, Any]:
        """The figures of this many observations."""
        observations = [self._workload.observation(self._policy, i) for i in range(8)]
        act = self._warm_up(observations)
        self.period = self.period or (0.1 if isinstance(self.clock, VirtualTime) else 4 * act)
        requests = self._requests(act)
        self._stalls.period = self.period
        log, period = _Log(), round(self.period * 1e9)
        due, overrun = self.clock.monotonic_ns() + period, 0
        began = due
        for self._cycle in range(cycles):
            self.clock.sleep(max(0, due - self.clock.monotonic_ns()) / 1e9)
            for i, tokens in enumerate(next(requests)):
                self._ask(f'{self._cycle}.{i}', tokens)
            start, deadline = self.clock.monotonic_ns(), due + period
            self._engine.act(observations[self._cycle % len(observations)], due, deadline)
            log.act.append((self._ready - start) / 1e9)
            log.missed += self._ready > deadline
            log.blamed += self._ready > deadline >= self._ready - overrun
            talking, steps = self.clock.monotonic_ns(), self._engine.count['decode_steps']
            self._engine.speak(deadline)
            end = self.clock.monotonic_ns()
            log.speaking += (end - talking) / 1e9
            spoke = self._engine.count['decode_steps'] > steps
            overrun = max(0, end - max(talking, deadline)) if spoke else 0
            if self._engine.can_speak:
                log.left.append((max(0, deadline - end) / 1e9, self._engine.live))
            if overrun:
                log.late_start.append(overrun / 1e9)
            due, missing = deadline, max(0, end - deadline) // period
            if missing:  # newest wins: observations that came meanwhile are never seen
                due += missing * period
                log.skipped += missing
                log.blamed += max(0, overrun) // period
        return self._figures(log, (self.clock.monotonic_ns() - began) / 1e9)

    def _warm_up(self, observations: list[Any]) -> float:
        """Measure acts while others speak, and speech; returns the median seconds of an act."""
        self._engine.warm_up()
        lengths = itertools.chain.from_iterable(replace(self._workload, rate=1.0, arrivals='steady').requests())
        for i in range(4 * self._max_live):
            self._engine.ask(Ask(f'warm {i}', 'Subtask: ', max_tokens=next(lengths)))
        acts = [self._seconds(lambda i=i: self._engine.act(observations[i % len(observations)])) for i in range(20)]
        before = self._engine.count['tokens']
        seconds = self._seconds(self._engine.speak)
        self._tokens_per_s = (self._engine.count['tokens'] - before) / seconds  # with all that requests cost
        self._talks.clear()
        self._engine.count.clear()
        return statistics.median(acts)

    def _seconds(self, work: Callable[[], object]) -> float:
        start = self.clock.monotonic_ns()
        work()
        return (self.clock.monotonic_ns() - start) / 1e9

    def _requests(self, act: float) -> Any:
        """Lengths of the requests of each cycle: `load` times what fits."""
        fits = max(self.period - act - self._guard, 0.0) * self._tokens_per_s
        mean = (SHORTEST + self._workload.tokens) / 2
        return replace(self._workload, rate=self._load * fits / mean).requests()

    def _ask(self, name: str, tokens: int) -> None:
        channel = str(self._rng.choice(CHANNELS, p=_SHARES))
        self._talks[name] = _Talk(channel, self._cycle)
        self._engine.ask(Ask(name, 'Subtask: ', channel, max_tokens=tokens))

    def _hear(self, event: FromEngine) -> None:
        if isinstance(event, Chunk):
            self._ready = event.ready_ns
        elif isinstance(event, Speech) and event.request_id in self._talks:
            talk = self._talks[event.request_id]
            talk.done = event.reason
            if event.token_ids:
                if talk.last is None:
                    talk.first_wait = self._cycle - talk.asked
                else:
                    talk.gap = max(talk.gap, self._cycle - talk.last)
                talk.last = self._cycle

    def _waits(self, which: str, percent: float) -> dict[str, int]:
        """By channel."""
        return {channel: int(p((getattr(t, which) for t in self._talks.values()
                                if t.channel == channel and t.last is not None), percent)) for channel in CHANNELS}

    def _figures(self, log: _Log, seconds: float) -> dict[str, Any]:
        tokens = self._engine.count['tokens']
        step = log.speaking / max(1, self._engine.count['decode_steps'])  # with all that its requests cost
        more = sum(int(left / step) * live for left, live in log.left if live)  # of whole steps until the deadline
        talks = [t for t in self._talks.values() if t.done]
        return {
            'period_ms': 1e3 * self.period,
            'act_ms_p50': 1e3 * p(log.act),
            'act_ms_p99': 1e3 * p(log.act, 99),
            'step_ms_mean': 1e3 * step,
            'chunks_late': log.missed,
            'observations_skipped': log.skipped,
            'misses_because_of_speech': log.blamed,
            'speech_into_the_next_cycle': len(log.late_start),
            'speech_into_the_next_cycle_ms_max': 1e3 * max(log.late_start, default=0.0),
            'tokens_per_s': tokens / seconds,
            'tokens_of_an_oracle': tokens / (tokens + more) if tokens else 0.0,
            'cycles_with_text_left_over': len(log.left),
            'left_ms_mean': 1e3 * sum(left for left, _ in log.left) / max(1, len(log.left)),
            'requests_done': sum(t.done in ('stop', 'length') for t in talks),
            'requests_refused': sum(t.done == 'error' for t in talks),
            'cycles_until_the_first_token_p50': self._waits('first_wait', 50),
            'cycles_until_the_first_token_max': self._waits('first_wait', 100),
            'cycles_between_tokens_max': self._waits('gap', 100),
            'requests_starved': sum(t.gap > STARVED for t in self._talks.values())
            + sum(self._cycle - t.last > STARVED for t in self._talks.values() if t.last is not None and not t.done),
        }
