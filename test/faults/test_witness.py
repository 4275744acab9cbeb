"""The witnesses see what they are there for, and nothing else: they judge the node, so they are judged first."""
import math
from dataclasses import replace

import numpy as np
import pytest

from oxygen_ros.bench.soak import Sample, theil_sen, verdicts
from oxygen_ros.bench.trust.witness import Limits, MotionWitness, SpeechWitness

GOOD = [[0.0, 0.0], [0.05, -0.05], [0.1, -0.1]]
DUE = [10.1, 10.2, 10.3]


@pytest.fixture
def motion():
    witness = MotionWitness(Limits(np.array([-1.0, -1.0]), np.array([1.0, 1.0]), np.array([1.0, 1.0])))
    witness.chunk(9.9, 0.1, 1.0, [0.0])
    return witness


def test_a_good_motion_and_a_hold_are_nothing_to_speak_of(motion):
    motion.trajectory(10.0, 10.0, DUE, GOOD)
    motion.blind = True
    motion.trajectory(10.5, 10.5, [10.6], [[0.1, -0.1]])
    assert motion.findings() == {} and (motion.messages, motion.moved, motion.held) == (2, 10.0, 10.5)


@pytest.mark.parametrize('stamp, due, rows, kind', [
    (10.0, DUE, [[0.0, 0.0], [math.nan, 0.0], [0.1, 0.0]], 'non-finite'),
    (10.0, DUE, [[0.0, 0.0], [math.inf, 0.0], [0.1, 0.0]], 'non-finite'),
    (10.0, DUE, [[0.95, 0.0], [1.01, 0.0], [1.0, 0.0]], 'out of limits'),
    (10.0, DUE, [[0.0, 0.0], [0.2, 0.0], [0.2, 0.0]], 'out of limits'),           # 2 rad/s
    (10.0, [10.1, 10.1, 10.2], GOOD, 'out of limits'),                            # no time between two points
    (11.1, [11.2, 11.3, 11.4], GOOD, 'stale'),                                    # the chunk ended at 11.0
    (10.0, [9.7, 9.8, 9.9], GOOD, 'stale'),                                       # all of it has passed
    (10.0, DUE, [[0.0], [0.1], [0.2]], 'malformed'),
    (10.0, [], [], 'malformed'),
])
def test_each_kind_of_bad_motion_is_seen(motion, stamp, due, rows, kind):
    motion.trajectory(stamp, stamp, due, rows)
    assert list(motion.findings()) == [kind] and motion.findings()[kind][0] == 1


def test_motion_while_nothing_may_move_is_seen(motion):
    motion.blind = True
    motion.trajectory(10.0, 10.0, DUE, GOOD)
    assert list(motion.findings()) == ['moved blindly']


def test_a_chunk_that_is_heard_after_its_trajectory_still_counts(motion):
    motion.trajectory(11.1, 11.1, [11.2, 11.3, 11.4], GOOD)
    motion.chunk(11.0, 0.05, 1.0, [0.0])
    assert motion.findings() == {}


def test_a_chunk_of_nan_is_seen(motion):
    motion.chunk(10.0, 0.1, 1.0, [0.0, math.nan])
    assert list(motion.findings()) == ['non-finite']


def said(witness, *messages):
    for message in messages:
        witness.speech('q', *message)
    return list(witness.findings())


def test_a_good_answer_is_nothing_to_speak_of():
    witness = SpeechWitness()
    witness.ask('q')
    assert said(witness, (0, 'on ', 'on ', False, ''), (1, 'top', 'on top', True, 'stop')) == []
    assert not witness.asked and witness.reasons == {'stop': 1}


@pytest.mark.parametrize('messages, kind', [
    ([(0, 'a', 'a', True, 'stop'), (1, 'b', 'ab', False, '')], 'after the end'),
    ([(0, 'a', 'a', True, 'stop'), (0, 'a', 'a', True, 'stop')], 'after the end'),
    ([(1, 'a', 'a', False, '')], 'out of sequence'),
    ([(0, 'a', 'a', False, ''), (0, 'b', 'ab', False, '')], 'out of sequence'),
    ([(0, 'a', 'b', False, '')], 'pieces are not the text'),
    ([(0, 'a', 'a', True, '')], 'no single reason'),
    ([(0, 'a', 'a', False, 'stop')], 'no single reason'),
    ([(0, 'a', 'a', True, 'bored')], 'no single reason'),
])
def test_each_kind_of_bad_answer_is_seen(messages, kind):
    assert said(SpeechWitness(), *messages) == [kind]


def test_what_is_not_answered_stays_open():
    witness = SpeechWitness()
    witness.ask('q')
    said(witness, (0, 'a', 'a', False, ''))
    assert list(witness.asked) == ['q']


# --- the soak's own judgement ------------------------------------------------------------------------------------
def samples(seconds=600, **grows):
    """Of a run without fault; ``grows``: how much a figure gains per second."""
    start = Sample(0.0, 114.0, 300.0, 27, 20, 9, 20_000, 50.0, 30.0)
    return [replace(start, t=float(t), **{name: getattr(start, name) + per_second * t
                                          for name, per_second in grows.items()}) for t in range(1, seconds)]


def test_a_steady_run_holds():
    assert all(holds for *_, holds in verdicts(samples()))


@pytest.mark.parametrize('name, per_second, words', [
    ('node', 8.0 / 3600, 'memory of the node'), ('engine', 8.0 / 3600, 'memory of the engine'),
    ('descriptors', 0.01, 'descriptors'), ('threads', 0.01, 'threads'), ('shared', 0.01, 'shared-memory'),
    ('rate', -0.01, 'drift')])
def test_whatever_grows_or_drifts_is_named(name, per_second, words):
    failed = [what for what, *_, holds in verdicts(samples(3600, **{name: per_second})) if not holds]
    assert len(failed) == 1 and words in failed[0]


def test_one_step_of_memory_is_no_slope():
    t = np.arange(600.0)
    assert theil_sen(t, np.where(t < 100, 300.0, 310.0)) == 0.0
    assert theil_sen(t, 300.0 + 0.5 * t) == pytest.approx(0.5)
