# SPDX-License-Identifier: Apache-2.0
"""Saves and loads sharded state through torch.distributed.checkpoint (DCP), with Cairn in place of a folder.

Each rank holds rows of one tensor and a moment of it; a few steps of "training" change them. What concerns Cairn is
marked. Runs at any number of ranks, and goes on from what another number of ranks has saved:

    torchrun --nproc-per-node 2 dcp_save.py --url 'cairn+unix:///run/cairn/cairnd.sock?run=demo/dcp' --steps 20
    torchrun --nproc-per-node 3 dcp_save.py --url 'cairn+unix:///run/cairn/cairnd.sock?run=demo/dcp' --steps 40
"""

from __future__ import annotations

import argparse
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor, zeros

import cairn.dcp  # Cairn


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="cairn://HOST:PORT/project/run or cairn+unix:///path?run=project/run")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--save-every", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    args = parse()
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    group = dist.new_group(backend="gloo")  # for checkpoints alone: async_save must not meet the trainer's collectives
    state = {"weight": distribute_tensor(torch.ones(1000, 64), mesh, [Shard(0)]),
             "moment": zeros(1000, 64, device_mesh=mesh, placements=[Shard(0)]), "lr": 0.1, "step": 0}

    writer = cairn.dcp.Writer(args.url, process_group=group)  # Cairn
    try:
        dcp.load(state, checkpoint_id="latest", storage_reader=cairn.dcp.Reader(args.url), process_group=group)  # Cairn
    except CheckpointException as error:  # a BaseException: "except Exception" would not see it
        if "the run has no checkpoint" not in str(error):
            raise
    if rank == 0:
        print(f"starting behind step {state['step']}", flush=True)
    saving = None
    for step in range(state["step"] + 1, args.steps + 1):
        state["moment"] = 0.9 * state["moment"] + state["weight"] * step
        state["weight"] = state["weight"] - state["lr"] * 0.001 * state["moment"]
        state["step"] = step
        if step % args.save_every == 0:
            if saving is not None:
                saving.result()  # DCP has one save in flight; this raises what became of it
            saving = dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer,  # Cairn
                                    process_group=group)
    if saving is not None:
        saving.result()
    writer.close()  # Cairn
    total = state["weight"].full_tensor().double().sum().item()
    if rank == 0:
        print(f"finished at step {state['step']}, sum of weights {total:.6f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.exit(main())
