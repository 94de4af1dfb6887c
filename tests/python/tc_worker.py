# SPDX-License-Identifier: Apache-2.0
"""One rank of test_torch_checkpointing.py and test_torch_checkpointing_files.py: a case for ranks.py, or started by torchrun:
tc_worker.py URL ACTION. It saves and loads with Cairn's CheckpointManager if the action begins with "arena", and else with
torch_checkpointing's own one, whose files are written by a process that the manager starts."""

import os
import signal
import sys

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch_checkpointing import CheckpointManager, ItemSpec
from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.default_resharder import DefaultResharder
from torch_checkpointing.metadata_manager import DefaultMetadataManager
from torch_checkpointing.staging import CheckpointStagerConfig

import cairn.torch_checkpointing
from cairn.errors import CairnError
from cairn.torch_checkpointing import StorageConfig

ROWS = 12


def gather(_, data, process_group=None):
    """The package gathers what it knows of shards over CUDA devices only."""
    found = [None] * dist.get_world_size()
    dist.all_gather_object(found, data, group=process_group)
    return dict(enumerate(found))


DefaultMetadataManager._all_gather_pickled_data = gather


def whole(step):
    return torch.arange(ROWS * 3, dtype=torch.float32).reshape(ROWS, 3) + step


def state(step):
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    return {"model": {"w": distribute_tensor(whole(step), mesh, [Shard(0)]), "b": whole(-step)}}


def manager_of(storage, is_arena):
    kind = cairn.torch_checkpointing.CheckpointManager if is_arena else CheckpointManager
    return kind(CheckpointManager.Config(
        items={"model": ItemSpec(resharder=DefaultResharder())}, storage_config=storage,
        save=AsyncCheckpointSaverConfig(staging_config=CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False),
                                        process_config=CheckpointProcessConfig(subprocess_init_timeout_secs=240))))


def break_rank(manager, is_arena):
    """Kills this rank in a save, or the process that writes for it, as the kernel does when memory is short."""
    if is_arena:
        save = manager._saver._run.save

        def die(*args, **keywords):
            save(*args, **keywords)
            os.kill(os.getpid(), signal.SIGKILL)

        manager._saver._run.save = die
        return
    process = manager._saver._checkpoint_process
    process.wait_for_init()
    os.kill(process.process.processes[0].pid, signal.SIGKILL)


def run(rank, world, url, action):
    """What this start resumed from; of the action "ask" the error of a start without a server."""
    if action == "ask":
        try:
            return StorageConfig(url, io_deadline=1.0).latest()
        except CairnError as error:
            return f"{type(error).__name__}: {error}"
    storage = StorageConfig(url)
    name = storage.latest()
    is_arena = action.startswith("arena")
    manager = manager_of(storage, is_arena)
    step = int(name.rpartition("-")[2]) if name else 0
    if name:
        found = manager.load(name, into={**state(0), **({"mine": None} if is_arena else {})})
        assert torch.equal(found["model"]["w"].full_tensor(), whole(step)) and torch.equal(found["model"]["b"], whole(-step)), name
        assert "mine" not in found or found["mine"] == {"rank": rank, "step": step}, found["mine"]

    def next_state(step):
        return {**state(step), **({"mine": {"rank": rank, "step": step}} if is_arena else {})}

    if action.endswith("break"):
        if rank == 1:
            break_rank(manager, is_arena)
        try:
            manager.save(f"step-{step + 1}", next_state(step + 1)).result()
        except (RuntimeError, CairnError):
            os._exit(7)  # as a training that dies; the other rank's process waits at the barrier
    else:
        for added in (1, 2):
            manager.save(f"step-{step + added}", next_state(step + added)).result()
            assert storage.latest() == f"step-{step + added}"
    manager.close()
    return name


if __name__ == "__main__":
    dist.init_process_group("gloo")
    print(f"rank {dist.get_rank()} resumed from {run(dist.get_rank(), dist.get_world_size(), *sys.argv[1:])}", flush=True)
    dist.destroy_process_group()
