"""A node with a robot description: paths and sentences on `markers`, limits that are the stricter of two."""
import sys
import threading

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('yourdfpy')

from arm_engine import JOINTS  # noqa: E402
from ros_helpers import LATCHED, contract  # noqa: E402
from std_msgs.msg import String  # noqa: E402
from visualization_msgs.msg import Marker, MarkerArray  # noqa: E402

from oxygen_ros.contract import Contract, ContractError  # noqa: E402
from oxygen_ros.node.robot_model import RobotModel  # noqa: E402

IMPORT_S = 60.0  # yourdfpy takes a second to import, more on a busy machine

URDF = """<robot name="arm"><link name="ground"/><link name="upper"/><link name="lower"/><link name="hand"/>
<joint name="shoulder" type="revolute"><parent link="ground"/><child link="upper"/><axis xyz="0 0 1"/>
  <limit lower="-3" upper="{most}" velocity="{fastest}" effort="1"/></joint>
<joint name="elbow" type="revolute"><parent link="upper"/><child link="lower"/><origin xyz="1 0 0"/><axis xyz="0 0 1"/>
  <limit lower="-3" upper="3" velocity="9" effort="1"/></joint>
<joint name="mount" type="fixed"><parent link="lower"/><child link="hand"/><origin xyz="1 0 0"/></joint></robot>"""


def urdf(most=3.0, fastest=9.0) -> str:
    return URDF.format(most=most, fastest=fastest)


def describe(robot, text: str) -> None:
    robot.peer.publisher(String, f'{robot.namespace}/robot_description', LATCHED, wait=False).publish(String(data=text))


def test_the_planned_path_and_the_latest_sentence_are_shown(arm):
    robot = arm()
    shown = robot.peer.listen(MarkerArray, f'{robot.namespace}/markers', LATCHED)
    describe(robot, urdf())
    robot.robot.positions.update(shoulder=0.5, elbow=-0.5)

    def newest(namespace, action=Marker.ADD):
        markers = shown[-1].markers if shown else ()
        return next((m for m in markers if m.ns == namespace and m.action == action), None)

    path = robot.peer.wait_for(lambda: newest('path'), IMPORT_S, 'a path')
    assert path.header.frame_id == 'ground' and path.type == Marker.LINE_STRIP and path.scale.x > 0
    points = np.array([[p.x, p.y, p.z] for p in path.points])
    start = [np.cos(0.5) + 1.0, np.sin(0.5), 0.0]  # the hand points along x; it moves on meanwhile
    assert np.abs(points[0] - start).max() < 0.25 and np.abs(np.diff(points, axis=0)).max() > 0.005
    request = robot.ask(max_tokens=3)
    text = robot.answer(request)[-1].text
    robot.peer.wait_for(lambda: (said := newest('said')) and said.text == text and newest('path'))
    robot.robot.joints_work = False
    robot.peer.wait_for(lambda: newest('path', Marker.DELETE) and newest('said'), what='no path of a robot that stands')


def test_without_a_description_sentences_are_shown_all_the_same(arm):
    robot = arm(marker_frame='table')
    shown = robot.peer.listen(MarkerArray, f'{robot.namespace}/markers', LATCHED)
    robot.moves()
    text = robot.answer(robot.ask(max_tokens=3))[-1].text
    marker, = robot.peer.wait_for(lambda: shown and shown[-1].markers)
    assert (marker.text, marker.header.frame_id) == (text, 'table')


def test_a_joint_whose_limits_the_urdf_has_stands_still_until_it_is_there(arm):
    actions = [{'joint': 'shoulder', 'limits': 'urdf'}, {'joint': 'elbow', 'position': [-2, 2]}]
    robot = arm(contract={'actions': actions})
    robot.says('robot description on /arm.*/robot_description: none has been received.*shoulder')
    assert not robot.actions
    describe(robot, urdf(most=0.05))
    robot.says('joint limits: the stricter', IMPORT_S)
    robot.moves(10)
    positions = np.array([point.positions for message in robot.actions for point in message.points])
    shoulder, elbow = positions.T if tuple(robot.actions[0].joint_names) == JOINTS else positions.T[::-1]
    assert shoulder.max() <= 0.05 + 1e-9 < elbow.max()


def test_a_description_that_is_rubbish_is_said_once_and_changes_nothing(arm):
    robot = arm()
    robot.moves()
    describe(robot, '<robot')
    robot.says('robot description: cannot be read as a URDF', IMPORT_S)
    robot.moves(10)
    assert robot.count('robot description') == 1 and 'Traceback' not in robot.node.output


# --- without ROS -------------------------------------------------------------------------------------------------
def read(text: str, **changes) -> tuple[RobotModel, Contract | None]:
    """What a RobotModel makes of a URDF."""
    heard, there = [], threading.Event()
    model = RobotModel(Contract(**contract(**changes)), '/robot_description', lambda e: (heard.append(e), there.set()))
    model.read(text)
    assert there.wait(20.0)
    return model, model.take(heard[0])


def test_the_stricter_limit_counts():
    model, limited = read(urdf(most=0.3, fastest=0.2))
    shoulder, elbow = limited.joints
    assert shoulder.position == (-1.0, 0.3) and shoulder.velocity == 0.2
    assert elbow.position == (-2.0, 2.0) and elbow.velocity == 1.0
    assert not model.problems()


def test_limits_that_contradict_each_other_keep_the_robot_still():
    model, limited = read(urdf(most=-2.0))
    problem, = model.problems()
    assert limited is None and problem.blocking and "shoulder: the contract's limits [-1.0, 1.0]" in str(problem)


def test_without_the_library_the_remedy_is_told_and_the_contract_goes_on(monkeypatch):
    monkeypatch.setitem(sys.modules, 'yourdfpy', None)
    model, limited = read(urdf())
    assert limited is None and 'pip install' in model.why and not model.problems()


def test_a_contract_without_limits_must_say_where_they_come_from():
    with pytest.raises(ValueError, match='limits: urdf'):
        Contract(**contract(actions=[{'joint': joint} for joint in JOINTS]))
    with pytest.raises(ContractError, match='leave nothing'):
        Contract(**contract()).limited({'elbow': (5.0, 6.0, 1.0)})
