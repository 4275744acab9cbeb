"""For tests of the node: a contract for the two-joint arm of arm_engine, and a robot that publishes its inputs."""
import itertools
import os
import re
import threading
import time
from array import array
from contextlib import contextmanager
from pathlib import Path

import yaml
from arm_engine import JOINTS, PERIOD
from builtin_interfaces.msg import Time
from diagnostic_msgs.msg import DiagnosticArray
from lifecycle_msgs.msg import Transition
from lifecycle_msgs.srv import ChangeState, GetState
from rcl_interfaces.srv import SetParameters
from rclpy.parameter import Parameter
from rclpy.qos import DurabilityPolicy, QoSProfile, qos_profile_sensor_data
from sensor_msgs.msg import Image, JointState
from std_msgs.msg import String
from trajectory_msgs.msg import JointTrajectory

from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken

TEST = str(Path(__file__).parent)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
LIMITS = {'shoulder': (-1.0, 1.0), 'elbow': (-2.0, 2.0)}


def contract(**changes) -> dict:
    return {'robot': 'test arm', 'checkpoint': 'fake', 'semantics': 'absolute_position', 'policy_period': PERIOD,
            'instruction': 'fine',
            # Ages that a busy machine keeps: this one runs the robot and the node, and more.
            'cameras': [{'name': name, 'topic': f'{name}/image', 'max_age': 1.0} for name in ('front', 'wrist')],
            'joint_topics': [{'topic': 'joint_states', 'max_age': 1.0}],
            'state': [{'joint': joint} for joint in JOINTS],
            'actions': [{'joint': joint, 'position': list(LIMITS[joint])} for joint in JOINTS], **changes}


def write_contract(folder: Path, **changes) -> Path:
    path = folder / 'contract.yaml'
    path.write_text(yaml.safe_dump(contract(**changes)))
    return path


def start_node(start, module: str, namespace: str, contract: Path, *arguments: str, **parameters):
    """The node as a program of its own; module: 'arm_node' (fake engine) or 'oxygen_ros.node.main'."""
    parameters = {'contract': contract, **parameters}
    settings = [part for name, value in parameters.items() for part in ('-p', f'{name}:={value}')]
    return start('node', module, '--ros-args', '-r', f'__ns:={namespace}', *settings, *arguments,
                 env={'PYTHONPATH': os.pathsep.join(filter(None, [TEST, os.environ.get('PYTHONPATH')]))})


class Robot:
    """Publishes cameras and joint states from a thread until closed. Change the attributes to break something."""

    def __init__(self, node, namespace: str, joint_qos=10, image_qos=qos_profile_sensor_data, joints=JOINTS,
                 cameras=('front', 'wrist')) -> None:
        self._node = node
        self.positions = dict.fromkeys(joints, 0.0)
        self.cameras = dict.fromkeys(cameras, 'rgb8')      # the cameras that work, and their encoding
        self.joints_work = True
        self.frozen: set[str] = set()                       # cameras that repeat their stamp
        self._stamps: dict[str, Time] = {}
        self._joints = node.create_publisher(JointState, f'{namespace}/joint_states', joint_qos)
        self._images = {name: node.create_publisher(Image, f'{namespace}/{name}/image', image_qos)
                        for name in self.cameras}
        self._task = node.create_publisher(String, f'{namespace}/task', LATCHED)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def task(self, text: str) -> None:
        self._task.publish(String(data=text))

    def close(self) -> None:
        """The publishers go with the node: rclpy bears no other thread that destroys them while it waits."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(0.04):
            stamp = self._node.get_clock().now().to_msg()
            if self.joints_work:
                names = list(reversed(self.positions))  # never in the contract's order
                message = JointState(name=names, position=[self.positions[name] for name in names])
                message.header.stamp = stamp
                self._joints.publish(message)
            for name, encoding in dict(self.cameras).items():
                image = Image(height=8, width=8, encoding=encoding, step=24, data=array('B', bytes(8 * 24)))
                image.header.stamp = self._stamps.get(name, stamp) if name in self.frozen else stamp
                self._stamps[name] = image.header.stamp
                self._images[name].publish(image)


def seconds(duration) -> float:
    return duration.sec + duration.nanosec * 1e-9


def jtc_faults(message, joints=JOINTS, received: float | None = None) -> list[str]:
    """What joint_trajectory_controller would refuse (validate_trajectory_msg of ros2_controllers), in our words.

    received: when it arrived on the ROS clock, s.
    """
    faults = []
    if set(message.joint_names) != set(joints) or len(message.joint_names) != len(joints):
        faults.append(f'joints {message.joint_names}')
    if not message.points:
        return [*faults, 'no points']
    times = [seconds(point.time_from_start) for point in message.points]
    if any(later <= earlier for earlier, later in zip(times, times[1:], strict=False)):
        faults.append('time_from_start does not increase strictly')
    stamp = seconds(message.header.stamp)
    if stamp and stamp + times[-1] < (time.time() if received is None else received):
        faults.append('it ends in the past')
    for point in message.points:
        if len(point.positions) != len(message.joint_names):
            faults.append('a point without a position for every joint')
        if any(len(values) not in (0, len(message.joint_names)) for values in (point.velocities, point.accelerations)):
            faults.append('velocities or accelerations of another length')
        if point.effort:
            faults.append('effort given')
    if any(message.points[-1].velocities):
        faults.append('the last point still moves')
    return faults


class Arm:
    """A node under test with everything that it says, and the robot that feeds it."""

    def __init__(self, start, peer, namespace: str, contract: Path, *arguments: str, robot=True, module='arm_node',
                 **parameters) -> None:
        self.peer, self.namespace, self.contract = peer, namespace, contract
        self.actions = peer.listen(JointTrajectory, f'{namespace}/actions')
        self.chunks = peer.listen(ActionChunk, f'{namespace}/action_chunk')
        self.speech = peer.listen(SpeechToken, f'{namespace}/speech', 256)
        self.said = peer.listen(String, f'{namespace}/said')
        self.status = peer.listen(EngineStatus, f'{namespace}/status')
        self.diagnostics = peer.listen(DiagnosticArray, '/diagnostics')
        robot = Robot if robot is True else robot
        self.robot = robot(peer.node, namespace) if robot else None
        self.node = start_node(start, module, namespace, contract, *arguments, **parameters)

    def close(self) -> None:
        if self.robot:
            self.robot.close()

    def says(self, pattern: str, timeout: float = 20.0) -> None:
        """Wait until the node's output matches."""
        self.node.wait_for_output(pattern, timeout)

    def count(self, text: str) -> int:
        """Lines of the node's output that hold ``text``."""
        return sum(text in line for line in self.node.output.splitlines())

    def matches(self, pattern: str) -> int:
        """How often the node's output matches."""
        return len(re.findall(pattern, self.node.output))

    def moves(self, messages: int = 3) -> None:
        """Wait until the node publishes (more) actions."""
        have = len(self.actions)
        self.peer.wait_for(lambda: len(self.actions) >= have + messages, what='actions')

    def stands_still(self) -> JointTrajectory:
        """Wait until the node has said to hold and then cycles on without actions; the last trajectory."""
        self.peer.wait_for(lambda: self.actions and len(self.actions[-1].points) == 1, what='a single point to hold')
        last, beats = len(self.actions), len(self.status)
        self.peer.wait_for(lambda: len(self.status) >= beats + 2, what='two more reports')
        assert len(self.actions) == last, 'nothing is published after the hold'
        return self.actions[-1]

    def ask(self, seed: str = 'why? ', **fields) -> str:
        """Send a question; its id."""
        fields.setdefault('request_id', f'test-{len(self.speech)}-{time.monotonic_ns()}')
        publisher = self.peer.publisher(SpeechRequest, f'{self.namespace}/ask')
        publisher.publish(SpeechRequest(seed=seed, **fields))
        return fields['request_id']

    def answer(self, request_id: str) -> list[SpeechToken]:
        """What was said about a request, once its last message is there."""
        def complete():
            heard = [token for token in self.speech if token.request_id == request_id]
            return heard if heard and heard[-1].is_final else None
        return self.peer.wait_for(complete, what=f'the end of {request_id}')

    def change_state(self, transition: int) -> bool:
        self.state()  # the two ends know each other now: this answer will not be lost
        request = ChangeState.Request(transition=Transition(id=transition))
        return self.peer.call(ChangeState, f'{self.namespace}/oxygen/change_state', request).success

    def state(self) -> str:
        """A node that has just started may answer before it has discovered who asks; then the answer is lost."""
        request = GetState.Request()
        return self.peer.call(GetState, f'{self.namespace}/oxygen/get_state', request, again_s=2.0).current_state.label

    def set(self, name: str, value) -> tuple[bool, str]:
        """Set a parameter: (successful, reason)."""
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        service = f'{self.namespace}/oxygen/set_parameters'
        result = self.peer.call(SetParameters, service, request, again_s=2.0).results[0]
        return result.successful, result.reason

    def status_of(self, name: str):
        """Wait for the next diagnostics of one part."""
        full, have = f'{self.namespace}/oxygen: {name}', len(self.diagnostics)

        def newer():
            statuses = [status for message in self.diagnostics[have:] for status in message.status]
            return next((status for status in statuses if status.name == full), None)
        return self.peer.wait_for(newer, what=f'diagnostics of {full}')


_numbers = itertools.count()


@contextmanager
def arms(start, peer, folder: Path):
    """make(**parameters) -> a running Arm; all of them are closed at the end."""
    made = []

    def make(*arguments, contract=None, namespace='', **options):
        path = write_contract(folder, **(contract or {}))
        made.append(Arm(start, peer, namespace or f'/arm{next(_numbers)}', path, *arguments, **options))
        return made[-1]

    yield make
    for arm in made:
        arm.close()
