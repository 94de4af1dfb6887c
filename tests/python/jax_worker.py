# SPDX-License-Identifier: Apache-2.0
"""One process of test_jax.py: python jax_worker.py URL RANK WORLD PORT ACTION. Two devices each. The expected values are those
of ``whole``."""

import os
import sys

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=2"

import jax  # noqa: E402
import numpy  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import cairn.jax  # noqa: E402


def whole(shape, start):
    return numpy.arange(start, start + numpy.prod(shape), dtype="float32").reshape(shape)


def put(array, mesh, *axes):
    sharding = NamedSharding(mesh, PartitionSpec(*axes))
    return jax.make_array_from_callback(array.shape, sharding, lambda index: array[index])


def make(mesh, start):
    """Returns a state: split, split and replicated, replicated, and one that each process makes for itself."""
    return {"rows": put(whole((8, 6), start), mesh, ("x", "y")), "columns": put(whole((4, 8), start), mesh, None, "y"),
            "same": put(whole((3,), start), mesh), "count": jax.numpy.asarray(start, "int32"), "name": "run"}


class Failed:
    """A save that has ended with an error."""

    def done(self):
        return True

    def result(self):
        raise cairn.UnsupportedError.of("rows: an earlier save failed")


def main():
    url, rank, world, port, action = sys.argv[1], *map(int, sys.argv[2:5]), sys.argv[5]
    if world > 1:
        jax.distributed.initialize(f"127.0.0.1:{port}", world, rank)
    mesh = jax.make_mesh((jax.device_count() // 2, 2), ("y", "x"))
    with cairn.jax.Checkpointer(url) as checkpointer:
        if action == "save":
            assert checkpointer.restore(make(mesh, 0)) is None
            checkpointer.save(3, make(mesh, 100))
            return
        if action in ("refuse", "late"):
            state = make(mesh, 100)
            if rank == 1 and action == "late":  # this process alone has seen that an earlier save failed
                checkpointer._saves.append((3, Failed()))
            elif rank == 1:
                state["rows"] = jax.numpy.zeros(3, "int4")
            try:
                checkpointer.save(4, state)
                checkpointer.wait()
            except cairn.CairnError as error:
                print(f"{type(error).__name__}: {error}", flush=True)
                return
            raise AssertionError("a save without the rows of a rank became durable")
        restored = checkpointer.restore(make(mesh, 0))
    assert restored.step == 3 and restored.state["name"] == "run" and int(restored.state["count"]) == 100
    for name, shape in (("rows", (8, 6)), ("columns", (4, 8)), ("same", (3,))):
        for shard in restored.state[name].addressable_shards:
            assert numpy.array_equal(numpy.asarray(shard.data), whole(shape, 100)[shard.index]), (name, shard.index)


if __name__ == "__main__":
    main()
