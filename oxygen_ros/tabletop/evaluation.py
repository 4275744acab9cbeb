"""``oxygen tabletop eval``: does it reach, is what it says true, and is it the same in every engine mode?"""
from __future__ import annotations

import os
import sys
import time
from typing import Any

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from oxygen_ros.isolation import isolate, reserve_domain
from oxygen_ros.policy.checkpoint import load
from oxygen_ros.processes import Process
from oxygen_ros.share import share
from oxygen_ros.tabletop.closed_loop import MODES, Cycle, Driver, replay
from oxygen_ros.tabletop.episode import make_episode
from oxygen_ros.tabletop.scores import Scores

HELD_OUT = 1000             # series of episodes that training never draws from
TOLERANCE = 2e-5            # rad; chunks of two modes that differ less are the same but for rounding
_NAMESPACE = '/oxygen'
_LOADING_S = 120.0
_EPISODE_S = 20.0           # real time an episode may take at the very most


class EvaluationError(RuntimeError):
    """The evaluation cannot go on; the text says why."""


def progress() -> Progress:
    """A bar with a note."""
    return Progress(TextColumn('{task.description}'), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(),
                    TextColumn('{task.fields[note]}'))


def in_process(checkpoint: str, episodes: int, seed: int = HELD_OUT,
               blank: bool = False) -> tuple[Scores, list[list[Cycle]]]:
    """Drive held-out episodes with the engine in this process, in simulated time; -> scores and recordings."""
    driver, scores, recordings = Driver(load(checkpoint)), Scores(), []
    with progress() as bar:
        task = bar.add_task('grey pictures' if blank else 'in this process', total=episodes, note='')
        for index in range(episodes):
            episode = make_episode(seed, index)
            outcome = driver.drive(episode, index, blank)
            scores.episode(episode.intent.verb, outcome.success)
            for said in outcome.said:
                scores.sentence(said)
            recordings.append(outcome.recording)
            bar.update(task, advance=1, note=f'{scores.done.total()} reached')
    driver.close()
    return scores, recordings


def same_across_modes(checkpoint: str, recordings: list[list[Cycle]]) -> dict[str, Any]:
    """Give the same observations and questions to the engine in every mode: same chunks, same texts?"""
    policy = load(checkpoint)
    made = {}
    with progress() as bar:
        task = bar.add_task('engine modes', total=len(MODES), note='')
        for mode in MODES:
            made[mode] = replay(policy, mode, recordings)
            bar.update(task, advance=1, note=mode)
    reference, *others = made.values()
    difference = max(float(np.abs(chunk - other.chunks[n]).max())
                     for other in others for n, chunk in reference.chunks.items())
    texts = all(other.texts == reference.texts for other in others)
    plain, drafting = made['continuous+ride'].report, made['continuous+ride+draft'].report
    return {
        'same_across_modes': bool(texts and difference <= TOLERANCE and
                                  all(other.chunks.keys() == reference.chunks.keys() for other in others)),
        'largest_action_difference': difference, 'texts_equal': texts, 'chunks_compared': len(reference.chunks),
        'texts_compared': len(reference.texts),
        'drafts': {'drafted': drafting.drafted, 'accepted': drafting.accepted,
                   'acceptance': round(drafting.accepted / max(1, drafting.drafted), 4)},
        'decode_steps': {mode: m.report.decode_steps for mode, m in made.items()},
        'decode_steps_saved_by_drafts': round(1 - drafting.decode_steps / max(1, plain.decode_steps), 4)}


def through_node(checkpoint: str, episodes: int, seed: int = HELD_OUT,
                 mode: str = 'continuous+ride+draft') -> tuple[Scores, dict[str, Any]]:
    """Drive held-out episodes through the ROS node, in real time and a domain of their own; -> scores and figures."""
    isolate(os.environ, reserve_domain())
    import rclpy
    from rclpy.parameter import Parameter

    from oxygen_ros.node.executor import Executor
    from oxygen_ros.tabletop.examiner import Examiner
    settings = {'checkpoint': checkpoint, 'speech.narration.every_cycles': 5,
                **{f'engine.{name}': value for name, value in MODES[mode].items()}}
    command = [sys.executable, '-m', 'oxygen_ros.node.main', '--ros-args', '-r', f'__ns:={_NAMESPACE}',
               '--params-file', str(share('config/tabletop.yaml'))]  # the demo's
    for name, value in settings.items():
        command += ['-p', f'{name}:={str(value).lower() if isinstance(value, bool) else value}']
    rclpy.init(args=['--ros-args', '-r', 'joint_trajectory:=actions', '--log-level', 'warn'])
    node = Process('node', command)
    examiner = Examiner(episodes, namespace=_NAMESPACE, parameter_overrides=[
        Parameter('seed', value=seed), Parameter('layout_every', value=1), Parameter('pause_s', value=0.3)])
    executor = Executor()
    executor.add_node(examiner)
    try:
        with progress() as bar:
            task = bar.add_task(f'through the node, {mode}', total=episodes, note='')
            began = time.monotonic()
            while not examiner.done:
                executor.spin_once(0.1)
                if node.returncode is not None:
                    raise EvaluationError(f'the node ended with {node.returncode}; it said:\n{node.output[-3000:]}')
                if time.monotonic() - began > _LOADING_S + _EPISODE_S * (episodes if examiner.chunks else 0):
                    raise EvaluationError(f'no end in sight; the node said:\n{node.output[-3000:]}')
                bar.update(task, completed=examiner.scores.episodes, note=f'{examiner.scores.done.total()} reached')
        figures = {'mode': mode, 'seconds': round(time.monotonic() - began, 1), 'chunks': examiner.chunks}
        if examiner.status is not None:
            s = examiner.status
            figures |= {name: getattr(s, name) for name in (
                'cycles', 'prefills', 'misses', 'tokens', 'decode_steps', 'drafted', 'accepted')}
        return examiner.scores, figures
    finally:
        if node.interrupt() != 0:
            node.kill()
        executor.shutdown()
        examiner.destroy_node()
        rclpy.try_shutdown()
