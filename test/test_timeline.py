"""The motion made from chunks: continuous, complete, within limits, and never from the past."""
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.contract import Action
from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.timeline import Timeline

T0 = 5_000_000 * SECOND  # a machine that has been up for two months: floats alone would be too coarse
PERIOD = 0.1
HERE = np.zeros(2)


def at(seconds: float) -> int:
    return T0 + round(seconds * SECOND)


def timeline(blend=0.2, velocity=1e6, position=(-1e6, 1e6), **options) -> Timeline:
    joints = [Action(joint=name, position=position, velocity=velocity, **options) for name in 'ab']
    return Timeline(joints, PERIOD, blend)


def ramp(first: float, horizon=10, slope=1.0) -> np.ndarray:
    """A chunk that goes on from ``first`` at ``slope`` per second."""
    return np.repeat((first + slope * PERIOD * np.arange(1, horizon + 1))[:, None], 2, axis=1)


def test_nothing_moves_before_the_first_chunk():
    assert timeline().points(at(0)) is None and timeline().position(at(0)) is None


def test_the_first_chunk_starts_at_its_first_action_however_long_it_took():
    line = timeline()
    assert line.push(ramp(0.0), 1, at(-0.7), HERE, at(0)) == ''
    ahead, positions = line.points(at(0))
    assert ahead.tolist() == [round(PERIOD * SECOND) * k for k in range(1, 11)]
    assert positions == pytest.approx(ramp(0.0))


def test_the_first_point_is_one_period_ahead_at_any_tick():
    line = timeline()
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    for tick in np.arange(0, 0.99, 0.02):
        ahead, positions = line.points(at(tick))
        assert ahead[0] == round(PERIOD * SECOND)
        assert positions[0, 0] == pytest.approx(min(tick + PERIOD, 1.0))


def test_what_was_executed_meanwhile_is_skipped_and_no_more():
    line = timeline()
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    line.push(ramp(0.3), 2, at(0.3), HERE, at(0.55))  # observed at 0.3 where the ramp was 0.3; 0.25 s to compute
    for tick in (0.55, 0.6, 0.9, 1.2):
        assert line.position(at(tick)) == pytest.approx([tick, tick])
    assert not line.moving(at(1.3))


def test_time_spent_standing_still_is_not_skipped():
    line = timeline()
    line.push(ramp(0.0, horizon=3), 1, at(0), HERE, at(0))
    line.push(ramp(0.2), 2, at(0.2), np.array([0.3, 0.3]), at(1.0))  # ran out at 0.3: only 0.1 s was executed
    assert line.position(at(1.0)) == pytest.approx([0.3, 0.3])
    assert line.position(at(1.1)) == pytest.approx([0.4, 0.4])
    assert not line.moving(at(1.9))


def test_after_a_stop_the_motion_starts_from_where_the_robot_is():
    line = timeline()
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    assert line.stop(at(0.4)) == pytest.approx([0.4, 0.4])
    assert line.points(at(0.41)) is None and line.stop(at(0.42)) is None
    line.push(ramp(5.0), 2, at(0.5), np.array([5.0, 5.0]), at(0.9))
    assert line.position(at(0.9)) == pytest.approx([5.0, 5.0])


def test_a_disagreeing_chunk_is_blended_in():
    line = timeline(blend=0.4)
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    line.push(ramp(0.3) + 1.0, 2, at(0.3), HERE, at(0.3))
    offsets = [float(line.position(at(tick))[0]) - tick for tick in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1.2)]
    assert offsets == pytest.approx([0, 0.25, 0.5, 0.75, 1, 1, 1])
    assert line.seam == pytest.approx((0.25, 2.5, 250.0))


def test_blending_makes_a_smaller_seam_than_hard_replacement():
    seams = {}
    for blend in (0.0, 0.4):
        line = timeline(blend=blend)
        line.push(ramp(0.0), 1, at(0), HERE, at(0))
        line.push(ramp(0.3) + 1.0, 2, at(0.3), HERE, at(0.35))
        seams[blend] = np.array(line.seam)
    assert (seams[0.4] < seams[0.0] / 2).all()


def test_what_is_still_to_come_is_told_for_the_next_chunk():
    line = timeline()
    assert len(line.upcoming(at(0), 3)) == 0
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    assert line.upcoming(at(0.25), 3) == pytest.approx(np.array([[0.35] * 2, [0.45] * 2, [0.55] * 2]))
    assert len(line.upcoming(at(0.85), 3)) == 1, 'no further than the line goes'


def test_a_chunk_that_begins_with_what_is_committed_has_no_seam():
    seams = []
    for commit in (0, 5):
        line = timeline(blend=0.0)
        line.push(ramp(0.0), 1, at(0), HERE, at(0))
        fresh = ramp(0.3) + 0.2
        fresh[:commit] = line.upcoming(at(0.3), commit)
        fresh[commit:] -= 0.1 * bool(commit)  # and continues it, as far as the policy can
        line.push(fresh, 2, at(0.3), HERE, at(0.55))
        seams.append(line.seam)
    assert max(seams[1]) < 1e-6 < min(seams[0])


def test_an_older_or_repeated_chunk_is_ignored():
    line = timeline()
    line.push(ramp(0.0), 7, at(0), HERE, at(0))
    for sequence in (6, 7):
        assert 'not newer' in line.push(ramp(9.0), sequence, at(0), HERE, at(0.1))
    assert line.position(at(0.2)) == pytest.approx([0.2, 0.2])
    assert (line.counts.chunks, line.counts.refused) == (1, 2)


@pytest.mark.parametrize('rubbish', [np.nan, np.inf, -np.inf])
def test_one_non_finite_value_refuses_the_whole_chunk(rubbish):
    line = timeline()
    bad = ramp(0.0)
    bad[4, 1] = rubbish
    assert 'non-finite' in line.push(bad, 1, at(0), HERE, at(0))
    assert 'beyond' in line.push(ramp(0.0), 1, at(0), np.array([0.0, rubbish]), at(0))
    assert line.points(at(0)) is None and line.counts.refused == 2


def test_a_robot_that_cannot_be_where_it_says_is_not_moved():
    line = timeline(position=(-1, 1))
    assert 'b is said to be at 1.3, beyond its limits [-1.0, 1.0]' in line.push(
        ramp(0.0), 1, at(0), np.array([0.0, 1.3]), at(0))
    assert line.push(ramp(0.0), 1, at(0), np.array([0.0, 1.1]), at(0)) == ''
    assert (np.diff(line.points(at(0))[1][:, 1]) <= 0.1 + 1e-9).all(), 'it comes back within its limits'


def test_a_chunk_whose_actions_have_all_elapsed_is_refused():
    line = timeline()
    line.push(ramp(0.0, horizon=30), 1, at(0), HERE, at(0))
    assert 'elapsed' in line.push(ramp(0.0), 2, at(0.5), HERE, at(1.6))


def test_a_spike_is_clamped_and_counted():
    line = timeline(blend=0.0, velocity=2.0, position=(-0.5, 0.8))
    spiky = ramp(0.0, horizon=5)
    spiky[2] = 50.0
    line.push(spiky, 1, at(0), HERE, at(0))
    positions = line.points(at(0))[1][:, 0]
    assert positions == pytest.approx([0.1, 0.2, 0.4, 0.4, 0.5])
    assert line.counts.position_clamps == 2 and line.counts.velocity_clamps == 2


def test_max_delta_limits_the_change_within_one_period():
    line = timeline(blend=0.0, max_delta=0.05)
    line.push(ramp(1.0, horizon=4), 1, at(0), HERE, at(0))
    assert line.points(at(0))[1][:, 0] == pytest.approx([0.05, 0.1, 0.15, 0.2])


def test_the_end_of_the_chunk_is_one_last_point_then_silence():
    line = timeline()
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    ahead, positions = line.points(at(0.95))
    assert len(ahead) == 1 and positions == pytest.approx(np.ones((1, 2)))
    assert line.points(at(1.0)) is None


CHUNK = st.tuples(st.floats(0.0, 0.6), st.floats(0.0, 1.5), st.integers(1, 12), st.integers(0, 2**32 - 1))


@given(chunks=st.lists(CHUNK, min_size=1, max_size=6), blend=st.sampled_from([0.0, 0.05, 0.3]),
       tick=st.floats(0.005, 0.05), scale=st.sampled_from([0.1, 1.0, 100.0]))
def test_any_sequence_of_chunks_gives_a_safe_continuous_motion(chunks, blend, tick, scale):
    """chunks: (pause after the one before, latency, horizon, seed of its values)."""
    low, high, speed = -1.0, 1.5, 2.0
    line = timeline(blend=blend, velocity=speed, position=(low, high))
    now, robot = 0.0, HERE
    for sequence, (pause, latency, horizon, seed) in enumerate(chunks):
        now += pause
        before = line.position(at(now))
        values = np.random.default_rng(seed).normal(size=(horizon, 2)) * scale
        line.push(values, sequence, at(now - latency), robot, at(now))
        if before is not None:
            assert line.position(at(now)) == pytest.approx(before), 'no jump where chunks meet'
        for step in range(4):
            here = at(now + step * tick)
            if (points := line.points(here)) is None:
                continue
            ahead, positions = points
            robot = line.position(here)
            assert ahead[0] == line.period and (np.diff(ahead) > 0).all()
            assert positions.shape == (len(ahead), 2) and np.isfinite(positions).all()
            assert (positions >= low - 1e-9).all() and (positions <= high + 1e-9).all()
            path = np.concatenate([robot[None], positions])
            steps = np.diff(np.concatenate([[0], ahead]))[:, None] / SECOND
            assert (np.abs(np.diff(path, axis=0)) <= speed * steps + 1e-6).all()


@given(latency=st.floats(0, 0.85), tick=st.floats(0, 1), blend=st.floats(0, 0.5))
def test_chunks_that_agree_are_one_motion(latency, tick, blend):
    """A policy that always continues the same line moves along it whatever the latency and the blend."""
    line = timeline(blend=blend)
    line.push(ramp(0.0), 1, at(0), HERE, at(0))
    line.push(ramp(0.1), 2, at(0.1), HERE, at(0.1 + latency))
    now = 0.1 + latency + tick * (1.0 - latency - 1e-6)
    assert line.position(at(now)) == pytest.approx([now, now], abs=1e-6)
