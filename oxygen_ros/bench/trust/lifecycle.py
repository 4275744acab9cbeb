"""What needs a node of its own: rounds of the lifecycle, the end in every phase, jumps of time, full disks."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rosgraph_msgs.msg import Clock

from oxygen_ros.bench.trust.fault import Outcome, add_findings
from oxygen_ros.bench.trust.live import START_S, Broken, Live

_END_S = 5.0
_MB_PER_ROUND = 0.5


@contextmanager
def _recorded(outcome: Outcome) -> Iterator[None]:
    try:
        yield
    except Broken as why:
        outcome.faults.append(str(why))


def rounds(folder: Path, count: int) -> Outcome:
    """Configure, activate, move, deactivate, clean up, ``count`` times with one node."""
    outcome = Outcome(f'{count} rounds of the lifecycle')
    live = Live(folder, autostart='false')
    with _recorded(outcome):
        held = []
        for _ in range(count):
            for step in ('configure', 'activate'):
                if not live.transition(step):
                    raise Broken(f'could not {step}')
            live.moves(5)
            for step in ('deactivate', 'cleanup'):
                if not live.transition(step):
                    raise Broken(f'could not {step}')
            held.append(live.footprint())
        first, last = held[min(len(held) - 1, count // 5)], held[-1]    # the first rounds fill allocator pools
        outcome.memory = first.node_mb, last.node_mb
        outcome.descriptors = first.descriptors, last.descriptors
        if last.node_mb - first.node_mb > _MB_PER_ROUND * count:
            outcome.faults.append(f'{last.node_mb:.0f} MB of memory, {first.node_mb:.0f} before')
        if (last.descriptors, last.threads) != (first.descriptors, first.threads):
            outcome.faults.append(f'{last.descriptors} descriptors and {last.threads} threads, {first.descriptors} and '
                                  f'{first.threads} before')
        outcome.messages = live.motion.messages
    if live.close() != 0:
        outcome.faults.append(f'the node ended with {live.node.returncode}')
    return _finished(live, outcome)


def _importing(live: Live) -> None:
    path = Path(f'/proc/{live.node.pid}/maps')
    live.wait(lambda: '_rclpy_pybind11' in path.read_text(), 'imports', START_S)


def _loading(live: Live) -> None:
    live.wait(lambda: live.said('loading', 0.0), 'loading', START_S)
    live.wait(live.engine, 'engine process')


def _inactive(live: Live) -> None:
    if not live.transition('configure'):
        raise Broken('could not configure')


def _moving(live: Live) -> None:
    live.moves(timeout=START_S)


def _speaking(live: Live) -> None:
    live.moves(timeout=START_S)
    live.connected()
    for _ in range(20):
        live.ask(max_tokens=48)
    live.wait(lambda: live.status and live.status.live_requests, 'live requests')


def _paused(live: Live) -> None:
    live.moves(timeout=START_S)
    live.pause(True)


def _hung(live: Live) -> None:
    live.moves(timeout=START_S)
    engine = live.engine()
    assert engine is not None
    engine.suspend()


def _restarting(live: Live) -> None:
    live.moves(timeout=START_S)
    engine = live.engine()
    assert engine is not None
    engine.kill()
    live.wait(lambda: live.engine() not in (None, engine), 'next engine process')


PHASES: dict[str, Callable[[Live], None]] = {
    'importing': _importing, 'loading': _loading, 'inactive': _inactive, 'moving': _moving, 'speaking': _speaking,
    'paused': _paused, 'the engine hung': _hung, 'the engine restarting': _restarting}


def shutdown(folder: Path, phase: str, number: int = signal.SIGINT) -> Outcome:
    """The node is told to end in ``phase``: exit code 0 within 5 s, nobody left, every request ended."""
    outcome = Outcome(f'{signal.Signals(number).name} while {phase}', within=_END_S)
    live = Live(folder, autostart='false' if phase == 'inactive' else 'true')
    with _recorded(outcome):
        PHASES[phase](live)
        engine = live.engine()
        began = time.time()
        os.kill(live.node.pid, number)
        code = live.node.wait(2 * _END_S)
        outcome.noticed = time.time() - began
        if code != 0:
            outcome.faults.append(f'exit code {code} after {outcome.noticed:.1f} s')
        if engine is not None and engine.is_running() and engine.status() != psutil.STATUS_ZOMBIE:
            outcome.faults.append('its engine process goes on')
        if 'Traceback' in live.node.output:
            outcome.faults.append('the node printed a traceback')
        if phase in ('moving', 'speaking') and live.motion.held < live.motion.moved:
            outcome.faults.append('the robot was not told to hold')
        if live.speech.asked:
            outcome.faults.append(f'{len(live.speech.asked)} requests have not ended')
    live.close()
    return _finished(live, outcome)


def time_jumps(folder: Path) -> Outcome:
    """Simulated time jumps back, as when a bag loops."""
    outcome = Outcome('clock jumps back', within=0.2)
    now = 1000.0
    live = Live(folder, robot=False, sim_time=True)
    live.clock = lambda: now
    publisher = live.ros.create_publisher(Clock, '/clock', 10)
    over = threading.Event()

    def play() -> None:
        nonlocal now
        while not over.wait(0.01):
            now += 0.01
            publisher.publish(Clock(clock=_stamp(now)))

    thread = threading.Thread(target=play, daemon=True)
    thread.start()
    with _recorded(outcome):
        live.start_robot()
        live.moves(timeout=START_S)
        before = live.motion.messages
        broken, now, live.motion.expires = time.time(), 10.0, 0.0    # chunks of the old time cover nothing now
        when = live.wait(lambda: live.said('ROS time jumped', broken), 'word of the jump')
        outcome.said, outcome.noticed = 'ROS time jumped', when - broken
        outcome.recovered = live.moves() - when
        outcome.messages = live.motion.messages - before
    over.set()
    thread.join()
    live.motion.uncovered = [stamp for stamp in live.motion.uncovered if stamp < 1000.0]   # published before it knew
    if live.close() != 0:
        outcome.faults.append(f'the node ended with {live.node.returncode}')
    return _finished(live, outcome)


def _stamp(seconds: float):
    from builtin_interfaces.msg import Time
    return Time(sec=int(seconds), nanosec=int(seconds % 1 * 1e9))


def disk_full(folder: Path) -> Outcome:
    """No file can grow any more (RLIMIT_FSIZE, as with a full disk): the node's log files, while it has much to say."""
    outcome = Outcome('disk full for logs')
    live = Live(folder)
    with _recorded(outcome):
        live.moves(timeout=START_S)
        psutil.Process(live.node.pid).rlimit(psutil.RLIMIT_FSIZE, (0, psutil.RLIM_INFINITY))
        for i in range(20):
            live.robot.task(f'task {i}')
            live.moves(5)
        outcome.messages = live.motion.messages
    if live.close() != 0:
        outcome.faults.append(f'the node ended with {live.node.returncode}')
    return _finished(live, outcome)


def report_disk_full() -> Outcome:
    """The demo cannot write its report: one line, no traceback, nothing left running."""
    outcome = Outcome('disk full for the report')
    demo = subprocess.run([sys.executable, '-m', 'oxygen_ros.cli', 'demo', '--seconds', '1', '--report', '/dev/full'],
                          capture_output=True, text=True, timeout=180)
    outcome.said = demo.stderr.strip()[-300:]
    if demo.returncode not in (1, 2) or 'Traceback' in demo.stderr or 'No space left' not in demo.stderr:
        outcome.faults.append(f'exit code {demo.returncode}: {outcome.said}')
    return outcome


def _finished(live: Live, outcome: Outcome) -> Outcome:
    add_findings(outcome, live)
    return outcome
