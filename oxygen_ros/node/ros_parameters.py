"""The schema of parameters.py as ROS parameters: declared with ranges, validated as a whole, applied at once."""
from __future__ import annotations

import difflib
from collections.abc import Callable

from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor, SetParametersResult
from rclpy.exceptions import InvalidParameterTypeException, InvalidParameterValueException
from rclpy.node import Node

from oxygen_ros.node.parameters import NodeParameters, ParameterError, Spec, parse, specs

_OWN = ('use_sim_time', 'start_type_description_service', 'qos_overrides.')  # what rclpy declares itself


class RosParameters:
    """``values`` is always a valid whole. ``veto`` may refuse a change by a reason; ``on_change`` gets (old, new)."""

    def __init__(self, node: Node, veto: Callable[[NodeParameters], str],
                 on_change: Callable[[NodeParameters, NodeParameters], None]) -> None:
        self._node, self._veto, self._on_change = node, veto, on_change
        self._names = [spec.name for spec in specs()]
        faults = []
        for spec in specs():
            try:
                node.declare_parameter(spec.name, spec.default, _descriptor(spec))
            except (InvalidParameterTypeException, InvalidParameterValueException) as error:
                faults.append(f'{spec.name}: {error}')
        if faults:
            raise ParameterError('; '.join(faults))
        self.values = parse(self._read())
        self._warn_of_strangers()
        node.add_on_set_parameters_callback(self._check)
        node.add_post_set_parameters_callback(self._apply)

    def _read(self) -> dict[str, object]:
        return {name: self._node.get_parameter(name).value for name in self._names}

    def _check(self, changes) -> SetParametersResult:
        changed = {p.name: p.value for p in changes if p.name in self._names}
        try:
            reason = self._veto(parse({**self._read(), **changed})) if changed else ''
        except ParameterError as error:
            reason = str(error)
        return SetParametersResult(successful=not reason, reason=reason)

    def _apply(self, changes) -> None:
        if any(p.name in self._names for p in changes):
            old, self.values = self.values, parse(self._read())
            self._on_change(old, self.values)

    def _warn_of_strangers(self) -> None:
        """A misspelt parameter in a file changes nothing and says nothing; so say it."""
        for name in self._node._parameter_overrides:  # no public way to see them undeclared
            if name not in self._names and not name.startswith(_OWN):
                near = difflib.get_close_matches(name, self._names, 1)
                hint = f': did you mean {near[0]}?' if near else ', see docs/parameters.md'
                self._node.get_logger().warning(f'there is no parameter {name}{hint}')


def _descriptor(spec: Spec) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=spec.description, read_only=spec.read_only,
                                     additional_constraints=f'one of {", ".join(spec.choices)}' if spec.choices else '')
    if spec.low is not None and spec.high is not None:
        if spec.kind is float:
            low, high = float(spec.low), float(spec.high)
            descriptor.floating_point_range = [FloatingPointRange(from_value=low, to_value=high)]
        elif spec.kind is int:
            descriptor.integer_range = [IntegerRange(from_value=int(spec.low), to_value=int(spec.high), step=1)]
    descriptor.dynamic_typing = spec.kind is float  # "50" is as good as "50.0"; parse() checks the type
    return descriptor
