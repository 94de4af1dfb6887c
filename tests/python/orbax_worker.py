# SPDX-License-Identifier: Apache-2.0
"""One process of test_orbax.py: python orbax_worker.py URL FOLDER RANK WORLD PORT ACTION.
Two devices each, and the state of jax_worker.py."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import numpy  # noqa: E402
import orbax.checkpoint as ocp  # noqa: E402

import cairn.orbax  # noqa: E402
from jax_worker import make, whole  # noqa: E402


def save(manager, mesh, _):
    for step in range(1, 5):
        manager.save(step, args=cairn.orbax.Save(make(mesh, step)))
    manager.wait_until_finished()
    assert list(manager.all_steps()) == [3, 4]


def fail(manager, mesh, rank):
    """Process 1 alone has an array that Cairn does not store."""
    save(manager, mesh, rank)
    state = make(mesh, 5)
    if rank == 1:
        state["rows"] = jax.numpy.zeros(3, "int4")
    manager.save(5, args=cairn.orbax.Save(state))
    manager.wait_until_finished()
    raise AssertionError("a save without the rows of a process became durable")


def restore(manager, mesh, _):
    found = manager.restore(manager.latest_step(), args=cairn.orbax.Restore(make(mesh, 0)))
    assert int(found["count"]) == 4
    for name, shape in (("rows", (8, 6)), ("columns", (4, 8)), ("same", (3,))):
        for shard in found[name].addressable_shards:
            assert numpy.array_equal(numpy.asarray(shard.data), whole(shape, 4)[shard.index]), name


def main():
    url, folder, rank, world, port, action = *sys.argv[1:3], *map(int, sys.argv[3:6]), sys.argv[6]
    if world > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", world, rank)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("y", "x"))
    options = ocp.CheckpointManagerOptions(max_to_keep=2)
    with ocp.CheckpointManager(folder, item_handlers=cairn.orbax.CheckpointHandler(url), options=options) as manager:
        {"save": save, "fail": fail, "restore": restore}[action](manager, mesh, rank)


if __name__ == "__main__":
    main()
