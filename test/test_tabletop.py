"""The simulated robot and its task, without ROS."""
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from oxygen_ros.tabletop import arm, words
from oxygen_ros.tabletop.controller import Controller
from oxygen_ros.tabletop.episode import make_episode, random_start
from oxygen_ros.tabletop.scene import CAMERAS, HOME, RGB, Scene, project
from oxygen_ros.tabletop.task import COLOURS, CUBE, REACHED, SIDES, Intent, Judge, Layout, random_layout
from oxygen_ros.tabletop.vocabulary import FILE, SIZE, train


@pytest.fixture(scope='module')
def scene():
    scene = Scene(64)
    yield scene
    scene.close()


# --- arm ------------------------------------------------------------------------------------------------------------
@given(st.tuples(st.floats(0.44, 0.70), st.floats(-0.31, 0.31), st.floats(0.07, 0.36)))
def test_inverse_kinematics_puts_the_finger_there_pointing_down_within_limits(tip):
    q = arm.inverse(np.array(tip))
    position, rotation = arm.forward(q)
    np.testing.assert_allclose(position, tip, atol=1e-9)
    np.testing.assert_allclose(rotation[:, 2], (0, 0, -1), atol=1e-9)
    assert (np.abs(q) < arm.LIMIT).all()


def test_forward_kinematics_equals_the_simulator_and_joint_names_are_the_urdfs(scene):
    q = np.random.default_rng(0).uniform(-1.5, 1.5, 7)
    for joint, position in enumerate(q):
        scene._world.resetJointState(scene._arm, joint, position)
        info = scene._world.getJointInfo(scene._arm, joint)
        assert info[1].decode() == arm.JOINTS[joint]
        assert info[9] == pytest.approx(arm.LIMIT[joint], abs=1e-3)
    position, rotation = arm.forward(q)
    flange = scene._world.getLinkState(scene._arm, 6, computeForwardKinematics=True)[4]
    np.testing.assert_allclose(position - arm.FINGER * rotation[:, 2], flange, atol=1e-6)


# --- what the cameras see -----------------------------------------------------------------------------------------
def _pixels(image, colour):
    rgb = image.astype(float) / 255
    target = np.array(RGB[colour])
    cosine = (rgb @ target) / (np.linalg.norm(rgb, axis=-1) * np.linalg.norm(target) + 1e-9)
    return int((cosine > 0.97).sum())


def test_the_same_seed_gives_the_same_pictures_and_another_does_not(scene):
    def pictures(seed):
        episode = make_episode(seed, 0)
        scene.reset(episode.layout, episode.start)
        return [scene.render(camera) for camera in CAMERAS]

    first, again, other = pictures(5), pictures(5), pictures(6)
    for a, b in zip(first, again):
        np.testing.assert_array_equal(a, b)
        assert a.shape == (64, 64, 3) and a.dtype == np.uint8
    assert any((a != c).any() for a, c in zip(first, other))


@pytest.mark.parametrize('index', range(6))
def test_every_cube_is_seen_by_the_front_camera_wherever_the_arm_is(scene, index):
    episode = make_episode(9, index)
    for goal in [episode.start, *(arm.inverse(Intent('touch', c).goal(episode.layout)) for c in episode.layout.cubes)]:
        scene.reset(episode.layout, goal)
        image = scene.render('front')
        seen = {c for c in COLOURS if _pixels(image, c) >= 6}
        assert seen == set(episode.layout.cubes)


@pytest.mark.parametrize('camera', CAMERAS)
def test_projection_says_where_a_cube_is_in_the_picture(scene, camera):
    layout = Layout({'red': (0.50, 0.05)})
    scene.reset(layout, arm.inverse(np.array([0.50, 0.0, 0.30])))
    rgb = scene.render(camera).astype(int)
    rows, columns = np.nonzero(rgb[..., 0] > 3 * rgb[..., 1])
    seen = np.array([columns.mean() + 0.5, rows.mean() + 0.5]) / 64
    np.testing.assert_allclose(project(camera, scene.q, np.array([0.50, 0.05, CUBE / 2])), seen, atol=0.03)


def test_an_unknown_camera_is_named(scene):
    with pytest.raises(ValueError, match="unknown camera 'back'.*front, wrist"):
        scene.render('back')


# --- controller -----------------------------------------------------------------------------------------------------
def _line(n, step):
    return 0.1 * np.arange(1, n + 1), HOME + np.arange(1, n + 1)[:, None] * step


def test_controller_interpolates_by_time_from_start_and_ends_holding():
    controller = Controller(HOME)
    controller.advance(10.0)
    controller.follow(10.0, *_line(10, np.full(7, 0.05)))
    for now in np.arange(10.01, 12.0, 0.01):
        q = controller.advance(now)
        np.testing.assert_allclose(q, HOME + 0.5 * min(now - 10.0, 1.0), atol=1e-9)


def test_a_new_trajectory_takes_over_without_a_jump():
    controller = Controller(HOME)
    controller.advance(0.0)
    controller.follow(0.0, *_line(10, np.full(7, 0.1)))
    before = controller.advance(0.5).copy()
    controller.follow(0.5, np.array([1.0]), HOME[None])
    np.testing.assert_allclose(controller.advance(0.51), before + (HOME - before) * 0.01, atol=1e-9)


def test_points_in_the_past_are_skipped_and_a_stale_trajectory_moves_nothing():
    controller = Controller(HOME)
    controller.advance(5.0)
    controller.follow(1.0, *_line(10, np.full(7, 0.1)))
    np.testing.assert_array_equal(controller.advance(6.0), HOME)
    controller.follow(5.55, *_line(10, np.full(7, 0.01)))       # points before 6.0 lie in the past
    np.testing.assert_allclose(controller.advance(7.0), HOME + 0.1, atol=1e-9)


def test_speed_and_position_are_limited():
    controller = Controller(HOME)
    controller.advance(0.0)
    controller.follow(0.0, np.array([0.01]), np.full((1, 7), 50.0))
    q = controller.advance(0.1)
    np.testing.assert_allclose(q - HOME, 0.1 * arm.MAX_VELOCITY, atol=1e-9)
    for now in np.arange(0.2, 10, 0.1):
        q = controller.advance(now)
    np.testing.assert_allclose(q, arm.LIMIT)


@pytest.mark.parametrize('times, points, why', [
    ([0.1], np.full((1, 7), np.nan), 'non-finite'), ([0.1, 0.1], np.zeros((2, 7)), 'increase'),
    ([0.1], np.zeros((1, 6)), 'need'), ([], np.zeros((0, 7)), 'need')])
def test_an_unusable_trajectory_is_refused_and_moves_nothing(times, points, why):
    controller = Controller(HOME)
    controller.advance(0.0)
    with pytest.raises(ValueError, match=why):
        controller.follow(0.0, times, points)
    np.testing.assert_array_equal(controller.advance(1.0), HOME)


# --- task and words -------------------------------------------------------------------------------------------------
layouts = st.integers(0, 2**32 - 1).map(lambda seed: random_layout(np.random.default_rng(seed)))


@given(layouts)
def test_cubes_never_overlap_and_categories_have_clear_margins(layout):
    assert 3 <= len(layout.cubes) <= 4
    centres = np.array(list(layout.cubes.values()))
    apart = np.abs(centres[:, None] - centres[None]).max(-1) + np.eye(len(centres))
    assert apart.min() > CUBE
    for colour, (_, y) in layout.cubes.items():
        low, high = SIDES[layout.side(colour)]
        assert low <= y <= high
    np.testing.assert_array_equal(Layout.of(layout.array()).array(), layout.array())


@given(layouts, st.integers(0, 2**32 - 1))
def test_what_is_said_agrees_with_the_geometry(layout, seed):
    rng = np.random.default_rng(seed)
    colour = str(rng.choice(list(layout.cubes)))
    intent = Intent('touch', colour)
    tip = arm.fingertip(random_start(rng))
    goal = intent.goal(layout)
    said = words.answer('narration', layout, intent, tip)
    if np.linalg.norm(goal - tip) <= REACHED:
        assert said == f'at the {colour} cube'
    else:
        assert said.startswith('moving') and colour in said
        assert ('left' in said) == (goal[1] - tip[1] >= words.SIDEWAYS)
        assert ('right' in said) == (tip[1] - goal[1] >= words.SIDEWAYS)
    assert words.answer('narration', layout, intent, goal) == f'at the {colour} cube'
    for other in COLOURS:
        where = words.answer('where', layout, intent, tip, other)
        assert (where == 'not on the table') == (other not in layout.cubes)
        assert other not in layout.cubes or (layout.side(other) in where and layout.depth(other) in where)
    assert words.answer('memory', layout, intent, tip).count(',') == len(layout.cubes) - 1


def test_stay_is_obeyed_only_by_staying():
    layout = random_layout(np.random.default_rng(0))
    start = np.array([0.5, 0.0, 0.3])
    still, moved = (Judge(layout, Intent('stay'), start) for _ in range(2))
    assert not still.watch(0.0, start) and not still.watch(2.0, start) and still.watch(3.1, start)
    moved.watch(0.0, start)
    assert not moved.watch(1.0, start + 0.1) and moved.failed and not moved.watch(9.0, start)


def test_touch_needs_to_be_held():
    layout = random_layout(np.random.default_rng(0))
    intent = Intent('touch', next(iter(layout.cubes)))
    goal = intent.goal(layout)
    judge = Judge(layout, intent, goal + 0.2)
    assert not judge.watch(0.0, goal) and not judge.watch(0.4, goal)
    assert not judge.watch(0.45, goal + 0.2) and not judge.watch(0.6, goal) and judge.watch(1.1, goal)


@given(st.integers(0, 10_000), st.integers(0, 100))
def test_episodes_ask_only_for_cubes_that_are_there(seed, index):
    episode = make_episode(seed, index, layout_every=3)
    assert episode.intent.colour in {'', *episode.layout.cubes}
    assert (np.abs(episode.start) < arm.LIMIT).all()


# --- tokenizer ------------------------------------------------------------------------------------------------------
def test_the_shipped_tokenizer_is_the_trained_one(tokenizer):
    assert json.loads(tokenizer.to_str()) == json.loads(train().to_str())
    assert tokenizer.get_vocab_size() == SIZE
    assert [tokenizer.token_to_id(t) for t in ('<pad>', '<eos>', '<bos>')] == [0, 1, 2]


@pytest.fixture(scope='module')
def tokenizer():
    return Tokenizer.from_file(str(FILE))


@settings(max_examples=300)
@given(st.text())
def test_any_text_survives_the_tokenizer(tokenizer, text):
    assert tokenizer.decode(tokenizer.encode(text, add_special_tokens=False).ids, skip_special_tokens=False) == text


def test_every_discretised_joint_is_two_tokens(tokenizer):
    for value in range(256):
        assert len(tokenizer.encode(f' {value}', add_special_tokens=False).ids) == 2
