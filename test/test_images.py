"""Every picture a ROS camera publishes becomes the same RGB array, or is refused by name."""
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.contract import Transform
from oxygen_ros.node.images import MOST_PIXELS, SUPPORTED, ImageError, compressed_to_rgb, to_rgb, transformed

RGB = np.arange(4 * 6 * 3, dtype=np.uint8).reshape(4, 6, 3) * 3  # no two channels or pixels alike
GREY = RGB[..., 0]


def image(pixels, encoding, padding=0, big=False, **changes):
    """A message with ``padding`` bytes of rubbish after each row."""
    dtype = pixels.dtype.newbyteorder('>' if big else '<')
    rows = np.ascontiguousarray(pixels.astype(dtype)).view(np.uint8).reshape(pixels.shape[0], -1)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=255)
    fields = {'height': pixels.shape[0], 'width': pixels.shape[1], 'step': rows.shape[1], 'encoding': encoding,
              'is_bigendian': int(big), 'data': rows.tobytes()}
    return SimpleNamespace(**{**fields, **changes})


def compressed(pixels, format, codec='.png'):
    ok, data = cv2.imencode(codec, pixels)
    assert ok
    return SimpleNamespace(format=format, data=data.tobytes())


@pytest.mark.parametrize('padding', [0, 4, 7])
@pytest.mark.parametrize('encoding, pixels', [
    ('rgb8', RGB), ('bgr8', RGB[..., ::-1]), ('8UC3', RGB[..., ::-1]),
    ('rgba8', np.dstack([RGB, GREY])), ('bgra8', np.dstack([RGB[..., ::-1], GREY])),
    ('8UC4', np.dstack([RGB[..., ::-1], GREY]))])
def test_colour_order_and_row_padding(encoding, pixels, padding):
    assert (to_rgb(image(pixels, encoding, padding)) == RGB).all()


@pytest.mark.parametrize('padding', [0, 3])
@pytest.mark.parametrize('encoding', ['mono8', '8UC1'])
def test_grey_fills_the_three_channels(encoding, padding):
    assert (to_rgb(image(GREY, encoding, padding)) == GREY[..., None]).all()


@pytest.mark.parametrize('padding', [0, 2])
@pytest.mark.parametrize('big', [False, True])
@pytest.mark.parametrize('encoding, pixels', [
    ('rgb16', RGB), ('bgr16', RGB[..., ::-1]), ('rgba16', np.dstack([RGB, GREY])),
    ('bgra16', np.dstack([RGB[..., ::-1], GREY]))])
def test_sixteen_bits_in_both_byte_orders(encoding, pixels, big, padding):
    wide = pixels.astype(np.uint16) * 256 + 17
    assert (to_rgb(image(wide, encoding, padding, big)) == RGB).all()


@pytest.mark.parametrize('big', [False, True])
def test_mono16_keeps_the_upper_byte(big):
    assert (to_rgb(image(GREY.astype(np.uint16) * 256 + 200, 'mono16', 6, big)) == GREY[..., None]).all()


@pytest.mark.parametrize('pattern', ['rggb', 'bggr', 'gbrg', 'grbg'])
@pytest.mark.parametrize('bits', [8, 16])
def test_bayer_patterns(pattern, bits):
    colour = {'r': 200, 'g': 100, 'b': 30}
    mosaic = np.tile(np.array([[colour[pattern[0]], colour[pattern[1]]], [colour[pattern[2]], colour[pattern[3]]]]),
                     (4, 4)).astype(np.uint8)
    if bits == 16:
        mosaic = mosaic.astype(np.uint16) * 256
    got = to_rgb(image(mosaic, f'bayer_{pattern}{bits}', padding=2))
    assert (got[2:6, 2:6] == (200, 100, 30)).all()


def yuv(colour):
    matrix = np.array([[65.7, 129.1, 25.1], [-37.9, -74.5, 112.4], [112.4, -94.2, -18.3]])  # BT.601, limited range
    return (matrix @ colour / 256 + (16, 128, 128)).round().astype(np.uint8)


@pytest.mark.parametrize('encoding, order', [('yuv422', 'uyvy'), ('uyvy', 'uyvy'), ('yuv422_yuy2', 'yuyv'),
                                             ('yuyv', 'yuyv')])
def test_packed_yuv(encoding, order):
    value = dict(zip('yuv', yuv((200, 100, 30)), strict=True))
    pixels = np.tile(np.array([value[c] for c in order], np.uint8), (8, 4)).reshape(8, 8, 2)
    assert np.abs(to_rgb(image(pixels, encoding, padding=5)).astype(int) - (200, 100, 30)).max() <= 3


@pytest.mark.parametrize('encoding', ['nv12', 'nv21'])
def test_planar_yuv(encoding):
    y, u, v = yuv((200, 100, 30))
    chroma = (u, v) if encoding == 'nv12' else (v, u)
    planes = np.vstack([np.full((8, 8), y), np.tile(chroma, (4, 4))]).astype(np.uint8)
    got = to_rgb(image(planes, encoding, padding=8, height=8))
    assert got.shape == (8, 8, 3) and np.abs(got.astype(int) - (200, 100, 30)).max() <= 3


@pytest.mark.parametrize('encoding', ['16UC1', '32FC1', '16SC1', '32SC1', '64FC1'])
def test_depth_is_refused_by_name(encoding):
    with pytest.raises(ImageError, match=f'{encoding}.*depth.*contract'):
        to_rgb(image(np.zeros((2, 2), np.uint16), encoding))


@pytest.mark.parametrize('encoding', ['', 'RGB8', 'h264', 'rgb8 '])
def test_unknown_encodings_are_refused_with_the_list(encoding):
    with pytest.raises(ImageError) as error:
        to_rgb(image(RGB, encoding))
    assert repr(encoding) in str(error.value) and 'bayer_rggb8' in str(error.value)


@pytest.mark.parametrize('changes, expected', [
    ({'step': 17}, 'step is 17'), ({'step': 0}, 'step is 0'), ({'data': b'123'}, '3 bytes'),
    ({'height': 5}, 'are needed'), ({'width': 0}, 'without pixels'), ({'height': 0}, 'without pixels'),
    ({'height': 4_000_000_000, 'step': 4_000_000_000}, 'are needed')])
def test_sizes_that_do_not_fit_are_refused(changes, expected):
    with pytest.raises(ImageError, match=expected):
        to_rgb(image(RGB, 'rgb8', **changes))


def test_the_last_row_may_lack_its_padding():
    msg = image(RGB, 'rgb8', padding=9)
    msg.data = msg.data[:-9]
    assert (to_rgb(msg) == RGB).all()


@pytest.mark.parametrize('format, expected', [
    ('png', RGB), ('bgr8; png compressed bgr8', RGB), ('rgb8; png compressed bgr8', RGB), ('', RGB),
    ('rgb8; png compressed rgb8', RGB[..., ::-1])])
def test_the_format_string_decides_the_order(format, expected):
    assert (compressed_to_rgb(compressed(RGB[..., ::-1], format)) == expected).all()


def test_jpeg_keeps_red_red():
    red = np.zeros((16, 16, 3), np.uint8)
    red[..., 2] = 250
    got = compressed_to_rgb(compressed(red, 'jpeg', '.jpg'))
    assert got[..., 0].min() > 240 and got[..., 1:].max() < 10


@pytest.mark.parametrize('pixels, format', [(GREY, 'mono8; png compressed '), (GREY, 'png'),
                                            (GREY.astype(np.uint16) * 256, 'mono16; png compressed ')])
def test_compressed_grey(pixels, format):
    assert (compressed_to_rgb(compressed(pixels, format)) == GREY[..., None]).all()


def test_compressed_alpha_is_dropped():
    assert (compressed_to_rgb(compressed(np.dstack([RGB[..., ::-1], GREY]), 'png')) == RGB).all()


@pytest.mark.parametrize('format', ['16UC1; png compressed ', '16UC1; compressedDepth', '32FC1; compressedDepth png',
                                    'png', ''])
def test_compressed_depth_is_refused(format):
    with pytest.raises(ImageError, match='depth'):
        compressed_to_rgb(compressed(np.full((4, 4), 1000, np.uint16), format))


@given(data=st.binary(max_size=200), format=st.text(max_size=30))
def test_rubbish_is_refused_not_raised(data, format):
    with pytest.raises(ImageError):
        compressed_to_rgb(SimpleNamespace(format=format, data=data))


@given(height=st.integers(0, 2**32 - 1), width=st.integers(0, 2**32 - 1), step=st.integers(0, 2**32 - 1),
       encoding=st.sampled_from(SUPPORTED) | st.text(max_size=8), big=st.integers(0, 255), data=st.binary(max_size=300))
def test_any_message_is_a_picture_or_an_image_error(height, width, step, encoding, big, data):
    try:
        got = to_rgb(SimpleNamespace(height=height, width=width, step=step, encoding=encoding, is_bigendian=big,
                                     data=data))
    except ImageError:
        return
    assert got.shape == (height, width, 3) and got.dtype == np.uint8


def test_transforms_apply_in_order():
    steps = [Transform(rotate=90), Transform(flip='vertical'), Transform(crop=(1, 2, 3, 4))]
    turned = np.rot90(RGB, -1)
    assert (transformed(RGB, steps[:1]) == turned).all()
    assert (turned[0, -1] == RGB[0, 0]).all(), 'clockwise: the upper left corner goes to the upper right'
    assert (transformed(RGB, steps) == turned[::-1][2:6, 1:4]).all()
    assert (transformed(RGB, [Transform(flip='horizontal')]) == RGB[:, ::-1]).all()


def test_a_crop_outside_of_the_picture_is_named():
    with pytest.raises(ImageError, match=r'crop \[0, 0, 7, 4\].*6 x 4'):
        transformed(RGB, [Transform(crop=(0, 0, 7, 4))])


def test_a_picture_too_large_for_the_engine_is_refused_unless_it_is_cropped():
    huge = np.broadcast_to(np.zeros(3, np.uint8), (MOST_PIXELS // 4000 + 1, 4000, 3))
    with pytest.raises(ImageError, match=r'4000 x 4195 px is more than 16777216 pixels: publish smaller'):
        transformed(huge, [])
    assert transformed(huge, [Transform(crop=(0, 0, 4000, 3000))]).shape == (3000, 4000, 3)
