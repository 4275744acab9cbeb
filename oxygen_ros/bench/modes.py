"""The ways to run one workload, and a track that runs one of them frame by frame and keeps the figures."""
from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.peer import PeerNet
from oxygen_ros.bench.probe import Call
from oxygen_ros.bench.runners import EngineRunner, PeerRunner, Runner
from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Rejected, Speech
from oxygen_ros.policy.policy import Policy

SEED = 'Subtask: '
CHANNEL = 'narration'


@dataclass(frozen=True)
class Mode:
    """One way to run the workload.

    engine: the engine's own mode, or ``peer``: the peers' network, run their way.
    padded: missing cameras and unused prompt slots are rows like all others.
    drafts: ``right`` lets every request repeat the last utterance, ``wrong`` makes every guess fail.
    silent: nothing is asked; only actions.
    """

    name: str
    engine: Literal['peer', 'isolated', 'shared', 'continuous']
    padded: bool = False
    ride: bool = False
    drafts: Literal['', 'right', 'wrong'] = ''
    silent: bool = False


MODES = {mode.name: mode for mode in (
    Mode('peer', 'peer'),
    Mode('padded', 'isolated', padded=True),
    Mode('isolated', 'isolated'),
    Mode('shared', 'shared'),
    Mode('continuous', 'continuous'),
    Mode('ride', 'continuous', ride=True),
    Mode('draft', 'continuous', ride=True, drafts='right'),
    # references, run beside the others where a ratio needs them
    Mode('act', 'continuous', ride=True, silent=True),
    Mode('draft_miss', 'continuous', ride=True, drafts='wrong'),
)}
REFERENCES = {'act': ('draft',), 'draft_miss': ('draft',)}  # reference -> the modes that need it


@dataclass
class Frame:
    """Figures of one frame, seconds on the track's own clock (the time of its own frames, end to end)."""

    seconds: float
    chunk: float
    calls: list[Call]
    tokens: int
    drafted: int
    accepted: int


@dataclass
class Story:
    """One request: when it was asked, when its first token came, when it ended."""

    asked: float
    first: float | None = None
    ended: float | None = None
    counts: bool = True  # was asked in a measured frame


@dataclass
class Track:
    """One mode at work on one workload. ``frame`` runs the next frame; the figures gather in the fields."""

    mode: Mode
    workload: Workload
    policy: Policy
    clock: Clock
    peer: Callable[[], PeerNet]
    frames: list[Frame] = field(default_factory=list)
    stories: dict[str, Story] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.runner: Runner
        mode = self.mode
        if mode.engine == 'peer':
            self.runner = PeerRunner(self.policy, self.peer(), self.workload, self.clock, self._hear)
        else:
            options = {'mode': mode.engine, 'ride': mode.ride, 'draft': bool(mode.drafts)}
            self.runner = EngineRunner(self.policy, self.workload, self.clock, self._hear, options, mode.padded,
                                       mode.drafts == 'wrong')
        self._requests = self.workload.requests()
        self._repeated = replace(self.workload, seed=self.workload.seed + 1).observation(self.policy, 0)
        self._numbers = itertools.count(1)
        self._elapsed = 0.0   # where the current frame began on the track's own clock
        self._began = 0.0
        self._chunk = 0.0

    def warm_up(self) -> None:
        """Frames that do not count: until as many requests are live as ever will be, and guesses have been made."""
        settle = self.workload.frames_per_request + 1 if self.mode.engine == 'continuous' else 1
        for _ in range(2 * settle if self.mode.drafts else settle):  # those that began before anything was learnt, too
            self.frame(counts=False)

    def frame(self, counts: bool = True) -> None:
        """One observation, the requests that come with it, and the text that belongs to the frame."""
        number = next(self._numbers)
        if self.mode.drafts:  # the same picture each time, so that the same is said
            observation = replace(self._repeated, sequence=number, stamp=number)
        else:
            observation = self.workload.observation(self.policy, number)
        asks = [] if self.mode.silent else [
            Ask(f'{number}.{i}', SEED, CHANNEL, max_tokens=tokens) for i, tokens in enumerate(next(self._requests))]
        before = self.runner.count.copy()
        self._began = self.clock.now()
        for ask in asks:
            self.stories[ask.request_id] = Story(self._elapsed, counts=counts)
        self.runner.cycle(observation, asks)
        seconds = self.clock.now() - self._began
        self._elapsed += seconds
        calls = self.runner.recorder.take()
        if counts:
            made = {name: self.runner.count[name] - before[name] for name in ('tokens', 'drafted', 'accepted')}
            self.frames.append(Frame(seconds, self._chunk, calls, **made))

    def copied(self, frames: int) -> float:
        """KV bytes copied per frame, counted over some more frames."""
        def run() -> None:
            for _ in range(frames):
                self.frame(counts=False)

        return self.runner.copied(run) / frames

    def _hear(self, event: FromEngine) -> None:
        if isinstance(event, Rejected):
            raise RuntimeError(f'{self.mode.name}: observation {event.sequence} was rejected: {event.why}')
        passed = self.clock.now() - self._began
        if isinstance(event, Chunk):
            self._chunk = passed
        elif isinstance(event, Speech):
            if event.reason == 'error':
                raise RuntimeError(f'{self.mode.name}: request {event.request_id} was refused: {event.detail}')
            story = self.stories[event.request_id]
            if event.token_ids and story.first is None:
                story.first = self._elapsed + passed
            if event.final:
                story.ended = self._elapsed + passed
