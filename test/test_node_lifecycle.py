"""The managed node: transitions, loading while services answer, and its end at any moment."""
import os
import signal
from pathlib import Path

import pytest

pytest.importorskip('rclpy')

from lifecycle_msgs.msg import Transition  # noqa: E402
from lifecycle_msgs.srv import ChangeState  # noqa: E402
from rcl_interfaces.srv import GetParameters  # noqa: E402
from std_srvs.srv import SetBool, Trigger  # noqa: E402


def test_pause_stops_the_motion_but_not_the_speech(shared):
    robot = shared
    pause = f'{robot.namespace}/pause'
    assert robot.peer.call(SetBool, pause, SetBool.Request(data=True)).success
    robot.stands_still()
    assert robot.answer(robot.ask(max_tokens=3))[-1].finish_reason == 'length'
    assert len(robot.actions[-1].points) == 1
    assert robot.peer.call(SetBool, pause, SetBool.Request(data=False)).success
    robot.moves()


def test_reset_drops_requests_and_goes_on(shared):
    robot = shared
    request = robot.ask()
    robot.peer.wait_for(lambda: any(token.request_id == request for token in robot.speech))
    assert robot.peer.call(Trigger, f'{robot.namespace}/reset', Trigger.Request()).success
    assert robot.answer(request)[-1].finish_reason == 'cancelled'
    robot.moves()


def test_the_whole_lifecycle_and_again(arm):
    robot = arm(autostart=False, **{'speech.max_tokens': 4000, 'speech.narration.every_cycles': 0})
    assert robot.state() == 'unconfigured'
    for _ in range(2):
        assert robot.change_state(Transition.TRANSITION_CONFIGURE) and robot.state() == 'inactive'
        refused, = robot.answer(robot.ask())
        assert refused.finish_reason == 'error' and refused.detail == 'the node is not active'
        before = len(robot.actions)
        assert robot.change_state(Transition.TRANSITION_ACTIVATE)
        robot.moves()
        request = robot.ask()
        robot.peer.wait_for(lambda asked=request: any(token.request_id == asked for token in robot.speech))
        assert robot.change_state(Transition.TRANSITION_DEACTIVATE) and robot.state() == 'inactive'
        assert robot.answer(request)[-1].finish_reason == 'cancelled', 'speech is ended'
        assert len(robot.actions) > before and len(robot.actions[-1].points) == 1, 'the last word is to hold'
        assert robot.change_state(Transition.TRANSITION_CLEANUP) and robot.state() == 'unconfigured'
    assert robot.node.returncode is None


def test_a_transition_that_is_impossible_is_refused_and_survived(arm):
    robot = arm(autostart=False)
    assert not robot.change_state(Transition.TRANSITION_ACTIVATE)
    assert robot.state() == 'unconfigured'
    robot.says("no transition 3 from the state 'unconfigured'")
    assert robot.change_state(Transition.TRANSITION_CONFIGURE)
    assert not robot.change_state(Transition.TRANSITION_CONFIGURE)
    assert robot.state() == 'inactive' and 'Traceback' not in robot.node.output


def test_services_answer_while_the_model_loads(arm):
    robot = arm(checkpoint='"slow 60"', robot=False)
    robot.says('loading')
    assert robot.state() == 'unconfigured'
    request = GetParameters.Request(names=['publish_rate_hz'])
    values = robot.peer.call(GetParameters, f'{robot.namespace}/oxygen/get_parameters', request, again_s=2.0).values
    assert values[0].double_value == 50.0


def test_parameters_that_change_while_the_model_loads_are_applied_or_refused(arm, tmp_path):
    robot = arm(checkpoint=f'"until {tmp_path / "gate"}"',
                **{'speech.max_tokens': 40, 'speech.narration.every_cycles': 0})
    robot.says('loading')
    good, reason = robot.set('speech.max_tokens', 50)
    assert not good and 'at most 40' in reason
    assert robot.set('speech.max_tokens', 4) == (True, '')
    (tmp_path / 'gate').touch()
    robot.moves()
    assert len(robot.answer(robot.ask())) == 4
    assert robot.set('speech.max_tokens', 40) == (True, ''), 'the memory is there'


def test_of_two_that_configure_at_once_none_makes_the_other_load_again(arm):
    robot = arm(autostart=False, checkpoint='"broken later"')
    robot.state()
    client = robot.peer.node.create_client(ChangeState, f'{robot.namespace}/oxygen/change_state')
    assert client.wait_for_service(20.0)
    request = ChangeState.Request(transition=Transition(id=Transition.TRANSITION_CONFIGURE))
    answers = [client.call_async(request) for _ in range(2)]
    robot.peer.wait_for(lambda: all(answer.done() for answer in answers))
    assert not any(answer.result().success for answer in answers)
    assert robot.count('loading broken') == 1 and robot.count('cannot configure') == 1
    assert robot.state() == 'unconfigured'


def test_services_answer_while_the_model_thinks(arm):
    robot = arm(instruction='"sleep 30"', hang_timeout_s=60.0)
    robot.says('active')
    request = GetParameters.Request(names=['publish_rate_hz'])
    for _ in range(5):
        robot.peer.call(GetParameters, f'{robot.namespace}/oxygen/get_parameters', request)
    assert robot.set('publish_rate_hz', 40.0) == (True, '')
    assert not robot.chunks, 'all of that within one thought'


@pytest.mark.parametrize('moment', ['importing', 'loading', 'moving', 'thinking'])
@pytest.mark.parametrize('number', [signal.SIGINT, signal.SIGTERM])
def test_it_ends_at_once_and_cleanly_at_any_moment(arm, moment, number):
    robot = arm(checkpoint='"slow 30"' if moment == 'loading' else 'fake', robot=moment != 'importing',
                instruction='"sleep 30"' if moment == 'thinking' else 'fine')
    if moment == 'loading':
        robot.says('loading')
    elif moment == 'thinking':
        robot.says('no sign of life')
    elif moment == 'moving':
        robot.moves()
    else:
        robot.peer.wait_for(lambda: Path(f'/proc/{robot.node.pid}/maps').exists() and
                            '_rclpy_pybind11' in Path(f'/proc/{robot.node.pid}/maps').read_text(), what='imports')
    os.kill(robot.node.pid, number)
    assert robot.node.wait(5.0) == 0, robot.node.output
    assert 'Traceback' not in robot.node.output
    if moment == 'moving':
        robot.peer.wait_for(lambda: len(robot.actions[-1].points) == 1, what='the hold before the end')
