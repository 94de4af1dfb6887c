# SPDX-License-Identifier: Apache-2.0
"""One rank that writes through cairn:// beside others. Arguments: rank, world size, rendezvous file, URL of a run,
result file."""

import json
import logging
import sys
import traceback

import fsspec
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

import cairn
import cairn.fs
import cairn.fs.ranks

logging.disable(logging.WARNING)


def listed(url):
    with cairn.Client(url, read_only=True) as client:
        return [(item.term, item.step, item.world_size) for item in client.list()]


def scenarios(rank, world, url):
    mesh, out = init_device_mesh("cpu", (world,)), {}
    group = dist.new_group(backend="gloo")
    state = {"rows": distribute_tensor(torch.arange(700.).reshape(70, 10), mesh, [Shard(0)]), "plain": torch.ones(5),
             "lr": 0.25}
    for step in (1, 2):
        dcp.save(state, checkpoint_id=f"{url}/step-{step}", process_group=group)
    back = {"rows": torch.zeros(70, 10), "plain": torch.zeros(5), "lr": None}
    dcp.load(back, checkpoint_id=f"{url}/step-2", process_group=group)
    out["same"] = bool(torch.equal(back["rows"], state["rows"].full_tensor())) and back["lr"] == 0.25
    if rank == 0:  # a rank that writes alone
        with fsspec.open(f"{url}/step-3.ckpt", "wb") as file:
            torch.save({"x": 1}, file)
    dist.barrier(group)
    out["listed"] = listed(url)
    fs, error = fsspec.filesystem("cairn"), None
    with fs.open(f"{url}/step-4/same", "wb") as file:
        file.write(b"x")
    dist.barrier(group)
    if rank == 0:
        try:
            fs.seal(f"{url}/step-4")
        except cairn.CairnError as failure:
            error = str(failure)
    dist.barrier(group)
    out["same_name"] = error
    file = fs.open(f"{url}/step-5/{rank}", "wb")
    if rank == 0:
        file.close()
    dist.barrier(group)
    if rank == 0:
        try:
            fs.seal(f"{url}/step-5")
        except cairn.CairnError as failure:
            error = str(failure)
    dist.barrier(group)
    out["still_open"] = error
    if rank == 1:
        file.discard()
    dist.barrier(group)
    with fs.open(f"{url}/step-5/{rank}", "wb") as file:
        file.write(b"%d" % rank)
    dist.barrier(group)
    if rank == world - 1:  # any rank may seal
        fs.seal(f"{url}/step-5")
    dist.barrier(group)
    out["again"] = [fs.cat(f"{url}/step-5/{other}").decode() for other in range(world)]
    out["end"] = listed(url)
    try:
        dcp.save({"odd": lambda: rank}, checkpoint_id=f"{url}/step-6", process_group=group)
    except CheckpointException as failure:
        out["failed"] = str(failure)
    out["after"] = listed(url)
    dcp.save({**state, "lr": 0.5}, checkpoint_id=f"{url}/step-2", process_group=group)  # all ranks have committed it before
    dcp.load(back, checkpoint_id=f"{url}/step-2", process_group=group)
    out["overwritten"] = [back["lr"], listed(url)[0]]
    cairn.fs.ranks._LOOK_S = 0.0  # so that the process ends while its thread is in PyTorch's store
    fs.pipe(f"{url}/step-7/of-rank-{rank}", b"x")  # and no marker
    return out


def main():
    rank, world, rendezvous, url, result = sys.argv[1:6]
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=int(rank), world_size=int(world))
    try:
        out = scenarios(int(rank), int(world), url)
    except BaseException:
        out = {"error": traceback.format_exc()}
    with open(result, "w") as file:
        json.dump(out, file)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
