"""The program ``oxygen``: quick help, clear refusals, and `ask` against a node that answers over real DDS."""
import importlib
import os
import re
import subprocess
import sys

import pytest

from oxygen_ros import cli


def test_help_lists_every_verb_without_importing_ros_torch_or_tyro():
    code = ('import sys, oxygen_ros.cli as cli; code = cli.run(["--help"]); '
            'print(sorted({"torch", "rclpy", "tyro", "numpy"} & set(sys.modules)), code)')
    shown = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, check=True).stdout
    assert shown.splitlines()[-1] == '[] 0'
    for name, verb in cli.VERBS.items():
        assert re.search(rf'^  {name} +{re.escape(verb.help)}$', shown, re.M)


@pytest.mark.parametrize('name', cli.VERBS)
def test_every_verb_has_help_of_its_own(name, capsys):
    with pytest.raises(SystemExit) as end:
        cli.run([name, '--help'])
    assert end.value.code == 0
    assert f'usage: oxygen {name}' in capsys.readouterr().out


def test_unknown_verb_is_refused_with_the_nearest_one(capsys):
    assert cli.run(['dmeo']) == 2
    assert 'did you mean "oxygen demo"' in capsys.readouterr().err
    assert cli.run(['']) == 2
    assert 'oxygen --help' in capsys.readouterr().err


@pytest.mark.parametrize(('missing', 'remedy'), [
    ('torch', "pip install 'torch>=2.6'"), ('pydantic', 'pip install pydantic'), ('yaml', 'pip install PyYAML'),
    ('cv2', 'pip install opencv-python-headless'), ('PIL', 'pip install pillow'), ('rclpy', 'source /opt/ros/'),
    ('sensor_msgs', 'pip install ros-sensor-msgs'), ('oxygen_ros.msg', 'the messages are not built')])
def test_missing_library_is_named_with_the_interpreter_and_the_remedy(missing, remedy, monkeypatch, tmp_path, capsys):
    """Field failure 71: a console script runs under another Python than the one that has torch."""
    (tmp_path / 'needy.py').write_text(f'import {missing}\ndef verb() -> int:\n    return 0\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.VERBS, 'needy', cli.Verb('needy:verb', 'needs something'))
    monkeypatch.setitem(sys.modules, missing, None)     # makes "import" raise ModuleNotFoundError
    monkeypatch.delitem(sys.modules, 'needy', raising=False)
    with pytest.raises(SystemExit) as end:
        cli.run(['needy'])
    error = capsys.readouterr().err
    assert end.value.code == 2 and 'Traceback' not in error
    assert repr(missing) in error and sys.executable in error and remedy in error


def test_the_simulated_robot_without_its_libraries_says_the_same(tmp_path):
    (tmp_path / 'pybullet.py').write_text('raise ModuleNotFoundError("no", name="pybullet")\n')
    env = {**os.environ, 'PYTHONPATH': f'{tmp_path}:{os.environ.get("PYTHONPATH", "")}'}
    robot = subprocess.run([sys.executable, '-m', 'oxygen_ros.tabletop.main'], capture_output=True, text=True, env=env,
                           timeout=60)
    assert robot.returncode == 2 and robot.stderr.startswith("tabletop_robot: 'pybullet' is not installed for ")
    assert 'pip install pybullet' in robot.stderr and 'Traceback' not in robot.stderr


def test_a_module_missing_from_our_own_package_is_not_blamed_on_the_installation(monkeypatch):
    monkeypatch.setitem(cli.VERBS, 'broken', cli.Verb('oxygen_ros.no_such_module:verb', 'broken'))
    with pytest.raises(ModuleNotFoundError, match='no_such_module'):
        cli.run(['broken'])


def test_a_verb_of_verbs_runs_the_named_one(monkeypatch, tmp_path):
    (tmp_path / 'family.py').write_text(
        'def one(times: int = 1) -> int:\n    return times\ndef two() -> int:\n    return 2\n'
        'VERBS = {"one": one, "two": two}\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.VERBS, 'family', cli.Verb('family:VERBS', 'several'))
    assert cli.run(['family', 'one', '--times', '7']) == 7
    assert cli.run(['family', 'two']) == 2


def test_what_a_verb_returns_is_the_exit_code(monkeypatch, tmp_path):
    (tmp_path / 'verdict.py').write_text('def verb(code: int = 0) -> int | None:\n    return code or None\n')
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(cli.VERBS, 'verdict', cli.Verb('verdict:verb', 'returns'))
    for code in (0, 1):
        with pytest.raises(SystemExit) as end:
            cli.main(['verdict', '--code', str(code)])
        assert end.value.code == code


# --- oxygen ask -------------------------------------------------------------------------------------------------
@pytest.fixture
def answering(peer):
    """A stand-in for the node: answers each request with the SpeechToken messages that a test gives."""
    messages = importlib.import_module('oxygen_ros.msg')
    speech = peer.publisher(messages.SpeechToken, '/oxygen/speech', 100, wait=False)
    asked = peer.listen(messages.SpeechRequest, '/oxygen/ask')

    def answer(*texts, reason='stop', detail=''):
        request = peer.wait_for(lambda: asked and asked[-1], what='a question')
        peer.wait_for(lambda: speech.get_subscription_count(), what='a listener on speech')
        for i, text in enumerate(texts):
            final = i + 1 == len(texts)
            speech.publish(messages.SpeechToken(
                request_id=request.request_id, sequence=i, text=text, is_final=final and bool(reason),
                finish_reason=reason if final else '', detail=detail if final else ''))
        return request

    return answer


def _oxygen(start, *arguments):
    return start('oxygen', 'oxygen_ros.cli', *arguments)


def test_ask_prints_the_answer_even_when_a_message_was_lost(start, answering):
    asking = _oxygen(start, 'ask', 'where is the red cube?', '--channel', 'quiz', '--max-tokens', '9')
    # "on the" was lost: the text is cumulative
    request = answering('near, ', 'near, on the left', 'near, on the left')
    assert asking.wait(30.0) == 0
    assert asking.output == 'near, on the left'
    assert request.seed == 'where is the red cube?\nAnswer: '
    assert (request.channel, request.max_tokens) == ('quiz', 9)


def test_ask_lets_no_model_command_the_terminal(start, answering):
    asking = _oxygen(start, 'ask', 'what?')
    answering('red \x1b[2J cube\x07')
    assert asking.wait(30.0) == 0
    assert asking.output == 'red \ufffd[2J cube\ufffd'


def test_ask_offers_no_service_that_a_policy_would_have_to_allow_by_its_random_name(start, peer, answering):
    asking = _oxygen(start, 'ask', 'what?')
    peer.wait_for(lambda: [n for n, _ in peer.node.get_node_names_and_namespaces() if n.startswith('ask_')], what='it')
    name = next(n for n, _ in peer.node.get_node_names_and_namespaces() if n.startswith('ask_'))
    answering('a ', reason='')
    asking.wait_for_output('a ')
    assert not peer.node.get_service_names_and_types_by_node(name, '/oxygen')
    answering('a cube')
    assert asking.wait(30.0) == 0


def test_ask_tells_why_there_was_no_answer(start, answering):
    asking = _oxygen(start, 'ask', 'hm?')
    answering('', reason='error', detail='no observation yet')
    assert asking.wait(30.0) == 1
    assert 'error: no observation yet' in asking.output


def test_ask_without_a_node_says_where_it_asked(start):
    asking = _oxygen(start, 'ask', 'anybody?', '--namespace', 'nowhere', '--timeout', '0.5')
    assert asking.wait(20.0) == 1
    assert 'no node listens on /nowhere/ask' in asking.output
    assert 'Traceback' not in asking.output


def test_interrupting_ask_cancels_the_question(start, peer, answering):
    from std_msgs.msg import String
    cancelled = peer.listen(String, '/oxygen/cancel')
    asking = _oxygen(start, 'ask', 'tell me everything')
    request = answering('well, ', reason='')
    asking.wait_for_output('well,')
    assert asking.interrupt() == 130
    peer.wait_for(lambda: [m.data for m in cancelled] == [request.request_id], what='the cancel message')
    assert 'Traceback' not in asking.output
