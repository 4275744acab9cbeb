"""Whatever happens to the engine process: it is said, the robot holds, and it goes on by itself."""
import os
import signal

import numpy as np
import pytest

pytest.importorskip('rclpy')

import psutil  # noqa: E402
from lifecycle_msgs.msg import Transition  # noqa: E402


def engine_of(robot):
    engine, = psutil.Process(robot.node.pid).children()
    return engine


def test_the_engine_may_be_killed_and_comes_back(arm):
    robot = arm(**{'speech.max_tokens': 4000, 'speech.narration.every_cycles': 0})
    robot.moves()
    request = robot.ask()
    robot.peer.wait_for(lambda: any(token.request_id == request for token in robot.speech))
    os.kill(engine_of(robot).pid, signal.SIGKILL)
    robot.says('engine: the engine process was ended by SIGKILL.*not moving')
    assert robot.answer(request)[-1].finish_reason == 'error'
    robot.peer.wait_for(lambda: any(not status.healthy for status in robot.status), what='an unhealthy status')
    newest = robot.chunks[-1].sequence
    robot.peer.wait_for(lambda: robot.chunks[-1].sequence > newest, 40.0, 'a chunk of the new engine')
    robot.moves()
    assert robot.count('SIGKILL') == 1
    assert robot.count('the engine is back') == 1
    robot.peer.wait_for(lambda: robot.status[-1].restarts == 1 and robot.status[-1].healthy)
    cycles = [status.cycles for status in robot.status]
    assert cycles == sorted(cycles), 'counters go on over the restart'


def test_an_engine_that_dies_under_an_inactive_node_is_said(arm):
    robot = arm(autostart=False)
    assert robot.change_state(Transition.TRANSITION_CONFIGURE)
    os.kill(engine_of(robot).pid, signal.SIGKILL)
    robot.says('engine: the engine process was ended by SIGKILL')
    robot.says('the engine is back')


def test_an_engine_that_hangs_is_said_long_before_it_is_replaced(arm):
    robot = arm(hang_timeout_s=60.0)
    robot.moves()
    engine = engine_of(robot)
    engine.suspend()
    robot.says('engine: no sign of life for')
    robot.says('the chunk has run out')  # it was good: it is finished
    engine.resume()
    robot.moves()
    robot.says('engine: silent is over')


def test_an_engine_that_hangs_is_replaced_after_the_time_that_is_set(arm):
    robot = arm(hang_timeout_s=2.0)
    robot.moves()
    engine_of(robot).suspend()
    robot.says('engine: .*no sign of life for 2 s: it hung.*not moving')
    robot.says('the engine is back')
    robot.moves()
    assert robot.status[-1].restarts == 1


@pytest.mark.parametrize('instruction, expected', [('nan', 'observation: .*not finite'),
                                                   ('short', r'observation: .*\[4, 2\] instead of \[10, 2\]'),
                                                   ('reject too dark', 'observation: too dark')])
def test_what_the_engine_cannot_make_is_not_published(shared, instruction, expected):
    robot, over = shared, shared.count('rejected is over')
    robot.moves()
    robot.robot.task(instruction)
    robot.says(expected)
    robot.stands_still()
    assert all(np.isfinite(chunk.data).all() for chunk in robot.chunks)
    assert all(np.isfinite(point.positions).all() for message in robot.actions for point in message.points)
    robot.robot.task('fine')
    robot.moves()
    robot.peer.wait_for(lambda: robot.count('rejected is over') > over)
