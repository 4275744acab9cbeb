"""Camera picture -> the square input of the vision tower, by whichever resizer the checkpoint was trained with."""
from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional

Flavour = Literal['lerobot', 'openpi']


def resize_with_pad(image: np.ndarray, size: int, flavour: Flavour) -> Tensor:
    """uint8 RGB [height, width, 3] -> float32 [3, size, size] in [-1, 1]; keeps the aspect, centres, pads with -1.

    ``openpi`` filters with antialias on uint8 (Pillow), ``lerobot`` without on float: on a camera picture they differ
    by up to 0.2, so the flavour must be the one of training. Raises ValueError on anything but a uint8 RGB array.
    """
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
        raise ValueError(f'expected a uint8 RGB image [height, width, 3], got {image.dtype} {list(image.shape)}')
    height, width = image.shape[:2]
    if (height, width) == (size, size):  # every pixel falls on itself, with either resizer
        return (torch.from_numpy(np.ascontiguousarray(image.transpose(2, 0, 1))) / 255).mul_(2).sub_(1)
    ratio = max(height, width) / size
    inner = (max(1, int(height / ratio)), max(1, int(width / ratio)))
    resized = (_openpi if flavour == 'openpi' else _lerobot)(image, inner)
    canvas = torch.full((3, size, size), -1.0)
    top, left = (size - inner[0]) // 2, (size - inner[1]) // 2
    canvas[:, top:top + inner[0], left:left + inner[1]] = resized.mul_(2).sub_(1)
    return canvas


def _openpi(image: np.ndarray, inner: tuple[int, int]) -> Tensor:
    """[3, *inner] in [0, 1]. OpenCV and torch antialias differently; only Pillow gives Pillow's levels."""
    resized = np.array(Image.fromarray(image).resize(inner[::-1], Image.Resampling.BILINEAR))
    return torch.from_numpy(resized).permute(2, 0, 1) / 255


def _lerobot(image: np.ndarray, inner: tuple[int, int]) -> Tensor:
    """[3, *inner] in [0, 1]."""
    pixels = torch.from_numpy(np.ascontiguousarray(image)).permute(2, 0, 1)[None] / 255
    return functional.interpolate(pixels, inner, mode='bilinear', align_corners=False)[0].clamp_(0, 1)
