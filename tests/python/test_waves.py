# SPDX-License-Identifier: Apache-2.0
"""A save that is eight times as large as its arena survives the daemon's death in the middle: what comes back is
bit-identical, and the staging memory never grows."""

import pathlib
import threading
import time

import pytest
import torch

from cairn.torch import Checkpointer

ARENA = 8 << 20
TENSORS, LENGTH = 8, 2 << 20  # 64 MiB of float32


def make(start):
    generator = torch.Generator().manual_seed(start)
    return {f"x{i}": torch.randn(LENGTH, generator=generator) for i in range(TENSORS)}


def arena_bytes():
    """Of all arenas that this process maps."""
    total = 0
    for line in pathlib.Path("/proc/self/maps").read_text().splitlines():
        if "memfd:cairn-arena" in line:
            begin, end = line.split()[0].split("-")
            total += int(end, 16) - int(begin, 16)
    return total


@pytest.mark.parametrize("after", [0.0, 0.05, 0.15])
def test_a_daemon_killed_in_the_middle_of_waves(own_daemon, after):
    state = make(1)
    url = own_daemon.url("waves")
    most = 0
    before = arena_bytes()  # of what other tests keep open
    with Checkpointer(url, state, on_error="raise", arena_bytes=ARENA, when_down="wait") as ck:
        handles = []
        saving = threading.Thread(target=lambda: handles.append(ck.save(1)), daemon=True)
        saving.start()
        time.sleep(after)
        own_daemon.kill()
        most = max(most, arena_bytes() - before)
        own_daemon.start()
        saving.join(60)
        assert handles, "the save was not staged within a minute"
        for tensor in state.values():
            tensor.fill_(-1)  # staged: nothing of this may be stored
        most = max(most, arena_bytes() - before)
        handles[0].durable.result(60)
    assert 0 < most <= ARENA
    back = {name: torch.zeros(LENGTH) for name in state}
    with Checkpointer(url, back, on_error="raise") as ck:
        assert ck.restore().step == 1
    for name, tensor in make(1).items():
        assert torch.equal(back[name], tensor), name
