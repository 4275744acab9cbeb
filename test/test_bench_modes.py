"""The modes do the same job; copies are seen where there are any; the figures say what happened."""
import json

import numpy as np
import pytest
import torch

from oxygen_ros.bench.clock import Clock
from oxygen_ros.bench.copies import KvCopies
from oxygen_ros.bench.load import load_random
from oxygen_ros.bench.modes import MODES, Track
from oxygen_ros.bench.peer import PeerNet
from oxygen_ros.bench.run import engine as bench_engine
from oxygen_ros.bench.runners import EngineRunner, PeerRunner
from oxygen_ros.bench.workload import Workload
from oxygen_ros.engine.wire import Ask, Chunk, Speech
from oxygen_ros.kv import Pool
from oxygen_ros.model.segments import observation_segments
from oxygen_ros.policy.random_weights import random_tensors

WORKLOAD = Workload(tokens=6, per_frame=2)
RUN_KEYS = ('mode', 'frame_ms_p50', 'frame_ms_p99', 'chunk_ms_p50', 'prefill_ms_p50', 'decode_step_ms_p50',
            'tokens_per_s', 'time_to_first_token_ms_p50', 'request_ms_p50', 'decode_steps_per_sentence',
            'kv_bytes_copied_per_frame', 'deadline_misses', 'rows_per_frame', 'share_of_floor')


@pytest.fixture(scope='module')
def policy():
    return load_random('tiny', 'cpu', 'float32', 10)


@pytest.fixture(scope='module')
def peer(policy):
    return PeerNet(policy.config, random_tensors(policy.config), policy.net.device, policy.net.dtype, 10)


def track(name, policy, peer, frames=4, workload=WORKLOAD):
    track = Track(MODES[name], workload, policy, Clock(), lambda: peer)
    track.warm_up()
    for _ in range(frames):
        track.frame()
    return track


def test_the_peers_network_gives_the_same_actions_and_text(policy, peer):
    """Two implementations that share no code: what `peer` runs is the same job, and ours is right."""
    heard = {'peer': [], 'ours': []}
    peers = PeerRunner(policy, peer, WORKLOAD, Clock(), heard['peer'].append)
    ours = EngineRunner(policy, WORKLOAD, Clock(), heard['ours'].append,
                        {'mode': 'continuous', 'ride': True, 'draft': False})
    for number in (1, 2):
        observation = WORKLOAD.observation(policy, number)
        for runner in (peers, ours):
            runner.cycle(observation, [Ask(f'{number}', 'Subtask: ', max_tokens=6)])
    ours.engine.speak()
    chunks = {who: [e.actions for e in events if isinstance(e, Chunk)] for who, events in heard.items()}
    np.testing.assert_allclose(chunks['ours'], chunks['peer'], atol=2e-5)
    text = {who: {number: [t for e in events if isinstance(e, Speech) and e.request_id == number for t in e.token_ids]
                  for number in '12'} for who, events in heard.items()}
    assert text['ours'] == text['peer']
    assert all(len(ids) == 6 for ids in text['peer'].values())


@pytest.mark.parametrize('name', MODES)
def test_every_mode_does_the_work_it_is_named_for(policy, peer, name):
    frames = track(name, policy, peer).frames
    calls = [call for frame in frames for call in frame.calls]
    prefills, decodes = ([c for c in calls if c.stage == stage] for stage in ('prefill', 'decode'))
    image_rows, all_rows = 2 * 16, 3 * 16 + 200
    apart = name in ('peer', 'padded', 'isolated')
    assert len(prefills) == (2 if apart else 1) * len(frames)
    assert sum(c.stage == 'denoise' for c in calls) == len(frames)
    if name in ('peer', 'padded'):
        assert {c.rows for c in prefills} == {all_rows}
    else:
        assert min(c.rows for c in prefills) >= image_rows + 60
    tokens = sum(frame.tokens for frame in frames)
    assert tokens == (0 if name == 'act' else 6 * len(frames))
    steps = {'act': 0, 'draft': 0, 'ride': 1, 'draft_miss': 1, 'continuous': 2}.get(name, 6)
    assert len(decodes) == steps * len(frames)
    drafted, accepted = (sum(getattr(frame, what) for frame in frames) for what in ('drafted', 'accepted'))
    assert (accepted == drafted > 0) if name == 'draft' else accepted == 0


@pytest.mark.parametrize('name', ['isolated', 'shared', 'continuous', 'ride', 'draft'])
def test_our_engine_copies_no_keys_and_values(policy, peer, name):
    assert track(name, policy, peer, frames=0).copied(3) == 0


def test_a_copy_in_the_engine_is_seen(policy, peer, monkeypatch):
    """The peers' habit, put into our engine: clone the prefix for every chunk."""
    net, plain = policy.net, type(policy.net).denoise

    def copying(self, noise, prefix, pool, *rest):
        rows = slice(prefix.start, prefix.start + prefix.rows)
        pool.k[:, rows].clone()
        return plain(self, noise, prefix, pool, *rest)

    monkeypatch.setattr(type(net), 'denoise', copying)
    one = policy.config.depth * (32 + 60) * policy.config.head_dim * 4
    assert track('ride', policy, peer, frames=0).copied(3) == one


def test_the_peers_way_copies_keys_and_values(policy, peer):
    assert track('peer', policy, peer, frames=0).copied(1) > 100 * policy.config.head_dim * 4


@pytest.mark.parametrize('operation, rows', [
    (lambda k, v: k[0, 2:5].clone(), 3),
    (lambda k, v: torch.cat([k[0, :4], v[0, :2]]), 6),
    (lambda k, v: k[0].index_select(0, torch.tensor([1, 7])), 2),
    (lambda k, v: k[0, torch.tensor([1, 7, 8])], 3),
    (lambda k, v: k[0, :4, None].expand(4, 8, 16).reshape(4, 128), 32),
    (lambda k, v: k[0, :3].to(torch.float64), 6),
    (lambda k, v: k[0, :5] * 0.25, 5),
    (lambda k, v: k[0, 4:6].copy_(k[0, :2]), 2),
    (lambda k, v: torch.zeros(2, 16).copy_(v[0, :2]), 2),
    (lambda k, v: k[:, ::2].contiguous(), 20),
])
def test_every_kind_of_copy_is_counted(operation, rows):
    pool = Pool(2, 16, 20, 5)
    with torch.inference_mode(), KvCopies(pool) as copies:
        operation(pool.k, pool.v)
    assert copies.bytes == rows * 16 * 4


@pytest.mark.parametrize('operation', [
    lambda k, v: torch.nn.functional.scaled_dot_product_attention(torch.ones(1, 1, 8, 16), k[None, :1, :5],
                                                                  v[None, :1, :5]),
    lambda k, v: torch.ones(8, 16) @ k[0, :5].T,
    lambda k, v: torch.ones(8, 5) @ v[0, 3:8],
    lambda k, v: k[0].index_copy_(0, torch.tensor([3]), torch.ones(1, 16)),
    lambda k, v: k[0, 3:5].fill_(1.0),
    lambda k, v: torch.mul(torch.ones(2, 16), 2.0, out=k[0, :2]),
    lambda k, v: torch.ones(4, 16).clone(),
])
def test_reading_in_place_and_writing_new_rows_is_no_copy(operation):
    pool = Pool(2, 16, 20, 5)
    with torch.inference_mode(), KvCopies(pool) as copies:
        operation(pool.k, pool.v)
    assert copies.bytes == 0


def test_a_prefill_writes_its_rows_without_a_copy(policy):
    pool = policy.net.pool(400, 300)
    prefix = pool.prefix(92)
    with KvCopies(pool) as copies:
        policy.net.forward(torch.ones(92, 64), observation_segments(policy.config, prefix, 32), pool)
    assert copies.bytes == 0


def test_the_figures_are_written_with_one_object_per_mode(tmp_path, capsys):
    file = tmp_path / 'figures.json'
    code = bench_engine('tiny', 'peer,ride,draft', json=file, plots=tmp_path / 'plots', repeat=2, tokens=6, per_frame=2,
                        sweep=(3,))
    assert code == 0
    figures = json.loads(file.read_text())
    assert [run['mode'] for run in figures['runs']] == ['peer', 'ride', 'draft']
    for run in figures['runs'] + figures['references']:
        assert all(key in run for key in RUN_KEYS)
        assert all(np.isfinite(run[key]) for key in RUN_KEYS[1:])
        assert 0 < run['frame_ms_min'] <= run['frame_ms_p50'] <= run['frame_ms_p99']
        assert run['share_of_floor'] > 0 and 0 < run['bookkeeping_share'] < 1
    peer, ride, draft = figures['runs']
    assert draft['decode_steps_per_sentence'] == 0
    assert peer['decode_steps_per_sentence'] == 6
    assert peer['rows_per_frame'] > ride['rows_per_frame']
    assert ride['kv_bytes_copied_per_frame'] == 0 < peer['kv_bytes_copied_per_frame']
    assert {run['mode'] for run in figures['references']} == {'act', 'draft_miss'}
    assert {row['tokens'] for row in figures['sweep']} == {3}
    judged = {verdict['name'] for verdict in figures['verdicts']}
    assert judged >= {'ride frame / peer frame', 'ride chunk / peer chunk'}
    written = sorted(path.name for path in (tmp_path / 'plots').iterdir())
    assert written == ['frequency.png', 'latency.png', 'stages.png']
    assert 'ride' in capsys.readouterr().out


@pytest.mark.parametrize('options, why', [
    ({'modes': 'ride,fast'}, 'fast'), ({'modes': ''}, 'known are'), ({'repeat': 0}, '--repeat'),
    ({'cameras': 4}, 'the model has 3'), ({'prompt': 300}, 'model takes 200'), ({'rate': -1.0}, 'rate'),
    ({'clock': 'cpu', 'threads': 2}, '--clock cpu'), ({'device': 'cuda:77'}, 'cuda:77')])
def test_what_cannot_run_is_refused_in_one_line(options, why, capsys):
    assert bench_engine('tiny', **{'modes': 'ride', 'repeat': 1, **options}) == 2
    error = capsys.readouterr().err
    assert why in error and error.count('\n') == 1
