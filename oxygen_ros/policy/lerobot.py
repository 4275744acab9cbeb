"""A LeRobot pi0.5 folder: ``config.json``, ``policy_preprocessor.json`` and ``policy_postprocessor.json``."""
from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field

from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.folder import read_schema, read_statistics
from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.overrides import Overrides
from oxygen_ros.policy.policy import Recipe

STATE, ACTION, IMAGES = 'observation.state', 'action', 'observation.images.'
_RELATIVE = ('relative_actions_processor', 'delta_actions_processor')
# steps that need no work here: one robot is a batch of one, and the engine knows its device
_IDLE = ('to_batch_processor', 'device_processor')
_PROMPT = 'pi05_prepare_state_tokenizer_processor_step'
_INPUT = ('rename_observations_processor', *_RELATIVE, 'normalizer_processor', _PROMPT, 'tokenizer_processor', *_IDLE)
_OUTPUT = ('unnormalizer_processor', 'absolute_actions_processor', *_IDLE)


class _Feature(BaseModel):
    type: Literal['VISUAL', 'STATE', 'ACTION', 'ENV', 'REWARD', 'LANGUAGE']
    shape: tuple[int, ...] = Field(min_length=1)


class Config(BaseModel):
    """The keys of ``config.json`` that matter here; others are tolerated, as LeRobot adds some with each version."""

    type: str
    input_features: dict[str, _Feature]
    output_features: dict[str, _Feature]
    chunk_size: int = Field(gt=0, le=1024)
    max_action_dim: int = Field(32, gt=0)
    image_resolution: tuple[int, int] = (224, 224)
    tokenizer_max_length: int = Field(200, gt=0, le=4096)
    min_period: float = Field(4e-3, gt=0, le=1e6)
    max_period: float = Field(4.0, gt=0, le=1e6)
    num_inference_steps: int = 10
    action_feature_names: list[str] | None = None
    use_visual_memory: bool = False
    use_proprioceptive_memory: bool = False
    vision_heads: int | None = Field(None, gt=0)


class _StepConfig(BaseModel):
    """The settings of all known steps together; each uses its own few."""

    rename_map: dict[str, str] = {}
    enabled: bool = False
    exclude_joints: list[str] = []
    action_names: list[str] | None = None
    norm_map: dict[str, str] = {}
    eps: float = Field(1e-8, gt=0)


class _Step(BaseModel):
    registry_name: str | None = None
    config: _StepConfig = _StepConfig()
    state_file: str | None = None


class _Pipeline(BaseModel):
    steps: list[_Step]


def read(folder: Path, overrides: Overrides) -> tuple[Config, Recipe, dict[str, Any]]:
    """-> the config, the recipe, and what the prompt needs (template, pad_state). Raises CheckpointError."""
    config = _config(folder / 'config.json')
    inputs = _steps(folder / 'policy_preprocessor.json', _INPUT)
    outputs = _steps(folder / 'policy_postprocessor.json', _OUTPUT)
    if _PROMPT not in inputs and overrides.template is None:
        raise CheckpointError(f'{folder / "policy_preprocessor.json"}: no step {_PROMPT}, so the wording of the prompt '
                              'is unknown; set template in oxygen.yaml')
    cameras = tuple(name.removeprefix(IMAGES) for name, feature in config.input_features.items()
                    if feature.type == 'VISUAL' and not name.startswith(IMAGES + 'empty_camera_'))
    if not cameras:
        raise CheckpointError(f'{folder / "config.json"}: no camera among input_features')
    renames = inputs.get('rename_observations_processor', _Step()).config.rename_map
    pairs = [(old.removeprefix(IMAGES), new.removeprefix(IMAGES)) for old, new in renames.items()]
    aliases = {old: new for old, new in pairs if new in cameras and old not in cameras}
    state_dim = _dim(config.input_features, STATE, folder)
    action_dim = _dim(config.output_features, ACTION, folder)
    action_names = overrides.action_names or tuple(config.action_feature_names or ())
    state = _normaliser(folder, inputs, 'normalizer_processor', STATE, state_dim, overrides.state_names, overrides)
    actions = _normaliser(folder, outputs, 'unnormalizer_processor', ACTION, action_dim, action_names, overrides)
    steps = config.num_inference_steps
    notes = () if steps == 10 else (f'config.json asks for {steps} denoise steps: set denoise_steps to the same',)
    recipe = Recipe('LeRobot', cameras, state_dim, action_dim, 'lerobot', state, actions, aliases,
                    _relative(folder, inputs, outputs, state_dim, action_dim),
                    overrides.state_names, action_names, notes + state.notes + actions.notes)
    return config, recipe, {'template': overrides.template or 'state', 'pad_state': overrides.pad_state}


def _config(path: Path) -> Config:
    config = read_schema(Config, path)
    if config.type != 'pi05':
        raise CheckpointError(f'{path}: type is {config.type!r}; this node runs "pi05"')
    if config.use_visual_memory or config.use_proprioceptive_memory:
        raise CheckpointError(f'{path}: the model uses memory, which is not supported: '
                              'train with use_visual_memory and use_proprioceptive_memory off')
    if config.image_resolution[0] != config.image_resolution[1]:
        raise CheckpointError(f'{path}: image_resolution {list(config.image_resolution)} is not square')
    return config


def _dim(features: Mapping[str, _Feature], name: str, folder: Path) -> int:
    if name not in features:
        raise CheckpointError(f'{folder / "config.json"}: no feature {name}: a base model that was not fine-tuned for '
                              'a robot cannot drive one')
    return features[name].shape[0]


def _steps(path: Path, known: tuple[str, ...]) -> dict[str, _Step]:
    """Steps by name. An unknown one would silently be left out of what the training did, so it is refused."""
    steps = {}
    for step in read_schema(_Pipeline, path).steps:
        if step.registry_name not in known:
            raise CheckpointError(f'{path}: step {step.registry_name!r} is unknown; known are {", ".join(known)}')
        steps[step.registry_name] = step
    return steps


def _normaliser(folder: Path, steps: Mapping[str, _Step], step_name: str, feature: str, dim: int,
                names: tuple[str, ...], overrides: Overrides) -> Normaliser:
    if step_name not in steps:
        raise CheckpointError(f'{folder}: no step {step_name}: without statistics the robot would move wrongly; '
                              'save the checkpoint with its processors')
    step = steps[step_name]
    kind, modes = 'STATE' if feature == STATE else 'ACTION', step.config.norm_map
    if kind not in modes:
        raise CheckpointError(f'{folder}: {step_name} does not say how {kind} is normalised; save the checkpoint again')
    if modes.get('VISUAL', 'IDENTITY') != 'IDENTITY':
        raise CheckpointError(f'{folder}: images are normalised by {modes["VISUAL"]}; pi0.5 expects IDENTITY')
    stats: dict[str, np.ndarray] = {}
    if step.state_file is not None:
        if Path(step.state_file).name != step.state_file:
            raise CheckpointError(f'{folder}: state_file {step.state_file!r} points out of the folder')
        stats = {name[len(feature) + 1:]: values for name, values in read_statistics(folder / step.state_file).items()
                 if name.startswith(feature + '.')}
    try:
        return Normaliser.make(kind.lower(), modes[kind], stats, 'lerobot', dim, names, overrides.on_flat,
                               overrides.flat, step.config.eps)
    except CheckpointError as error:
        raise CheckpointError(f'{folder}: {error}') from None


def _relative(folder: Path, inputs: Mapping[str, _Step], outputs: Mapping[str, _Step], state_dim: int,
              action_dim: int) -> tuple[bool, ...]:
    """Which actions are offsets from the state: all but those whose name contains an excluded word.

    As in LeRobot, nothing can be excluded where the processor was saved without the actions' names.
    """
    step = next((inputs[name] for name in _RELATIVE if name in inputs), _Step())
    enabled = step.config.enabled
    if enabled != outputs.get('absolute_actions_processor', _Step()).config.enabled:
        raise CheckpointError(f'{folder}: the preprocessor and the postprocessor disagree on relative actions; '
                              'save the checkpoint again')
    if not enabled:
        return ()
    words = [word.lower() for word in step.config.exclude_joints if word]
    names = [name.lower() for name in step.config.action_names or ()][:action_dim]
    relative = tuple(not any(word in name for word in words) for name in names) + (True,) * (action_dim - len(names))
    last = max((i for i, flag in enumerate(relative) if flag), default=-1)
    if last >= state_dim:
        raise CheckpointError(f'{folder}: action[{last}] is relative to a state of only {state_dim} values')
    return relative
