"""sensor_msgs/Image and CompressedImage -> RGB uint8 arrays, by the rules of sensor_msgs/image_encodings.

Works on anything with the message's fields, so it needs no ROS. Every failure is an ImageError that names the encoding
or format; the caller adds the topic. ``8UC3`` and ``8UC4`` do not say their order: they are taken as OpenCV and RViz
take them, blue first.
"""
from __future__ import annotations

import os
import re
from collections.abc import Iterable

# Read when OpenCV is loaded. A broken header may promise more pixels than there is memory (OpenCV stops at 2**30), and
# what is wrong with a picture is said by us, once, not by OpenCV for every frame.
os.environ.setdefault('OPENCV_IO_MAX_IMAGE_PIXELS', str(2**26))
os.environ.setdefault('OPENCV_LOG_LEVEL', 'SILENT')

import cv2  # noqa: E402
import numpy as np  # noqa: E402

from oxygen_ros.contract import Transform  # noqa: E402

_COLOUR = {  # encoding: (bytes per value, channels, where red, green and blue are)
    'rgb8': (1, 3, 'rgb'), 'bgr8': (1, 3, 'bgr'), 'rgba8': (1, 4, 'rgb'), 'bgra8': (1, 4, 'bgr'),
    'rgb16': (2, 3, 'rgb'), 'bgr16': (2, 3, 'bgr'), 'rgba16': (2, 4, 'rgb'), 'bgra16': (2, 4, 'bgr'),
    '8UC3': (1, 3, 'bgr'), '8UC4': (1, 4, 'bgr'),
    'mono8': (1, 1, 'grey'), 'mono16': (2, 1, 'grey'), '8UC1': (1, 1, 'grey'),
}
_BAYER = {f'bayer_{pattern}{bits}': (bits // 8, getattr(cv2, f'COLOR_Bayer{pattern.upper()}2RGB'))
          for pattern in ('rggb', 'bggr', 'gbrg', 'grbg') for bits in (8, 16)}
_YUV422 = {'yuv422': cv2.COLOR_YUV2RGB_UYVY, 'uyvy': cv2.COLOR_YUV2RGB_UYVY,
           'yuv422_yuy2': cv2.COLOR_YUV2RGB_YUYV, 'yuyv': cv2.COLOR_YUV2RGB_YUYV}
_YUV420 = {'nv12': cv2.COLOR_YUV2RGB_NV12, 'nv21': cv2.COLOR_YUV2RGB_NV21}
_DEPTH = re.compile(r'(16[US]|32[SF]|64F)C\d+|.*[dD]epth.*')

MOST_PIXELS = 4096 * 4096  # of a picture that goes to the engine; room for it is reserved per camera
SUPPORTED = (*_COLOUR, *_BAYER, *_YUV422, *_YUV420)


class ImageError(ValueError):
    """A picture that cannot be used. The text names its encoding and the remedy."""


def to_rgb(msg) -> np.ndarray:
    """RGB uint8 [height, width, 3] of a sensor_msgs/Image; 16-bit values keep their upper 8 bits.

    May be a read-only view of the message's data.
    """
    encoding = msg.encoding
    if encoding in _COLOUR:
        size, channels, order = _COLOUR[encoding]
        return _ordered(_eight_bits(_pixels(msg, size, channels)), order)
    if encoding in _BAYER:
        size, code = _BAYER[encoding]
        if msg.height < 2 or msg.width < 2:
            raise ImageError(f'{_name(msg)}: a Bayer picture is at least 2 x 2')
        return _eight_bits(cv2.cvtColor(_pixels(msg, size, 1), code))
    if encoding in _YUV422:
        if msg.width % 2:
            raise ImageError(f'{_name(msg)}: the width of a 4:2:2 picture is even')
        return cv2.cvtColor(_pixels(msg, 1, 2), _YUV422[encoding])
    if encoding in _YUV420:
        if msg.width % 2 or msg.height % 2:
            raise ImageError(f'{_name(msg)}: width and height of a 4:2:0 picture are even')
        return cv2.cvtColor(_pixels(msg, 1, 1, rows=msg.height * 3 // 2), _YUV420[encoding])
    raise ImageError(_refusal(f'encoding {encoding!r}', encoding))


def compressed_to_rgb(msg) -> np.ndarray:
    """RGB uint8 [height, width, 3] of a sensor_msgs/CompressedImage.

    ``format`` is a bare codec ('jpeg', 'png': ordinary files) or image_transport's '<encoding>; <codec> compressed
    <order>', where the order tells whether the publisher stored red or blue first.
    """
    source, _, stored = (part.strip() for part in msg.format.partition(';'))
    if _DEPTH.fullmatch(source) or _DEPTH.fullmatch(stored):
        raise ImageError(_refusal(f'format {msg.format!r}', source))
    data = np.frombuffer(msg.data, np.uint8)
    if _cut_off(data):
        raise ImageError(f'format {msg.format!r}: {data.size} bytes without the end of a picture: it is cut off')
    try:
        pixels = cv2.imdecode(data, cv2.IMREAD_UNCHANGED) if data.size else None
    except cv2.error:
        pixels = None
    if pixels is None:
        raise ImageError(f'format {msg.format!r}: {data.size} bytes that are no picture OpenCV can decode')
    if pixels.dtype not in (np.uint8, np.uint16) or (pixels.dtype == np.uint16 and pixels.ndim == 2
                                                     and source != 'mono16'):
        raise ImageError(_refusal(f'format {msg.format!r} with {pixels.dtype} pixels', '16UC1'))
    if pixels.ndim == 2:
        pixels = pixels[..., None]
    order = 'grey' if pixels.shape[2] < 3 else 'rgb' if re.search(r'compressed rgb', stored) else 'bgr'
    return _ordered(_eight_bits(pixels), order)


def _cut_off(data: np.ndarray) -> bool:
    """Whether a JPEG or PNG lacks its end marker: OpenCV would fill the rest with grey. Drivers may pad with zeros."""
    head, tail = data[:4].tobytes(), data[-4096:].tobytes().rstrip(b'\0')
    return (head.startswith(b'\xff\xd8') and b'\xff\xd9' not in tail) or (
        head == b'\x89PNG' and b'IEND' not in tail)


def transformed(pixels: np.ndarray, transforms: Iterable[Transform]) -> np.ndarray:
    """Apply the contract's steps in order; ImageError when a crop lies outside of the picture, or what is left has
    more than MOST_PIXELS."""
    for step in transforms:
        if step.rotate is not None:
            pixels = np.rot90(pixels, -step.rotate // 90)
        elif step.flip is not None:
            pixels = pixels[:, ::-1] if step.flip == 'horizontal' else pixels[::-1]
        elif step.crop is not None:
            x, y, width, height = step.crop
            if y + height > pixels.shape[0] or x + width > pixels.shape[1]:
                raise ImageError(f'crop {list(step.crop)} of the contract lies outside of the picture of '
                                 f'{pixels.shape[1]} x {pixels.shape[0]} px')
            pixels = pixels[y:y + height, x:x + width]
    height, width, _ = pixels.shape
    if height * width > MOST_PIXELS:
        raise ImageError(f'{width} x {height} px is more than {MOST_PIXELS} pixels: publish smaller pictures, or crop '
                         'them in the contract')
    return np.ascontiguousarray(pixels)


def _pixels(msg, size: int, channels: int, rows: int | None = None) -> np.ndarray:
    """The values [rows, width, channels] (or [rows, width]) in native byte order, row padding removed."""
    rows = msg.height if rows is None else rows
    row = msg.width * channels * size
    raw = np.frombuffer(msg.data, np.uint8)
    if not row or not rows:
        raise ImageError(f'{_name(msg)}: a picture without pixels')
    if msg.step < row:
        raise ImageError(f'{_name(msg)}: step is {msg.step}, but a row has {row} bytes')
    needed = msg.step * (rows - 1) + row  # some drivers leave out the padding of the last row
    if raw.size < needed:
        raise ImageError(f'{_name(msg)}: {raw.size} bytes of data, but {needed} are needed')
    lines = np.lib.stride_tricks.as_strided(raw, (rows, row), (msg.step, 1), writeable=False)
    if size == 2:
        values = np.ascontiguousarray(lines).view(np.dtype('>u2' if msg.is_bigendian else '<u2'))
        lines = values.astype(np.uint16)
    values = np.ascontiguousarray(lines)
    return values.reshape(rows, msg.width, channels) if channels > 1 else values


def _eight_bits(pixels: np.ndarray) -> np.ndarray:
    return (pixels >> 8).astype(np.uint8) if pixels.dtype == np.uint16 else pixels


def _ordered(pixels: np.ndarray, order: str) -> np.ndarray:
    if order == 'grey':
        return np.repeat(pixels.reshape(*pixels.shape[:2], -1)[..., :1], 3, axis=2)
    return np.ascontiguousarray(pixels[..., :3] if order == 'rgb' else pixels[..., 2::-1])


def _name(msg) -> str:
    return f'encoding {msg.encoding!r}, {msg.width} x {msg.height} px'


def _refusal(what: str, encoding: str) -> str:
    if _DEPTH.fullmatch(encoding):
        return f'{what} is depth or raw measurement, not a colour picture: name a colour topic in the contract'
    return f'{what} is not supported: publish one of {", ".join(SUPPORTED)}'
