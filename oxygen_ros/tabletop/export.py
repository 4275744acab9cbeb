"""Trained weights -> a checkpoint folder in LeRobot's layout, which the node and ``oxygen check`` read like any."""
from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import safetensors.numpy
import safetensors.torch

from oxygen_ros.model.config import ModelConfig
from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.batches import HIGH, LOW
from oxygen_ros.tabletop.network import Parameters
from oxygen_ros.tabletop.scene import CAMERAS
from oxygen_ros.tabletop.vocabulary import FILE

_STATE_FILE = 'policy_preprocessor_step_0_normalizer_processor.safetensors'
_ACTION_FILE = 'policy_postprocessor_step_0_unnormalizer_processor.safetensors'
_MODES = {'VISUAL': 'IDENTITY', 'STATE': 'MIN_MAX', 'ACTION': 'MIN_MAX'}


def export(parameters: Parameters, config: ModelConfig, folder: Path) -> None:
    """Write the folder: weights, config, processors with their statistics, tokenizer."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.detach().contiguous() for name, tensor in parameters.items()}
    safetensors.torch.save_file(weights, folder / 'model.safetensors', {'format': 'pt'})
    shutil.copyfile(FILE, folder / 'tokenizer.json')
    joints = len(arm.JOINTS)
    picture = {'type': 'VISUAL', 'shape': [3, config.image, config.image]}
    inputs = {f'observation.images.{camera}': picture for camera in CAMERAS}
    inputs['observation.state'] = {'type': 'STATE', 'shape': [joints]}
    outputs = {'action': {'type': 'ACTION', 'shape': [joints]}}
    _write(folder / 'config.json', {
        'type': 'pi05', 'input_features': inputs, 'output_features': outputs, 'action_feature_names': arm.JOINTS,
        'chunk_size': config.horizon, 'n_action_steps': config.horizon, 'max_state_dim': joints,
        'max_action_dim': config.action_dim, 'image_resolution': [config.image] * 2,
        'tokenizer_max_length': config.max_prompt, 'num_inference_steps': 10, 'min_period': config.min_period,
        'max_period': config.max_period, 'normalization_mapping': _MODES, 'vision_heads': config.vision_heads})
    _write(folder / 'policy_preprocessor.json', {'name': 'policy_preprocessor', 'steps': [
        {'registry_name': 'normalizer_processor', 'config': {'norm_map': _MODES, 'features': inputs | outputs},
         'state_file': _STATE_FILE},
        {'registry_name': 'pi05_prepare_state_tokenizer_processor_step', 'config': {}},
        {'registry_name': 'tokenizer_processor', 'config': {'max_length': config.max_prompt}}]})
    _write(folder / 'policy_postprocessor.json', {'name': 'policy_postprocessor', 'steps': [
        {'registry_name': 'unnormalizer_processor', 'config': {'norm_map': _MODES, 'features': outputs},
         'state_file': _ACTION_FILE}]})
    stats = {f'{feature}.{name}': value for feature in ('observation.state', 'action')
             for name, value in (('min', LOW), ('max', HIGH))}
    for file in (_STATE_FILE, _ACTION_FILE):
        safetensors.numpy.save_file({name: np.array(value) for name, value in stats.items()}, folder / file)
    (folder / 'oxygen.yaml').write_text("# what LeRobot's files do not tell\n"
                                        f'state_names: [{", ".join(arm.JOINTS)}]\n')


def _write(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content, indent=2) + '\n')
