"""What the policy sees: one consistent snapshot of cameras, joints and instruction."""
from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True)
class Observation:
    """One snapshot, already mapped to the policy's own names, order and units by the contract.

    images: policy camera name -> uint8 RGB array [height, width, 3]. A camera that is absent has no key; it costs
        no rows in the prefix.
    image_stamps: policy camera name -> acquisition stamp in ns. An image whose stamp is unchanged since the last
        observation is not encoded again.
    state: float32 [state_dim], policy units, before normalisation.
    instruction: what the robot was told to do.
    stamp: ns on the caller's clock, of the newest input; copied to everything made from this observation.
    sequence: number of this observation, strictly increasing.
    committed: float32 [n, action_dim], policy units: the actions from this observation on that will be executed while
        its chunk is computed. The new chunk begins with exactly these and continues them (real-time chunking).
    """

    images: dict[str, np.ndarray]
    state: np.ndarray
    instruction: str
    sequence: int = 0
    stamp: int = 0
    image_stamps: dict[str, int] = field(default_factory=dict)
    committed: np.ndarray | None = None
