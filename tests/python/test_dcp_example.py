# SPDX-License-Identifier: Apache-2.0
"""client/examples/dcp_save.py does what its text says: two ranks, then one goes on, and ends where one alone ends."""

import os
import re
import subprocess
import sys

from conftest import ROOT

EXAMPLE = ROOT / "client/examples/dcp_save.py"


def run(url, world, steps):
    processes = [subprocess.Popen(
        [sys.executable, str(EXAMPLE), "--url", url, "--steps", str(steps)], stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True,
        env=dict(os.environ, RANK=str(rank), WORLD_SIZE=str(world), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
                 GLOO_SOCKET_IFNAME="lo", OMP_NUM_THREADS="1"))
        for port in [free_port()] for rank in range(world)]
    try:
        outputs = [process.communicate(timeout=150)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * world, outputs
    return outputs[0]


def free_port():
    import socket
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def test_the_example_goes_on_at_another_world_size(url):
    assert "starting behind step 0" in run(url, 2, 10)
    output = run(url, 1, 20)
    assert "starting behind step 10" in output
    whole = run(url + "-whole", 1, 20)
    sums = [re.search(r"finished at step 20, sum of weights (\S+)", text).group(1) for text in (output, whole)]
    assert sums[0] == sums[1]
