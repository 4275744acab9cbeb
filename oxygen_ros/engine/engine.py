"""The engine: each observation is prefilled once; the expert and every language request read that one prefix.

Plain synchronous Python on one thread. Tests and benchmarks drive it directly, the robot through the worker process.
"""
from __future__ import annotations

import itertools
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from oxygen_ros.engine.drafts import Drafts
from oxygen_ros.engine.options import PRIORITY, EngineOptions
from oxygen_ros.engine.request import Request
from oxygen_ros.engine.sampler import Sampler, sample
from oxygen_ros.engine.scheduler import Scheduler
from oxygen_ros.engine.stages import Stages
from oxygen_ros.engine.text import TextStream
from oxygen_ros.engine.wire import Ask, Chunk, Configure, FinishReason, FromEngine, Rejected, Report, refusal
from oxygen_ros.kv import PoolFull, Prefix
from oxygen_ros.model.segments import observation_segments
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.policy import Policy, Prepared

_DEFAULT_PRIORITY = 20
# Rows that ride on a prefill may not be more than a quarter of it, for the chunk waits for them; in a short prefill
# rows cost next to nothing.
_RIDE_SHARE, _RIDE_ROWS = 4, 64


@dataclass(frozen=True)
class _Current:
    """The newest observation: what came, what the network read, and its prefix."""

    observation: Observation
    prepared: Prepared
    prefix: Prefix


class Engine:
    """One policy, one pool, the live requests; everything it makes goes to `emit`.

    Order of events: the Chunk (or Rejected) of an observation leaves before any text of that cycle.
    """

    def __init__(self, policy: Policy, options: EngineOptions, emit: Callable[[FromEngine], None]) -> None:
        self.policy, self.options, self.emit = policy, options, emit
        self.net = policy.net
        config = self.net.config
        rows = len(policy.cameras) * config.image_tokens + config.max_prompt
        control = rows + config.horizon
        request = rows + options.max_seed_tokens + options.max_tokens
        if request > self.net.positions:
            raise ValueError(f'a request may need {request} positions, the network has {self.net.positions}: lower '
                             'max_tokens or max_seed_tokens')
        fixed = options.graphs == 'always' or options.graphs == 'auto' and self.net.device.type == 'cuda'
        make_pool = self.net.graph_pool if fixed else self.net.pool
        self.pool = make_pool(2 * control + options.max_live * request, control)
        if options.decode_weights == 'int8':
            self.net.language.decode_in_int8()
        self.scheduler = Scheduler(options.max_live, options.max_queued)
        self.drafts = Drafts()
        # With weights of its own a ride reads no fewer of them: it would only come before the chunk.
        self.ride = options.ride and options.mode == 'continuous' and options.decode_weights == 'exact'
        self.draft = options.draft and options.mode == 'continuous'
        self.standing = options.standing
        self.max_tokens = options.max_tokens
        self.count: Counter[str] = Counter()
        self._times: dict[str, float] = {}
        self._current: _Current | None = None
        self._encoded: dict[str, tuple[int, Tensor]] = {}  # camera -> stamp, image rows
        self._noise_seed = secrets.randbits(31) if options.noise_seed is None else options.noise_seed
        self._owner = threading.get_ident()
        self._orders = 0

    # --- requests ------------------------------------------------------------------------------------------------
    def ask(self, ask: Ask) -> None:
        """Let a request wait for its turn. The same id again replaces the unfinished request of that id."""
        self._orders += 1
        if ask.request_id:
            self.cancel(ask.request_id)
        else:
            names = (f'{ask.channel}-{i}' for i in itertools.count(self._orders))
            ask = replace(ask, request_id=next(name for name in names if self.scheduler.find(name) is None))
        try:
            seed = self.policy.tokenizer.encode(ask.seed)
            if len(seed) > self.options.max_seed_tokens:
                raise ValueError(f'the seed has {len(seed)} tokens, at most {self.options.max_seed_tokens} are '
                                 'allowed: shorten it or raise max_seed_tokens')
            sampler = Sampler(ask.temperature, ask.random_seed)
        except ValueError as error:
            self._refuse(ask, str(error))
            return
        limit = min(ask.max_tokens or self.max_tokens, self.max_tokens)
        request = Request(
            replace(ask, max_tokens=limit), seed, TextStream(self.policy.tokenizer, ask.stop), sampler,
            ask.priority if ask.priority is not None else PRIORITY.get(ask.channel, _DEFAULT_PRIORITY), self._orders,
            time.monotonic())
        if ask.deadline_s:
            request.expires = request.arrived + ask.deadline_s
        crowded = self.scheduler.enqueue(request)
        if crowded is not None:
            self._refuse(crowded.ask, f'refused: {self.options.max_live} requests are live and '
                         f'{self.options.max_queued} of at least its priority wait')

    def cancel(self, request_id: str = '') -> None:
        """End one request, or all with ''."""
        for request in filter(None, [self.scheduler.find(request_id)] if request_id else [*self.scheduler]):
            self._end(request, 'cancelled')

    def reset(self) -> None:
        """End every request and forget the observation."""
        self.cancel()
        if self._current is not None:
            self._current.prefix.release()
        self._current = None
        self._encoded.clear()

    def configure(self, change: Configure) -> None:
        """Apply what may change while running."""
        if change.standing is not None:
            self.standing = change.standing
        if change.max_tokens is not None:
            self.max_tokens = min(change.max_tokens, self.options.max_tokens)

    @property
    def live(self) -> int:
        """Requests that hold KV."""
        return len(self.scheduler.live)

    @property
    def queued(self) -> int:
        """Requests that wait."""
        return len(self.scheduler.queue)

    @property
    def can_speak(self) -> bool:
        """There is text to be made now."""
        return bool(self.scheduler.live or self.scheduler.queue and self._current is not None)

    # --- the cycle -----------------------------------------------------------------------------------------------
    def act(self, observation: Observation, received_ns: int = 0, deadline_ns: int = 0) -> None:
        """Prefill the observation once, denoise a chunk, emit it. Live requests ride on the prefill if they may."""
        self._expire()
        self.scheduler.relent(self._times.get('budget_s', 0.0))
        stages = Stages(self.net.device)
        try:
            prepared = self.policy.prepare(observation)
            committed = self.policy.committed(observation)
            images = self._encode(observation, prepared)
        except ValueError as error:
            self.emit(Rejected(observation.sequence, str(error)))
            return
        stages.mark('vision_s')
        if self._current is not None:
            self._current.prefix.release()
        prefix = self.pool.prefix(len(images) + len(prepared.ids), self.net.config.horizon)
        self._current = _Current(observation, prepared, prefix)
        self._start_standing(observation.sequence)
        riders = []
        if self.ride:
            self._admit()
            riders = self.scheduler.batch(rows=max(prefix.rows // _RIDE_SHARE, _RIDE_ROWS))
        logits = self._pass(riders, (prefix, images, prepared.ids))
        stages.mark('prefill_s')
        noise = torch.randn(self.net.config.horizon, self.net.config.action_dim,
                            generator=torch.Generator().manual_seed(self._noise_seed + observation.sequence))
        actions = self.net.denoise(noise, prefix, self.pool, committed)
        stages.mark('act_s')
        whole = True
        try:
            chunk = self.policy.finish(actions.cpu(), observation)
        except ValueError as error:
            whole = prefix.purge()
            self.emit(Rejected(observation.sequence, str(error)))
        else:
            ready = time.monotonic_ns()
            self.emit(Chunk(observation.sequence, observation.stamp, received_ns, ready, chunk))
            self.count['misses'] += bool(deadline_ns and ready > deadline_ns)
        prefix.drop_scratch()
        self.count['cycles'] += 1
        if not whole:
            riders, logits = self._forget(prefix, riders, logits)
        self._advance(riders, logits)
        self._times = {**stages.seconds(), 'speak_s': 0.0, 'budget_s': 0.0}

    def speak(self, deadline_ns: int = 0, poll: Callable[[], bool] | None = None) -> None:
        """Decode, all live requests at once, until there is nothing to say, no step fits before the deadline
        (CLOCK_MONOTONIC ns; 0 = none), or `poll` says that something else is waiting."""
        self._expire()  # also when nothing can be said
        began = time.monotonic()
        if self.options.mode != 'continuous':
            deadline_ns, poll = 0, None  # these modes finish their text in its cycle
        elif deadline_ns:
            budget = deadline_ns / 1e9 - self.options.guard_s - began
            self._times['budget_s'] = max(budget, self._times.get('budget_s', 0.0))  # of the cycle's first call
        while self.can_speak and not (poll and poll()) and self.step(deadline_ns=deadline_ns):
            pass
        self._times['speak_s'] = self._times.get('speak_s', 0.0) + time.monotonic() - began

    def step(self, only: Sequence[str] | None = None, deadline_ns: int = 0) -> bool:
        """One pass for the live requests (or for those with an id in `only`); False if none could take part."""
        self._expire()
        self._admit()
        began = time.monotonic()
        seconds = deadline_ns / 1e9 - self.options.guard_s - began if deadline_ns else float('inf')
        batch = [r for r in self.scheduler.batch(seconds) if only is None or r.ask.request_id in only]
        if not batch:
            return False
        rows = sum(len(r.rows) for r in batch)
        self._advance(batch, self._pass(batch))
        self.count['decode_steps'] += 1
        self.scheduler.times.add(rows, time.monotonic() - began)
        return True

    def warm_up(self) -> float:
        """Run everything once, measure the passes, forget it all. Returns the time of one warm observation, s."""
        side, emit, standing = self.net.config.image, self.emit, self.standing
        self.emit, self.standing = lambda event: None, ()
        if self.net.graphs:
            self.net.graphs.make_all(len(self.policy.cameras))
        zeros = torch.zeros(side, side, 3, dtype=torch.uint8).numpy()
        state = torch.zeros(self.policy.state_dim).numpy()
        for _ in range(2):
            began = time.monotonic()
            self.act(Observation(dict.fromkeys(self.policy.cameras, zeros), state, 'warm up'))
            act_s = time.monotonic() - began
        requests = 1
        while requests <= self.options.max_live:
            self.cancel()
            for i in range(requests):
                self.ask(Ask(f'warm up {i}', '', temperature=1e-6))  # sampled, so no draft gets in
            for i in range(4):
                if i == 2 and self.live:
                    self.scheduler.times.forget(requests)  # the first steps pay for warming up
                self.step()
            requests *= 2
        if self.net.graphs:
            self.act(Observation(dict.fromkeys(self.policy.cameras, zeros), state, 'warm up'))  # they ride
        self.reset()
        self.emit, self.standing = emit, standing
        self.count.clear()
        self.policy.forget()
        self._times = {}
        self.pool.peak = self.pool.used
        return act_s

    def report(self) -> Report:
        """Totals, and the times of the last cycle."""
        count: dict[str, Any] = {**self.count, **self._times}
        t, pool = self._times, self.pool
        mode = self.options.mode + '+ride' * self.ride + '+draft' * self.draft
        cycle = sum(t.get(name, 0.0) for name in ('vision_s', 'prefill_s', 'act_s', 'speak_s'))
        return Report(observation=self._current.observation.sequence if self._current else 0, mode=mode,
                      live=self.live, queued=self.queued,
                      kv_bytes=pool.bytes_in_use, kv_bytes_peak=pool.bytes_peak, kv_bytes_capacity=pool.bytes_capacity,
                      cycle_s=cycle, notes=self.policy.notes, **count)

    # --- inside --------------------------------------------------------------------------------------------------
    def _encode(self, observation: Observation, prepared: Prepared) -> Tensor:
        """Image rows [rows, width] in prefix order; a camera whose stamp is unchanged is not encoded again."""
        stamps = observation.image_stamps
        stale = [camera for camera in prepared.cameras
                 if camera not in stamps or self._encoded.get(camera, (None,))[0] != stamps[camera]]
        if stale:
            encoded = self.net.encode(torch.stack([prepared.image(camera) for camera in stale]))
            self.count['images'] += len(stale)
            for camera, rows in zip(stale, encoded, strict=True):
                self._encoded[camera] = stamps.get(camera, -1), rows
        return torch.cat([self._encoded[camera][1] for camera in prepared.cameras])

    def _pass(self, requests: Sequence[Request], observation: tuple[Prefix, Tensor, list[int]] | None = None) -> Tensor:
        """One ragged pass: an observation's rows first, if given, then the rows of the requests -> logits."""
        if threading.get_ident() != self._owner:
            raise RuntimeError('the engine belongs to the thread that made it')
        ids = [token for request in requests for token in request.rows]
        segments = [request.segment() for request in requests]
        if observation is None:
            rows = self.net.embed(ids)
        else:
            prefix, images, prompt = observation
            rows = torch.cat([images, self.net.embed(prompt + ids)])
            segments = observation_segments(self.net.config, prefix, len(images)) + segments
            self.count['prefills'] += 1
        self.count['rows'] += len(rows)
        return self.net.forward(rows, segments, self.pool)

    def _advance(self, requests: Sequence[Request], logits: Tensor) -> None:
        """Choose tokens from a pass's logits, hand them to their requests, emit what they add."""
        if not requests:
            return
        self.scheduler.serve(requests)
        chosen = sample(logits, [r.sampler for r in requests for _ in range(1 + len(r.draft))])
        at = 0
        for request in requests:
            drafted, before = len(request.draft), len(request.stream.text)
            new, right = request.accept(chosen[at:at + 1 + drafted], self.policy.tokenizer.stop_ids)
            at += 1 + drafted
            self.count['tokens'] += len(new)
            if drafted:
                self.count.update(drafted=drafted, accepted=right)
                self.drafts.verified((request.ask.channel, request.ask.seed), right)
            if request.reason:
                self._end(request, request.reason, new, before)
            else:
                self.emit(request.speech(new, before))

    def _end(self, request: Request, reason: FinishReason, new: Sequence[int] = (), before: int | None = None,
             detail: str = '') -> None:
        """Finish a request: free what it holds, emit its last message."""
        before = len(request.stream.text) if before is None else before
        request.reason = reason
        request.free()
        self.scheduler.remove(request)
        self.emit(request.speech(new, before, detail))
        if self.draft and reason in ('stop', 'length') and not request.ask.temperature:
            ended = request.ids + [self.policy.tokenizer.eos_id] * (reason == 'stop')
            self.drafts.learn((request.ask.channel, request.ask.seed), ended)

    def _forget(self, prefix: Prefix, riders: Sequence[Request], logits: Tensor) -> tuple[list[Request], Tensor]:
        """Nothing can be said about the newest observation, for its prefix is not finite. Returns the riders of others,
        with their logits."""
        parts = zip(riders, logits.split([1 + len(rider.draft) for rider in riders]), strict=True)
        kept = [(rider, part) for rider, part in parts if rider.prefix is not prefix]
        for request in [r for r in self.scheduler.live if r.prefix is prefix]:
            request.tail.purge()
            self._end(request, 'error', detail='what was seen gives no finite numbers: check the checkpoint')
        prefix.release()
        self._current = None
        return [rider for rider, _ in kept], torch.cat([logits[:0], *(part for _, part in kept)])

    def _refuse(self, ask: Ask, detail: str) -> None:
        self.emit(refusal(ask, detail))

    def _expire(self) -> None:
        for request in self.scheduler.expired(time.monotonic()):
            self._end(request, 'expired', detail=f'not finished within {request.ask.deadline_s} s')

    def _start_standing(self, sequence: int) -> None:
        """Ask what is asked by itself every so many observations, unless the last one is still being answered or all
        places are taken: nobody is refused for it."""
        for standing in self.standing:
            due = standing.every_cycles and self.count['cycles'] % standing.every_cycles == 0
            if due and not self.scheduler.full and all(r.ask.channel != standing.channel for r in self.scheduler):
                self.ask(Ask(f'{standing.channel}-{sequence}', standing.seed, standing.channel, standing.max_tokens))

    def _admit(self) -> None:
        """Give waiting requests a tail on the newest prefix, while there is room."""
        while (now := self._current) is not None and (request := self.scheduler.next_waiting()) is not None:
            try:
                tail = self.pool.tail(max(1, len(request.seed)) + request.ask.max_tokens, after=now.prefix)
            except PoolFull:
                return
            try:
                prefix = self._prefill_again(now.prepared) if self.options.mode == 'isolated' else now.prefix.hold()
            except Exception as error:
                tail.release()
                if isinstance(error, PoolFull):
                    return
                raise
            request.start(prefix, tail, now.prepared.ids[-1], now.observation.sequence, now.observation.stamp)
            prefix.release()  # the request holds it now
            self.scheduler.admit(request)
            if self.draft and not request.ask.temperature:
                request.draft = self.drafts.propose((request.ask.channel, request.ask.seed), request.ask.max_tokens)

    def _prefill_again(self, prepared: Prepared) -> Prefix:
        """The peers' way, for comparison: a prefix of its own for the language, from pixels on."""
        images = self.net.encode(prepared.images).flatten(0, 1)
        prefix = self.pool.prefix(len(images) + len(prepared.ids))
        try:
            self._pass([], (prefix, images, prepared.ids))
        except Exception:
            prefix.release()
            raise
        return prefix
