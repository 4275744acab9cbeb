"""The node as a user runs it, over real DDS, with an engine that has no model."""
from functools import partial

import numpy as np
import pytest

pytest.importorskip('rclpy')

from arm_engine import HORIZON, JOINTS, PERIOD, SPEED  # noqa: E402
from ros_helpers import Robot, jtc_faults, seconds  # noqa: E402
from std_msgs.msg import Float64MultiArray, String  # noqa: E402
from std_srvs.srv import SetBool  # noqa: E402


# --- the real engine ---------------------------------------------------------------------------------------------
@pytest.fixture
def real(arm):
    """The node with a small random pi0.5, and the robot that it takes."""
    joints = [f'joint_{i}' for i in range(1, 9)]
    cameras = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
    contract = {'cameras': [{'name': name, 'topic': f'{name}/image'} for name in cameras],
                'state': [{'joint': joint} for joint in joints],
                'actions': [{'joint': joint, 'position': [-1, 1]} for joint in reversed(joints[:7])]}
    return arm(module='oxygen_ros.node.main', contract=contract, checkpoint='random:tiny',
               robot=partial(Robot, joints=joints, cameras=cameras), **{'speech.max_tokens': 100})


def test_a_real_model_moves_and_talks_from_one_prefill_per_observation(real):
    real.moves(10)
    assert real.actions[-1].joint_names == [f'joint_{i}' for i in range(7, 0, -1)]
    assert not jtc_faults(real.actions[-1], real.actions[-1].joint_names)
    request, actions = real.ask(), len(real.actions)
    first = real.peer.wait_for(lambda: next((t for t in real.speech if t.request_id == request), None))
    assert not first.is_final
    real.moves(5)
    request_2 = real.ask('and why? ')
    tokens = real.answer(request)
    assert {tokens[-1].finish_reason, real.answer(request_2)[-1].finish_reason} <= {'length', 'stop'}
    assert ''.join(token.delta for token in tokens) == tokens[-1].text
    assert len(real.actions) > actions
    status = real.status[-1]
    assert status.cycles == status.prefills > 0 and status.tokens > 0 and status.healthy
    assert 0 < status.kv_bytes <= status.kv_bytes_peak <= status.kv_bytes_capacity


# --- motion ------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize('stamp_mode', ['zero', 'now', 'observation'])
def test_actions_pass_the_controllers_own_rules_in_every_stamp_mode(arm, stamp_mode):
    robot = arm(stamp_mode=stamp_mode)
    robot.moves(20)
    clock = robot.peer.node.get_clock()
    received = clock.now().nanoseconds * 1e-9
    for message in robot.actions[-10:]:
        assert not jtc_faults(message, received=received)
        assert message.joint_names == list(JOINTS), 'the order of the contract, by name'
        stamp, first = seconds(message.header.stamp), seconds(message.points[0].time_from_start)
        assert (stamp == 0) == (stamp_mode == 'zero')
        if stamp_mode == 'observation':
            observed = [seconds(chunk.header.stamp) for chunk in robot.chunks]
            assert any(abs(stamp - one) < 1e-6 for one in observed) and first > PERIOD
        else:
            assert first == pytest.approx(PERIOD, abs=1e-9)
        positions = np.array([point.positions for point in message.points])
        assert np.isfinite(positions).all() and (np.abs(positions) <= (1.0, 2.0)).all()


def test_the_motion_follows_the_policy_from_where_the_robot_is(arm):
    robot = arm(robot=True)
    robot.robot.positions.update(shoulder=0.5, elbow=-0.5)
    robot.moves(10)
    first = np.array(robot.actions[0].points[0].positions)
    assert first == pytest.approx([0.5 + SPEED * PERIOD, -0.5 + SPEED * PERIOD], abs=0.02)


def test_each_chunk_is_published_once_raw_and_explained(shared):
    robot, have = shared, len(shared.chunks)
    robot.peer.wait_for(lambda: len(robot.chunks) >= have + 5)
    chunks = robot.chunks[have:]
    assert [chunk.sequence for chunk in chunks] == sorted({chunk.sequence for chunk in chunks})
    for chunk in chunks:
        assert (chunk.horizon, chunk.action_dim, len(chunk.data)) == (HORIZON, 2, 2 * HORIZON)
        assert list(chunk.names) == list(JOINTS) and chunk.semantics == 'absolute_position'
        assert seconds(chunk.period) == pytest.approx(PERIOD) and 0 <= chunk.latency < 20
        assert chunk.data[:2].tolist() == pytest.approx([SPEED * PERIOD] * 2)


def test_status_tells_how_much_the_motion_bent_where_chunks_meet(shared):
    # The robot says for ever that it stands at 0, so that every chunk begins there again.
    status = shared.peer.wait_for(lambda: next((s for s in shared.status if s.seam_velocity > 0), None))
    assert 0 < status.seam_position < 1.0 and status.seam_jerk > 0


def test_actions_keep_coming_between_the_chunks_of_a_slow_engine(arm):
    robot = arm(instruction='"sleep 0.4"')
    robot.moves()
    chunks, actions = len(robot.chunks), len(robot.actions)
    robot.peer.wait_for(lambda: len(robot.chunks) >= chunks + 2)
    assert len(robot.actions) - actions > 10, '50 Hz against 2.5 Hz'


def test_an_engine_slower_than_its_chunks_is_said_and_what_it_saw_standing_is_used_in_full(arm):
    robot = arm(instruction='"sleep 1.5"')
    robot.says('motion: the chunk has run out and no newer one came')
    before, end = len(robot.actions), robot.chunks[-1].data[-2:]

    def in_full(actions) -> bool:
        return len(actions.points) == robot.chunks[-1].horizon and np.allclose(actions.points[-1].positions, end)

    # Every second chunk: of one that was seen at the start of a motion little or nothing is left at its end.
    robot.peer.wait_for(lambda: any(map(in_full, robot.actions[before:])), what='a chunk from its first action on')
    robot.peer.wait_for(lambda: robot.status_of('motion').level == b'\x01', what='a diagnosis while it stands')


def test_with_real_time_chunking_a_chunk_begins_with_what_is_executed_meanwhile(arm):
    robot = arm(real_time_chunking=True, instruction='"sleep 0.35"')
    robot.moves()
    robot.peer.wait_for(lambda: len(robot.chunks) >= 4)
    # The robot reports 0 for ever, so that a chunk by itself always starts at 0; committed ones go on from before.
    firsts = [chunk.data[0] for chunk in robot.chunks[:4]]
    assert firsts[0] == pytest.approx(SPEED * PERIOD) and min(firsts[2:]) > 2 * SPEED * PERIOD


def test_a_slow_engine_gets_the_newest_inputs_not_a_queue(arm):
    robot = arm(instruction='"sleep 0.5"')
    robot.peer.wait_for(lambda: len(robot.chunks) >= 6)
    stamps = [seconds(chunk.header.stamp) for chunk in robot.chunks]
    # With a queue every observation would be one camera period (0.04 s) after the one before.
    assert np.median(np.diff(stamps)) > 0.3


def test_a_forward_controller_gets_one_row_per_tick(arm):
    robot = arm(forward_commands=True)
    rows = robot.peer.listen(Float64MultiArray, f'{robot.namespace}/commands')
    robot.peer.wait_for(lambda: len(rows) > 20)
    steps = np.abs(np.diff([row.data for row in rows], axis=0))
    assert len(rows[0].data) == len(JOINTS) and steps.max() < 1.0 * 0.5, 'no faster than 1 rad/s'
    robot.peer.call(SetBool, f'{robot.namespace}/pause', SetBool.Request(data=True))
    robot.stands_still()
    robot.peer.wait_for(lambda: list(rows[-1].data) == list(robot.actions[-1].points[0].positions))


@pytest.mark.parametrize('semantics', ['velocity', 'cartesian'])
def test_what_is_no_position_never_reaches_the_position_topic(arm, semantics):
    robot = arm(contract={'semantics': semantics})
    robot.peer.wait_for(lambda: len(robot.chunks) >= 5)
    assert robot.chunks[0].semantics == semantics and not robot.actions


def test_an_engine_that_is_slow_by_its_own_account_is_not_said_to_hang(arm):
    robot = arm(checkpoint='"act 1.5"', instruction='"sleep 1.5"')
    robot.peer.wait_for(lambda: robot.chunks, what='a chunk')
    assert not robot.count('no sign of life')


def test_a_quicker_pace_does_not_wait_for_the_slow_one(arm):
    robot = arm(cycle_rate_hz=0.05)
    robot.peer.wait_for(lambda: robot.chunks, what='the first chunk')
    assert robot.set('cycle_rate_hz', 10.0) == (True, '')
    robot.peer.wait_for(lambda: len(robot.chunks) > 3, 10.0, 'chunks long before 20 s')


# --- speech ------------------------------------------------------------------------------------------------------
def test_a_question_is_answered_while_actions_go_on(shared):
    robot, request = shared, shared.ask()  # for as long as it is let
    robot.peer.wait_for(lambda: any(token.request_id == request for token in robot.speech))
    robot.moves()
    assert not any(token.is_final for token in robot.speech if token.request_id == request), 'both at once'
    robot.peer.publisher(String, f'{robot.namespace}/cancel').publish(String(data=request))
    robot.answer(request)


def test_an_answer_streams_without_gaps_and_is_said_at_its_end(shared):
    robot = shared
    tokens = robot.answer(robot.ask(max_tokens=30))
    assert [token.sequence for token in tokens] == list(range(len(tokens))), 'no gaps'
    assert ''.join(token.delta for token in tokens[:-1]) in tokens[-1].text
    assert [token.is_final for token in tokens].count(True) == 1 and tokens[-1].finish_reason == 'length'
    robot.peer.wait_for(lambda: tokens[-1].text in [message.data for message in robot.said])


def test_cancel_ends_a_request_with_the_reason(shared):
    robot = shared
    request = robot.ask()
    robot.peer.wait_for(lambda: any(token.request_id == request for token in robot.speech))
    robot.peer.publisher(String, f'{robot.namespace}/cancel').publish(String(data=request))
    last = robot.answer(request)[-1]
    assert last.finish_reason == 'cancelled'
    robot.moves()
    assert last.text not in [message.data for message in robot.said], 'half a sentence is not said'


def test_a_long_answer_loses_nothing(shared):
    tokens = shared.answer(shared.ask(max_tokens=200))
    assert [token.sequence for token in tokens] == list(range(200))
    assert all(tokens[i].text.startswith(tokens[i - 1].text) for i in range(1, 200)), 'each repeats all before it'


@pytest.mark.parametrize('fields, expected', [
    ({'seed': ''}, 'seed is empty'), ({'temperature': float('nan')}, 'temperature is nan'),
    ({'temperature': -1.0}, 'temperature is -1'), ({'deadline': float('inf')}, 'deadline is inf')])
def test_a_request_that_makes_no_sense_is_refused_with_the_reason(shared, fields, expected):
    token, = shared.answer(shared.ask(**fields))
    assert token.finish_reason == 'error' and expected in token.detail


def test_a_request_takes_the_place_of_the_one_of_its_id_even_if_it_makes_no_sense(shared):
    robot = shared
    request = robot.ask()

    def heard():
        return [token for token in robot.speech if token.request_id == request]

    robot.peer.wait_for(heard)
    robot.ask('again? ', request_id=request)
    robot.peer.wait_for(lambda: any(a.is_final and not b.is_final for a, b in zip(heard(), heard()[1:])))
    robot.ask('', request_id=request)
    robot.peer.wait_for(lambda: sum(token.is_final for token in heard()) == 3)
    robot.answer(robot.ask(max_tokens=3))  # whatever the engine still said of the others has arrived by now
    tokens = heard()
    assert [token.finish_reason for token in tokens if token.is_final] == ['cancelled', 'cancelled', 'error']
    assert all(b.sequence == (0 if a.is_final else a.sequence + 1) for a, b in zip(tokens, tokens[1:]))
    assert tokens[-1].is_final and 'seed is empty' in tokens[-1].detail


def test_a_request_without_an_id_is_given_one(shared):
    shared.ask(request_id='', max_tokens=2, channel='anonymous')
    shared.peer.wait_for(lambda: any(token.request_id and token.is_final and token.channel == 'anonymous'
                                     for token in shared.speech))


# --- more than one -----------------------------------------------------------------------------------------------
def test_two_robots_in_one_domain_do_not_disturb_each_other(arm):
    left, right = arm(), arm()
    left.robot.positions.update(shoulder=0.6)
    right.robot.positions.update(shoulder=-0.6)
    left.moves()
    right.moves()
    left.peer.call(SetBool, f'{left.namespace}/pause', SetBool.Request(data=True))
    left.stands_still()
    right.moves()
    assert all(message.points[0].positions[0] > 0 for message in left.actions[3:])
    assert all(message.points[0].positions[0] < 0 for message in right.actions[3:])
