"""The training data: pictures of random scenes with the arm in states that the expert passes through.

Only what takes time is stored: pictures, joint positions and the layout. Chunks and sentences are functions of these
and are made while training, for any instruction, so that one picture teaches many tasks.
"""
from __future__ import annotations

import os
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from rich.progress import track

from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.episode import random_start
from oxygen_ros.tabletop.expert import chunk
from oxygen_ros.tabletop.scene import CAMERAS, Scene
from oxygen_ros.tabletop.task import COLOURS, random_intent, random_layout

SHARD = 2000            # observations per file
_PER_LAYOUT = 4         # states pictured per layout
_STEPS = 26             # the expert's steps from which states are drawn; it arrives after about 13
_JITTER = 0.03          # rad; how far states lie off the expert's path


@dataclass(frozen=True)
class Frames:
    """n observations with the truth behind them.

    images: uint8 [n, 2, size, size, 3], cameras in the order of ``scene.CAMERAS``. q: float32 [n, 7], rad.
    cubes: float32 [n, 4, 2], m, NaN where absent. verb, colour: int [n], the intent whose path the state lies on.
    """

    images: np.ndarray
    q: np.ndarray
    cubes: np.ndarray
    verb: np.ndarray
    colour: np.ndarray

    def __len__(self) -> int:
        return len(self.q)

    def take(self, rows: np.ndarray) -> Frames:
        """The given rows."""
        return Frames(*(getattr(self, f.name)[rows] for f in fields(self)))

    @staticmethod
    def join(parts: list[Frames]) -> Frames:
        """One after the other."""
        return Frames(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(Frames)))


VERBS = ('touch', 'point', 'stay')


def make_frames(seed: int, shard: int, count: int, camera_size: int = 64) -> Frames:
    """Draw scenes and states, picture them. The same numbers give the same frames."""
    rng = np.random.default_rng((seed, shard))
    layouts = [random_layout(rng) for _ in range(-(-count // _PER_LAYOUT))]
    scene = Scene(camera_size)
    frames = []
    for layout in layouts:
        intents = [random_intent(layout, rng, stay=0.0) for _ in range(_PER_LAYOUT)]
        starts = np.array([random_start(rng) for _ in intents])
        paths = chunk(starts, np.array([intent.goal(layout) for intent in intents]), _STEPS)
        paths = np.concatenate((starts[:, None], paths), axis=1)
        for intent, path in zip(intents, paths):
            q = path[rng.integers(len(path))] + rng.normal(0.0, _JITTER * rng.random(), 7)
            scene.reset(layout, np.clip(q, -arm.LIMIT, arm.LIMIT))
            frames.append(([scene.render(camera) for camera in CAMERAS], scene.q, layout.array(),
                           VERBS.index(intent.verb), COLOURS.index(intent.colour)))
    scene.close()
    images, q, cubes, verb, colour = map(np.array, zip(*frames[:count]))
    return Frames(images, q.astype(np.float32), cubes.astype(np.float32), verb, colour)


def make_data(folder: Path, observations: int, seed: int = 1, processes: int = 1) -> None:
    """Fill ``folder`` with shards until it holds ``observations``; shards that are there already are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    missing = [shard for shard in range(-(-observations // SHARD)) if not _file(folder, seed, shard).exists()]
    if processes == 1:
        for shard in track(missing, f'{SHARD} observations each'):
            _write(folder, seed, shard)
        return
    with ProcessPoolExecutor(processes, mp_context=get_context('spawn')) as pool:
        jobs = [pool.submit(_write, folder, seed, shard) for shard in missing]
        for job in track(jobs, f'{SHARD} observations each'):
            job.result()


def load_data(folder: Path, limit: int | None = None) -> Frames:
    """Every finished shard, or the first ``limit`` observations. FileNotFoundError with the remedy if there is none."""
    files = sorted(folder.glob('shard_*.npz'))
    if not files:
        raise FileNotFoundError(f'no data in {folder}: make it with "oxygen tabletop data"')
    parts, total = [], 0
    for file in files:
        if limit is not None and total >= limit:
            break
        with np.load(file) as arrays:
            parts.append(Frames(**arrays))
        total += len(parts[-1])
    return Frames.join(parts).take(np.arange(min(total, limit or total)))


def _file(folder: Path, seed: int, shard: int) -> Path:
    return folder / f'shard_{seed}_{shard:05d}.npz'


def _write(folder: Path, seed: int, shard: int) -> None:
    file = _file(folder, seed, shard)
    part = file.with_suffix('.part')
    frames = make_frames(seed, shard, SHARD)
    with open(part, 'wb') as stream:
        np.savez(stream, **{f.name: getattr(frames, f.name) for f in fields(frames)})
    os.replace(part, file)      # a shard is whole or not there
