"""How a decode step grows with the number of requests that share it."""
from __future__ import annotations

import copy
import statistics

from oxygen_ros.bench import counting
from oxygen_ros.bench.ceilings import Ceilings
from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.modes import SEED
from oxygen_ros.bench.probe import Probe, Recorder
from oxygen_ros.bench.workload import SizedPolicy, Workload
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask
from oxygen_ros.model import kernels
from oxygen_ros.policy.policy import Policy

BATCHES = (1, 2, 4, 8, 16)
_WARM = 3
Size = tuple[str, int]  # weights, requests


class DecodeSteps:
    """One engine per batch size, all requests on one prefix; ``round`` steps each once, one after the other.

    Also with int8 weights, where our kernels are used.
    """

    def __init__(self, policy: Policy, workload: Workload, rounds: int, clock: Clock) -> None:
        ours = kernels.usable(policy.net.language.head.weight)
        sizes = [(weights, batch) for weights in ('exact', 'int8')[:1 + ours] for batch in BATCHES]
        small = copy.copy(policy.net)  # shares the exact weights
        small.language = copy.copy(small.language)
        self._tracks: dict[Size, tuple[Engine, Recorder]] = {}
        self.seconds: dict[Size, list[float]] = {size: [] for size in sizes}
        self._works: dict[Size, counting.Works] = {}
        for weights, batch in sizes:
            recorder = Recorder(clock)
            sized = SizedPolicy(policy, workload.prompt)
            sized.net = Probe(small if weights == 'int8' else copy.copy(policy.net), recorder)
            engine = Engine(sized, EngineOptions(ride=False, draft=False, max_live=batch, decode_weights=weights,
                                                 max_tokens=rounds + _WARM + 1), lambda event: None)
            engine.act(workload.observation(policy, 0))
            for i in range(batch):
                engine.ask(Ask(f'{i}', SEED))
            for _ in range(_WARM):
                engine.step()
            recorder.take()
            self._tracks[weights, batch] = engine, recorder

    def round(self) -> None:
        """One step of each size."""
        for size, (engine, recorder) in self._tracks.items():
            engine.step()
            call, = (c for c in recorder.take() if c.stage == 'decode')
            self.seconds[size].append(call.seconds)
            self._works[size] = call.works

    def medians(self) -> dict[int, float]:
        """Seconds per step by batch size, with exact weights."""
        return {batch: statistics.median(seconds) for (weights, batch), seconds in self.seconds.items()
                if weights == 'exact'}

    def table(self, ceilings: Ceilings) -> list[dict[str, float | str]]:
        """For the report: ms, floor and share by weights and batch size."""
        rows: list[dict[str, float | str]] = []
        for (weights, batch), values in self.seconds.items():
            seconds, floor = statistics.median(values), counting.floor(self._works[weights, batch], ceilings)
            rows.append({'weights': weights, 'batch': batch, 'ms_p50': 1e3 * seconds, 'floor_ms': 1e3 * floor,
                         'share': floor / seconds})
        return rows
