"""Launch files name only what exists and explain every argument; where launch is installed, they really run."""
import ast
import re
import runpy
import shutil
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

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


class _Call:
    """Stands for everything of launch: remembers what it was made with, and what a launch argument is set to."""

    def __init__(self, *args, **kwargs):
        self.args, self.__dict__ = args, {**kwargs, 'args': args}

    def perform(self, arguments):
        return arguments[self.args[0]]


@pytest.fixture
def oxygen_launch(monkeypatch):
    """oxygen.launch.py, run with a stand-in for launch; ``started(name=value)`` -> what its node is started with."""
    for name in ('launch', 'launch.actions', 'launch.substitutions', 'launch_ros', 'launch_ros.actions',
                 'launch_ros.parameter_descriptions', 'launch_ros.substitutions'):
        module = ModuleType(name)
        module.__getattr__ = lambda _: _Call
        monkeypatch.setitem(sys.modules, name, module)
    made = runpy.run_path(str(HERE / 'launch' / 'oxygen.launch.py'))
    declared = {entry.args[0]: entry for entry in made['generate_launch_description']().args[0] if entry.args}
    defaults = {name: entry.default_value for name, entry in declared.items()}

    def started(**given):
        node, = made['start_node']({**defaults, **given})
        return node
    return SimpleNamespace(declared=declared, started=started)


@pytest.mark.parametrize(('given', 'parameters'), [
    ({}, {}),
    ({'device': 'cuda'}, {'engine.device': 'cuda'}),
    ({'contract': 'mine.yaml', 'checkpoint': 'random:tiny'}, {'contract': 'mine.yaml', 'checkpoint': 'random:tiny'}),
    ({'autostart': 'False', 'use_sim_time': 'true'}, {'autostart': False, 'use_sim_time': True}),
])
def test_what_is_given_overrules_the_file_and_what_is_not_leaves_it_alone(oxygen_launch, given, parameters):
    file, *overrides = oxygen_launch.started(**given).parameters
    plain = [{name: value.args[0] if isinstance(value, _Call) else value for name, value in some.items()}
             for some in overrides]
    assert file.args == ('params_file',) and plain == ([parameters] if parameters else [])
    assert all(value.value_type is str for some in overrides for value in some.values() if isinstance(value, _Call))


def test_a_flag_takes_no_other_words_than_true_and_false(oxygen_launch):
    for name in ('autostart', 'use_sim_time'):
        choices = oxygen_launch.declared[name].choices
        assert oxygen_launch.declared[name].default_value in choices
        assert {word.lower() for word in choices} == {'', 'true', 'false'}


def test_the_topic_of_a_controller_can_be_given(oxygen_launch):
    (topic, to), = oxygen_launch.started().remappings
    assert topic == 'actions' and to.args == ('actions',)
    assert oxygen_launch.declared['actions'].default_value == 'actions'


def test_the_node_takes_the_arguments_of_every_ros_node():
    launch_ros = pytest.importorskip('launch_ros', reason='launch is not on PyPI')
    assert launch_ros
    from launch import LaunchContext
    from launch.launch_description_sources import get_launch_description_from_python_launch_file
    description = get_launch_description_from_python_launch_file(str(HERE / 'launch' / 'oxygen.launch.py'))
    arguments = {argument.name: argument for argument in description.get_launch_arguments()}
    assert set(arguments) == {'params_file', 'contract', 'checkpoint', 'namespace', 'use_sim_time', 'log_level',
                              'autostart', 'device', 'actions'}
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
