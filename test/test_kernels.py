"""Our CPU kernels: right against float64, the same bits in any company, and torch instead where they are missing."""
import _ctypes
import logging
import platform
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from golden import tensors, tiny_config
from hypothesis import given, settings
from hypothesis import strategies as st

import oxygen_ros
from oxygen_ros.model import kernels
from oxygen_ros.model.layers import EPS, Rope
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.model.segments import RaggedPlan, Segment, observation_segments, places, split_steps

ours = pytest.mark.skipif(kernels.library is None, reason=kernels.why_not)
ULP = torch.finfo(torch.float32).eps
SEEDS = st.integers(0, 2**32)


def each(**strategies):
    return lambda test: ours(settings(deadline=None)(given(**strategies)(test)))


def random(seed: int, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.skipif(platform.machine() != 'x86_64' or torch.backends.cpu.get_cpu_capability() not in ('AVX2', 'AVX512'),
                    reason='another processor')
def test_the_package_brings_the_kernels_of_this_processor():
    assert kernels.library is not None, kernels.why_not


@each(rows=st.one_of(st.integers(1, 17), st.integers(90, 200)), width=st.integers(1, 600), out=st.integers(1, 70),
       add=st.sampled_from(['nothing', 'a bias', 'rows']), apart=st.integers(0, 5), seed=SEEDS)
def test_a_product_is_right_for_any_size_and_strided_rows(rows, width, out, add, apart, seed):
    x, weight = random(seed, rows, width + apart)[:, :width], random(seed + 1, out, width)
    added = {'nothing': None, 'a bias': random(seed, out), 'rows': random(seed, rows, out + apart)[:, :out]}[add]
    y = kernels.product(x, kernels.pack(weight), out, added)
    want = x.double() @ weight.double().T + (0 if added is None else added.double())
    bound = ULP * ((width + 1) * (x.abs() @ weight.abs().T) + want.abs() + 1e-30)  # of any order of summation
    assert y.shape == (rows, out) and ((y - want).abs() <= bound).all()


@each(rows=st.integers(1, 40), first=st.integers(0, 39), some=st.integers(1, 17), width=st.integers(1, 300),
       out=st.integers(1, 50), seed=SEEDS)
def test_a_products_row_has_the_same_bits_in_any_company(rows, first, some, width, out, seed):
    x, packed = random(seed, rows, width), kernels.pack(random(seed + 1, out, width))
    part = x[first % rows:first % rows + some]
    assert torch.equal(kernels.product(part, packed, out),
                       kernels.product(x, packed, out)[first % rows:first % rows + some])


@each(rows=st.one_of(st.integers(1, 17), st.integers(90, 200)), width=st.integers(1, 600), out=st.integers(1, 70),
      size=st.sampled_from([1e-6, 1.0, 1e6]), seed=SEEDS)
def test_a_product_with_int8_weights_is_that_with_the_nearest_of_255_levels(rows, width, out, size, seed):
    x, weight = random(seed, rows, width), size * random(seed + 1, out, width)
    weight[0] = 0.0  # an output that is always 0
    packed = kernels.pack(weight)
    small = kernels.quantise(packed)
    near = kernels.unpack(small.packed * small.scales.view(-1, 1, kernels.PANEL), torch.arange(out))
    assert ((near - weight).abs() <= weight.abs().amax(1, keepdim=True) / 127 * 0.5001).all()
    added = random(seed + 2, rows, out)
    y = kernels.product(x, small, out, added)
    want = x.double() @ near.double().T + added
    assert ((y - want).abs() <= ULP * ((width + 3) * (x.abs() @ near.abs().T) + want.abs() + 1e-30)).all()
    assert torch.equal(kernels.product(x[-1:], small, out, added[-1:]), y[-1:])


@each(out=st.integers(1, 70), width=st.integers(1, 20), seed=SEEDS)
def test_packed_weights_give_their_rows_back(out, width, seed):
    weight = random(seed, out, width)
    ids = torch.randint(out, (9,))
    assert torch.equal(kernels.unpack(kernels.pack(weight), ids), weight[ids])


SLOTS = 400
RUN = st.tuples(st.integers(0, SLOTS - 1), st.integers(0, 150)).map(lambda r: (r[0], min(SLOTS, sum(r))))
SEEN = st.tuples(RUN, RUN).filter(lambda runs: any(b > a for a, b in runs))


@each(seen=st.lists(SEEN, min_size=1, max_size=6), repeats=st.integers(1, 3), heads=st.integers(1, 9),
       dim=st.sampled_from([16, 32, 48, 64, 256]), apart=st.integers(0, 3), scale=st.sampled_from([1e-3, 1.0, 30.0]),
       seed=SEEDS)
def test_attention_over_any_two_runs_is_right_and_each_row_on_its_own(seen, repeats, heads, dim, apart, scale, seed):
    seen = [runs for runs in seen for _ in range(repeats)]  # neighbours that see the same are computed together
    q = (scale * random(seed, len(seen), heads + apart, dim))[:, :heads]
    k, v = random(seed + 1, 2, SLOTS, dim)
    table = torch.tensor([(0, 0, *a, *b) for a, b in seen])
    y = kernels.attend(q, k, v, table)
    for row, runs in enumerate(seen):
        keys, values = (torch.cat([t[a:b] for a, b in runs]).double() for t in (k, v))
        want = torch.softmax(q[row].double() @ keys.T / dim ** 0.5, -1) @ values
        torch.testing.assert_close(y[row].view(heads, dim).double(), want, rtol=0, atol=2e-6 * (1 + 5 * scale))
        assert torch.equal(kernels.attend(q[row:row + 1], k, v, table[row:row + 1])[0], y[row])


@each(start=st.integers(0, 100), rows=st.integers(1, 300), cut=st.integers(0, 300), seed=SEEDS)
def test_attention_does_not_care_where_slots_lie(start, rows, cut, seed):
    """A tail right behind its prefix is one run with it, elsewhere it is a second one."""
    q, k, v = random(seed, 1, 8, 16), *random(seed + 1, 2, SLOTS, 16)
    cut = min(cut, rows)
    moved_k, moved_v = (torch.cat([t[start + cut:], t[:start + cut]]) for t in (k, v))  # its second part comes first
    end, left = start + rows, SLOTS - start - cut
    one = kernels.attend(q, k, v, torch.tensor([(0, 0, start, end, 0, 0)]))
    two = kernels.attend(q, moved_k, moved_v, torch.tensor([(0, 0, left + start, left + start + cut, 0, rows - cut)]))
    assert torch.equal(one, two)


@each(rows=st.integers(1, 20), width=st.integers(1, 300), size=st.sampled_from([1e-4, 1.0, 1e4]),
      weighted=st.booleans(), shifted=st.booleans(), seed=SEEDS)
def test_rms_norm_is_right(rows, width, size, weighted, shifted, seed):
    x = size * random(seed, rows, width)
    weight = random(seed + 1, width) if weighted else None
    shift = random(seed + 2, width) if shifted else None
    want = F.rms_norm(x.double(), (width,), None if weight is None else weight.double(), EPS)
    want = want if shift is None else want + shift
    y = kernels.rms(x, EPS, weight, shift)
    torch.testing.assert_close(y.double(), want, rtol=3e-6, atol=3e-6)
    assert torch.equal(kernels.rms(x[-1:], EPS, weight, shift), y[-1:])


@each(rows=st.integers(1, 20), heads=st.integers(1, 9), half=st.integers(1, 70), rest=st.integers(0, 2), seed=SEEDS)
def test_rotation_is_right_and_leaves_the_other_heads_alone(rows, heads, half, rest, seed):
    rope = Rope(2 * half, 50, torch.float32, torch.device('cpu'))
    cos, sin = rope.at(torch.randint(50, (rows,)))
    x = random(seed, rows, heads + rest, 2 * half)
    before, (a, b) = x.clone(), x[:, :heads].double().chunk(2, -1)
    want = torch.cat([a * cos - b * sin, b * cos + a * sin], -1)
    y = kernels.rotate(x[:, :heads], cos, sin)
    torch.testing.assert_close(y.double(), want, rtol=0, atol=2e-6)
    assert torch.equal(x[:, heads:], before[:, heads:])


@each(rows=st.integers(1, 20), width=st.integers(1, 300), size=st.sampled_from([1e-6, 1.0, 30.0, 1e4]),
      gated=st.booleans(), seed=SEEDS)
def test_gelu_is_right(rows, width, size, gated, seed):
    x, times = (size * random(seed, rows, 2 * width)).chunk(2, -1)
    want = F.gelu(x.double(), approximate='tanh') * (times if gated else 1)
    y = kernels.gelu(x, times if gated else None)
    torch.testing.assert_close(y.double(), want, rtol=3e-6, atol=1e-6 * (size if gated else 1))
    assert torch.equal(kernels.gelu(x[-1:], times[-1:] if gated else None), y[-1:])


@ours
@pytest.mark.parametrize('bad', [torch.nan, torch.inf])
def test_what_is_not_finite_stays_so(bad):
    """The engine refuses a chunk that is not finite: no kernel may hide it."""
    x = random(0, 3, 32)
    x[1, 7] = bad
    q, k = random(1, 3, 2, 16), random(2, 9, 16)
    q[1, 0, 3] = bad
    table = torch.tensor([(0, 0, 0, 9, 0, 0)] * 3)
    for y in (kernels.product(x, kernels.pack(random(3, 5, 32)), 5), kernels.rms(x, EPS), kernels.gelu(x),
              kernels.attend(q, k, k, table)):
        assert y[[0, 2]].isfinite().all() and not y[1].isfinite().all()


@ours
def test_threads_change_no_bit():
    x, packed = random(0, 50, 512), kernels.pack(random(1, 2048, 512))
    q, k, v = random(2, 50, 8, 64), *random(3, 2, 600, 64)
    table = torch.tensor([(0, 0, 5 * i, 300 + 5 * i, 0, 0) for i in range(50)])

    def run():
        return [kernels.product(x, packed, 2048), kernels.attend(q, k, v, table), kernels.rms(x.repeat(99, 1), EPS),
                kernels.gelu(x.repeat(9, 1))]

    threads = torch.get_num_threads()
    try:
        results = []
        for n in (1, 2, 3):
            torch.set_num_threads(n)
            results.append(run())
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@ours
@pytest.mark.parametrize('wrong', [
    lambda: kernels.product(random(0, 2, 8), kernels.pack(random(0, 4, 9)), 4),
    lambda: kernels.product(random(0, 2, 9), kernels.pack(random(0, 4, 9)), 17),
    lambda: kernels.attend(random(0, 1, 2, 24), *random(0, 2, 9, 24), torch.tensor([(0, 0, 0, 9, 0, 0)])),
    lambda: kernels.attend(random(0, 1, 2, 16), *random(0, 2, 9, 32)[..., ::2], torch.tensor([(0, 0, 0, 9, 0, 0)])),
    lambda: kernels.attend(random(0, 2, 2, 16), *random(0, 2, 9, 16), torch.tensor([(0, 0, 0, 9, 0, 0)])),
    lambda: kernels.attend(random(0, 1, 2, 16), *random(0, 2, 9, 16), torch.tensor([(0, 0, 0, 10, 0, 0)])),
    lambda: kernels.rms(random(0, 2, 8), EPS, random(0, 9)),
    lambda: kernels.rotate(random(0, 2, 4, 8).transpose(0, 1), *random(0, 2, 4, 1, 4)),
    lambda: kernels.gelu(random(0, 2, 8), random(0, 2, 9)),
])
def test_operands_that_do_not_fit_are_refused_before_memory_is_touched(wrong):
    with pytest.raises(ValueError, match='must|fit|need|not a row'):
        wrong()


def network() -> Pi05:
    return Pi05(tiny_config(), tensors('tiny56_weights').__getitem__)


def decode(net: Pi05, one_call: bool, requests: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """A prefix, then one pass of up to three rows per request; returns the logits and the pool."""
    pool = net.pool(400, 100)
    prefix = pool.prefix(60)
    with torch.inference_mode():
        net.forward(random(0, 60, net.config.width), observation_segments(net.config, prefix, 40), pool)
        segments = [Segment(rows, 60, 70 + 10 * i, ((prefix.start, 60),), True, rows)
                    for i, rows in enumerate((1, 2, 3) * requests) if i < requests]
        x = random(1, sum(s.rows for s in segments), net.config.width)
        if one_call:
            return net.language(x, segments, pool), pool.k, pool.v
        hidden = net.language.run(x, RaggedPlan(segments, net.language.rope, x.device), pool)
        return net.language.logits(hidden), pool.k, pool.v


@ours
@pytest.mark.parametrize('requests', [1, 2, 17])
def test_a_step_in_one_call_has_the_same_bits_as_layer_by_layer(requests):
    for one_call, one_by_one in zip(*(decode(network(), way, requests) for way in (True, False)), strict=True):
        assert torch.equal(one_call, one_by_one)


@ours
def test_drafted_tokens_are_parted_from_the_seed_before_them():
    seed = Segment(7, 60, 70, ((0, 60),), True, 3)
    assert split_steps(seed) == [Segment(5, 60, 70, ((0, 60),), True, 1),
                                 Segment(2, 65, 75, ((0, 60), (70, 5)), True, 2)]
    for other in (replace(seed, outputs=1), replace(seed, outputs=7), replace(seed, causal=False, outputs=0),
                  replace(seed, outputs=0), Segment(1, 60, 70, ((0, 60),), True, 1)):
        assert split_steps(other) == [other]


@ours
def test_int8_weights_change_steps_a_little_and_nothing_else():
    net, small = network(), network()
    small.language.decode_in_int8()
    small.language.decode_in_int8()  # once is enough
    (logits, k, v), (near, near_k, near_v) = (decode(each, True, 3) for each in (net, small))
    assert torch.equal(k[:, :60], near_k[:, :60]) and torch.equal(v[:, :60], near_v[:, :60]), 'the prefix is exact'
    assert 0 < (near - logits).pow(2).mean().sqrt() <= 0.06 * logits.std()


@ours
@pytest.mark.parametrize('segment', [Segment(1, 8192, 7), Segment(1, 0, 400), Segment(1, 0, 7, ((390, 11),))])
def test_a_step_outside_of_the_cache_or_of_the_known_positions_is_refused(segment):
    net = network()
    with pytest.raises(ValueError, match='do not fit into 8192 positions and 400 slots'):
        net.forward(random(0, 1, net.config.width), [replace(segment, outputs=1)], net.pool(400, 100))


def test_a_row_that_would_see_three_runs_is_refused():
    with pytest.raises(ValueError, match='unpack'):
        places(Segment(1, 0, 90, ((0, 5), (10, 5))))


def test_without_the_library_torch_computes_the_same_and_the_log_says_so_once(monkeypatch, caplog):
    want = decode(network(), True, 3)
    monkeypatch.setattr(kernels, 'library', None)
    monkeypatch.setattr(kernels, 'why_not', 'it rains')
    with caplog.at_level(logging.WARNING):
        net = network()
    assert [record.getMessage() for record in caplog.records] == [
        'torch alone computes the model, text 2-3 times slower than with our CPU kernels: it rains']
    for a, b in zip(decode(net, True, 3), want, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=2e-5)
    with pytest.raises(ValueError, match='decode_weights: int8 needs .* our kernels: it rains'):
        net.language.decode_in_int8()


def test_a_library_that_is_missing_or_broken_names_the_remedy(monkeypatch, tmp_path):
    monkeypatch.setattr(platform, 'machine', lambda: 'x86_64')
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX2')
    monkeypatch.setattr(oxygen_ros, '__path__', [str(tmp_path)])
    library, why = kernels.load()
    assert library is None and 'oxygen_kernels-v3.so is missing: build the package again' in why
    (tmp_path / 'oxygen_kernels-v3.so').write_bytes(b'not a library')
    library, why = kernels.load()
    assert library is None and ('invalid ELF header' in why or 'file too short' in why)
    assert 'build the package again' in why
    (tmp_path / 'oxygen_kernels-v3.so').unlink()
    (tmp_path / 'oxygen_kernels-v3.so').symlink_to(_ctypes.__file__)  # without our functions
    library, why = kernels.load()
    assert library is None and 'undefined symbol: oxygen_version: build the package again' in why
    monkeypatch.setattr(platform, 'machine', lambda: 'riscv64')
    assert kernels.load()[0] is None and 'riscv64' in kernels.load()[1]


@ours
def test_a_library_of_another_version_is_not_called(monkeypatch):
    monkeypatch.setattr(kernels, '_VERSION', kernels._VERSION + 1)  # as after a pull without a build
    library, why = kernels.load()
    assert library is None and 'of another version: build the package again' in why
