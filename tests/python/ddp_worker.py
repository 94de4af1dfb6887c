# SPDX-License-Identifier: Apache-2.0
"""One rank of a DDP training over gloo, for test_torch_ddp.py: trains on random data, saves each step, writes its
final state. Arguments: rank, world size, rendezvous file, URL, steps, result file, step at which rank 1 dies or -1."""

import os
import random
import signal
import sys

import numpy
import torch
import torch.distributed as dist

import cairn.torch


def main():
    rank, world, rendezvous, url, steps, result, death = sys.argv[1:8]
    rank, world, steps, death = int(rank), int(world), int(steps), int(death)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=world)
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    for seeder in (torch.manual_seed, numpy.random.seed, random.seed):
        seeder(100 + rank)  # each rank its own data
    ck = cairn.torch.Checkpointer(url, {"model": model, "optim": optimizer, "sched": scheduler}, on_error="raise")
    r = ck.restore()
    print("restored", r, flush=True)
    for step in range(r.step + 1 if r else 0, steps):
        optimizer.zero_grad()
        x = torch.randn(4, 6) * random.random() + float(numpy.random.rand())
        model(x).pow(2).mean().backward()
        optimizer.step()
        scheduler.step()
        handle = ck.save(step)
        if step == death:
            if rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            handle.durable.wait(3)
            sys.exit(3)  # an elastic agent would stop the others
        handle.durable.result(120)
    ck.close()
    torch.save({"model": model.module.state_dict(), "optim": optimizer.state_dict(), "sched": scheduler.state_dict(),
                "rng": [torch.get_rng_state(), random.random(), float(numpy.random.rand())]}, result)
    del ck, model  # a group that DDP frees after the next call is freed under the GIL, where PyTorch can hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
