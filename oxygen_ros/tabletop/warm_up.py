"""The vision tower's lesson: which patch holds a cube of which colour, and where in the picture that cube is.

A small tower inside the full model is slow to learn where things are, for the loss reaches it through many layers.
Taught directly it takes minutes, and taught patch by patch, with one linear reading for all patches, it says what it
knows in the form that attention reads best: the row of a patch tells its cube. The reading is thrown away after
training.
"""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model.config import ModelConfig
from oxygen_ros.tabletop.data import Frames
from oxygen_ros.tabletop.scene import CAMERAS, project
from oxygen_ros.tabletop.task import COLOURS, CUBE

BINS = 32       # per axis of the picture


class Where:
    """The reading: from each row of a picture, for every colour, "its cube is here", and that cube's column and row."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        outputs = len(COLOURS) * (1 + 2 * BINS)
        self.weight = torch.randn(outputs, config.width, generator=generator) * 0.1 * config.width ** -0.5
        self.bias = torch.zeros(outputs)
        self._side = config.image // config.patch

    def loss(self, rows: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Loss on the tower's rows [n, patches, width] of pictures with ``targets`` [n, 4, 2] of `where`; and the
        mean error in picture widths."""
        read = F.linear(rows, self.weight, self.bias).unflatten(-1, (len(COLOURS), -1))
        seen = targets[..., 0] >= 0
        column, row = (targets.clamp(min=0) * self._side // BINS).unbind(-1)
        patch = F.one_hot(row * self._side + column, self._side ** 2).transpose(1, 2)      # [n, patches, 4]
        here = patch.bool() & seen[:, None]
        loss = F.binary_cross_entropy_with_logits(read[..., 0], here.float(), reduction='sum') / len(rows)
        logits, true = read[..., 1:].unflatten(-1, (2, BINS))[here], targets[:, None].expand(*here.shape, 2)[here]
        error = (logits.argmax(-1) - true).abs().float().mean() / BINS
        return loss + F.cross_entropy(logits.flatten(0, 1), true.flatten()), error.item()


def where(frames: Frames) -> Tensor:
    """(column bin, row bin) of every colour in every picture: int [n, cameras, 4, 2], -1 where it is not seen."""
    points = np.concatenate((frames.cubes, np.full((*frames.cubes.shape[:2], 1), CUBE / 2)), axis=-1)
    q = np.repeat(frames.q[:, None], len(COLOURS), axis=1)
    uv = np.stack([project(camera, q, points) for camera in CAMERAS], axis=1)
    seen = ((uv >= 0) & (uv < 1)).all(-1, keepdims=True)        # NaN, an absent cube, compares false
    return torch.from_numpy(np.where(seen, np.nan_to_num(uv) * BINS, -1).astype(np.int64))
