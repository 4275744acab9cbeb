"""The robot's URDF: paths of its tools, limits of its joints, and what is wrong with a bad one."""
import io
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip('yourdfpy')

import yourdfpy  # noqa: E402

from oxygen_ros.node.kinematics import Kinematics, KinematicsError, preload  # noqa: E402

# A mobile arm with a turn table, a slide, a hand with a mimicking finger, and a tool on a fixed flange.
URDF = """<robot name="r">
<link name="world"/><link name="base"/><link name="table"/><link name="slide"/><link name="wrist"/>
<link name="flange"/><link name="tool"/><link name="finger"/><link name="other_finger"/>
<joint name="stand" type="fixed"><parent link="world"/><child link="base"/>
  <origin xyz="0 0 0.5" rpy="0 0 1.5707963"/></joint>
<joint name="turn" type="continuous"><parent link="base"/><child link="table"/><axis xyz="0 0 1"/></joint>
<joint name="reach" type="prismatic"><parent link="table"/><child link="slide"/><origin xyz="0.1 0 0.2"/>
  <axis xyz="1 0 0"/><limit lower="-0.1" upper="0.4" velocity="0.3" effort="1"/></joint>
<joint name="bend" type="revolute"><parent link="slide"/><child link="wrist"/><origin xyz="0 0 0.1" rpy="0.2 0 0"/>
  <axis xyz="0 1 0"/><limit lower="-1" upper="2" velocity="3" effort="1"/></joint>
<joint name="mount" type="fixed"><parent link="wrist"/><child link="flange"/><origin xyz="0 0 0.05"/></joint>
<joint name="tip" type="fixed"><parent link="flange"/><child link="tool"/><origin xyz="0 0 0.15"/></joint>
<joint name="grip" type="prismatic"><parent link="table"/><child link="finger"/><axis xyz="0 1 0"/>
  <limit lower="0" upper="0.04" velocity="0.1" effort="1"/></joint>
<joint name="follow" type="prismatic"><parent link="table"/><child link="other_finger"/><axis xyz="0 1 0"/>
  <mimic joint="grip" multiplier="-1" offset="0.01"/><limit lower="-1" upper="1" velocity="0.1" effort="1"/></joint>
</robot>"""


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.floats(-3, 3), st.floats(-0.1, 0.4), st.floats(-1, 2), st.floats(0, 0.04)), min_size=1,
                max_size=5))
def test_paths_are_those_of_the_librarys_own_kinematics(values):
    tools = ('tool', 'finger', 'other_finger')
    kinematics = Kinematics(URDF, ('turn', 'reach', 'bend', 'grip'), tools)
    reference = yourdfpy.URDF.load(io.BytesIO(URDF.encode()), load_meshes=False)
    names = ('turn', 'reach', 'bend', 'grip')
    paths = kinematics.paths(dict(zip(names, np.array(values).T, strict=True)))
    assert kinematics.base == 'world' and paths.shape == (3, len(values), 3)
    for i, row in enumerate(values):
        reference.update_cfg(dict(zip(names, row, strict=True)))
        expected = [reference.get_transform(tool, 'world')[:3, 3] for tool in tools]
        np.testing.assert_allclose(paths[:, i], expected, atol=1e-7)  # theirs rounds what is tiny


def test_the_tools_are_the_ends_of_what_is_moved():
    assert Kinematics(URDF, ('turn', 'reach', 'bend')).tools == ('tool',)
    assert Kinematics(URDF, ('turn', 'reach')).tools == ('slide',)
    assert Kinematics(URDF, ('turn', 'reach', 'bend', 'grip')).tools == ('tool', 'finger')


def test_limits_are_those_of_the_urdf_and_a_joint_that_turns_for_ever_has_none():
    kinematics = Kinematics(URDF, ('turn', 'bend'))
    bend, turn = kinematics.limits('bend'), kinematics.limits('turn')
    assert (bend.low, bend.high, bend.velocity) == (-1.0, 2.0, 3.0)
    assert turn.low <= -1e9 and turn.high >= 1e9 and turn.velocity >= 1e9


def test_the_embedded_robots_description_ends_at_the_fingertip():
    pytest.importorskip('pybullet_data')
    from oxygen_ros.tabletop import arm
    from oxygen_ros.tabletop.description import description
    kinematics = Kinematics(description(), arm.JOINTS)
    q = np.random.default_rng(0).uniform(-arm.LIMIT, arm.LIMIT, (20, 7))
    path, = kinematics.paths(dict(zip(arm.JOINTS, q.T, strict=True)))
    np.testing.assert_allclose(path, arm.fingertip(q), atol=2e-3)


@pytest.mark.parametrize('urdf, moved, tools, expected', [
    ('', ('turn',), (), 'cannot be read'), ('<robot', ('turn',), (), 'cannot be read'),
    ('<robot name="r"><joint name="turn" type="fixed"/></robot>', ('turn',), (), 'cannot be read'),
    (URDF, ('elbow',), (), 'no joint elbow'), (URDF, ('turn',), ('hand',), 'no link hand'),
    ('<robot name="r"><joint name="a" type="fixed"><parent link="x"/><child link="y"/></joint>'
     '<joint name="b" type="fixed"><parent link="y"/><child link="x"/></joint></robot>', ('a',), (), 'form a ring')])
def test_a_description_that_cannot_be_used_says_why(urdf, moved, tools, expected):
    with pytest.raises(KinematicsError, match=expected):
        Kinematics(urdf, moved, tools)


def test_the_library_can_be_imported_ahead_and_need_not_be_there(monkeypatch):
    subprocess.run([sys.executable, '-c', 'import sys; from oxygen_ros.node.kinematics import preload\n'
                    'assert "yourdfpy" not in sys.modules\npreload()\nassert "yourdfpy" in sys.modules'], check=True)
    monkeypatch.setitem(sys.modules, 'yourdfpy', None)
    preload()
