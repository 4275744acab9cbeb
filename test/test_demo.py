"""The demo: what its figures mean, and one short run of the whole system from outside."""
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from oxygen_ros.demo.figures import Figures, jitter_p99_ms, rate_hz
from oxygen_ros.demo.film import Film, plot_timing

PROMISED = {
    'seconds', 'cycles', 'prefills', 'chunks_published', 'publish_rate_hz', 'jitter_p99_ms', 'tokens', 'sentences',
    'time_to_first_token_ms', 'kv_bytes_peak', 'kv_bytes_end', 'stale_published', 'nonfinite_published'}


def status(**counters):
    zero = dict.fromkeys(('cycles', 'prefills', 'tokens', 'kv_bytes', 'kv_bytes_peak', 'decode_steps',
                          'misses', 'restarts'), 0)
    return SimpleNamespace(**{**zero, **counters})


def healthy(rate=50.0, seconds=2.0):
    """Figures of a run without fault: chunks of 1 s every 0.1 s, trajectories on every tick."""
    figures = Figures(rate, began=100.0)
    figures.status(status(cycles=5, prefills=5, tokens=40))
    for tick in range(int(seconds * rate)):
        now = 100.0 + tick / rate
        if tick % 5 == 0:
            figures.chunk(finite=True)
        figures.trajectory(now + 0.001, now, [now + 0.1, now + 0.2], finite=True, expires=now + 0.9)
    figures.status(status(cycles=25, prefills=25, tokens=140, kv_bytes_peak=30))
    figures.ended, figures.kv_bytes_end = 100.0 + seconds, 0
    return figures


def test_a_healthy_run_has_no_fault_and_all_promised_figures():
    figures = healthy()
    report = figures.report()
    assert figures.faults() == []
    assert report.keys() >= PROMISED
    assert (report['cycles'], report['prefills'], report['tokens']) == (20, 20, 100)
    assert (report['kv_bytes_peak'], report['kv_bytes_end']) == (30, 0)
    assert report['publish_rate_hz'] == pytest.approx(50.0, abs=1e-3)
    assert report['jitter_p99_ms'] == pytest.approx(0.0, abs=1e-3)


@given(st.lists(st.floats(1e-4, 1.0), min_size=1, max_size=50), st.floats(0.0, 1e6))
def test_rate_and_jitter_are_those_of_the_intervals(intervals, start):
    times = [start + sum(intervals[:n]) for n in range(len(intervals) + 1)]
    assert rate_hz(times) == pytest.approx(len(intervals) / sum(intervals), rel=1e-3)
    assert jitter_p99_ms(times, 0.0) <= max(intervals) * 1e3 * (1 + 1e-3)
    assert jitter_p99_ms(times, 0.02) >= 0.0


def test_one_late_tick_in_a_hundred_shows_in_the_jitter():
    times = [0.02 * n + (0.010 if n in (50, 120) else 0.0) for n in range(201)]
    assert jitter_p99_ms(times, 0.02) == pytest.approx(10.0, abs=1e-6)


@pytest.mark.parametrize(('published', 'due', 'is_stale'), [
    (100.5, [100.6, 100.7], False),
    (101.2, [101.3], True),             # its observation is older than the chunk is long
    (100.5, [100.4, 100.5], True),      # every point has passed
    (100.5, [100.4, 100.7], False),     # one has not
    (100.5, [], True),                  # nothing to follow
])
def test_a_trajectory_that_says_nothing_worth_following_is_stale(published, due, is_stale):
    figures = Figures(50.0)
    figures.trajectory(published + 0.001, published, due, finite=True, expires=101.0)
    assert figures.stale == is_stale


@pytest.mark.parametrize(('spoil', 'words'), [
    (lambda f: f.trajectory(101.0, 101.0, [101.1], finite=False, expires=102.0), 'non-finite'),
    (lambda f: f.chunk(finite=False), 'non-finite'),
    (lambda f: f.trajectory(109.0, 109.0, [109.1], finite=True, expires=102.0), 'stale'),
    (lambda f: f.status(status(cycles=26, prefills=27)), 'not one per observation'),
    (lambda f: f.status(status(cycles=26, prefills=26, restarts=1)), 'restarted'),
    (lambda f: f.question('q', 101.0), 'no question was answered'),
    (lambda f: setattr(f, 'kv_bytes_end', 4096), '4096 bytes of KV were in use'),
])
def test_what_must_not_be_is_named(spoil, words):
    figures = healthy()
    spoil(figures)
    assert any(words in fault for fault in figures.faults())


def test_the_first_token_counts_from_the_question_and_only_for_our_own():
    figures = healthy()
    figures.question('mine', 100.5)
    figures.speech('narration-3', 100.6, tokens=1, reason='')
    figures.speech('mine', 100.7, tokens=0, reason='')
    figures.speech('mine', 100.75, tokens=1, reason='')
    figures.speech('mine', 101.5, tokens=1, reason='stop')
    report = figures.report()
    assert report['time_to_first_token_ms'] == pytest.approx(250.0)
    assert (report['questions'], report['questions_answered']) == (1, 1)


def test_the_whole_system_moves_talks_and_ends_cleanly(start, tmp_path):
    report = tmp_path / 'report.json'
    demo = start('demo', 'oxygen_ros.cli', 'demo', '--seconds', '4', '--ask-every', '1.5', '--report', report)
    assert demo.wait(110.0) == 0, demo.output
    figures = json.loads(report.read_text())
    assert figures['ok'] and not figures['faults']
    assert figures.keys() >= PROMISED
    assert figures['cycles'] == figures['prefills'] > 0
    assert figures['chunks_published'] > 0 and figures['tokens'] > 0 and figures['questions_answered'] > 0
    assert figures['stale_published'] == figures['nonfinite_published'] == 0
    assert 'Traceback' not in demo.output


def test_a_node_that_cannot_start_fails_the_demo_with_its_own_words(monkeypatch, tmp_path, capfd):
    from oxygen_ros.demo import run
    from oxygen_ros.processes import Process

    def start(params_file):
        return (Process('robot', [sys.executable, '-c', 'import time; time.sleep(60)']),
                Process('node', [sys.executable, '-c', 'raise SystemExit("no such checkpoint: xyz")']))

    monkeypatch.setattr(run, '_start', start)
    report = tmp_path / 'report.json'
    assert run.demo(seconds=1.0, report=report, domain=int(os.environ['ROS_DOMAIN_ID'])) == 1
    assert 'the node ended with 1' in capfd.readouterr().err
    assert 'no such checkpoint: xyz' in json.loads(report.read_text())['faults'][0]


def test_a_demo_that_cannot_be_reported_does_not_start(tmp_path, capsys):
    from oxygen_ros.demo import run
    assert run.demo(report=tmp_path / 'nowhere' / 'report.json') == 2
    assert f'no folder {tmp_path / "nowhere"}' in capsys.readouterr().err
    assert run.demo(report=tmp_path) == 2
    assert f'--report: {tmp_path} cannot be written' in capsys.readouterr().err
    assert run.demo(seconds=0.0) == 2
    assert 'at least 1' in capsys.readouterr().err


def test_without_matplotlib_there_is_a_film_and_no_plot(tmp_path, monkeypatch, capsys):
    from oxygen_ros.demo import run
    film = Film()
    film.add(1.0, [np.zeros((64, 64, 3), np.uint8)], ['task'])
    figures = SimpleNamespace(published=[1.0, 1.02], publish_rate_hz=50.0)
    cycles = [{'stamp': 1.0, 'vision': 0.01}]
    monkeypatch.setitem(sys.modules, 'matplotlib.figure', None)
    made = run._pictures(SimpleNamespace(film=film, figures=figures, cycles=cycles), tmp_path / 'report.json')
    assert made == [tmp_path / 'report.gif'] and made[0].is_file()
    assert 'pip install matplotlib' in capsys.readouterr().err


def test_the_hint_names_the_program_that_runs():
    from oxygen_ros.demo import run
    assert run._program() in ('oxygen', str(Path(sys.executable).with_name('oxygen')))


def test_the_film_shows_both_cameras_and_the_plot_every_cycle(tmp_path):
    film = Film()
    assert not film.write(tmp_path / 'empty.gif')
    red, blue = np.zeros((2, 64, 64, 3), np.uint8)
    red[..., 0], blue[..., 2] = 255, 255
    for now in (1.0, 1.1, 1.6):
        if film.wants(now):
            film.add(now, [red, blue], ['task: touch the red cube', f'after {now} s'])
    assert film.write(tmp_path / 'film.gif')
    with Image.open(tmp_path / 'film.gif') as picture:
        frame = picture.convert('RGB')
        left, right = (np.array(frame.getpixel((x, 100))) for x in (100, 300))
        assert picture.n_frames == 2, 'two pictures per second'
    assert left.argmax() == 0 and right.argmax() == 2
    cycle = {'stamp': 1.0, 'vision': 0.01, 'act': 0.02}
    assert not plot_timing(tmp_path / 'none.png', [], 0.02, [cycle])
    assert plot_timing(tmp_path / 'timing.png', [1.0, 1.02, 1.04], 0.02, [cycle, {**cycle, 'stamp': 1.1}])
    with Image.open(tmp_path / 'timing.png') as picture:
        assert picture.format == 'PNG'
