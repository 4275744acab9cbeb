"""One engine process and the pipe to it, seen from the node.

A fresh interpreter (``python -m oxygen_ros.worker``) rather than multiprocessing's spawn, which would import the
caller's main module, and with it rclpy, into the engine, and fails for a script without a main guard.
"""
from __future__ import annotations

import contextlib
import os
import pickle
import queue
import select
import signal
import socket
import subprocess
import sys
import threading
from multiprocessing.connection import Connection

from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import FromEngine, Stop, ToEngine
from oxygen_ros.worker.images import ImageSlots
from oxygen_ros.worker.worker import Build

_ROOM = 32_768   # bytes that a socket takes at least when Linux calls it writable (a third of 208 KiB)
_DEATHS = {
    signal.SIGKILL: 'most often the kernel did so because the machine ran out of memory: see "dmesg", use a smaller '
                    'checkpoint or lower max_live',
    signal.SIGSEGV: 'a crash in native code: its stack is on stderr',
    signal.SIGABRT: 'a crash in native code: its stack is on stderr',
}


class EngineProcess:
    """Runs from construction on; raises OSError if it cannot be started.

    ``send`` never blocks, though the engine reads only between its steps: what its pipe has no room for, a thread
    writes. The thread that makes this object must outlive the process, which the kernel ends with that thread
    (PR_SET_PDEATHSIG).
    """

    def __init__(self, options: EngineOptions, make: Build, slots: ImageSlots):
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                self._process = subprocess.Popen(
                    [sys.executable, '-m', 'oxygen_ros.worker', str(theirs.fileno()), str(slots.fd)],
                    pass_fds=(theirs.fileno(), slots.fd), stdin=subprocess.DEVNULL, env=_environment(options.threads),
                    start_new_session=True)   # a Ctrl-C in the terminal does not reach it
            except OSError:
                ours.close()
                raise
        self._pipe = Connection(ours.detach())
        self._room = select.poll()  # unlike select, for any number of descriptors
        self._room.register(self._pipe, select.POLLOUT)
        self._outbox: queue.SimpleQueue = queue.SimpleQueue()
        self._unsent = 0                        # messages that the thread has not written yet
        self._sending = threading.Lock()        # held to change that, and to write what overtakes no other
        self._writer = threading.Thread(target=self._write, name='engine writer', daemon=True)
        self._writer.start()
        self._put((options, make, slots.slot_bytes, slots.slots))

    @property
    def pid(self) -> int | None:
        """While it runs."""
        return self._process.pid if self._process.poll() is None else None

    def send(self, message: ToEngine) -> None:
        """Returns at once; a message to a process that has ended is lost."""
        self._put(message)

    def receive(self, timeout: float) -> FromEngine | None:
        """The next event; None after ``timeout`` s of silence. Raises EOFError when the process has ended."""
        try:
            return self._pipe.recv() if self._pipe.poll(timeout) else None
        except OSError as error:   # it ended in the middle of a message
            raise EOFError from error

    def death(self) -> str:
        """How a process that ended by itself did so, in one line."""
        try:
            code = self._process.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            return 'the engine process closed its pipe'
        if code >= 0:
            return f'the engine process ended by itself with exit code {code}: see stderr'
        killer = signal.Signals(-code)
        return f'the engine process was ended by {killer.name}' + (f': {_DEATHS[killer]}' if killer in _DEATHS else '')

    def show_stack(self) -> None:
        """Let a process that hangs print on stderr where it does (see worker.main)."""
        self._signal(signal.SIGUSR1)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(timeout=0.2)

    def end(self, timeout: float) -> None:
        """Ask it to leave, and make it after ``timeout`` s at most."""
        self.send(Stop())
        for number, patience in ((None, timeout / 2), (signal.SIGTERM, timeout / 2), (signal.SIGKILL, 5.0)):
            if number:
                self._signal(number)
            with contextlib.suppress(subprocess.TimeoutExpired):   # after SIGKILL: stuck in a device driver
                self._process.wait(patience)
                return

    def close(self) -> None:
        """Free the pipe of a process that has ended."""
        self._outbox.put(None)
        self._writer.join()
        self._pipe.close()

    def _put(self, message: object) -> None:
        data = pickle.dumps(message)
        with self._sending, contextlib.suppress(OSError):   # it has ended; the reader notices by itself
            # Waiting for a thread's turn would cost an observation a millisecond.
            if not self._unsent and len(data) < _ROOM and self._room.poll(0):
                self._pipe.send_bytes(data)
            else:
                self._unsent += 1
                self._outbox.put(data)

    def _write(self) -> None:
        while (data := self._outbox.get()) is not None:
            try:
                self._pipe.send_bytes(data)
            except OSError:   # as above; nothing more can be sent
                return
            with self._sending:
                self._unsent -= 1

    def _signal(self, number: int) -> None:
        """To it and what it started."""
        if self.pid:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)


def _environment(threads: int) -> dict[str, str]:
    """Ours, with the same import path, and without the working folder on it."""
    path = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
    return {**os.environ, 'PYTHONPATH': path, 'PYTHONSAFEPATH': '1', 'OMP_NUM_THREADS': str(threads)}
