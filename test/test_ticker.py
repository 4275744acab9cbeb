"""The thread that publishes actions, and what keeps the node on time."""
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import pytest

from oxygen_ros.node.ticker import Ticker


def test_it_beats_until_it_is_stopped_and_never_after():
    enough, beats = threading.Event(), []

    def beat():
        beats.append(threading.current_thread().name)
        if len(beats) == 5:
            enough.set()

    ticker = Ticker(beat, 0.002)
    assert enough.wait(10.0)
    ticker.stop()
    assert set(beats) == {'ticker'} and 'ticker' not in {thread.name for thread in threading.enumerate()}
    ticker.check()


def test_beats_keep_their_phase_and_those_that_were_missed_are_left_out(monkeypatch):
    clock, beats, ms = SimpleNamespace(now=0, monotonic_ns=lambda: clock.now), [], 1_000_000

    class Stop(threading.Event):
        def wait(self, seconds):  # moves the clock
            clock.now += round(seconds * 1e9)
            return len(beats) == 5

    def beat():
        beats.append(clock.now // ms)
        if len(beats) == 2:
            clock.now += 105 * ms  # two and a half periods

    monkeypatch.setattr('oxygen_ros.node.ticker.time', clock)
    monkeypatch.setattr('oxygen_ros.node.ticker.threading', SimpleNamespace(Event=Stop, Thread=threading.Thread))
    ticker = Ticker(beat, 0.04)
    ticker.stop()
    ticker.check()
    assert beats == [20, 60, 180, 220, 260]  # not at 100 and 140, which were over, and no burst to make up for them


def test_what_a_beat_raises_ends_the_beats_and_reaches_the_owner():
    beats = []

    def beat():
        beats.append(1)
        raise ValueError('broken')

    ticker = Ticker(beat, 0.001)
    ticker._thread.join(10.0)
    for _ in range(2):  # it may be in the middle of something
        with pytest.raises(ValueError, match='broken'):
            ticker.check()
    ticker.stop()
    assert beats == [1]


def test_a_ticker_that_cannot_begin_does_not_end_in_silence(monkeypatch):
    def fail():
        raise SystemExit('no thread today')

    monkeypatch.setattr('oxygen_ros.node.ticker.lift', fail)
    ticker = Ticker(lambda: None, 0.001)
    ticker._thread.join(10.0)
    with pytest.raises(SystemExit, match='no thread today'):
        ticker.check()


def test_a_system_that_allows_no_higher_priority_does_not_keep_the_ticker_from_beating(monkeypatch):
    def deny(*_):
        raise PermissionError(1, 'Operation not permitted')

    monkeypatch.setattr(os, 'sched_getscheduler', lambda pid: os.SCHED_FIFO)
    monkeypatch.setattr(os, 'sched_setscheduler', deny)
    beaten = threading.Event()
    ticker = Ticker(beaten.set, 0.001)
    assert beaten.wait(10.0)
    ticker.stop()
    ticker.check()


_PREFER = """
import os, threading
from oxygen_ros.node import realtime
thread = threading.Thread(target=threading.Event().wait, daemon=True)
thread.start()
why = realtime.prefer(20)
print([os.sched_getscheduler(int(t)) == os.SCHED_FIFO for t in os.listdir('/proc/self/task')])
realtime.lift()
print(os.sched_getparam(0).sched_priority, why)
"""


def test_a_real_time_priority_holds_for_all_threads_or_the_reason_is_told():
    said = subprocess.run([sys.executable, '-c', _PREFER], capture_output=True, text=True, timeout=60, check=True,
                          env={**os.environ, 'OMP_NUM_THREADS': '1'}).stdout.splitlines()
    if said[0] == '[True, True]':
        assert said[1].strip() == '21'
    else:
        assert 'rtprio' in said[1] and said[1].startswith('0 ')
