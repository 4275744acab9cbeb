"""A converted openpi pi0.5 folder: ``config.json`` (sizes only) and ``assets/<asset>/norm_stats.json``."""
from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from pydantic import BaseModel, Field

from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.folder import read_schema
from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.overrides import Overrides
from oxygen_ros.policy.policy import Recipe
from oxygen_ros.policy.prompt import Template

CAMERAS = ('base_0_rgb', 'left_wrist_0_rgb', 'right_wrist_0_rgb')
# openpi keeps the prompt in code, by the name of a configuration; of the public ones only this leaves the state out
_WITHOUT_STATE = ('physical-intelligence/libero',)


class Config(BaseModel):
    """``config.json`` as openpi's converter writes it."""

    action_dim: int = Field(gt=0)
    action_horizon: int = Field(gt=0, le=1024)
    vision_heads: int | None = Field(None, gt=0)


class _Statistics(BaseModel):
    mean: list[float] | None = None
    std: list[float] | None = None
    q01: list[float] | None = None
    q99: list[float] | None = None


class _Both(BaseModel):
    state: _Statistics
    actions: _Statistics


class _NormStats(BaseModel):
    norm_stats: _Both


def read(folder: Path, overrides: Overrides) -> tuple[Config, Recipe, dict[str, Any]]:
    """-> the config, the recipe, and what the prompt needs (template, pad_state). Raises CheckpointError."""
    config = read_schema(Config, folder / 'config.json')
    path, asset = _asset(folder, overrides.asset)
    stats = read_schema(_NormStats, path).norm_stats
    state = _normaliser(path, 'state', stats.state, overrides.state_names, overrides)
    actions = _normaliser(path, 'action', stats.actions, overrides.action_names, overrides)
    if actions.dim > config.action_dim:
        raise CheckpointError(f'{path}: statistics of {actions.dim} actions, the model has {config.action_dim}')
    template: Template = overrides.template or ('task' if asset in _WITHOUT_STATE else 'state')
    notes = () if overrides.template else (f'prompt {template!r} assumed for asset {asset!r}: openpi folders do not '
                                           'tell; set template in oxygen.yaml if the training used another',)
    recipe = Recipe('openpi', CAMERAS, state.dim, actions.dim, 'openpi', state, actions,
                    state_names=overrides.state_names, action_names=overrides.action_names,
                    notes=notes + state.notes + actions.notes)
    return config, recipe, {'template': template, 'pad_state': overrides.pad_state}


def _asset(folder: Path, wanted: str | None) -> tuple[Path, str]:
    """The statistics' file and the asset's name, which may have a slash."""
    assets = folder / 'assets'
    found = {path.parent.relative_to(assets).as_posix(): path for path in sorted(assets.rglob('norm_stats.json'))}
    if not found:
        raise CheckpointError(f'{folder}: no assets/*/norm_stats.json: copy the folder assets of the checkpoint beside '
                              'the converted weights')
    if wanted is None and len(found) > 1:
        raise CheckpointError(f'{folder}: statistics of {", ".join(found)}: set asset in oxygen.yaml to the one of '
                              'this robot')
    name = wanted or next(iter(found))
    if name not in found:
        raise CheckpointError(f'{folder}: no asset {name!r}; there are {", ".join(found)}')
    return found[name], name


def _normaliser(path: Path, what: str, stats: _Statistics, names: tuple[str, ...],
                overrides: Overrides) -> Normaliser:
    values = {name: np.array(value) for name, value in stats if value is not None}
    try:
        return Normaliser.make(what, 'QUANTILES', values, 'openpi', None, names, overrides.on_flat, overrides.flat)
    except CheckpointError as error:
        raise CheckpointError(f'{path}: {error}') from None
