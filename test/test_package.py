"""The package's own papers agree with each other and with the code: versions, messages, executables, dependencies."""
import ast
import importlib
import os
import re
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from oxygen_ros.share import share

HERE = Path(__file__).resolve().parents[1]
SOURCES = [path for path in (HERE / 'oxygen_ros').rglob('*.py') if 'msg' not in path.relative_to(HERE).parts]
MESSAGES = sorted((HERE / 'msg').glob('*.msg'))
SCRIPTS = sorted((HERE / 'scripts').iterdir())
CMAKE = (HERE / 'CMakeLists.txt').read_text()
PACKAGE = (HERE / 'package.xml').read_text()

ROOMS = ('kv', 'model', 'policy', 'engine', 'worker', 'node')     # each imports only itself and those before it
CORE = (*(f'{room}/' for room in ROOMS[:-1]), 'contract.py', 'check.py', 'cli.py')     # works where there is no ROS
DISTRIBUTIONS = {'cv2': 'opencv-python-headless', 'yaml': 'PyYAML', 'PIL': 'pillow',
                 'pybullet_data': 'pybullet', 'pybullet_utils': 'pybullet'}


def _requirements() -> dict[str, Requirement]:
    text = (HERE / 'pyproject.toml').read_text()
    block = text[text.index('\ndependencies = ['):text.index('[project.scripts]')]
    found = [Requirement(line) for line in re.findall(r'"([A-Za-z][^"]*)"', re.sub('#.*', '', block))]
    return {requirement.name: requirement for requirement in found if requirement.name != 'oxygen-ros'}


def _imported(path: Path) -> set[str]:
    """Top-level packages that a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition('.')[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition('.')[0])
    return names


def _is_ros(name: str) -> bool:
    return name == 'rclpy' or name.endswith(('_msgs', '_srvs', '_interfaces'))


def test_version_is_the_same_everywhere():
    version = re.search('<version>(.*)</version>', PACKAGE)[1]
    changelog = (HERE / 'CHANGELOG.rst').read_text()
    assert re.search(rf'^{re.escape(version)} \(|^Forthcoming$', changelog, re.M), f'no section for {version}'
    try:
        assert metadata.version('oxygen-ros') == version
    except metadata.PackageNotFoundError:
        pass    # built by colcon, which leaves no pip record


def test_every_message_is_built_and_every_field_explained():
    listed = set(re.findall(r'"msg/(\w+\.msg)"', CMAKE))
    assert listed == {path.name for path in MESSAGES}
    for path in MESSAGES:
        for line in path.read_text().splitlines():
            assert not line or '#' in line, f'{path.name}: no comment on {line!r}'


@pytest.mark.parametrize('path', MESSAGES, ids=lambda path: path.stem)
def test_every_message_survives_the_wire(path):
    from rclpy.serialization import deserialize_message, serialize_message
    kind = getattr(importlib.import_module('oxygen_ros.msg'), path.stem)
    message = kind()
    text = next(name for name, type_ in kind.get_fields_and_field_types().items() if type_ == 'string')
    setattr(message, text, 'grüß Gott')
    back = deserialize_message(serialize_message(message), kind)
    assert back == message and back != kind()


@pytest.mark.parametrize('script', SCRIPTS, ids=lambda path: path.name)
def test_every_executable_runs_an_existing_main_and_only_as_the_program(script):
    assert f'scripts/{script.name}' in CMAKE and os.access(script, os.X_OK)
    module = re.search(r'^from (\S+) import main$', script.read_text(), re.M)[1]
    assert callable(importlib.import_module(module).main)
    # Whoever imports the program's file, as documentation and test tools do, starts nothing.
    imported = subprocess.run([sys.executable, '-c', f'import runpy; runpy.run_path({str(script)!r})'],
                              capture_output=True, text=True, timeout=60)
    assert (imported.returncode, imported.stdout) == (0, ''), imported.stderr


def test_the_core_does_not_import_ros():
    core = [path for path in SOURCES if path.relative_to(HERE / 'oxygen_ros').as_posix().startswith(CORE)]
    assert len(core) > 20
    for path in core:
        assert not {module for module in _imported(path) if _is_ros(module)}, f'{path} imports ROS'


def test_the_node_process_does_not_import_torch():
    """Not through anything that it imports either: that is seconds of start and hundreds of megabytes."""
    pytest.importorskip('rclpy')
    code = 'import sys, oxygen_ros.node.inference_node; print([name for name in sys.modules if name == "torch"])'
    imported = subprocess.run([sys.executable, '-c', code], capture_output=True, text=True, timeout=60)
    assert imported.stdout.strip() == '[]', imported.stdout + imported.stderr


@pytest.mark.parametrize('room', ROOMS)
def test_imports_between_rooms_point_one_way(room):
    later = ROOMS[ROOMS.index(room) + 1:]
    files = sorted((HERE / 'oxygen_ros' / room).glob('*.py'))
    assert len(files) > 1
    for path in files:
        for other in re.findall(r'\boxygen_ros\.(\w+)', path.read_text()):
            assert other not in later, f'{room}/{path.name} names {other}/'


def test_every_library_that_is_imported_is_declared():
    required = {name.lower() for name in _requirements()}
    for path in SOURCES:
        for module in _imported(path) - set(sys.stdlib_module_names) - {'oxygen_ros'}:
            wanted = DISTRIBUTIONS.get(module, module)
            if _is_ros(module):
                assert f'depend>{module}<' in PACKAGE, f'{path.name} imports {module}: not in package.xml'
                wanted = 'ros-' + module.replace('_', '-')
            assert wanted.lower() in required, f'{path.name} imports {module}: {wanted} is not in pyproject.toml'


def test_every_pinned_version_is_within_the_declared_range():
    pinned = dict(re.findall(r'^([\w.-]+)==(\S+)$', (HERE / 'constraints.txt').read_text(), re.M))
    assert next(iter(pinned)) == 'torch'
    for name, requirement in _requirements().items():
        assert name in pinned, f'{name} has no pinned version in constraints.txt'
        assert Version(pinned[name]) in requirement.specifier, f'{name}=={pinned[name]} is outside {requirement}'


def test_share_finds_installed_files_and_names_missing_ones(tmp_path, monkeypatch):
    assert share('config/fastdds_shm.xml').is_file()
    monkeypatch.setenv('AMENT_PREFIX_PATH', str(tmp_path))
    with pytest.raises(FileNotFoundError, match=f'no config/nothing.yaml.*{tmp_path}'):
        share('config/nothing.yaml')
