"""Deadlines in virtual time: only the engine's decisions count, so these figures are the same on every machine."""
import json

import pytest

from oxygen_ros.bench.load import load_random
from oxygen_ros.bench.paced import Pace, paced
from oxygen_ros.engine.engine import Engine


def figures(cycles=250, **options):
    pace = Pace(load_random('tiny', 'cpu', 'float32', 10), virtual=True,
                **{'rate_hz': 0.0, 'load': 0.7, 'max_live': 8, 'guard_s': 0.002, 'seed': 0, **options})
    with pace.clock.rule():
        return pace.run(cycles)


def test_speech_makes_no_chunk_late_uses_the_slack_and_starves_nobody():
    got = figures()
    assert got['misses_because_of_speech'] == 0
    assert got['tokens_of_an_oracle'] >= 0.9
    assert got['requests_starved'] == 0
    assert got['requests_done'] > 300
    assert got['cycles_with_text_left_over'] > 50, 'otherwise the oracle could not have made more'


def test_the_same_seed_gives_the_same_figures():
    assert figures(60, seed=3) == figures(60, seed=3)


def test_an_engine_that_ignores_its_deadline_is_blamed(monkeypatch):
    plain = Engine.speak
    monkeypatch.setattr(Engine, 'speak', lambda self, deadline_ns=0: plain(self, 0))
    got = figures(100, load=2.0)
    assert got['misses_because_of_speech'] > 10
    assert got['speech_into_the_next_cycle'] > 10


def test_an_engine_that_hardly_speaks_falls_behind_the_oracle(monkeypatch):
    monkeypatch.setattr(Engine, 'speak', lambda self, deadline_ns=0: self.step(deadline_ns=deadline_ns))
    assert figures(100)['tokens_of_an_oracle'] < 0.6


def test_real_time_runs_too_and_writes_its_figures(tmp_path, capsys):
    file = tmp_path / 'paced.json'
    assert paced(cycles=5, json=file) == 0
    got = json.loads(file.read_text())
    assert got['tokens_per_s'] > 0 and got['act_ms_p50'] > 0
    assert 'misses because of speech' in capsys.readouterr().out


@pytest.mark.parametrize('options', [{'cycles': 0}, {'load': 0.0}, {'rate_hz': -1.0}])
def test_what_cannot_run_is_refused(options, capsys):
    assert paced(**options) == 2
    assert capsys.readouterr().err.startswith('oxygen bench: ')
