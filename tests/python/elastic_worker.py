# SPDX-License-Identifier: Apache-2.0
"""One worker of test_torch_elastic.py, started by torchrun. Arguments: URL, folder, steps, step at which rank 1 dies
in the first life of the job."""

import os
import pathlib
import signal
import sys

import torch
import torch.distributed as dist

import cairn.torch


def make(rank):
    torch.manual_seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    torch.manual_seed(100 + rank)
    return model, optimizer


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.randn(8, 4)).pow(2).mean().backward()
    optimizer.step()


def keep(model, path):
    torch.save([model.module.state_dict(), torch.get_rng_state()], path)


def whole(rank, world, folder, steps):
    """A case of ranks.py: the same training without an interruption."""
    model, optimizer = make(rank)
    for _ in range(steps):
        train(model, optimizer)
    keep(model, f"{folder}/whole-{rank}.pt")


def main():
    url, folder, steps, death = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    model, optimizer = make(rank)
    ck = cairn.torch.Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise")
    r = ck.restore()
    with open(folder / f"log-{rank}", "a") as log:
        log.write(f"{os.environ['TORCHELASTIC_RESTART_COUNT']} {os.environ['GROUP_RANK']} {r.step if r else -1}\n")
    first_life = not (folder / "died").exists()
    for step in range(r.step + 1 if r else 0, steps):
        train(model, optimizer)
        ck.save(step).durable.result(60)
        if first_life and step == death and rank == 1:
            (folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
    ck.close()
    keep(model, folder / f"end-{rank}.pt")
    del ck, model
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
