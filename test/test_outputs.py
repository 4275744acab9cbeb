"""A command that could not keep its figures says so before it works."""
import pytest

from oxygen_ros.cli import run
from oxygen_ros.outputs import unwritable


def test_a_file_that_can_be_written_is_no_hindrance(tmp_path):
    (tmp_path / 'old.json').touch()
    assert unwritable(json=None) == unwritable(json=tmp_path / 'new.json', plot=tmp_path / 'old.json') == ''


def test_what_is_in_the_way_is_named(tmp_path):
    assert unwritable(json=tmp_path / 'no' / 'x.json') == f'--json: no folder {tmp_path / "no"}'
    assert unwritable(json=tmp_path) == f'--json: {tmp_path} cannot be written'


@pytest.mark.parametrize('command', ['bench engine', 'bench paced', 'bench faults', 'bench soak', 'bench ros',
                                     'tabletop eval'])
def test_no_command_works_for_a_file_without_a_folder(command, tmp_path, capsys):
    assert run([*command.split(), '--json', str(tmp_path / 'no' / 'x.json')]) == 2
    error, = capsys.readouterr().err.splitlines()
    assert error.startswith('oxygen ') and f'--json: no folder {tmp_path / "no"}' in error


def test_nor_for_plots_that_cannot_be_kept(tmp_path, capsys):
    (tmp_path / 'file').touch()
    assert run(['bench', 'soak', '--plot', str(tmp_path / 'no' / 'x.png')]) == 2
    assert f'--plot: no folder {tmp_path / "no"}' in capsys.readouterr().err
    assert run(['bench', 'engine', '--preset', 'tiny', '--plots', str(tmp_path / 'file' / 'plots')]) == 2
    error, = capsys.readouterr().err.splitlines()
    assert error.startswith('oxygen bench: ') and str(tmp_path / 'file' / 'plots') in error


@pytest.mark.parametrize(('arguments', 'why'), [
    (['bench', 'soak', '--minutes', '0'], '--minutes: at least 0.1'),
    (['tabletop', 'train', '--data', '/nowhere'], 'no data in /nowhere: make it with "oxygen tabletop data"'),
    (['bench', 'faults', '--rounds', '0'], '--rounds and --pairs: at least 1'),
    (['tabletop', 'eval', '--checkpoint', '/nowhere'], '/nowhere is not a folder')])
def test_what_cannot_run_is_one_line(arguments, why, capsys):
    assert run(arguments) == 2
    error, = capsys.readouterr().err.splitlines()
    assert error.startswith(f'oxygen {" ".join(arguments[:2])}: ') and why in error


@pytest.mark.parametrize(('arguments', 'why'), [
    (['bench', 'engine', '--mixed', '--sweep', '3'], 'lengths of a mixed workload'),
    (['bench', 'engine', '--repeat', '5000'], '--repeat must be 1 to 1000'),
    (['bench', 'engine', '--device', 'gpu'], 'gpu'), (['bench', 'paced', '--threads', '0'], '--cycles and --threads'),
    (['demo', '--report', 'figures.png'], 'would be overwritten by a picture'),
    (['ask', 'what?', '--namespace', 'my robot'], "'my robot' is no name in ROS"),
    (['ask', 'what?', '--max-tokens', '-1'], '--max-tokens: 0 to'), (['ask', 'what?', '--seed', '-1'], '--seed: 0 to')])
def test_an_option_that_makes_no_sense_is_one_line(arguments, why, capsys):
    if arguments[0] in ('ask', 'demo'):
        pytest.importorskip('rclpy')
    assert run(arguments) == 2
    error, = capsys.readouterr().err.splitlines()
    assert error.startswith('oxygen ') and why in error


def test_a_folder_that_may_not_be_searched_is_no_traceback(monkeypatch, tmp_path):
    def denied(path):
        raise PermissionError(13, 'Permission denied')

    monkeypatch.setattr('pathlib.Path.is_dir', denied)  # we may be root
    assert unwritable(json=tmp_path / 'x.json') == f'--json: {tmp_path / "x.json"} cannot be written: Permission denied'


@pytest.mark.parametrize('verb', ['faults', 'soak'])
def test_a_node_that_does_not_start_is_one_line(verb, monkeypatch, capsys):
    live = pytest.importorskip('oxygen_ros.bench.trust.live')

    class Still:
        def __init__(self, *args, **kwargs):
            pass

        def moves(self, timeout):
            raise live.Broken('the node ended with 1')

        def close(self):
            pass

    monkeypatch.setattr(live, 'Live', Still)
    assert run(['bench', verb]) == 1
    assert capsys.readouterr().err == f'oxygen bench {verb}: the node ended with 1\n'
