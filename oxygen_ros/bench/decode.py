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
from oxygen_ros.model.policy import Policy

BATCHES = (1, 2, 4, 8, 16)
_WARM = 3


class DecodeSteps:
    """One engine per batch size, all requests on one prefix; ``round`` steps each once, one after the other."""

    def __init__(self, policy: Policy, workload: Workload, rounds: int, clock: Clock) -> None:
        self._tracks: dict[int, tuple[Engine, Recorder]] = {}
        self.seconds: dict[int, list[float]] = {batch: [] for batch in BATCHES}
        self._works: dict[int, counting.Works] = {}
        for batch in BATCHES:
            recorder = Recorder(clock)
            sized = SizedPolicy(policy, workload.prompt)
            sized.net = Probe(copy.copy(policy.net), recorder)
            engine = Engine(sized, EngineOptions(ride=False, draft=False, max_live=batch,
                                                 max_tokens=rounds + _WARM + 1), lambda event: None)
            engine.act(workload.observation(policy, 0))
            for i in range(batch):
                engine.ask(Ask(f'{i}', SEED))
            for _ in range(_WARM):
                engine.step()
            recorder.take()
            self._tracks[batch] = engine, recorder

    def round(self) -> None:
        """One step of each size."""
        for batch, (engine, recorder) in self._tracks.items():
            engine.step()
            call, = (c for c in recorder.take() if c.stage == 'decode')
            self.seconds[batch].append(call.seconds)
            self._works[batch] = call.works

    def medians(self) -> dict[int, float]:
        """Seconds per step by batch size."""
        return {batch: statistics.median(seconds) for batch, seconds in self.seconds.items()}

    def table(self, ceilings: Ceilings) -> list[dict[str, float]]:
        """For the report: ms, floor and share by batch size."""
        rows = []
        for batch, seconds in self.medians().items():
            floor = counting.floor(self._works[batch], ceilings)
            rows.append({'batch': batch, 'ms_p50': 1e3 * seconds, 'floor_ms': 1e3 * floor, 'share': floor / seconds})
        return rows
