"""Training and serving run the same network: the batched, differentiable forward equals the engine's."""
import numpy as np
import pytest
import torch

from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, Speech
from oxygen_ros.policy.checkpoint import load
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.random_weights import random_tensors
from oxygen_ros.tabletop import cli, data, words
from oxygen_ros.tabletop.batches import Batches, normaliser
from oxygen_ros.tabletop.data import Frames, make_frames
from oxygen_ros.tabletop.export import export
from oxygen_ros.tabletop.network import Network, initial
from oxygen_ros.tabletop.task import Layout
from oxygen_ros.tabletop.training import CONFIG, Plan, Training


@pytest.fixture(scope='module')
def frames():
    return make_frames(seed=7, shard=0, count=12)


@pytest.fixture(scope='module')
def served(tmp_path_factory):
    """Random weights, exported and loaded by the engine's own loader: (parameters, policy)."""
    folder = tmp_path_factory.mktemp('checkpoint')
    get = random_tensors(CONFIG, seed=3)
    parameters = {name: get(name) for name in initial(CONFIG, 0)}
    export(parameters, CONFIG, folder)
    return parameters, load(folder)


def _observation(policy, frames, i):
    images = dict(zip(policy.cameras, frames.images[i]))
    return Observation(images, frames.q[i], 'touch the red cube', sequence=i)


def test_frames_are_seeded_and_differ_by_shard(frames):
    again, other = make_frames(7, 0, 12), make_frames(7, 1, 12)
    for a, b in zip(vars(frames).values(), vars(again).values()):
        np.testing.assert_array_equal(a, b)
    assert (frames.q != other.q).any() and (frames.images != other.images).any()
    assert len(Frames.join([frames, other]).take(np.arange(5))) == 5


def test_data_goes_on_where_it_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(data, 'SHARD', 6)
    with pytest.raises(FileNotFoundError, match='oxygen tabletop data'):
        data.load_data(tmp_path)
    data.make_data(tmp_path, 12)
    first, second = sorted(tmp_path.glob('*.npz'))
    before, whole = first.stat().st_mtime_ns, data.load_data(tmp_path)
    second.unlink()
    data.make_data(tmp_path, 12)
    assert first.stat().st_mtime_ns == before and not list(tmp_path.glob('*.part'))
    np.testing.assert_array_equal(data.load_data(tmp_path).images, whole.images)
    assert len(whole) == 12 and len(data.load_data(tmp_path, limit=7)) == 7


def test_batches_are_seeded_and_carry_the_truth(frames, served):
    batches = Batches(frames, served[1].tokenizer, size=6, seed=1)
    batch, _, kinds = batches.at(4)
    again, *_ = batches.at(4)
    for a, b in zip(vars(batch).values(), vars(again).values()):
        assert torch.equal(a, b)
    for row in range(6):
        prompt = batches.tokenizer.decode(batch.prompt[row, :batch.prompt_rows[row]].tolist())
        assert prompt.startswith('Task: ') and prompt.endswith(';\nAction: ')
        for owner, kind in enumerate(kinds[row]):
            mine = batch.owner[row] == owner
            said = batch.targets[row][mine]
            assert said[-1] == batches.tokenizer.eos_id
            text = batches.tokenizer.decode(said[said >= 0].tolist())
            heard = batches.tokenizer.decode(batch.text[row][mine].tolist())
            assert heard.endswith(text) and (kind != 'narration' or heard == words.NARRATION_SEED + text)
            if kind == 'memory':
                frame = [i for i in range(len(frames)) if np.array_equal(frames.images[i], batch.images[row].numpy())]
                assert text in {words.answer('memory', Layout.of(frames.cubes[i]), None, None) for i in frame}


def test_training_forward_gives_the_engines_actions(frames, served):
    parameters, policy = served
    network = Network(CONFIG, parameters)
    for i in range(4):
        events = []
        engine = Engine(policy, EngineOptions(noise_seed=5), events.append)
        engine.act(_observation(policy, frames, i))
        chunk = next(e for e in events if isinstance(e, Chunk)).actions
        engine.reset()

        prepared = policy.prepare(_observation(policy, frames, i))
        x = torch.randn(CONFIG.horizon, CONFIG.action_dim, generator=torch.Generator().manual_seed(5 + i))
        for step in range(10):
            _, velocity, _ = network(_single(frames, i, prepared.ids, [[3]], x, 1 - step / 10))
            x = x - velocity[0, 0] / 10
        expected = normaliser('action').unnormalise(x.detach().numpy())
        np.testing.assert_allclose(chunk, expected, atol=2e-5)


def test_training_forward_gives_the_engines_words_for_several_requests_at_once(frames, served):
    parameters, policy = served
    network = Network(CONFIG, parameters)
    seeds = [words.NARRATION_SEED, words.MEMORY_SEED, words.question_seed('where is the red cube?')]
    events = []
    engine = Engine(policy, EngineOptions(ride=False, draft=False), events.append)
    engine.act(_observation(policy, frames, 0))
    for seed in seeds:
        engine.ask(Ask(seed, seed, max_tokens=6))
    engine.speak()
    said = {seed: [t for e in events if isinstance(e, Speech) and e.request_id == seed for t in e.token_ids]
            for seed in seeds}
    engine.reset()

    rows = [policy.tokenizer.encode(seed) + said[seed] for seed in seeds]
    prompt = policy.prepare(_observation(policy, frames, 0)).ids
    logits, *_ = network(_single(frames, 0, prompt, rows, torch.zeros(CONFIG.horizon, CONFIG.action_dim), 1.0))
    at = 0
    for seed, row in zip(seeds, rows):
        begin = len(policy.tokenizer.encode(seed)) - 1
        for token, scores in zip(said[seed], logits[at + begin:]):
            top = scores.topk(2)
            assert token == top.indices[0] or top.values[0] - top.values[1] < 1e-3
        assert said[seed]
        at += len(row)


def _single(frames, i, prompt, texts, noise, time):
    """A batch of one observation whose requests are ``texts``; every text row is asked for logits."""
    from oxygen_ros.tabletop.network import Batch
    flat = [token for text in texts for token in text]
    owner = [n for n, text in enumerate(texts) for _ in text]
    step = [s for text in texts for s in range(len(text))]
    return Batch(torch.from_numpy(frames.images[i:i + 1]), torch.tensor([prompt + [0, 0]]), torch.tensor([len(prompt)]),
                 torch.tensor([flat + [0]]), torch.tensor([owner + [-1]]), torch.tensor([step + [0]]),
                 torch.tensor([[0] * len(flat) + [-1]]), noise[None], noise[None, None],
                 torch.full((1, 1), time))


def test_training_learns_and_goes_on_exactly_where_it_stopped(frames, tmp_path):
    plan = Plan(steps=6, batch=4, warm_up_steps=3, save_every=3)
    Training(tmp_path / 'whole', frames, frames, plan).run()
    first = Training(tmp_path / 'parts', frames, frames, plan)
    first.plan = Plan(steps=6, batch=4, warm_up_steps=3, save_every=1)
    learn, calls = first._learn, []

    def stop():
        calls.append(0)
        if len(calls) > 3:
            raise KeyboardInterrupt
        return learn()

    first._learn = stop
    with pytest.raises(KeyboardInterrupt):
        first.run()
    second = Training(tmp_path / 'parts', frames, frames, plan)
    assert second.step == 3
    second.run()
    whole, parts = (torch.load(tmp_path / name / 'state.pt', weights_only=True) for name in ('whole', 'parts'))
    fresh = initial(CONFIG, plan.seed)
    for name, tensor in whole['parameters'].items():
        assert torch.equal(tensor, parts['parameters'][name])
    assert any(not torch.equal(tensor, fresh[name]) for name, tensor in whole['parameters'].items())
    cli.plot(tmp_path / 'parts' / 'log.jsonl', tmp_path / 'curve.png')
    assert (tmp_path / 'curve.png').stat().st_size > 5000
