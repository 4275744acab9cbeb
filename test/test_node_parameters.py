"""The parameters of the running node: checked, applied, read-only, described, documented."""
import time
from pathlib import Path

import pytest

pytest.importorskip('rclpy')

from rcl_interfaces.srv import DescribeParameters  # noqa: E402

from oxygen_ros.node.parameter_docs import document  # noqa: E402
from oxygen_ros.node.parameters import ParameterError, parse, specs  # noqa: E402


def test_parameters_are_checked_applied_or_read_only(shared):
    robot = shared
    for name, value, expected in (('publish_rate_hz', 0.0, 'out of range'), ('publish_rate_hz', 'fast', 'number'),
                                  ('publish_rate_hz', 5.0, 'cycle_rate_hz'), ('stamp_mode', 'now', 'read-only'),
                                  ('engine.max_live', 3, 'read-only'), ('stop_mode', 'panic', "'hold' or 'finish'"),
                                  ('speech.max_tokens', 4096, 'start value')):
        good, reason = robot.set(name, value)
        assert not good and expected in reason, (name, value, reason)
    assert robot.set('publish_rate_hz', 10) == (True, ''), 'an integer is as good as a float'
    assert robot.set('speech.narration.every_cycles', 0) == (True, '')
    began, actions = time.monotonic(), len(robot.actions)
    robot.moves(10)
    assert len(robot.actions) - actions < 20 * (time.monotonic() - began) + 5, '10 per second, no longer 50'
    assert robot.set('publish_rate_hz', 50.0) == (True, '')


def test_parameters_describe_themselves(shared):
    robot = shared
    names = [spec.name for spec in specs()]
    request = DescribeParameters.Request(names=names)
    answer = robot.peer.call(DescribeParameters, f'{robot.namespace}/oxygen/describe_parameters', request)
    described = {d.name: d for d in answer.descriptors}
    assert list(described) == names and all(d.description for d in described.values())
    assert described['publish_rate_hz'].floating_point_range[0].to_value == 1000.0
    assert described['engine.threads'].integer_range[0].from_value == 1
    assert described['contract'].read_only and not described['publish_rate_hz'].read_only
    assert 'observation' in described['stamp_mode'].additional_constraints


def test_bad_parameters_at_the_start_are_one_clear_message(arm):
    robot = arm(publish_rate_hz=0, robot=False)
    assert robot.node.wait(20.0) == 2
    assert 'publish_rate_hz' in robot.node.output and 'Traceback' not in robot.node.output


def test_a_misspelt_parameter_is_pointed_out(arm):
    robot = arm(autostart=False, robot=False, publish_rate=10.0)
    robot.says('no parameter publish_rate: did you mean publish_rate_hz')


@pytest.mark.parametrize('name, value, expected', [
    ('publish_rate_hz', float('nan'), 'publish_rate_hz'), ('cycle_rate_hz', 60.0, 'must not exceed'),
    ('engine.threads', 255, 'at most'), ('speech.memory.every_cycles', 5, 'needs a seed'), ('nonsense', 1, 'no such'),
    ('speech.narration.seed', '', 'needs a seed'), ('autostart', 'perhaps', 'autostart')])
def test_validation_names_the_parameter_and_the_reason(name, value, expected):
    with pytest.raises(ParameterError, match=expected):
        parse({name: value})


def test_every_default_is_valid_and_no_seed_is_the_systems():
    values = parse({spec.name: spec.default for spec in specs()})
    assert values == parse({}) and values.engine_options('x').noise_seed is None
    assert values.engine_options('x').checkpoint == 'x'
    assert [standing.channel for standing in values.speech.standing()] == ['narration']


def test_the_documentation_is_current():
    assert (Path(__file__).parents[1] / 'docs' / 'parameters.md').read_text() == document(), (
        'run: python -m oxygen_ros.node.parameter_docs > docs/parameters.md')
