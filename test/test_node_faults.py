"""Whatever breaks: one clear message, no motion on garbage, and on again by itself when it is mended."""
import itertools
import re
from array import array
from functools import partial

import numpy as np
import pytest

pytest.importorskip('rclpy')

from arm_engine import HORIZON, PERIOD  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from lifecycle_msgs.msg import Transition  # noqa: E402
from rclpy.qos import QoSProfile, ReliabilityPolicy, qos_profile_sensor_data  # noqa: E402
from ros_helpers import LATCHED, Robot, arms, seconds, write_contract  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image, JointState  # noqa: E402
from std_msgs.msg import Float64MultiArray, String  # noqa: E402
from std_srvs.srv import SetBool  # noqa: E402
from trajectory_msgs.msg import JointTrajectory  # noqa: E402

from oxygen_ros.msg import SpeechRequest  # noqa: E402


def break_camera(robot):
    del robot.cameras['wrist']


def freeze_camera(robot):
    robot.frozen.add('wrist')


def change_encoding(robot):
    robot.cameras['wrist'] = '16UC1'


def break_joints(robot):
    robot.joints_work = False


def rename_joint(robot):
    robot.positions = {'shoulder': 0.0, 'ellbow': 0.0}


def spoil_joint(robot):
    robot.positions['elbow'] = float('nan')


def misplace_joint(robot):
    robot.positions['elbow'] = 1e9


def mend(robot):
    robot.cameras.update(front='rgb8', wrist='rgb8')
    robot.frozen.clear()
    robot.joints_work = True
    robot.positions = {'shoulder': 0.0, 'elbow': 0.0}


@pytest.mark.parametrize('fault, expected', [
    (break_camera, r'camera wrist on \S+/wrist/image: nothing received for'),
    (freeze_camera, r'camera wrist on \S+/wrist/image: the same stamp'),
    (change_encoding, r"camera wrist on \S+/wrist/image: encoding '16UC1' is depth"),
    (break_joints, r'joint_states: joint shoulder, elbow: nothing received for'),
    (rename_joint, r'joint_states: joint elbow: nothing received for'),
    (spoil_joint, r'joint_states: joint elbow: position is nan'),
    (misplace_joint, r'joint elbow: its position 1e\+09 is far outside of its limits'),
], ids=lambda value: getattr(value, '__name__', ''))
def test_a_fault_of_the_robot_is_named_once_stops_it_and_is_recovered_from(shared, fault, expected):
    robot = shared
    robot.moves()
    before = robot.matches(expected)
    fault(robot.robot)
    robot.peer.wait_for(lambda: robot.matches(expected) > before, what=expected)
    held = robot.stands_still()
    assert np.isfinite(held.points[0].positions).all()
    assert robot.matches(expected) == before + 1, robot.node.output
    assert robot.status_of('node').level == b'\x02'
    over = re.sub(r': .*', r': \\w+ is over', expected)
    before = robot.matches(over)
    mend(robot.robot)
    robot.moves()
    robot.peer.wait_for(lambda: robot.matches(over) > before, what=over)


@pytest.fixture(scope='module')
def idle(start_once, peer_once, tmp_path_factory):
    with arms(start_once, peer_once, tmp_path_factory.mktemp('idle')) as make:
        yield make(autostart=False)


@pytest.fixture
def unconfigured(idle):
    """A node that does not configure itself, one for all tests, and afterwards everything as it was."""
    yield idle
    idle.change_state(Transition.TRANSITION_DEACTIVATE)
    idle.change_state(Transition.TRANSITION_CLEANUP)
    mend(idle.robot)
    write_contract(idle.contract.parent)


@pytest.mark.parametrize('fault, expected', [
    (break_camera, 'camera wrist'), (change_encoding, '16UC1'), (rename_joint, 'joint elbow: no message gives'),
    (spoil_joint, 'position is nan')], ids=lambda value: getattr(value, '__name__', ''))
def test_nothing_moves_when_the_fault_is_there_from_the_start(unconfigured, fault, expected):
    robot = unconfigured
    fault(robot.robot)
    assert robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.change_state(Transition.TRANSITION_ACTIVATE)
    robot.says(expected)
    beats = len(robot.status)
    robot.peer.wait_for(lambda: len(robot.status) >= beats + 2)
    assert not robot.actions and not robot.chunks


def test_a_fault_is_noticed_between_two_observations_too(arm):
    robot = arm(cycle_rate_hz=0.05)
    robot.peer.wait_for(lambda: robot.chunks, what='a chunk')
    spoil_joint(robot.robot)
    robot.says('position is nan', 10.0)  # long before the next one


def test_nothing_is_said_about_what_the_robot_does_not_see(shared):
    robot = shared
    break_camera(robot.robot)
    robot.stands_still()
    refused, = robot.answer(robot.ask())
    assert refused.finish_reason == 'error' and re.search(r'camera wrist on \S+: nothing received', refused.detail)
    mend(robot.robot)
    robot.moves()
    assert robot.answer(robot.ask(max_tokens=2))[-1].finish_reason == 'length'


def test_a_chunk_that_was_rejected_is_forgotten_when_a_good_one_comes_while_the_node_is_paused(shared):
    robot, over = shared, shared.count('rejected is over')
    robot.robot.task('reject too dark')
    robot.stands_still()
    pause = f'{robot.namespace}/pause'
    assert robot.peer.call(SetBool, pause, SetBool.Request(data=True)).success
    robot.robot.task('fine')
    robot.peer.wait_for(lambda: robot.count('rejected is over') > over)
    assert robot.peer.call(SetBool, pause, SetBool.Request(data=False)).success
    robot.moves()


def test_finish_lets_the_chunk_run_out_and_then_is_silent(arm):
    robot = arm(stop_mode='finish', stamp_mode='now', forward_commands=True)
    rows = robot.peer.listen(Float64MultiArray, f'{robot.namespace}/commands')
    robot.moves()
    break_camera(robot.robot)
    robot.says('wrist/image: nothing received')
    robot.says('the chunk has run out')
    robot.status_of('motion')  # what was published before that has arrived by now
    last, beats = len(robot.actions), len(robot.status)
    robot.peer.wait_for(lambda: len(robot.status) >= beats + 2)
    assert len(robot.actions) == last
    action, chunk = robot.actions[-1], robot.chunks[-1]
    went_on = seconds(action.header.stamp) - seconds(chunk.header.stamp)  # by the clock of the node
    assert went_on > HORIZON * PERIOD / 2, 'it did not stop when the picture was missed'
    assert action.points[-1].positions[0] == pytest.approx(chunk.data[-2], abs=1e-3), 'at the last action of the chunk'
    assert list(rows[-1].data) == list(action.points[-1].positions), 'a row says so too'


def test_what_an_engine_makes_of_an_old_picture_when_it_wakes_up_is_not_used(arm, tmp_path):
    robot = arm(hang_timeout_s=60.0)
    robot.moves()
    robot.robot.task(f'until {tmp_path / "gate"}')
    robot.says('no sign of life for')
    for _ in range(2):
        robot.status_of('engine')  # comes once per second
    last = robot.chunks[-1].sequence
    (tmp_path / 'gate').touch()
    robot.says(r'observation: its chunk came \d+\.\d s after it and was not used')
    robot.peer.wait_for(lambda: robot.chunks[-1].sequence > last)
    assert last + 1 not in [chunk.sequence for chunk in robot.chunks]
    robot.moves()


def test_who_asks_while_an_input_is_missing_from_the_start_is_told_so(unconfigured):
    robot = unconfigured
    break_camera(robot.robot)
    assert robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.change_state(Transition.TRANSITION_ACTIVATE)
    last = robot.peer.wait_for(lambda: robot.ask() and next((token for token in robot.speech if token.is_final), None))
    assert last.finish_reason == 'error' and 'nothing new to speak about: camera wrist' in last.detail


def test_what_is_still_wrong_is_said_again_after_a_new_activation(unconfigured):
    robot, missing = unconfigured, r'camera wrist on \S+: nothing received yet'
    break_camera(robot.robot)
    assert robot.change_state(Transition.TRANSITION_CONFIGURE)
    for _ in range(2):
        before = robot.matches(missing)
        assert robot.change_state(Transition.TRANSITION_ACTIVATE)
        robot.peer.wait_for(lambda before=before: robot.matches(missing) > before)
        assert robot.change_state(Transition.TRANSITION_DEACTIVATE)


def test_an_optional_camera_may_be_missing(arm):
    cameras = [{'name': 'front', 'topic': 'front/image'},
               {'name': 'wrist', 'topic': 'wrist/image', 'required': False}]
    robot = arm(contract={'cameras': cameras})
    break_camera(robot.robot)
    robot.moves()
    robot.says('camera wrist')


@pytest.mark.parametrize('text', ['', '   ', '\n'])
def test_an_empty_task_is_rejected_and_the_one_before_goes_on(shared, text):
    robot, before = shared, shared.count('task rejected')
    robot.peer.wait_for(lambda: robot.robot.task(text) or robot.count('task rejected') > before)  # at most each second
    robot.says("task rejected: it is empty; going on with 'fine'")
    robot.moves()


def test_without_any_instruction_nothing_moves_until_one_comes(arm):
    robot = arm(contract={'instruction': ' '})
    robot.says('task: no instruction')
    assert not robot.actions
    robot.peer.publisher(String, f'{robot.namespace}/task').publish(String(data='fine'))  # not latched
    robot.moves()


# --- configuration -----------------------------------------------------------------------------------------------
@pytest.mark.parametrize('changes, expected', [
    ({'semantics': 'torque'}, 'contract.yaml: semantics: .*torque'),
    ({'actions': [{'joint': 'elbow'}]}, 'elbow has no limits'),
    (None, 'contract.yaml: cannot be read'),
    ({'checkpoint': 'broken_folder'}, 'weights of broken_folder are damaged'),
    ({'checkpoint': ''}, 'no checkpoint: set the parameter checkpoint, or name one in the contract /'),
    ({'checkpoint': 'relative', 'semantics': 'relative_position'}, 'added to the state twice'),
    ({'cameras': [{'name': 'left', 'topic': 'l'}]}, 'does not fit the checkpoint: .*does not know left'),
    ({'state': [{'joint': j} for j in ('shoulder', 'elbow', 'grip')]}, '3 entries, but the checkpoint reads 2'),
])
def test_what_cannot_be_configured_is_said_once_and_the_node_stays_manageable(unconfigured, changes, expected):
    robot, before = unconfigured, unconfigured.count('cannot configure')
    if changes is None:
        robot.contract.unlink()
    else:
        write_contract(robot.contract.parent, **changes)
    assert not robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.state() == 'unconfigured'
    robot.says(f'cannot configure: .*{expected}')
    assert robot.count('cannot configure') == before + 1 and 'Traceback' not in robot.node.output
    assert not robot.actions


def test_an_engine_that_cannot_be_started_leaves_the_node_manageable(unconfigured):
    robot = unconfigured
    write_contract(robot.contract.parent, checkpoint='unstartable')
    for _ in range(2):
        before = robot.count("can't start new thread")
        assert not robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.state() == 'unconfigured'
        robot.peer.wait_for(lambda before=before: robot.count("can't start new thread") > before)


def test_real_time_chunking_is_refused_where_it_could_do_nothing(arm):
    actions = [{'joint': 'shoulder', 'position': [-1, 1]}, {'name': 'vacuum'}]
    robot = arm(contract={'actions': actions}, real_time_chunking=True)
    robot.says('cannot configure: real_time_chunking: needs every action of the contract to be the position of a joint')
    assert robot.set('real_time_chunking', False) == (True, '')
    assert robot.change_state(Transition.TRANSITION_CONFIGURE)
    good, reason = robot.set('real_time_chunking', True)
    assert not good and 'needs every action' in reason


def test_a_mended_contract_can_be_configured(arm, tmp_path):
    robot = arm(contract={'semantics': 'torque'})
    robot.says('cannot configure')
    write_contract(tmp_path)
    assert robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.change_state(Transition.TRANSITION_ACTIVATE)
    robot.moves()


# --- time and transport ------------------------------------------------------------------------------------------
def test_time_that_goes_back_drops_everything_and_goes_on(arm):
    robot = arm(use_sim_time=True, robot=False,
                contract={'cameras': [{'name': 'front', 'topic': 'front/image'}]})
    clock = robot.peer.publisher(Clock, '/clock')
    images = robot.peer.publisher(Image, f'{robot.namespace}/front/image', qos_profile_sensor_data)
    joints = robot.peer.publisher(JointState, f'{robot.namespace}/joint_states')

    def play(second):
        """A tenth of a second of a bag, at ``second``."""
        stamp = Clock().clock.__class__(sec=int(second), nanosec=int(second % 1 * 1e9))
        clock.publish(Clock(clock=stamp))
        image = Image(height=8, width=8, encoding='rgb8', step=24, data=array('B', bytes(192)))
        image.header.stamp = stamp
        images.publish(image)
        state = JointState(name=['shoulder', 'elbow'], position=[0.0, 0.0])
        state.header.stamp = stamp
        joints.publish(state)

    def until(condition, second):
        """Play on from ``second`` until the condition holds."""
        times = itertools.count()

        def step():
            play(second + 0.05 * next(times))
            return condition()
        robot.peer.wait_for(step)

    until(lambda: len(robot.actions) > 5, 100.0)
    until(lambda: 'ROS time jumped' in robot.node.output, 2.0)
    have = len(robot.chunks)
    until(lambda: len(robot.chunks) > have + 2, 2.5)
    assert robot.chunks[-1].header.stamp.sec < 50
    have = len(robot.diagnostics)
    robot.peer.wait_for(lambda: len(robot.diagnostics) > have + 1, what='diagnostics while the clock stands still')
    rates = [float(value.value) for message in robot.diagnostics for status in message.status
             for value in status.values if value.key == 'rate_hz']
    assert rates and min(rates) >= 0.0


@pytest.mark.parametrize('reliability', [ReliabilityPolicy.BEST_EFFORT, ReliabilityPolicy.RELIABLE])
def test_inputs_of_both_reliabilities_are_heard(arm, reliability):
    qos = QoSProfile(depth=5, reliability=reliability)
    arm(robot=partial(Robot, joint_qos=qos, image_qos=qos)).moves()


def test_an_incompatible_qos_is_said_and_shown(arm):
    robot = arm(namespace='/strict', **{'qos_overrides./strict/front/image.subscription.reliability': 'reliable'})
    robot.says('/front/image: the other end wants another RELIABILITY')
    robot.peer.wait_for(lambda: 'incompatible RELIABILITY' in robot.status_of(
        f'camera front on {robot.namespace}/front/image').message)
    assert not robot.actions
    mended = robot.peer.publisher(Image, f'{robot.namespace}/front/image')
    image = Image(height=8, width=8, encoding='rgb8', step=24, data=array('B', bytes(192)))
    robot.peer.wait_for(lambda: mended.publish(image) or 'incompatible' not in robot.status_of(
        f'camera front on {robot.namespace}/front/image').message, what='no more complaint once pictures come')


def test_a_subscriber_of_another_qos_is_said_without_alarm(arm):
    robot = arm(robot=False)
    robot.peer.listen(JointTrajectory, f'{robot.namespace}/actions', LATCHED)
    robot.says(r'WARN\S* .*/actions: a subscriber wants another DURABILITY and gets no message')
    assert 'qos_overrides' not in robot.node.output


# --- rubbish -----------------------------------------------------------------------------------------------------
def test_a_flood_of_malformed_messages_of_every_kind_changes_nothing(arm, peer):
    robot = arm(contract={'cameras': [{'name': 'front', 'topic': 'front/image', 'required': False},
                                      {'name': 'wrist', 'topic': 'wrist/compressed', 'compressed': True,
                                       'required': False}]})
    robot.moves()
    prefix = robot.namespace
    send = {kind: peer.publisher(kind, f'{prefix}/{topic}', 100) for kind, topic in (
        (Image, 'front/image'), (CompressedImage, 'wrist/compressed'), (JointState, 'joint_states'),
        (SpeechRequest, 'ask'), (String, 'task'))}
    text = st.text(max_size=12).filter(lambda s: '\0' not in s)
    number = st.floats(width=32)
    size = st.integers(0, 2**32 - 1)
    data = st.binary(max_size=64).map(lambda b: array('B', b))
    kinds = st.one_of(
        st.builds(Image, height=size, width=size, step=size, encoding=text | st.sampled_from(['rgb8', 'mono16']),
                  is_bigendian=st.integers(0, 255), data=data),
        st.builds(CompressedImage, format=text, data=data),
        st.builds(JointState, name=st.lists(text | st.sampled_from(['shoulder', 'elbow']), max_size=4),
                  position=st.lists(number, max_size=5), velocity=st.lists(number, max_size=2)),
        st.builds(SpeechRequest, request_id=text, channel=text, seed=text, temperature=number, deadline=number,
                  max_tokens=size, stop=st.lists(text, max_size=2)),
        st.builds(String, data=st.sampled_from(['', ' ', '\n'])))

    @settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
    @given(message=kinds)
    def flood(message):
        send[type(message)].publish(message)

    flood()
    robot.moves(20)
    assert robot.node.returncode is None and 'Traceback' not in robot.node.output
    for message in robot.actions:
        for point in message.points:
            assert np.isfinite(point.positions).all() and (np.abs(point.positions) <= (1.2, 2.4)).all()
    for line in ('is not supported', 'no picture OpenCV', 'position is', 'task rejected'):
        assert robot.count(line) <= 8, f'{line}: {robot.count(line)} lines'
