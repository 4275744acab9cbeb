"""Each request chooses its own tokens, whatever else is decoded beside it."""
from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.engine.sampler import Sampler, sample

VOCAB = 16


def logits_of(seed: int, rows: int = 1) -> torch.Tensor:
    return torch.randn(rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


def test_greedy_takes_the_largest_of_each_row():
    logits = logits_of(0, 5)
    assert sample(logits, [Sampler()] * 5) == [row.argmax().item() for row in logits]


@given(seed=st.integers(0, 2**64 - 1), others=st.lists(st.sampled_from([0.0, 0.5, 2.0]), max_size=5),
       place=st.integers(0, 5))
def test_same_seed_gives_the_same_tokens_whatever_is_in_the_batch(seed, others, place):
    def tokens(others, place):
        mine, rest = Sampler(0.8, seed), [Sampler(heat, n) for n, heat in enumerate(others)]
        samplers = [*rest[:place], mine, *rest[place:]]
        row = samplers.index(mine)
        made = []
        for step in range(8):
            logits = logits_of(100 + step, len(samplers))
            logits[row] = logits_of(step)
            made.append(sample(logits, samplers)[row])
        return made

    assert tokens(others, place) == tokens([], 0)


def test_another_seed_gives_another_text():
    texts = {tuple(sample(logits_of(step), [sampler])[0] for step in range(20))
             for sampler in (Sampler(1.0, seed) for seed in range(10))}
    assert len(texts) == 10


def test_a_greedy_row_is_not_moved_by_a_sampled_neighbour():
    logits = logits_of(3, 2)
    for seed in range(20):
        assert sample(logits, [Sampler(), Sampler(5.0, seed)])[0] == logits[0].argmax().item()


@pytest.mark.parametrize('temperature', [0.5, 1.0, 2.0])
def test_tokens_come_as_often_as_their_probability(temperature):
    logits, count = logits_of(7), 20_000
    rows = logits.expand(count, -1)
    drawn = torch.tensor(sample(rows, [Sampler(temperature, seed) for seed in range(count)]))
    often = drawn.bincount(minlength=VOCAB) / count
    assert torch.allclose(often, (logits[0] / temperature).softmax(-1), atol=0.015)


@pytest.mark.parametrize('temperature', [1e-30, 1e-3])
def test_a_tiny_temperature_is_greedy(temperature):
    logits = logits_of(5)
    assert sample(logits, [Sampler(temperature, 1)]) == [logits.argmax().item()]


def test_an_impossible_token_never_comes():
    logits = torch.full((1, VOCAB), -torch.inf)
    logits[0, 4], logits[0, 9] = 0.0, 1.0
    sampler = Sampler(3.0, 0)
    assert {sample(logits, [sampler])[0] for _ in range(200)} == {4, 9}
    for number, token in ((0.0, 4), (1 - 2**-53, 9)):   # the ends of [0, 1)
        sampler.uniform = lambda number=number: number
        assert sample(logits, [sampler]) == [token]


@pytest.mark.parametrize('temperature', [-0.1, float('nan'), float('inf')])
def test_a_temperature_that_means_nothing_is_refused(temperature):
    with pytest.raises(ValueError, match='temperature'):
        Sampler(temperature)
