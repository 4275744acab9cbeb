"""The contract: the YAML file that ties a checkpoint to a robot (cameras, joints, units, limits, meaning of actions).

One rule converts every joint, in both directions: ``policy = scale * robot + offset``, where ``robot`` is in ROS units
(rad, m) and ``policy`` is what the checkpoint was trained on. State is converted with it, actions with its inverse, so
one declaration serves both. Nothing here imports ROS.
"""
from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

Semantics = Literal['absolute_position', 'relative_position', 'velocity', 'cartesian']
Pixels = Annotated[int, Field(ge=0)]

TOPIC = r'^(~/|/)?[A-Za-z_][A-Za-z0-9_]*(/[A-Za-z_][A-Za-z0-9_]*)*$'
_UNIT = {'rad': 1.0, 'm': 1.0, 'deg': 180.0 / math.pi, 'mm': 1000.0}  # policy units in one ROS unit


class ContractError(ValueError):
    """A contract that cannot be used. The text names the file, the key and the remedy."""


class Strict(BaseModel):
    model_config = ConfigDict(extra='forbid', frozen=True, allow_inf_nan=False)

    @field_validator('*', mode='before')
    @classmethod
    def _no_flag(cls, value: Any, info: ValidationInfo) -> Any:
        """YAML makes true of "yes", and pydantic 1.0 of true."""
        wanted = cls.model_fields[info.field_name or ''].annotation
        if isinstance(value, bool) and wanted in (int, float, float | None):
            raise ValueError('a number is needed')
        return value


class Transform(Strict):
    """One step that brings a camera's picture into the pose of the training pictures. Exactly one key per step."""

    rotate: Literal[90, 180, 270] | None = Field(None, description='clockwise, degrees')
    flip: Literal['horizontal', 'vertical'] | None = Field(None, description='mirror')
    crop: tuple[Pixels, Pixels, Pixels, Pixels] | None = Field(None, description='x, y, width, height in px')

    @model_validator(mode='after')
    def _one(self) -> Transform:
        if sum(step is not None for step in (self.rotate, self.flip, self.crop)) != 1:
            raise ValueError('a step has exactly one of rotate, flip, crop; write several steps in order')
        if self.crop is not None and 0 in self.crop[2:]:
            raise ValueError('crop is [x, y, width, height] with width and height above 0')
        return self


class Input(Strict):
    """What every input declares about its freshness."""

    topic: str = Field(pattern=TOPIC, description='relative names live in the namespace of the node')
    max_age: float = Field(0.5, gt=0, le=60, description='older input stops the motion, s')
    trust_stamp: bool = Field(True, description='false: the clock that stamps this input is not synchronised with '
                              'this machine, so only the time of arrival counts')


class Camera(Input):
    """A camera of the policy. Order in the file is the order in which pictures are mounted."""

    name: str = Field(min_length=1, description="the policy's own name for the picture")
    compressed: bool = Field(False, description='the topic carries sensor_msgs/CompressedImage')
    required: bool = Field(True, description='false: without it the policy goes on with the other cameras')
    transforms: tuple[Transform, ...] = Field((), description='applied in order')


class JointTopic(Input):
    """A sensor_msgs/JointState topic; all of them are merged joint by joint."""

    max_age: float = Field(0.25, gt=0, le=60, description='older joints stop the motion, s')
    prefix: str = Field('', description='put before every joint name of this topic, where two arms use the same names: '
                        'state and actions then say left_waist, right_waist')


class Gripper(Strict):
    """Which way round a gripper is, in words; replaces scale and offset."""

    policy_open: float = Field(description="the policy's value for open")
    policy_closed: float = Field(description="the policy's value for closed")
    robot_open: float = Field(description='joint position when open, rad or m')
    robot_closed: float = Field(description='joint position when closed, rad or m')

    @model_validator(mode='after')
    def _distinct(self) -> Gripper:
        for side in ('policy', 'robot'):
            if getattr(self, f'{side}_open') == getattr(self, f'{side}_closed'):
                raise ValueError(f'{side}_open and {side}_closed must differ')
        return self


class Axis(Strict):
    """Units of one number: ``policy = scale * robot + offset``, robot in ROS units."""

    unit: Literal['rad', 'm', 'deg', 'mm'] = Field('rad', description="the policy's unit, before scale and offset")
    scale: float = Field(1.0, description='policy units per robot unit, on top of unit')
    offset: float = Field(0.0, description="the policy's value where the robot's is 0")
    gripper: Gripper | None = Field(None, description='instead of scale and offset')

    @model_validator(mode='after')
    def _invertible(self) -> Axis:
        if self.scale == 0:
            raise ValueError('scale must not be 0')
        if self.gripper and {'scale', 'offset'} & self.model_fields_set:
            raise ValueError('gripper replaces scale and offset: remove one of them')
        return self

    @property
    def line(self) -> tuple[float, float]:
        """(slope, intercept) of robot -> policy."""
        if grip := self.gripper:
            slope = (grip.policy_open - grip.policy_closed) / (grip.robot_open - grip.robot_closed)
            return slope, grip.policy_open - slope * grip.robot_open
        return self.scale * _UNIT[self.unit], self.offset


class StateJoint(Axis):
    """One entry of the policy's state vector."""

    joint: str = Field(min_length=1, description='name in the joint states')
    field: Literal['position', 'velocity', 'effort'] = Field('position', description='which value of it')


class Action(Axis):
    """One entry of the policy's action vector: a joint, or (``name``) something only `action_chunk` carries."""

    joint: str | None = Field(None, min_length=1, description='the joint to move')
    name: str | None = Field(None, min_length=1, description='or a label, for what is no joint')
    absolute: bool = Field(False, description='under relative_position: this one is absolute all the same (grippers)')
    position: tuple[float, float] | None = Field(None, description='least and most, rad or m')
    velocity: float = Field(1.0, gt=0, description='fastest motion, rad/s or m/s')
    limits: Literal['contract', 'urdf'] = Field('contract', description='urdf: position may be left out, and nothing '
                                                "moves until the robot's URDF has told it; whatever is given, the "
                                                'stricter of both counts once there is a URDF')
    max_delta: float | None = Field(None, gt=0, description='largest change within one policy period, rad or m')

    @model_validator(mode='after')
    def _named(self) -> Action:
        if (self.joint is None) == (self.name is None):
            raise ValueError('give either joint (a joint to move) or name (anything else)')
        if self.position is not None and not self.position[0] < self.position[1]:
            raise ValueError(f'position is [least, most], got {list(self.position)}')
        return self

    def plausible(self, position: float) -> bool:
        """Whether a measured position can be true: within the limits, or a tenth of their range beyond."""
        if self.position is None:
            return True
        slack = 0.1 * (self.position[1] - self.position[0])
        return self.position[0] - slack <= position <= self.position[1] + slack

    @property
    def label(self) -> str:
        return self.joint or self.name or ''


class Contract(Strict):
    """Everything a node must know about a robot to serve one checkpoint on it."""

    robot: str = Field(min_length=1, description='what this contract is for; shown in logs and diagnostics')
    source: str = Field('', description='where the numbers come from')
    checkpoint: str = Field('', description='the checkpoint it was written for; used when none is given')
    semantics: Semantics = Field(description='what an action means; only positions can reach the topic `actions`')
    policy_period: float = Field(gt=0, le=10, description='time between consecutive actions of a chunk, s')
    instruction: str = Field('', description='used until the topic `task` says otherwise')
    cameras: tuple[Camera, ...] = Field(min_length=1, description='pictures that the policy reads, in order')
    joint_topics: tuple[JointTopic, ...] = Field((JointTopic(topic='joint_states'),),
                                                 description='where joints come from')
    state: tuple[StateJoint, ...] = Field((), description="the policy's state vector, in order")
    actions: tuple[Action, ...] = Field(min_length=1, description="the policy's action vector, in order")
    description_topic: str = Field('robot_description', pattern=TOPIC, description="std_msgs/String, latched, with the "
                                   "robot's URDF, if it publishes one: for paths on `markers` and for limits")
    tools: tuple[str, ...] = Field((), description='links whose path is shown; [] = the ends of what is moved')

    @field_validator('joint_topics')
    @classmethod
    def _some_topic(cls, topics: tuple[JointTopic, ...]) -> tuple[JointTopic, ...]:
        if not topics:
            raise ValueError('give at least one topic, or leave the key out for joint_states')
        return topics

    @model_validator(mode='after')
    def _consistent(self) -> Contract:
        _unique('cameras: name', (camera.name for camera in self.cameras))
        _unique('cameras: topic', (camera.topic for camera in self.cameras))
        _unique('joint_topics: topic', (topic.topic for topic in self.joint_topics))
        _unique('state: joint and field', (f'{entry.joint} {entry.field}' for entry in self.state))
        _unique('actions: joint or name', (action.label for action in self.actions))
        prefixes = tuple(topic.prefix for topic in self.joint_topics)
        for entry in self.state:
            if not entry.joint.startswith(prefixes):
                raise ValueError(f'state: no topic can give {entry.joint}, for the joints of joint_topics begin with '
                                 f'{" or ".join(prefixes)}: correct the name or the prefix')
        if self.moves_joints:
            measured = {entry.joint: entry.line for entry in self.state if entry.field == 'position'}
            for action in self.actions:
                if action.joint and action.position is None and action.limits == 'contract':
                    raise ValueError(f'actions: {action.joint} has no limits: add position: [least, most] (rad or m; '
                                     '[-1e9, 1e9] for a joint that turns for ever), or limits: urdf if the robot '
                                     'publishes its description')
                if action.joint and action.joint not in measured:
                    raise ValueError(f'actions: {action.joint} is moved but its position is not in state, so the '
                                     'motion cannot start from where the robot is: add it to state')
                relative = self.semantics == 'relative_position' and not action.absolute
                if action.joint and relative and not np.allclose(action.line, measured[action.joint]):
                    raise ValueError(f'actions: {action.joint} is relative to its state, but has another unit, scale, '
                                     'offset or gripper there: make them equal, or the action absolute: true')
            if not self.joints:
                raise ValueError(f'actions: none names a joint, but semantics is {self.semantics}: write joint: '
                                 'instead of name:')
        return self

    @property
    def moves_joints(self) -> bool:
        """Whether chunks are joint positions, the only thing that may go to `actions`."""
        return self.semantics in ('absolute_position', 'relative_position')

    @property
    def joints(self) -> tuple[Action, ...]:
        """The actions that are joints, in order: the joints of a trajectory."""
        return tuple(action for action in self.actions if action.joint)

    @property
    def only_joints(self) -> bool:
        """Whether every action is the position of a joint, so that positions can be told as actions."""
        return self.moves_joints and len(self.joints) == len(self.actions)

    def limited(self, urdf: Mapping[str, tuple[float, float, float]]) -> Contract:
        """The same contract with the stricter of its own limits and a URDF's: joint -> (least, most, fastest)."""
        actions = []
        for action in self.actions:
            if action.joint is not None and action.joint in urdf:
                low, high, fastest = urdf[action.joint]
                if action.position is not None:
                    low, high = max(low, action.position[0]), min(high, action.position[1])
                if not low < high:
                    raise ContractError(f"{action.joint}: the contract's limits {list(action.position or ())} and "
                                        f"the URDF's {list(urdf[action.joint][:2])} leave nothing: correct one")
                action = action.model_copy(update={'position': (low, high), 'velocity': min(action.velocity, fastest)})
            actions.append(action)
        return self.model_copy(update={'actions': tuple(actions)})

    def state_vector(self, read: Mapping[tuple[str, str], float]) -> np.ndarray:
        """float32 [len(state)] in policy units from ROS values, keyed by (joint, field)."""
        lines = [(entry.line, read[entry.joint, entry.field]) for entry in self.state]
        return np.array([slope * value + intercept for (slope, intercept), value in lines], np.float32)

    def joint_targets(self, actions: np.ndarray, state: np.ndarray) -> np.ndarray:
        """Positions float64 [horizon, len(joints)] in ROS units, from actions [horizon, >= len(actions)].

        state: the policy-unit state of the same observation; relative actions are relative to it.
        """
        if not self.moves_joints:
            raise ContractError(f'{self.semantics} actions are not joint positions')
        column = {entry.joint: i for i, entry in enumerate(self.state) if entry.field == 'position'}
        targets = np.empty((len(actions), len(self.joints)))
        for out, (i, action) in enumerate((i, a) for i, a in enumerate(self.actions) if a.joint):
            values = actions[:, i].astype(np.float64)
            if self.semantics == 'relative_position' and not action.absolute:
                values = values + float(state[column[action.label]])
            slope, intercept = action.line
            targets[:, out] = (values - intercept) / slope
        return targets

    def policy_actions(self, targets: np.ndarray, state: np.ndarray) -> np.ndarray:
        """The inverse of joint_targets, float32 [n, len(actions)]; ContractError where some action is no joint."""
        if not self.only_joints:
            raise ContractError('actions that are no joints cannot be told from positions')
        column = {entry.joint: i for i, entry in enumerate(self.state) if entry.field == 'position'}
        actions = np.empty((len(targets), len(self.actions)), np.float32)
        for i, action in enumerate(self.actions):
            slope, intercept = action.line
            actions[:, i] = targets[:, i] * slope + intercept
            if self.semantics == 'relative_position' and not action.absolute:
                actions[:, i] -= float(state[column[action.label]])
        return actions

    def mismatches(self, cameras: Iterable[str], state_dim: int, action_dim: int, relative: bool) -> list[str]:
        """What stands between this contract and a loaded checkpoint, one sentence each.

        relative: the checkpoint's own processors add the state to some of its actions.
        """
        known, found = set(cameras), []
        names = [camera.name for camera in self.cameras]
        if known and (foreign := [name for name in names if name not in known]):
            found.append(f'cameras: the checkpoint does not know {", ".join(foreign)}; it knows '
                         f'{", ".join(sorted(known))}')
        if state_dim and len(self.state) != state_dim:
            found.append(f'state: {len(self.state)} entries, but the checkpoint reads {state_dim}')
        if len(self.actions) != action_dim:
            found.append(f'actions: {len(self.actions)} entries, but the checkpoint makes {action_dim}')
        if relative and self.semantics == 'relative_position':
            found.append('semantics: the checkpoint itself makes its relative actions absolute: write '
                         'absolute_position, or they would be added to the state twice')
        return found


def _unique(what: str, values: Iterable[str]) -> None:
    seen: set[str] = set()
    for value in values:
        if value in seen:
            raise ValueError(f'{what} {value!r} is given twice')
        seen.add(value)


class _Loader(yaml.SafeLoader):
    """Of two equal keys PyYAML takes the last without a word."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        if twice := sorted({key for key in keys if keys.count(key) > 1}):
            raise yaml.constructor.ConstructorError(None, None, f'{", ".join(twice)}: given twice', node.start_mark)
        return super().construct_mapping(node, deep)


def load_contract(path: str | Path) -> Contract:
    """Read and check a contract file; ContractError with every fault in one message."""
    try:
        path = Path(path).expanduser()
        data = yaml.load(path.read_text(encoding='utf-8'), _Loader)
    except (OSError, RuntimeError) as error:  # RuntimeError: ~somebody who is not there
        raise ContractError(f'contract {path}: cannot be read ({getattr(error, "strerror", error)}); set the parameter '
                            '`contract` to a YAML file') from None
    except (yaml.YAMLError, ValueError) as error:
        raise ContractError(f'contract {path}: not valid YAML: {" ".join(str(error).split())}') from None
    if not isinstance(data, dict):
        raise ContractError(f'contract {path}: empty or not a mapping; config/tabletop_contract.yaml is an example')
    try:
        return Contract.model_validate(data)
    except ValidationError as error:
        faults = '; '.join(_fault(fault, data) for fault in error.errors(include_url=False))
        raise ContractError(f'contract {path}: {faults}') from None


def _fault(fault: Mapping, data: object) -> str:
    """'actions[2] (elbow).velocity: Input should be ...' with list items named as the file names them."""
    where = ''
    for key in fault['loc']:
        if isinstance(key, int):
            where += f'[{key}]'
            data = data[key] if isinstance(data, list) and key < len(data) else None
            if isinstance(data, dict) and (known := [data[k] for k in ('name', 'joint', 'topic') if k in data]):
                where += f' ({known[0]})'
        else:
            where += f'.{key}' if where else str(key)
            data = data.get(key) if isinstance(data, dict) else None
    text = fault['msg'].removeprefix('Value error, ')
    if fault['type'] == 'extra_forbidden':
        text = 'unknown key: check its spelling'
    elif fault['type'] == 'missing':
        text = 'is missing: add it'
    elif not isinstance(data, (dict, list)):
        text += f', got {data!r}'
    return f'{where}: {text}' if where else text
