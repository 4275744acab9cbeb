"""Joint states are taken by name, from any mixture of messages, each joint with its own age."""
import math
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.contract import JointTopic, StateJoint
from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.joints import Joints

NAN = math.nan
T0 = 1000 * SECOND


def joints(*names, topics=('joint_states',), field='position', **options):
    return Joints([StateJoint(joint=name, field=field) for name in names],
                  [JointTopic(topic=topic, max_age=0.25, **options) for topic in topics])


def send(target, values, at=0.0, topic='joint_states', stamp=None, publisher=None, **fields):
    now = T0 + round(at * SECOND)
    target.update(topic, list(values), {'position': list(values.values()), **fields},
                  now if stamp is None else stamp, now, publisher)


def state(target, at=0.0):
    now = T0 + round(at * SECOND)
    return SimpleNamespace(values={joint: value for (joint, _), value in target.read().items()},
                           problems=target.problems(now, now))


def kinds(target, at=0.0):
    return [problem.kind for problem in state(target, at).problems]


@given(st.permutations(['a', 'b', 'c', 'unknown']))
def test_order_in_the_message_does_not_matter(order):
    target = joints('a', 'b', 'c')
    send(target, {name: float(ord(name[0])) for name in order})
    assert state(target).values == {'a': 97.0, 'b': 98.0, 'c': 99.0}
    assert not state(target).problems


def test_arm_and_gripper_in_alternating_messages_are_merged():
    target = joints('arm', 'grip')
    send(target, {'arm': 1.0}, 0.0)
    assert kinds(target) == ['unnamed'] and 'grip' in str(state(target).problems[0])
    send(target, {'grip': 2.0}, 0.1)
    send(target, {'arm': 3.0}, 0.2)
    assert state(target, 0.2).values == {'arm': 3.0, 'grip': 2.0} and not kinds(target, 0.2)


def test_each_joint_has_its_own_age():
    target = joints('arm', 'grip')
    send(target, {'arm': 1.0, 'grip': 1.0}, 0.0)
    send(target, {'arm': 1.0}, 0.3)
    problems = state(target, 0.3).problems
    assert [problem.kind for problem in problems] == ['stale']
    assert 'grip' in str(problems[0]) and 'arm' not in problems[0].text and '0.25 s' in str(problems[0])


def test_topics_have_their_own_maximum_age():
    target = Joints([StateJoint(joint='arm'), StateJoint(joint='grip')],
                    [JointTopic(topic='fast', max_age=0.1), JointTopic(topic='slow', max_age=2.0)])
    send(target, {'arm': 1.0}, topic='fast')
    send(target, {'grip': 1.0}, topic='slow')
    assert [(p.source, p.kind) for p in state(target, 0.5).problems] == [('fast', 'stale')]


@pytest.mark.parametrize('rubbish', [NAN, math.inf, -math.inf])
def test_non_finite_in_used_fields_is_refused_until_it_is_finite_again(rubbish):
    target = joints('a', 'b')
    send(target, {'a': 1.0, 'b': 1.0})
    send(target, {'a': rubbish, 'b': 1.0})
    problem, = state(target).problems
    assert problem.kind == 'nonfinite' and problem.blocking
    assert 'joint a' in str(problem) and 'joint_states' in str(problem)
    send(target, {'a': 2.0})
    assert not state(target).problems


def test_nan_in_unused_fields_and_joints_is_ignored():
    target = joints('a')
    send(target, {'a': 1.0, 'other': NAN}, velocity=[NAN, NAN], effort=[NAN, NAN])
    assert state(target).values == {'a': 1.0} and not state(target).problems


def test_velocity_can_be_the_used_field():
    target = joints('a', field='velocity')
    send(target, {'a': NAN}, velocity=[0.5])
    assert state(target).values == {'a': 0.5} and not state(target).problems


def test_short_and_empty_arrays_leave_the_joint_unread():
    target = joints('a', 'b')
    target.update('joint_states', ['a', 'b'], {'position': [1.0], 'velocity': []}, T0, T0)
    problem, = state(target).problems
    assert problem.kind == 'bare' and 'joint b' in str(problem) and 'without a position' in str(problem)
    target.update('joint_states', [], {}, T0, T0)
    assert state(target).values['a'] == 1.0


def test_conflicting_publishers_are_reported_but_do_not_stop_the_robot():
    target = joints('a')
    for at, publisher in ((0.00, 'x'), (0.01, 'y'), (0.02, 'x')):
        send(target, {'a': 1.0}, at, publisher=publisher)
    problem, = state(target, 0.03).problems
    assert problem.kind == 'conflict' and not problem.blocking and 'two publishers of joint_states' in str(problem)


def test_the_same_joint_on_two_topics_is_a_conflict():
    target = joints('a', topics=('left', 'right'))
    send(target, {'a': 1.0}, 0.0, 'left')
    send(target, {'a': 2.0}, 0.01, 'right')
    assert 'left and right' in str(state(target, 0.02).problems[0]) and 'prefix' in str(state(target, 0.02).problems[0])
    assert state(target).values == {'a': 2.0}


def test_a_prefix_tells_two_arms_with_the_same_joint_names_apart():
    target = Joints([StateJoint(joint='left_waist'), StateJoint(joint='right_waist')],
                    [JointTopic(topic=f'{side}/joint_states', prefix=f'{side}_') for side in ('left', 'right')])
    send(target, {'waist': 1.0}, 0.0, 'left/joint_states', publisher='x')
    problem, = state(target).problems
    assert str(problem).startswith('right/joint_states: joint right_waist: nothing received yet')
    send(target, {'hand': 1.0}, 0.0, 'right/joint_states', publisher='y')
    problem, = state(target).problems
    assert str(problem).startswith('right/joint_states: joint right_waist: no message gives its position')
    send(target, {'waist': 2.0, 'left_waist': 9.0}, 0.0, 'right/joint_states', publisher='y')
    assert state(target).values == {'left_waist': 1.0, 'right_waist': 2.0} and not state(target).problems


def test_different_joints_of_two_publishers_are_no_conflict():
    target = joints('a', 'b')
    for at in (0.0, 0.1):
        send(target, {'a': 1.0}, at, publisher='x')
        send(target, {'b': 1.0}, at, publisher='y')
    assert not state(target, 0.1).problems


def test_a_publisher_that_took_over_after_a_pause_is_no_conflict():
    target = joints('a')
    send(target, {'a': 1.0}, 0.0, publisher='x')
    send(target, {'a': 1.0}, 5.0, publisher='restarted')
    assert not state(target, 5.0).problems


def test_a_frozen_stamp_is_noticed_though_messages_arrive():
    target = joints('a')
    for step in range(6):
        send(target, {'a': 1.0}, step * 0.1, stamp=T0)
    assert kinds(target, 0.5) == ['frozen']


@pytest.mark.parametrize('offset, side', [(-3.0, 'old'), (3.0, 'in the future')])
def test_stamps_far_from_the_clock_are_named_with_the_remedy(offset, side):
    target = joints('a')
    send(target, {'a': 1.0}, stamp=T0 + round(offset * SECOND))
    problem, = state(target).problems
    assert problem.kind == 'late' and f'3.00 s {side}' in str(problem) and 'trust_stamp' in str(problem)
    trusting = joints('a', trust_stamp=False)
    send(trusting, {'a': 1.0}, stamp=T0 + round(offset * SECOND))
    assert not state(trusting).problems


def test_messages_without_a_stamp_are_judged_by_arrival_only():
    target = joints('a')
    for step in range(6):
        send(target, {'a': 1.0}, step * 0.1, stamp=0)
    assert not kinds(target, 0.5) and kinds(target, 1.0) == ['stale']


@given(names=st.lists(st.text(max_size=3) | st.sampled_from(['a', 'b']), max_size=6),
       position=st.lists(st.floats(), max_size=8), velocity=st.lists(st.floats(), max_size=8),
       stamp=st.integers(0, 2**62), received=st.integers(0, 2**62))
def test_any_message_is_survived_and_garbage_is_never_called_good(names, position, velocity, stamp, received):
    target = joints('a', 'b')
    target.update('joint_states', names, {'position': position, 'velocity': velocity}, stamp, received)
    values, problems = target.read(), target.problems(received, stamp)
    if not any(problem.blocking for problem in problems):
        assert all(math.isfinite(value) for value in values.values())
