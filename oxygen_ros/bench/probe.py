"""A network that notes what it was asked to run, how long that took and what it should have taken."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from oxygen_ros.bench import counting
from oxygen_ros.bench.clock import Clock
from oxygen_ros.kv import Pool, Prefix
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.model.segments import Segment

T = TypeVar('T')
Stage = Literal['vision', 'embed', 'prefill', 'decode', 'denoise']


@dataclass(frozen=True)
class Call:
    """One call into the network. rows: language-model rows. requests: segments of requests that took part."""

    stage: Stage
    seconds: float
    works: counting.Works = ()
    rows: int = 0
    requests: int = 0


class Recorder:
    """Notes calls; ``take`` gives those since the last time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._calls: list[tuple[Stage, Any, Any, counting.Works, int, int]] = []

    def run(self, stage: Stage, work: Callable[[], T], works: counting.Works = (), rows: int = 0,
            requests: int = 0) -> T:
        """Do the work and note it."""
        begin = self._clock.mark()
        result = work()
        self._calls.append((stage, begin, self._clock.mark(), works, rows, requests))
        return result

    def take(self) -> list[Call]:
        """The calls since the last ``take``; waits for the device."""
        self._clock.now()
        calls, self._calls = self._calls, []
        return [Call(stage, self._clock.between(begin, end), *rest) for stage, begin, end, *rest in calls]


class Probe:
    """Stands in for a Pi05: passes everything on and lets the recorder note it."""

    def __init__(self, net: Pi05, recorder: Recorder) -> None:
        self._net, self._run = net, recorder.run
        self._size = torch.empty((), dtype=net.dtype).element_size()

    def __getattr__(self, name: str) -> object:
        return getattr(self._net, name)

    def encode(self, images: Tensor) -> Tensor:
        """As Pi05.encode."""
        return self._run('vision', lambda: self._net.encode(images),
                         counting.vision(self._net.config, len(images), self._size))

    def embed(self, ids: Sequence[int]) -> Tensor:
        """As Pi05.embed."""
        return self._run('embed', lambda: self._net.embed(ids))

    def forward(self, rows: Tensor, segments: Sequence[Segment], pool: Pool) -> Tensor:
        """As Pi05.forward. A pass with a row at position 0 writes a prefix."""
        stage: Stage = 'prefill' if any(s.position == 0 for s in segments) else 'decode'
        weight = 1 if self._net.language.int8 and all(s.steps for s in segments) else None
        return self._run(stage, lambda: self._net.forward(rows, segments, pool),
                         counting.language(self._net.config, segments, self._size, weight), len(rows),
                         sum(s.outputs > 0 for s in segments))

    def denoise(self, noise: Tensor, prefix: Prefix, pool: Pool, committed: Tensor | None = None) -> Tensor:
        """As Pi05.denoise."""
        return self._run('denoise', lambda: self._net.denoise(noise, prefix, pool, committed),
                         counting.expert(self._net.config, prefix.rows, self._net.expert.steps, self._size))
