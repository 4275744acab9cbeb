"""From the node's own words to ROS messages."""
from __future__ import annotations

from array import array
from collections.abc import Sequence

import numpy as np
from builtin_interfaces.msg import Duration, Time
from std_msgs.msg import Header, String
from trajectory_msgs.msg import JointTrajectory, JointTrajectoryPoint

from oxygen_ros.contract import Contract
from oxygen_ros.engine.wire import Ask, Chunk, Speech
from oxygen_ros.msg import ActionChunk, SpeechRequest, SpeechToken
from oxygen_ros.node.freshness import SECOND

# Characters that anybody may send: what is tokenised, kept or logged is bounded before it is looked at. A request may
# have as many stop strings as one may have characters.
_LONGEST = {'request_id': 200, 'channel': 64, 'seed': 10_000, 'stop': 100}


def time(nanoseconds: int) -> Time:
    return Time(sec=nanoseconds // SECOND, nanosec=nanoseconds % SECOND)


def duration(nanoseconds: int) -> Duration:
    return Duration(sec=nanoseconds // SECOND, nanosec=nanoseconds % SECOND)


def trajectory(names: Sequence[str], stamp: int, offset: int, ahead: np.ndarray, positions: np.ndarray
               ) -> JointTrajectory:
    """ahead: ns from now [n]; offset: ns from the stamp until now; positions [n, joints]."""
    return JointTrajectory(
        header=Header(stamp=time(stamp)), joint_names=list(names),
        points=[JointTrajectoryPoint(positions=array('d', row), time_from_start=duration(int(t) + offset))
                for t, row in zip(ahead, positions, strict=True)])


def action_chunk(chunk: Chunk, contract: Contract) -> ActionChunk:
    horizon, action_dim = chunk.actions.shape
    return ActionChunk(
        header=Header(stamp=time(chunk.stamp)), sequence=chunk.sequence, semantics=contract.semantics,
        names=[action.label for action in contract.actions], period=duration(round(contract.policy_period * SECOND)),
        horizon=horizon, action_dim=action_dim, data=array('f', chunk.actions.astype(np.float32).tobytes()),
        latency=(chunk.ready_ns - chunk.received_ns) / SECOND)


def speech_token(speech: Speech, stamp: int) -> SpeechToken:
    return SpeechToken(
        header=Header(stamp=time(stamp)), request_id=speech.request_id, channel=speech.channel,
        sequence=speech.sequence, observation=speech.observation, token_ids=array('i', speech.token_ids),
        delta=sendable(speech.delta), text=sendable(speech.text), is_final=speech.final, finish_reason=speech.reason,
        detail=speech.detail)


def sendable(text: str) -> str:
    """A ROS string ends at its first NUL, which a model may well make: U+FFFD takes its place."""
    return text.replace('\0', '\ufffd')


def task(message: String) -> str:
    """The instruction; ValueError when it is none."""
    if not (text := message.data.strip()):
        raise ValueError('it is empty')
    if len(text) > _LONGEST['seed']:
        raise ValueError(f'it has {len(text)} characters, at most {_LONGEST["seed"]} are read')
    return text


def ask(request: SpeechRequest) -> Ask:
    """ValueError, naming the field, when the request makes no sense."""
    if not request.seed:
        raise ValueError('seed is empty: give the text that the model is to continue')
    for name, most in _LONGEST.items():
        value = getattr(request, name)
        longest = max(len(value), *map(len, value), 0) if name == 'stop' else len(value)
        if longest > most:
            raise ValueError(f'{name} is too long: {longest}, at most {most}')
    for name, value in (('temperature', request.temperature), ('deadline', request.deadline)):
        if not (np.isfinite(value) and value >= 0.0):
            raise ValueError(f'{name} is {value:g}: give 0 or more')
    return Ask(request.request_id, request.seed, request.channel or 'question', request.max_tokens,
               request.temperature, request.random_seed, tuple(filter(None, request.stop)), request.priority or None,
               request.deadline)

