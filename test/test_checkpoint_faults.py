import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from checkpoints import chunk, copy, edit_json, edit_tensors, observation, refused
from golden import GOLDEN
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file

from oxygen_ros.model.config import PRESETS
from oxygen_ros.model.names import expected
from oxygen_ros.policy import CheckpointError, load
from oxygen_ros.policy.overrides import Overrides

PRE, POST = 'policy_preprocessor.json', 'policy_postprocessor.json'


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
