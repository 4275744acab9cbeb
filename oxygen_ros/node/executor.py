"""rclpy's single-threaded executor, but for how it waits.

rclpy asks every entity anew and builds a wait set for each callback, and once more to find that it has run: with the 40
entities of this node 0.9 ms per callback, at some hundred per second. This one keeps both until an entity is made or
destroyed: 0.3 ms. (rclpy's own remedy, its events executor, is experimental and knows no guard conditions.)

And what another thread reports by a guard condition, such as a new chunk, need not wait until all pictures, words and
parameter calls that were ready before it have been served: it is next, or the next but one.
"""
from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
from rclpy.guard_condition import GuardCondition
from rclpy.impl.implementation_singleton import rclpy_implementation as _rclpy
from rclpy.node import Node
from rclpy.task import Task
from rclpy.utilities import timeout_sec_to_nsec
from rclpy.waitable import NumberOfEntities

_KINDS = {'timer': 'timers', 'guard_condition': 'guards', 'subscription': 'subscriptions', 'client': 'clients',
          'service': 'services'}  # as wait sets and nodes name them; the most urgent ones first


class _Entity(NamedTuple):
    """handle: keeps it in being, goes into wait sets; take: from the ready entity to the coroutine function to be run,
    or None."""

    entity: Any
    handle: Any
    take: Any


class Executor(SingleThreadedExecutor):
    """Runs the callbacks and coroutines of its nodes on the thread that spins."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._stale = True                              # the next five are to be made anew
        self._entities: dict[str, list[_Entity]] = {}   # by kind
        self._waitables: list[_Entity] = []
        self._guards: list[Any] = []                    # wake without anything to run
        self._wait_set: Any = None                      # for all of them
        self._guard_set: Any = None                     # for guard conditions alone
        self._held = ExitStack()                        # keeps handles alive while a wait set may point at them
        self._waiting = threading.Lock()
        self._ready: deque[_Entity] = deque()           # found by the last wait and not yet run
        self._overtook = False                          # so the next one is one of those that waited

    def wake(self) -> None:
        """An entity was made or destroyed; from any thread."""
        self._stale = True
        super().wake()

    def add_node(self, node: Node) -> bool:
        self._stale = True
        return super().add_node(node)

    def remove_node(self, node: Node) -> None:
        self._stale = True
        super().remove_node(node)

    def shutdown(self, timeout_sec: float | None = None) -> bool:
        stopped = super().shutdown(timeout_sec)  # wakes the thread that spins
        with self._waiting:
            self._held.close()
        return stopped

    def _spin_once_impl(self, timeout_sec: Any = None, wait_condition: Callable[[], bool] = lambda: False) -> None:
        """Run one callback that is ready, after waiting for it if need be: what every way to spin comes down to.

        Raises what the callback raises.
        """
        if not self._ready and not self._is_shutdown:
            self._resume()
            with self._waiting:
                if not self._is_shutdown and not wait_condition():
                    self._wait(timeout_sec_to_nsec(getattr(timeout_sec, 'timeout', timeout_sec)))
        elif not self._is_shutdown:
            with self._waiting:
                self._let_overtake()
        if self._ready and not self._is_shutdown:
            self._run(self._ready.popleft())

    # --- running ---------------------------------------------------------------------------------------------------
    def _resume(self) -> None:
        """Go on with the coroutines that wait for something, and begin what create_task was given."""
        for _ in range(len(self._tasks)):
            with self._tasks_lock:
                task = self._tasks.pop(0)[0]
            self._go_on(task)

    def _go_on(self, task: Task[Any]) -> None:
        task()
        if task.done():
            if self._tasks:
                super().wake()  # one of them may have waited for this one
            task.result()  # raises what it has raised
        elif not task.cancelled():
            with self._tasks_lock:
                self._tasks.append((task, None, None))

    def _run(self, ready: _Entity) -> None:
        group = ready.entity.callback_group
        if not group.beginning_execution(ready.entity):  # another of its group has begun to wait for something
            if isinstance(ready.entity, GuardCondition):
                ready.entity.trigger()  # all others stay ready by themselves
            return

        async def run() -> None:
            try:
                if (work := self._work(ready)) is not None:
                    await work()
            finally:
                group.ending_execution(ready.entity)

        self._go_on(Task(run, executor=self))

    def _work(self, ready: _Entity) -> Any:
        try:
            with ready.handle:
                return ready.take(ready.entity)
        except _rclpy.InvalidHandle:
            return None  # destroyed by a callback that ran after the wait

    def _take_timer(self, timer: Any) -> Any:
        # It may have been cancelled after the wait.
        return super()._take_timer(timer) if timer.handle.is_timer_ready() else None

    # --- waiting ---------------------------------------------------------------------------------------------------
    def _wait(self, timeout_ns: int) -> None:
        if self._stale:
            self._collect()
        self._ready.extend(self._find(self._wait_set, timeout_ns, self._entities, self._waitables, self._guards))
        if not self._context.ok():
            raise ExternalShutdownException

    def _let_overtake(self) -> None:
        guards, found = self._entities['guard_condition'], []
        if not (self._stale or self._is_shutdown or self._overtook) and self._free(guards):
            found = self._find(self._guard_set, 0, {'guard_condition': guards})
        self._ready.extendleft(reversed(found))
        self._overtook = bool(found)

    def _find(self, wait_set: Any, timeout_ns: int, entities: Mapping[str, list[_Entity]],
              waitables: Sequence[_Entity] = (), guards: Sequence[Any] = ()) -> list[_Entity]:
        """Those that are ready now, or are the first to be within the time."""
        asked: dict[str, Sequence[_Entity]] = {}
        wait_set.clear_entities()
        for guard in guards:
            wait_set.add_guard_condition(guard)
        for kind, of_kind in entities.items():
            add, asked[kind] = getattr(wait_set, f'add_{kind}'), self._free(of_kind)
            for entity in asked[kind]:
                add(entity.handle)
        waiting = [waitable for waitable in self._free(waitables) if self._add(wait_set, waitable.entity)]
        wait_set.wait(timeout_ns)
        found: list[_Entity] = []
        for kind, free in asked.items():
            if ready := wait_set.get_ready_entities(kind):
                found.extend(entity for entity in free if entity.handle.pointer in ready)
        return found + [waitable for waitable in waiting if waitable.entity.is_ready(wait_set)]

    def _free(self, entities: Sequence[_Entity]) -> Sequence[_Entity]:
        """Those that their callback groups let run: all, unless a coroutine is under way."""
        if not self._tasks:
            return entities
        return [entity for entity in entities if entity.entity.callback_group.can_execute(entity.entity)]

    def _add(self, wait_set: Any, waitable: Any) -> bool:
        try:
            waitable.add_to_wait_set(wait_set)
        except _rclpy.InvalidHandle:
            return False  # another thread has just destroyed it
        return True

    def _collect(self) -> None:
        self._stale = False  # first, as another thread may make an entity meanwhile
        self._held.close()
        context, nodes = self._context.handle, self.get_nodes()
        assert context is not None and self._guard is not None and self._sigint_gc is not None
        self._guards = [handle for handle in (self._guard.handle, self._sigint_gc.handle) if self._hold(handle)]
        self._hold(context)
        for kind, plural in _KINDS.items():
            take = getattr(self, f'_take_{kind}')
            self._entities[kind] = [_Entity(entity, entity.handle, take) for node in nodes
                                    for entity in getattr(node, plural) if self._hold(entity.handle)]
        self._waitables = [_Entity(waitable, waitable, self._take_waitable) for node in nodes
                           for waitable in node.waitables if self._hold(waitable)]
        timers, guards, subscriptions, clients, services = map(len, self._entities.values())
        most = NumberOfEntities(subscriptions, guards + len(self._guards), timers, clients, services)
        for waitable in self._waitables:
            most += waitable.entity.get_num_entities()
        self._wait_set = _rclpy.WaitSet(most.num_subscriptions, most.num_guard_conditions, most.num_timers,
                                        most.num_clients, most.num_services, most.num_events, context)
        self._guard_set = _rclpy.WaitSet(0, guards, 0, 0, 0, 0, context)

    def _hold(self, handle: Any) -> bool:
        try:
            self._held.enter_context(handle)
        except _rclpy.InvalidHandle:
            return False  # being destroyed
        return True
