# SPDX-License-Identifier: Apache-2.0
"""client/examples/dcp_save.py does what its text says: two ranks, then one goes on, and ends where one alone ends."""

import re

from conftest import ROOT
from together import free_port, run_together

EXAMPLE = ROOT / "client/examples/dcp_save.py"


def run(url, world, steps):
    meet = {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    return run_together([[EXAMPLE, "--url", url, "--steps", steps]] * world, 150,
                        each=[{"RANK": str(rank)} for rank in range(world)], **meet)[0]


def test_the_example_goes_on_at_another_world_size(url):
    assert "starting behind step 0" in run(url, 2, 10)
    output = run(url, 1, 20)
    assert "starting behind step 10" in output
    whole = run(url + "-whole", 1, 20)
    sums = [re.search(r"finished at step 20, sum of weights (\S+)", text).group(1) for text in (output, whole)]
    assert sums[0] == sums[1]
