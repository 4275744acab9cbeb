"""What keeps the node on time: real-time scheduling, and no pauses to look for garbage."""
from __future__ import annotations

import gc
import os
from contextlib import suppress


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
    """Let the calling thread go before the others of a process that is preferred, if the system allows that much."""
    if os.sched_getscheduler(0) == os.SCHED_FIFO:
        urgent = min(os.sched_getparam(0).sched_priority + 1, os.sched_get_priority_max(os.SCHED_FIFO))
        with suppress(OSError):  # the limit rtprio may end at the priority that the process has
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(urgent))


def settle() -> None:
    """Take what exists now out of garbage collection: a full one stops all threads for as long as 50 ms."""
    gc.unfreeze()
    gc.collect()
    gc.freeze()
