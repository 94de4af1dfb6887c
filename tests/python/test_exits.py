# SPDX-License-Identifier: Apache-2.0
"""The end of an interpreter that has closed nothing, and of a forked child: no save is lost without a word, and nothing hangs."""

import os
import signal
import subprocess
import sys

import pytest

from conftest import steps_of


@pytest.mark.parametrize("opening, save", [
    ("cairn.Client(sys.argv[1])",
     "c.set_tensors([('x', DTYPES['float32'], (N,), a.ctypes.data, None, a, 1, None, None, None)]); c.save(7)"),
    ("cairn.arrays.Checkpointer(sys.argv[1])", "c.save(7, {'x': a})"),
    ("[cairn.arrays.Checkpointer(sys.argv[1])]", "c.pop().save(7, {'x': a})")], ids=["client", "arrays", "dropped"])
def test_exit_without_close(url, opening, save):
    """An interpreter that ends with everything open waits for the save and says so."""
    code = ("import sys, numpy, cairn.arrays\nfrom cairn.client import DTYPES\nN = 50_000_000\n"
            f"c = {opening}\na = numpy.ones(N, 'float32')\n{save}")
    done = subprocess.run([sys.executable, "-c", code, url], timeout=60, capture_output=True, text=True)
    assert done.returncode == 0 and "Exception" not in done.stderr and steps_of(url) == [7], done.stderr
    assert "Client" in opening or "while the save of step 7 is in flight" in done.stderr


def test_exit_with_a_save_that_has_failed(own_daemon):
    """Nobody has called anything since: what was lost is named."""
    code = ("import sys, time, numpy, cairn.arrays\nc = cairn.arrays.Checkpointer(sys.argv[1], save_deadline=1, io_deadline=1)\n"
            "print('open', flush=True); input(); c.save(7, {'x': numpy.ones(3)})\ntime.sleep(2)")
    with subprocess.Popen([sys.executable, "-c", code, own_daemon.url("failed")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True) as child:
        assert child.stdout.readline() == "open\n"
        os.kill(own_daemon.process.pid, signal.SIGSTOP)
        errors = child.communicate("\n", timeout=60)[1]
        os.kill(own_daemon.process.pid, signal.SIGCONT)
    assert child.returncode == 0 and "a save has failed" in errors, errors


def test_a_forked_child_leaves_a_checkpointer_alone(url):
    code = ("import os, sys, numpy, cairn.arrays\nwith cairn.arrays.Checkpointer(sys.argv[1]) as c:\n  c.save(1, {'x': numpy.ones(3)})\n"
            "  if os.fork() == 0:\n    c.close()\n    sys.exit(0)\n  assert os.wait()[1] == 0\n  c.save(2, {'x': numpy.ones(3)})")
    done = subprocess.run([sys.executable, "-c", code, url], timeout=60, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and steps_of(url) == [2, 1]


def test_a_forked_child_ends_beside_a_save_of_dcp(url):
    """The thread that saves in the parent holds the session's lock."""
    code = """
import os, signal, sys, threading, time
import torch, torch.distributed.checkpoint as dcp
import cairn.dcp
from cairn.dcp import session
writer, state = cairn.dcp.Writer(sys.argv[1]), {"x": torch.ones(80_000_000)}
saving = threading.Thread(target=lambda: dcp.save(state, checkpoint_id="step-1", storage_writer=writer))
saving.start()
def is_held(lock):
    is_free = lock.acquire(blocking=False)
    if is_free:
        lock.release()
    return not is_free
while not any(is_held(item._mutex) for item in list(session._sessions.values())):
    time.sleep(0.001)
child = os.fork()
if child == 0:
    signal.alarm(60)  # ends a child that hangs
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
saving.join()
"""
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, url], timeout=120, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "") and steps_of(url) == [1]
