"""The node's parameters: one schema is declaration, ranges, validation, read-only flags and documentation.

Nothing here imports ROS: ros_parameters.py declares them, parameter_docs.py writes their documentation.
"""
from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import NoneType, UnionType
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel, Field, ValidationError, create_model, model_validator

from oxygen_ros.contract import Strict
from oxygen_ros.engine.options import EngineOptions
from oxygen_ros.engine.wire import Configure, Standing

RUNTIME: dict[str, Any] = {'runtime': True}  # may change while the node runs


class ParameterError(ValueError):
    """Parameter values that cannot be used; the text names each and says why."""


class StandingParameters(Strict):
    """A request that the engine starts by itself."""

    seed: str = Field('', json_schema_extra=RUNTIME, description='text the model continues')
    every_cycles: int = Field(0, ge=0, le=100_000, json_schema_extra=RUNTIME,
                              description='start one every so many observations; 0 = never')
    max_tokens: int = Field(24, ge=1, le=4096, json_schema_extra=RUNTIME, description='longest text, in tokens')

    @model_validator(mode='after')
    def _seeded(self) -> StandingParameters:
        if self.every_cycles and not self.seed:
            raise ValueError('a standing request needs a seed: set seed, or every_cycles to 0')
        return self


class Narration(StandingParameters):
    seed: str = Field('Subtask: ', json_schema_extra=RUNTIME, description='text the model continues')
    every_cycles: int = Field(10, ge=0, le=100_000, json_schema_extra=RUNTIME,
                              description='start one every so many observations; 0 = never')


class SpeechParameters(Strict):
    max_tokens: int = Field(48, ge=1, le=4096, json_schema_extra=RUNTIME,
                            description='default and upper limit of tokens per request; at run time at most what it '
                            'was at the start')
    say_unchanged: bool = Field(False, json_schema_extra=RUNTIME,
                                description='publish a narration on `said` though it equals the one before')
    narration: Narration = Narration()
    memory: StandingParameters = StandingParameters()

    def standing(self) -> tuple[Standing, ...]:
        """The standing requests as the engine takes them."""
        return tuple(Standing(channel, p.seed, p.every_cycles, min(p.max_tokens, self.max_tokens))
                     for channel, p in (('narration', self.narration), ('memory', self.memory)) if p.every_cycles)

    def configure(self) -> Configure:
        """The message that applies these settings to a running engine."""
        return Configure(standing=self.standing(), max_tokens=self.max_tokens)


_ELSEWHERE = ('checkpoint', 'standing', 'max_tokens')  # engine options that have a parameter of their own below
_fields: dict[str, Any] = {
    name: (field.annotation, field) for name, field in EngineOptions.model_fields.items() if name not in _ELSEWHERE}
EngineParameters = create_model('EngineParameters', __config__=Strict.model_config, **_fields)


class NodeParameters(Strict):
    autostart: bool = Field(True, description='configure and activate without being asked; false: a lifecycle manager '
                            'does it')
    contract: str = Field('tabletop', description='YAML file that ties the checkpoint to the robot, or "tabletop"')
    checkpoint: str = Field('', description='folder of a checkpoint, "tabletop", or "random:tiny", "random:small", '
                            '"random:pi05" (random weights); \'\' = the one that the contract names')
    instruction: str = Field('', description="what to do until `task` says otherwise; '' = the contract's instruction")
    publish_rate_hz: float = Field(50.0, ge=1.0, le=1000.0, json_schema_extra=RUNTIME,
                                   description='rate of `actions`, at least cycle_rate_hz, Hz')
    cycle_rate_hz: float = Field(10.0, ge=0.05, le=200.0, json_schema_extra=RUNTIME,
                                 description='observations per second, at most; a slower model sets its own pace, Hz')
    stamp_mode: Literal['zero', 'now', 'observation'] = Field(
        'zero', description="stamp of `actions`: zero (the controller starts on arrival), now, or the observation's; "
        'time_from_start always counts from it')
    forward_commands: bool = Field(False, description='also publish `commands`, one row of positions per tick, for a '
                                   'forward_command_controller')
    realtime_priority: int = Field(20, ge=0, le=99, description='of the node process (SCHED_FIFO), where the system '
                                   'allows it; below the 50 of ros2_control, 0 = none. The engine has none')
    wake_latency_us: int = Field(0, ge=-1, le=1_000_000, description='how long a sleeping processor core may take to '
                                 'wake up while the node is active, where the system allows to say so; 0 = cores do '
                                 'not sleep, which takes more power, -1 = as the system likes, us')
    stop_mode: Literal['hold', 'finish'] = Field(
        'hold', json_schema_extra=RUNTIME, description='when an input or the engine fails: hold the present position '
        'at once, or finish the chunk first')
    blend_s: float = Field(0.2, ge=0.0, le=5.0, json_schema_extra=RUNTIME,
                           description='time over which a new chunk takes over from the one before, s')
    real_time_chunking: bool = Field(False, json_schema_extra=RUNTIME, description='let each chunk begin with what the '
                                     'robot executes while it is computed; needs every action to be a joint')
    max_skew_s: float = Field(0.25, ge=0.001, le=10.0, json_schema_extra=RUNTIME,
                              description='largest difference between two inputs in the time from stamp to '
                              'arrival, s; more means that they show different moments')
    robot_description: str = Field('', description='URDF of the robot as text, where no topic carries it (see '
                                   'description_topic of the contract)')
    marker_frame: str = Field('base_link', description='frame of `markers` while there is no URDF, whose base it is '
                              'else')
    load_timeout_s: float = Field(900.0, ge=1.0, le=86400.0,
                                  description='longest time to load and warm up the model, s')
    hang_timeout_s: float = Field(5.0, ge=1.0, le=3600.0, description='an engine that is silent for so long hangs: it '
                                  'is started again, s; ten times the time of one observation where that is more')
    speech: SpeechParameters = SpeechParameters()
    engine: EngineParameters = EngineParameters()  # type: ignore[valid-type]

    @model_validator(mode='after')
    def _rates(self) -> NodeParameters:
        if self.cycle_rate_hz > self.publish_rate_hz:
            raise ValueError(f'cycle_rate_hz ({self.cycle_rate_hz:g}) must not exceed publish_rate_hz '
                             f'({self.publish_rate_hz:g})')
        return self

    def engine_options(self, checkpoint: str = '') -> EngineOptions:
        """How to start the engine; ``checkpoint`` is the contract's, for when the parameter is empty."""
        return EngineOptions(checkpoint=self.checkpoint or checkpoint, **self.engine.model_dump(),
                             max_tokens=self.speech.max_tokens, standing=self.speech.standing())


@dataclass(frozen=True)
class Spec:
    """One ROS parameter. ``kind`` is bool, int, float or str; ``optional`` ints use -1 for "none"."""

    name: str
    kind: type
    default: Any
    description: str
    read_only: bool
    low: float | None
    high: float | None
    choices: tuple[str, ...]
    optional: bool


def specs(model: type[BaseModel] = NodeParameters, prefix: str = '') -> Iterator[Spec]:
    """Every parameter of the schema, nested names joined by dots."""
    for name, field in model.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from specs(field.annotation, f'{prefix}{name}.')
            continue
        kind: Any = field.annotation
        optional = False
        if get_origin(kind) is UnionType:
            kind, optional = next(arg for arg in get_args(kind) if arg is not NoneType), True
        choices = get_args(kind) if get_origin(kind) is Literal else ()
        bounds = {side: getattr(rule, side) for rule in field.metadata for side in ('ge', 'gt', 'le', 'lt')
                  if getattr(rule, side, None) is not None}
        yield Spec(prefix + name, str if choices else kind, -1 if optional else field.default, field.description or '',
                   field.json_schema_extra != RUNTIME, bounds.get('ge', bounds.get('gt')),
                   bounds.get('le', bounds.get('lt')), choices, optional)


_OPTIONAL = {spec.name for spec in specs() if spec.optional}


def parse(values: Mapping[str, Any]) -> NodeParameters:
    """Validate flat values (missing ones take their default); ParameterError names each bad one."""
    tree: dict[str, Any] = {}
    for name, value in values.items():
        *parents, leaf = name.split('.')
        branch = tree
        for parent in parents:
            branch = branch.setdefault(parent, {})
        branch[leaf] = None if name in _OPTIONAL and value == -1 else value
    try:
        parameters = NodeParameters.model_validate(tree)
        parameters.engine_options()
    except ValidationError as error:
        prefix = 'engine.' if error.title == 'EngineOptions' else ''
        raise ParameterError('; '.join(_reason(fault, prefix) for fault in error.errors(include_url=False))) from None
    return parameters


def _reason(fault: Mapping[str, Any], prefix: str) -> str:
    where = prefix + '.'.join(str(key) for key in fault['loc'])
    text = fault['msg'].removeprefix('Value error, ')
    if fault['type'] == 'extra_forbidden':
        return f'{where}: no such parameter, see docs/parameters.md'
    if not where or isinstance(fault['input'], dict | BaseModel):
        return f'{where}: {text}' if where else text
    return f'{where}: {text}, got {fault["input"]!r}'
