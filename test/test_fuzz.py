"""A thousand malformed messages of every input: nothing crashes, nothing garbled reaches the policy, no flood of lines.

The node runs in this process with an engine that answers at once, so that every message is seen through: callback,
tick, observation, action. test_node_faults.py sends such messages over DDS to the node as a user runs it.
"""
import itertools
import time
from array import array
from collections import Counter

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

rclpy = pytest.importorskip('rclpy')

import cv2  # noqa: E402
from arm_engine import HORIZON, JOINTS  # noqa: E402
from rclpy.parameter import Parameter  # noqa: E402
from ros_helpers import LIMITS, write_contract  # noqa: E402
from sensor_msgs.msg import CompressedImage, Image, JointState  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from oxygen_ros.engine.wire import Chunk, Ready, Report  # noqa: E402
from oxygen_ros.msg import SpeechRequest  # noqa: E402
from oxygen_ros.node.images import SUPPORTED, ImageError, compressed_to_rgb, to_rgb  # noqa: E402
from oxygen_ros.node.inference_node import InferenceNode  # noqa: E402

thousand = settings(max_examples=1000, deadline=None, database=None, suppress_health_check=list(HealthCheck))

# --- rubbish -----------------------------------------------------------------------------------------------------
text = st.text(st.characters(exclude_categories=['Cs'], exclude_characters='\0'), max_size=12)
number = st.floats(width=32)
size = st.integers(0, 20) | st.integers(0, 2**32 - 1)
data = st.binary(max_size=400).map(lambda raw: array('B', raw))
images = st.builds(Image, height=size, width=size, step=size, encoding=text | st.sampled_from([*SUPPORTED, '32FC1']),
                   is_bigendian=st.integers(0, 255), data=data)
FILES = [cv2.imencode(suffix, np.arange(16 * 12 * 3, dtype=np.uint8).reshape(16, 12, 3))[1].tobytes()
         for suffix in ('.jpg', '.png', '.bmp', '.webp', '.tiff')]


@st.composite
def broken_files(draw):
    """A picture file with some bytes changed, cut or doubled."""
    raw = bytearray(draw(st.sampled_from(FILES)))
    for at, value in draw(st.lists(st.tuples(st.integers(0, len(raw) - 1), st.integers(0, 255)), max_size=8)):
        raw[at] = value
    return array('B', bytes(raw[:draw(st.integers(0, len(raw)))] * draw(st.integers(1, 2))))


compressed = st.builds(CompressedImage, data=data | broken_files(), format=text | st.sampled_from(
    ['jpeg', 'png', 'rgb8; jpeg compressed bgr8', '16UC1; compressedDepth', 'mono16; png compressed', ';;;']))
states = st.builds(JointState, name=st.lists(text | st.sampled_from(JOINTS), max_size=4),
                   position=st.lists(st.floats(), max_size=5), velocity=st.lists(st.floats(), max_size=2),
                   effort=st.lists(st.floats(), max_size=3))
asks = st.builds(SpeechRequest, request_id=text, channel=text, seed=text, temperature=number, deadline=st.floats(),
                 max_tokens=size, random_seed=st.integers(0, 2**64 - 1), stop=st.lists(text, max_size=2),
                 priority=st.integers(-2**31, 2**31 - 1))
strings = st.builds(String, data=text | st.sampled_from(['', ' ', '\n']))


# --- decoding ----------------------------------------------------------------------------------------------------
def picture_or_reason(decode, message) -> None:
    try:
        pixels = decode(message)
    except ImageError as error:
        assert 10 < len(str(error)) < 600
    else:
        assert pixels.dtype == np.uint8 and pixels.ndim == 3 and pixels.shape[2] == 3 and pixels.size


@thousand
@given(images)
def test_any_image_is_a_picture_or_refused_with_a_reason(message):
    picture_or_reason(to_rgb, message)


@thousand
@given(compressed)
def test_any_compressed_image_is_a_picture_or_refused_with_a_reason(message):
    picture_or_reason(compressed_to_rgb, message)


@pytest.mark.parametrize('raw', FILES[:2], ids=['jpeg', 'png'])
def test_a_picture_that_is_cut_off_is_refused_not_filled_with_grey(raw):
    assert compressed_to_rgb(CompressedImage(format='jpeg', data=array('B', raw + bytes(7)))).shape == (16, 12, 3)
    for length in range(1, len(raw) - 2, 7):
        with pytest.raises(ImageError):
            compressed_to_rgb(CompressedImage(format='jpeg', data=array('B', raw[:length])))


def test_a_header_that_promises_a_gigapixel_takes_no_memory():
    huge = bytearray(FILES[1])
    huge[16:24] = (30000).to_bytes(4, 'big') * 2  # width and height of a PNG
    with pytest.raises(ImageError):
        compressed_to_rgb(CompressedImage(format='png', data=array('B', bytes(huge))))


# --- the node ----------------------------------------------------------------------------------------------------
class Obedient:
    """In place of the supervisor: ready at once, and each observation is answered with a chunk from its state."""

    ready, busy, restarts = True, False, 0

    def __init__(self, options, on_event, slot_bytes, **timeouts) -> None:
        self._tell = on_event
        self.seen, self.sent = [], []

    def start(self) -> None:
        self._tell(Ready('obedient', (), 2, 2, HORIZON, False, 'float32', 'cpu', 0.0, 0.0))

    def observe(self, observation, received_ns, deadline_ns) -> bool:
        self.seen.append(observation)
        actions = np.tile(np.array(observation.state, np.float32), (HORIZON, 1))
        self._tell(Chunk(observation.sequence, observation.stamp, received_ns, time.monotonic_ns(), actions))
        return True

    def beat(self) -> None:
        self._tell(Report(heartbeat=True))

    def send(self, message) -> bool:
        self.sent.append(message)
        return True

    def stop(self) -> None:
        pass


class Lines(Counter):
    """A logger that counts its lines by the part that they are about; those that are throttled count as none."""

    def __init__(self) -> None:
        super().__init__()
        self.since = time.monotonic()

    def debug(self, line, **options) -> None:
        self[line.split(':')[0]] += not options.get('throttle_duration_sec')

    info = warning = error = debug


@pytest.fixture(scope='module')
def node(tmp_path_factory):
    """The node, active: camera `front` is raw and must be there, `wrist` is compressed and optional."""
    cameras = [{'name': 'front', 'topic': 'front/image'},
               {'name': 'wrist', 'topic': 'wrist/image', 'compressed': True, 'required': False}]
    contract = write_contract(tmp_path_factory.mktemp('fuzz'), cameras=cameras)
    context = rclpy.Context()
    rclpy.init(context=context)
    values = {'contract': str(contract), 'autostart': False, 'cycle_rate_hz': 200.0, 'publish_rate_hz': 200.0}
    node = InferenceNode(Obedient, context=context, namespace='/fuzz', parameter_overrides=[
        Parameter(name, value=value) for name, value in values.items()])
    node.trigger_configure()
    node.trigger_activate()
    node.session._log = Lines()
    node.actions = []
    publish = node.session.interface.actions.publish
    node.session.interface.actions.publish = lambda message: (node.actions.append(message), publish(message))
    yield node
    node.close()
    node.destroy_node()
    rclpy.try_shutdown(context=context)


_stamps = itertools.count(1)


def healthy(session) -> None:
    """What a robot that works sends."""
    for name, message in (('front', Image(height=4, width=4, encoding='rgb8', step=12, data=array('B', bytes(48)))),
                          ('wrist', CompressedImage(format='jpeg', data=array('B', FILES[0])))):
        message.header.stamp = session._node.get_clock().now().to_msg()
        session.inputs.image(name, message, time.monotonic_ns())
    state = JointState(name=JOINTS, position=[0.1, 0.2])
    state.header.stamp = session._node.get_clock().now().to_msg()
    session.inputs.joint_state('joint_states', state, time.monotonic_ns())


def turn(node) -> None:
    """One tick with a cycle, and the answer of the engine."""
    node.session._next_cycle = 0
    node.session.engine.beat()
    node._drain()
    node.session._tick()
    node.session.motion.tick()
    node._drain()


def still_good(node) -> None:
    """Everything that the policy saw and that the controller got makes sense; and a healthy robot moves at once."""
    session, engine = node.session, node.session.engine
    for observation in engine.seen:
        assert np.isfinite(observation.state).all() and observation.instruction.strip()
        for pixels in observation.images.values():
            assert pixels.dtype == np.uint8 and pixels.shape[2] == 3
    for message in node.actions:
        for point in message.points:
            assert np.isfinite(point.positions).all()
            assert all(low - 0.2 <= value <= high + 0.4 for value, (low, high) in zip(
                point.positions, (LIMITS[joint] for joint in JOINTS)))
    have = len(node.actions)
    session.inputs.clear()
    healthy(session)
    session.on_task(String(data='fine'))
    turn(node)
    turn(node)
    assert len(node.actions) > have, 'it moves'
    flood = {line: count for line, count in session._log.items()
             if count > 2 + 2 * (time.monotonic() - session._log.since) and line != 'task'}  # "task: ..." is news
    assert not flood
    engine.seen.clear()
    node.actions.clear()
    session._log = Lines()


def fuzz(node, strategy, deliver, observed=False) -> None:
    """Deliver a thousand messages; ``observed``: with a cycle after each, on a robot that works otherwise."""
    @thousand
    @given(strategy)
    def flood(message):
        if observed:
            healthy(node.session)
        deliver(node.session, message)
        if observed:
            turn(node)

    still_good(node)
    flood()
    still_good(node)


def test_images(node):
    fuzz(node, images, lambda session, message: session.inputs.image('front', message, time.monotonic_ns()),
         observed=True)


def test_compressed_images(node):
    fuzz(node, compressed, lambda session, message: session.inputs.image('wrist', message, time.monotonic_ns()),
         observed=True)


def test_joint_states(node):
    fuzz(node, states, lambda session, message: session.inputs.joint_state('joint_states', message,
                                                                           time.monotonic_ns()), observed=True)


def test_tasks(node):
    fuzz(node, strings, lambda session, message: session.on_task(message))


def test_requests(node):
    fuzz(node, asks, lambda session, message: session.on_ask(message))


def test_cancels(node):
    fuzz(node, strings, lambda session, message: session.on_cancel(message))


def test_descriptions(node):
    """Of the robot: the thread that reads it always comes back with an answer."""
    model, heard = node.session.robot_model, []
    model._post, post = heard.append, model._post

    @settings(thousand, max_examples=100)
    @given(text | st.sampled_from(['<robot/>', '<robot name="r"><joint/></robot>', '<a>', '<?xml version="1.0"?>']))
    def flood(urdf):
        model._read(urdf)
        described = heard.pop()
        assert described.kinematics is None and described.why

    flood()
    model._post = post
