"""An engine without a model for tests of the node: a two-joint arm with two cameras. The instruction says how it acts.

``fine`` (or anything else): from the observed state, +0.1 rad/s on both joints. ``nan``: a chunk with a NaN.
``short``: a chunk of another horizon.
``sleep S``, ``until FILE``, ``reject WHY``, ``kill SIGNAL``, ``raise bug``: as in fake_engine.

The checkpoint says how it loads: ``broken...``: not at all; ``slow S``: within S s; ``until FILE``: when that exists;
``act S``: it finds that one observation takes S s; ``relative``: it says that it adds the state to its actions.
"""
import time

import numpy as np
from fake_engine import FakeEngine, wait_for_file

from oxygen_ros.engine.wire import Chunk, Ready, Report

JOINTS = ('shoulder', 'elbow')
PERIOD = 0.1
SPEED = 0.1
HORIZON = 10


class ArmEngine(FakeEngine):
    def __init__(self, options, emit):
        super().__init__(options, self._with_chunk)
        self._out = emit
        self._observation = None

    def act(self, observation, received_ns=0, deadline_ns=0):
        self._observation = observation
        super().act(observation, received_ns, deadline_ns)

    def _with_chunk(self, event):
        if isinstance(event, Report):
            return  # only for the tests of the process: a real engine reports after its cycle
        if isinstance(event, Chunk):
            steps = SPEED * PERIOD * np.arange(1, HORIZON + 1, dtype=np.float32)[:, None]
            actions = self._observation.state[None, :2] + steps
            if self._observation.committed is not None:
                actions[:len(self._observation.committed)] = self._observation.committed
            if self._observation.instruction == 'nan':
                actions[3, 1] = np.nan
            if self._observation.instruction == 'short':
                actions = actions[:4]
            event = Chunk(event.sequence, event.stamp, event.received_ns, time.monotonic_ns(), actions)
        self._out(event)


def make(options, emit):
    if options.checkpoint.startswith('broken'):
        raise ValueError(f'weights of {options.checkpoint} are damaged')
    if options.checkpoint.startswith('slow'):
        time.sleep(float(options.checkpoint.partition(' ')[2]))
    if options.checkpoint.startswith('until'):
        wait_for_file(options.checkpoint.partition(' ')[2])
    act_s = float(options.checkpoint.partition(' ')[2]) if options.checkpoint.startswith('act') else 0.001
    return ArmEngine(options, emit), Ready(
        model='fake arm', cameras=('front', 'wrist'), state_dim=2, action_dim=2, horizon=HORIZON,
        relative=options.checkpoint == 'relative', dtype='float32', device='cpu', load_s=0.0, act_s=act_s)
