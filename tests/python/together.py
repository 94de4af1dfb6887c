# SPDX-License-Identifier: Apache-2.0
"""Processes of one job that run side by side to their end."""

import os
import socket
import subprocess
import sys


def free_port():
    """A port of loopback that nobody had a moment ago, for what cannot choose one by itself."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def torchrun(world):
    """The words that start a program on so many ranks of this machine; the program and its arguments follow."""
    return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(world)]


def run_together(commands, timeout, each=None, **env):
    """Runs Python with each of the arguments. ``env``: variables for all; ``each``: a dict of them for each. Gives what
    each has printed; AssertionError when one has failed."""
    statuses, outputs = end_together(commands, timeout, each, **env)
    assert statuses == [0] * len(statuses), "\n".join(output[-6000:] for output in outputs)
    return outputs


def end_together(commands, timeout, each=None, **env):
    """The same, however they end: (exit statuses, outputs)."""
    common = dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo", **env)
    processes = [subprocess.Popen([sys.executable, *map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                  text=True, env={**common, **(each[number] if each else {})})
                 for number, command in enumerate(commands)]
    try:
        outputs = [process.communicate(timeout=timeout)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [process.returncode for process in processes], outputs
