"""The robot as an examiner: it knows the truth, asks the node about it over ROS, and marks what it hears."""
from __future__ import annotations

import bisect
import time
from dataclasses import dataclass

import numpy as np
from rclpy.time import Time

from oxygen_ros.msg import ActionChunk, EngineStatus, SpeechRequest, SpeechToken
from oxygen_ros.tabletop import words
from oxygen_ros.tabletop.episode import Episode
from oxygen_ros.tabletop.node import TabletopRobot
from oxygen_ros.tabletop.scores import Said, Scores

_SETTLE = 0.5       # s after the table was laid anew in which observations may hold pictures of the old one
_REMEMBER = 4000    # joint states, some 80 s
_PATIENCE = 5.0     # s to wait for an answer: a question sent before the node listens is lost
_TRANSPORT = 20_000_000     # ns from taking pictures until the node may have them


@dataclass(frozen=True)
class _Truth:
    episode: Episode
    age: float      # s since the episode began
    tip: np.ndarray


class Examiner(TabletopRobot):
    """Counts episodes and sentences into ``scores`` until ``wanted`` episodes are over.

    An observation joins pictures of one moment with joint positions of a later one. A sentence about it is right if it
    was true at either. Asks one question after the other, so that there is always one in the air, beside the node's
    own narration.
    """

    def __init__(self, wanted: int, **options: object) -> None:
        self._stamps: list[int] = []
        self._truths: list[_Truth] = []
        self._pictured: list[int] = []
        super().__init__(**options)
        self.scores, self.wanted = Scores(), wanted
        self.status: EngineStatus | None = None
        self.chunks = 0
        self._observed: dict[int, int] = {}                         # observation -> stamp
        self._asked: dict[str, tuple[str, str]] = {}                # request -> kind, colour
        self._pending: list[SpeechToken] = []
        self._rng = np.random.default_rng(0)
        self._questions = 0
        self._asked_at = 0.0
        self.create_subscription(ActionChunk, 'action_chunk', self._on_chunk, 100)
        self.create_subscription(SpeechToken, 'speech', self._on_speech, 100)
        self.create_subscription(EngineStatus, 'status', self._on_status, 10)
        self._ask = self.create_publisher(SpeechRequest, 'ask', 10)
        self.create_timer(0.25, self._question)

    @property
    def done(self) -> bool:
        """All wanted episodes are over."""
        return self.scores.episodes >= self.wanted

    def _move(self) -> None:
        self._stamps.append(self.get_clock().now().nanoseconds)     # before the joint state's own stamp
        super()._move()
        self._truths.append(_Truth(self.episode, time.monotonic() - self._began, self.scene.tip))
        if len(self._stamps) > 2 * _REMEMBER:
            del self._stamps[:_REMEMBER], self._truths[:_REMEMBER]

    def _look(self) -> None:
        self._pictured.append(self.get_clock().now().nanoseconds)
        super()._look()
        del self._pictured[:-_REMEMBER]

    def _end(self, success: bool, seconds: float) -> None:
        super()._end(success, seconds)
        if self.chunks:             # the first may have begun before the node was there
            self.scores.episode(self.episode.intent.verb, success)

    def _question(self) -> None:
        now = time.monotonic()
        if not self.chunks or now - self._began < _SETTLE or (self._asked and now - self._asked_at < _PATIENCE):
            return
        self._asked.clear()
        self._asked_at = now
        kind = words.KINDS[1 + self._questions % (len(words.KINDS) - 1)]     # the node narrates by itself
        self._questions += 1
        seed, colour = words.ask(kind, self.episode.layout, self._rng)
        name = f'exam-{self._questions}'
        self._asked[name] = kind, colour
        self._ask.publish(SpeechRequest(request_id=name, channel='exam', seed=seed))

    def _on_chunk(self, message: ActionChunk) -> None:
        self.chunks += 1
        self._observed[message.sequence] = Time.from_msg(message.header.stamp).nanoseconds
        pending, self._pending = self._pending, []
        for speech in pending:
            self._mark(speech)

    def _on_speech(self, message: SpeechToken) -> None:
        if message.is_final:
            self._mark(message)

    def _on_status(self, message: EngineStatus) -> None:
        self.status = message

    def _mark(self, message: SpeechToken) -> None:
        if message.observation not in self._observed and message.finish_reason == 'stop':
            self._pending.append(message)       # its chunk is still to come
            return
        kind, colour = self._asked.pop(message.request_id, (message.channel, ''))
        joints = self._observed.get(message.observation, 0)
        pictures = bisect.bisect_right(self._pictured, joints - _TRANSPORT)
        truths = [self._truth(stamp) for stamp in (*self._pictured[max(0, pictures - 1):pictures], joints)]
        if kind not in words.KINDS or any(truth is None or truth.age < _SETTLE for truth in truths):
            return
        if kind == 'distance' and any(colour not in truth.episode.layout.cubes for truth in truths):
            return                              # asked in the episode before
        right = [words.answer(kind, truth.episode.layout, truth.episode.intent, truth.tip, colour) for truth in truths]
        self.scores.sentence(Said(kind, message.observation, message.text,
                                  message.text if message.text in right else right[-1], right[-1]))

    def _truth(self, stamp: int) -> _Truth | None:
        """The world at ``stamp``: it changes only when the arm moves."""
        at = bisect.bisect_right(self._stamps, stamp)
        return self._truths[at - 1] if 0 < at < len(self._truths) else None
