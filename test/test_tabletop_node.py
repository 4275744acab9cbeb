"""The simulated robot over real DDS, as another process."""
import json

import numpy as np
import pytest
from builtin_interfaces.msg import Duration
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.episode import make_episode
from oxygen_ros.tabletop.expert import chunk, goal_of
from oxygen_ros.tabletop.scene import HOME

LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)


def _seconds(value):
    nanoseconds = round(1e9 * value)
    return Duration(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)


def _trajectory(points, names=arm.JOINTS, period=0.1):
    return JointTrajectory(joint_names=list(names), points=[
        JointTrajectoryPoint(positions=list(map(float, q)), time_from_start=_seconds(period * (i + 1)))
        for i, q in enumerate(points)])


def _robot(start, peer):
    """The robot's process and what it publishes."""
    process = start('robot', 'oxygen_ros.tabletop.main', '--ros-args', '-r', '__ns:=/arm', '-p', 'seed:=3',
                    '-p', 'episode_s:=3600.0')
    heard = {
        'front': peer.listen(Image, '/arm/front/image', qos_profile_sensor_data),
        'wrist': peer.listen(Image, '/arm/wrist/image', qos_profile_sensor_data),
        'joints': peer.listen(JointState, '/arm/joint_states'),
        'task': peer.listen(String, '/arm/task', LATCHED),
        'episode': peer.listen(String, '/arm/episode'),
    }
    send = peer.publisher(JointTrajectory, '/arm/joint_trajectory')
    return process, heard, send


@pytest.fixture
def robot(start, peer):
    return _robot(start, peer)


@pytest.fixture(scope='module')
def still(start_once, peer_once):
    """A robot for all tests that do not move it."""
    return _robot(start_once, peer_once)


def test_it_shows_pictures_joints_and_a_task(robot, peer):
    process, heard, _ = robot
    peer.wait_for(lambda: all(heard[name] for name in ('front', 'wrist', 'joints', 'task')), what='all topics')
    for camera in ('front', 'wrist'):
        image = heard[camera][0]
        assert (image.encoding, image.height, image.width, image.step) == ('rgb8', 64, 64, 192)
        assert np.frombuffer(image.data, np.uint8).std() > 10
    assert list(heard['joints'][0].name) == list(arm.JOINTS)
    np.testing.assert_allclose(heard['joints'][0].position, HOME, atol=1e-9)
    assert heard['task'][0].data == make_episode(3, 0).instruction
    assert process.interrupt() == 0 and 'Traceback' not in process.output


def test_it_goes_where_a_trajectory_says_in_any_order_of_joints(robot, peer):
    _, heard, send = robot
    target = HOME + np.linspace(-0.1, 0.1, 7)
    order = np.random.default_rng(0).permutation(7)
    send.publish(_trajectory([target[order]], [arm.JOINTS[i] for i in order], period=0.3))
    peer.wait_for(lambda: heard['joints'] and np.allclose(heard['joints'][-1].position, target), what='the target')


@pytest.mark.parametrize('bad, why', [
    (_trajectory([np.full(7, np.nan)]), 'non-finite'),
    (_trajectory([HOME], [*arm.JOINTS[:6], 'elbow']), 'lbr_iiwa_joint_7'),
    (_trajectory([HOME[:3]]), 'every joint')])
def test_it_says_why_it_ignores_a_trajectory_and_stands_still(still, peer_once, bad, why):
    process, heard, send = still
    for _ in range(3):
        send.publish(bad)
    process.wait_for_output(f'joint_trajectory ignored: .*{why}')
    seen = len(heard['joints'])
    peer_once.wait_for(lambda: len(heard['joints']) > seen + 10)
    np.testing.assert_allclose(heard['joints'][-1].position, HOME, atol=1e-9)
    assert sum(why in line for line in process.output.splitlines()) == 1


def test_an_episode_driven_by_the_expert_succeeds_and_the_next_begins(robot, peer):
    _, heard, send = robot
    episode = make_episode(3, 0, 3)
    assert episode.intent.colour
    peer.wait_for(lambda: heard['joints'])
    goal = goal_of(episode)
    send.publish(_trajectory(chunk(np.array(heard['joints'][-1].position), goal, 40)))
    outcome = peer.wait_for(lambda: heard['episode'] and heard['episode'][0], what='the end of the episode')
    ended = json.loads(outcome.data)
    assert ended['success'] and ended['episode'] == 0 and ended['task'] == episode.instruction
    peer.wait_for(lambda: heard['task'][-1].data == make_episode(3, 1, 3).instruction, what='the next task')


@pytest.mark.parametrize('setting', ['camera_rate_hz:=0', 'camera_rate_hz:=fast', 'seed:=x'])
def test_parameters_that_make_no_sense_are_one_line(start, setting):
    process = start('robot', 'oxygen_ros.tabletop.main', '--ros-args', '-p', setting)
    assert process.wait(30.0) == 2
    assert setting.split(':')[0] in process.output and 'Traceback' not in process.output


def test_a_whole_number_is_as_good_as_a_fraction(start, peer):
    start('robot', 'oxygen_ros.tabletop.main', '--ros-args', '-r', '__ns:=/whole', '-p', 'camera_rate_hz:=5')
    seen = peer.listen(Image, '/whole/front/image', qos_profile_sensor_data)
    peer.wait_for(lambda: seen)
