"""Cores that are awake when the next tick comes: a sleeping one may take milliseconds, most of all a virtual one."""
from __future__ import annotations

import os
import sys

_DEVICE = '/dev/cpu_dma_latency'  # the kernel's power management holds to what is written, while the file is open


class Wakeful:
    """The wish that cores wake up within so many microseconds, from ``hold`` to ``release``."""

    def __init__(self, device: str = _DEVICE) -> None:
        self._device = device
        self._file: int | None = None

    def hold(self, latency_us: int) -> str:
        """0: cores do not sleep at all; below 0: no wish. Returns why it cannot be had, or ''."""
        self.release()
        if latency_us < 0:
            return ''
        try:
            self._file = os.open(self._device, os.O_WRONLY | os.O_CLOEXEC)
            os.write(self._file, latency_us.to_bytes(4, sys.byteorder))
        except OSError as error:
            self.release()
            return (f'{self._device}: {error.strerror}: sleeping cores may delay actions; allow writing to it by a '
                    'udev rule, or set wake_latency_us to -1')
        return ''

    def release(self) -> None:
        """Let cores sleep as the system likes."""
        file, self._file = self._file, None
        if file is not None:
            os.close(file)
