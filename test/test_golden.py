"""The network against outputs of LeRobot, openpi and OxyGen (test/data/golden): fp32, 2e-5, equal greedy ids."""
import ast
import json
from functools import cache

import pytest
import torch
from golden import metadata, tensors, tiny_config

from oxygen_ros.kv import Pool
from oxygen_ros.model import kernels
from oxygen_ros.model.pi05 import Pi05
from oxygen_ros.model.segments import observation_segments, tail_segment

TOLERANCE = dict(rtol=0, atol=2e-5)


@pytest.fixture(params=['our kernels', 'torch alone'], autouse=True)
def arithmetic(request, monkeypatch):
    """Both ways to compute the network on the CPU; one of them may be all there is."""
    network.cache_clear()
    if request.param == 'torch alone':
        monkeypatch.setattr(kernels, 'library', None)
    yield
    network.cache_clear()


@cache
def network(spec: str, mask: str, schedule: str) -> Pi05:
    return Pi05(tiny_config(spec, mask, schedule), tensors(f'{spec}_weights').__getitem__)


class Case:
    """One observation of a golden file, prefilled without its absent cameras and prompt padding."""

    def __init__(self, net: Pi05, data: dict, row: int, pool: Pool | None = None):
        self.net, self.pool = net, pool or net.pool(slots=2048, control=64)
        present = data['cam_mask'][row]
        images = data['images_u8'][row][present].permute(0, 3, 1, 2).float() / 255 * 2 - 1
        self.ids = data['tokens'][row][data['token_mask'][row].bool()].tolist()
        image_rows = net.encode(images).flatten(0, 1)
        self.embedded = torch.cat([image_rows, net.embed(self.ids)])
        self.prefix = self.pool.prefix(len(self.embedded), net.config.horizon)
        segments = observation_segments(net.config, self.prefix, len(image_rows))
        segments[-1] = type(segments[-1])(**{**segments[-1].__dict__, 'outputs': 1})
        self.logits = net.forward(self.embedded, segments, self.pool)[0]

    def kv(self, layer: int):
        rows = slice(self.prefix.start, self.prefix.start + self.prefix.rows)
        return self.pool.k[layer, rows], self.pool.v[layer, rows]

    def actions(self, noise):
        return self.net.denoise(noise, self.prefix, self.pool)

    def generate(self, seed: list, count: int, seen: int | None = None):
        """Greedy continuation of a causal seed; returns ids and the logits of each step."""
        seen = self.prefix.rows if seen is None else seen
        tail = self.pool.tail(len(seed) + count)
        ids, logits, pending = [], [], seed
        while len(ids) < count:
            segment = tail_segment(self.prefix, seen, tail, len(pending), 1)
            out = self.net.forward(self.net.embed(pending), [segment], self.pool)[0]
            tail.rows += len(pending)
            ids.append(int(out.argmax()))
            logits.append(out)
            pending = ids[-1:]
        tail.release()
        return ids, logits


def assert_greedy_equal(ids, want, margin):
    """Equal up to the first step whose top-2 margin is too small to call."""
    close = (margin <= 1e-3).nonzero()
    sure = int(close[0]) if len(close) else len(want)
    assert sure > 0
    assert ids[:sure] == want[:sure].tolist()


@pytest.mark.parametrize('spec, rows', [('tiny56', 2), ('tiny224', 1)])
def test_lerobot_prefix_kv_logits_and_actions_with_a_missing_camera(spec, rows):
    data = tensors(f'{spec}_lerobot_missing_cam')
    net = network(spec, 'prefix_lm', 'indexed')
    for row in range(rows):
        case = Case(net, data, row)
        valid = data['prefix_pad_mask'][row].bool()
        assert case.prefix.rows == int(valid.sum()) < len(valid), 'absent camera and padding cost no rows'
        torch.testing.assert_close(case.embedded, data['prefix_embs'][row][valid], **TOLERANCE)
        for layer, name in ((0, 'layer0'), (net.config.depth - 1, 'last')):
            k, v = case.kv(layer)
            torch.testing.assert_close(k, data[f'prefix_k_{name}'][row, 0][valid], **TOLERANCE)
            torch.testing.assert_close(v, data[f'prefix_v_{name}'][row, 0][valid], **TOLERANCE)
        torch.testing.assert_close(case.logits, data['last_logits'][row], **TOLERANCE)
        torch.testing.assert_close(case.actions(data['noise'][row]), data['actions'][row], **TOLERANCE)


def test_openpi_actions_with_its_additive_schedule():
    data, want = tensors('tiny56_lerobot_missing_cam'), tensors('tiny56_openpi_missing_cam_fp32')['actions']
    net = network('tiny56', 'prefix_lm', 'additive')
    for row in range(2):
        torch.testing.assert_close(Case(net, data, row).actions(data['noise'][row]), want[row], **TOLERANCE)


def test_the_two_time_schedules_differ():
    data = tensors('tiny56_lerobot_missing_cam')
    chunks = [Case(network('tiny56', 'prefix_lm', s), data, 0).actions(data['noise'][0])
              for s in ('indexed', 'additive')]
    assert not torch.equal(*chunks)


def test_oxygen_causal_text_kv_actions_and_greedy_text():
    data = tensors('tiny56_oxygen_single')
    net = network('tiny56', 'causal_text', 'additive')
    for row in range(4):
        case = Case(net, data, row)
        valid = data['prefix_pad_mask'][row].bool()
        for layer, name in ((0, 'layer0'), (net.config.depth - 1, 'last')):
            k, v = case.kv(layer)
            torch.testing.assert_close(k, data[f'prefix_k_{name}'][row, 0][valid], **TOLERANCE)
            torch.testing.assert_close(v, data[f'prefix_v_{name}'][row, 0][valid], **TOLERANCE)
        torch.testing.assert_close(case.actions(data['noise'][row]), data['actions'][row], **TOLERANCE)
        # without a seed the last prompt token is repeated as the tail's first row
        ids, logits = case.generate(case.ids[-1:], 24, seen=case.prefix.rows - 1)
        torch.testing.assert_close(logits[0], case.logits, **TOLERANCE)
        torch.testing.assert_close(logits[0].log_softmax(-1), data['first_logprobs'][row], rtol=0, atol=5e-5)
        assert_greedy_equal(ids, data['text_tokens'][row], data['text_margin'][row])


def test_oxygen_continuous_batching_across_frames():
    """A request begins with each of four frames and takes four tokens per frame, all live ones in one batch."""
    data, want = tensors('tiny56_oxygen_single'), tensors('tiny56_oxygen_continuous')
    net = network('tiny56', 'causal_text', 'additive')
    pool = net.pool(slots=2048, control=64)
    cases, tails, texts, batches = [], [], [], []
    for frame in range(len(want['batch_per_frame'])):
        if frame < len(want['tokens']):
            cases.append(Case(net, data, frame, pool))
            tails.append(pool.tail(want['tokens'].shape[1]))
            texts.append([])
            torch.testing.assert_close(cases[-1].actions(data['noise'][frame]), want['actions'][frame], **TOLERANCE)
        live = [i for i, text in enumerate(texts) if len(text) < want['tokens'].shape[1]]
        batches.append(len(live))
        for _ in range(4):
            rows = net.embed([texts[i][-1] if texts[i] else cases[i].ids[-1] for i in live])
            segments = [tail_segment(cases[i].prefix, cases[i].prefix.rows - 1, tails[i], 1, 1) for i in live]
            for i, logits in zip(live, net.forward(rows, segments, pool)):
                tails[i].rows += 1
                texts[i].append(int(logits.argmax()))
    assert batches == want['batch_per_frame'].tolist()
    for i, text in enumerate(texts):
        assert_greedy_equal(text, want['tokens'][i], data['text_margin'][i])


def test_seeded_language_on_a_bidirectional_prefix_keeps_the_actions():
    data = tensors('tiny56_seeded_prefix_lm')
    case = Case(network('tiny56', 'prefix_lm', 'indexed'), data, 0)
    for i in range(3):
        ids, _ = case.generate(data[f'seed_{i}'].tolist(), 20)
        assert_greedy_equal(ids, data[f'text_{i}'], data[f'margin_{i}'])
    torch.testing.assert_close(case.actions(data['noise'][0]), data['actions'][0], **TOLERANCE)


def test_golden_metadata_names_the_sizes_used():
    for spec in ('tiny56', 'tiny224'):
        config, said = tiny_config(spec), ast.literal_eval(json.loads(json.dumps(metadata(f'{spec}_weights')))['spec'])
        assert (config.image, config.width, config.depth, config.vocab) == (
            said['image'], said['width'], said['depth'], said['vocab'])
