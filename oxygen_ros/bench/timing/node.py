"""The inference node as it is, with a stop-watch: ``python -m oxygen_ros.bench.timing.node FILE --ros-args ...``.

For every chunk one line of JSON goes into FILE, all in seconds:

    transport   from the stamp of the newest input to its arrival here
    wait        until the cycle began that used it: no cost, the node looks at a fixed rate
    hand_over   checks, decoding, copying pictures into shared memory
    model       vision, prefill and action expert, as the engine says
    exchange    the engine's answer less the model: two messages between processes, and their wake-ups
    publish     from the ready chunk until `action_chunk` is published
"""
from __future__ import annotations

import json
import sys
import time
from types import SimpleNamespace

from oxygen_ros.node import main as program
from oxygen_ros.node.session import Session


def watch(path: str) -> None:
    """Put the stop-watch into the session."""
    file = open(path, 'a', buffering=1)
    give, on_chunk, take = Session._give, Session._on_chunk, Session.handle
    open_cycles: dict[int, dict[str, float]] = {}
    finished: dict[int, dict[str, float]] = {}

    def timed_give(self, snapshot, now, deadline):
        problems = give(self, snapshot, now, deadline)
        handed = time.monotonic_ns()
        stamped = snapshot.stamp - (time.time_ns() - time.monotonic_ns())
        open_cycles[self._sequence] = {'transport': snapshot.received - stamped, 'wait': now - snapshot.received,
                                       'hand_over': handed - now, 'handed': handed}
        return problems

    def timed_on_chunk(self, chunk):
        publisher = self.interface.action_chunk

        def publish(message):
            publisher.publish(message)
            if (times := open_cycles.pop(chunk.sequence, None)) is not None:
                times['engine'] = chunk.ready_ns - times.pop('handed')
                finished[chunk.sequence] = {**times, 'publish': time.monotonic_ns() - chunk.ready_ns}

        self.interface.action_chunk = SimpleNamespace(publish=publish)
        on_chunk(self, chunk)
        self.interface.action_chunk = publisher

    def timed_handle(self, event):
        take(self, event)
        times = finished.pop(getattr(event, 'observation', None), None) if hasattr(event, 'vision_s') else None
        if times is not None:
            model = event.vision_s + event.prefill_s + event.act_s
            seconds = {name: value * 1e-9 for name, value in times.items()}
            engine = seconds.pop('engine')
            print(json.dumps({'at': time.time(), **seconds, 'model': model, 'exchange': engine - model}), file=file)

    Session._give, Session._on_chunk, Session.handle = timed_give, timed_on_chunk, timed_handle


if __name__ == '__main__':
    watch(sys.argv[1])
    program.main()
