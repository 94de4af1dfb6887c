# SPDX-License-Identifier: Apache-2.0
"""A worker of test_horovod.py: trains, dies where it is told, and tells what it has restored.

Arguments: the URL of the run, the folder for what it tells, the number of steps, and where a worker dies: "RANK@STEP", "RANK@sync" for the
time when it gets what rank 0 has restored, or "" for nowhere.
A commit is made every second step.
"""

import os
import pathlib
import signal
import sys

import horovod.torch as hvd
import torch

import cairn
import cairn.horovod

URL, FOLDER, STEPS, DEATH = sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4]


def die_at(moment):
    if f"{hvd.rank()}@{moment}" == DEATH and not (FOLDER / "dead").exists():
        (FOLDER / "dead").touch()
        os.kill(os.getpid(), signal.SIGKILL)


class State(cairn.horovod.TorchState):
    """Notes what is taken from the run."""

    def _broadcast(self, root):
        die_at("sync")
        super()._broadcast(root)

    def _resume(self):
        step = super()._resume()
        with open(FOLDER / "resumed", "a", encoding="utf-8") as file:
            file.write(f"{hvd.rank()} {step}\n")
        return step


def main():
    hvd.init()
    torch.manual_seed(3)
    data = torch.randn(64, 6)
    sampler = hvd.elastic.ElasticSampler(data, seed=3)
    loader = torch.utils.data.DataLoader(data, batch_size=4, sampler=sampler, generator=torch.Generator())
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    torch.manual_seed(10 + hvd.rank())

    @hvd.elastic.run
    def train(state):
        while state.step < STEPS:
            for x in loader:
                optimizer.zero_grad()
                model(x).pow(2).mean().backward()
                optimizer.step()
                scheduler.step()
                state.step += 1
                sampler.record_batch(state.step, len(x))
                die_at(state.step)
                if state.step % 2 == 0:
                    state.commit()
                if state.step == STEPS:
                    return
            sampler.set_epoch(sampler.epoch + 1)

    state = State(URL, model=model, optimizer=optimizer, scheduler=scheduler, sampler=sampler, step=0)
    train(state)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
                "rng": torch.get_rng_state(), "ranks": hvd.size()}, FOLDER / f"end-{hvd.rank()}.pt")
    state.close()


if __name__ == "__main__":
    main()
