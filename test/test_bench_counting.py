"""The counted floors: against torch's own FLOP counter on the real network, and against counting one by one."""
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.flop_counter import FlopCounterMode

from oxygen_ros.bench import counting
from oxygen_ros.bench.ceilings import Ceilings
from oxygen_ros.model import kernels
from oxygen_ros.model.config import PRESETS
from oxygen_ros.model.segments import Segment, observation_segments
from oxygen_ros.policy.checkpoint import load

TINY = PRESETS['tiny']


@pytest.fixture(scope='module')
def net():
    """torch sees only its own operations, not our kernels: the same products by torch alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, 'library', None)
        yield load('random:tiny').net


def attended(q, k, *rest, **kwargs) -> int:
    images, heads, queries, head_dim = q
    return 4 * images * heads * queries * k[2] * head_dim


def measured(run) -> int:
    """FLOPs of the products that torch sees; one kind that runs on the CPU it does not know."""
    counter = FlopCounterMode(display=False, custom_mapping={
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: attended})
    with counter:
        run()
    return counter.get_total_flops()


@pytest.mark.parametrize('images', [1, 2, 3])
def test_vision_is_counted_exactly(net, images):
    pixels = torch.zeros(images, 3, TINY.image, TINY.image)
    assert counting.flops(counting.vision(TINY, images, 4)) == measured(lambda: net.encode(pixels))


@pytest.mark.parametrize('rows', [33, 92])
def test_a_prefill_is_counted_exactly_without_the_last_layers_rest(net, rows):
    pool = net.pool(400, 300)
    prefix = pool.prefix(rows)
    segments = observation_segments(TINY, prefix, 32)
    assert counting.flops(counting.language(TINY, segments, 4)) == measured(
        lambda: net.forward(torch.zeros(rows, TINY.width), segments, pool))


@pytest.mark.parametrize('requests', [1, 2, 7])
def test_a_decode_step_is_counted_exactly_with_its_logits(net, requests):
    pool = net.pool(400, 300)
    pool.prefix(50)
    segments = [Segment(1, 53, 60 + 10 * i, ((0, 50), (57 + 10 * i, 3)), True, 1) for i in range(requests)]
    assert counting.flops(counting.language(TINY, segments, 4)) == measured(
        lambda: net.forward(torch.zeros(requests, TINY.width), segments, pool))


def test_a_chunk_is_counted_exactly(net):
    pool = net.pool(400, 300)
    prefix = pool.prefix(60, TINY.horizon)
    noise = torch.zeros(TINY.horizon, TINY.action_dim)
    assert counting.flops(counting.expert(TINY, 60, 10, 4)) == measured(lambda: net.denoise(noise, prefix, pool))


@given(st.integers(1, 12), st.integers(0, 30), st.booleans(), st.data())
def test_attention_counts_every_pair_once(rows, read, causal, data):
    outputs = data.draw(st.integers(0, rows))
    segment = Segment(rows, 5, 0, ((100, read),), causal, outputs)
    works = counting.language(TINY, [segment], 4)
    pairs = sum(read + (row + 1 if causal else rows) for row in range(rows))
    last = sum(read + (row + 1 if causal else rows) for row in range(rows - outputs, rows))
    per_pair = 4 * TINY.heads * TINY.head_dim
    products = [counting.gemm(rows, TINY.width, 2 * TINY.head_dim, 4)]
    queries = TINY.heads * TINY.head_dim
    for m, times in ((rows, TINY.depth - 1), (outputs, 1)):
        products += [counting.gemm(m, i, o, 4, times) for i, o in (
            (TINY.width, queries), (queries, TINY.width), (TINY.width, 2 * TINY.mlp), (TINY.mlp, TINY.width))]
    products += [counting.gemm(rows, TINY.width, 2 * TINY.head_dim, 4, TINY.depth - 1),
                 counting.gemm(outputs, TINY.width, TINY.vocab, 4)]
    assert counting.flops(works) == counting.flops(products) + per_pair * ((TINY.depth - 1) * pairs + last)


def test_the_public_models_decode_floor_is_its_weights_over_the_bandwidth():
    """Language model 1.98 G + vocabulary 0.53 G parameters in bf16: 5.0 ms at an RTX 4090's 1.008 TB/s."""
    segment = Segment(1, 968, 968, ((0, 968),), True, 1)
    works = counting.language(PRESETS['pi05'], [segment], 2)
    for bandwidth, flops, ms in ((1.008e12, 165e12, 5.0), (4.8e12, 990e12, 1.06)):
        assert counting.floor(works, Ceilings(flops, bandwidth)) * 1e3 == pytest.approx(ms, rel=0.02)


def test_an_operation_is_bound_by_the_slower_of_compute_and_memory():
    few, many = counting.gemm(1, 1000, 1000, 4), counting.gemm(10_000, 1000, 1000, 4)
    ceilings = Ceilings(1e9, 1e9)
    assert counting.floor([few], ceilings) == few.bytes / 1e9
    assert counting.floor([many], ceilings) == many.flops / 1e9
    assert counting.floor([few, many], ceilings) == (few.bytes + many.flops) / 1e9
