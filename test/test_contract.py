"""The contract: what it accepts, how it converts, and how it says no."""
import math
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.contract import Axis, Contract, ContractError, load_contract

CONFIG = Path(__file__).parents[1] / 'config'
NUMBER = st.floats(-100, 100).filter(lambda x: abs(x) > 1e-3)


def minimal(**changes) -> dict:
    return {'robot': 'test arm', 'semantics': 'absolute_position', 'policy_period': 0.1,
            'cameras': [{'name': 'front', 'topic': 'front/image'}],
            'state': [{'joint': 'elbow'}, {'joint': 'wrist'}],
            'actions': [{'joint': 'elbow', 'position': [-1, 1]}, {'joint': 'wrist', 'position': [-2, 2]}], **changes}


def write(tmp_path, data) -> Path:
    path = tmp_path / 'contract.yaml'
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data))
    return path


def test_the_tabletop_contract_is_valid():
    contract = load_contract(CONFIG / 'tabletop_contract.yaml')
    assert [camera.name for camera in contract.cameras] == ['front', 'wrist']
    assert [action.joint for action in contract.actions] == [f'lbr_iiwa_joint_{i}' for i in range(1, 8)]
    assert contract.moves_joints and contract.instruction


def changed(path: str, value) -> dict:
    """The minimal contract with one dotted key set (None removes it)."""
    data = minimal()
    *parents, last = path.split('.')
    target = data
    for key in parents:
        target = target[int(key) if key.isdigit() else key]
    if value is None:
        del target[last]
    else:
        target[last] = value
    return data


@pytest.mark.parametrize('key, value, expected', [
    ('semantics', 'torque', ['semantics', 'torque', 'velocity']),
    ('policy_period', 0, ['policy_period', '0']),
    ('policy_period', None, ['policy_period', 'add it']),
    ('policy_period', '.inf', ['policy_period']),
    ('typo', 1, ['typo', 'spelling']),
    ('actions.1.velocty', 1, ['actions[1] (wrist).velocty', 'spelling']),
    ('actions.1.velocity', -1, ['actions[1] (wrist).velocity', '-1']),
    ('actions.0.position', [1, -1], ['actions[0] (elbow)', 'least']),
    ('actions.0.position', None, ['elbow', 'no limits', 'limits: urdf']),
    ('actions.0.joint', 'shoulder', ['shoulder', 'not in state']),
    ('actions.0.scale', 0, ['actions[0] (elbow)', 'scale']),
    ('actions.0.gripper', {'policy_open': 1, 'policy_closed': 1, 'robot_open': 0, 'robot_closed': 1},
     ['actions[0] (elbow).gripper', 'policy_open and policy_closed must differ']),
    ('actions.1.joint', 'elbow', ['elbow', 'twice']),
    ('cameras', [], ['cameras']),
    ('cameras.0.transforms', [{'rotate': 45}], ['cameras[0] (front).transforms[0].rotate', '45']),
    ('cameras.0.transforms', [{'rotate': 90, 'flip': 'vertical'}], ['exactly one']),
    ('cameras.0.topic', '', ['cameras[0] (front).topic']),
    ('joint_topics', [], ['joint_topics', 'at least one']),
    ('joint_topics', [{'topic': 'left', 'prefix': 'left_'}, {'topic': 'right', 'prefix': 'right_'}],
     ['no topic can give elbow', 'begin with left_ or right_']),
])
def test_a_fault_is_named_with_its_key(tmp_path, key, value, expected):
    path = write(tmp_path, changed(key, value))
    with pytest.raises(ContractError) as error:
        load_contract(path)
    for part in (str(path), *expected):
        assert part in str(error.value)


@pytest.mark.parametrize('text', ['', '[1, 2', '- a list', '\t: tab', 'just words'])
def test_a_file_that_is_no_contract_is_refused_by_name(tmp_path, text):
    path = write(tmp_path, text)
    with pytest.raises(ContractError, match=str(path)):
        load_contract(path)


def test_a_missing_file_names_the_parameter_to_set(tmp_path):
    with pytest.raises(ContractError, match='No such file.*parameter `contract`'):
        load_contract(tmp_path / 'absent.yaml')


def test_all_faults_come_in_one_message(tmp_path):
    data = changed('semantics', 'torque')
    data['policy_period'] = -1
    with pytest.raises(ContractError) as error:
        load_contract(write(tmp_path, data))
    assert 'semantics' in str(error.value) and 'policy_period' in str(error.value)


@pytest.mark.parametrize('semantics', ['velocity', 'cartesian'])
def test_only_positions_become_joint_targets(semantics):
    contract = Contract.model_validate(minimal(semantics=semantics))
    assert not contract.moves_joints
    with pytest.raises(ContractError, match=semantics):
        contract.joint_targets(np.zeros((3, 2)), np.zeros(2))


def test_units_follow_one_rule_both_ways():
    entry = {'joint': 'elbow', 'unit': 'deg', 'scale': -1, 'offset': 90}
    data = minimal(state=[entry, {'joint': 'wrist'}])
    data['actions'][0] = {**entry, 'position': [-2, 2]}
    contract = Contract.model_validate(data)
    state = contract.state_vector({('elbow', 'position'): math.pi / 4, ('wrist', 'position'): 0.5})
    assert state == pytest.approx([45.0, 0.5])
    assert contract.joint_targets(state[None], state)[0] == pytest.approx([math.pi / 4, 0.5])


def test_gripper_polarity_is_declared_in_words():
    grip = {'policy_open': 1.0, 'policy_closed': -1.0, 'robot_open': 0.0, 'robot_closed': 0.8}
    slope, intercept = Axis(gripper=grip).line
    assert slope * 0.0 + intercept == pytest.approx(1.0)
    assert slope * 0.8 + intercept == pytest.approx(-1.0)


@given(scale=NUMBER, offset=st.floats(-100, 100), value=st.floats(-10, 10), unit=st.sampled_from(['rad', 'deg', 'mm']))
def test_state_and_action_conversions_are_inverse(scale, offset, value, unit):
    entry = {'joint': 'elbow', 'unit': unit, 'scale': scale, 'offset': offset}
    contract = Contract.model_validate(minimal(state=[entry], actions=[{**entry, 'position': [-99, 99]}]))
    slope, intercept = contract.state[0].line
    actions = np.array([[slope * value + intercept]])
    assert contract.joint_targets(actions, np.zeros(1))[0, 0] == pytest.approx(value, abs=1e-6)


def test_relative_actions_become_absolute_except_those_declared_so():
    data = minimal(semantics='relative_position')
    data['actions'][1]['absolute'] = True
    contract = Contract.model_validate(data)
    targets = contract.joint_targets(np.array([[0.1, 0.3], [0.2, 0.4]]), np.array([1.0, 5.0], np.float32))
    assert targets == pytest.approx(np.array([[1.1, 0.3], [1.2, 0.4]]))


@given(targets=st.lists(st.tuples(st.floats(-3, 3), st.floats(-3, 3)), min_size=1, max_size=4),
       semantics=st.sampled_from(['absolute_position', 'relative_position']))
def test_targets_become_actions_again(targets, semantics):
    data = minimal(semantics=semantics)
    data['actions'][1] |= {'absolute': True, 'unit': 'deg', 'scale': -2, 'offset': 5}
    contract, state, targets = Contract.model_validate(data), np.array([0.4, 9.0], np.float32), np.array(targets)
    assert contract.joint_targets(contract.policy_actions(targets, state), state) == pytest.approx(targets, abs=1e-5)


@pytest.mark.parametrize('entry', [{'unit': 'deg'}, {'scale': -1.0}, {'offset': 0.2}, {'gripper': {
    'policy_open': 1, 'policy_closed': 0, 'robot_open': 0.8, 'robot_closed': 0}}])
def test_a_relative_action_in_another_unit_than_its_state_is_refused(entry):
    data = minimal(semantics='relative_position')
    data['state'][0] |= entry
    with pytest.raises(ValueError, match='elbow is relative to its state, but has another unit'):
        Contract.model_validate(data)
    data['actions'][0]['absolute'] = True
    Contract.model_validate(data)
    data['actions'][0] |= {'absolute': False, **entry}
    Contract.model_validate(data)


@pytest.mark.parametrize('text, expected', [
    ('policy_period: 0.1\npolicy_period: 5.0', 'policy_period: given twice'), ('source: 2025-02-30', 'not valid YAML'),
    ('policy_period: yes', 'policy_period: a number is needed'),
    ('description_topic: robot description', 'description_topic: String should match')])
def test_what_yaml_would_take_silently_is_refused(tmp_path, text, expected):
    path = tmp_path / 'contract.yaml'
    data = {key: value for key, value in minimal().items() if key != text.split(':')[0]}
    path.write_text(f'{yaml.safe_dump(data)}\n{text}\n')
    with pytest.raises(ContractError, match=expected):
        load_contract(path)


def test_other_actions_stay_out_of_the_trajectory():
    data = minimal()
    data['actions'].insert(1, {'name': 'vacuum'})
    contract = Contract.model_validate(data)
    targets = contract.joint_targets(np.array([[0.1, 9.0, 0.3]]), np.zeros(2))
    assert [action.label for action in contract.joints] == ['elbow', 'wrist']
    assert targets == pytest.approx(np.array([[0.1, 0.3]]))


def test_mismatch_with_the_checkpoint_is_said_in_full():
    contract = Contract.model_validate(minimal())
    assert contract.mismatches(['front', 'wrist'], 2, 2, relative=True) == []
    found = contract.mismatches(['base_0_rgb'], 8, 7, relative=False)
    assert len(found) == 3
    assert 'front' in found[0] and 'base_0_rgb' in found[0] and '8' in found[1] and '7' in found[2]
    contract = Contract.model_validate(minimal(semantics='relative_position'))
    twice, = contract.mismatches(['front', 'wrist'], 2, 2, relative=True)
    assert 'added to the state twice' in twice and not contract.mismatches(['front', 'wrist'], 2, 2, relative=False)
