from pathlib import Path

import numpy as np
import pytest
import yaml
from checkpoints import copy, edit_json, edit_tensors

from oxygen_ros.cli import run
from oxygen_ros.contract import Contract, load_contract
from oxygen_ros.policy import read
from oxygen_ros.policy.random_checkpoint import write

CONTRACTS = Path(__file__).parents[1] / 'config' / 'contracts'


@pytest.fixture
def folder(tmp_path):
    """The reference LeRobot checkpoint: 3 cameras, 8 state values, 7 actions."""
    return copy('lerobot', tmp_path / 'checkpoint')


@pytest.fixture
def contract(tmp_path, folder):
    """Edit the contract that fits the checkpoint, write it, give its path."""
    data = dict(
        robot='test arm', semantics='absolute_position', policy_period=0.05, instruction='stack the cubes',
        cameras=[dict(name='base_0_rgb', topic='front')], state=[dict(joint=f'joint{i}') for i in range(8)],
        actions=[dict(joint=f'joint{i}', position=[-6.0, 6.0]) for i in range(7)])

    def save(change=lambda data: None):
        change(data)
        path = tmp_path / 'contract.yaml'
        path.write_text(yaml.safe_dump(data))
        return path

    return save


def check(capsys, *arguments):
    """-> exit code, what was found, the failures."""
    code = run(['check', *map(str, arguments)])
    out, err = capsys.readouterr()
    failures = err.splitlines()
    assert all(line.startswith('oxygen check: ') for line in failures)
    assert code == bool(failures)
    return code, ' '.join(out.split()), failures


def test_a_checkpoint_that_fits_its_robot(capsys, folder, contract):
    code, out, _ = check(capsys, folder, '--contract', contract())
    assert code == 0
    for told in ('8 values, QUANTILES: 0 -1.61..1.68, 1', '10 x 7, QUANTILES: 0',
                 'pi0.5 from LeRobot, 0.3 M parameters', 'language 3 x 64', '259 ids, bos 2', 'base_0_rgb from front',
                 'absolute_position: chunks reach the topic actions', '10 actions, 0.05 s apart: 0.50 s',
                 "'Task: stack the cubes, State: 128 128", 'a first chunk', 'finite', '(length)'):
        assert told in out, told


def test_without_a_contract_the_checkpoint_alone_is_checked(capsys, folder):
    code, out, _ = check(capsys, folder)
    assert code == 0 and 'a first chunk' in out and 'semantics' not in out


def test_without_a_checkpoint_the_contract_alone_is_checked(capsys, contract):
    code, out, _ = check(capsys, '--contract', contract())
    assert code == 0 and 'test arm' in out and 'only the contract was checked' in out
    code, _, failures = check(capsys, '--contract', contract(lambda c: c['actions'][2].pop('position')))
    assert code == 1 and 'joint2 has no limits' in failures[0]


def test_the_checkpoint_that_the_contract_names_is_checked_too(capsys, folder, contract):
    code, out, _ = check(capsys, '--contract', contract(lambda c: c.update(checkpoint=str(folder))))
    assert code == 0 and 'a first chunk' in out


def test_nothing_to_check_is_said(capsys):
    assert run(['check']) == 2
    assert 'give the folder of a checkpoint, or --contract' in capsys.readouterr().err


@pytest.mark.parametrize(('change', 'failure'), [
    (lambda c: c['cameras'][0].update(name='front'), 'the checkpoint does not know front'),
    (lambda c: c['state'].append(dict(joint='rail')), '9 entries, but the checkpoint reads 8'),
    (lambda c: c['actions'].pop(), '6 entries, but the checkpoint makes 7'),
    (lambda c: c.update(robot=''), 'robot'),
    (lambda c: c['actions'][2].update(scale=0.0175), 'joint2 moved from'),   # as if degrees were taken for rad
    (lambda c: c['actions'][2].update(offset=100), 'joint2 moved from'),
])
def test_a_robot_that_does_not_fit(capsys, folder, contract, change, failure):
    code, _, failures = check(capsys, folder, '--contract', contract(change))
    assert code == 1 and len(failures) == 1 and failure in failures[0]


def test_joints_in_another_order_than_in_the_training(capsys, folder, contract):
    (folder / 'oxygen.yaml').write_text(yaml.safe_dump(
        dict(action_names=[f'joint{i}.pos' for i in (0, 1, 3, 2, 4, 5, 6)])))
    _, _, failures = check(capsys, folder, '--contract', contract())
    assert [line.split('is ')[1].split(' in')[0] for line in failures] == ['joint2', 'joint3']


def test_relative_actions_are_not_added_twice(capsys, folder, contract):
    edit_json(folder / 'policy_preprocessor.json', lambda data: data['steps'][2]['config'].update(enabled=True))
    edit_json(folder / 'policy_postprocessor.json', lambda data: data['steps'][1]['config'].update(enabled=True))
    _, out, failures = check(capsys, folder, '--contract', contract(lambda c: c.update(semantics='relative_position')))
    assert '7 of them relative' in out and len(failures) == 1 and 'added to the state twice' in failures[0]


def test_a_broken_checkpoint_is_one_message(capsys, folder):
    edit_tensors(folder / 'model.safetensors', lambda weights: weights['model.action_in_proj.bias'].fill_(np.nan))
    code, _, failures = check(capsys, folder)
    assert code == 1 and len(failures) == 1 and 'action_in_proj.bias holds values that are not finite' in failures[0]


@pytest.mark.parametrize(('arguments', 'failure'), [
    (['/nowhere'], '/nowhere is not a folder'),
    (['random:tiny', '--contract', '/nowhere.yaml'], '/nowhere.yaml: cannot be read'),
    (['random:tiny', '--device', 'gpu'], "device 'gpu' cannot be used"),
])
def test_what_cannot_be_read_is_one_message(capsys, arguments, failure):
    code, _, failures = check(capsys, *arguments)
    assert code == 1 and len(failures) == 1 and failure in failures[0]


def test_too_little_memory_is_said_before_loading(capsys, monkeypatch):
    monkeypatch.setattr('psutil.virtual_memory', lambda: type('', (), {'available': 10 ** 6}))
    _, out, failures = check(capsys, 'random:small')
    assert 'too little' in failures[0] and 'loaded' not in out


def test_non_finite_actions_fail(capsys, tmp_path):
    write(tmp_path / 'written', 'tiny')
    edit_tensors(tmp_path / 'written' / 'model.safetensors',
                 lambda weights: weights['model.action_out_proj.bias'].fill_(3e38))
    _, _, failures = check(capsys, tmp_path / 'written')
    assert len(failures) == 1 and 'not finite' in failures[0]


# --- the contracts of the public robots ---------------------------------------------------------------------------
@pytest.mark.parametrize(('name', 'semantics', 'state', 'actions', 'rate'), [
    ('aloha', 'relative_position', 14, 14, 50), ('droid', 'velocity', 8, 8, 15), ('libero', 'cartesian', 8, 7, 20),
    ('so101', 'absolute_position', 6, 6, 30)])
def test_public_contracts(name, semantics, state, actions, rate):
    contract = load_contract(CONTRACTS / f'{name}.yaml')
    assert (contract.semantics, len(contract.state), len(contract.actions)) == (semantics, state, actions)
    assert contract.policy_period * rate == pytest.approx(1, rel=1e-3)
    assert contract.source
    if name != 'so101':   # its cameras are named by each data set
        cameras = read('random:tiny').recipe.cameras
        assert not contract.mismatches(cameras, state, actions, relative=False)


def lines(entries: Contract):
    return {entry.joint: entry.line for entry in entries}


def test_aloha_grippers_and_signs_are_those_of_openpi():
    contract = load_contract(CONTRACTS / 'aloha.yaml')
    state, actions = lines(contract.state), lines(contract.actions)
    for side in ('left', 'right'):
        slope, intercept = state[f'{side}_gripper']      # openpi: (angle - 0.5476) / (1.6296 - 0.5476)
        assert slope * 0.5476 + intercept == pytest.approx(0, abs=1e-5)
        assert slope * 1.6296 + intercept == pytest.approx(1, abs=1e-5)
        assert actions[f'{side}_gripper'] == (1, -0.5476)   # openpi: value + 0.5476 is the angle
        assert state[f'{side}_elbow'] == actions[f'{side}_elbow'] == (-1, 0)
    zeros = contract.joint_targets(np.zeros((1, 14)), np.full(14, 0.3, np.float32))
    assert zeros[0, 1] == pytest.approx(-0.3) and zeros[0, 6] == pytest.approx(0.5476)   # relative, and absolute


def test_so101_is_in_degrees_and_percent():
    contract = load_contract(CONTRACTS / 'so101.yaml')
    read = {(entry.joint, 'position'): 0.5 for entry in contract.state} | {('gripper', 'position'): 1.74533}
    state = contract.state_vector(read)
    assert state[0] == pytest.approx(28.6479, abs=1e-3) and state[5] == pytest.approx(100, abs=1e-3)
