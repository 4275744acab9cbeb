import dataclasses
import weakref

import numpy as np
import pytest
import torch
from checkpoints import act, chunk, edit_json, edit_tensors, observation
from golden import GOLDEN, metadata, tensors
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.model.config import PRESETS
from oxygen_ros.model.names import EMBED_TOKENS, EXPERT, LM_HEAD, VISION, expected
from oxygen_ros.policy import load, read
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.random_checkpoint import write
from oxygen_ros.policy.random_weights import random_tensors
from oxygen_ros.policy.sizes import config_of
from oxygen_ros.policy.weights import Weights


def test_lerobot_checkpoint_acts_as_the_reference(pristine):
    golden, told = tensors('tiny56_lerobot_processors'), metadata('tiny56_lerobot_processors')
    policy = load(pristine['lerobot'])
    # Named [3, 56, 56], but the numbers lie in the order of the camera's [56, 56, 3]; the third camera is missing.
    images = {name: (golden[f'image_{name}'] * 255).round().byte().view(56, 56, 3).numpy()
              for name in ('base_0_rgb', 'left_wrist_0_rgb')}
    seen = Observation(images, golden['state'].numpy(), told['task'])
    prepared = policy.prepare(seen)
    assert prepared.cameras == ('base_0_rgb', 'left_wrist_0_rgb') and prepared.text == told['prompt']
    assert prepared.ids == golden['tokens'][golden['token_mask']].tolist()
    actions = policy.finish(act(policy, prepared, golden['noise'][0]), seen)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, golden['actions'][0], atol=2e-5)


def test_openpi_checkpoint_is_the_same_network(pristine):
    weights = {name: value.bfloat16().float() for name, value in tensors('tiny56_weights').items()}
    policy = load(pristine['openpi'])
    read = Weights(pristine['openpi'] / 'model.safetensors')
    assert set(read.shapes) == set(expected(policy.config))
    assert all(read.get(name).float().equal(weights[name]) for name in read.shapes)
    assert (policy.config.schedule, policy.config.round_embedding_scale, policy.recipe.resize) == \
        ('additive', False, 'openpi')
    assert np.isfinite(chunk(policy, observation())).all()


@pytest.mark.parametrize('format', ['lerobot', 'openpi'])
def test_sizes_are_read_off_the_tensors(pristine, format):
    config = load(pristine[format]).config
    same = PRESETS['tiny'].model_dump(exclude={'schedule', 'round_embedding_scale', 'vision_float32'})
    assert config.model_dump(include=set(same)) == same


@given(vision_width=st.sampled_from([16, 48, 1152]), layers=st.integers(1, 3), heads=st.integers(1, 8),
       depth=st.integers(1, 4), patch=st.integers(1, 16), side=st.integers(1, 5), vocab=st.integers(1, 999))
def test_any_size_is_recognised(vision_width, layers, heads, depth, patch, side, vocab):
    config = PRESETS['tiny'].model_copy(update=dict(
        vision_width=vision_width, vision_layers=layers,
        vision_heads=16 if vision_width == 1152 else vision_width // 16, heads=heads, depth=depth, patch=patch,
        image=patch * side, vocab=vocab))
    assert config_of(expected(config), GOLDEN, horizon=config.horizon) == config


def test_the_public_model_has_its_published_number_of_parameters():
    assert sum(np.prod(shape) for shape in expected(PRESETS['pi05']).values()) == 3_353_433_872


def test_random_weights_repeat_by_seed_and_all_matter():
    config = PRESETS['tiny']
    first, again, other = (random_tensors(config, seed) for seed in (1, 1, 2))
    for name, shape in expected(config).items():
        assert first(name).shape == shape and first(name).equal(again(name)) and not first(name).equal(other(name))
        assert first(name).count_nonzero() == first(name).numel()


@pytest.mark.parametrize('format', ['lerobot', 'openpi'])
def test_a_written_random_checkpoint_is_that_of_its_preset(tmp_path, format):
    write(tmp_path / 'written', 'tiny', format)
    written = load(tmp_path / 'written')
    weights, get = Weights(tmp_path / 'written' / 'model.safetensors'), random_tensors(PRESETS['tiny'])
    assert all(weights.get(name).equal(get(name)) for name in expected(PRESETS['tiny']))
    seen = observation(size=(56, 56))   # nothing to resize, which the formats do differently
    np.testing.assert_allclose(chunk(written, seen), chunk(load('random:tiny'), seen),
                               atol={'lerobot': 2e-5, 'openpi': 1e-3}[format])   # openpi steps time differently


def test_harmless_differences_load(lerobot):
    def change(weights):
        for name in list(weights):
            if 'time_mlp' in name:
                weights[name.replace('time_mlp', 'action_time_mlp')] = weights.pop(name)
        weights['model.state_proj.weight'] = torch.zeros(4, 4)
        del weights['model.' + EXPERT + 'lm_head.weight']
        del weights['model.' + EMBED_TOKENS]
    reference = chunk(load(lerobot), observation())
    edit_tensors(lerobot / 'model.safetensors', change)
    np.testing.assert_array_equal(chunk(load(lerobot), observation()), reference)


def test_embedding_alone_stands_for_both(lerobot):
    reference = load(lerobot).net.embed([5])
    edit_tensors(lerobot / 'model.safetensors', lambda weights: weights.pop('model.' + LM_HEAD))
    assert load(lerobot).net.embed([5]).equal(reference)


def test_an_untied_embedding_is_used_for_embedding_only(lerobot):
    def change(weights):
        weights['model.' + EMBED_TOKENS] = weights['model.' + EMBED_TOKENS] * 2
    before = load(lerobot).net
    edit_tensors(lerobot / 'model.safetensors', change)
    after = load(lerobot).net
    torch.testing.assert_close(after.embed([5]), 2 * before.embed([5]))
    hidden = torch.randn(1, after.config.width)
    torch.testing.assert_close(after.language.logits(hidden), before.language.logits(hidden))


@pytest.mark.parametrize('preset', ['tiny', 'small'])
def test_bfloat16_stays_close_to_float32(preset):
    seen = observation(cameras=('base_0_rgb',))
    full, half = (chunk(load(f'random:{preset}', dtype=dtype), seen) for dtype in ('float32', 'bfloat16'))
    error = np.sqrt(np.mean((full - half) ** 2) / np.mean(full ** 2))
    assert error <= 0.01, error


def test_oxygen_mask_brings_its_prompt(pristine):
    policy = load(pristine['lerobot'], mask='causal_text')
    assert policy.config.mask == 'causal_text'
    assert policy.prepare(observation(instruction='Pick it up!')).text == 'Task: pick it up. Subtask: '
    assert len(policy.prepare(observation(instruction='word ' * 99)).ids) <= 100


def test_the_folder_can_choose_the_mask(openpi):
    (openpi / 'oxygen.yaml').write_text('mask: causal_text\n')
    assert load(openpi).config.mask == 'causal_text'
    assert load(openpi, mask='prefix_lm').config.mask == 'prefix_lm'


def test_another_number_of_denoise_steps_is_noted(lerobot):
    edit_json(lerobot / 'config.json', lambda config: config.update(num_inference_steps=5))
    assert any('5 denoise steps' in note for note in load(lerobot).notes)


def test_weights_are_streamed():
    checkpoint, live, peak = read('random:small'), 0, 0

    def get(name):
        nonlocal live, peak
        tensor = checkpoint.get(name)
        live, size = live + tensor.nbytes, tensor.nbytes
        peak = max(peak, live)
        weakref.finalize(tensor, gone, size)
        return tensor

    def gone(size):
        nonlocal live
        live -= size

    dataclasses.replace(checkpoint, get=get).load(dtype='bfloat16')
    assert live == 0 and peak < 0.15 * 4 * checkpoint.parameters


def test_the_model_names_tensors_as_the_reference_does():
    names = {name for name in tensors('tiny56_weights') if name != EXPERT + 'lm_head.weight'}
    assert names == set(expected(PRESETS['tiny']))
    assert VISION + 'post_layernorm.bias' in names
