"""Keeps one engine process running for the node: starts it, notices when it dies or hangs, starts it again."""
from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from oxygen_ros.engine import wire
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.policy.observation import Observation
from oxygen_ros.worker.images import ImageSlots
from oxygen_ros.worker.process import EngineProcess
from oxygen_ros.worker.worker import Build, build

_SLOTS = 3   # one that the engine works on, one that waits, one of the last chunk (mode "isolated" reads it again)
_TRIES = 3   # loads that fail with the same words before giving up
_LONGEST_PAUSE_S = 30.0
_SLOWER = 10   # times: an engine is silent within a step, and may get that much slower than when it warmed up
_log = logging.getLogger(__name__)


class Supervisor:
    """Starts the engine process and keeps it running. Needs no ROS; every method but ``stop`` returns at once.

    on_event: called with every event of the engine, in order, always on the supervisor's own thread; it must be quick
        and may call every method but ``stop``. When the engine dies, hangs or cannot start, it gets one Failed, then
        the last Speech (reason "error") of every request that was not finished.
    slot_bytes: room for the images of one observation.
    hang_s: longest silence of a running engine, s; more where one observation takes more than a tenth of it here.
    load_timeout_s: longest time to load and warm up, s.
    pause_s: pause before the first restart, s; it doubles with every failure that follows soon.
    make: builds the engine in its process; found there by its name.
    """

    def __init__(self, options: EngineOptions, on_event: Callable[[wire.FromEngine], None], slot_bytes: int, *,
                 hang_s: float = 5.0, load_timeout_s: float = 900.0, pause_s: float = 0.2, make: Build = build):
        self._options, self._on_event, self._make = options, on_event, make
        self._hang_s, self._load_timeout_s, self._pause_s = hang_s, load_timeout_s, pause_s
        self._slots = ImageSlots(slot_bytes, _SLOTS)
        self._thread = threading.Thread(target=self._watch, name='engine supervisor', daemon=True)
        self._stopping = threading.Event()
        self._lock = threading.Lock()   # guards everything below
        self._process: EngineProcess | None = None
        self._ready = False
        self._restarts = 0
        self._configure = wire.Configure()
        self._given: wire.Observe | None = None     # the engine works on it
        self._waiting: wire.Observe | None = None   # follows when that is answered; a newer one takes its place
        self._kept_slot: int | None = None     # of the last observation that became a chunk
        self._requests: dict[str, list[wire.Speech]] = {}   # id -> last message of each unfinished one, oldest first

    # --- the node's calls --------------------------------------------------------------------------------------
    def start(self) -> None:
        """Start the engine process; Ready follows as an event."""
        self._thread.start()

    def observe(self, observation: Observation, received_ns: int, deadline_ns: int = 0) -> bool:
        """Hand over a new observation. The newest wins: one that the engine has not begun yet is replaced.

        Returns False if the engine is not ready. Raises ValueError naming the camera if an image is none or too big.
        """
        with self._lock:
            if not self._ready:
                return False
            taken = {self._kept_slot, self._given and self._given.slot}
            slot = next(slot for slot in range(_SLOTS) if slot not in taken)
            message = wire.Observe(
                observation.sequence, observation.stamp, slot, self._slots.pack(slot, observation.images),
                dict(observation.image_stamps), np.array(observation.state, np.float32), observation.instruction,
                received_ns, deadline_ns, observation.committed)
            if self._given:
                self._waiting = message
            else:
                self._give(message)
            return True

    def send(self, message: wire.Ask | wire.Cancel | wire.Reset | wire.Configure) -> bool:
        """Hand over any other message; False if the engine is not ready, and then an Ask is forgotten.

        A Configure is remembered and repeated to every engine that starts later. Only an Ask with an id is ended when
        the engine fails before its first word.
        """
        with self._lock:
            match message:
                case wire.Configure():
                    changes = {name: value for name, value in vars(message).items() if value is not None}
                    self._configure = replace(self._configure, **changes)
                case wire.Ask() if self._ready and message.request_id:
                    self._requests.setdefault(message.request_id, []).append(
                        wire.Speech(message.request_id, message.channel, -1, 0, 0, (), '', ''))
                case wire.Reset():
                    self._waiting = None
            if self._ready and self._process is not None:
                self._process.send(message)
            return self._ready

    def stop(self, timeout: float = 1.5) -> None:
        """End every request and, within ``timeout`` s, the process, whatever it is doing. It cannot start again."""
        self._stopping.set()
        with self._lock:
            self._ready, process = False, self._process
        if process:
            process.end(timeout)
        if self._thread.is_alive():
            self._thread.join()
        self._slots.close()

    @property
    def pid(self) -> int | None:
        """Of the engine process, while there is one."""
        process = self._process
        return process.pid if process else None

    @property
    def alive(self) -> bool:
        """The engine process runs: it loads or is ready."""
        return self.pid is not None

    @property
    def ready(self) -> bool:
        """The engine is loaded and warm."""
        return self._ready

    @property
    def busy(self) -> bool:
        """The engine has an observation that it has not answered yet."""
        return self._given is not None

    @property
    def restarts(self) -> int:
        """How often the engine process was started again."""
        return self._restarts

    # --- the supervisor's thread -------------------------------------------------------------------------------
    def _watch(self) -> None:
        failures = same = 0
        last = ''
        while True:
            began = time.monotonic()
            failed, was_ready = self._live_once()
            if self._stopping.is_set():
                self._end_requests('cancelled', 'the engine was stopped')
                return
            same = 0 if was_ready else same + 1 if failed.why == last else 1
            last = failed.why
            if same == _TRIES:
                failed = replace(failed, why=f'{last} (failed {_TRIES} times in the same way, not trying again: '
                                             'correct it, then deactivate, clean up, configure and activate the node)')
            self._tell(failed)
            self._end_requests('error', failed.why)
            failures = 1 if was_ready and time.monotonic() - began > _LONGEST_PAUSE_S else failures + 1
            pause = min(self._pause_s * 2 ** (failures - 1), _LONGEST_PAUSE_S)
            if same == _TRIES or self._stopping.wait(pause):
                return
            self._restarts += 1

    def _live_once(self) -> tuple[wire.Failed, bool]:
        """One engine process from start to end: why it ended, and whether it had been ready."""
        try:
            process = EngineProcess(self._options, self._make, self._slots)
        except OSError as error:
            return wire.Failed(f'the engine process cannot be started: {error}'), False
        with self._lock:
            self._process = process
        try:
            # stop() has set the flag before it looked for a process
            return (wire.Failed('stopped'), False) if self._stopping.is_set() else self._read(process)
        finally:
            with self._lock:
                self._ready = False
                self._given = self._waiting = self._kept_slot = None
            process.end(0.0)
            process.close()

    def _read(self, process: EngineProcess) -> tuple[wire.Failed, bool]:
        """Pass its events on until it ends or hangs."""
        was_ready, patience = False, self._load_timeout_s
        while True:
            try:
                event = process.receive(patience)
            except EOFError:
                return wire.Failed(process.death()), was_ready
            if event is None:
                process.show_stack()
                return wire.Failed(f'the engine process gave no sign of life for {patience:g} s' + (
                    ': it hung, see stderr; raise hang_timeout_s if it was only slow' if was_ready else
                    ' while it loaded: raise load_timeout_s if the checkpoint needs longer')), was_ready
            if isinstance(event, wire.Failed):
                return event, was_ready
            if isinstance(event, wire.Ready):
                was_ready, patience = True, max(self._hang_s, _SLOWER * event.act_s)
            with self._lock:
                self._note(event, process)
            self._tell(event)

    def _note(self, event: wire.FromEngine, process: EngineProcess) -> None:
        """What an event changes here."""
        match event:
            case wire.Ready():
                self._ready = not self._stopping.is_set()
                if self._configure != wire.Configure():
                    process.send(self._configure)
            case wire.Chunk() | wire.Rejected() if self._given and self._given.sequence == event.sequence:
                if isinstance(event, wire.Chunk):
                    self._kept_slot = self._given.slot
                self._given = None
                if self._waiting:
                    self._give(self._waiting)
            case wire.Speech():
                unfinished = self._requests.setdefault(event.request_id, [])
                unfinished[:1] = [] if event.final else [event]
                if not unfinished:
                    del self._requests[event.request_id]

    def _give(self, message: wire.Observe) -> None:
        self._given, self._waiting = message, None
        if self._process is not None:
            self._process.send(message)

    def _end_requests(self, reason: wire.FinishReason, detail: str) -> None:
        with self._lock:
            requests, self._requests = self._requests, {}
        for unfinished in requests.values():
            for speech in unfinished:
                self._tell(speech.ended(reason, detail))

    def _tell(self, event: wire.FromEngine) -> None:
        try:
            self._on_event(event)
        except Exception:   # an error in the node's handler must not end the watch
            _log.exception('cannot handle %s', type(event).__name__)
