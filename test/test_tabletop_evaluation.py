"""Marking the embedded robot: scores, replay in every engine mode, and what the shipped checkpoint can do."""
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.policy.checkpoint import load
from oxygen_ros.tabletop import evaluation, words
from oxygen_ros.tabletop.closed_loop import MODES, Driver, replay
from oxygen_ros.tabletop.episode import make_episode
from oxygen_ros.tabletop.evaluation import HELD_OUT
from oxygen_ros.tabletop.expert import rollout
from oxygen_ros.tabletop.network import waves
from oxygen_ros.tabletop.scores import Said, Scores, wilson
from oxygen_ros.tabletop.task import Intent, random_layout
from oxygen_ros.tabletop.training import CONFIG
from oxygen_ros.tabletop.warm_up import BINS, Where


def test_the_expert_succeeds_in_spite_of_pushes_and_noise():
    rng = np.random.default_rng(0)
    done = [rollout(make_episode(4, index), rng)[1] for index in range(12)]
    assert sum(done) >= 11


# --- scores ---------------------------------------------------------------------------------------------------------
@given(st.integers(1, 500).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_narrows_with_episodes(counts):
    done, tried = counts
    low, high = wilson(done, tried)
    assert 0 <= low <= done / tried + 1e-9 and done / tried - 1e-9 <= high <= 1
    wide = wilson(done, tried)
    narrow = wilson(10 * done, 10 * tried)
    assert narrow[1] - narrow[0] < wide[1] - wide[0]


def test_sentences_are_marked_by_kind_and_distances_within_three_centimetres():
    scores = Scores()
    for text, truth in (('52 cm ahead, 18 cm left', '50 cm ahead, 20 cm left'),
                        ('52 cm ahead, 2 cm left', '52 cm ahead, 1 cm right'),
                        ('52 cm ahead, 18 cm left', '52 cm ahead, 18 cm right'),
                        ('somewhere', '52 cm ahead, 18 cm left')):
        scores.sentence(Said('distance', 1, text, truth))
    scores.sentence(Said('narration', 1, 'at the red cube', 'at the red cube'))
    scores.sentence(Said('narration', 2, 'at the red cube', 'at the blue cube'))
    scores.sentence(Said('doing', 2, 'waiting', 'waiting', newest='going to the red cube'))
    scores.episode('touch', True)
    scores.episode('stay', False)
    report = scores.report()
    assert report['speech_exact'] == {'distance': 0.5, 'narration': 0.5, 'doing': 1.0}
    assert report['speech_exact_newest'] == {'distance': 0.5, 'narration': 0.5, 'doing': 0.0}
    assert report['success_rate'] == 0.5 and report['success_by_verb'] == {'stay': [0, 1], 'touch': [1, 1]}
    assert report['mistakes']['narration'] == [{'said': 'at the red cube', 'truth': 'at the blue cube', 'times': 1}]


# --- the tower's lesson ---------------------------------------------------------------------------------------------
def test_the_lesson_is_learnt_only_by_rows_that_name_the_right_patch_and_place():
    lesson, generator = Where(CONFIG, 0), torch.Generator().manual_seed(0)
    targets = torch.randint(BINS, (3, 4, 2), generator=generator)
    targets[0, 1] = -1
    rows = torch.randn(3, CONFIG.image_tokens, CONFIG.width, generator=generator, requires_grad=True)
    optimiser = torch.optim.Adam([rows], lr=0.3)
    lesson.weight = 10 * lesson.weight
    for _ in range(200):
        loss, error = lesson.loss(rows, targets)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert loss < 0.3 and error < 0.01
    moved = torch.where(targets >= 0, (targets + BINS // 2) % BINS, targets)
    assert lesson.loss(rows, moved)[0] > 5


def test_numbers_begin_as_neighbours():
    table = waves(100, 128, torch.Generator().manual_seed(0))
    torch.testing.assert_close(table.norm(dim=1), torch.ones(100))
    likeness = table @ table.T
    assert likeness.diagonal(1).min() > 0.8 and likeness.diagonal(50).max() < 0.5


# --- the shipped checkpoint -----------------------------------------------------------------------------------------
@pytest.fixture(scope='module')
def policy():
    torch.set_num_threads(1)
    return load('tabletop')


@pytest.fixture(scope='module')
def outcomes(policy):
    """A few held-out episodes in simulated time."""
    driver = Driver(policy)
    yield [driver.drive(make_episode(HELD_OUT, index), index) for index in range(4)]
    driver.close()


def test_the_shipped_policy_reaches_and_tells_the_truth(outcomes):
    scores = Scores()
    for outcome in outcomes:
        for said in outcome.said:
            scores.sentence(said)
    assert sum(outcome.success for outcome in outcomes) >= 3
    for kind in ('where', 'memory', 'count'):
        assert scores.exact[kind] >= 0.9 * scores.asked[kind] > 0
    assert set(scores.asked) == set(words.KINDS)


def test_without_sight_the_answers_are_guesses(policy):
    driver, scores = Driver(policy), Scores()
    for index in range(2):
        for said in driver.drive(make_episode(HELD_OUT, index), index, blank=True, limit=1.0).said:
            scores.sentence(said)
    driver.close()
    assert scores.exact['where'] <= 0.5 * scores.asked['where'] and scores.exact['memory'] == 0


def test_every_engine_mode_makes_the_same_chunks_and_texts(policy, outcomes):
    recordings = [outcome.recording[:12] for outcome in outcomes[:2]]
    made = {mode: replay(policy, mode, recordings) for mode in MODES}
    reference = made['isolated']
    assert len(reference.chunks) == sum(map(len, recordings)) and reference.texts
    for mode, other in made.items():
        assert other.texts == reference.texts, mode
        for number, chunk in reference.chunks.items():
            np.testing.assert_allclose(other.chunks[number], chunk, atol=evaluation.TOLERANCE, err_msg=mode)
    assert made['continuous+ride+draft'].report.accepted > 0
    assert made['continuous+ride+draft'].report.decode_steps < made['continuous'].report.decode_steps


def test_the_same_scene_is_described_differently_for_another_intent():
    layout = random_layout(np.random.default_rng(0))
    first, second = list(layout.cubes)[:2]
    tip = Intent('touch', first).goal(layout)
    assert words.answer('narration', layout, Intent('touch', first), tip) == f'at the {first} cube'
    assert words.answer('narration', layout, Intent('touch', second), tip).startswith('moving')
    assert words.answer('doing', layout, Intent('stay'), tip) == 'waiting'
