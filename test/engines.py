"""A real engine on tiny random weights, with everything it emits at hand."""
from functools import cache

import numpy as np

from oxygen_ros.engine import engine as engine_module
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, Report, Speech
from oxygen_ros.policy.checkpoint import load
from oxygen_ros.policy.observation import Observation

INSTRUCTIONS = ('pick up the cube', 'stay', 'touch the red one, then the blue one and come back')


@cache
def _load(mask: str):
    return load('random:tiny', mask=mask)


@cache
def _int8():
    return load('random:tiny')


def policy(mask: str = 'prefix_lm'):
    return _load(mask)  # one object per mask, however it is asked for


def observation(number: int, cameras: int = 2) -> Observation:
    """Observation `number`: pixels, state and instruction all follow from it."""
    rng = np.random.default_rng(number)
    names = policy().cameras[:cameras]
    images = {name: rng.integers(0, 256, (40 + number % 3, 56, 3), dtype=np.uint8) for name in names}
    state = rng.uniform(-1, 1, policy().state_dim).astype(np.float32)
    return Observation(images, state, INSTRUCTIONS[number % len(INSTRUCTIONS)], sequence=number, stamp=10 * number)


class Rig:
    """An engine and its events."""

    def __init__(self, mask: str = 'prefix_lm', **options):
        options = {'checkpoint': 'random:tiny', 'noise_seed': 7, 'ride': False, 'draft': False, 'max_tokens': 24,
                   **options}
        self.events = []
        which = _int8() if options.get('decode_weights') == 'int8' else policy(mask)  # it changes the network
        self.engine = Engine(which, EngineOptions(**options), self.events.append)

    def chunk(self, number: int) -> np.ndarray:
        return next(e.actions for e in self.events if isinstance(e, Chunk) and e.sequence == number)

    def speech(self, request_id: str) -> list[Speech]:
        return [e for e in self.events if isinstance(e, Speech) and e.request_id == request_id]

    def ids(self, request_id: str) -> list[int]:
        return [token for message in self.speech(request_id) for token in message.token_ids]

    def final(self, request_id: str) -> Speech:
        last, = [m for m in self.speech(request_id) if m.final]
        return last

    @property
    def report(self) -> Report:
        return self.engine.report()


@cache
def chunk_alone(number: int, mask: str = 'prefix_lm') -> np.ndarray:
    """The chunk of an observation that nothing else accompanies."""
    rig = Rig(mask)
    rig.engine.act(observation(number))
    return rig.chunk(number)


@cache
def text_alone(number: int, seed: str, max_tokens: int, mask: str = 'prefix_lm', **options) -> tuple[list[int], int]:
    """Greedy ids of a request that is alone on its observation, and how many of them are beyond doubt
    (up to the first step whose two best logits are within 1e-3)."""
    rig, margins = Rig(mask, **options), []
    plain = engine_module.sample

    def recording(logits, samplers):
        best = logits.topk(2).values
        margins.append(float(best[0, 0] - best[0, 1]))
        return plain(logits, samplers)

    rig.engine.act(observation(number))
    rig.engine.ask(Ask('alone', seed, max_tokens=max_tokens))
    engine_module.sample = recording
    try:
        rig.engine.speak()
    finally:
        engine_module.sample = plain
    ids = rig.ids('alone')
    sure = next((i for i, margin in enumerate(margins) if margin <= 1e-3), len(ids))
    return ids, sure
