"""A recorded stream goes through the real node twice and gives the same chunks, as docs/bags.md tells."""
from array import array
from functools import partial

import numpy as np
import pytest

pytest.importorskip('rclpy')
pytest.importorskip('rosbags')

from builtin_interfaces.msg import Time  # noqa: E402
from lifecycle_msgs.msg import Transition  # noqa: E402
from lifecycle_msgs.srv import ChangeState  # noqa: E402
from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from ros_helpers import Arm, write_contract  # noqa: E402
from rosbags.highlevel import AnyReader  # noqa: E402
from rosbags.rosbag2 import StoragePlugin, Writer  # noqa: E402
from rosbags.typesys import Stores, get_typestore  # noqa: E402
from rosgraph_msgs.msg import Clock  # noqa: E402
from sensor_msgs.msg import Image, JointState  # noqa: E402

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
JOINTS = [f'joint_{i}' for i in range(1, 9)]
FRAMES, FIRST_S, PERIOD_S = 3, 1000, 0.1
PATIENT = {'max_age': 30.0}  # how long a step takes is no property of the recording


@pytest.fixture
def robot(start, peer, tmp_path):
    """The node on random weights with a fixed noise seed; one observation whenever it is activated."""
    inputs = [*(f'{name}/image' for name in CAMERAS), 'joint_states']
    path = write_contract(
        tmp_path, cameras=[{'name': name, 'topic': f'{name}/image', **PATIENT} for name in CAMERAS],
        joint_topics=[{'topic': 'joint_states', **PATIENT}], state=[{'joint': joint} for joint in JOINTS],
        actions=[{'joint': joint, 'position': [-100, 100]} for joint in JOINTS[:7]])
    arm = Arm(start, peer, '/bag', path, robot=None, module='oxygen_ros.node.main', autostart=False, use_sim_time=True,
              checkpoint='random:tiny', cycle_rate_hz=0.05, max_skew_s=10.0,
              **{'engine.noise_seed': 7, 'speech.narration.every_cycles': 0},
              **{f'qos_overrides./bag/{topic}.subscription.reliability': 'reliable' for topic in inputs})
    yield arm
    arm.close()


def frame(number: int):
    """(topic, message) of everything that the robot says at one moment."""
    rng = np.random.default_rng(number)
    seconds, nanoseconds = divmod(round((FIRST_S + number * PERIOD_S) * 1e9), 10**9)
    stamp = Time(sec=seconds, nanosec=nanoseconds)
    for name in CAMERAS:
        pixels = rng.integers(0, 256, (48, 64, 3), dtype=np.uint8)
        image = Image(height=48, width=64, encoding='rgb8', step=3 * 64, data=array('B', pixels.tobytes()))
        image.header.stamp = stamp
        yield f'/bag/{name}/image', image
    state = JointState(name=JOINTS, position=rng.uniform(-1, 1, len(JOINTS)).tolist())
    state.header.stamp = stamp
    yield '/bag/joint_states', state


def record(folder):
    """A bag as "ros2 bag record -s mcap" makes it."""
    types = get_typestore(Stores.LATEST)
    with Writer(folder, version=9, storage_plugin=StoragePlugin.MCAP) as bag:
        topics = {}
        for number in range(FRAMES):
            for topic, message in frame(number):
                if topic not in topics:
                    kind = f'sensor_msgs/msg/{type(message).__name__}'
                    topics[topic] = bag.add_connection(topic, kind, typestore=types)
                nanoseconds = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
                bag.write(topics[topic], nanoseconds, serialize_message(message))
    return folder


def heard(robot, clock, now, messages: int = 0):
    """Set the time and wait until the node says that it is so late and that it has so many messages of each input."""
    def told():
        clock.publish(Clock(clock=now))  # best effort: again until it is heard
        newest = robot.diagnostics[-1] if robot.diagnostics else None
        if newest is None or newest.header.stamp != now:
            return False
        counts = [value.value for status in newest.status for value in status.values if value.key == 'messages']
        return not messages or counts == [str(messages)] * (len(CAMERAS) + 1)
    robot.peer.wait_for(told, what=f'{messages} messages of each input at {now}')


def replay(robot, bag, clock, publishers) -> list:
    """The chunk of each frame of a bag: all of a moment is heard, then the node looks once."""
    heard(robot, clock, next(frame(0))[1].header.stamp)  # time goes back here, which drops what was heard before
    configure = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    assert robot.peer.call(ChangeState, '/bag/oxygen/change_state', configure, 90.0).success, robot.node.output
    robot.peer.wait_for(lambda: all(one.get_subscription_count() for one in publishers.values()))
    moments = {}
    with AnyReader([bag], default_typestore=get_typestore(Stores.LATEST)) as reader:
        for connection, nanoseconds, raw in reader.messages():
            moments.setdefault(nanoseconds, []).append((connection.topic, raw))
    chunks = []
    for nanoseconds, messages in moments.items():
        now = Time(sec=nanoseconds // 10**9, nanosec=nanoseconds % 10**9)
        for topic, raw in messages:
            publishers[topic].publish(bytes(raw))
        heard(robot, clock, now, len(chunks) + 1)
        have = len(robot.chunks)
        assert robot.change_state(Transition.TRANSITION_ACTIVATE)
        robot.peer.wait_for(lambda have=have: len(robot.chunks) > have, what=f'a chunk\n{robot.node.output}')
        assert robot.change_state(Transition.TRANSITION_DEACTIVATE)
        assert len(robot.chunks) == have + 1
        chunks.append(robot.chunks[-1])
        assert chunks[-1].header.stamp == now, 'made from this moment'
    assert robot.change_state(Transition.TRANSITION_CLEANUP)
    return chunks


@pytest.mark.timeout(400)  # two loads of a model, also on a busy machine
def test_a_recording_gives_the_same_chunks_twice(robot, tmp_path):
    bag = record(tmp_path / 'recording')
    clock = robot.peer.publisher(Clock, '/clock')
    publish = partial(robot.peer.publisher, wait=False)
    publishers = {topic: publish(type(message), topic) for topic, message in frame(0)}
    first = replay(robot, bag, clock, publishers)
    again = replay(robot, bag, clock, publishers)
    assert len(first) == FRAMES
    for one, two in zip(first, again, strict=True):
        assert (one.header.stamp, one.sequence, one.names) == (two.header.stamp, two.sequence, two.names)
        assert one.data.tobytes() == two.data.tobytes(), 'to the last bit'
    assert len({chunk.data.tobytes() for chunk in first}) == FRAMES, 'and each from its own observation'


def test_what_is_recorded_is_what_is_read(tmp_path):
    with AnyReader([record(tmp_path / 'recording')], default_typestore=get_typestore(Stores.LATEST)) as reader:
        read = [(connection.topic, bytes(raw)) for connection, _, raw in reader.messages()]
    assert len(read) == FRAMES * (len(CAMERAS) + 1)
    for (topic, raw), (expected_topic, message) in zip(read, frame(0), strict=False):
        assert topic == expected_topic and deserialize_message(raw, type(message)) == message
