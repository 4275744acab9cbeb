"""What a track drives: our engine, or the peers' way of doing the same."""
from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from oxygen_ros.bench import counting
from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.copies import KvCopies
from oxygen_ros.bench.peer import Cache, PeerNet
from oxygen_ros.bench.probe import Probe, Recorder
from oxygen_ros.bench.workload import SizedPolicy, Workload
from oxygen_ros.engine.drafts import Drafts
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Speech
from oxygen_ros.model.graphs import Graphs
from oxygen_ros.model.segments import Segment
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.policy import Policy, Prepared

Emit = Callable[[FromEngine], None]


class Runner(Protocol):
    """One frame at a time. count: totals of tokens, drafted, accepted. recorder: what the network did."""

    policy: Policy
    count: Counter[str]
    recorder: Recorder

    def cycle(self, observation: Observation, asks: Sequence[Ask]) -> None:
        """Emit a chunk for the observation, and the text that belongs to this frame."""

    def finish(self) -> None:
        """Say what is still to be said."""

    def copied(self, frames: Callable[[], None]) -> int:
        """KV bytes that are copied while `frames` runs."""


class _Wrong(Drafts):
    """Remembers every utterance with each of its ids changed, so that the same text never matches."""

    def learn(self, key: tuple[str, str], ids: list[int]) -> None:
        super().learn(key, [token ^ 1 for token in ids])


class EngineRunner:
    """Our engine. steps: decode steps per frame; None: until everything is said."""

    def __init__(self, policy: Policy, workload: Workload, clock: Clock, emit: Emit, options: dict[str, object],
                 padded: bool = False, wrong_drafts: bool = False) -> None:
        self.policy, self.recorder = policy, Recorder(clock)
        sized = SizedPolicy(policy, workload.prompt, padded)
        net = self._net = copy.copy(policy.net)  # the same weights; graphs belong to one engine's pool
        sized.net = Probe(net, self.recorder)
        self.engine = Engine(sized, EngineOptions(
            noise_seed=1, max_queued=4096, max_live=workload.most_live, max_tokens=workload.tokens, **options), emit)
        if wrong_drafts:
            self.engine.drafts = _Wrong()
        self.count = self.engine.count
        continuous = options['mode'] == 'continuous'
        self._steps = workload.per_frame - bool(options['ride']) if continuous else None

    def cycle(self, observation: Observation, asks: Sequence[Ask]) -> None:
        """As Runner.cycle."""
        for ask in asks:
            self.engine.ask(ask)
        self.engine.act(observation)
        if self._steps is None:
            self.engine.speak()
        else:
            for _ in range(self._steps):
                if not self.engine.step():
                    break

    def finish(self) -> None:
        """As Runner.finish."""
        self.engine.speak()

    def copied(self, frames: Callable[[], None]) -> int:
        """As Runner.copied: every operation is watched; fixed-shape passes run without being captured."""
        if self._net.graphs is not None:
            self._net.graphs = Graphs(self._net.vision, self._net.language, self._net.expert, self.engine.pool, False)
        with KvCopies(self.engine.pool) as copies:
            frames()
        return copies.bytes


class PeerRunner:
    """The peers: actions, then each request from pixels again, one token at a time, all within the frame."""

    def __init__(self, policy: Policy, net: PeerNet, workload: Workload, clock: Clock, emit: Emit) -> None:
        self.policy, self.recorder, self.count = policy, Recorder(clock), Counter()
        self.net, self._emit = net, emit
        self._sized = SizedPolicy(policy, workload.prompt, padded=True)
        self._prompt, self._present = workload.prompt, workload.cameras * policy.config.image_tokens
        self._size = torch.empty((), dtype=net.dtype).element_size()

    def cycle(self, observation: Observation, asks: Sequence[Ask]) -> None:
        """As Runner.cycle."""
        prepared = self._sized.prepare(observation)
        cache = self._prefill(prepared)
        noise = torch.randn(self.net.config.horizon, self.net.config.action_dim,
                            generator=torch.Generator().manual_seed(1 + observation.sequence))
        works = counting.expert(self.net.config, len(cache.seen), len(self.net.times), self._size)
        actions = self.recorder.run('denoise', lambda: self.net.denoise(noise, cache), works)
        chunk = self._sized.finish(actions.cpu(), observation)
        self._emit(Chunk(observation.sequence, observation.stamp, 0, 0, chunk))
        for ask in asks:
            self._answer(ask, prepared)

    def finish(self) -> None:
        """As Runner.finish: nothing is ever left."""

    def copied(self, frames: Callable[[], None]) -> int:
        """As Runner.copied: the network counts where it copies."""
        before = self.net.copied
        frames()
        return self.net.copied - before

    def _prefill(self, prepared: Prepared) -> Cache:
        c = self.net.config
        images = [self.recorder.run('vision', lambda image=image: self.net.encode(image),
                                    counting.vision(c, 1, self._size)) for image in prepared.images]
        rows = torch.cat([*images, self.recorder.run('embed', lambda: self.net.embed(prepared.ids))])
        seen = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
        seen[:self._present] = True
        text = len(rows) - len(prepared.ids)
        seen[text:text + self._prompt] = True
        works = counting.language(c, [Segment(len(rows), 0, 0, causal=False)], self._size)
        return self.recorder.run('prefill', lambda: self.net.prefill(rows, seen), works, len(rows))

    def _answer(self, ask: Ask, prepared: Prepared) -> None:
        cache = self._prefill(prepared)
        ids, pending = [], self._sized.tokenizer.encode(ask.seed)
        for i in range(ask.max_tokens):
            segment = Segment(len(pending), 1, 0, ((0, len(cache.seen)),), outputs=1)
            works = counting.language(self.net.config, [segment], self._size)
            logits = self.recorder.run('decode', lambda new=pending: self.net.append(new, cache), works, len(pending),
                                       requests=1)
            token = int(logits.argmax())
            ids, pending = [*ids, token], [token]
            self.count['tokens'] += 1
            text = self._sized.tokenizer.decode(ids)
            reason = 'length' if len(ids) == ask.max_tokens else ''
            self._emit(Speech(ask.request_id, ask.channel, i, 0, 0, (token,), text, text, bool(reason), reason))
