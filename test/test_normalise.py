import numpy as np
import pytest
from golden import GOLDEN, tensors
from hypothesis import given
from hypothesis import strategies as st

from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.folder import read_statistics
from oxygen_ros.policy.normalise import Normaliser

MODES = {'QUANTILES': ('q01', 'q99'), 'QUANTILE10': ('q10', 'q90'), 'MEAN_STD': ('mean', 'std'),
         'MIN_MAX': ('min', 'max')}


def reference(feature):
    stats = read_statistics(GOLDEN / 'checkpoint_lerobot_tiny56' /
                            'policy_preprocessor_step_3_normalizer_processor.safetensors')
    return {name.rpartition('.')[2]: values for name, values in stats.items() if name.startswith(feature)}


def test_state_equals_the_reference():
    golden = tensors('tiny56_lerobot_processors')
    normaliser = Normaliser.make('state', 'QUANTILES', reference('observation.state'), 'lerobot', 8)
    np.testing.assert_allclose(normaliser.normalise(golden['state'].numpy()), golden['state_norm'][0], atol=2e-5)


def test_actions_equal_the_reference():
    golden = tensors('tiny56_lerobot_processors')
    # The file holds the first 70 numbers of the model's [10, 32] output: rows 0 and 1 are complete.
    rows = golden['actions_norm'].flatten()[:64].reshape(2, 32)[:, :7].numpy()
    normaliser = Normaliser.make('action', 'QUANTILES', reference('action'), 'lerobot', 7)
    np.testing.assert_allclose(normaliser.unnormalise(rows), golden['actions'][0, :2], atol=2e-5)


def test_each_format_has_its_own_epsilon():
    stats = {'q01': np.array([1.0]), 'q99': np.array([1.5]), 'mean': np.array([1.0]), 'std': np.array([0.5])}
    x = np.array([1.25])
    quantiles = {flavour: Normaliser.make('state', 'QUANTILES', stats, flavour) for flavour in ('lerobot', 'openpi')}
    assert quantiles['lerobot'].normalise(x)[0] == 0
    assert quantiles['openpi'].normalise(x)[0] == 0.25 / (0.5 + 1e-6) * 2 - 1
    assert quantiles['openpi'].unnormalise(np.array([1.0]))[0] == pytest.approx(1.5 + 1e-6, abs=1e-12)
    mean_std = Normaliser.make('state', 'MEAN_STD', stats, 'lerobot')
    assert mean_std.normalise(x)[0] == pytest.approx(0.5)
    assert mean_std.unnormalise(np.array([0.5], np.float32))[0] == 1.25


@given(mode=st.sampled_from(list(MODES)), flavour=st.sampled_from(['lerobot', 'openpi']),
       low=st.floats(-10, 10), spread=st.floats(0.01, 10), x=st.floats(-20, 20))
def test_unnormalise_is_the_way_back(mode, flavour, low, spread, x):
    first, second = MODES[mode]
    stats = {first: np.array([low]), second: np.array([spread if mode == 'MEAN_STD' else low + spread])}
    normaliser = Normaliser.make('state', mode, stats, flavour)
    raw = np.array([x], np.float32)
    np.testing.assert_allclose(normaliser.unnormalise(normaliser.normalise(raw)), raw, atol=1e-4)


@given(mode=st.sampled_from(list(MODES)), flavour=st.sampled_from(['lerobot', 'openpi']),
       low=st.floats(-3, 3), spread=st.sampled_from([0.0, 1e-9, 2e-4, 9e-4, 1e-3, 1.0]), y=st.floats(-1.5, 1.5))
def test_what_the_network_said_can_be_told_from_the_action_however_small_its_range(mode, flavour, low, spread, y):
    first, second = MODES[mode]
    stats = {first: np.array([low]), second: np.array([spread if mode == 'MEAN_STD' else low + spread])}
    normaliser = Normaliser.make('action', mode, stats, flavour)
    action = normaliser.unnormalise(np.array([y, 7.0])).astype(np.float32)
    said = normaliser.invert(action)
    assert said[1] == 7.0
    if spread < 1e-5:
        assert np.isnan(said[0]), 'anything gives this action'
    else:
        assert said[0] == pytest.approx(y, abs=0.02)
        assert np.isnan(normaliser.invert(action + 20 * spread)[0]), 'no network says that'


def test_dimensions_without_statistics_pass_through():
    normaliser = Normaliser.make('action', 'MIN_MAX', {'min': np.zeros(2), 'max': np.ones(2)}, 'openpi')
    np.testing.assert_array_equal(normaliser.unnormalise(np.array([[0.0, 1.0, 7.0]]))[:, 2], [7.0])
    identity = Normaliser.make('state', 'IDENTITY', {}, 'lerobot', 3)
    np.testing.assert_array_equal(identity.normalise(np.arange(3.0)), np.arange(3.0))


def test_a_joint_that_stood_still_is_floored_and_named():
    stats = {'q01': np.array([0.0, 0.04]), 'q99': np.array([1.0, 0.04])}
    normaliser = Normaliser.make('state', 'QUANTILES', stats, 'lerobot', 2, ('elbow', 'gripper'))
    assert 'gripper' in normaliser.notes[0] and 'elbow' not in normaliser.notes[0]
    state = normaliser.normalise(np.array([0.5, 0.0402], np.float32))
    assert abs(state[1]) < 1                                     # not 40,000
    still = normaliser.unnormalise(np.array([0.0, 1.0], np.float32))
    assert still[1] == pytest.approx(0.04)                       # the way back keeps it where it was


def test_a_joint_that_stood_still_is_refused_where_configured():
    stats = {'q01': np.array([0.0, 0.04]), 'q99': np.array([1.0, 0.04])}
    with pytest.raises(CheckpointError, match='state gripper: range below 0.001'):
        Normaliser.make('state', 'QUANTILES', stats, 'lerobot', 2, ('elbow', 'gripper'), on_flat='refuse')


@pytest.mark.parametrize(('stats', 'message'), [
    ({'mean': np.zeros(2), 'std': np.ones(2)}, 'statistic q01 is missing .found mean, std.'),
    ({}, 'statistic q01 is missing .found none.'),
    ({'q01': np.array([0, np.nan]), 'q99': np.ones(2)}, 'state wrist: q01 is not finite'),
    ({'q01': np.zeros(2), 'q99': np.array([np.inf, 1])}, 'state elbow: q99 is not finite'),
    ({'q01': np.array([0, 2.0]), 'q99': np.ones(2)}, 'state wrist: q01 and q99 are the wrong way round'),
    ({'q01': np.zeros(3), 'q99': np.ones(3)}, 'has 3 values, the checkpoint declares 2'),
])
def test_bad_statistics_are_refused_by_name(stats, message):
    with pytest.raises(CheckpointError, match=message):
        Normaliser.make('state', 'QUANTILES', stats, 'lerobot', 2, ('elbow', 'wrist'))


def test_unknown_mode_and_unequal_lengths_are_refused():
    with pytest.raises(CheckpointError, match="'FANCY' is unknown"):
        Normaliser.make('state', 'FANCY', {}, 'lerobot')
    with pytest.raises(CheckpointError, match='unequal length'):
        Normaliser.make('state', 'MIN_MAX', {'min': np.zeros(2), 'max': np.ones(3)}, 'lerobot')
