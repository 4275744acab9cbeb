"""Everything that crosses between the node process and the engine process, apart from image pixels.

All times named ``*_ns`` without further words are CLOCK_MONOTONIC (``time.monotonic_ns``), which the two processes
of one machine share; ``stamp`` is the caller's own clock (ROS time) and is only copied.
"""
from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np

FinishReason = Literal['', 'stop', 'length', 'cancelled', 'expired', 'error']


# --- node -> engine ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Observe:
    """A new observation: pixels lie in shared-memory slot ``slot``; starts a cycle (prefill, act, speak).

    images: camera name -> (byte offset in the slot, height, width); RGB uint8.
    deadline_ns: when the next observation is due; speech stops in time for it. 0 = no deadline.
    committed: as in Observation.
    """

    sequence: int
    stamp: int
    slot: int
    images: dict[str, tuple[int, int, int]]
    image_stamps: dict[str, int]
    state: np.ndarray
    instruction: str
    received_ns: int
    deadline_ns: int = 0
    committed: np.ndarray | None = None


@dataclass(frozen=True)
class Ask:
    """Start a language request on the newest observation. Fields as in msg/SpeechRequest.msg.

    max_tokens 0, priority None, deadline_s 0 mean: the engine's defaults for the channel.
    """

    request_id: str
    seed: str
    channel: str = 'question'
    max_tokens: int = 0
    temperature: float = 0.0
    random_seed: int = 0
    stop: tuple[str, ...] = ()
    priority: int | None = None
    deadline_s: float = 0.0


@dataclass(frozen=True)
class Cancel:
    """End the request, or all of them with ''. Unknown ids are ignored."""

    request_id: str = ''


@dataclass(frozen=True)
class Reset:
    """Cancel every request and forget the newest observation."""


@dataclass(frozen=True)
class Standing:
    """A request that the engine starts by itself every ``every_cycles`` observations (0 = never)."""

    channel: str
    seed: str
    every_cycles: int
    max_tokens: int


@dataclass(frozen=True)
class Configure:
    """Change what may change at run time. None = leave as it is."""

    standing: tuple[Standing, ...] | None = None
    max_tokens: int | None = None


@dataclass(frozen=True)
class Stop:
    """Leave: free everything and end the engine process with exit code 0."""


# --- engine -> node ---------------------------------------------------------------------------------------------
@dataclass(frozen=True)
class Ready:
    """Loaded and warm.

    model: one readable line for logs and diagnostics. relative: the checkpoint adds the state to some actions itself.
    act_s: how long one warm observation takes here, s.
    """

    model: str
    cameras: tuple[str, ...]
    state_dim: int
    action_dim: int
    horizon: int
    relative: bool
    dtype: str
    device: str
    load_s: float
    act_s: float


@dataclass(frozen=True)
class Chunk:
    """Actions float32 [horizon, action_dim] in policy units, unnormalised, for one observation."""

    sequence: int
    stamp: int
    received_ns: int
    ready_ns: int
    actions: np.ndarray


@dataclass(frozen=True)
class Speech:
    """Progress of one request; fields as in msg/SpeechToken.msg."""

    request_id: str
    channel: str
    sequence: int
    observation: int
    stamp: int
    token_ids: tuple[int, ...]
    delta: str
    text: str
    final: bool = False
    reason: FinishReason = ''
    detail: str = ''

    def ended(self, reason: FinishReason, detail: str) -> Speech:
        """The last message, to follow this one."""
        return replace(self, sequence=self.sequence + 1, token_ids=(), delta='', final=True, reason=reason,
                       detail=detail)


def refusal(ask: Ask, detail: str) -> Speech:
    """The only message of a request that cannot begin."""
    return Speech(ask.request_id, ask.channel, 0, 0, 0, (), '', '', True, 'error', detail)


@dataclass(frozen=True)
class Report:
    """State of the engine after a cycle, and at least every 0.25 s when idle (the heartbeat).

    Counters are totals since the engine started; ``*_s`` are of the last cycle. See msg/EngineStatus.msg.
    """

    observation: int = 0
    mode: str = ''
    cycles: int = 0
    prefills: int = 0
    images: int = 0
    rows: int = 0
    decode_steps: int = 0
    tokens: int = 0
    drafted: int = 0
    accepted: int = 0
    live: int = 0
    queued: int = 0
    kv_bytes: int = 0
    kv_bytes_peak: int = 0
    kv_bytes_capacity: int = 0
    vision_s: float = 0.0
    prefill_s: float = 0.0
    act_s: float = 0.0
    speak_s: float = 0.0
    cycle_s: float = 0.0
    budget_s: float = 0.0
    misses: int = 0
    memory_bytes: int = 0
    heartbeat: bool = False
    notes: tuple[str, ...] = field(default=())


@dataclass(frozen=True)
class Rejected:
    """An observation that could not be used (non-finite state, image of impossible size, non-finite chunk)."""

    sequence: int
    why: str


@dataclass(frozen=True)
class Failed:
    """The engine cannot go on; the process ends after this. ``why`` is one line naming the cause and the remedy."""

    why: str
    traceback: str = ''


ToEngine = Observe | Ask | Cancel | Reset | Configure | Stop
FromEngine = Ready | Chunk | Speech | Report | Rejected | Failed
