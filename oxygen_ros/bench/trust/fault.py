"""One fault: provoke it on a live node, watch, mend it, and say what it cost."""
from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from oxygen_ros.bench.trust.live import Broken, Live

CONTROL_PERIOD = 0.1         # s, of cycle_rate_hz 10, the node's default
INPUT_WITHIN = 2 * CONTROL_PERIOD
ENGINE_WITHIN = 1.0
_STILL_S = 0.3               # no moving trajectory for so long means that the robot stands
_SETTLE_S = 1.2              # a problem that comes back within a second is no news to the node
_SETTLE_MB = 40.0            # what a process may hold more after one fault: allocator pools, no leak of a model


@dataclass(frozen=True)
class Fault:
    """``act`` breaks something, yields the time when it was broken (s, or None for the time of the call), and mends it
    when it is continued. It may raise Broken when what must hold does not.

    says: what the node must say, a regular expression; '' = nothing is wrong enough to be said.
    stops: the robot must stand still until it is mended. limit: age that the contract grants the input, s.
    within: longest time from the fault (and the limit) until it is noticed, s.
    heals: the node gets over it alone; ``act`` then only tidies up. lasts: s that a noticed fault is left in place.
    """

    name: str
    act: Callable[[Live], Iterator[float | None]]
    says: str = ''
    stops: bool = True
    limit: float = 0.0
    within: float = INPUT_WITHIN
    heals: bool = False
    lasts: float = 0.5


@dataclass
class Outcome:
    """Times in s, memory in MB and bytes; None where a figure makes no sense."""

    name: str
    noticed: float | None = None      # from the fault, and what the contract grants, until it was said
    within: float | None = None
    still: float | None = None        # from the fault until the last trajectory that moved
    recovered: float | None = None    # from mending (or noticing, if it heals) until the robot moved
    messages: int = 0
    bad: int = 0                      # messages that were stale, non-finite, out of limits or out of order
    memory: tuple[float, float] | None = None     # of node and engine, before and after
    kv: tuple[int, int] | None = None
    descriptors: tuple[int, int] | None = None
    said: str = ''
    faults: list[str] = field(default_factory=list)

    @property
    def late(self) -> bool:
        """It took longer than it may: the node's fault only if the machine was not busy with something else."""
        return self.noticed is not None and self.within is not None and self.noticed > self.within

    @property
    def holds(self) -> bool:
        return not self.faults and not self.late


def provoke(live: Live, fault: Fault) -> Outcome:
    """Run one fault on a node that works, and wait until it works again."""
    outcome = Outcome(fault.name, within=fault.within if fault.says else None)
    try:
        live.moves()
        time.sleep(_SETTLE_S)
        rest, before = live.at_rest(), live.footprint()
        heard, found, tracebacks = live.motion.messages, live.findings(), _tracebacks(live)
        steps = fault.act(live)
        broken = time.time()
        broken = next(steps) or broken
        try:
            _watch(live, fault, outcome, broken)
        finally:
            next(steps, None)
        mended = time.time()
        if fault.stops and not fault.heals:
            outcome.recovered = live.moves() - mended
        live.moves()
        after, end = live.at_rest(), live.footprint()
        outcome.messages = live.motion.messages - heard
        add_findings(outcome, live, found)
        outcome.kv = rest.kv_bytes, after.kv_bytes
        outcome.memory = before.node_mb + before.engine_mb, end.node_mb + end.engine_mb
        outcome.descriptors = before.descriptors, end.descriptors
        _judge(live, outcome, tracebacks)
    except Broken as why:
        outcome.faults.append(str(why))
    finally:
        live.motion.blind = False
    return outcome


def _watch(live: Live, fault: Fault, outcome: Outcome, broken: float) -> None:
    """Until the fault has been noticed and, if it stops the robot, the robot has stood for a while."""
    if fault.says:
        when: float = live.wait(lambda: live.said(fault.says, broken), f'line like {fault.says!r}')
        outcome.said = next(text for moment, text in live.lines(broken) if moment == when)
        outcome.noticed = when - broken - fault.limit
    if fault.heals:
        if fault.stops:
            live.wait(lambda: time.time() - live.motion.moved > _STILL_S, 'standstill')
            outcome.still = live.motion.moved - broken
        noticed = broken + (outcome.noticed or 0.0)
        outcome.recovered = live.moves(timeout=90.0) - noticed
    elif fault.stops:
        live.wait(lambda: time.time() - live.motion.moved > _STILL_S, 'standstill')
        outcome.still = live.motion.moved - broken
        live.motion.blind = True
        time.sleep(fault.lasts)
        live.motion.blind = False
    else:
        time.sleep(fault.lasts)


def add_findings(outcome: Outcome, live: Live, before: Mapping[str, tuple[int, str]] = MappingProxyType({})) -> None:
    """Add what the witnesses found since ``before``."""
    for kind, (count, example) in live.findings().items():
        if new := count - before.get(kind, (0, ''))[0]:
            outcome.bad += new
            outcome.faults.append(f'{kind}: {new} times, e.g. {example}')


def _judge(live: Live, outcome: Outcome, tracebacks: int) -> None:
    """tracebacks: of the node before the fault."""
    if outcome.kv and outcome.kv[0] != outcome.kv[1]:
        outcome.faults.append(f'{outcome.kv[1]} bytes of KV in use at rest, {outcome.kv[0]} before')
    if outcome.memory and outcome.memory[1] > outcome.memory[0] + _SETTLE_MB:
        outcome.faults.append(f'{outcome.memory[1]:.0f} MB of memory, {outcome.memory[0]:.0f} before')
    if outcome.descriptors and outcome.descriptors[1] > outcome.descriptors[0]:
        outcome.faults.append(f'{outcome.descriptors[1]} open descriptors, {outcome.descriptors[0]} before')
    if _tracebacks(live) > tracebacks:
        outcome.faults.append('the node printed a traceback')


def _tracebacks(live: Live) -> int:
    """Those that the node has logged; an engine may have printed others."""
    return len(re.findall(r'^\[(?:ERROR|FATAL)\].*\nTraceback', live.node.output, re.M))
