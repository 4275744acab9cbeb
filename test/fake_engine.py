"""An engine without a model, for tests of the process around it. The instruction says how an observation goes."""
from __future__ import annotations

import os
import signal
import time
import zlib

import numpy as np

from oxygen_ros.engine.wire import Chunk, Ready, Rejected, Report, Speech


class FakeEngine:
    """Keeps to the calls and the order of events of oxygen_ros.engine.engine.Engine."""

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
        self.requests[ask.request_id] = [ask, 0]

    def cancel(self, request_id=''):
        for name in [name for name in self.requests if request_id in ('', name)]:
            self._say(name, final='cancelled')

    def reset(self):
        self.cancel()

    def configure(self, change):
        self.max_tokens = change.max_tokens or self.max_tokens

    def close(self):
        self.cancel()

    def act(self, observation, received_ns=0, deadline_ns=0):
        if self.seen:
            images, checksum = self.seen
            assert checksum == _checksum(images), 'the images of the last chunk changed before the next one'
        how, _, much = observation.instruction.partition(' ')
        self.emit(Report(notes=('begun', observation.instruction)))
        if how == 'sleep':
            time.sleep(float(much))
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


def _checksum(images):
    return {camera: zlib.crc32(image.tobytes()) for camera, image in images.items()}


def make(options, emit, load=''):
    """``load``: how loading goes."""
    how, _, much = load.partition(' ')
    if how == 'sleep':
        time.sleep(float(much))
    elif how == 'fail':
        raise ValueError(much)
    elif how == 'import':
        __import__(much)
    return FakeEngine(options, emit), Ready(model=f'fake {os.getpid()}', cameras=('front',), state_dim=2, action_dim=2,
                                            horizon=1, dtype='float32', device='cpu', kv_bytes_capacity=0, load_s=0.0)
