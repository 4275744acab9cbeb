"""Requests as a state machine on the real engine: whatever is asked, cut short and interleaved, each ends exactly once,
its messages have no gap, and the cache's accounts stay exact."""
import hypothesis.strategies as st
import pytest
from engines import Rig, observation
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, multiple, precondition, rule

from oxygen_ros.engine import engine as engine_module
from oxygen_ros.engine.wire import Ask, Chunk, Configure, Rejected, Speech, Standing
from oxygen_ros.policy.observation import Observation

SEEDS = ('Subtask: ', 'Where is the red cube?', '')
LIVE, QUEUED, MOST = 3, 2, 6


class Clock:
    """The engine's monotonic clock, moved by hand so that expiry needs no waiting."""

    def __init__(self):
        self.seconds = 1000.0

    def monotonic(self):
        return self.seconds

    def monotonic_ns(self):
        return int(self.seconds * 1e9)


class RequestMachine(RuleBasedStateMachine):
    """A request is asked for (or started by the engine itself), waits, speaks a little at a time, and ends."""

    asked = Bundle('asked')

    @initialize(mode=st.sampled_from(['continuous', 'continuous', 'shared', 'isolated']), ride=st.booleans(),
                draft=st.booleans(), mask=st.sampled_from(['prefix_lm', 'causal_text']), standing=st.booleans())
    def begin(self, mode, ride, draft, mask, standing):
        self.clock = Clock()
        self._time, engine_module.time = engine_module.time, self.clock
        narration = (Standing('narration', SEEDS[0], 2, max_tokens=3),)
        self.rig = Rig(mask, mode=mode, ride=ride, draft=draft, max_live=LIVE, max_queued=QUEUED, max_tokens=MOST,
                       standing=narration if standing else ())
        self.engine = self.rig.engine
        self.number = 0
        self.open = {}         # id -> when it expires; asked for by us and not known to have ended
        self.texts = {}        # id -> (messages so far, text so far) of unfinished requests
        self.checked = 0       # events that were looked at

    # --- what may happen -----------------------------------------------------------------------------------------
    @rule(speak=st.booleans())
    def observe(self, speak):
        self.number += 1
        before = len(self.rig.events)
        self.engine.act(observation(self.number))
        first = next(e for e in self.rig.events[before:] if not (isinstance(e, Speech) and e.reason == 'expired'))
        assert isinstance(first, Chunk) and first.sequence == self.number, 'the chunk leaves before any text'
        if speak:
            self.engine.speak()

    @rule()
    def observe_garbage(self):
        self.number += 1
        good = observation(self.number)
        state = good.state.copy()
        state[0] = float('nan')
        self.engine.act(Observation(**{**vars(good), 'state': state}))
        assert isinstance(self.rig.events[-1], Rejected) and self.rig.events[-1].sequence == self.number

    @rule(target=asked, seed=st.sampled_from(SEEDS), tokens=st.integers(0, MOST), priority=st.integers(-1, 40),
          deadline=st.sampled_from([0.0, 0.0, 0.5, 5.0]), temperature=st.sampled_from([0.0, 0.0, 1.0]),
          stop=st.sampled_from([(), ('e',)]))
    def ask(self, seed, tokens, priority, deadline, temperature, stop):
        name = f'q{len(self.rig.events)}-{len(self.open)}-{self.number}'
        self._ask(Ask(name, seed, 'question', tokens, temperature, 1, stop, priority if priority >= 0 else None,
                      deadline))
        return name

    @rule(target=asked, count=st.integers(2, 2 * (LIVE + QUEUED)))
    def ask_many_at_once(self, count):
        """More than may live and wait: who has no room is told so."""
        names = [f'm{len(self.rig.events)}-{i}-{self.number}' for i in range(count)]
        for i, name in enumerate(names):
            self._ask(Ask(name, SEEDS[i % len(SEEDS)], priority=30 - i % 3))
        return multiple(*names)

    @rule(name=asked)
    def ask_again_under_the_same_id(self, name):
        self._ask(Ask(name, SEEDS[0], max_tokens=2))

    @rule(target=asked)
    def ask_too_much(self):
        before = len(self.rig.events)
        self.engine.ask(Ask('long', 'why ' * 500))
        refused, = self.rig.events[before:]
        assert refused.final and refused.reason == 'error' and 'shorten it' in refused.detail
        self.checked = len(self.rig.events)
        return multiple()

    @rule(name=asked)
    def cancel(self, name):
        self.engine.cancel(name)
        self.look()
        assert name not in self.open

    @rule()
    def cancel_everything(self):
        self.engine.cancel()
        self.look()
        assert not self.open and not self.engine.live and not self.engine.queued

    @rule(data=st.data())
    def pause_some(self, data):
        """One step for some of the live requests; the others keep their place."""
        live = [r.ask.request_id for r in self.engine.scheduler.live]
        chosen = data.draw(st.lists(st.sampled_from(live), unique=True)) if live else []
        others = {r.ask.request_id: len(r.ids) for r in self.engine.scheduler.live}
        self.engine.step(only=chosen)
        for request in self.engine.scheduler.live:
            name = request.ask.request_id
            if name in others and name not in chosen:
                assert len(request.ids) == others[name], 'a paused request says nothing'

    @rule()
    def step(self):
        self.engine.step()

    @rule(seconds=st.sampled_from([0.4, 1.0, 10.0]))
    def time_passes(self, seconds):
        self.clock.seconds += seconds
        self.engine.speak(poll=lambda: True)   # interrupted at once: only what has expired is ended
        self.look()
        assert all(until > self.clock.seconds for until in self.open.values()), 'what has expired has ended'

    @rule()
    def reset(self):
        self.engine.reset()
        self.look()
        assert not self.open and self.engine.pool.used == 0

    @rule(every=st.sampled_from([0, 1, 3]), tokens=st.integers(1, MOST))
    def configure(self, every, tokens):
        self.engine.configure(Configure((Standing('memory', SEEDS[0], every, max_tokens=2),), tokens))

    @precondition(lambda self: self.engine.can_speak)
    @rule()
    def fail_inside_a_pass(self):
        """As an allocator does. The process ends after it; until then closing must still free everything."""
        def fail(*_):
            raise MemoryError
        forward = self.engine.net.forward
        self.engine.net.forward = fail
        try:
            with pytest.raises(MemoryError):
                while self.engine.step():
                    pass
                raise MemoryError  # nothing took part
        finally:
            self.engine.net.forward = forward

    # --- what must hold ------------------------------------------------------------------------------------------
    def _ask(self, ask):
        self.look()
        self.engine.ask(ask)
        self.look(asking=ask)

    def look(self, asking=None):
        """Check every message that is new."""
        new, self.checked = self.rig.events[self.checked:], len(self.rig.events)
        replaced = asking is not None and asking.request_id in self.open
        if asking is not None and not replaced:
            self._open(asking)
        for event in new:
            if not isinstance(event, Speech):
                continue
            number, text = self.texts.get(event.request_id, (0, ''))
            assert event.sequence == number, 'no gap and nothing twice'
            assert event.text == text + event.delta
            assert event.final == bool(event.reason)
            self.texts[event.request_id] = number + 1, event.text
            if not event.final:
                continue
            del self.texts[event.request_id]
            if event.channel == 'question':
                assert event.request_id in self.open, f'{event.request_id} ended twice'
                del self.open[event.request_id]
                if replaced and event.request_id == asking.request_id and event.reason == 'cancelled':
                    self._open(asking)
                    replaced = False

    def _open(self, ask):
        self.open[ask.request_id] = self.clock.seconds + ask.deadline_s if ask.deadline_s else float('inf')

    @invariant()
    def every_message_is_in_order_and_every_request_known(self):
        self.look()
        known = {r.ask.request_id for r in self.engine.scheduler if r.ask.channel == 'question'}
        assert known == set(self.open), 'nothing is lost, nothing is left over'

    @invariant()
    def the_queue_and_the_live_are_within_their_limits(self):
        assert self.engine.live <= LIVE and self.engine.live + self.engine.queued <= LIVE + QUEUED

    @invariant()
    def the_accounts_are_exact(self):
        live, current = self.engine.scheduler.live, self.engine._current
        prefixes = {id(p): p for p in [r.prefix for r in live] + ([current.prefix] if current else [])}.values()
        held = sum(p.rows + p.scratch for p in prefixes) + sum(r.tail.capacity for r in live)
        assert self.engine.pool.used == held
        assert all(r.tail.rows <= r.tail.capacity for r in live)
        assert all(not hasattr(r, 'tail') for r in self.engine.scheduler.queue), 'who waits holds nothing'
        holders = {id(p): sum(r.prefix is p for r in live) + (current is not None and current.prefix is p)
                   for p in prefixes}
        assert all(p.holders == holders[id(p)] for p in prefixes)

    def teardown(self):
        if not hasattr(self, 'rig'):
            return
        try:
            self.engine.reset()
            self.look()
            assert not self.open and not self.texts, 'each request has ended'
            assert self.engine.pool.used == 0, 'every byte is back'
        finally:
            engine_module.time = self._time


RequestMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
test_any_interleaving_ends_each_request_once_and_keeps_the_accounts = RequestMachine.TestCase
