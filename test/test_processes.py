"""Programs that were started end with whoever started them."""
import subprocess
import sys
import time

import psutil

PARENT = """
import sys
from oxygen_ros.processes import Process
child = Process('child', [sys.executable, '-c', 'import time; print("up", flush=True); time.sleep(60)'])
child.wait_for_output('up')
print(child.pid, flush=True)
child.wait(60)
"""


def running(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_program_ends_with_its_parent_even_after_kill_9():
    parent = subprocess.Popen([sys.executable, '-c', PARENT], stdout=subprocess.PIPE, text=True)
    try:
        child = psutil.Process(int(parent.stdout.readline()))
        assert running(child)
    finally:
        parent.kill()
        parent.communicate()
    deadline = time.monotonic() + 20.0
    while running(child):
        assert time.monotonic() < deadline, 'it was left behind'
        time.sleep(0.02)
