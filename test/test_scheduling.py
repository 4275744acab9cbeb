"""Who is admitted, who takes part in a pass, and what fits before a deadline."""
import time

import numpy as np
import pytest
from engines import Rig, chunk_alone, observation

from oxygen_ros.engine.scheduler import Scheduler
from oxygen_ros.engine.wire import Ask
from oxygen_ros.kv import PoolFull


def test_urgent_requests_are_admitted_first_and_the_newest_humble_one_is_refused():
    rig = Rig(max_live=1, max_queued=1)
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('live', 'Subtask: ', 'narration', max_tokens=3))
    rig.engine.step()
    rig.engine.ask(Ask('memory', 'Memory: ', 'memory', max_tokens=3))
    rig.engine.ask(Ask('question', 'Where?', 'question', max_tokens=3))
    assert rig.final('memory').reason == 'error'
    assert 'refused' in rig.final('memory').detail
    rig.engine.ask(Ask('late', 'Where?', 'question', max_tokens=3))
    assert rig.final('late').reason == 'error'
    rig.engine.speak()
    assert rig.final('live').reason == rig.final('question').reason == 'length'


def test_a_humble_request_that_has_waited_long_goes_before_a_new_urgent_one(monkeypatch):
    rig = Rig(max_live=1)
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('memory', 'Memory: ', 'memory', max_tokens=3))
    now = time.monotonic()
    monkeypatch.setattr(time, 'monotonic', lambda: now + 25)
    rig.engine.ask(Ask('question', 'Where?', 'question', max_tokens=3))
    rig.engine.step()
    assert rig.ids('memory') and not rig.ids('question')


def test_when_the_pool_is_full_language_waits_and_control_goes_on():
    rig = Rig(max_live=8)
    taken = []
    rig.engine.act(observation(1))
    for capacity in (50, 1):  # somebody else's tails leave no room beside what control needs
        with pytest.raises(PoolFull):
            while True:
                taken.append(rig.engine.pool.tail(capacity))
    rig.engine.ask(Ask('waits', 'Subtask: ', max_tokens=24))
    for number in range(2, 6):
        rig.engine.act(observation(number))
        assert not rig.engine.step()
        np.testing.assert_array_equal(rig.chunk(number), chunk_alone(number))
    assert rig.engine.queued == 1
    for tail in taken:
        tail.release()
    rig.engine.speak()
    assert rig.final('waits').reason == 'length'


def test_those_who_wait_cost_the_others_nothing(monkeypatch):
    """Nothing that is done for each step or request looks at the whole queue."""
    rig = Rig(max_queued=300, max_live=2)
    for i in range(300):
        rig.engine.ask(Ask(f'{i}', 'Subtask: ', deadline_s=3600.0))

    def never(self):
        raise AssertionError('looked at everyone')

    with monkeypatch.context() as patched:
        patched.setattr(Scheduler, '__iter__', never)
        rig.engine.ask(Ask('one more', 'Subtask: '))
        rig.engine.act(observation(1))
        rig.engine.step()
        rig.engine.cancel('200')
    assert rig.final('200').reason == 'cancelled' and len(rig.ids('0')) == 1


def test_no_step_is_started_that_would_run_into_the_deadline():
    rig = Rig()
    rig.engine.warm_up()
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('it', 'Subtask: '))
    rig.engine.scheduler.times.add(1, 3600.0)  # one step of this size is known to take an hour
    rig.engine.speak(deadline_ns=time.monotonic_ns() + 10**9)
    assert rig.ids('it') == []
    rig.engine.speak()
    assert rig.final('it').reason == 'length'


def test_one_slow_spell_does_not_silence_speech_for_good():
    rig = Rig(ride=False)
    rig.engine.warm_up()
    rig.engine.ask(Ask('it', 'Subtask: '))
    rig.engine.scheduler.times.add(1, 30.0)  # the machine stood still for half a minute
    for cycle in range(100):
        rig.engine.act(observation(cycle))
        rig.engine.speak(deadline_ns=time.monotonic_ns() + 10**9)
        if cycle < 30:
            assert rig.ids('it') == [], 'doubt grows slowly'
    assert rig.final('it').reason == 'length'
    assert rig.engine.scheduler.times.p99(1) < 1.0, 'measured anew'


def test_nor_does_it_keep_two_requests_from_sharing_a_step_for_good():
    rig = Rig(ride=False)
    rig.engine.act(observation(1))
    for name, channel in (('urgent', 'question'), ('other', 'memory')):
        rig.engine.ask(Ask(name, '', channel))
    rig.engine.step()
    scheduler, budget = rig.engine.scheduler, 0.05
    scheduler.times.add(1, 0.001)
    scheduler.times.add(2, 0.5)
    assert len(scheduler.batch(budget)) == 1
    for _ in range(50):
        scheduler.relent(budget)
    assert len(scheduler.batch(budget)) == 2


def test_what_is_believable_and_too_slow_is_not_tried_again_and_again():
    """Two that take turns, each alone in time, are no reason to run both past the deadline."""
    rig = Rig(ride=False)
    rig.engine.act(observation(1))
    for name in ('one', 'other'):
        rig.engine.ask(Ask(name, ''))
    rig.engine.step()
    scheduler, budget = rig.engine.scheduler, 0.04
    for rows in (1, 2):
        scheduler.times.forget(rows)
    scheduler.times.add(1, 0.03)
    scheduler.times.add(2, 0.05)
    for _ in range(200):
        scheduler.relent(budget)
    assert len(scheduler.batch(budget)) == 1


def test_a_request_that_is_too_long_for_the_cycle_keeps_nobody_back():
    rig = Rig(ride=False)
    rig.engine.warm_up()
    rig.engine.scheduler.times.add(16, 3600.0)
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('long', 'a question of very many words: ', 'question', max_tokens=4))
    rig.engine.ask(Ask('short', '', 'memory', max_tokens=4))
    rig.engine.speak(deadline_ns=time.monotonic_ns() + 10**9)
    assert rig.ids('long') == [] and rig.final('short').reason == 'length'


def test_speech_yields_when_something_else_waits():
    rig = Rig()
    rig.engine.act(observation(1))
    rig.engine.ask(Ask('it', 'Subtask: '))
    polls = iter([False, False, True])
    rig.engine.speak(poll=lambda: next(polls))
    assert len(rig.ids('it')) == 2
