"""The ways to run one workload, and a track that runs one of them frame by frame and keeps the figures."""
from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace
from typing import Literal

from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.copies import KvCopies
from oxygen_ros.bench.probe import Call, Probe
from oxygen_ros.bench.workload import SizedPolicy, Workload
from oxygen_ros.engine.drafts import Drafts
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Rejected, Speech
from oxygen_ros.model.policy import Policy

SEED = 'Subtask: '
CHANNEL = 'narration'


@dataclass(frozen=True)
class Mode:
    """One way to run the engine.

    padded: missing cameras and unused prompt slots are computed, one request at a time: the peers' way.
    drafts: ``right`` lets every request repeat the last utterance, ``wrong`` makes every guess fail.
    silent: nothing is asked; only actions.
    """

    name: str
    engine: Literal['isolated', 'shared', 'continuous']
    padded: bool = False
    ride: bool = False
    drafts: Literal['', 'right', 'wrong'] = ''
    silent: bool = False
    help: str = ''


MODES = {mode.name: mode for mode in (
    Mode('peer', 'isolated', padded=True, help='as isolated, absent camera and padding computed too'),
    Mode('isolated', 'isolated', help='two prefills, only what is there, all text in its frame'),
    Mode('shared', 'shared', help='one prefill, all text in its frame'),
    Mode('continuous', 'continuous', help='one prefill, text goes on across frames as one batch'),
    Mode('ride', 'continuous', ride=True, help='as continuous; one token of each request comes with the prefill'),
    Mode('draft', 'continuous', ride=True, drafts='right', help='as ride; the last utterance repeats and is confirmed'),
    # references, run beside the others where a ratio needs them
    Mode('act', 'continuous', ride=True, silent=True, help='actions only'),
    Mode('draft_miss', 'continuous', ride=True, drafts='wrong', help='as ride; every draft is wrong'),
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


class _Wrong(Drafts):
    """Remembers every utterance with each of its ids changed, so that the same text never matches."""

    def learn(self, key: tuple[str, str], ids: list[int]) -> None:
        super().learn(key, [token ^ 1 for token in ids])


@dataclass
class Track:
    """One mode at work on one workload. ``frame`` runs the next frame; the figures gather in the fields."""

    mode: Mode
    workload: Workload
    policy: Policy
    clock: Clock
    frames: list[Frame] = field(default_factory=list)
    stories: dict[str, Story] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.probe = Probe(self.policy.net, self.clock)
        self._policy = SizedPolicy(self.policy, self.workload.prompt, self.mode.padded)
        self._policy.net = self.probe
        options = EngineOptions(
            mode=self.mode.engine, ride=self.mode.ride, draft=bool(self.mode.drafts), noise_seed=1, max_queued=4096,
            max_live=1 if self.mode.padded else self.workload.most_live, max_tokens=self.workload.tokens)
        self.engine = Engine(self._policy, options, self._hear)
        if self.mode.drafts == 'wrong':
            self.engine.drafts = _Wrong()
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
        before = self.engine.count.copy()
        self._began = self.clock.now()
        for ask in asks:
            self.stories[ask.request_id] = Story(self._elapsed, counts=counts)
            self.engine.ask(ask)
        self.engine.act(observation)
        if self.mode.engine == 'continuous':
            for _ in range(self.workload.per_frame - self.mode.ride):
                if not self.engine.step():
                    break
        else:
            self.engine.speak()
        seconds = self.clock.now() - self._began
        self._elapsed += seconds
        calls = self.probe.take()
        if counts:
            made = {name: self.engine.count[name] - before[name] for name in ('tokens', 'drafted', 'accepted')}
            self.frames.append(Frame(seconds, self._chunk, calls, **made))

    def copied(self, frames: int) -> float:
        """KV bytes copied per frame, counted by watching every operation of some more frames."""
        with KvCopies(self.engine.pool) as copies:
            for _ in range(frames):
                self.frame(counts=False)
        return copies.bytes / frames

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
