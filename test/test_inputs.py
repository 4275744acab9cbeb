"""The snapshot of all inputs: consistent, mapped by name, or refused with the reason."""
from types import SimpleNamespace

import numpy as np
import pytest

from oxygen_ros.contract import Contract
from oxygen_ros.node.freshness import SECOND
from oxygen_ros.node.inputs import Inputs

T0 = 1000 * SECOND
COLOURS = {'base': (200, 0, 0), 'left': (0, 200, 0), 'right': (0, 0, 200)}


def contract(**changes) -> Contract:
    return Contract.model_validate({
        'robot': 'test', 'semantics': 'absolute_position', 'policy_period': 0.1,
        'cameras': [{'name': name, 'topic': f'{name}/image'} for name in COLOURS],
        'state': [{'joint': 'elbow'}], 'actions': [{'joint': 'elbow', 'position': [-1, 1]}], **changes})


def at(seconds):
    return T0 + round(seconds * SECOND)


def header(stamp):
    return SimpleNamespace(stamp=SimpleNamespace(sec=stamp // SECOND, nanosec=stamp % SECOND))


def picture(colour=(1, 2, 3), stamp=T0, encoding='rgb8', width=4):
    data = np.full((2, width, 3), colour, np.uint8).tobytes()
    return SimpleNamespace(header=header(stamp), height=2, width=width, encoding=encoding, step=3 * width,
                           is_bigendian=0, data=data)


def joint_state(position=0.5, stamp=T0):
    return SimpleNamespace(header=header(stamp), name=['elbow'], position=[position], velocity=[], effort=[])


def fed(stamps=None, position=0.5, **changes) -> Inputs:
    """Inputs that have received everything at T0."""
    inputs = Inputs(contract(**changes))
    for name in inputs.cameras:
        inputs.image(name, picture(COLOURS.get(name), (stamps or {}).get(name, T0)), T0)
    inputs.joint_state('joint_states', joint_state(position, (stamps or {}).get('joints', T0)), T0)
    return inputs


def kinds(inputs, seconds=0.0, skew=0.25):
    return [problem.kind for problem in inputs.problems(at(seconds), at(seconds), skew)]


def test_each_picture_arrives_under_its_own_name():
    inputs = fed()
    assert not kinds(inputs)
    snapshot, problems = inputs.snapshot(T0, T0)
    assert not problems and list(snapshot.images) == list(COLOURS), 'in the order of the contract'
    for name, colour in COLOURS.items():
        assert (snapshot.images[name] == colour).all()
    assert snapshot.state == pytest.approx([0.5]) and snapshot.stamp == snapshot.received == T0


def test_the_stamp_is_that_of_the_newest_input():
    inputs = fed({'left': at(0.1)})
    assert inputs.snapshot(T0, T0)[0].stamp == at(0.1)
    assert inputs.snapshot(T0, T0)[0].image_stamps == {'base': T0, 'left': at(0.1), 'right': T0}


def test_without_stamps_the_clock_serves_and_pictures_are_still_told_apart():
    inputs = fed(dict.fromkeys((*COLOURS, 'joints'), 0))
    first = inputs.snapshot(T0, at(3))[0]
    assert first.stamp == at(3) and first.image_stamps['left'] == T0
    inputs.image('left', picture(stamp=0), at(0.1))
    assert inputs.snapshot(T0, at(3))[0].image_stamps['left'] == at(0.1)


def test_the_newest_picture_wins():
    inputs = fed()
    for step in range(1, 30):
        inputs.image('base', picture((step, 0, 0), at(step / 30)), at(step / 30))
    assert inputs.snapshot(at(1), at(1))[0].images['base'][0, 0, 0] == 29


@pytest.mark.parametrize('required', [True, False])
def test_a_picture_that_cannot_be_decoded_blocks_only_if_it_is_needed(required):
    cameras = [{'name': 'base', 'topic': 'base/image'}, {'name': 'left', 'topic': 'left/image', 'required': required}]
    inputs = fed(cameras=cameras)
    inputs.image('left', picture(encoding='32FC1'), T0)
    snapshot, (problem,) = inputs.snapshot(T0, T0)
    assert problem.blocking == required and 'camera left on left/image' in str(problem) and '32FC1' in str(problem)
    assert snapshot is None if required else list(snapshot.images) == ['base']


def test_no_camera_at_all_is_no_observation():
    inputs = Inputs(contract(cameras=[{'name': 'base', 'topic': 'base/image', 'required': False}]))
    inputs.joint_state('joint_states', joint_state(), T0)
    assert inputs.snapshot(T0, T0)[0] is None


def optional():
    """Cameras of which one may fail."""
    return [{'name': 'base', 'topic': 'base/image'},
            {'name': 'left', 'topic': 'left/image', 'required': False}]


@pytest.mark.parametrize('stamp, seconds', [(T0, 0.6), (at(-1.0), 0.0)], ids=['dead', 'late'])
def test_a_camera_that_may_fail_is_left_out_while_it_does(stamp, seconds):
    inputs = fed({'left': stamp}, cameras=optional())
    inputs.image('base', picture(stamp=at(seconds)), at(seconds))
    inputs.joint_state('joint_states', joint_state(stamp=at(seconds)), at(seconds))
    problem, = inputs.problems(at(seconds), at(seconds), 0.25)
    assert not problem.blocking and 'camera left' in str(problem)
    assert list(inputs.snapshot(at(seconds), at(seconds))[0].images) == ['base']
    inputs.image('left', picture(stamp=at(seconds)), at(seconds))
    assert list(inputs.snapshot(at(seconds), at(seconds))[0].images) == ['base', 'left']


def test_a_note_hides_nothing_that_keeps_the_robot_from_moving():
    inputs = fed({'base': at(-0.3)}, cameras=optional())
    inputs.cameras['left'].freshness.received = None
    assert kinds(inputs) == ['missing', 'skew']
    inputs = fed()
    for publisher in 'ab':
        inputs.joint_state('joint_states', joint_state(1e9), T0, publisher)
    assert kinds(inputs) == ['conflict', 'implausible']


def test_a_stamp_that_is_not_trusted_does_not_tell_pictures_apart():
    cameras = [{'name': 'base', 'topic': 'base/image', 'trust_stamp': False}]
    inputs = fed({'base': at(-900)}, cameras=cameras)
    first = inputs.snapshot(T0, T0)[0].image_stamps['base']
    inputs.image('base', picture(stamp=at(-900)), at(0.1))  # the driver's clock stands still
    assert inputs.snapshot(at(0.1), at(0.1))[0].image_stamps['base'] != first


def test_a_stamp_that_is_not_trusted_is_not_the_observations():
    ahead = {'left': at(100), 'joints': at(-1)}
    cameras = [{'name': name, 'topic': f'{name}/image', 'trust_stamp': name != 'left'} for name in COLOURS]
    assert fed(ahead, cameras=cameras).snapshot(T0, T0)[0].stamp == T0
    nobody = [{**camera, 'trust_stamp': False} for camera in cameras]
    joints = [{'topic': 'joint_states', 'trust_stamp': False}]
    assert fed(ahead, cameras=nobody, joint_topics=joints).snapshot(T0, at(3))[0].stamp == at(3), 'the clock serves'


def test_transforms_of_the_contract_are_applied():
    steps = [{'rotate': 90}, {'crop': [0, 1, 2, 3]}]
    inputs = fed(cameras=[{'name': 'base', 'topic': 'base/image', 'transforms': steps}])
    assert inputs.snapshot(T0, T0)[0].images['base'].shape == (3, 2, 3)


def test_inputs_that_show_different_moments_are_named():
    assert kinds(fed({'left': at(-0.2)})) == []
    inputs = fed({'left': at(-0.3)})
    problem, = inputs.problems(T0, T0, 0.25)
    assert problem.kind == 'skew' and 'camera left' in str(problem) and '0.30 s' in str(problem)
    assert kinds(inputs, skew=0.5) == []


def test_a_slow_camera_is_not_a_skewed_one():
    inputs = fed()
    for step in range(1, 10):  # the joints go on, the cameras come at 2 Hz
        inputs.joint_state('joint_states', joint_state(stamp=at(step * 0.05)), at(step * 0.05))
    assert kinds(inputs, 0.45) == []


@pytest.mark.parametrize('position, plausible', [(1.0, True), (-1.15, True), (1.3, False), (1e12, False)])
def test_a_position_far_outside_of_the_limits_is_not_believed(position, plausible):
    assert kinds(fed(position=position)) == ([] if plausible else ['implausible'])


def test_after_clearing_nothing_is_left():
    inputs = fed()
    inputs.clear()
    assert set(kinds(inputs)) == {'missing'} and np.isnan(inputs.positions()).all()
