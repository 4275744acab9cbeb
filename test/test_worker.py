"""The loop in the engine process, driven through its pipe: what goes first, and what speech has to wait for."""
from __future__ import annotations

import threading
import time
from multiprocessing import Pipe

import numpy as np
import pytest
from fake_engine import OPTIONS, PATIENCE_S, Events, FakeEngine

from oxygen_ros.engine.wire import Ask, Chunk, Observe, Rejected, Report, Reset, Speech, Stop
from oxygen_ros.worker.images import ImageSlots
from oxygen_ros.worker.worker import _GRACE_NS, Worker

S = 1_000_000_000


class Recording(FakeEngine):
    """Keeps how it was asked to speak."""

    def __init__(self, emit):
        super().__init__(OPTIONS, emit)
        self.spoke = []   # (deadline it was given, when)

    def speak(self, deadline_ns=0, poll=None):
        if self.can_speak:
            self.spoke.append((deadline_ns, time.monotonic_ns()))
        super().speak(deadline_ns, poll)


class Loop:
    """A Worker on a thread, and the node's end of its pipe."""

    def __init__(self):
        self.pipe, theirs = Pipe()
        self.slots = ImageSlots(200_000, 3)
        self.events = Events()
        self.engine = Recording(self.events)
        self.worker = Worker(theirs, self.slots, self.engine, self.events)
        self.thread = threading.Thread(target=self.worker.run, daemon=True)

    def observe(self, sequence, deadline_ns=0, instruction=''):
        layout = self.slots.pack(sequence % 3, {'front': np.full((4, 4, 3), sequence, np.uint8)})
        self.pipe.send(Observe(sequence, 0, sequence % 3, layout, {}, np.zeros(2), instruction, 0, deadline_ns))

    def run(self):
        self.thread.start()

    def stop(self):
        self.pipe.send(Stop())
        self.thread.join(PATIENCE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def loop():
    loop = Loop()
    yield loop
    if loop.thread.is_alive():
        loop.stop()


def test_of_several_observations_the_newest_counts_and_each_is_answered(loop):
    for sequence in (1, 2, 3):
        loop.observe(sequence)
    loop.run()
    loop.events.wait(Chunk)
    assert [chunk.sequence for chunk in loop.events.of(Chunk)] == [3]
    assert [(event.sequence, event.why) for event in loop.events.of(Rejected)] == [
        (1, 'superseded by observation 2'), (2, 'superseded by observation 3')]


def test_a_reset_drops_the_observation_before_it(loop):
    loop.observe(1)
    loop.pipe.send(Reset())
    loop.observe(2)
    loop.run()
    loop.events.wait(Chunk, sequence=2)
    assert loop.events.wait(Rejected, sequence=1).why == 'reset'


def test_speech_stops_for_an_announced_observation_and_goes_on_if_it_does_not_come(loop, monkeypatch):
    monkeypatch.setattr('oxygen_ros.worker.worker.HEARTBEAT_S', 1e6)   # nothing but the deadline wakes it
    deadline = time.monotonic_ns() + S
    loop.pipe.send(Ask('q', ''))
    loop.observe(1, deadline)
    loop.run()
    patience = time.monotonic() + 30.0
    while not any(given == 0 for given, _ in loop.engine.spoke):
        assert time.monotonic() < patience, 'it never spoke freely'
        time.sleep(0.01)
    first = next(when for given, when in loop.engine.spoke if given == 0)
    assert loop.engine.spoke[0][0] == deadline
    assert first > deadline + _GRACE_NS, 'it spoke freely while the next observation was due'
    assert all(given == deadline for given, when in loop.engine.spoke if when < deadline)
    count = len(loop.events.of(Speech))
    loop.events.wait(Speech, count=count + 20)


def test_an_observation_interrupts_speech(loop):
    loop.pipe.send(Ask('q', ''))
    loop.observe(1)
    loop.run()
    loop.events.wait(Speech, count=20)
    loop.observe(2)
    loop.events.wait(Chunk, sequence=2)
    assert not loop.events.of(Speech, final=True)
    loop.events.wait(Report, heartbeat=False, cycles=2)


def test_one_report_follows_each_cycle_and_a_heartbeat_the_silence(loop):
    loop.run()
    loop.events.wait(Report, count=2, heartbeat=True)
    loop.observe(1)
    loop.events.wait(Report, heartbeat=False, cycles=1)
    loop.events.wait(Report, count=2, heartbeat=True, cycles=1)
    assert all(report.memory_bytes > 1e6 for report in loop.events.of(Report, heartbeat=True))
    assert len(loop.events.of(Report, heartbeat=False, cycles=1)) == 1


def test_reports_go_on_during_a_long_speech(loop):
    loop.pipe.send(Ask('q', ''))
    loop.observe(1)
    loop.run()
    loop.events.wait(Report, count=3, heartbeat=True, live=1)
    assert not loop.events.of(Speech, final=True)
    assert loop.events.of(Report, heartbeat=True, live=1)


def test_a_request_without_an_observation_waits_without_spinning(loop):
    loop.pipe.send(Ask('q', ''))
    loop.run()
    loop.events.wait(Report, count=3)
    assert loop.engine.spoke == []
    loop.observe(1)
    loop.events.wait(Speech, request_id='q')
