"""Writes a checkpoint folder with random weights of any preset, in either public format: for tests of loading.

    python -m oxygen_ros.policy.random_checkpoint /tmp/pi05 --preset pi05 --format openpi --dtype bfloat16
"""
from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from oxygen_ros.model.config import PRESETS, ModelConfig
from oxygen_ros.model.names import Shape, expected
from oxygen_ros.policy.checkpoint import EMBEDDED, RANDOM_ACTIONS, RANDOM_STATE
from oxygen_ros.policy.openpi import CAMERAS
from oxygen_ros.policy.random_weights import random_tensors

_DTYPES = {'float32': ('F32', torch.float32), 'bfloat16': ('BF16', torch.bfloat16)}


def write(folder: Path, preset: str = 'tiny', format: Literal['lerobot', 'openpi'] = 'lerobot',
          dtype: Literal['float32', 'bfloat16'] = 'float32', seed: int = 0) -> None:
    """Write the folder, which must not exist. Holds one tensor in memory at a time.

    Args:
        folder: where to
        preset: tiny, small or pi05 (full size: 13.4 GB in float32)
        format: whose layout
        dtype: of the weights in the file
        seed: the same seed gives the weights of random:<preset>
    """
    config = PRESETS[preset]
    folder.mkdir(parents=True)
    with open(folder / 'model.safetensors', 'wb') as file:
        _save(file, expected(config), random_tensors(config, seed), dtype, 'model.' if format == 'lerobot' else '')
    shutil.copy(EMBEDDED / 'tokenizer.json', folder)
    statistics = {what: {'q01': -np.ones(n, np.float32), 'q99': np.ones(n, np.float32)}
                  for what, n in (('state', RANDOM_STATE), ('actions', RANDOM_ACTIONS))}
    (_lerobot if format == 'lerobot' else _openpi)(folder, config, statistics)


def _save(file: BinaryIO, shapes: Mapping[str, Shape], get: Callable[[str], Tensor], dtype: str, prefix: str) -> None:
    """safetensors' own save_file would hold the whole model in memory."""
    code, torch_dtype = _DTYPES[dtype]
    header: dict[str, Any] = {'__metadata__': {'format': 'pt'}}
    end = 0
    for name, shape in shapes.items():
        begin, end = end, end + int(np.prod(shape)) * torch_dtype.itemsize
        header[prefix + name] = {'dtype': code, 'shape': shape, 'data_offsets': [begin, end]}
    text = json.dumps(header).encode()
    text += b' ' * (-len(text) % 8)   # data begin aligned
    file.write(len(text).to_bytes(8, 'little') + text)
    for name in shapes:
        file.write(get(name).to(torch_dtype).view(-1).view(torch.uint8).numpy().data)


def _openpi(folder: Path, config: ModelConfig, statistics: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    _json(folder / 'config.json', {'action_dim': config.action_dim, 'action_horizon': config.horizon,
                                   'vision_heads': config.vision_heads})
    (folder / 'assets' / 'random').mkdir(parents=True)
    _json(folder / 'assets' / 'random' / 'norm_stats.json', {'norm_stats': {
        what: {name: values.tolist() for name, values in stats.items()} for what, stats in statistics.items()}})


def _lerobot(folder: Path, config: ModelConfig, statistics: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    _json(folder / 'config.json', {
        'type': 'pi05', 'chunk_size': config.horizon, 'max_action_dim': config.action_dim,
        'image_resolution': [config.image] * 2, 'tokenizer_max_length': config.max_prompt,
        'vision_heads': config.vision_heads,
        'input_features': {'observation.state': {'type': 'STATE', 'shape': [RANDOM_STATE]}} | {
            f'observation.images.{camera}': {'type': 'VISUAL', 'shape': [3, config.image, config.image]}
            for camera in CAMERAS},
        'output_features': {'action': {'type': 'ACTION', 'shape': [RANDOM_ACTIONS]}}})
    modes = {'norm_map': {'VISUAL': 'IDENTITY', 'STATE': 'QUANTILES', 'ACTION': 'QUANTILES'}}
    for name, step, rest in (('policy_preprocessor', 'normalizer_processor',
                              ['pi05_prepare_state_tokenizer_processor_step', 'tokenizer_processor']),
                             ('policy_postprocessor', 'unnormalizer_processor', [])):
        _json(folder / f'{name}.json', {'name': name, 'steps': [
            {'registry_name': step, 'config': modes, 'state_file': f'{name}.safetensors'},
            *({'registry_name': other, 'config': {}} for other in rest)]})
        features = {'observation.state': statistics['state'], 'action': statistics['actions']}
        save_file({f'{feature}.{key}': values for feature, stats in features.items() for key, values in stats.items()},
                  folder / f'{name}.safetensors')


def _json(path: Path, data: dict[str, Any]) -> None:
    path.write_text(json.dumps(data, indent=2))


if __name__ == '__main__':
    import tyro
    tyro.cli(write)
