# SPDX-License-Identifier: Apache-2.0
"""Trajectories, loaders, ties and tables go on where they were (cases for ranks.py)."""

import contextlib
import copy
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import cairn
from bed import assert_same, optimizer_view, seed
from cairn.torch import CairnWarning, Checkpointer, per_rank, warm_ddp


def ddp(start):
    seed(start)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 300),
        torch.nn.Linear(300, 3)), bucket_cap_mb=0.01)
    return model, torch.optim.Adam(model.parameters(), lr=0.01)


def go(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(4, 6)).pow(2).mean().backward()
        optimizer.step()


def trajectory(rank, world, url):
    model, optimizer = ddp(0)
    torch.manual_seed(rank)
    go(model, optimizer, 3)
    with Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise") as ck:
        ck.save(3).durable.result(60)
    go(model, optimizer, 3)
    again, optimizer2 = ddp(1)
    warm_ddp(again, lambda: again(torch.randn(4, 6)).sum())
    assert all(p.grad is None for p in again.parameters())
    with Checkpointer(url, {"model": again, "optim": optimizer2}, on_error="raise") as ck:
        ck.restore()
    go(again, optimizer2, 3)
    assert_same(again.state_dict(), model.state_dict())


def ddp_buffers(rank, world, url, lazy):
    """BatchNorm's statistics are each rank's own between two forward passes, and DDP goes on with those of its first rank: these are
    what is saved, wherever in the model they stand; nothing else of the replicas differs."""
    seed(0)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(
        *(layer for _ in range(6) for layer in (torch.nn.Linear(6, 6), torch.nn.BatchNorm1d(6)))))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    torch.manual_seed(rank)
    go(model, optimizer, 2)
    mine = {name: buffer.clone() for name, buffer in model.module.named_buffers()}
    first = {name: buffer.clone() for name, buffer in mine.items()}
    for buffer in first.values():
        dist.broadcast(buffer, 0)
    differing = [name for name in mine if not torch.equal(mine[name], first[name])]
    assert rank == 0 or len(differing) == 12, differing
    options = {"snapshot": "lazy"} if lazy else {"check_replicas": "fail"}
    with Checkpointer(url, {"model": model}, on_error="raise", **options) as ck:
        ck.save(1).durable.result(60)
        assert_same(dict(model.module.named_buffers()), mine)  # a save changes nothing
        ck.restore()
    assert_same(dict(model.module.named_buffers()), first)
    apart = torch.nn.parallel.DistributedDataParallel(torch.nn.BatchNorm1d(2), broadcast_buffers=False)
    apart.module.running_mean.fill_(rank)
    with Checkpointer(url, {"model": apart}, on_error="raise", check_replicas="fail") as ck:
        with pytest.raises(cairn.ReplicasDifferError, match=r"model\.running_mean"):
            ck.save(2).durable.result(60)


class Loader:
    """A StatefulDataLoader's face: an iterator with state_dict, which holds a tensor and nested plain values."""

    def __init__(self, seed):
        self.generator, self.pos = torch.Generator().manual_seed(seed), 0

    def __next__(self):
        self.pos += 1
        return torch.rand(2, generator=self.generator)

    def state_dict(self):
        return {"_num_yielded": self.pos, "_snapshot": {"worker_0": {"rng": self.generator.get_state(), "it": [None]}}}

    def load_state_dict(self, state):
        self.pos = state["_num_yielded"]
        self.generator.set_state(state["_snapshot"]["worker_0"]["rng"])


def loader_save(rank, world, url):
    loader = Loader(rank)
    with Checkpointer(url, {"loader": per_rank(loader)}, on_error="raise") as ck:
        for _ in range(rank + 2):
            next(loader)
        ck.save(1).durable.result(60)


def loader_restore(rank, world, url):
    loader, expected = Loader(77), Loader(rank)
    for _ in range(rank + 2):
        next(expected)
    with Checkpointer(url, {"loader": per_rank(loader)}, on_error="raise") as ck:
        ck.restore()
    assert loader.pos == rank + 2
    assert_same(next(loader), next(expected))


class Tied(torch.nn.Module):
    def __init__(self, tied=True):
        super().__init__()
        self.embed = torch.nn.Embedding(9, 4)
        self.head = torch.nn.Linear(4, 9, bias=False)
        self.register_buffer("rope", torch.arange(4.0), persistent=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x) + self.rope)


def tied_model(start, sharded, tied=True):
    seed(start)
    model = Tied(tied)
    if sharded:
        fully_shard(model)
    optimizer = torch.optim.Adam(model.parameters())
    return model, optimizer


def full(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor.clone()


def tied(rank, world, url):
    for source in (True, False):
        run = f"{url}-{int(source)}"
        model, optimizer = tied_model(0, source)
        model(torch.tensor([1, 2])).sum().backward()
        optimizer.step()
        with Checkpointer(run, {"model": model, "optim": optimizer}, on_error="raise") as ck:
            ck.save(1).durable.result(60)
        expected = full(model.embed.weight)
        moment = full(optimizer.state[model.embed.weight]["exp_avg"])
        with cairn.Client(run, read_only=True) as client:
            client.set_tensors([])
            op = client.restore()
            op.wait()
            assert [name for name in op.unexpected() if name.startswith("model.")] == ["model.embed.weight"]
        for target in (True, False):
            with warnings.catch_warnings():
                warnings.simplefilter("error", CairnWarning)
                model2, optimizer2 = tied_model(1, target)
                with Checkpointer(run, {"model": model2, "optim": optimizer2}, on_error="raise") as ck:
                    ck.restore()
            assert model2.head.weight is model2.embed.weight
            assert_same(full(model2.embed.weight), expected)
            assert_same(full(optimizer2.state[model2.embed.weight]["exp_avg"]), moment)
            apart, _ = tied_model(2, target, tied=False)
            with Checkpointer(run, {"model": apart}, on_error="raise") as ck:
                with pytest.warns(CairnWarning, match="tied when they were saved"):
                    ck.restore(strict=False)
            assert_same([full(apart.head.weight), full(apart.embed.weight)], [expected, expected])
        meta_and_garbage(run, expected)


def meta_and_garbage(run, expected):
    with torch.device("meta"):
        model = Tied()
    fully_shard(model)
    with Checkpointer(run, {"model": model}, on_error="raise") as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"model\.embed\.weight: .*to_empty"):
            ck.restore(strict=False)
    model.to_empty(device="cpu")  # the tie is kept by FSDP2 or lost; the table is garbage
    with torch.no_grad():
        model.rope.fill_(7)
    with Checkpointer(run, {"model": model}, on_error="raise") as ck:
        with pytest.warns(CairnWarning, match=r"model\.rope: this non-persistent buffer"):
            ck.restore(strict=False)
    assert_same(full(model.embed.weight), expected)


def lists_differ(rank, world, url):
    """Rank 1's second layer alone got a gradient: it alone has state for it, and it alone gets it back."""
    seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Linear(3, 2))
    optimizer = torch.optim.Adam(model.parameters())
    (model if rank == 1 else model[0])(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    with torch.no_grad():
        for p in model.parameters():
            p.fill_(1)
            for value in optimizer.state.get(p, {}).values():
                value.fill_(2)
    with Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        with pytest.warns(CairnWarning, match="optim: rank 1 holds other contents") if rank == 0 else contextlib.nullcontext():
            ck.wait()
        for step in (1, 2):
            before = copy.deepcopy(optimizer_view(optimizer))
            with torch.no_grad():
                for p in model.parameters():
                    for value in optimizer.state.get(p, {}).values():
                        value.fill_(9)
            with warnings.catch_warnings():
                warnings.simplefilter("error", CairnWarning)
                assert ck.restore().step == step
            assert_same(optimizer_view(optimizer), before)
            ck.save(2).durable.result(60)  # a restore makes the ranks agree anew on what they have
    assert len(optimizer.state) == (4 if rank == 1 else 2)
