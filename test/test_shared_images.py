"""Pixels reach the engine process whole, without a copy, and leave nothing behind."""
from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.worker.images import ImageSlots


@pytest.fixture
def slots():
    slots = ImageSlots(slot_bytes=100_000, slots=3)
    yield slots
    slots.close()


def random_image(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


sizes = st.dictionaries(st.sampled_from(['front', 'wrist', 'left', 'right']),
                        st.tuples(st.integers(1, 40), st.integers(1, 40)), max_size=4)


@given(filled=st.lists(sizes, min_size=3, max_size=3))
def test_every_image_of_every_slot_comes_out_as_it_went_in(filled):
    writer = ImageSlots(slot_bytes=20_000, slots=3)
    reader = ImageSlots(slot_bytes=20_000, slots=3, fd=os.dup(writer.fd))
    given = [{camera: random_image(slot, *size) for camera, size in cameras.items()}
             for slot, cameras in enumerate(filled)]
    layouts = [writer.pack(slot, images) for slot, images in enumerate(given)]
    for slot, images in enumerate(given):
        seen = reader.views(slot, layouts[slot])
        assert seen.keys() == images.keys()
        assert all(np.array_equal(seen[camera], image) for camera, image in images.items())
        del seen
    reader.close()
    writer.close()


def test_a_view_is_no_copy(slots):
    layout = slots.pack(1, {'front': np.zeros((4, 4, 3), np.uint8)})
    view = slots.views(1, layout)['front']
    slots.pack(1, {'front': np.full((4, 4, 3), 7, np.uint8)})
    assert (view == 7).all()


def test_a_cut_out_or_mirrored_image_is_packed_like_any_other(slots):
    image = random_image(0, 20, 30)[2:18:2, ::-1]
    assert np.array_equal(slots.views(0, slots.pack(0, {'front': image}))['front'], image)


def test_too_large_an_image_is_named_and_leaves_the_slot_as_it_was(slots):
    front = random_image(1, 100, 200)
    layout = slots.pack(0, {'front': front})
    with pytest.raises(ValueError, match=r"camera 'wrist': its 300 x 150 image needs 135000 bytes, but 39968 of "
                                         r'slot_bytes = 100000 are left; raise'):
        slots.pack(0, {'front': np.zeros_like(front), 'wrist': np.zeros((150, 300, 3), np.uint8)})
    assert np.array_equal(slots.views(0, layout)['front'], front)


@pytest.mark.parametrize('image', [np.zeros((4, 4, 3), np.float32), np.zeros((4, 4), np.uint8),
                                   np.zeros((4, 4, 4), np.uint8), np.zeros((0, 4, 3), np.uint8)])
def test_what_is_no_rgb_image_is_refused_by_name(slots, image):
    with pytest.raises(ValueError, match="camera 'wrist': image must be uint8"):
        slots.pack(0, {'wrist': image})


@pytest.mark.parametrize('slot, place', [(3, (0, 4, 4)), (-1, (0, 4, 4)), (0, (-64, 4, 4)), (0, (99_960, 4, 4))])
def test_nothing_outside_a_slot_can_be_viewed(slots, slot, place):
    with pytest.raises(ValueError, match='no 4 x 4 image'):
        slots.views(slot, {'front': place})


def test_nothing_is_left_behind():
    """The memory has no name in /dev/shm that could outlive a killed process, and it goes with the last mapping."""
    def held() -> tuple[int, int]:
        return len(os.listdir('/proc/self/fd')), Path('/proc/self/maps').read_text().count('oxygen_images')

    before = held()
    for _ in range(200):
        slots = ImageSlots(slot_bytes=100_000, slots=3)
        slots.pack(2, {'front': random_image(0, 50, 50)})
        assert held()[1] == before[1] + 1
        assert os.readlink(f'/proc/self/fd/{slots.fd}').startswith('/memfd:')
        slots.close()
    assert held() == before
