# SPDX-License-Identifier: Apache-2.0
"""One rank of test_torch_checkpointing.py and test_torch_checkpointing_files.py, started by torchrun: tc_worker.py URL ACTION [FILE TO
MEET IN]. It saves and loads with Cairn's CheckpointManager if the action begins with "arena", and else with torch_checkpointing's
own one, whose files are written by a process that the manager starts."""

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


def ask(storage):
    """Prints the error of a start without a server."""
    try:
        storage.latest()
    except CairnError as error:
        print(f"rank {dist.get_rank()}: {type(error).__name__}: {error}", flush=True)
    dist.destroy_process_group()


def main():
    url, action = sys.argv[1:3]
    meet = {"init_method": f"file://{sys.argv[3]}", "rank": int(os.environ["RANK"]), "world_size": 2} if action == "file" else {}
    dist.init_process_group("gloo", **meet)
    if action == "ask":
        return ask(StorageConfig(url, io_deadline=1.0))
    storage = StorageConfig(url)
    name = storage.latest()
    is_arena = action.startswith("arena")
    manager = manager_of(storage, is_arena)
    step = int(name.rpartition("-")[2]) if name else 0
    if name:
        found = manager.load(name, into={**state(0), **({"mine": None} if is_arena else {})})
        assert torch.equal(found["model"]["w"].full_tensor(), whole(step)) and torch.equal(found["model"]["b"], whole(-step)), name
        assert "mine" not in found or found["mine"] == {"rank": dist.get_rank(), "step": step}, found["mine"]
    if action.endswith("break"):
        if dist.get_rank() == 1:
            break_rank(manager, is_arena)
        try:
            manager.save(f"step-{step + 1}", state(step + 1)).result()
        except (RuntimeError, CairnError):
            os._exit(7)  # as a training that dies; the other rank's process waits at the barrier
    else:
        for added in (1, 2):
            mine = {"mine": {"rank": dist.get_rank(), "step": step + added}} if is_arena else {}
            manager.save(f"step-{step + added}", {**state(step + added), **mine}).result()
            assert storage.latest() == f"step-{step + added}"
    manager.close()
    print(f"rank {dist.get_rank()} of {dist.get_world_size()} resumed from {name}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
