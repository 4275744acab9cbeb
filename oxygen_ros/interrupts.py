"""Ctrl-C at a moment of our choosing."""
from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def interrupts() -> Iterator[Callable[[], None]]:
    """Gives a function that raises KeyboardInterrupt, once, after each signal that asks the program to end.

    The exception of Python's own handler may come anywhere: inside a callback of ROS, where it leaves things half done,
    or in a destructor, where it is lost. For the main thread.
    """
    received: list[int] = []

    def check() -> None:
        if received:
            received.clear()
            raise KeyboardInterrupt

    # What nohup has told us to ignore stays ignored.
    before = {number: signal.signal(number, lambda number, _: received.append(number)) for number in _SIGNALS
              if signal.getsignal(number) != signal.SIG_IGN}
    try:
        yield check
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
