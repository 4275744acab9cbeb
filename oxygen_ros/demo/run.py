"""The demo from start to end: two programs in a domain of their own, an observer, a report."""
from __future__ import annotations

import itertools
import json
import os
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from oxygen_ros.demo.observer import Observer
from oxygen_ros.demo.view import View
from oxygen_ros.isolation import isolate, reserve_domain
from oxygen_ros.processes import Process
from oxygen_ros.share import share
from oxygen_ros.tabletop.words import question_seed

_NAMESPACE = 'oxygen'
_NODE = f'/{_NAMESPACE}/oxygen'
_QUESTIONS = ('where is the red cube?', 'what are you doing?', 'how many cubes are there?', 'where is the blue cube?')
_START_S = 120.0        # loading and warming up, at most
_ANSWER_S = 5.0         # for answers that are under way at the end
_STOP_S = 5.0           # for a program to end after SIGINT


class Fault(Exception):
    """The demo cannot go on; the text says why."""


def demo(seconds: float = 30.0, report: Path = Path('demo_report.json'), ask_every: float = 4.0,
         domain: int | None = None) -> int:
    """Run a simulated robot and the inference node, show what happens, and write a report.

    Both are processes of their own in a ROS domain of their own, on this machine only, so that no real robot hears
    them. Exit code: 0 when all went well, 1 with the reason otherwise.

    Args:
        seconds: how long to measure, after everything has started.
        report: where to write the figures (JSON).
        ask_every: seconds between the questions that the demo asks; 0 = none.
        domain: ROS domain to use; by default one that no other demo or test uses.
    """
    console = Console()
    domain = reserve_domain() if domain is None else domain
    isolate(os.environ, domain)
    observer = Observer(_NAMESPACE)
    robot, node = _start()
    faults: list[str] = []
    try:
        hint = f'from another terminal:  ROS_DOMAIN_ID={domain} oxygen ask "where is the red cube?"'
        _watch(observer, (robot, node), seconds, ask_every, console, hint)
    except Fault as fault:
        faults.append(str(fault))
    except KeyboardInterrupt:
        console.print('interrupted')
        if observer.figures:
            observer.end()
    faults += [fault for process in (node, robot) if (fault := _stop(process))]
    if observer.figures:
        faults += observer.figures.faults()
    figures = {
        'ok': not faults, 'faults': faults, **(observer.figures.report() if observer.figures else {}),
        'episodes': observer.episodes, 'episodes_solved': observer.successes,
    }
    observer.close()
    report.write_text(json.dumps(figures, indent=2) + '\n')
    _summarise(console, figures, report)
    if faults:
        print(f'oxygen demo: {faults[0]}', file=sys.stderr)
    return 1 if faults else 0


def _start() -> tuple[Process, Process]:
    """The robot and the node, as ``ros2 launch oxygen_ros tabletop.launch.py`` starts them."""
    def python(name: str, module: str, *ros_args: str) -> Process:
        return Process(name, [sys.executable, '-m', module, '--ros-args', '-r', f'__ns:=/{_NAMESPACE}', *ros_args])

    params = ('--params-file', str(share('config/tabletop.yaml')))
    return (python('robot', 'oxygen_ros.tabletop.node', '-r', 'joint_trajectory:=actions', *params),
            python('node', 'oxygen_ros.node.main', *params))


def _watch(observer: Observer, processes: tuple[Process, ...], seconds: float, ask_every: float, console: Console,
           hint: str) -> None:
    def check() -> None:
        for process in processes:
            if process.returncode is not None:
                raise Fault(f'the {process.name} ended with {process.returncode}; it said:\n{process.output[-3000:]}')

    console.print('starting the robot and the node ...')
    if not observer.spin(lambda: observer.actions_heard and observer.status, _START_S, check):
        silent = ', '.join(f'/{_NAMESPACE}/{topic}' for topic, heard in (
            ('actions', observer.actions_heard), ('status', observer.status)) if not heard)
        raise Fault(f'nothing on {silent} within {_START_S:g} s; the node said:\n{processes[1].output[-3000:]}')
    rate = observer.parameter(_NODE, 'publish_rate_hz')
    if rate is None:
        raise Fault(f'{_NODE} does not tell its parameter publish_rate_hz')

    observer.begin(rate)
    questions = itertools.cycle(_QUESTIONS)
    end = observer.now() + seconds
    next_question = observer.now() + 1.0 if ask_every > 0 else end
    with View(observer, seconds, console, hint) as view:
        def each() -> None:
            nonlocal next_question
            check()
            view.refresh()
            if next_question <= observer.now() < end - 1.0:
                next_question += ask_every
                question = next(questions)
                observer.ask(question, question_seed(question))

        observer.spin(lambda: observer.now() >= end, seconds + 60.0, each)
        observer.end()
        pending = lambda: set(observer.figures.asked) - set(observer.figures.answers)  # noqa: E731
        observer.spin(lambda: not pending(), _ANSWER_S, check)


def _stop(process: Process) -> str | None:
    """End a program as Ctrl-C would; what was wrong about it, or None."""
    if process.returncode is not None:
        return None     # already told
    code = process.interrupt(_STOP_S)
    orphans = process.orphans()
    output = process.output
    process.kill()
    if code is None:
        return f'the {process.name} did not end within {_STOP_S:g} s after SIGINT'
    if code != 0:
        return f'the {process.name} ended with {code} after SIGINT; it said:\n{output[-3000:]}'
    if orphans:
        return f'the {process.name} left running: {"; ".join(orphans)}'
    return None


def _summarise(console: Console, figures: dict[str, Any], report: Path) -> None:
    if 'cycles' in figures:
        first = figures['time_to_first_token_ms']
        console.print(
            f'{figures["seconds"]:g} s: {figures["cycles"]} cycles with {figures["prefills"]} prefills; actions at '
            f'{figures["publish_rate_hz"]:.2f} Hz, jitter p99 {figures["jitter_p99_ms"]:.2f} ms '
            f'({figures["jitter_p99_received_ms"]:.2f} ms as received), {figures["stale_published"]} stale, '
            f'{figures["nonfinite_published"]} non-finite\n'
            f'{figures["tokens"]} tokens in {figures["sentences"]} sentences; {figures["questions_answered"]} of '
            f'{figures["questions"]} questions answered' + (f', first word after {first:.0f} ms' if first else '') +
            f'; {figures["episodes_solved"]} of {figures["episodes"]} tasks done', highlight=False)
    console.print(f'report: {report}')
