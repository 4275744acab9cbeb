"""Where chunks meet: blending and real-time chunking against simply taking the newest chunk, by the metric of `status`.

The policy is a flow whose velocity is known in closed form: at every observation it is as willing to go up as down.
The committed actions pass through the expert's own integration loop, the motion through the node's own timeline.
"""
from types import SimpleNamespace

import numpy as np
import pytest
import torch

pytest.importorskip('rclpy')

from oxygen_ros.contract import Contract  # noqa: E402
from oxygen_ros.engine.wire import Chunk  # noqa: E402
from oxygen_ros.model import expert  # noqa: E402
from oxygen_ros.node.freshness import SECOND  # noqa: E402
from oxygen_ros.node.motion import Motion  # noqa: E402

PERIOD, HORIZON, STEPS = 0.1, 10, 10
CYCLE, LATENCY = 0.4, 0.25
CONTRACT = Contract(
    robot='slider', semantics='absolute_position', policy_period=PERIOD, cameras=[{'name': 'eye', 'topic': 'eye'}],
    state=[{'joint': 'slider'}], actions=[{'joint': 'slider', 'position': [-1e6, 1e6], 'velocity': 1e3}])


def denoise(noise: torch.Tensor, state: float, committed: np.ndarray | None, monkeypatch) -> np.ndarray:
    """A chunk [HORIZON, 1] of the policy that goes up or down by 0.4 per period."""
    ways = state + torch.tensor([0.4, -0.4])[:, None, None] * torch.arange(1.0, HORIZON + 1)[:, None]

    def velocity(x, t):
        """Of the flow from unit noise (t = 1) to either way (t = 0): (x - E[chunk | x]) / t."""
        distance = ((x - (1 - t) * ways) ** 2).sum((1, 2))
        likely = torch.softmax(-distance / (2 * t ** 2), 0)
        return (x - (likely[:, None, None] * ways).sum(0)) / t

    monkeypatch.setattr(expert, '_modulate', velocity)
    times = [1 - i / STEPS for i in range(STEPS)]
    itself = SimpleNamespace(times=times, table=[[t] for t in times], steps=STEPS, blocks=(), action_in=lambda x: x,
                             action_out=lambda x: x)
    held = None
    if committed is not None:
        held = torch.full((HORIZON, 1), torch.nan)
        held[:len(committed)] = torch.from_numpy(committed[:HORIZON])
    nothing = torch.empty(0)
    return expert.Expert.integrate(itself, noise, nothing, nothing, nothing, nothing, committed=held).numpy()


def mean_seam(monkeypatch, blend: float, real_time_chunking: bool, cycles: int = 60) -> np.ndarray:
    """(position, velocity, jerk) on average over the takeovers of a run; the robot follows exactly."""
    motion = Motion(CONTRACT, lambda message: None, lambda row: None, lambda: 0, 'zero', blend)
    seams, robot = [], 0.0
    for sequence in range(1, cycles + 1):
        observed = round(sequence * CYCLE * SECOND)
        if (position := motion.timeline.position(observed)) is not None:
            robot = float(position[0])
        state = np.array([robot], np.float32)
        committed = motion.committed(state, observed, observed) if real_time_chunking else None
        noise = torch.randn(HORIZON, 1, generator=torch.Generator().manual_seed(sequence))
        actions = denoise(noise, robot, committed, monkeypatch)
        now = observed + round(LATENCY * SECOND)
        assert motion.take(Chunk(sequence, 0, observed, now, actions), state, state, now) == ''
        seams.append(motion.seam)
    return np.mean(seams[1:], axis=0)


def test_blending_and_real_time_chunking_beat_hard_replacement_in_position_velocity_and_jerk(monkeypatch):
    hard = mean_seam(monkeypatch, blend=0.0, real_time_chunking=False)
    blended = mean_seam(monkeypatch, blend=0.3, real_time_chunking=False)
    committed = mean_seam(monkeypatch, blend=0.0, real_time_chunking=True)
    both = mean_seam(monkeypatch, blend=0.3, real_time_chunking=True)
    assert (blended < 0.7 * hard).all(), (blended, hard)
    assert (committed < 0.7 * hard).all(), (committed, hard)
    assert (both < np.minimum(blended, committed) + 1e-6).all(), (both, blended, committed)
