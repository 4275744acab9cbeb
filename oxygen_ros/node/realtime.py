"""What keeps the node on time: real-time scheduling, memory at hand, and no pauses to look for garbage."""
from __future__ import annotations

import ctypes
import gc
import os

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_THRESHOLD = -1, -2, -3  # of glibc's malloc.h
_KEPT, _LARGEST = 256 << 20, 32 << 20  # bytes


def prefer(priority: int) -> str:
    """Give this process, all its threads and those to come, a SCHED_FIFO ``priority``; why not, or ''.

    All threads, as under the GIL the most urgent one waits for whichever runs. Children inherit it: the engine process
    gives it up again (worker.main).
    """
    try:
        for thread in os.listdir('/proc/self/task'):
            os.sched_setscheduler(int(thread), os.SCHED_FIFO, os.sched_param(priority))
    except OSError as error:
        return (f'{error.strerror}: other programs may delay actions; allow it by an rtprio limit in '
                '/etc/security/limits.d, or set realtime_priority to 0')
    return ''


def lift() -> None:
    """Let the calling thread go before the others of a process that is preferred."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        urgent = min(os.sched_getparam(0).sched_priority + 1, os.sched_get_priority_max(os.SCHED_FIFO))
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(urgent))


def keep_memory() -> None:
    """Have malloc use freed memory again instead of giving it back to the system.

    A picture is a new block of a megabyte, which costs 2 ms of page faults where the system hands it out anew.
    """
    mallopt = getattr(ctypes.CDLL(None), 'mallopt', None)  # glibc has it
    if mallopt is not None:
        for option, size in ((_M_MMAP_THRESHOLD, _LARGEST), (_M_TRIM_THRESHOLD, _KEPT), (_M_TOP_PAD, _LARGEST // 2)):
            mallopt(option, size)


def settle() -> None:
    """Take what exists now out of garbage collection: a full one stops all threads for as long as 50 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
