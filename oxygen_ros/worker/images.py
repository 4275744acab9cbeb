"""Image pixels for the engine process: a few slots of shared memory that both processes map.

The memory is anonymous (``memfd_create``): the engine process inherits its file descriptor. It has no name in /dev/shm,
so nothing is left behind however a process ends, and a container's --shm-size does not limit it.
"""
from __future__ import annotations

import mmap
import os
from collections.abc import Mapping

import numpy as np

Layout = dict[str, tuple[int, int, int]]   # camera -> (byte offset in the slot, height, width), as in wire.Observe

_ALIGN = 64   # bytes of a cache line; numpy and OpenCV copy aligned pictures faster


class ImageSlots:
    """``slots`` equal pieces of ``slot_bytes``. Who may write a slot is agreed elsewhere (see supervisor.py)."""

    def __init__(self, slot_bytes: int, slots: int, fd: int | None = None):
        """``fd``: memory made by the other process; None makes new memory. It belongs to this object from here on."""
        self.slot_bytes, self.slots = slot_bytes, slots
        self._stride = -(-slot_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self.fd = os.memfd_create('oxygen_images') if fd is None else fd
        if fd is None:
            os.ftruncate(self.fd, self._stride * slots)   # pages are taken when they are first written
        self._memory = mmap.mmap(self.fd, self._stride * slots)

    def pack(self, slot: int, images: Mapping[str, np.ndarray]) -> Layout:
        """Copy ``images``, uint8 RGB [height, width, 3] by camera, into the slot.

        Raises ValueError naming the camera, and leaves the slot as it was, if one is no such image or does not fit.
        """
        layout: Layout = {}
        end = 0
        for camera, image in images.items():
            if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3 or not image.size:
                raise ValueError(f'camera {camera!r}: image must be uint8 [height, width, 3], '
                                 f'not {image.dtype} {list(image.shape)}')
            height, width, _ = image.shape
            if end + image.size > self.slot_bytes:
                raise ValueError(f'camera {camera!r}: its {width} x {height} image needs {image.size} bytes, but '
                                 f'{max(self.slot_bytes - end, 0)} of slot_bytes = {self.slot_bytes} are left; raise '
                                 'slot_bytes or send smaller images')
            layout[camera] = end, height, width
            end = -(-(end + image.size) // _ALIGN) * _ALIGN
        for camera, view in self.views(slot, layout).items():
            np.copyto(view, images[camera])
        return layout

    def views(self, slot: int, layout: Layout) -> dict[str, np.ndarray]:
        """The images in the slot, without a copy: they change when the slot is written again."""
        return {camera: self._view(slot, *place) for camera, place in layout.items()}

    def _view(self, slot: int, offset: int, height: int, width: int) -> np.ndarray:
        if not (0 <= slot < self.slots and 0 <= offset <= offset + height * width * 3 <= self.slot_bytes):
            raise ValueError(f'no {width} x {height} image at byte {offset} of slot {slot}')
        return np.ndarray((height, width, 3), np.uint8, self._memory, slot * self._stride + offset)

    def close(self) -> None:
        """Give the memory back; views must be gone. The other process keeps what it has mapped. Twice is once."""
        self._memory.close()
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
