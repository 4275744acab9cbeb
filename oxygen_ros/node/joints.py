"""Joint state of the whole robot, merged by joint name from partial messages on any number of topics."""
from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from oxygen_ros.contract import JointTopic, StateJoint
from oxygen_ros.node.freshness import NEVER, SECOND, Freshness, Problem


class _Reading:
    """The newest value of one joint's field, and where it came from."""

    def __init__(self) -> None:
        self.freshness: Freshness | None = None
        self.value = math.nan
        self.origin: tuple[str, object] | None = None
        self.conflict: tuple[str, int] | None = None


class Joints:
    """Keeps what the contract's state needs; everything else in the messages is ignored.

    A message may name any subset of the robot's joints and leave out whole fields; each value has its own age. A
    non-finite value takes the place of the last good one: the robot does not move on what a sensor no longer says.
    Joints go by their full names, with the prefix of their topic.
    """

    def __init__(self, state: Iterable[StateJoint], topics: Iterable[JointTopic]) -> None:
        self._topics = {topic.topic: topic for topic in topics}
        self._readings = {(entry.joint, entry.field): _Reading() for entry in state}
        self._fields = sorted({field for _, field in self._readings})
        self._bare: dict[tuple[str, str], str] = {}
        self._arrivals: dict[str, tuple[int, int | None]] = dict.fromkeys(self._topics, (0, None))

    def update(self, topic: str, names: Sequence[str], fields: dict[str, Sequence[float]], stamp: int, received: int,
               publisher: object = None) -> None:
        """Take over one message. fields: 'position', 'velocity', 'effort' -> values, possibly fewer than names."""
        declared = self._topics[topic]
        self._arrivals[topic] = self._arrivals[topic][0] + 1, received
        for field in self._fields:
            values = fields.get(field, ())
            for i, bare in enumerate(names):
                name = declared.prefix + bare
                reading = self._readings.get((name, field))
                if reading is None:
                    continue
                if i >= len(values):
                    self._bare[name, field] = topic
                    continue
                origin = topic, publisher
                if (reading.origin not in (None, origin) and reading.freshness is not None
                        and received - (reading.freshness.received or 0) < declared.max_age * SECOND):
                    other = reading.origin[0] if reading.origin else ''
                    reading.conflict = (f'{other} and {topic}' if other != topic else f'two publishers of {topic}',
                                        received)
                if reading.freshness is None or reading.origin is None or reading.origin[0] != topic:
                    reading.freshness = Freshness(declared)
                reading.freshness.seen(stamp, received)
                reading.origin, reading.value = origin, float(values[i])

    def read(self) -> dict[tuple[str, str], float]:
        """The newest values, keyed by (joint, field); NaN for what was never received."""
        return {key: reading.value for key, reading in self._readings.items()}

    def arrivals(self) -> dict[str, tuple[int, int | None]]:
        """Topic -> (messages received, steady ns of the last one)."""
        return self._arrivals

    def delays(self) -> list[int]:
        """Of the readings with a stamp to trust, see Freshness.delay."""
        return [reading.freshness.delay for reading in self._readings.values()
                if reading.freshness and reading.freshness.delay is not None]

    def newest_stamp(self) -> int:
        """The newest stamp to trust, ns; 0 = none."""
        return max((reading.freshness.trusted for reading in self._readings.values() if reading.freshness), default=0)

    def received(self) -> int:
        """Arrival of the newest reading, steady ns; 0 = none."""
        return max((r.freshness.received or 0 for r in self._readings.values() if r.freshness), default=0)

    def problems(self, now: int, clock: int) -> list[Problem]:
        """What keeps the state from being used, one problem per topic and kind, with the joints that it concerns."""
        grouped: dict[tuple[str, str], tuple[str, list[str]]] = {}
        notes = []
        for (joint, field), reading in self._readings.items():
            possible = [topic for topic, declared in self._topics.items() if joint.startswith(declared.prefix)]
            source = reading.origin[0] if reading.origin else ' or '.join(possible)
            fault: tuple[str, str] | None
            if reading.freshness is None:
                fault = ('unnamed', f'no message gives its {field}: is that its name there?')
                if not any(self._arrivals[topic][0] for topic in possible):
                    fault = NEVER
                elif (joint, field) in self._bare:
                    source = self._bare[joint, field]
                    fault = ('bare', f'messages name it without a {field}')
            elif not math.isfinite(reading.value):
                fault = ('nonfinite', f'{field} is {reading.value}: check the sensor or driver')
            else:
                fault = reading.freshness.fault(now, clock)
            if fault:
                grouped.setdefault((source, fault[0]), (fault[1], []))[1].append(joint)
            if reading.conflict and now - reading.conflict[1] < SECOND:
                notes.append(Problem(f'joint {joint}', 'conflict', f'{reading.conflict[0]} disagree about who owns it; '
                                     'the newest message wins; if they are two joints of one name, give each a '
                                     'topic with a prefix in the contract', blocking=False))
        return [Problem(source, kind, f'joint {", ".join(joints)}: {text}')
                for (source, kind), (text, joints) in grouped.items()] + notes
