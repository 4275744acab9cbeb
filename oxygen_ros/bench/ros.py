"""``oxygen bench ros``: how regular the node publishes and how much it adds to the model, beside what was promised."""
from __future__ import annotations

import json as json_format
import os
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import yaml
from rich.console import Console
from rich.table import Table

from oxygen_ros.isolation import isolate, reserve_domain, use_fast_dds_profiles
from oxygen_ros.outputs import unwritable
from oxygen_ros.processes import Process
from oxygen_ros.share import share

RATE_HZ = 50.0
TARGETS_MS = {'jitter, a core free': 2.0, 'jitter, all cores busy': 4.0, 'overhead beside the model': 5.0,
              'parameter service': 100.0}
_START_S, _SETTLE_S, _LATE_S = 120.0, 3.0, 30.0
_PARTS = ('transport', 'hand_over', 'exchange', 'publish')
_NAMESPACE = '/timing'


def ros(seconds: float = 20.0, json: Path | None = None) -> int:
    """Run the real node with a small random model and an endless question, and measure it under three loads.

    A core free: small pictures, so that only the engine works. All cores busy: as many endless loops beside it as there
    are cores. Cameras: three 640x480 pictures at 30 Hz. A bare loop of the same rate and priority beside it shows what
    the machine itself does to the node. Exit code: 0 when every target is met, 2 when it cannot run, 1 otherwise.

    Args:
        seconds: how long to measure under each load.
        json: where to write all figures.
    """
    if why := unwritable(json=json):
        print(f'oxygen bench ros: {why}', file=sys.stderr)
        return 2
    isolate(os.environ, reserve_domain())
    use_fast_dds_profiles(os.environ, share('config/fastdds_shm.xml'))
    console = Console()
    with tempfile.TemporaryDirectory() as folder:
        try:
            result = _measure(Path(folder), seconds, console)
        except RuntimeError as error:
            print(f'oxygen bench ros: {error}', file=sys.stderr)
            return 1
    _show(result, console)
    if json:
        json.write_text(json_format.dumps(result, indent=1) + '\n')
        print(f'figures: {json}')
    return 0 if all(row['met'] for row in result['targets']) else 1


def _measure(folder: Path, seconds: float, console: Console) -> dict[str, Any]:
    from oxygen_ros.bench.timing.watch import Watch
    log = folder / 'cycles.jsonl'
    log.touch()
    parameters = {
        'contract': _contract(folder), 'checkpoint': 'random:tiny', 'stamp_mode': 'now', 'publish_rate_hz': RATE_HZ,
        'cycle_rate_hz': 10.0, 'speech.max_tokens': 512, 'speech.narration.every_cycles': 0}
    settings = [part for name, value in parameters.items() for part in ('-p', f'{name}:={value}')]
    node = _program('node', str(log), '--ros-args', '-r', f'__ns:={_NAMESPACE}', *settings)
    loads: dict[str, dict[str, Any]] = {}
    with _ended(node), Watch(_NAMESPACE) as watch:
        for load, size, burners in (('a core free', (64, 48), 0), ('all cores busy', (64, 48), os.cpu_count() or 1),
                                    ('cameras', (640, 480), 0)):
            robot = _program('robot', *map(str, size), '--ros-args', '-r', f'__ns:={_NAMESPACE}')
            with _ended(robot, *(Process('burner', [sys.executable, '-c', 'while True: pass'])
                                 for _ in range(burners))):
                watch.wait_for_actions(_START_S, node)
                time.sleep(_SETTLE_S)
                engine, = psutil.Process(node.pid).children()
                running = {'node': psutil.Process(node.pid), 'engine': engine, 'robot': psutil.Process(robot.pid)}
                before = _used(running)
                began = time.time()
                floor = folder / 'floor.json'
                bare = _program('bare', str(seconds), str(RATE_HZ), str(floor))
                with _ended(bare):
                    loads[load] = watch.watch(seconds)
                    if bare.wait(_SETTLE_S + _LATE_S) != 0:
                        raise RuntimeError(f'the bare loop failed:\n{bare.output[-3000:]}')
                loads[load]['floor_ms'] = json_format.loads(floor.read_text())
                cycles = [cycle for cycle in map(json_format.loads, log.read_text().splitlines())
                          if cycle['at'] >= began]
                took = time.time() - began
                loads[load] |= {'cpu': {name: (used - before[name]) / took for name, used in _used(running).items()},
                                'load_average': os.getloadavg()[0], 'cycles': _statistics(cycles)}
            intervals = len(loads[load]['intervals_ms'])
            console.print(f'{load}: {intervals} intervals, {len(cycles)} cycles', highlight=False)
    return {'cores': os.cpu_count(), 'seconds': seconds, 'rate_hz': RATE_HZ, **_judge(loads)}


def _used(running: dict[str, psutil.Process]) -> dict[str, float]:
    """CPU seconds that each has used."""
    return {name: sum(process.cpu_times()[:2]) for name, process in running.items()}


def _judge(loads: dict[str, dict[str, Any]]) -> dict[str, Any]:
    for load in loads.values():
        for name, intervals in (('jitter_ms', 'intervals_ms'), ('floor_ms', 'floor_ms')):
            load[name] = _spread(np.abs(np.array(load.pop(intervals)) - 1e3 / RATE_HZ))
        load['parameter_ms'] = _spread(np.array(load.pop('calls_ms')))
    found = {'jitter, a core free': loads['a core free']['jitter_ms']['p99'],
             'jitter, all cores busy': loads['all cores busy']['jitter_ms']['p99'],
             'overhead beside the model': loads['cameras']['cycles']['overhead']['p99'],
             'parameter service': max(load['parameter_ms']['max'] for load in loads.values())}
    return {'loads': loads, 'targets': [
        {'figure': name, 'ms': found[name], 'target_ms': target, 'met': found[name] <= target}
        for name, target in TARGETS_MS.items()]}


def _spread(values: np.ndarray) -> dict[str, float]:
    return {'p50': _p(values, 50), 'p99': _p(values, 99), 'max': float(values.max())}


def _statistics(cycles: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Of each part of a cycle, ms; overhead is everything but the model and the wait for the next look."""
    columns = {name: 1e3 * np.array([cycle[name] for cycle in cycles]) for name in (*_PARTS, 'wait', 'model')}
    columns['overhead'] = sum(columns[name] for name in _PARTS)
    return {name: {'p50': _p(values, 50), 'p99': _p(values, 99)} for name, values in columns.items()}


def _p(values: np.ndarray, percent: float) -> float:
    return float(np.percentile(values, percent))


def _show(result: dict[str, Any], console: Console) -> None:
    loads = result['loads']
    table = Table(title=f'{result["rate_hz"]:g} Hz, {result["seconds"]:g} s under each load, {result["cores"]} cores; '
                  'ms, p50 / p99', title_justify='left')
    for i, column in enumerate(('', *loads)):
        table.add_column(column, justify='right' if i else 'left')
    for name, label in (('jitter_ms', 'jitter'), ('floor_ms', '  of a bare loop'), ('parameter_ms', 'parameter')):
        table.add_row(label, *(f'{_pair(load[name])}, max {load[name]["max"]:.1f}' for load in loads.values()))
    for name in ('overhead', *_PARTS, 'wait', 'model'):
        label = f'  {name.replace("_", " ")}' if name in _PARTS else name
        table.add_row(label, *(_pair(load['cycles'][name]) for load in loads.values()))
    for name in ('node', 'engine', 'robot'):
        table.add_row(f'CPU of the {name}', *(f'{load["cpu"][name]:.0%}' for load in loads.values()))
    table.add_row('load average', *(f'{load["load_average"]:.1f}' for load in loads.values()))
    console.print(table)
    targets = Table(title='targets', title_justify='left')
    for column in ('figure', 'ms', 'target', ''):
        targets.add_column(column)
    for row in result['targets']:
        verdict = 'met' if row['met'] else 'MISSED'
        targets.add_row(row['figure'], f'{row["ms"]:.2f}', f'<= {row["target_ms"]:g}', verdict)
    console.print(targets)


def _pair(values: dict[str, float]) -> str:
    return f'{values["p50"]:.2f} / {values["p99"]:.2f}'


def _contract(folder: Path) -> Path:
    from oxygen_ros.bench.timing.robot import CAMERAS, JOINTS
    path = folder / 'contract.yaml'
    path.write_text(yaml.safe_dump({
        'robot': 'timing', 'semantics': 'absolute_position', 'policy_period': 0.1, 'instruction': 'work',
        'cameras': [{'name': name, 'topic': f'{name}/image', 'max_age': 5.0} for name in CAMERAS],
        'joint_topics': [{'topic': 'joint_states', 'max_age': 5.0}], 'state': [{'joint': joint} for joint in JOINTS],
        'actions': [{'joint': joint, 'position': [-1, 1]} for joint in JOINTS[:7]]}))
    return path


def _program(name: str, *arguments: str) -> Process:
    return Process(name, [sys.executable, '-m', f'oxygen_ros.bench.timing.{name}', *arguments])


@contextmanager
def _ended(*programs: Process) -> Iterator[None]:
    """End the programs, whatever happens."""
    try:
        yield
    finally:
        threads = [threading.Thread(target=program.interrupt) for program in programs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for program in programs:
            program.kill()
