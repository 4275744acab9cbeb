"""One call from a path to a policy that is ready to act: recognise the format, check everything, stream the weights."""
from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from oxygen_ros.model.config import PRESETS, Mask, ModelConfig
from oxygen_ros.model.names import PROJECTOR, VISION, expected
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.policy import lerobot, openpi
from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.folder import read_json
from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.overrides import Overrides
from oxygen_ros.policy.policy import Policy, Recipe
from oxygen_ros.policy.prompt import OXYGEN_MAX_TOKENS, Prompt
from oxygen_ros.policy.random_weights import random_tensors
from oxygen_ros.policy.sizes import config_of
from oxygen_ros.policy.tokenizer import Tokenizer
from oxygen_ros.policy.weights import Weights

RANDOM_STATE, RANDOM_ACTIONS = 8, 7   # values of a robot that random weights are for
EMBEDDED = Path(__file__).parents[1] / 'assets' / 'tabletop'   # the checkpoint of the simulated robot

Dtype = Literal['auto', 'float32', 'bfloat16']

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was checked but not loaded: everything but the weights, which ``get`` reads one by one."""

    config: ModelConfig
    recipe: Recipe
    prompt: Prompt
    get: Callable[[str], Tensor]

    @property
    def parameters(self) -> int:
        """Number of weights that inference reads."""
        return sum(math.prod(shape) for shape in expected(self.config).values())

    def weight_bytes(self, dtype: torch.dtype) -> int:
        """Bytes of those weights in memory, loaded in ``dtype``."""
        def size(name: str) -> int:
            stays = self.config.vision_float32 and name.startswith((VISION, PROJECTOR))
            return torch.float32.itemsize if stays else dtype.itemsize

        return sum(math.prod(shape) * size(name) for name, shape in expected(self.config).items())

    def load(self, device: str | torch.device = 'cpu', dtype: Dtype = 'auto', denoise_steps: int = 10) -> Policy:
        """Stream the weights into a network. Arguments and errors as in ``load``."""
        device = _device(device)
        net = Pi05(self.config, self.get, device, torch_dtype(dtype, device), denoise_steps)
        policy = Policy(net, self.prompt.tokenizer, self.recipe, self.prompt)
        _log.info(policy.describe())
        return policy


def load(path: str | Path, device: str | torch.device = 'cpu', dtype: Dtype = 'auto', denoise_steps: int = 10,
         mask: Mask | None = None, overrides: Overrides | None = None, seed: int = 0) -> Policy:
    """Load a checkpoint for inference.

    path: a LeRobot or converted openpi folder, ``tabletop`` (the embedded robot), or ``random:<preset>`` (random
        weights of that size, drawn from ``seed``).
    dtype: ``auto`` is float32 on the CPU and bfloat16 on CUDA.
    mask: ``prefix_lm`` is what public checkpoints were trained with, ``causal_text`` OxyGen's, with its prompt. None:
        as ``overrides`` say, or else ``prefix_lm``.
    overrides: what the files do not tell; wins over the folder's ``oxygen.yaml``.

    Weights are streamed: at its peak the process holds them once, in the target dtype, and one tensor more.
    Raises CheckpointError; nothing is returned half-loaded.
    """
    return read(path, mask, overrides, seed).load(device, dtype, denoise_steps)


def read(path: str | Path, mask: Mask | None = None, overrides: Overrides | None = None, seed: int = 0) -> Checkpoint:
    """Check all of a checkpoint but the values of its weights. Arguments and errors as in ``load``."""
    if str(path).startswith('random:'):
        return _random(str(path).removeprefix('random:'), mask or 'prefix_lm', seed)
    folder = EMBEDDED if str(path) == 'tabletop' else Path(path).expanduser()
    try:
        format = recognise(folder)
    except OSError as error:  # a folder that may not be searched
        raise CheckpointError(f'{folder} cannot be read: {error.strerror}') from None
    overrides = Overrides.read(folder, overrides)
    declared, recipe, prompt = (lerobot if format == 'LeRobot' else openpi).read(folder, overrides)
    weights = Weights(folder / 'model.safetensors')
    config = _sizes(folder, weights, declared, mask or overrides.mask or 'prefix_lm', overrides)
    if recipe.action_dim > config.action_dim:
        raise CheckpointError(f'{folder}: {recipe.action_dim} actions, but the model makes only {config.action_dim}')
    tokenizer = Tokenizer.from_folder(folder / (overrides.tokenizer or ''))
    return _checkpoint(folder, config, recipe, tokenizer, prompt, weights.get)


def torch_dtype(dtype: Dtype, device: torch.device) -> torch.dtype:
    """What ``auto`` means on a device."""
    if dtype == 'auto':
        return torch.bfloat16 if device.type == 'cuda' else torch.float32
    return {'float32': torch.float32, 'bfloat16': torch.bfloat16}[dtype]


def recognise(folder: Path) -> Literal['LeRobot', 'openpi']:
    """Which of the two formats a folder holds. Raises CheckpointError with a remedy for every other thing."""
    if not folder.is_dir():
        presets = ', '.join(f'random:{name}' for name in PRESETS)
        raise CheckpointError(f'{folder} is not a folder: give the folder of a checkpoint, "tabletop" or one of '
                              f'{presets}')
    if not (folder / 'model.safetensors').is_file():
        raise CheckpointError(f'{folder}: no model.safetensors. {_instead(folder)}')
    config = read_json(folder / 'config.json')
    if 'type' in config and 'input_features' in config:
        return 'LeRobot'
    if 'action_horizon' in config:
        return 'openpi'
    name = config.get('type') or config.get('model_type') or 'unknown'
    raise CheckpointError(f'{folder / "config.json"}: neither LeRobot nor openpi pi0.5 (type {name!r})')


def _instead(folder: Path) -> str:
    """What a folder without weights is, and what to do."""
    if (inner := folder / 'pretrained_model').is_dir():
        return f'Give {inner}'
    if (folder / 'params').is_dir():
        return "This is openpi's JAX format: convert it with openpi's examples/convert_jax_model_to_pytorch.py"
    if (folder / 'adapter_model.safetensors').is_file():
        return 'These are LoRA weights: merge them into the model and save it again'
    if list(folder.glob('model-*-of-*.safetensors')):
        return 'The weights are in several files: save them as one'
    if list(folder.glob('*.bin')) + list(folder.glob('*.pt')) + list(folder.glob('*.pth')):
        return 'Pickled weights are not read, for they can run code: save them as safetensors'
    return 'Give the folder of a LeRobot or converted openpi checkpoint'


def _sizes(folder: Path, weights: Weights, said: lerobot.Config | openpi.Config, mask: Mask,
           overrides: Overrides) -> ModelConfig:
    """The model's sizes, from the tensors and what only the files say; the two must not contradict each other."""
    rest: dict[str, Any] = {'mask': mask}
    if isinstance(said, lerobot.Config):
        rest |= {'horizon': said.chunk_size, 'max_prompt': said.tokenizer_max_length, 'schedule': 'indexed',
                 'min_period': said.min_period, 'max_period': said.max_period, 'vision_float32': True}
        declared = {'image': said.image_resolution[0], 'action_dim': said.max_action_dim}
    else:
        rest |= {'horizon': said.action_horizon, 'schedule': 'additive', 'round_embedding_scale': False}
        declared = {'action_dim': said.action_dim}
    config = config_of(weights.shapes, weights.path, overrides.vision_heads or said.vision_heads, **rest)
    for name, value in declared.items():
        if getattr(config, name) != value:
            raise CheckpointError(f'{folder}: config.json declares {name} {value}, the tensors have '
                                  f'{getattr(config, name)}; are they of one model?')
    return config


def _random(preset: str, mask: Mask, seed: int) -> Checkpoint:
    if preset not in PRESETS:
        raise CheckpointError(f'random:{preset}: unknown size; known are {", ".join(PRESETS)}')
    config = PRESETS[preset].model_copy(update={'mask': mask})
    as_is = Normaliser.make('state', 'IDENTITY', {}, 'lerobot')
    recipe = Recipe('random weights', openpi.CAMERAS, RANDOM_STATE, RANDOM_ACTIONS, 'lerobot', as_is, as_is,
                    notes=('random weights: the actions mean nothing',))
    return _checkpoint(f'random:{preset}', config, recipe, Tokenizer.from_folder(EMBEDDED), {},
                       random_tensors(config, seed))


def _checkpoint(path: Path | str, config: ModelConfig, recipe: Recipe, tokenizer: Tokenizer, wording: dict[str, Any],
                get: Callable[[str], Tensor]) -> Checkpoint:
    """Check that the tokenizer is the model's and that its prompt has room for the state."""
    if tokenizer.vocab_size > config.vocab:
        raise CheckpointError(f'{tokenizer.source}: {tokenizer.vocab_size} ids, but the model knows {config.vocab}: '
                              "not this model's tokenizer")
    limit = config.max_prompt
    if config.mask == 'causal_text':
        wording, limit = wording | {'template': 'oxygen'}, min(limit, OXYGEN_MAX_TOKENS)
    prompt = Prompt(tokenizer, max_tokens=limit, **wording)
    try:
        prompt.encode('do it', np.ones(recipe.state_dim))
    except ValueError as error:
        raise CheckpointError(f"{path}: {error}; is it this model's tokenizer?") from None
    return Checkpoint(config, recipe, prompt, get)


def _device(name: str | torch.device) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
        if device.index is not None and device.type == 'cuda':
            torch.cuda.set_device(device)  # streams and graphs belong to the current one
    except (RuntimeError, AssertionError) as error:   # torch built without CUDA asserts
        raise CheckpointError(f'device {str(name)!r} cannot be used: {str(error).splitlines()[0]}; '
                              'use "cpu", or install the driver and a torch built for it') from None
    return device
