"""Statistics of a training set: raw state -> what the model saw, model output -> raw actions."""
from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, cast

import numpy as np

from oxygen_ros.policy.errors import CheckpointError

Mode = Literal['QUANTILES', 'QUANTILE10', 'MEAN_STD', 'MIN_MAX', 'IDENTITY']
OnFlat = Literal['floor', 'refuse']

# the two statistics each mode reads; for all but MEAN_STD they map to -1 and 1
READS: dict[str, tuple[str, ...]] = {'QUANTILES': ('q01', 'q99'), 'QUANTILE10': ('q10', 'q90'),
                                     'MEAN_STD': ('mean', 'std'), 'MIN_MAX': ('min', 'max'), 'IDENTITY': ()}
FLAT = 1e-3
_TELLS = 1e-5  # of a value: rounding it to fp32 moves what is this much apart by up to a hundredth
_FAR = 10.0    # usual are -1 to 1, or as many standard deviations
_EPS = {'lerobot': 1e-8, 'openpi': 1e-6}


@dataclass(frozen=True)
class Normaliser:
    """An affine map per dimension, from raw units to those of the model and back.

    Dimensions beyond the statistics' own pass through unchanged (openpi pads the model's action space).

    offset, divisor, scale: [n]. ``divisor`` carries the epsilon of the format and the floor of flat dimensions;
        ``scale`` is the factor of the way back, which gets no floor: what stood still in training stands still.
    notes: the dimensions that hardly moved in training, by name.
    """

    mode: Mode
    offset: np.ndarray
    divisor: np.ndarray
    scale: np.ndarray
    notes: tuple[str, ...] = ()

    @classmethod
    def make(cls, what: str, mode: str, stats: Mapping[str, np.ndarray], flavour: str, dim: int | None = None,
             names: Sequence[str] = (), on_flat: OnFlat = 'floor', flat: float = FLAT,
             eps: float | None = None) -> Normaliser:
        """Check ``stats`` (statistic -> [n]) and build the map.

        what: "state" or "action", for messages; with ``names`` the joints are called by name.
        flavour: whose arithmetic. LeRobot replaces a range of 0 by eps (1e-8) and adds eps to std on the way in
            only; openpi adds eps (1e-6) to range and std both ways, and computes in float64.
        dim: expected n. flat: a range (or std) below this is floored to it, or refused: noise on a joint that
            stood still in training would otherwise become a huge input. Raises CheckpointError.
        """
        if mode not in READS:
            raise CheckpointError(f'{what}: normalisation {mode!r} is unknown; known are {", ".join(READS)}')
        if mode == 'IDENTITY':
            return cls('IDENTITY', *(np.zeros(0, np.float32),) * 3)
        low, high = (_statistic(what, name, stats, dim, names, flavour) for name in READS[mode])
        if low.shape != high.shape:
            raise CheckpointError(f'{what}: statistics of unequal length: {len(low)} and {len(high)}')
        spread = high if mode == 'MEAN_STD' else high - low
        _refuse(spread < 0, what, names, f'{" and ".join(READS[mode])} are the wrong way round')
        least = np.asarray(eps or _EPS[flavour], spread.dtype)
        if flavour == 'openpi':
            scale = divisor = spread + least
        elif mode == 'MEAN_STD':
            scale, divisor = spread, spread + least
        else:
            scale = divisor = np.where(spread == 0, least, spread)
        still = spread < flat
        if on_flat == 'refuse':
            _refuse(still, what, names, f'range below {flat:g}: did not move in the training data')
        notes = tuple(f'{_label(what, i, names)}: range {spread[i]:.3g} in the training data counts as {flat:g} on the '
                      'way in' for i in np.flatnonzero(still).tolist())
        return cls(cast(Mode, mode), low, np.where(still, np.asarray(flat, divisor.dtype), divisor), scale, notes)

    @property
    def dim(self) -> int:
        """Number of dimensions with statistics; 0 for IDENTITY."""
        return len(self.offset)

    def normalise(self, x: np.ndarray) -> np.ndarray:
        """Raw [..., d] -> normalised [..., d], not clipped."""
        n = self.dim
        y = (x[..., :n] - self.offset) / self.divisor
        if self.mode != 'MEAN_STD':
            y = 2 * y - 1
        return np.concatenate([y, x[..., n:]], axis=-1)

    def unnormalise(self, y: np.ndarray) -> np.ndarray:
        """Normalised [..., d] -> raw [..., d]."""
        n = self.dim
        x = y[..., :n]
        if self.mode != 'MEAN_STD':
            x = (x + 1) / 2
        return np.concatenate([x * self.scale + self.offset, y[..., n:]], axis=-1)


    def invert(self, x: np.ndarray) -> np.ndarray:
        """What unnormalise makes x of. NaN where no network says that: in a dimension that is too flat to tell, as
        there anything gives nearly the same, and far outside of what occurred in training."""
        n = self.dim
        told = self.scale > _TELLS * np.maximum(np.abs(self.offset), 1.0)
        y = np.where(told, (x[..., :n] - self.offset) / np.where(told, self.scale, 1.0), np.nan)
        if self.mode != 'MEAN_STD':
            y = 2 * y - 1
        return np.concatenate([np.where(np.abs(y) <= _FAR, y, np.nan), x[..., n:]], axis=-1)


def _statistic(what: str, name: str, stats: Mapping[str, np.ndarray], dim: int | None, names: Sequence[str],
               flavour: str) -> np.ndarray:
    if name not in stats:
        raise CheckpointError(f'{what}: statistic {name} is missing (found {", ".join(sorted(stats)) or "none"}); '
                              'compute the statistics of the data set again and save the checkpoint with them')
    values = np.asarray(stats[name], np.float64 if flavour == 'openpi' else np.float32).reshape(-1)
    if dim is not None and len(values) != dim:
        raise CheckpointError(f'{what}: statistic {name} has {len(values)} values, the checkpoint declares {dim}')
    _refuse(~np.isfinite(values), what, names, f'{name} is not finite')
    return values


def _label(what: str, index: int, names: Sequence[str]) -> str:
    return f'{what} {names[index]}' if index < len(names) else f'{what}[{index}]'


def _refuse(bad: np.ndarray, what: str, names: Sequence[str], why: str) -> None:
    if bad.any():
        labels = ', '.join(_label(what, i, names) for i in np.flatnonzero(bad).tolist())
        raise CheckpointError(f'{labels}: {why}; compute the statistics of the data set again')
