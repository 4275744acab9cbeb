"""The engine process dies, hangs, refuses to load: the node's side notices, says it once, and goes on."""
from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import fake_engine
import numpy as np
import pytest
from fake_engine import OPTIONS, PATIENCE_S, Events, observation

from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Cancel, Chunk, Configure, Failed, Ready, Rejected, Report, Reset, Speech
from oxygen_ros.policy.observation import Observation
from oxygen_ros.worker.supervisor import Supervisor
from oxygen_ros.worker.worker import HEARTBEAT_S


@pytest.fixture
def events():
    return Events()


@pytest.fixture
def supervise(events):
    """Start a supervisor of a fake engine; it is stopped at the end, and its process must be gone then."""
    started = []

    def start(load='', wait=True, options=OPTIONS, **settings):
        settings = {'make': partial(fake_engine.make, load=load), 'pause_s': 0.05, **settings}
        supervisor = Supervisor(options, events, slot_bytes=200_000, **settings)
        started.append(supervisor)
        supervisor.start()
        if wait:
            events.wait(Ready)
        return supervisor

    yield start
    for supervisor in started:
        pid = supervisor.pid
        supervisor.stop()
        assert not supervisor.alive and not (pid and running(pid))


def running(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0] not in 'ZX'
    except (FileNotFoundError, ProcessLookupError):
        return False


def wait_gone(pid: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while running(pid):
        assert time.monotonic() < end, f'process {pid} is still there'
        time.sleep(0.02)


def observe(supervisor, sequence: int, instruction: str = '', **more) -> bool:
    return supervisor.observe(observation(sequence, instruction, **more), time.monotonic_ns())


# --- the way of one observation and one request --------------------------------------------------------------------
def test_an_observation_becomes_a_chunk_and_a_request_becomes_text(supervise, events):
    supervisor = supervise()
    assert supervisor.ready and supervisor.alive and not supervisor.busy
    assert observe(supervisor, 1, shade=9)
    assert events.wait(Chunk, sequence=1).actions.tolist() == [[9, 9], [9, 9]]
    assert events.wait(Report, count=2, heartbeat=False).cycles == 1
    assert supervisor.send(Ask('q', 'What is it?', max_tokens=5))
    end = events.wait(Speech, final=True)
    said = events.of(Speech, request_id='q')
    assert [speech.sequence for speech in said] == list(range(5))
    assert ''.join(speech.delta for speech in said) == end.text and end.reason == 'length'


def test_nothing_is_taken_before_the_engine_is_ready(supervise):
    supervisor = supervise('sleep 60', wait=False)
    assert not observe(supervisor, 1)
    assert not supervisor.send(Ask('q', ''))
    assert not supervisor.ready


def test_while_the_engine_is_busy_the_newest_observation_waits(supervise, events, tmp_path):
    supervisor = supervise()
    assert observe(supervisor, 1, f'until {tmp_path / "gate"}')
    assert supervisor.busy
    for sequence in (2, 3, 4):
        assert observe(supervisor, sequence, shade=sequence)
    (tmp_path / 'gate').touch()
    assert events.wait(Chunk, sequence=4).actions.max() == 4
    assert [chunk.sequence for chunk in events.of(Chunk)] == [1, 4]
    assert not supervisor.busy


def test_a_rejected_observation_is_answered_and_the_next_one_goes_on(supervise, events):
    supervisor = supervise()
    observe(supervisor, 1, 'reject joint a2 is NaN')
    assert events.wait(Rejected).why == 'joint a2 is NaN'
    observe(supervisor, 2)
    events.wait(Chunk, sequence=2)
    assert supervisor.restarts == 0


def test_images_are_never_torn_however_fast_they_come(supervise, events):
    """The fake engine also checks that the images of the last chunk stay until the next one."""
    supervisor = supervise()
    sequence = 0
    while sequence < 3000 or len(events.of(Chunk)) < 20:
        for _ in range(50):
            sequence += 1
            assert observe(supervisor, sequence, 'reject x' if sequence % 7 == 0 else '', shade=sequence % 251)
        time.sleep(0.005)
    assert observe(supervisor, sequence + 1, shade=(sequence + 1) % 251)
    events.wait(Chunk, sequence=sequence + 1)
    assert not events.of(Failed)
    assert all((chunk.actions == chunk.sequence % 251).all() for chunk in events.of(Chunk))


def test_a_bad_image_is_refused_here_and_the_waiting_one_still_goes(supervise, events):
    supervisor = supervise()
    observe(supervisor, 1, 'sleep 0.3')
    observe(supervisor, 2, shade=2)
    too_big = Observation({'wrist': np.zeros((400, 400, 3), np.uint8)}, np.zeros(2), '', 3)
    with pytest.raises(ValueError, match="camera 'wrist': its 400 x 400 image"):
        supervisor.observe(too_big, 0)
    assert (events.wait(Chunk, sequence=2).actions == 2).all()


def test_cancel_and_reset_end_requests(supervise, events):
    supervisor = supervise()
    observe(supervisor, 1)
    for name in 'abc':
        supervisor.send(Ask(name, ''))
    supervisor.send(Cancel('b'))
    assert events.wait(Speech, final=True).request_id == 'b'
    supervisor.send(Reset())
    events.wait(Speech, count=3, final=True, reason='cancelled')


def test_a_flood_of_messages_to_a_busy_engine_holds_nobody_up(supervise, events):
    """Far more than a pipe takes; a node that waited here could not stop its robot."""
    supervisor = supervise()
    observe(supervisor, 1, 'sleep 60')
    asks = [Ask(str(number), 'x' * 1000) for number in range(2000)]
    flood = threading.Thread(target=lambda: [supervisor.send(ask) for ask in asks], daemon=True)
    flood.start()
    flood.join(PATIENCE_S)
    assert not flood.is_alive()


# --- death, hang, failure ----------------------------------------------------------------------------------------
def test_a_killed_engine_fails_once_ends_its_requests_once_and_comes_back(supervise, events):
    supervisor = supervise()
    observe(supervisor, 1)
    events.wait(Chunk)
    for name in 'ab':
        supervisor.send(Ask(name, ''))
    events.wait(Speech, request_id='b')
    os.kill(supervisor.pid, signal.SIGSTOP)   # so that the rest is certainly not begun
    supervisor.send(Configure(max_tokens=20))
    supervisor.send(Ask('c', '', channel='memory'))
    os.kill(supervisor.pid, signal.SIGKILL)

    events.wait(Ready, count=2)
    assert supervisor.restarts == 1
    assert len(events.of(Failed)) == 1
    assert 'SIGKILL' in events.of(Failed)[0].why and 'memory' in events.of(Failed)[0].why
    for name in 'abc':
        said = events.of(Speech, request_id=name)
        assert [speech.final for speech in said] == [False] * (len(said) - 1) + [True]
        assert [speech.sequence for speech in said] == list(range(len(said)))
        assert said[-1].reason == 'error' and 'SIGKILL' in said[-1].detail
        assert said[-1].text == ''.join(speech.delta for speech in said)
    assert events.of(Speech, request_id='c')[0].channel == 'memory'

    assert observe(supervisor, 2, shade=7)
    assert (events.wait(Chunk, sequence=2).actions == 7).all()
    supervisor.send(Ask('d', ''))
    assert len(events.wait(Speech, request_id='d', final=True).text) == 20, 'the new engine has not the configuration'


@pytest.mark.parametrize('how, why', [
    ('raise bug', "KeyError: 'chunk'"),
    ('raise memory', 'out of memory: lower max_live'),
    ('exit 3', 'exit code 3'),
    ('kill SIGSEGV', 'SIGSEGV: a crash in native code'),
])
def test_the_cause_of_a_failure_is_named(supervise, events, capfd, how, why):
    supervisor = supervise()
    observe(supervisor, 1, how)
    failed = events.wait(Failed)
    assert why in failed.why and '\n' not in failed.why
    assert ('fake_engine.py' in failed.traceback) == how.startswith('raise')
    events.wait(Ready, count=2)
    assert not supervisor.busy and observe(supervisor, 2)
    events.wait(Chunk, sequence=2)
    if 'exit' not in how:
        assert 'fake_engine.py' in capfd.readouterr().err   # the stack


def test_a_hung_engine_is_noticed_and_replaced(supervise, events, capfd):
    supervisor = supervise(hang_s=1.0)
    first = supervisor.pid
    observe(supervisor, 1, 'sleep 60')
    supervisor.send(Ask('q', ''))
    assert 'no sign of life for 1 s: it hung, see stderr' in events.wait(Failed).why
    assert events.wait(Speech, final=True).reason == 'error'
    events.wait(Ready, count=2)
    assert not running(first)
    assert 'fake_engine.py' in capfd.readouterr().err, 'where it hung should be on stderr'


def test_an_idle_engine_does_not_count_as_hung(supervise, events):
    supervise(hang_s=3.0)
    events.wait(Report, count=int(4 / HEARTBEAT_S), heartbeat=True)
    assert not events.of(Failed)


def test_a_slow_engine_does_not_count_as_hung(supervise, events):
    """A step gives no sign of life; ten times as long as the engine found it to take is still no hang."""
    supervisor = supervise('act 0.3', hang_s=1.0)
    observe(supervisor, 1, 'sleep 1.5')
    events.wait(Chunk)
    assert not events.of(Failed)


def test_loading_may_take_longer_than_a_hang(supervise, events):
    supervise('sleep 1.5', hang_s=1.0)
    assert not events.of(Failed)


def test_loading_for_ever_is_a_failure(supervise, events):
    supervise('sleep 60', wait=False, load_timeout_s=1.0)
    assert 'while it loaded: raise load_timeout_s' in events.wait(Failed).why


def test_a_load_that_fails_three_times_in_the_same_way_is_given_up(supervise, events):
    supervisor = supervise('fail no folder /weights', wait=False)
    last = events.wait(Failed, count=3)
    assert last.why.startswith('no folder /weights (failed 3 times')
    assert [failed.why for failed in events.of(Failed)[:2]] == ['no folder /weights'] * 2
    assert not supervisor.alive and not supervisor.ready and supervisor.restarts == 2


def test_a_missing_module_is_told_with_the_remedy(supervise, events):
    supervise('import no_such_torch', wait=False)
    assert f'{sys.executable} has no module no_such_torch: start the node with' in events.wait(Failed).why


def test_an_error_in_the_handler_does_not_end_the_watch(events, caplog):
    def handler(event):
        events(event)
        if isinstance(event, Ready):
            raise RuntimeError('a fault of the node')

    supervisor = Supervisor(OPTIONS, handler, 200_000, make=fake_engine.make)
    supervisor.start()
    events.wait(Ready)
    assert observe(supervisor, 1)
    events.wait(Chunk)
    supervisor.stop()
    assert 'cannot handle Ready' in caplog.text


# --- stopping ------------------------------------------------------------------------------------------------------
def test_stop_ends_the_requests_and_leaves_cleanly(supervise, events, capfd):
    supervisor = supervise()
    observe(supervisor, 1)
    supervisor.send(Ask('q', ''))
    events.wait(Speech, request_id='q')
    pid = supervisor.pid
    supervisor.stop()
    assert not running(pid) and not supervisor.alive
    assert [speech.reason for speech in events.of(Speech, final=True)] == ['cancelled']
    assert not events.of(Failed)
    assert not observe(supervisor, 2) and not supervisor.send(Ask('r', ''))
    assert capfd.readouterr().err == ''


@pytest.mark.parametrize('load', ['', 'sleep 60'])
def test_stop_does_not_wait_for_a_step_or_a_load_to_end(supervise, events, capfd, load):
    supervisor = supervise(load, wait=not load)
    if not load:
        observe(supervisor, 1, 'sleep 60')
        events.wait(Report, notes=('begun', 'sleep 60'))
        supervisor.send(Ask('q', ''))
    pid, began = supervisor.pid, time.monotonic()
    supervisor.stop()
    assert time.monotonic() - began < PATIENCE_S   # rather than the 60 s of the step
    assert not (pid and running(pid)) and not events.of(Failed)
    assert [speech.reason for speech in events.of(Speech)] == ([] if load else ['cancelled'])
    assert capfd.readouterr().err == ''


def test_stop_while_waiting_to_start_again(supervise, events):
    supervisor = supervise(pause_s=30.0)
    os.kill(supervisor.pid, signal.SIGKILL)
    events.wait(Failed)
    supervisor.stop()
    assert len(events.of(Ready)) == 1


def test_starting_and_stopping_leaves_no_memory_thread_or_descriptor():
    def held():
        images = Path('/proc/self/maps').read_text().count('oxygen_images')
        return images, len(os.listdir('/proc/self/fd')), threading.active_count()

    before = held()
    for turn in range(6):
        events = Events()
        supervisor = Supervisor(OPTIONS, events, 200_000, make=fake_engine.make, pause_s=0.05)
        supervisor.start()
        if turn % 2:
            events.wait(Ready)
            os.kill(supervisor.pid, signal.SIGKILL)
            events.wait(Ready, count=2)
        supervisor.stop()
    assert held() == before


PARENT = """  # a script without a main guard, as users write them
import os, sys, time
from functools import partial
sys.path.insert(0, {tests!r})
import fake_engine
import numpy as np
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.worker.supervisor import Supervisor
from oxygen_ros.engine.wire import Ready, Report
from oxygen_ros.policy.observation import Observation
def heard(event):
    if isinstance(event, Ready):
        supervisor.observe(Observation({{'front': np.zeros((4, 4, 3), np.uint8)}}, np.zeros(2), {instruction!r}, 1), 0)
    elif isinstance(event, Report) and 'begun' in event.notes:
        print(supervisor.pid, flush=True)
supervisor = Supervisor(EngineOptions(checkpoint='random:tiny'), heard, 200_000, make=fake_engine.make)
supervisor.start()
try:
    time.sleep(60)
except KeyboardInterrupt:
    print('alive' if supervisor.alive else 'dead', flush=True)
    supervisor.stop()
"""


@pytest.fixture
def parent():
    """A program of its own with an engine process; gives it and the engine's process id."""
    started = []

    def start(instruction=''):
        code = PARENT.format(tests=str(Path(__file__).parent), instruction=instruction)
        program = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   text=True, start_new_session=True)
        started.append(program)
        return program, int(program.stdout.readline())

    yield start
    for program in started:
        program.kill()
        program.communicate()


@pytest.mark.parametrize('instruction', ['', 'sleep 60'])
def test_ctrl_c_is_for_the_node_alone(parent, instruction):
    program, engine = parent(instruction)
    os.killpg(program.pid, signal.SIGINT)
    out, err = program.communicate(timeout=PATIENCE_S)
    assert (out, err, program.returncode) == ('alive\n', '', 0)
    assert not running(engine)


def test_sigint_to_the_engine_itself_changes_nothing(supervise, events):
    supervisor = supervise()
    os.kill(supervisor.pid, signal.SIGINT)
    observe(supervisor, 1)
    events.wait(Chunk)
    assert not events.of(Failed)


@pytest.mark.parametrize('instruction', ['', 'sleep 60'])
def test_the_engine_ends_with_a_killed_node(parent, instruction):
    program, engine = parent(instruction)
    assert running(engine)
    program.kill()
    assert program.communicate(timeout=PATIENCE_S)[1] == ''
    wait_gone(engine)


# --- with the real engine --------------------------------------------------------------------------------------------
def test_a_real_model_of_random_weights_acts_and_speaks_and_survives_kill_9(events):
    options = EngineOptions(checkpoint='random:tiny', max_tokens=8, noise_seed=0)
    supervisor = Supervisor(options, events, 1_000_000)
    supervisor.start()
    ready = events.wait(Ready)
    images = {camera: np.full((48, 64, 3), 100, np.uint8) for camera in ready.cameras}

    def cycle(sequence):
        assert supervisor.observe(Observation(images, np.zeros(ready.state_dim, np.float32), 'wave', sequence), 0)
        return events.wait(Chunk, sequence=sequence).actions

    before = cycle(1)
    assert before.shape == (ready.horizon, ready.action_dim) and np.isfinite(before).all()
    supervisor.send(Ask('q', 'Subtask: '))
    assert events.wait(Speech, request_id='q', final=True).reason in ('stop', 'length')
    os.kill(supervisor.pid, signal.SIGKILL)
    events.wait(Ready, count=2)
    events.all.clear()
    assert np.array_equal(cycle(1), before)   # the same weights, noise and observation
    supervisor.stop()
