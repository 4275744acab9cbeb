"""Memory of this process: that it stays at hand, and how much it is."""
from __future__ import annotations

import ctypes
import os
from pathlib import Path

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_KEPT, _LARGEST = 256 << 20, 32 << 20  # bytes


def keep_memory() -> None:
    """Have malloc use freed memory again instead of giving it back to the system.

    Pictures are new blocks of megabytes, and where the system hands them out anew, each costs milliseconds of page
    faults.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)  # glibc has it
    if mallopt is not None:
        for option, size in ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _KEPT), (_M_TOP_PAD, _LARGEST // 2)):
            mallopt(option, size)


def resident_bytes() -> int:
    """Main memory in use."""
    return int(Path('/proc/self/statm').read_text().split()[1]) * os.sysconf('SC_PAGE_SIZE')
