"""What an engine is asked to do, frame by frame: observations and language requests, all from one seed."""
from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.policy import Policy, Prepared

Arrivals = Literal['steady', 'poisson', 'bursty']
SHORTEST = 5            # tokens of the shortest request of a mixed workload
_BURST_EVERY = 6        # frames between bursts, on average


@dataclass(frozen=True)
class Workload:
    """One stream of frames.

    tokens: what each request generates, exactly. mixed: lengths are drawn evenly from SHORTEST..tokens instead.
    per_frame: tokens that each live request gets per frame where text goes on across frames.
    arrivals, rate: how requests come, and how many per frame on average. ``steady`` is as even as whole numbers
        allow, ``poisson`` is a Poisson number in each frame, ``bursty`` is the same mean in a frame out of six.
    prompt: prompt tokens. cameras: those that are there.
    """

    tokens: int = 30
    per_frame: int = 5
    arrivals: Arrivals = 'steady'
    rate: float = 1.0
    mixed: bool = False
    prompt: int = 60
    cameras: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.tokens >= 1 and self.per_frame >= 1 and self.prompt >= 1 and self.cameras >= 1):
            raise ValueError('tokens, per_frame, prompt and cameras must be at least 1')
        if not (math.isfinite(self.rate) and self.rate >= 0):
            raise ValueError(f'rate {self.rate} is not a finite number >= 0')
        if self.mixed and self.tokens < SHORTEST:
            raise ValueError(f'lengths of a mixed workload lie between {SHORTEST} and tokens: {self.tokens} is less')

    @property
    def frames_per_request(self) -> int:
        """Frames that the longest request spans where text goes on across frames."""
        return math.ceil(self.tokens / self.per_frame)

    @property
    def most_live(self) -> int:
        """Requests that may be live at once, with room for a burst."""
        return min(256, math.ceil(2 * self.rate * (self.frames_per_request + 2)) + 4)

    def requests(self) -> Iterator[list[int]]:
        """For each frame, without end: how many tokens each of its new requests generates."""
        rng = np.random.default_rng(self.seed)
        due = 0.0
        while True:
            if self.arrivals == 'steady':
                due += self.rate
                count = int(due + 1e-9)
                due -= count
            elif self.arrivals == 'poisson':
                count = int(rng.poisson(self.rate))
            else:
                count = int(rng.poisson(self.rate * _BURST_EVERY)) if rng.random() < 1 / _BURST_EVERY else 0
            yield [int(rng.integers(SHORTEST, self.tokens + 1)) if self.mixed else self.tokens for _ in range(count)]

    def observation(self, policy: Policy, number: int) -> Observation:
        """Observation `number`, with pixels and state of its own and images already of the model's size.

        Without image stamps: each picture is new and is encoded.
        """
        if self.cameras > len(policy.cameras):
            raise ValueError(f'{self.cameras} cameras: the model has {len(policy.cameras)}')
        rng = np.random.default_rng([self.seed, number])
        side = policy.config.image
        images = {camera: rng.integers(0, 256, (side, side, 3), dtype=np.uint8)
                  for camera in policy.cameras[:self.cameras]}
        state = rng.uniform(-1, 1, policy.state_dim).astype(np.float32)
        return Observation(images, state, 'put the red cube beside the blue one', sequence=number, stamp=number)


class SizedPolicy:
    """A policy whose prompts have exactly `prompt` tokens, so that work does not hang on wording.

    padded: as the peers run it: every camera that is missing is a black picture with rows of its own, and the prompt
        is filled up to the model's longest. The peers mask those rows out; here they are rows like all others, which
        is the same work (their kernels compute masked rows too).
    """

    def __init__(self, policy: Policy, prompt: int, padded: bool = False) -> None:
        if prompt > policy.config.max_prompt:
            raise ValueError(f'a prompt of {prompt} tokens: the model takes {policy.config.max_prompt}')
        self._policy, self._prompt, self._padded = policy, prompt, padded

    def __getattr__(self, name: str) -> object:
        return getattr(self._policy, name)

    def prepare(self, observation: Observation) -> Prepared:
        """As the policy does, then brought to size."""
        if self._padded:
            side = self._policy.config.image
            black = dict.fromkeys(self._policy.cameras, np.zeros((side, side, 3), np.uint8))
            observation = replace(observation, images={**black, **observation.images})
        prepared = self._policy.prepare(observation)
        ids = [prepared.ids[i % len(prepared.ids)] for i in range(self._prompt)]
        if self._padded:
            ids += [0] * (self._policy.config.max_prompt - self._prompt)
        return replace(prepared, ids=ids)
