"""What happens to the engine process, and what is asked of it at once."""
from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from functools import partial

import psutil

from oxygen_ros.bench.trust.fault import ENGINE_WITHIN, Fault
from oxygen_ros.bench.trust.live import Broken, Live

_SLICE_S = 0.05       # of the slow engine: it runs a tenth of each


def _task(text: str, live: Live) -> Iterator[None]:
    live.robot.task(text)
    yield None
    live.robot.task('work')


def _running(live: Live) -> psutil.Process:
    if (engine := live.engine()) is None:
        raise Broken('there is no engine process')
    return engine


def _signal(number: int, live: Live) -> Iterator[float]:
    """While it speaks and moves."""
    live.ask(max_tokens=48)
    engine = _running(live)
    when = time.time()
    engine.send_signal(number)
    yield when


def _memory(live: Live) -> Iterator[float]:
    """The next engine gets the good task at once: latched, it would run out of memory again."""
    live.robot.task('fault memory')
    broken = time.time()
    live.wait(lambda: live.said('out of memory', broken), 'word of the lack of memory')
    live.robot.task('work')
    yield broken


def _slow(live: Live) -> Iterator[None]:
    """The kernel gives the engine a tenth of its time."""
    engine, stop = _running(live), threading.Event()

    def brake() -> None:
        while not stop.wait(0.1 * _SLICE_S):
            engine.suspend()
            time.sleep(0.9 * _SLICE_S)
            engine.resume()

    thread = threading.Thread(target=brake, daemon=True)
    thread.start()
    yield None
    stop.set()
    thread.join()


def _many_questions(live: Live, count: int = 200) -> Iterator[None]:
    for _ in range(count):
        live.ask(max_tokens=8)
    yield None
    live.at_rest(60.0)


def _cancel_storm(live: Live, pairs: int = 1000) -> Iterator[None]:
    """Questions and cancels, single and of all, as fast as the node ends them."""
    for number in range(pairs):
        name = live.ask(max_tokens=48)
        live.cancel('' if number % 10 == 9 else name)
        if number % 50 == 49:
            live.wait(lambda: len(live.speech.asked) < 50, 'ends of cancelled requests')
    yield None
    live.at_rest(60.0)


def _new_instruction(live: Live) -> Iterator[None]:
    """Another task while a long text is made: the text is finished, about what it was begun with."""
    before = live.speech.reasons.copy()
    for _ in range(3):
        live.ask(max_tokens=48)
    live.robot.task('now do something quite different')
    yield None
    live.wait(lambda: not live.speech.asked, 'end of the texts')
    if cut := {reason: count for reason, count in (live.speech.reasons - before).items()
               if reason not in ('stop', 'length')}:
        raise Broken(f'texts were not finished: {cut}')
    live.robot.task('work')
    live.moves(25)    # half a second: the old instruction is forgotten


def pairs(count: int) -> Fault:
    """``count`` questions, each cancelled at once."""
    return Fault(f'{count} asked and cancelled', partial(_cancel_storm, pairs=count), stops=False, lasts=0.0)


FAULTS = (
    Fault('engine killed', partial(_signal, signal.SIGKILL), 'the engine process was ended by SIGKILL', heals=True,
          within=ENGINE_WITHIN),
    Fault('engine hung', partial(_signal, signal.SIGSTOP), 'engine: .*no sign of life|the chunk has run out',
          heals=True, within=ENGINE_WITHIN),
    Fault('engine out of memory', _memory, 'engine: out of memory', heals=True, within=ENGINE_WITHIN),
    Fault('engine makes NaN', partial(_task, 'fault nan'), 'the actions are not finite', within=ENGINE_WITHIN),
    Fault('engine ten times slower', _slow, stops=False, lasts=5.0),
    Fault('instruction changed while speaking', _new_instruction, stops=False, lasts=0.0),
    Fault('200 questions at once', _many_questions, stops=False, lasts=0.0),
)
