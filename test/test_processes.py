"""Programs that were started end with whoever started them."""
import subprocess
import sys
import time

import psutil

from oxygen_ros.processes import Process

LEAVER = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(61)'], start_new_session=True)
try:
    print(child.pid, flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    pass
"""
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


def test_a_child_with_a_session_of_its_own_is_an_orphan_too_and_can_be_killed():
    program = Process('program', [sys.executable, '-c', LEAVER])
    pid = int(program.wait_for_output(r'\d+\n').group())
    assert program.interrupt(20.0) == 0
    left, = program.orphans(grace=0.0)
    assert 'time.sleep(61)' in left and psutil.pid_exists(pid)
    program.kill()
    assert program.orphans(grace=20.0) == []
