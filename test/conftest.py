"""For all tests: one CPU thread, a ROS domain that nobody else uses, and programs that are ended by SIGINT."""
import os
import queue
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from oxygen_ros.isolation import isolate, reserve_domain, use_fast_dds_profiles

# Before anything imports torch or rclpy, and inherited by every process that a test starts.
os.environ.setdefault('OMP_NUM_THREADS', '1')
os.environ.setdefault('AMENT_PREFIX_PATH', sys.prefix)
os.environ.pop('PYTHONDONTWRITEBYTECODE', None)  # or each program compiles the package anew
isolate(os.environ, reserve_domain())
use_fast_dds_profiles(os.environ, Path(__file__).parent / 'fastdds.xml')
# A shell starts what runs in the background with SIGINT ignored, and every program of ours would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope='session')
def _ros_log_directory(tmp_path_factory):
    os.environ['ROS_LOG_DIR'] = str(tmp_path_factory.mktemp('ros_log'))


def _programs():
    """Start a program: ``start('name', 'module.or/path', *arguments, env={...})`` -> oxygen_ros.processes.Process.

    The first argument after the name is a Python module (run with -m) or an executable's absolute path. Whatever
    still runs at the end of the test is ended; a program that has ended by itself must have left no orphan.
    """
    from oxygen_ros.processes import Process
    started = []

    def _start(name, program, *arguments, env=None):
        command = [program] if program.startswith('/') else [sys.executable, '-m', program]
        process = Process(name, [*command, *map(str, arguments)], env={**os.environ, **(env or {})})
        started.append(process)
        return process

    yield _start
    orphans = {process.name: left for process in started if (left := process.orphans())}
    for process in reversed(started):
        process.interrupt(5.0)
        process.kill()
    assert not orphans, f'left behind: {orphans}'


start = pytest.fixture(_programs)
start_once = pytest.fixture(_programs, scope='module')  # for programs that all tests of a file use


class Peer:
    """A node in the test process, spun by a thread: publishes, and waits for what others publish."""

    def __init__(self, node):
        self.node = node
        self._arrived = threading.Condition()

    def listen(self, message_type, topic, qos=10):
        """Subscribe; return the list that the messages go into."""
        messages = []

        def keep(message):
            with self._arrived:
                messages.append(message)
                self._arrived.notify_all()

        self.node.create_subscription(message_type, topic, keep, qos)
        return messages

    def publisher(self, message_type, topic, qos=10, wait=True, timeout=20.0):
        """A publisher that, with ``wait``, somebody already listens to."""
        publisher = self.node.create_publisher(message_type, topic, qos)
        if wait:
            self.wait_for(lambda: publisher.get_subscription_count() > 0, timeout, f'a listener on {topic}')
        return publisher

    def wait_for(self, condition, timeout=20.0, what='the condition'):
        """Return the first true value of ``condition()``, tried again whenever a message has arrived."""
        deadline = time.monotonic() + timeout
        with self._arrived:
            while not (value := condition()):
                left = deadline - time.monotonic()
                assert left > 0, f'waited {timeout:g} s for {what}'
                self._arrived.wait(min(left, 0.05))  # graph changes come without a message
            return value

    def call(self, service_type, name, request, timeout=20.0, again_s=None):
        """The response of a service. again_s: ask again after so many seconds, for what may be asked twice."""
        client = self.node.create_client(service_type, name)
        assert client.wait_for_service(timeout), f'no service {name} within {timeout:g} s'
        answers = queue.SimpleQueue()
        deadline = time.monotonic() + timeout
        while (left := deadline - time.monotonic()) > 0:
            client.call_async(request).add_done_callback(answers.put)
            try:
                future = answers.get(timeout=min(left, again_s or timeout))
            except queue.Empty:
                continue
            self.node.destroy_client(client)
            return future.result()
        raise AssertionError(f'service {name} did not answer within {timeout:g} s')


def _peer():
    """A Peer in this process, in the tests' own domain."""
    rclpy = pytest.importorskip('rclpy')
    from rclpy.executors import SingleThreadedExecutor
    from rclpy.task import Future
    context = rclpy.Context()
    rclpy.init(context=context)
    node = rclpy.create_node('peer', context=context)
    executor = SingleThreadedExecutor(context=context)
    executor.add_node(node)

    ended = Future()
    thread = threading.Thread(target=executor.spin_until_future_complete, args=(ended,), daemon=True)
    thread.start()
    yield Peer(node)
    ended.set_result(None)
    thread.join(5.0)
    executor.shutdown()
    node.destroy_node()
    rclpy.try_shutdown(context=context)


peer = pytest.fixture(_peer)
peer_once = pytest.fixture(_peer, scope='module')


@pytest.fixture
def arm(start, peer, tmp_path):
    """arm(**parameters) -> a running node of a simulated arm, see ros_helpers.Arm, in a namespace of its own."""
    from ros_helpers import arms
    with arms(start, peer, tmp_path) as make:
        yield make


@pytest.fixture(scope='module')
def shared(start_once, peer_once, tmp_path_factory):
    """One Arm that moves, for all tests of a file that leave it as it was."""
    from ros_helpers import arms
    with arms(start_once, peer_once, tmp_path_factory.mktemp('shared')) as make:
        robot = make(**{'speech.max_tokens': 4000})
        robot.moves()
        yield robot


@pytest.fixture(scope='session')
def pristine(tmp_path_factory):
    """The reference checkpoints with a tokenizer, by format, for tests that only read."""
    from checkpoints import copy
    return {format: copy(format, tmp_path_factory.mktemp(format) / 'checkpoint') for format in ('lerobot', 'openpi')}


@pytest.fixture
def lerobot(tmp_path):
    """A copy of the reference checkpoint in LeRobot's format, to be changed."""
    from checkpoints import copy
    return copy('lerobot', tmp_path / 'lerobot')


@pytest.fixture
def openpi(tmp_path):
    """A copy of the reference checkpoint in openpi's format, to be changed."""
    from checkpoints import copy
    return copy('openpi', tmp_path / 'openpi')
