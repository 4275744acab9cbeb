"""The vision tower's first lesson: where in the picture each colour is.

A small tower inside the full model is slow to learn where things are, for the loss reaches it through many layers.
Taught directly, by cross-entropy over position bins read off all its rows by one linear layer, it takes minutes. The
linear layer is thrown away afterwards.
"""
from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from oxygen_ros.model.config import ModelConfig
from oxygen_ros.tabletop.data import Frames
from oxygen_ros.tabletop.network import Network
from oxygen_ros.tabletop.scene import CAMERAS, project
from oxygen_ros.tabletop.task import COLOURS, CUBE

BINS = 32       # per axis of the picture


class Where:
    """A throw-away linear reading of "seen?", column and row of every colour from a camera's rows."""

    def __init__(self, config: ModelConfig, seed: int) -> None:
        inputs = config.image_tokens * config.width
        generator = torch.Generator().manual_seed(seed)
        self.weight = torch.randn(len(COLOURS) * (1 + 2 * BINS), inputs, generator=generator) * 0.1 * inputs ** -0.5
        self.bias = torch.zeros(len(COLOURS) * (1 + 2 * BINS))

    def loss(self, network: Network, images: Tensor, targets: Tensor) -> tuple[Tensor, float]:
        """Loss on pictures uint8 [n, side, side, 3] with ``targets`` of `where`; and the mean error in picture widths."""
        read = F.linear(network.see(images).flatten(1), self.weight, self.bias).view(len(images), len(COLOURS), -1)
        seen = targets[..., 0] >= 0
        loss = F.binary_cross_entropy_with_logits(read[..., 0], seen.float())
        logits = read[..., 1:].unflatten(-1, (2, BINS))[seen]
        loss = loss + F.cross_entropy(logits.flatten(0, 1), targets[seen].flatten())
        error = (logits.argmax(-1) - targets[seen]).abs().float().mean() / BINS
        return loss, error.item()


def where(frames: Frames) -> Tensor:
    """(column bin, row bin) of every colour in every picture: int [n, cameras, 4, 2], -1 where it is not seen."""
    points = np.concatenate((frames.cubes, np.full((*frames.cubes.shape[:2], 1), CUBE / 2)), axis=-1)
    q = np.repeat(frames.q[:, None], len(COLOURS), axis=1)
    uv = np.stack([project(camera, q, points) for camera in CAMERAS], axis=1)
    seen = ((uv >= 0) & (uv < 1)).all(-1, keepdims=True)        # NaN, an absent cube, compares false
    return torch.from_numpy(np.where(seen, np.nan_to_num(uv) * BINS, -1).astype(np.int64))
