"""The scripted expert: inverse kinematics and a feedback law, so that it knows what to do from any state.

It heads for the goal in joint space at a limited speed and slows down near it. Far from the goal sideways it aims
higher, so that the finger comes down on the cube from above and passes over the others. Being a function of the state
alone it recovers from every push, and its chunks are the labels for any state the robot may be found in.
"""
from __future__ import annotations

import numpy as np

from oxygen_ros.tabletop import arm
from oxygen_ros.tabletop.controller import Controller
from oxygen_ros.tabletop.episode import Episode
from oxygen_ros.tabletop.task import Judge

PERIOD = 0.1            # s between actions
HORIZON = 10            # actions per chunk
SPEED = 0.6             # rad/s, fastest joint
_NEAR = 0.35            # share of the remaining way per period when close
_SLOPE, _CLEARANCE = 0.5, 0.10      # aim this much higher per metre of horizontal distance, at most so many metres
_FREE = 0.03            # no clearance within this horizontal distance, m


def chunk(q: np.ndarray, goal: np.ndarray, horizon: int = HORIZON) -> np.ndarray:
    """The next ``horizon`` joint targets [..., horizon, 7] from joint positions [..., 7] to fingertip goals [..., 3].

    A goal of NaN means: stay. Targets are one PERIOD apart; the first lies one PERIOD ahead.
    """
    q, goal = np.asarray(q, np.float64), np.asarray(goal, np.float64)
    stay = np.isnan(goal).any(-1, keepdims=True)
    steps = []
    for _ in range(horizon):
        distance = np.linalg.norm(arm.fingertip(q)[..., :2] - goal[..., :2], axis=-1, keepdims=True)
        height = np.clip(_SLOPE * (distance - _FREE), 0.0, _CLEARANCE)
        aim = arm.inverse(np.concatenate((goal[..., :2], goal[..., 2:] + height), axis=-1))
        way = np.where(stay, 0.0, aim - q)
        farthest = np.abs(way).max(-1, keepdims=True)
        share = np.minimum(_NEAR, SPEED * PERIOD / np.maximum(farthest, 1e-9))
        q = q + share * way
        steps.append(q)
    return np.stack(steps, axis=-2)


def goal_of(episode: Episode) -> np.ndarray:
    """The episode's fingertip goal [3]; NaN for "stay"."""
    goal = episode.intent.goal(episode.layout)
    return np.full(3, np.nan) if goal is None else goal


def rollout(episode: Episode, rng: np.random.Generator, seconds: float = 5.0, push: float = 0.08,
            noise: float = 0.01) -> tuple[np.ndarray, bool]:
    """Let the expert drive one episode; return its states [n, 7], one per PERIOD, and whether it succeeded.

    noise: standard deviation of the error of every step towards a cube, rad. push: chance per step that the arm is
    pushed by a few hundredths of a radian in every joint, from which the expert has to recover.
    """
    controller = Controller(episode.start)
    judge = Judge(episode.layout, episode.intent, arm.fingertip(episode.start))
    goal, states = goal_of(episode), []
    for step in range(round(seconds / PERIOD)):
        now = step * PERIOD
        q = controller.advance(now)
        judge.watch(now, arm.fingertip(q))
        states.append(q)
        if rng.random() < push and episode.intent.colour:
            controller.reset(q + rng.normal(0.0, 0.06, 7))
            controller.advance(now)
        if episode.intent.colour:
            controller.follow(now, PERIOD * np.arange(1, HORIZON + 1), chunk(q, goal) + rng.normal(0.0, noise, 7))
    return np.array(states), judge.succeeded
