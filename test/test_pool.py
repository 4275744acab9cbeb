"""The pool as a state machine: whatever is held, extended and released, the accounts are exact."""
import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from oxygen_ros.kv import Pool, PoolFull

LAYERS, HEAD_DIM, SLOTS, CONTROL = 2, 4, 200, 40


class PoolMachine(RuleBasedStateMachine):
    """An observation comes, requests hold its prefix, and each ends in any order."""

    requests = Bundle('requests')

    def __init__(self):
        super().__init__()
        self.pool = Pool(LAYERS, HEAD_DIM, SLOTS, CONTROL)
        self.current = None
        self.held = []  # (prefix, tail)

    @rule(rows=st.integers(1, CONTROL - 5), scratch=st.integers(0, 5))
    def observe(self, rows, scratch):
        if self.current:
            self.current.release()
        self.current = self.pool.prefix(rows, scratch)  # control always has room: never PoolFull

    @rule()
    def chunk_done(self):
        if self.current:
            self.current.drop_scratch()

    @rule(target=requests, capacity=st.integers(1, 60), near=st.booleans())
    def ask(self, capacity, near):
        if not self.current:
            return None
        try:
            tail = self.pool.tail(capacity, after=self.current if near else None)
        except PoolFull:
            return None
        self.held.append((self.current.hold(), tail))
        return self.held[-1]

    @rule(request=consumes(requests))
    def end(self, request):
        if request in self.held:
            self.held.remove(request)
            prefix, tail = request
            tail.release()
            prefix.release()

    def runs(self):
        prefixes = {id(p): p for p in [self.current, *(p for p, _ in self.held)] if p}.values()
        tails = [(tail.start, tail.capacity) for _, tail in self.held]
        return [(p.start - p.scratch, p.rows + p.scratch) for p in prefixes] + tails

    @invariant()
    def bytes_are_exact(self):
        used = sum(rows for _, rows in self.runs())
        assert self.pool.used == used
        assert self.pool.bytes_in_use == used * 2 * LAYERS * HEAD_DIM * 4

    @invariant()
    def nothing_overlaps_and_nothing_is_lost(self):
        everything = sorted(self.runs() + self.pool._holes)
        assert sum(rows for _, rows in everything) == SLOTS
        end = 0
        for start, rows in everything:
            assert start == end
            end = start + rows

    def teardown(self):
        for prefix, tail in self.held:
            tail.release()
            prefix.release()
        if self.current:
            self.current.release()
        assert self.pool.used == 0
        assert self.pool._holes == [(0, SLOTS)]


PoolMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_any_sequence_keeps_the_accounts = PoolMachine.TestCase


def test_language_cannot_take_the_room_of_the_next_observation():
    pool = Pool(LAYERS, HEAD_DIM, SLOTS, CONTROL)
    current = pool.prefix(CONTROL)
    tails = []
    with pytest.raises(PoolFull, match='kept for control'):
        while True:
            tails.append(pool.tail(7))
    assert len(tails) == (SLOTS - 2 * CONTROL) // 7
    assert pool.prefix(CONTROL).rows == current.rows


def test_the_first_tail_follows_its_prefix_so_that_both_are_one_run():
    pool = Pool(LAYERS, HEAD_DIM, SLOTS, CONTROL)
    prefix = pool.prefix(20, scratch=4)
    near, far = pool.tail(10, after=prefix), pool.tail(10, after=prefix)
    assert near.start == prefix.start + prefix.rows
    assert far.start == SLOTS - 10


def test_a_prefix_lives_until_its_last_holder_lets_go():
    pool = Pool(LAYERS, HEAD_DIM, SLOTS, CONTROL)
    prefix = pool.prefix(10, scratch=4)
    prefix.hold()
    prefix.drop_scratch()
    assert pool.used == 10
    prefix.release()
    assert pool.used == 10
    prefix.release()
    assert pool.used == 0
    for misuse in (prefix.release, prefix.hold):
        with pytest.raises(RuntimeError, match='already released'):
            misuse()


def test_a_pool_smaller_than_control_is_refused():
    with pytest.raises(ValueError, match='cannot keep 40 for control'):
        Pool(LAYERS, HEAD_DIM, 39, CONTROL)
