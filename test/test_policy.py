import dataclasses

import numpy as np
import pytest
from checkpoints import edit_json, observation, refused
from golden import tensors

from oxygen_ros.policy import load
from oxygen_ros.policy.overrides import Overrides

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'


def test_renamed_cameras_are_accepted_under_both_names(lerobot):
    edit_json(lerobot / PRE, lambda data: data['steps'][0]['config'].update(
        rename_map={'observation.images.top': 'observation.images.base_0_rgb'}))
    policy = load(lerobot)
    assert policy.prepare(observation(cameras=('top',))).cameras == ('base_0_rgb',)
    with pytest.raises(ValueError, match="'base_0_rgb' is given twice"):
        policy.prepare(observation(cameras=('base_0_rgb', 'top')))


def test_a_name_of_the_model_means_the_models_camera_though_it_is_renamed(lerobot):
    """A training that swapped two cameras does not make the model's own names ambiguous."""
    swap = {f'observation.images.{a}': f'observation.images.{b}' for a, b in
            (('base_0_rgb', 'left_wrist_0_rgb'), ('left_wrist_0_rgb', 'base_0_rgb'))}
    edit_json(lerobot / PRE, lambda data: data['steps'][0]['config'].update(rename_map=swap))
    assert load(lerobot).prepare(observation(cameras=('base_0_rgb',))).cameras == ('base_0_rgb',)


def test_empty_cameras_of_the_training_are_not_cameras(lerobot):
    edit_json(lerobot / 'config.json', lambda config: config['input_features'].update(
        {'observation.images.empty_camera_0': {'type': 'VISUAL', 'shape': [3, 56, 56]}}))
    assert load(lerobot).cameras == ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')


def test_cameras_are_prepared_in_the_order_of_training(pristine):
    seen = observation(cameras=('right_wrist_0_rgb', 'base_0_rgb'))
    assert load(pristine['openpi']).prepare(seen).cameras == ('base_0_rgb', 'right_wrist_0_rgb')


def test_mean_and_standard_deviation(lerobot):
    for name, step in ((PRE, 3), (POST, 0)):
        edit_json(lerobot / name, lambda data, step=step: data['steps'][step]['config']['norm_map'].update(
            STATE='MEAN_STD', ACTION='MEAN_STD'))
    policy = load(lerobot)
    stats = tensors('checkpoint_lerobot_tiny56/policy_postprocessor_step_0_unnormalizer_processor')
    np.testing.assert_allclose(policy.finish(np.zeros((10, 32)), observation())[0], stats['action.mean'], rtol=1e-6)


def relative(folder, **config):
    edit_json(folder / PRE, lambda data: data['steps'][2]['config'].update(enabled=True, **config))
    edit_json(folder / POST, lambda data: data['steps'][1]['config'].update(enabled=True))


def test_relative_actions_are_added_to_the_state_of_their_observation(lerobot):
    seen = dataclasses.replace(observation(), state=np.arange(8, dtype=np.float32))
    plain = load(lerobot).finish(np.zeros((10, 32)), seen)
    relative(lerobot, action_names=['j0', 'j1', 'j2', 'j3', 'j4', 'Left_Gripper', 'j6'])
    moved = load(lerobot).finish(np.zeros((10, 32)), seen) - plain
    np.testing.assert_allclose(moved, np.tile([0, 1, 2, 3, 4, 0, 6], (10, 1)), atol=1e-5)


def test_disagreement_on_relative_actions_is_refused(lerobot):
    edit_json(lerobot / PRE, lambda data: data['steps'][2]['config'].update(enabled=True))
    refused(lerobot, 'disagree on relative actions')


@pytest.mark.parametrize(('seen', 'message'), [
    (observation(state=7), r'state has shape \[7\], the checkpoint reads 8'),
    (dataclasses.replace(observation(), state=np.array([0, np.nan] + [0] * 6, np.float32)), r'not finite: state\[1\]'),
    (observation(cameras=('front',)), "unknown camera 'front': the checkpoint knows base_0_rgb"),
    (observation(cameras=()), 'no camera image'),
    (observation(instruction=' '), 'instruction is empty'),
])
def test_an_unusable_observation_is_refused(pristine, seen, message):
    with pytest.raises(ValueError, match=message):
        load(pristine['lerobot']).prepare(seen)


def test_an_unusable_picture_is_refused_by_camera(pristine):
    seen = dataclasses.replace(observation(), images={'base_0_rgb': np.zeros((4, 4), np.uint8)})
    with pytest.raises(ValueError, match='camera base_0_rgb: expected a uint8 RGB image'):
        load(pristine['lerobot']).prepare(seen).image('base_0_rgb')


def test_non_finite_actions_never_come_out(pristine):
    actions = np.zeros((10, 32))
    actions[3, 2] = np.nan
    with pytest.raises(ValueError, match='not finite'):
        load(pristine['lerobot']).finish(actions, observation())


def test_clipped_states_and_cut_instructions_are_counted(pristine):
    policy = load(pristine['lerobot'], overrides=Overrides(state_names=tuple(f'joint{i}' for i in range(8))))
    far = np.zeros(8, np.float32)
    far[2] = 99
    policy.prepare(observation())
    policy.prepare(dataclasses.replace(observation(), state=far, instruction='word ' * 99))
    assert any(note == 'joint2: outside the training range in 1 of 2 observations' for note in policy.notes)
    assert any('instruction cut' in note and '(1 of 2 observations)' in note for note in policy.notes)
    policy.forget()
    assert not policy.notes
