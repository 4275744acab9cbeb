import numpy as np
import pytest
import torch
from golden import tensors
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.policy.resize import resize_with_pad

SIZES = ('240x320', '180x100', '224x224')


@pytest.mark.parametrize('size', SIZES)
def test_lerobot_flavour_equals_the_reference(size):
    golden = tensors('resize_with_pad')
    ours = resize_with_pad(golden[f'in_{size}'].numpy(), 224, 'lerobot').permute(1, 2, 0)
    torch.testing.assert_close(ours, golden[f'lerobot_{size}'].float(), atol=1e-3, rtol=0)


@pytest.mark.parametrize('size', SIZES)
def test_openpi_flavour_equals_the_reference_in_every_level(size):
    golden = tensors('resize_with_pad')
    ours = resize_with_pad(golden[f'in_{size}'].numpy(), 224, 'openpi').permute(1, 2, 0)
    torch.testing.assert_close(ours, golden[f'openpi_u8_{size}'] / 255 * 2 - 1, atol=1e-6, rtol=0)


@given(height=st.integers(1, 90), width=st.integers(1, 90), size=st.integers(1, 60),
       flavour=st.sampled_from(['openpi', 'lerobot']))
def test_any_shape_fits_with_centred_padding(height, width, size, flavour):
    image = np.full((height, width, 3), 255, np.uint8)
    out = resize_with_pad(image, size, flavour)
    assert out.shape == (3, size, size) and out.dtype == torch.float32
    white = out[0] > 0.999   # float interpolation rounds
    rows, columns = white.any(1).nonzero().flatten(), white.any(0).nonzero().flatten()
    assert abs((rows[0] + rows[-1]) - (size - 1)) <= 1 and abs((columns[0] + columns[-1]) - (size - 1)) <= 1
    assert (out[:, rows[0]:rows[-1] + 1, columns[0]:columns[-1] + 1] > 0.999).all()
    assert (out == -1).sum() == 3 * (size * size - len(rows) * len(columns))


@pytest.mark.parametrize('flavour', ['openpi', 'lerobot'])
def test_colours_keep_their_channel(flavour):
    image = np.zeros((4, 4, 3), np.uint8)
    image[...] = 255, 127, 0
    red, green, blue = resize_with_pad(image, 2, flavour).mean((1, 2)).tolist()
    assert red == 1 and blue == -1 and -0.01 < green < 0


@pytest.mark.parametrize('image', [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8),
                                   np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)])
def test_refuses_what_is_not_an_rgb_picture(image):
    with pytest.raises(ValueError, match='uint8 RGB'):
        resize_with_pad(image, 8, 'openpi')
