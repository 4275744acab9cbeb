"""The engine process: one thread owns the model, reads messages between steps and runs the cycles.

Nothing here imports torch before ``build``, so that the node process, which imports this file, stays light.
"""
from __future__ import annotations

import ctypes
import faulthandler
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import TYPE_CHECKING

from oxygen_ros.engine import wire
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.policy.observation import Observation
from oxygen_ros.worker.images import ImageSlots
from oxygen_ros.worker.memory import keep_memory, resident_bytes

if TYPE_CHECKING:
    from oxygen_ros.engine.engine import Engine

Emit = Callable[[wire.FromEngine], None]
Build = Callable[[EngineOptions, Emit], 'tuple[Engine, wire.Ready]']

HEARTBEAT_S = 0.25
_GRACE_NS = 20_000_000   # how late an observation may be before speech goes on without regard to it
_PR_SET_PDEATHSIG = 1    # linux/prctl.h


def build(options: EngineOptions, emit: Emit) -> tuple[Engine, wire.Ready]:
    """Load the checkpoint and make an engine that is warm."""
    started = time.monotonic()
    import torch

    from oxygen_ros.engine.engine import Engine
    from oxygen_ros.policy import checkpoint

    torch.set_num_threads(options.threads)
    policy = checkpoint.load(options.checkpoint, options.device, options.dtype, options.denoise_steps)
    engine = Engine(policy, options, emit)
    act_s = engine.warm_up()
    return engine, wire.Ready(
        model=policy.describe(), cameras=policy.cameras, state_dim=policy.state_dim, action_dim=policy.action_dim,
        horizon=policy.config.horizon, relative=any(policy.recipe.relative),
        dtype=str(policy.net.dtype).removeprefix('torch.'), device=str(policy.net.device),
        load_s=time.monotonic() - started, act_s=act_s)


class Worker:
    """Feeds one engine from the pipe. An observation goes before everything, the newest before older ones.

    After the chunk speech has the time until the announced deadline. Then the engine rests for a moment, so that the
    next observation need not wait for a decode step; if none comes, speech goes on freely.
    """

    def __init__(self, pipe: Connection, slots: ImageSlots, engine: Engine, emit: Emit):
        self._pipe, self._slots, self._engine, self._emit = pipe, slots, engine, emit
        self._observe: wire.Observe | None = None
        self._deadline_ns = 0
        self._report_at = 0.0
        self._more = False   # speech was interrupted and can go on at once

    def run(self) -> None:
        """Until Stop, or until the node is gone."""
        while self._listen():
            acted = self._act()
            self._speak()
            if acted or time.monotonic() >= self._report_at:
                self._emit(replace(self._engine.report(), memory_bytes=resident_bytes(), heartbeat=not acted))
                self._report_at = time.monotonic() + HEARTBEAT_S
        self._engine.reset()

    def _listen(self) -> bool:
        """Take every message there is; wait for one while there is nothing to do. False: leave."""
        patience = 0.0 if self._more else self._report_at - time.monotonic()
        if self._engine.can_speak and self._early:
            patience = min(patience, (self._deadline_ns + _GRACE_NS - time.monotonic_ns()) / 1e9)
        waiting = self._pipe.poll(max(patience, 0.0))
        while waiting:
            if not self._take(self._pipe.recv()):
                return False
            waiting = self._pipe.poll()
        return True

    def _take(self, message: wire.ToEngine) -> bool:
        match message:
            case wire.Observe():
                self._drop_observation(f'superseded by observation {message.sequence}')
                self._observe = message
            case wire.Ask():
                self._engine.ask(message)
            case wire.Cancel():
                self._engine.cancel(message.request_id)
            case wire.Configure():
                self._engine.configure(message)
            case wire.Reset():
                self._drop_observation('reset')
                self._engine.reset()
            case wire.Stop():
                return False
        return True

    def _drop_observation(self, why: str) -> None:
        if self._observe:
            self._emit(wire.Rejected(self._observe.sequence, why))
            self._observe = None

    def _act(self) -> bool:
        observe, self._observe = self._observe, None
        if observe is None:
            return False
        self._deadline_ns = observe.deadline_ns
        self._engine.act(Observation(
            images=self._slots.views(observe.slot, observe.images), state=observe.state,
            instruction=observe.instruction, sequence=observe.sequence, stamp=observe.stamp,
            image_stamps=observe.image_stamps, committed=observe.committed), observe.received_ns, observe.deadline_ns)
        self._report_at = time.monotonic() + HEARTBEAT_S   # speech has its turn first
        return True

    def _speak(self) -> None:
        self._more = False
        self._engine.speak(self._deadline_ns if self._early else 0, self._interrupted)

    def _interrupted(self) -> bool:
        self._more = self._pipe.poll() or time.monotonic() >= self._report_at
        return self._more

    @property
    def _early(self) -> bool:
        """The next observation is announced and not overdue."""
        return time.monotonic_ns() < self._deadline_ns + _GRACE_NS


def explain(error: Exception) -> str:
    """One line: what went wrong, and the remedy where it is known."""
    line = ' '.join(str(error).split())
    if isinstance(error, ModuleNotFoundError) and not (error.name or '').startswith('oxygen_ros'):
        return (f'{sys.executable} has no module {error.name}: start the node with the Python environment that '
                'oxygen_ros was installed into')
    # torch.OutOfMemoryError on CUDA, a RuntimeError of its allocator on the CPU; torch may not be imported
    if isinstance(error, MemoryError) or type(error).__name__ == 'OutOfMemoryError' or 'allocate memory' in line:
        return ('out of memory: lower max_live, max_tokens or max_seed_tokens, set dtype to bfloat16, or end what else '
                f'uses the device ({line or "MemoryError"})')
    return line if isinstance(error, ValueError) and line else f'{type(error).__name__}: {line}'


def main() -> None:
    """Entry of the engine process: ``python -m oxygen_ros.worker PIPE_FD MEMORY_FD``, started by Supervisor."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)   # Ctrl-C is the node's business
    faulthandler.enable()                          # a crash in native code leaves its stack on stderr,
    faulthandler.register(signal.SIGUSR1)          # and so does a hang, when the supervisor asks for it
    # The kernel ends this process with the node's, also in the middle of a forward pass and after kill -9.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    os.sched_setscheduler(0, os.SCHED_OTHER, os.sched_param(0))  # the node may be real-time; a model must not be
    keep_memory()
    pipe_fd, memory_fd = map(int, sys.argv[1:])
    for fd in (pipe_fd, memory_fd):
        os.set_inheritable(fd, False)
    try:
        serve(Connection(pipe_fd), memory_fd)
    except (EOFError, ConnectionError):   # the node is gone: nobody is left to tell
        sys.exit(1)


def serve(pipe: Connection, memory_fd: int) -> None:
    """Everything from the first message, which says what to build, to the last."""
    options, make, slot_bytes, slots = pipe.recv()
    ready = None
    try:
        engine, ready = make(options, pipe.send)
        pipe.send(ready)
        Worker(pipe, ImageSlots(slot_bytes, slots, memory_fd), engine, pipe.send).run()
    except (EOFError, ConnectionError):
        raise
    except Exception as error:
        if ready is not None:   # a fault of ours; what keeps a model from being loaded is told in one line
            traceback.print_exc()
        pipe.send(wire.Failed(explain(error), traceback.format_exc()))
        sys.exit(1)
