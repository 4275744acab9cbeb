"""Programs as a user runs them: started in a process group of their own, watched by their output, ended by SIGINT."""
from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence

import psutil


class Process:
    """One program. Its output (stdout and stderr together) is kept, and given line by line to ``on_line``."""

    def __init__(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None,
                 on_line: Callable[[str], None] | None = None, keep_lines: int = 1000) -> None:
        self.name = name
        self._lines: deque[str] = deque(maxlen=keep_lines)
        self._changed = threading.Condition()
        self._on_line = on_line
        # A session of its own: a Ctrl-C in the terminal reaches us alone, and whoever is still in the group after the
        # program has ended is an orphan.
        self._popen = subprocess.Popen(
            list(command), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors='replace', env=None if env is None else dict(env), start_new_session=True)
        self._reader = threading.Thread(target=self._read, name=f'{name} output', daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            line = line.rstrip('\n')
            with self._changed:
                self._lines.append(line)
                self._changed.notify_all()
            if self._on_line:
                self._on_line(line)
        with self._changed:
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
        """The last lines that the program wrote."""
        with self._changed:
            return '\n'.join(self._lines)

    def wait_for_line(self, pattern: str, timeout: float = 30.0) -> str:
        """Return the first kept line that matches the regular expression; RuntimeError when none comes."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while True:
                for line in self._lines:
                    if re.search(pattern, line):
                        return line
                left = deadline - time.monotonic()
                if left <= 0 or not self._reader.is_alive():
                    break
                self._changed.wait(left)
        ended = f'within {timeout:g} s' if self._reader.is_alive() else f'and ended with {self.returncode}'
        raise RuntimeError(f'{self.name} did not print {pattern!r} {ended}; its output:\n{self.output}')

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
            self._popen.send_signal(signal.SIGINT)
        return self.wait(timeout)

    def orphans(self, grace: float = 1.0) -> list[str]:
        """Command lines of processes of the group that outlive the program by more than ``grace`` seconds."""
        deadline = time.monotonic() + grace
        while self.returncode is not None and (left := self._group()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return left if self.returncode is not None else []

    def _group(self) -> list[str]:
        found = []
        for process in psutil.process_iter():
            try:
                if os.getpgid(process.pid) == self.pid and process.status() != psutil.STATUS_ZOMBIE:
                    found.append(' '.join(process.cmdline()))
            except (psutil.Error, ProcessLookupError):
                continue  # ended while we looked
        return found

    def kill(self) -> None:
        """End the whole group at once, orphans included."""
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self._popen.wait()
