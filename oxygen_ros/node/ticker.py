"""A fixed rate on a thread of its own, so that nothing else that the node does delays the robot's actions.

Under the GIL such a thread waits for the others for the switch interval (see main.py), or for the longest call into C
that keeps the GIL.
"""
from __future__ import annotations

import threading
import time
from collections.abc import Callable

from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.realtime import lift


class Ticker:
    """Calls ``beat`` every ``period_s`` until ``stop``; beats that were missed are left out.

    The first comes after half a period: between the beats of a timer that is made at the same time.
    """

    def __init__(self, beat: Callable[[], object], period_s: float) -> None:
        self._beat, self._period = beat, round(period_s * SECOND)
        self._error: BaseException | None = None
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name='ticker', daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """No beat begins or goes on after this."""
        self._stop.set()
        self._thread.join()

    def check(self) -> None:
        """Raise what has ended the beats, if anything but ``stop`` has."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            lift()
            due = time.monotonic_ns() + self._period // 2
            while not self._stop.wait(max(0, due - time.monotonic_ns()) / SECOND):
                self._beat()
                missed = (time.monotonic_ns() - due) // self._period
                due += self._period * (missed + 1)
        except BaseException as error:  # whatever it is: a robot that gets no more actions is told to hold
            self._error = error
