"""The faults that a robot meets most, on the real node with a real engine. ``oxygen bench faults`` does all of them.

How soon each is noticed is measured there, on a quiet machine; here it only must be.
"""
import pytest

pytest.importorskip('rclpy')

from oxygen_ros.bench.trust import engines, inputs  # noqa: E402
from oxygen_ros.bench.trust.fault import provoke  # noqa: E402

FAULTS = {fault.name: fault for fault in (*inputs.FAULTS, *engines.FAULTS, engines.pairs(200))}
SOME = ('camera stopped', 'camera frozen', 'camera corrupted', 'camera in bursts', 'joint states partial',
        'joint states with NaN', 'engine makes NaN', 'instruction changed while speaking', '200 questions at once',
        '200 asked and cancelled', 'engine killed')


@pytest.mark.parametrize('name', SOME)
def test_nothing_unsafe_is_published_and_everything_comes_back(live, name):
    outcome = provoke(live, FAULTS[name])
    assert not outcome.faults
    assert outcome.bad == 0 and outcome.messages > 0
    assert outcome.kv[0] == outcome.kv[1] > 0
