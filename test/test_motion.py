"""What the ticker publishes, on a clock that is moved by hand."""
from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip('rclpy')

from arm_engine import JOINTS, PERIOD  # noqa: E402
from ros_helpers import contract  # noqa: E402

from oxygen_ros.contract import Contract  # noqa: E402
from oxygen_ros.engine.wire import Chunk  # noqa: E402
from oxygen_ros.node.freshness import SECOND  # noqa: E402
from oxygen_ros.node.motion import Motion  # noqa: E402

HERE = np.zeros(len(JOINTS))


@pytest.fixture
def moving(monkeypatch):
    """(motion under way to 0.1 rad for a second, its clock, trajectories, rows)."""
    clock = SimpleNamespace(now=100 * SECOND, monotonic_ns=lambda: clock.now)
    monkeypatch.setattr('oxygen_ros.node.motion.time', clock)
    trajectories, rows = [], []
    motion = Motion(Contract.model_validate(contract()), trajectories.append, rows.append, clock.monotonic_ns, 'zero',
                    blend_s=0.0)
    actions = np.linspace(0.01, 0.1, 10, dtype=np.float32)[:, None].repeat(len(JOINTS), axis=1)
    assert actions.shape[0] * PERIOD == 1.0
    assert motion.take(Chunk(1, 0, clock.now, clock.now, actions), HERE, HERE, clock.now) == ''
    return motion, clock, trajectories, rows


def test_the_last_row_is_the_end_of_the_motion_and_comes_once(moving):
    motion, clock, trajectories, rows = moving
    for _ in range(60):
        motion.tick()
        clock.now += SECOND // 50
    assert len(rows) == len(trajectories) + 1 == 51
    assert rows[-1] == pytest.approx(0.1) and rows[-2] == pytest.approx(0.098)


@pytest.mark.parametrize('late_s, rows_more', [(1.1, 1), (30.0, 0)])
def test_a_ticker_that_was_held_up_does_not_jump_to_an_end_of_long_ago(moving, late_s, rows_more):
    motion, clock, trajectories, rows = moving
    motion.tick()
    clock.now += round(late_s * SECOND)
    for _ in range(3):
        motion.tick()
    assert (len(trajectories), len(rows)) == (1, 1 + rows_more)


def test_after_a_halt_nothing_is_published_though_the_end_is_near(moving):
    motion, clock, trajectories, rows = moving
    motion.tick()
    clock.now += SECOND // 2
    assert motion.halt() and rows[-1] == pytest.approx(0.05)
    clock.now += SECOND // 50
    motion.tick()
    assert len(rows) == len(trajectories) == 2
