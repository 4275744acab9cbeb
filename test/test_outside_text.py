"""Text from outside: what others send is bounded before it is kept, and cannot command a terminal or a viewer."""
from types import SimpleNamespace

import pytest

pytest.importorskip('rclpy')

from rclpy.serialization import deserialize_message, serialize_message  # noqa: E402
from std_msgs.msg import String  # noqa: E402

from oxygen_ros.engine.wire import Speech  # noqa: E402
from oxygen_ros.msg import SpeechRequest, SpeechToken  # noqa: E402
from oxygen_ros.node import messages  # noqa: E402
from oxygen_ros.node.markers import Markers  # noqa: E402


@pytest.mark.parametrize('field, value', [
    ('seed', 'x' * 10_001), ('request_id', 'x' * 201), ('channel', 'x' * 65), ('stop', ['x' * 101]),
    ('stop', ['x'] * 101)])
def test_what_is_too_long_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f'{field} is too long: '):
        messages.ask(SpeechRequest(**{'seed': 'why? ', field: value}))


def test_what_is_just_short_enough_is_taken():
    ask = messages.ask(SpeechRequest(seed='x' * 10_000, request_id='i' * 200, channel='c' * 64, stop=['s' * 100] * 100))
    assert (len(ask.seed), len(ask.request_id), len(ask.channel), len(ask.stop)) == (10_000, 200, 64, 100)
    assert messages.ask(SpeechRequest(seed='why? ')).stop == ()


@pytest.mark.parametrize('text, why', [(' \n', 'it is empty'), ('x' * 10_001, 'it has 10001 characters')])
def test_a_task_that_is_none_is_refused(text, why):
    with pytest.raises(ValueError, match=why):
        messages.task(String(data=text))


def test_a_task_is_taken_without_the_space_around_it():
    assert messages.task(String(data=' stack the cubes \n')) == 'stack the cubes'


def test_a_nul_that_the_model_makes_does_not_cut_the_text_off():
    token = messages.speech_token(Speech('q', 'question', 1, 1, 0, (0, 5), '\0ch', 'do\0ch'), 0)
    sent = deserialize_message(serialize_message(token), SpeechToken)
    assert (sent.delta, sent.text) == ('\ufffdch', 'do\ufffdch')


def test_a_sentence_is_drawn_without_control_characters_and_not_endlessly():
    shown = []
    markers = Markers(SimpleNamespace(publish=shown.append), lambda: 0, 'base_link')
    markers.said('on the \x1b[31mleft\x07\n' + 'x' * 10_000)
    text = next(marker.text for marker in shown[-1].markers if marker.text)
    assert text.startswith('on the  [31mleft  x') and text.isprintable() and len(text) == 500
