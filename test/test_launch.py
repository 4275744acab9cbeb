"""Launch files name only what exists and explain every argument; where launch is installed, they really run."""
import ast
import re
import shutil
from pathlib import Path

import pytest

from oxygen_ros.share import share

HERE = Path(__file__).resolve().parents[1]
LAUNCH_FILES = sorted((HERE / 'launch').glob('*.launch.py'))


def _calls(path, name):
    """Keyword arguments of each call of ``name`` in a file, and its positional ones under None."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and getattr(node.func, 'id', None) == name:
            yield {None: node.args, **{keyword.arg: keyword.value for keyword in node.keywords}}


def _strings(node):
    return [part.value for part in ast.walk(node) if isinstance(part, ast.Constant) and isinstance(part.value, str)]


@pytest.fixture(params=LAUNCH_FILES, ids=lambda path: path.name)
def launch_file(request):
    return request.param


def test_it_uses_nothing_but_launch_and_launch_ros(launch_file):
    compile(launch_file.read_text(), launch_file, 'exec')
    modules = re.findall(r'^(?:from|import) (\w+)', launch_file.read_text(), re.M)
    assert set(modules) == {'launch', 'launch_ros'}


def test_every_executable_parameter_file_and_launch_file_it_names_exists(launch_file):
    for call in _calls(launch_file, 'Node'):
        if call['package'].value == 'oxygen_ros':
            assert (HERE / 'scripts' / call['executable'].value).is_file()
        else:
            assert 'condition' in call, 'what is not among our dependencies starts only when it is asked for'
    paths = [_strings(call[None][0]) for call in _calls(launch_file, 'PathJoinSubstitution')]
    assert paths
    for parts in paths:
        assert share('/'.join(part for part in parts if part != 'oxygen_ros')).is_file()


def test_every_remapped_topic_exists_in_the_code(launch_file):
    code = '\n'.join(path.read_text() for path in (HERE / 'oxygen_ros').rglob('*.py'))
    for call in _calls(launch_file, 'Node'):
        for topic in _strings(call['remappings']) if 'remappings' in call else []:
            assert f"'{topic.removesuffix('_again')}'" in code, f'{launch_file.name} remaps {topic}, which nobody uses'


def test_every_argument_is_described(launch_file):
    declared = list(_calls(launch_file, 'DeclareLaunchArgument'))
    assert declared
    assert all('description' in call and 'default_value' in call for call in declared)


def test_the_node_takes_the_arguments_of_every_ros_node():
    launch_ros = pytest.importorskip('launch_ros', reason='launch is not on PyPI')
    assert launch_ros
    from launch import LaunchContext
    from launch.launch_description_sources import get_launch_description_from_python_launch_file
    description = get_launch_description_from_python_launch_file(str(HERE / 'launch' / 'oxygen.launch.py'))
    arguments = {argument.name: argument for argument in description.get_launch_arguments()}
    assert set(arguments) == {'params_file', 'contract', 'checkpoint', 'namespace', 'use_sim_time', 'log_level',
                              'autostart'}
    assert all(argument.description for argument in arguments.values())
    context = LaunchContext()
    assert ''.join(part.perform(context) for part in arguments['namespace'].default_value) == 'oxygen'


def test_ros2_launch_runs_the_robot_and_the_node_and_ends_them(start, peer):
    pytest.importorskip('launch_ros', reason='launch is not on PyPI')
    ros2 = shutil.which('ros2') or pytest.skip('no ros2 command')
    from trajectory_msgs.msg import JointTrajectory
    actions = peer.listen(JointTrajectory, '/arm/actions')
    launched = start('ros2 launch', ros2, 'launch', 'oxygen_ros', 'tabletop.launch.py', 'namespace:=arm')
    peer.wait_for(lambda: actions, 90.0, 'actions')
    assert launched.interrupt(15.0) == 0, launched.output
    assert not launched.orphans()
    assert 'process has died' not in launched.output
