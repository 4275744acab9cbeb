"""``oxygen check``: does this checkpoint fit this robot? Says so before anything moves."""
from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import psutil
import torch
import tyro
from rich.console import Console
from rich.table import Table
from rich.text import Text

from oxygen_ros.contract import Contract, ContractError, load_contract
from oxygen_ros.engine.engine import Engine
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Ask, Chunk, FromEngine, Rejected, Speech
from oxygen_ros.policy.checkpoint import Checkpoint, Dtype, read, torch_dtype
from oxygen_ros.policy.errors import CheckpointError
from oxygen_ros.policy.normalise import Normaliser
from oxygen_ros.policy.observation import Observation
from oxygen_ros.policy.policy import Policy

Verdict = Literal['ok', 'note', 'FAIL']
_STYLE = {'ok': 'green', 'note': 'yellow', 'FAIL': 'bold red'}
_ROOM = 1.15  # of the weights: with the cache and what a pass computes with, as measured in docs/full_size.md
_TOKENS = 5


@dataclass
class Findings:
    """What was found, in order; each line has a verdict."""

    lines: list[tuple[str, str, Verdict]] = field(default_factory=list)

    def add(self, what: str, text: str, verdict: Verdict = 'ok') -> None:
        self.lines.append((what, text, verdict))

    @property
    def failures(self) -> list[str]:
        return [f'{what}: {text}' for what, text, verdict in self.lines if verdict == 'FAIL']

    def table(self) -> Table:
        table = Table(show_header=False, box=None, pad_edge=False)
        for what, text, verdict in self.lines:
            table.add_row(Text(verdict, _STYLE[verdict]), what, Text(text))
        return table


def check(path: tyro.conf.Positional[str] = '', contract: Path | None = None, device: str = 'cpu',
          dtype: Dtype = 'auto') -> int:
    """Tell whether a checkpoint can be served, and whether it fits a robot, before anything moves.

    Reads the files, compares them with the contract, loads the weights and makes a first chunk and a few words from a
    grey picture. Exit code: 0 all is well, 1 something failed (one line each on stderr), 2 there is nothing to check.

    Args:
        path: folder of the checkpoint, "tabletop", or random:tiny, random:small, random:pi05; by default the one that
            the contract names. When it names none, the contract alone is checked.
        contract: the YAML file that ties the checkpoint to the robot.
        device: where to load it: cpu, cuda, cuda:1, ...
        dtype: float32 or bfloat16; auto is float32 on the CPU and bfloat16 on CUDA.
    """
    if not path and contract is None:
        print('oxygen check: give the folder of a checkpoint, or --contract, or both', file=sys.stderr)
        return 2
    findings = Findings()
    _check(findings, path, contract, device, dtype)
    Console().print(findings.table())
    errors = Console(stderr=True, soft_wrap=True, highlight=False, markup=False)
    for failure in findings.failures:
        errors.print(f'oxygen check: {failure}')
    return 1 if findings.failures else 0


def _check(findings: Findings, path: str, contract_path: Path | None, device: str, dtype: Dtype) -> None:
    """Fill ``findings``; later checks are left out where earlier ones make them impossible."""
    contract = None
    try:
        if contract_path is not None:
            contract = load_contract(contract_path)
            findings.add('contract', f'{contract_path}: {contract.robot}')
            path = path or contract.checkpoint
            if not path:
                findings.add('checkpoint', 'none given, and the contract names none: only the contract was checked',
                             'note')
                return
        checkpoint = read(path)
    except (ContractError, CheckpointError) as error:
        findings.add('contract' if isinstance(error, ContractError) else 'checkpoint', str(error), 'FAIL')
        return
    describe(findings, checkpoint)
    fits = True if contract is None else compare(findings, contract, checkpoint)
    if not memory(findings, checkpoint, device, dtype):
        return
    began = time.monotonic()
    try:
        policy = checkpoint.load(device, dtype)
    except CheckpointError as error:
        findings.add('weights', str(error), 'FAIL')
        return
    findings.add('weights', f'loaded in {time.monotonic() - began:.1f} s, all finite')
    try_out(findings, policy, contract if fits else None)


def describe(findings: Findings, checkpoint: Checkpoint) -> None:
    """What the files say."""
    c, recipe, tokenizer = checkpoint.config, checkpoint.recipe, checkpoint.prompt.tokenizer
    findings.add('format', f'pi0.5 from {recipe.format}, {checkpoint.parameters / 1e6:,.1f} M parameters')
    findings.add('sizes', f'language {c.depth} x {c.width} ({c.mlp}), vision {c.vision_layers} x {c.vision_width} '
                 f'({c.vision_heads} heads), expert {c.expert_width} ({c.expert_mlp}), {c.image} px, '
                 f'vocabulary {c.vocab}')
    findings.add('tokenizer', f'{tokenizer.source}: {tokenizer.vocab_size} ids, bos {tokenizer.bos_id}, '
                 f'stop {sorted(tokenizer.stop_ids)}')
    findings.add('cameras', ', '.join(recipe.cameras))
    relative = f', {sum(recipe.relative)} of them relative to the state' if any(recipe.relative) else ''
    findings.add('state', f'{recipe.state_dim} values, {_ranges(recipe.state, recipe.state_names)}')
    findings.add('actions', f'{c.horizon} x {recipe.action_dim}{relative}, '
                 f'{_ranges(recipe.actions, recipe.action_names)}')
    for note in recipe.notes:
        findings.add('note', note, 'note')


def _ranges(statistics: Normaliser, names: tuple[str, ...]) -> str:
    """What was usual in the training, in the policy's units: for MEAN_STD one standard deviation either way."""
    if not statistics.dim:
        return statistics.mode
    low, high = _ends(statistics)
    labels = names if len(names) == len(low) else range(len(low))
    return f'{statistics.mode}: ' + ', '.join(f'{label} {a:.3g}..{b:.3g}'
                                              for label, a, b in zip(labels, low, high, strict=True))


def _ends(statistics: Normaliser) -> np.ndarray:
    """[2, n]: what -1 and 1 stand for."""
    return np.stack([statistics.unnormalise(np.full(statistics.dim, end)) for end in (-1.0, 1.0)])


def compare(findings: Findings, contract: Contract, checkpoint: Checkpoint) -> bool:
    """Does the contract fit? True if it does so far that an observation can be made from it."""
    recipe = checkpoint.recipe
    faults = contract.mismatches((*recipe.cameras, *recipe.aliases), recipe.state_dim, recipe.action_dim,
                                 any(recipe.relative))
    for fault in faults:
        findings.add('contract', fault, 'FAIL')
    if contract.moves_joints:
        findings.add('semantics', f'{contract.semantics}: chunks reach the topic actions')
    else:
        findings.add('semantics', f'{contract.semantics}: chunks come out on action_chunk only, no joint is moved',
                     'note')
    horizon, period = checkpoint.config.horizon, contract.policy_period
    findings.add('chunk', f'{horizon} actions, {period:g} s apart: {horizon * period:.2f} s')
    if not faults:
        for camera in contract.cameras:
            findings.add('camera', f'{camera.name} from {camera.topic}')
        for fault in (*_out_of_order('state', recipe.state_names, [entry.joint for entry in contract.state]),
                      *_out_of_order('actions', recipe.action_names, [action.label for action in contract.actions]),
                      *_out_of_range(contract, recipe.actions)):
            findings.add('joints', fault, 'FAIL')
    return not faults


def _out_of_order(what: str, trained: tuple[str, ...], labels: list[str]) -> Iterator[str]:
    """Joints that the checkpoint names too, but elsewhere. LeRobot says ``elbow.pos`` for the joint ``elbow``."""
    names = [name.removesuffix('.pos') for name in trained]
    for i, (name, label) in enumerate(zip(names, labels, strict=False)):
        if name != label and label in names:
            yield f'{what}[{i}] is {label} in the contract, but {name} in the training: put them in its order'


def _out_of_range(contract: Contract, actions: Normaliser) -> Iterator[str]:
    """Joints whose range in the training lies elsewhere than their limits: degrees for radians, a sign, an offset."""
    if contract.semantics != 'absolute_position' or not actions.dim:
        return
    ends = _ends(actions)
    for i, action in enumerate(contract.actions):
        if not action.joint or action.position is None or i >= actions.dim:
            continue
        slope, intercept = action.line
        low, high = sorted((ends[:, i] - intercept) / slope)
        inside = min(high, action.position[1]) - max(low, action.position[0])
        if inside < 0.5 * (high - low):
            yield (f'{action.joint} moved from {low:.3g} to {high:.3g} in the training (rad or m, by the contract), '
                   f'but its limits are {action.position[0]:.3g} to {action.position[1]:.3g}: check unit, scale and '
                   'offset')


def memory(findings: Findings, checkpoint: Checkpoint, device: str, dtype: Dtype) -> bool:
    """Is there room for the weights?"""
    try:
        kind = torch.device(device)
        to = torch_dtype(dtype, kind)
        free = torch.cuda.mem_get_info(kind)[0] if kind.type == 'cuda' else psutil.virtual_memory().available
    except (RuntimeError, AssertionError):
        return True   # loading says what is wrong with the device
    need, c = checkpoint.weight_bytes(to), checkpoint.config
    rows = len(checkpoint.recipe.cameras) * c.image_tokens + checkpoint.prompt.max_tokens
    kv = rows * 2 * c.depth * c.head_dim * to.itemsize
    text = (f'weights {need / 1e6:,.0f} MB, KV {kv / 1e6:.1f} MB per observation of {rows} tokens; '
            f'{free / 1e6:,.0f} MB free on {device}')
    fits = need * _ROOM < free
    findings.add('memory', text if fits else f'{text}: too little', 'ok' if fits else 'FAIL')
    return fits


def try_out(findings: Findings, policy: Policy, contract: Contract | None) -> None:
    """One chunk and a few tokens from a grey picture and the middle of the trained state."""
    middle = policy.recipe.state.unnormalise(np.zeros(policy.state_dim)).astype(np.float32)
    cameras = [camera.name for camera in contract.cameras] if contract else policy.cameras
    grey = np.full((policy.config.image, policy.config.image, 3), 127, np.uint8)
    seen = Observation(dict.fromkeys(cameras, grey), middle, contract and contract.instruction or 'pick up the cube')
    try:
        prepared = policy.prepare(seen)
    except ValueError as error:
        findings.add('prompt', str(error), 'FAIL')
        return
    findings.add('prompt', f'{prepared.text!r} ({len(prepared.ids)} of {policy.prompt.max_tokens} tokens)')
    events: list[FromEngine] = []
    engine = Engine(policy, EngineOptions(max_live=1, max_tokens=_TOKENS), events.append)
    try:
        began = time.monotonic()
        engine.act(seen)
        took = time.monotonic() - began
        engine.ask(Ask('check', 'Subtask: '))
        engine.speak()
    finally:
        engine.reset()
    for event in events:
        if isinstance(event, Rejected):
            findings.add('actions', event.why, 'FAIL')
        elif isinstance(event, Chunk):
            findings.add('actions', f'a first chunk in {took:.2f} s, finite, between {event.actions.min():.3g} and '
                         f'{event.actions.max():.3g}')
        elif isinstance(event, Speech) and event.final:
            findings.add('text', f'{event.text!r} ({event.reason})', 'FAIL' if event.reason == 'error' else 'ok')
