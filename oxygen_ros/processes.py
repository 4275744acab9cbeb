"""Programs as a user runs them: started in a process group of their own, watched by their output, ended by SIGINT."""
from __future__ import annotations

import codecs
import contextlib
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence

import psutil

_KEPT = 200_000  # characters of output
# Whatever ends us, kill -9 included, ends what we started: the kernel sees to it (PR_SET_PDEATHSIG). Every Debian and
# Ubuntu has setpriv; preexec_fn, the way without it, may deadlock in a program with threads.
_TETHER = [setpriv, '--pdeathsig', 'KILL', '--'] if (setpriv := shutil.which('setpriv')) else []


class Process:
    """One program; the end of its output (stdout and stderr together) is kept.

    It ends with the thread that makes this object, at the latest.
    """

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        self.name = name
        self._text = ''
        self._changed = threading.Condition()
        # A session of its own: a Ctrl-C in the terminal reaches us alone, and whoever is still in the group after the
        # program has ended is an orphan.
        self._popen = subprocess.Popen(
            [*_TETHER, *command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, bufsize=0,
            env=None if env is None else dict(env), start_new_session=True)
        self._children: list[psutil.Process] = []  # when it was asked to end; they may have sessions of their own
        self._reader = threading.Thread(target=self._read, name=f'{name} output', daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        decode = codecs.getincrementaldecoder('utf-8')(errors='replace').decode
        while chunk := self._popen.stdout.read(65536):
            with self._changed:
                self._text = (self._text + decode(chunk))[-_KEPT:]
                self._changed.notify_all()

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def returncode(self) -> int | None:
        """Exit code, negative signal number, or None while the program runs."""
        return self._popen.poll()

    @property
    def output(self) -> str:
        """What the program wrote, its end if it was much."""
        with self._changed:
            return self._text.rstrip('\n')

    def wait_for_output(self, pattern: str, timeout: float = 30.0) -> re.Match[str]:
        """Wait until the regular expression matches somewhere in the output; RuntimeError when it does not."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                last = time.monotonic() >= deadline or not self._reader.is_alive()
                if match := re.search(pattern, self._text):
                    return match
                if last:
                    ending = f'ended with {self.returncode}' if self.returncode is not None else f'took {timeout:g} s'
                    raise RuntimeError(f'{self.name} {ending} without printing {pattern!r}; its output:\n{self._text}')
                self._changed.wait(0.1)  # nobody tells of the end

    def wait(self, timeout: float) -> int | None:
        """Exit code, or None when the program still runs after ``timeout`` seconds."""
        try:
            self._popen.wait(timeout)
        except subprocess.TimeoutExpired:
            return None
        self._reader.join(1.0)  # an orphan may keep the pipe open
        return self._popen.returncode

    def interrupt(self, timeout: float = 5.0) -> int | None:
        """Send SIGINT to the program alone (not to its children), as ``ros2 launch`` does, and wait for its end."""
        if self.returncode is None:
            self._note_children()
            self._popen.send_signal(signal.SIGINT)
        return self.wait(timeout)

    def _note_children(self) -> None:
        with contextlib.suppress(psutil.Error):  # it has ended
            self._children = psutil.Process(self.pid).children(recursive=True)

    def orphans(self, grace: float = 1.0) -> list[str]:
        """Command lines of what it started and what outlives it by more than ``grace`` seconds: processes of its group,
        and those that it had when it was asked to end."""
        deadline = time.monotonic() + grace
        while self.returncode is not None and (left := self._left()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left if self.returncode is not None else []

    def _left(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if ((process in self._children or os.getpgid(process.pid) == self.pid)
                        and process.status() != psutil.STATUS_ZOMBIE):
                    found.append(' '.join(process.cmdline()))
            except (psutil.Error, ProcessLookupError):
                continue  # ended while we looked
        return found

    def kill(self) -> None:
        """End the whole group and its children at once, orphans included."""
        if self.returncode is None:
            self._note_children()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        for child in self._children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
        self._popen.wait()
