"""docs/parameters.md, from the schemas: ``python -m oxygen_ros.node.parameter_docs > docs/parameters.md``."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, get_args, get_origin

from pydantic import BaseModel

from oxygen_ros.contract import Action, Camera, Contract, Gripper, JointTopic, StateJoint, Transform
from oxygen_ros.node.parameters import Spec, specs


def _parameter_row(spec: Spec) -> str:
    allowed = ', '.join(spec.choices)
    if spec.low is not None or spec.high is not None:
        allowed = f'{spec.low if spec.low is not None else ""} .. {spec.high if spec.high is not None else ""}'
    default = repr(spec.default) if spec.kind is str else str(spec.default).lower()
    note = ' (-1: none)' if spec.optional else ''
    return (f'| `{spec.name}` | {spec.kind.__name__} | `{default}` | {allowed} | {"" if spec.read_only else "yes"} | '
            f'{spec.description}{note} |')


def _contract_table(model: type[BaseModel]) -> Iterator[str]:
    yield f'\n### {model.__name__}\n\n{(model.__doc__ or "").strip().splitlines()[0]}\n'
    yield '| key | default | meaning |\n| --- | --- | --- |'
    for name, field in model.model_fields.items():
        if field.is_required():
            default = 'required'
        elif isinstance(field.default, tuple):
            default = '[]' if not field.default else 'joint_states'
        else:
            default = f'`{field.default}`' if field.default not in ('', None) else ''
        choices = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
        meaning = '; '.join(filter(None, (field.description, ' / '.join(map(str, choices)))))
        yield f'| `{name}` | {default} | {meaning} |'


def document() -> str:
    """docs/parameters.md."""
    lines = ['<!-- Generated: python -m oxygen_ros.node.parameter_docs > docs/parameters.md -->', '# Parameters', '',
             'Parameters of the node `oxygen`. Those without a "yes" are fixed when the node starts; the others are '
             'validated and applied while it runs (`ros2 param set /oxygen/oxygen publish_rate_hz 100`).', '',
             '| parameter | type | default | allowed | at run time | meaning |',
             '| --- | --- | --- | --- | --- | --- |',
             *(_parameter_row(spec) for spec in specs()), '', '## The contract', '',
             'The YAML file named by `contract`; `config/tabletop_contract.yaml` is an example. One rule converts '
             'every joint both ways: `policy = scale * robot + offset`, robot in rad or m.']
    for model in (Contract, Camera, Transform, JointTopic, StateJoint, Action, Gripper):
        lines += _contract_table(model)
    return '\n'.join(lines) + '\n'


if __name__ == '__main__':
    print(document(), end='')
