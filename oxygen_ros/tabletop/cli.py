"""``oxygen tabletop``: make the data, train the embedded model, evaluate a checkpoint."""
from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import tyro
from rich.console import Console

from oxygen_ros.outputs import unwritable
from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.tabletop import evaluation
from oxygen_ros.tabletop.closed_loop import Refused
from oxygen_ros.tabletop.data import load_data, make_data, make_frames
from oxygen_ros.tabletop.evaluation import HELD_OUT, EvaluationError
from oxygen_ros.tabletop.export import export
from oxygen_ros.tabletop.training import CONFIG, Plan, Training

RUNS = Path('runs/tabletop')
PLAN = Plan()


def data(observations: int = 40000, seed: int = 1, processes: int = 1, folder: Path = RUNS / 'data') -> int:
    """Picture random scenes for training; goes on where it stopped.

    Args:
        observations: how many in all; 25 KB and some 15 ms each.
        seed: of the scenes.
        processes: how many to work with.
        folder: where to keep them.
    """
    make_data(folder, observations, seed, processes)
    return 0


def train(folder: Path = RUNS / 'run', data: Path = RUNS / 'data', plan: Plan = PLAN, threads: int = 1) -> int:
    """Train the model of the tabletop; goes on where it stopped. Ends with a checkpoint in FOLDER/checkpoint.

    Args:
        folder: of this run: state, learning curve, checkpoint.
        data: made by "oxygen tabletop data".
        plan: how long and how fast.
        threads: CPU threads.
    """
    torch.set_num_threads(threads)
    try:
        frames = load_data(data)
    except FileNotFoundError as error:
        print(f'oxygen tabletop train: {error}', file=sys.stderr)
        return 2
    training = Training(folder, frames, make_frames(HELD_OUT, 0, 512), plan)
    training.run()
    export(training.averaged, CONFIG, folder / 'checkpoint')
    plot(folder / 'log.jsonl', folder / 'learning_curve.png')
    Console().print(f'checkpoint: {folder / "checkpoint"}, learning curve: {folder / "learning_curve.png"}')
    return 0


def evaluate(checkpoint: str = 'tabletop', episodes: int = 200, seed: int = HELD_OUT, node: bool = True,
             mode_episodes: int = 10, blank_episodes: int = 10,
             json_file: Annotated[Path | None, tyro.conf.arg(name='json')] = None) -> int:
    """Evaluate a checkpoint on held-out episodes, in closed loop.

    Exit code: 0, 1 when the modes differ or it could not go on, 2 when it cannot run.

    Args:
        checkpoint: folder, or "tabletop" for the one in the package.
        episodes: how many for the success rate.
        seed: series of episodes; the default is never trained on.
        node: through the ROS node in real time; otherwise with the engine in this process, in simulated time.
        mode_episodes: how many to record and give to the engine in every mode; 0 = do not compare modes.
        blank_episodes: how many with grey pictures, to show that the answers come from seeing; 0 = none.
        json_file: where to write the figures.
    """
    if why := unwritable(json=json_file):
        print(f'oxygen tabletop eval: {why}', file=sys.stderr)
        return 2
    torch.set_num_threads(1)
    try:
        scores, recordings = evaluation.in_process(checkpoint, mode_episodes if node else episodes, seed)
        report = {'checkpoint': checkpoint, 'seed': seed, **scores.report(), 'through': 'engine'}
        if node:
            through, figures = evaluation.through_node(checkpoint, episodes, seed)
            report |= {**through.report(), 'through': 'node', 'node': figures}
        if mode_episodes:
            report |= evaluation.same_across_modes(checkpoint, recordings[:mode_episodes])
        if blank_episodes:
            blank, _ = evaluation.in_process(checkpoint, blank_episodes, seed, blank=True)
            report['blank_pictures'] = {k: blank.report()[k] for k in ('success_rate', 'episodes', 'speech_exact')}
    except (CheckpointError, EvaluationError, Refused) as error:
        print(f'oxygen tabletop eval: {error}', file=sys.stderr)
        return 1 if isinstance(error, EvaluationError) else 2
    if json_file:
        json_file.write_text(json.dumps(report, indent=2) + '\n')
    Console().print_json(data=report)
    return 0 if report.get('same_across_modes', True) else 1


def plot(log: Path, picture: Path) -> None:
    """Draw the learning curve of a run."""
    from matplotlib.figure import Figure
    entries = [json.loads(line) for line in log.read_text().splitlines()]
    steps = [entry['step'] for entry in entries]
    figure = Figure(figsize=(10, 3.6), layout='constrained')
    losses, exact = figure.subplots(1, 2)
    for name, label in (('val_action', 'actions'), ('val_text', 'text')):
        losses.plot(steps, [entry[name] for entry in entries], label=label)
    losses.set(yscale='log', xlabel='step', title='loss on held-out scenes')
    for kind in ('narration', 'where', 'doing', 'count', 'memory'):
        exact.plot(steps, [entry[kind] for entry in entries], label=kind)
    exact.set(ylim=(0, 1.02), xlabel='step', title='exact sentences on held-out scenes')
    for axes in (losses, exact):
        axes.grid(alpha=0.3)
        axes.legend(frameon=False)
    figure.savefig(picture, dpi=120)


VERBS = {'data': data, 'train': train, 'eval': evaluate}
