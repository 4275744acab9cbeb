"""The real engine, made to go wrong by the words of the task: ``python -m oxygen_ros.bench.trust.faulty`` is the node
with it. Only what cannot be done to a process from outside is done here; the product has no such switch.

``fault nan``: the weights of the action head become NaN, until another task comes. ``fault memory``: the engine
allocates, as a checkpoint does that is too big, more than there is.
"""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from oxygen_ros.engine import wire
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.policy.observation import Observation
from oxygen_ros.worker.worker import build

if TYPE_CHECKING:  # the node never imports torch
    from oxygen_ros.engine.engine import Engine


def make(options: EngineOptions, emit: Callable[[wire.FromEngine], None]) -> tuple[Engine, wire.Ready]:
    """Runs in the engine process, in place of oxygen_ros.worker.worker.build."""
    engine, ready = build(options, emit)
    act, head = engine.act, engine.net.expert.action_out
    good = head.weight

    def act_or_fail(observation: Observation, received_ns: int = 0, deadline_ns: int = 0) -> None:
        if observation.instruction == 'fault memory':
            good.new_empty(1 << 60)
        head.weight = good * float('nan') if observation.instruction == 'fault nan' else good
        act(observation, received_ns, deadline_ns)

    engine.act = act_or_fail  # type: ignore[method-assign]
    return engine, ready


def main() -> None:
    from functools import partial

    from oxygen_ros.node.main import main
    from oxygen_ros.worker.supervisor import Supervisor
    main(make_engine=partial(Supervisor, make=make))


if __name__ == '__main__':
    from oxygen_ros.bench.trust import faulty
    faulty.main()  # under its importable name: the engine process looks `make` up by it
