"""For tests of the process around the engine: an engine without a model, and an ear for what it says."""
from __future__ import annotations

import os
import signal
import threading
import time
import zlib

import numpy as np

from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Chunk, Failed, Ready, Rejected, Report, Speech
from oxygen_ros.policy.observation import Observation

PATIENCE_S = 30.0   # for what must happen; a test that waits this long has failed
OPTIONS = EngineOptions(checkpoint='random:tiny', max_tokens=4096)


class FakeEngine:
    """Keeps to the calls and the order of events of oxygen_ros.engine.engine.Engine.

    The instruction of an observation says how it goes: "sleep 3", "until FILE" (exists), "raise bug", "reject why",
    "exit 1", "kill SIGKILL".
    """

    def __init__(self, options, emit):
        self.emit, self.options = emit, options
        self.requests = {}   # id -> [Ask, tokens made]
        self.cycles = self.sequence = 0
        self.seen = None     # images of the last chunk, their checksum
        self.max_tokens = options.max_tokens

    @property
    def can_speak(self):
        return bool(self.requests and self.cycles)

    def ask(self, ask):
        if ask.request_id:
            self.cancel(ask.request_id)
        self.requests[ask.request_id] = [ask, 0]

    def cancel(self, request_id=''):
        for name in [name for name in self.requests if request_id in ('', name)]:
            self._say(name, final='cancelled')

    def reset(self):
        self.cancel()

    def configure(self, change):
        self.max_tokens = change.max_tokens or self.max_tokens

    def act(self, observation, received_ns=0, deadline_ns=0):
        if self.seen:
            images, checksum = self.seen
            assert checksum == _checksum(images), 'the images of the last chunk changed before the next one'
        how, _, much = observation.instruction.partition(' ')
        self.emit(Report(notes=('begun', observation.instruction)))
        if how == 'sleep':
            time.sleep(float(much))
        elif how == 'until':
            wait_for_file(much)
        elif how == 'raise':
            raise {'memory': MemoryError(), 'bug': KeyError('chunk')}[much]
        elif how == 'kill':
            os.kill(os.getpid(), getattr(signal, much))
        elif how == 'exit':
            os._exit(int(much))
        elif how == 'reject':
            self.emit(Rejected(observation.sequence, much))
            return
        first = _checksum(observation.images)
        time.sleep(0.001)
        assert first == _checksum(observation.images), 'torn image'
        self.seen = observation.images, first
        self.cycles, self.sequence = self.cycles + 1, observation.sequence
        actions = np.array([[image.min(), image.max()] for image in observation.images.values()], np.float32)
        self.emit(Chunk(observation.sequence, observation.stamp, received_ns, time.monotonic_ns(), actions))

    def speak(self, deadline_ns=0, poll=None):
        while self.can_speak and not (poll and poll()):
            if deadline_ns and time.monotonic_ns() > deadline_ns - 5_000_000:
                return
            time.sleep(0.002)
            for name in list(self.requests):
                self._say(name)

    def _say(self, name, final=''):
        ask, made = self.requests[name]
        if not final and made + 1 >= min(ask.max_tokens or self.max_tokens, self.max_tokens):
            final = 'length'
        self.requests[name][1] = made + 1
        if final:
            del self.requests[name]
        self.emit(Speech(name, ask.channel, made, self.sequence, 0, (made,), 'a', 'a' * (made + 1), bool(final), final))

    def report(self):
        return Report(observation=self.sequence, cycles=self.cycles, live=len(self.requests))


def wait_for_file(path):
    """The gate that a test opens: however slow the machine, what is behind it does not happen before."""
    while not os.path.exists(path):
        time.sleep(0.005)


def _checksum(images):
    return {camera: zlib.crc32(image.tobytes()) for camera, image in images.items()}


def make(options, emit, load=''):
    """``load``: how loading goes; "act 0.5": it finds that one observation takes half a second."""
    how, _, much = load.partition(' ')
    if how == 'sleep':
        time.sleep(float(much))
    elif how == 'fail':
        raise ValueError(much)
    elif how == 'import':
        __import__(much)
    act_s = float(much) if how == 'act' else 0.001
    return FakeEngine(options, emit), Ready(model=f'fake {os.getpid()}', cameras=('front',), state_dim=2, action_dim=2,
                                            horizon=1, relative=False, dtype='float32', device='cpu', load_s=0.0,
                                            act_s=act_s)


class Events:
    """What the engine said, in order."""

    def __init__(self):
        self.all = []
        self._more = threading.Condition()

    def __call__(self, event):
        with self._more:
            self.all.append(event)
            self._more.notify_all()

    def of(self, kind, **fields):
        return [e for e in self.all if isinstance(e, kind) and all(getattr(e, k) == v for k, v in fields.items())]

    def wait(self, kind, count=1, **fields):
        """The ``count``-th event of this kind with these fields."""
        with self._more:
            assert self._more.wait_for(lambda: len(self.of(kind, **fields)) >= count, PATIENCE_S), (
                f'no {kind.__name__} {fields} among {[type(e).__name__ for e in self.all]} {self.of(Failed)}')
        return self.of(kind, **fields)[count - 1]


def observation(sequence: int, instruction: str = '', shade: int = 0) -> Observation:
    images = {'front': np.full((60, 80, 3), shade, np.uint8), 'wrist': np.full((30, 40, 3), shade, np.uint8)}
    return Observation(images, np.zeros(2, np.float32), instruction, sequence)
