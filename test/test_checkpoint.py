import dataclasses
import json
import shutil
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import copy, edit_json, edit_tensors
from golden import GOLDEN, metadata, tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from oxygen_ros.model import CheckpointError, load, read
from oxygen_ros.model.config import PRESETS
from oxygen_ros.model.names import EMBED_TOKENS, EXPERT, LM_HEAD, VISION, expected, random_tensors
from oxygen_ros.model.observation import Observation
from oxygen_ros.model.overrides import Overrides
from oxygen_ros.model.random_checkpoint import write
from oxygen_ros.model.segments import observation_segments
from oxygen_ros.model.weights import Weights, config_of

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'


@pytest.fixture(scope='module')
def pristine(tmp_path_factory):
    """Unchanged copies with a tokenizer, for tests that only read."""
    return {format: copy(format, tmp_path_factory.mktemp(format) / 'checkpoint') for format in ('lerobot', 'openpi')}


@pytest.fixture
def lerobot(tmp_path):
    return copy('lerobot', tmp_path / 'lerobot')


@pytest.fixture
def openpi(tmp_path):
    return copy('openpi', tmp_path / 'openpi')


def observation(state=8, cameras=('base_0_rgb',), instruction='pick up the cube', size=(60, 80)):
    image = np.random.default_rng(0).integers(0, 256, (*size, 3), np.uint8)
    return Observation({camera: image for camera in cameras}, np.full(state, 0.3, np.float32), instruction)


def act(policy, prepared, noise):
    """Encode, prefill, denoise: the engine's cycle without an engine."""
    net = policy.net
    images = net.encode(prepared.images).flatten(0, 1)
    rows = torch.cat([images, net.embed(prepared.ids)])
    pool = net.pool(len(rows) + net.config.horizon, len(rows) + net.config.horizon)
    prefix = pool.prefix(len(rows), net.config.horizon)
    net.forward(rows, observation_segments(net.config, prefix, len(images)), pool)
    return net.denoise(noise, prefix, pool)


def chunk(policy, seen, seed=0):
    noise = torch.randn(policy.config.horizon, policy.config.action_dim, generator=torch.Generator().manual_seed(seed))
    return policy.finish(act(policy, policy.prepare(seen), noise), seen)


def refused(folder, *words, **options):
    """Loading fails with one line that holds all the words."""
    with pytest.raises(CheckpointError) as error:
        load(folder, **options)
    message = str(error.value)
    assert '\n' not in message
    for word in words:
        assert word in message, message
    return message


# --- what must load -----------------------------------------------------------------------------------------------
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


# --- what must not load -------------------------------------------------------------------------------------------
NAMES = sorted(expected(PRESETS['tiny']))


def damaged(tmp_path_factory, change):
    folder = copy('openpi', tmp_path_factory.mktemp('damaged') / 'checkpoint')
    edit_tensors(folder / 'model.safetensors', change)
    return folder


@settings(max_examples=15, deadline=None)
@given(name=st.sampled_from(NAMES), kind=st.sampled_from(['missing', 'renamed', 'longer', 'transposed', 'nan', 'inf']))
def test_one_wrong_tensor_is_named(tmp_path_factory, name, kind):
    def change(weights):
        tensor = weights.pop(name)
        if kind == 'renamed':
            weights[name + '_x'] = tensor
        elif kind == 'longer':
            weights[name] = torch.cat([tensor, tensor[:1]])
        elif kind == 'transposed':
            weights[name] = tensor[None]
        elif kind in ('nan', 'inf'):
            tensor.view(-1)[-1] = float(kind)
            weights[name] = tensor
    folder = damaged(tmp_path_factory, change)
    message = refused(folder, str(folder), name.replace('.0.', '.').split('.')[-1])
    if 'layers' not in name or kind != 'missing':
        assert name in message or '#' in message


@settings(max_examples=15, deadline=None)
@given(part=st.floats(0, 1, exclude_max=True))
def test_a_truncated_file_is_refused(tmp_path_factory, part):
    folder = copy('openpi', tmp_path_factory.mktemp('damaged') / 'checkpoint')
    path = folder / 'model.safetensors'
    path.write_bytes(path.read_bytes()[:int(part * path.stat().st_size)])
    refused(folder, 'model.safetensors is not a whole safetensors file', 'copy it again')


@settings(max_examples=15, deadline=None)
@given(at=st.integers(0, 400), byte=st.integers(0, 255))
def test_a_damaged_header_never_crashes(tmp_path_factory, at, byte):
    folder = copy('openpi', tmp_path_factory.mktemp('damaged') / 'checkpoint')
    path = folder / 'model.safetensors'
    content = bytearray(path.read_bytes())
    content[at] = byte
    path.write_bytes(content)
    try:
        load(folder)
    except CheckpointError as error:
        assert '\n' not in str(error)


@pytest.mark.parametrize(('content', 'cause'), [
    ({'h.0.attn.weight': torch.zeros(2, 2)}, 'not a pi0.5 model at all'),
    ({'wte.weight': torch.zeros(2, 2), 'lm_head.weight': torch.zeros(2, 2)}, 'not a pi0.5 model at all'),
])
def test_a_foreign_model_is_recognised(openpi, content, cause):
    save_file(content, openpi / 'model.safetensors')
    refused(openpi, cause, *content)


def test_a_pi0_model_is_recognised(openpi):
    def change(weights):
        for name in list(weights):
            if '.dense.' in name:
                del weights[name]
                if name.endswith('weight'):
                    weights[name.replace('.dense', '')] = torch.zeros(32)
    edit_tensors(openpi / 'model.safetensors', change)
    refused(openpi, 'Likely a pi0 model')


def test_extra_parts_are_recognised(openpi):
    edit_tensors(openpi / 'model.safetensors', lambda weights: weights.update(
        {'paligemma_with_expert.paligemma.model.language_model.layers.0.self_attn.q_proj.lora_A.weight':
         torch.zeros(1)}))
    refused(openpi, 'lora_A', 'merge them')


def test_a_tensor_given_twice_is_refused(openpi):
    edit_tensors(openpi / 'model.safetensors', lambda weights: weights.update(
        {'model.action_in_proj.bias': torch.zeros(32)}))
    refused(openpi, 'action_in_proj.bias is there twice')


def test_quantised_weights_are_refused(openpi):
    edit_tensors(openpi / 'model.safetensors', lambda weights: weights.update(
        {'action_in_proj.weight': torch.zeros(32, 32, dtype=torch.int8)}))
    refused(openpi, 'action_in_proj.weight is of type I8', 'float32 or bfloat16')


@pytest.mark.parametrize(('name', 'hint'), [
    ('params/_METADATA', 'JAX format'), ('adapter_model.safetensors', 'LoRA'), ('pytorch_model.bin', 'Pickled'),
    ('pretrained_model/config.json', 'Give'), ('model-00001-of-00002.safetensors', 'several files'),
    ('README.md', 'Give the folder of a LeRobot')])
def test_a_folder_without_weights_says_what_it_is(tmp_path, name, hint):
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_bytes(b'')
    refused(tmp_path, 'no model.safetensors', hint)


def test_a_git_lfs_pointer_is_recognised(openpi):
    (openpi / 'model.safetensors').write_text('version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n')
    refused(openpi, 'Git LFS pointer', 'git lfs pull')


def test_paths_and_devices_that_do_not_exist(tmp_path):
    refused(tmp_path / 'nowhere', 'is not a folder', 'random:tiny')
    refused('random:huge', 'random:huge', 'pi05')
    refused('random:tiny', "device 'gpu'", device='gpu')


@pytest.mark.parametrize('format', ['lerobot', 'openpi'])
def test_a_missing_or_foreign_tokenizer_is_refused(tmp_path, format):
    folder = copy(format, tmp_path / format)
    (folder / 'tokenizer.json').unlink()
    refused(folder, 'no tokenizer in', 'tokenizer.json')
    (folder / 'oxygen.yaml').write_text('tokenizer: elsewhere.json\n')
    refused(folder, 'no tokenizer at', 'elsewhere.json')


def test_a_tokenizer_larger_than_the_model_is_refused(openpi):
    data = json.loads((openpi / 'tokenizer.json').read_text())
    data['model']['vocab'] |= {f'extra{i}': 259 + i for i in range(300)}
    (openpi / 'tokenizer.json').write_text(json.dumps(data))
    refused(openpi, '559 ids, but the model knows 512')


def test_config_of_another_type_is_refused(lerobot, openpi):
    edit_json(lerobot / 'config.json', lambda config: config.update(type='act'))
    refused(lerobot, "type is 'act'")
    edit_json(openpi / 'config.json', lambda config: (config.clear(), config.update(model_type='llama')))
    refused(openpi, "type 'llama'")


@pytest.mark.parametrize(('change', 'words'), [
    (lambda c: c.pop('chunk_size'), ['config.json', 'chunk_size']),
    (lambda c: c.update(chunk_size='ten'), ['config.json', 'chunk_size']),
    (lambda c: c.update(max_action_dim=16), ['action_dim 16', '32']),
    (lambda c: c.update(image_resolution=[224, 224]), ['image 224', '56']),
    (lambda c: c.update(image_resolution=[56, 40]), ['not square']),
    (lambda c: c.update(tokenizer_max_length=50), ['no room for the instruction']),
    (lambda c: c.update(use_proprioceptive_memory=True), ['memory']),
    (lambda c: c['input_features'].pop('observation.state'), ['observation.state', 'base model']),
    (lambda c: c['output_features']['action'].update(shape=[9]), ['has 7 values, the checkpoint declares 9']),
])
def test_a_contradicting_lerobot_config_is_refused(lerobot, change, words):
    edit_json(lerobot / 'config.json', change)
    refused(lerobot, *words)


def test_unknown_config_keys_are_tolerated(lerobot):
    edit_json(lerobot / 'config.json', lambda config: config.update(a_key_of_next_year={'x': 1}))
    load(lerobot)


@pytest.mark.parametrize('name', ['config.json', PRE, POST])
@pytest.mark.parametrize('content', ['', '[]', '{"steps": 3}', '{'])
def test_a_damaged_json_is_refused_by_name(lerobot, name, content):
    (lerobot / name).write_text(content)
    refused(lerobot, name)


def nodes(data, path=()):
    """The paths of everything in a JSON document."""
    for key, value in data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ():
        yield (*path, key)
        yield from nodes(value, (*path, key))


JSON = [(format, path.relative_to(GOLDEN / f'checkpoint_{format}_tiny56'), node)
        for format in ('lerobot', 'openpi')
        for path in sorted((GOLDEN / f'checkpoint_{format}_tiny56').rglob('*.json'))
        for node in nodes(json.loads(path.read_text()))]


@settings(max_examples=150, deadline=None)
@given(where=st.sampled_from(JSON), value=st.sampled_from(
    ['delete', None, 0, -1, 1e9, float('nan'), '', 'x', True, [], ['x'], {}, {'x': 1}]))
def test_any_wrong_json_value_is_one_message_or_harmless(tmp_path_factory, pristine, where, value):
    format, name, node = where
    folder = tmp_path_factory.mktemp('mutated') / 'checkpoint'
    shutil.copytree(pristine[format], folder)

    def change(data):
        for key in node[:-1]:
            data = data[key]
        if value == 'delete':
            del data[node[-1]]
        else:
            data[node[-1]] = value

    edit_json(folder / name, change)
    try:
        seen = observation(load(folder).state_dim)
        assert np.isfinite(chunk(load(folder), seen)).all()
    except CheckpointError as error:
        assert '\n' not in str(error) and str(folder) in str(error)
    except ValueError as error:   # loads, but reads another camera
        assert 'unknown camera' in str(error) or 'no camera' in str(error)


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


def test_an_unknown_processing_step_is_refused(lerobot):
    edit_json(lerobot / PRE, lambda data: data['steps'].append({'registry_name': 'my_filter', 'config': {}}))
    refused(lerobot, "step 'my_filter' is unknown")


def test_code_in_a_processing_step_is_refused(lerobot):
    edit_json(lerobot / PRE, lambda data: data['steps'].append({'class': 'os.system', 'config': {}}))
    refused(lerobot, 'step None is unknown')


def test_statistics_outside_the_folder_are_refused(lerobot):
    edit_json(lerobot / PRE, lambda data: data['steps'][3].update(state_file='../../secret.safetensors'))
    refused(lerobot, 'points out of the folder')


def test_missing_statistics_are_refused(lerobot, openpi):
    statistics = lerobot / 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
    edit_tensors(statistics, lambda stats: stats.pop('action.q01'))
    refused(lerobot, str(lerobot), 'action: statistic q01 is missing')
    statistics.unlink()
    refused(lerobot, statistics.name, 'copy the whole checkpoint folder')
    stats = openpi / 'assets' / 'droid' / 'norm_stats.json'
    edit_json(stats, lambda data: data['norm_stats']['state'].pop('q99'))
    refused(openpi, 'norm_stats.json', 'state: statistic q99 is missing')
    stats.unlink()
    refused(openpi, 'no assets/*/norm_stats.json')


def test_several_openpi_assets_need_a_choice(openpi):
    other = openpi / 'assets' / 'physical-intelligence' / 'libero'
    other.mkdir(parents=True)
    (other / 'norm_stats.json').write_bytes((openpi / 'assets' / 'droid' / 'norm_stats.json').read_bytes())
    refused(openpi, 'droid, physical-intelligence/libero', 'set asset')
    refused(openpi, "no asset 'aloha'", overrides=Overrides(asset='aloha'))
    (openpi / 'oxygen.yaml').write_text('asset: physical-intelligence/libero\n')
    policy = load(openpi)
    assert policy.prepare(observation()).text == 'pick up the cube\n'   # the public configuration leaves the state out
    assert any('set template' in note for note in policy.notes)
    assert 'State' in load(openpi, overrides=Overrides(template='state')).prepare(observation()).text


def test_the_documentation_has_every_override():
    page = (Path(__file__).parents[1] / 'docs' / 'checkpoints.md').read_text()
    assert [name for name in Overrides.model_fields if f'`{name}`' not in page] == []


@pytest.mark.parametrize(('text', 'word'), [('templat: task\n', 'templat'), ('pad_state: many\n', 'pad_state'),
                                            ('a: [', 'not valid YAML'), ('- 1\n', 'oxygen.yaml')])
def test_wrong_overrides_are_refused(openpi, text, word):
    (openpi / 'oxygen.yaml').write_text(text)
    refused(openpi, 'oxygen.yaml', word)


# --- the pipeline around the network ------------------------------------------------------------------------------
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


def test_the_model_names_tensors_as_the_reference_does():
    names = {name for name in tensors('tiny56_weights') if name != EXPERT + 'lm_head.weight'}
    assert names == set(expected(PRESETS['tiny']))
    assert VISION + 'post_layernorm.bias' in names
