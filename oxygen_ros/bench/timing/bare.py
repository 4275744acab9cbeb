"""What the machine does to a loop that does nothing else: ``python -m oxygen_ros.bench.timing.bare SECONDS HZ FILE``.

The floor of the node's jitter, with what the node asks of the system. Writes the intervals in ms into FILE, as JSON.
"""
from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

import numpy as np

from oxygen_ros.node.parameters import NodeParameters
from oxygen_ros.node.realtime import prefer
from oxygen_ros.node.ticker import Ticker
from oxygen_ros.node.wakeful import Wakeful


def main() -> None:
    seconds, rate_hz, file = float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    prefer(NodeParameters().realtime_priority)
    wakeful = Wakeful()
    wakeful.hold(NodeParameters().wake_latency_us)
    times: list[int] = []
    ticker = Ticker(lambda: times.append(time.monotonic_ns()), 1 / rate_hz)
    threading.Event().wait(seconds)
    ticker.stop()
    wakeful.release()
    file.write_text(json.dumps((np.diff(times) / 1e6).tolist()))


if __name__ == '__main__':
    main()
