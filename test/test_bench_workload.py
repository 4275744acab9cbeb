"""What the benchmark asks for: reproducible, and as much as it says."""
import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.bench.workload import SHORTEST, SizedPolicy, Workload
from oxygen_ros.policy.checkpoint import load

ARRIVALS = ('steady', 'poisson', 'bursty')


def first(workload, frames):
    return list(itertools.islice(workload.requests(), frames))


@given(st.sampled_from(ARRIVALS), st.sampled_from((0.25, 0.5, 1.0, 4.0)), st.booleans(), st.integers(0, 99))
def test_the_same_seed_asks_for_the_same(arrivals, rate, mixed, seed):
    workload = Workload(arrivals=arrivals, rate=rate, mixed=mixed, seed=seed)
    assert first(workload, 50) == first(workload, 50)
    lengths = [n for frame in first(workload, 50) for n in frame]
    assert all(SHORTEST <= n <= 30 if mixed else n == 30 for n in lengths)


@pytest.mark.parametrize('arrivals', ARRIVALS)
@pytest.mark.parametrize('rate', [0.25, 1.0, 4.0])
def test_the_mean_rate_is_the_one_asked_for(arrivals, rate):
    frames = 20_000
    asked = sum(map(len, first(Workload(arrivals=arrivals, rate=rate), frames)))
    assert asked / frames == pytest.approx(rate, rel=0.05)


def test_a_steady_quarter_is_one_request_in_every_fourth_frame():
    assert [len(frame) for frame in first(Workload(rate=0.25), 8)] == [0, 0, 0, 1, 0, 0, 0, 1]


def test_bursts_are_rarer_and_larger_than_poisson():
    poisson, bursty = ([len(f) for f in first(Workload(arrivals=a, rate=1.0), 2000)] for a in ('poisson', 'bursty'))
    assert bursty.count(0) > 1.5 * poisson.count(0)
    assert max(bursty) > max(poisson)


@pytest.mark.parametrize('bad', [{'tokens': 0}, {'rate': float('nan')}, {'rate': -1.0}, {'per_frame': 0},
                                 {'mixed': True, 'tokens': 4}])
def test_an_impossible_workload_is_refused(bad):
    with pytest.raises(ValueError):
        Workload(**bad)


def test_prompts_have_the_size_asked_for_and_padding_brings_the_missing_camera():
    policy = load('random:tiny')
    workload = Workload(prompt=60, cameras=2)
    observation = workload.observation(policy, 3)
    plain = SizedPolicy(policy, 60).prepare(observation)
    padded = SizedPolicy(policy, 60, padded=True).prepare(observation)
    assert (len(plain.ids), len(plain.cameras)) == (60, 2)
    assert (len(padded.ids), len(padded.cameras)) == (policy.config.max_prompt, 3)
    assert padded.ids[:60] == plain.ids
    assert (padded.image(policy.cameras[2]) == -1).all()
    with pytest.raises(ValueError, match='model takes 200'):
        SizedPolicy(policy, 201)
    with pytest.raises(ValueError, match='the model has 3'):
        Workload(cameras=4).observation(policy, 0)
