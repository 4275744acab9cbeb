"""``oxygen bench faults``: everything that goes wrong on a robot, done to the real node, with what it cost."""
from __future__ import annotations

import json as json_format
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from oxygen_ros.outputs import unwritable

if TYPE_CHECKING:
    from oxygen_ros.bench.trust.fault import Outcome


def faults(only: tuple[str, ...] = (), rounds: int = 50, pairs: int = 10_000, json: Path | None = None) -> int:
    """Do to the running node what happens to robots, and tell what it published, noticed and kept meanwhile.

    The node is the real one with a small random model, in a ROS domain of its own on this machine; all figures are
    taken from outside, over DDS and from /proc. Exit code: 0 when everything holds, 1 when something does not, 2 when
    it cannot run.

    Args:
        only: faults whose name holds one of these words; default: all.
        rounds: rounds of configure, activate, deactivate and cleanup.
        pairs: questions that are asked and cancelled at once.
        json: where to write all figures.
    """
    if why := '--rounds and --pairs: at least 1' if min(rounds, pairs) < 1 else unwritable(json=json):
        print(f'oxygen bench faults: {why}', file=sys.stderr)
        return 2
    from oxygen_ros.bench.trust.live import Broken
    console = Console(width=None if sys.stdout.isatty() else 160)
    table = Table(title='faults', title_justify='left')
    for i, column in enumerate(('fault', 'noticed s', 'at most', 'still s', 'recovered s', 'messages', 'bad',
                                'memory MB', 'KV bytes', '')):
        table.add_column(column, justify='right' if 0 < i < 9 else 'left')
    outcomes = []
    try:
        with tempfile.TemporaryDirectory() as folder:
            for outcome in _run(Path(folder), only, rounds, pairs):
                outcomes.append(outcome)
                table.add_row(*_row(outcome))
                verdict = '; '.join(outcome.faults) or ('late' if outcome.late else 'holds')
                console.print(f'{outcome.name}: {verdict}', highlight=False, markup=False, soft_wrap=True)
    except Broken as error:
        print(f'oxygen bench faults: {error}', file=sys.stderr)
        return 1
    if not outcomes:
        print(f'oxygen bench faults: no fault is called like {", ".join(only)}', file=sys.stderr)
        return 2
    console.print(table)
    if json:
        json.write_text(json_format.dumps([{**asdict(o), 'holds': o.holds} for o in outcomes], indent=1) + '\n')
        print(f'figures: {json}')
    return 0 if all(outcome.holds for outcome in outcomes) else 1


def _run(folder: Path, only: tuple[str, ...], rounds: int, pairs: int) -> Iterator[Outcome]:
    from oxygen_ros.bench.trust import engines, inputs, lifecycle
    from oxygen_ros.bench.trust.fault import provoke
    from oxygen_ros.bench.trust.live import START_S, Live

    def wanted(name: str) -> bool:
        return not only or any(word in name for word in only)

    chosen = [fault for fault in (*inputs.FAULTS, *engines.FAULTS, engines.pairs(pairs)) if wanted(fault.name)]
    if chosen:
        live = Live(folder)
        try:
            live.moves(timeout=START_S)
            live.connected()
            for fault in chosen:
                yield provoke(live, fault)
        finally:
            live.close()
    alone: dict[str, Callable[[], Outcome]] = {
        'clock jumps back': partial(lifecycle.time_jumps, folder),
        'disk full for logs': partial(lifecycle.disk_full, folder),
        'disk full for the report': lifecycle.report_disk_full,
        f'{rounds} rounds of the lifecycle': partial(lifecycle.rounds, folder, rounds),
        **{f'SIGINT while {phase}': partial(lifecycle.shutdown, folder, phase) for phase in lifecycle.PHASES}}
    for name, run in alone.items():
        if wanted(name):
            yield run()


def _row(o: Outcome) -> tuple[str, ...]:
    def figure(value: float | None, form: str = '.2f') -> str:
        return '' if value is None else format(value, form)

    def change(pair: tuple[float, float] | None, form: str) -> str:
        return '' if pair is None else f'{pair[0]:{form}} > {pair[1]:{form}}'

    verdict = 'holds' if o.holds else '[bold red]NO' if o.faults else '[bold red]late'
    return (o.name, figure(o.noticed), figure(o.within, 'g'), figure(o.still), figure(o.recovered), str(o.messages),
            str(o.bad), change(o.memory, '.0f'), change(o.kv, 'd'), verdict)
