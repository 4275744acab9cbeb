"""cv_bridge where a sound one is installed, our own decoder (images.py) everywhere else.

Not every cv_bridge is sound: the one on PyPI turns 16-bit pictures into 8 bits silently, breaks with current numpy and
OpenCV, and all Python ones ignored row padding at some time. So it is tried on a small padded picture of every encoding
and used for those only where it agrees with our decoder.
"""
from __future__ import annotations

import importlib
from array import array
from collections.abc import Callable

import numpy as np
from sensor_msgs.msg import Image

from oxygen_ros.node.images import SUPPORTED, ImageError, to_rgb

Decoder = Callable[[Image], np.ndarray]

_ROUNDING = 3  # of 255: YUV and Bayer are converted with different rounding


def choose_decoder() -> tuple[Decoder, str]:
    """The decoder to use for sensor_msgs/Image, and one line for the log that says which it is."""
    try:
        bridge = importlib.import_module('cv_bridge').CvBridge()
    except Exception as error:  # absent, or built for another numpy: it may raise anything
        return to_rgb, f'own image decoder (no cv_bridge: {type(error).__name__})'
    sound = frozenset(encoding for encoding in SUPPORTED if _agrees(bridge, encoding))
    if not sound:
        return to_rgb, 'own image decoder (the installed cv_bridge fails its test)'

    def decode(msg: Image) -> np.ndarray:
        if msg.encoding not in sound:
            return to_rgb(msg)
        try:
            return np.asarray(bridge.imgmsg_to_cv2(msg, 'rgb8'))
        except Exception:
            return to_rgb(msg)  # says what is wrong, or knows better

    return decode, f'cv_bridge for {", ".join(sorted(sound))}; own image decoder for the rest'


def _agrees(bridge, encoding: str) -> bool:
    for big in (0, 1):
        probe = _probe(encoding, big)
        try:
            theirs = np.asarray(bridge.imgmsg_to_cv2(probe, 'rgb8'))
        except Exception:
            return False
        ours = to_rgb(probe)
        if theirs.dtype != np.uint8 or theirs.shape != ours.shape or (
                np.abs(theirs.astype(int) - ours).max() > _ROUNDING):
            return False
    return True


def _probe(encoding: str, big: int) -> Image:
    """An 8 x 8 picture whose bytes all differ, with padding after each row that is as wide as the encoding needs."""
    rows = 12 if encoding in ('nv12', 'nv21') else 8
    for values in range(1, 9):  # bytes per pixel: the least that is accepted
        step = 8 * values + 4
        data = (np.arange(rows * step) * 37 % 251).astype(np.uint8)
        probe = Image(height=8, width=8, encoding=encoding, is_bigendian=big, step=step,
                      data=array('B', data.tobytes()))
        try:
            to_rgb(probe)
            return probe
        except ImageError:
            continue
    raise AssertionError(f'no probe for {encoding}')
