"""The demo from start to end: two programs in a domain of their own, an observer, a report."""
from __future__ import annotations

import itertools
import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console

from oxygen_ros.demo.film import plot_timing
from oxygen_ros.demo.observer import Observer
from oxygen_ros.demo.view import View
from oxygen_ros.interrupts import interrupts
from oxygen_ros.isolation import isolate, reserve_domain
from oxygen_ros.outputs import unwritable
from oxygen_ros.processes import Process
from oxygen_ros.share import share
from oxygen_ros.tabletop.words import question_seed

_NAMESPACE = 'oxygen'
_NODE = 'oxygen'
_QUESTIONS = ('where is the red cube?', 'what are you doing?', 'how many cubes are there?', 'where is the blue cube?')
_START_S = 120.0        # loading and warming up, at most
_ANSWER_S = 5.0         # for answers that are under way at the end
_STOP_S = 5.0           # for a program to end after SIGINT
_TAIL = 3000            # characters of a program's output that go into a fault


class Fault(Exception):
    """The demo cannot go on; the text says why."""


def demo(seconds: float = 30.0, report: Path = Path('demo_report.json'), ask_every: float = 4.0,
         params_file: Path | None = None, domain: int | None = None) -> int:
    """Run a simulated robot and the inference node, show what happens, and write a report.

    Both are processes of their own in a ROS domain of their own, on this machine only, so that no real robot hears
    them. Exit code: 0 when all went well, 1 with the reason otherwise. Ctrl-C ends it early, with a report.

    Args:
        seconds: how long to measure, after everything has started.
        report: where to write the figures (JSON).
        ask_every: seconds between the questions that the demo asks; 0 = none.
        params_file: parameters of the robot and the node; by default config/tabletop.yaml of the package.
        domain: ROS domain to use; by default one that no other demo or test uses.
    """
    if why := ('--seconds: at least 1' if seconds < 1.0 else
               f'--report: {report} would be overwritten by a picture' if report.suffix in ('.gif', '.png') else
               unwritable(report=report)):
        print(f'oxygen demo: {why}', file=sys.stderr)
        return 2
    console = Console()
    domain = reserve_domain() if domain is None else domain
    isolate(os.environ, domain)
    observer = Observer(_NAMESPACE, _NODE)
    robot, node = _start(params_file or share('config/tabletop.yaml'))

    faults: list[str] = []
    with interrupts() as interrupted:
        def check() -> None:
            interrupted()
            for process in (robot, node):
                if (code := process.returncode) is not None:
                    raise Fault(f'the {process.name} ended with {code}; it said:\n{process.output[-_TAIL:]}')

        try:
            console.print('starting the robot and the node ...')
            rate = _bring_up(observer, node, check)
            hint = f'from another terminal:  ROS_DOMAIN_ID={domain} {_program()} ask "where is the red cube?"'
            with View(observer, seconds, console, hint) as view:
                _measure(observer, rate, seconds, ask_every, check, view)
            faults += _stop(robot)      # no cameras, no new observations: what KV is left then?
            observer.drop_all()
        except Fault as fault:
            faults.append(str(fault))
        except KeyboardInterrupt:
            console.print('interrupted')
            if observer.figures is None:
                faults.append('interrupted before there was anything to measure')
            observer.end()
        finally:
            faults += [*_stop(node), *_stop(robot)]
            observer.close()
    if observer.figures:
        faults += observer.figures.faults()
    figures = {
        'ok': not faults, 'faults': faults, **(observer.figures.report() if observer.figures else {}),
        'episodes': observer.episodes, 'episodes_solved': observer.successes}
    files = []
    try:
        report.write_text(json.dumps(figures, indent=2) + '\n')
        files = [report, *_pictures(observer, report)]
    except OSError as error:
        faults.insert(0, f'cannot write {report}: {error.strerror}')
    _summarise(console, figures, files)
    if faults:
        print(f'oxygen demo: {faults[0]}', file=sys.stderr)
    return 1 if faults else 0


def _program() -> str:
    """What to type for `oxygen` in another terminal, where no environment may be active."""
    beside = Path(sys.executable).with_name('oxygen')
    return shlex.quote(str(beside)) if beside.is_file() else 'oxygen'


def _start(params_file: Path) -> tuple[Process, Process]:
    """The robot and the node, as ``ros2 launch oxygen_ros tabletop.launch.py`` starts them, but for the lifecycle:
    the demo manages it itself, so that it hears at once when the node cannot be configured.
    """
    def python(name: str, module: str, *ros_args: str) -> Process:
        return Process(name, [sys.executable, '-m', module, '--ros-args', '-r', f'__ns:=/{_NAMESPACE}',
                              '--params-file', str(params_file), *ros_args])

    return (python('robot', 'oxygen_ros.tabletop.main', '-r', 'joint_trajectory:=actions'),
            python('node', 'oxygen_ros.node.main', '-p', 'autostart:=false'))


def _bring_up(observer: Observer, node: Process, check: Callable[[], None]) -> float:
    """Wait until actions come; the rate that they are published at, Hz."""
    for label in ('configure', 'activate'):
        if not observer.transition(label, _START_S, check):
            raise Fault(f'the node could not {label}; it said:\n{node.output[-_TAIL:]}')
    if not observer.spin(lambda: observer.actions_heard and observer.status, _START_S, check):
        silent = ', '.join(f'/{_NAMESPACE}/{topic}' for topic, heard in (
            ('actions', observer.actions_heard), ('status', observer.status)) if not heard)
        raise Fault(f'nothing on {silent} within {_START_S:g} s; the node said:\n{node.output[-_TAIL:]}')
    rate = observer.parameter('publish_rate_hz')
    if rate is None:
        raise Fault(f'/{_NAMESPACE}/{_NODE} does not tell its parameter publish_rate_hz')
    return rate


def _measure(observer: Observer, rate: float, seconds: float, ask_every: float, check: Callable[[], None],
             view: View) -> None:
    """Count for ``seconds``, with a question now and then; then wait for the answers that are under way."""
    observer.begin(rate)
    end = observer.now() + seconds
    questions = itertools.cycle(_QUESTIONS)
    next_question = observer.now() + 1.0 if ask_every > 0 else end

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
    observer.spin(lambda: observer.figures.asked.keys() <= observer.figures.answers.keys(), _ANSWER_S, check)


def _stop(process: Process) -> list[str]:
    """End a program as Ctrl-C would; what was wrong about it. One that has ended already was judged before."""
    if process.returncode is not None:
        process.kill()      # its children, should it have left any
        return []
    code = process.interrupt(_STOP_S)
    orphans = process.orphans()
    output = process.output[-_TAIL:]
    process.kill()
    if code is None:
        return [f'the {process.name} did not end within {_STOP_S:g} s after SIGINT']
    if code != 0:
        return [f'the {process.name} ended with {code} after SIGINT; it said:\n{output}']
    return [f'the {process.name} left running: {"; ".join(orphans)}'] if orphans else []


def _pictures(observer: Observer, report: Path) -> list[Path]:
    """The film and the plot beside the report; those that could be made."""
    film, plot = report.with_suffix('.gif'), report.with_suffix('.png')
    made: list[Path] = []
    try:
        if observer.film.write(film):
            made.append(film)
        if observer.figures and plot_timing(plot, observer.figures.published, 1 / observer.figures.publish_rate_hz,
                                            observer.cycles):
            made.append(plot)
    except OSError as error:
        print(f'oxygen demo: cannot write {error.filename}: {error.strerror}', file=sys.stderr)
    except ImportError as error:    # the report is worth more than its plot
        print(f'oxygen demo: no plot, for {error}: pip install matplotlib', file=sys.stderr)
    return made


def _summarise(console: Console, figures: dict[str, Any], files: list[Path]) -> None:
    if 'cycles' in figures:
        first = figures['time_to_first_token_ms']
        for line in (
                f'{figures["seconds"]:g} s, {figures["cycles"]} cycles, {figures["prefills"]} prefills',
                f'moved   {figures["chunks_published"]} chunks; actions at {figures["publish_rate_hz"]:.2f} Hz, jitter '
                f'p99 {figures["jitter_p99_ms"]:.2f} ms; {figures["stale_published"]} stale, '
                f'{figures["nonfinite_published"]} non-finite; {figures["episodes_solved"]} of {figures["episodes"]} '
                'tasks done',
                f'talked  {figures["tokens"]} tokens, {figures["sentences"]} sentences; '
                f'{figures["questions_answered"]} of {figures["questions"]} questions answered'
                + (f', first word after {first:.0f} ms' if first else '')):
            console.print(line, highlight=False, soft_wrap=True)
    console.print(f'report  {", ".join(map(str, files))}', highlight=False, soft_wrap=True)
