"""Driving episodes with the engine in this process: observation, chunk, motion, and what is said, against the truth.

One cycle is one policy period of simulated time, so that everything is reproducible; `recording` keeps what the
engine was given, and `replay` gives the same to an engine in another mode.
"""
from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Rejected, Report, Speech
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.policy import Policy
from oxygen_ros.tabletop import words
from oxygen_ros.tabletop.controller import Controller
from oxygen_ros.tabletop.episode import TIME_LIMIT, Episode
from oxygen_ros.tabletop.expert import HORIZON, PERIOD
from oxygen_ros.tabletop.scene import CAMERAS, Scene
from oxygen_ros.tabletop.scores import Said
from oxygen_ros.tabletop.task import Judge

MODES = {
    'isolated': {'mode': 'isolated'}, 'shared': {'mode': 'shared'},
    'continuous': {'mode': 'continuous', 'ride': False, 'draft': False},
    'continuous+ride': {'mode': 'continuous', 'ride': True, 'draft': False},
    'continuous+ride+draft': {'mode': 'continuous', 'ride': True, 'draft': True},
}
_ASK_EVERY = 4              # cycles between the questions of an episode
_STEPS = 2                  # decode steps per cycle in a replay, so that text goes on across cycles
_PER_EPISODE = 1000         # observation numbers kept for each episode

Cycle = tuple[Observation, list[Ask]]


class Refused(RuntimeError):
    """The engine cannot use what this robot sees; the text says why."""


@dataclass
class Outcome:
    """What came of one episode."""

    success: bool
    seconds: float
    said: list[Said] = field(default_factory=list)
    recording: list[Cycle] = field(default_factory=list)


class Driver:
    """Drives episodes with one policy in this process."""

    def __init__(self, policy: Policy) -> None:
        self._events: list[FromEngine] = []
        options = EngineOptions(noise_seed=0, max_live=16, **MODES['continuous'])
        self._engine = Engine(policy, options, self._events.append)
        self._scene = Scene(policy.config.image)

    def drive(self, episode: Episode, index: int, blank: bool = False, limit: float = TIME_LIMIT) -> Outcome:
        """Run one episode of ``limit`` s; every fourth cycle everything is asked that can be. ``index`` seeds questions
        and noise. blank: grey pictures, the ablation.
        """
        rng = np.random.default_rng(index)
        scene, controller = self._scene, Controller(episode.start)
        scene.reset(episode.layout, episode.start)
        judge = Judge(episode.layout, episode.intent, scene.tip)
        outcome = Outcome(False, 0.0)
        for cycle in range(round(limit / PERIOD)):
            outcome.seconds = cycle * PERIOD
            scene.q = controller.advance(outcome.seconds)
            if judge.watch(outcome.seconds, scene.tip) or judge.failed:
                break
            images = {camera: scene.render(camera) for camera in CAMERAS}
            if blank:
                images = {camera: np.full_like(image, 128) for camera, image in images.items()}
            observation = Observation(images, scene.q.astype(np.float32), episode.instruction,
                                      sequence=_PER_EPISODE * index + cycle + 1)
            truths = dict(self._questions(episode, scene.tip, rng)) if cycle % _ASK_EVERY == 0 else {}
            outcome.recording.append((observation, list(truths)))
            self._engine.act(observation)
            for ask in truths:
                self._engine.ask(ask)
            self._engine.speak()
            true = {ask.request_id: truth for ask, truth in truths.items()}
            for event in _take(self._events):
                match event:
                    case Chunk():
                        controller.follow(outcome.seconds, PERIOD * np.arange(1, HORIZON + 1), event.actions)
                    case Speech(final=True):
                        outcome.said.append(Said(event.channel, event.observation, event.text, true[event.request_id]))
        self._engine.reset()
        self._events.clear()
        outcome.success = judge.succeeded
        return outcome

    def close(self) -> None:
        """Free the engine and the renderer."""
        self._engine.reset()
        self._scene.close()

    @staticmethod
    def _questions(episode: Episode, tip: np.ndarray, rng: np.random.Generator) -> Iterator[tuple[Ask, str]]:
        for kind in words.KINDS:
            seed, colour = words.ask(kind, episode.layout, rng)
            yield Ask(kind, seed, channel=kind), words.answer(kind, episode.layout, episode.intent, tip, colour)


@dataclass
class Replayed:
    """What an engine made of recordings. chunks: by observation; texts: by observation and kind."""

    chunks: dict[int, np.ndarray]
    texts: dict[tuple[int, str], str]
    report: Report


def replay(policy: Policy, mode: str, recordings: Iterable[list[Cycle]]) -> Replayed:
    """Give recorded cycles to an engine in ``mode`` (a key of MODES); text goes on across cycles where the mode can."""
    events: list[FromEngine] = []
    engine = Engine(policy, EngineOptions(noise_seed=0, max_live=16, **MODES[mode]), events.append)
    chunks, texts = {}, {}
    for recording in recordings:
        for observation, asks in recording:
            engine.act(observation)
            for ask in asks:
                engine.ask(Ask(**{**vars(ask), 'request_id': f'{ask.request_id} {observation.sequence}'}))
            if MODES[mode]['mode'] == 'continuous':
                for _ in range(_STEPS):
                    engine.step()
            else:
                engine.speak()
        engine.speak()
        for event in _take(events):
            match event:
                case Chunk():
                    chunks[event.sequence] = event.actions
                case Speech(final=True):
                    texts[event.observation, event.channel] = event.text
    report = engine.report()
    engine.reset()
    return Replayed(chunks, texts, report)


def _take(events: list[FromEngine]) -> list[FromEngine]:
    taken, events[:] = list(events), []
    for event in taken:
        if isinstance(event, Rejected):
            raise Refused(f'the checkpoint is none of this robot: {event.why}')
    return taken
