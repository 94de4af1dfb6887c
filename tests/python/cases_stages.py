# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold different tensors, as pipeline stages and experts do, save and restore together (cases for ranks.py)."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

import cairn
from bed import assert_same, seed
from cairn.torch import CairnWarning, Checkpointer

LAYERS = 4


def whole_model(start=0):
    """Layers with names that a stage keeps, and an embedding that the first and the last stage hold."""
    seed(start)
    return torch.nn.ModuleDict({"embed": torch.nn.Linear(4, 4), **{f"layer{i}": torch.nn.Linear(4, 4) for i in range(LAYERS)}})


def train(model, optimizer, scheduler, salt):
    """Steps that depend on the model alone: every rank of a stage does the same."""
    for step in range(3):
        optimizer.zero_grad()
        for param in model.parameters():
            param.grad = param.detach() * 0.1 + salt + step
        optimizer.step()
        scheduler.step()


def stage_state(names, start, salt, mesh=None, groups=1, lr=0.01):
    """What a rank with these layers holds."""
    model = torch.nn.ModuleDict({name: layer for name, layer in whole_model(start).items() if name in names})
    if mesh is not None:
        for layer in model.values():
            fully_shard(layer, mesh=mesh)
    params = [{"params": list(layer.parameters())} for layer in model.values()] if groups > 1 else model.parameters()
    optimizer = torch.optim.AdamW(params, lr=lr)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    train(model, optimizer, scheduler, salt)
    return {"model": model, "optim": optimizer, "sched": scheduler, "extra": {"step": 3}}


def full(value):
    if isinstance(value, DTensor):
        return value.full_tensor().detach().clone()
    return value.detach().clone() if isinstance(value, torch.Tensor) else value


def view(state):
    names = {id(p): name for name, p in state["model"].named_parameters()}
    return {"model": {name: full(p) for name, p in state["model"].named_parameters()},
            "optim": {names[id(p)]: {key: full(value) for key, value in entry.items()}
                      for p, entry in state["optim"].state.items()},
            "lr": [group["lr"] for group in state["optim"].param_groups],
            "sched": state["sched"].state_dict(), "extra": dict(state["extra"])}


def expected(names):
    """The state of these layers of a training in which each layer was trained with the salt of its stage."""
    return view(stage_state(names, 0, 0.5))


STAGES = (["embed", "layer0", "layer1"], ["embed", "layer2", "layer3"])
OTHER_STAGES = (["embed", "layer0", "layer1", "layer2"], ["layer3", "embed"])


def pipeline(rank, world, url, sharded):
    """2 stages x 2 data-parallel ranks (plain, or FSDP over the stage's mesh), restored into the same, into another cut,
    and into a whole model on each rank. The embedding is held by both stages."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
    dp = mesh["dp"] if sharded else None
    stage = rank // 2
    with warnings.catch_warnings():
        warnings.simplefilter("error", CairnWarning)
        with Checkpointer(url, stage_state(STAGES[stage], 0, 0.5, dp), on_error="raise", check_replicas="fail") as ck:
            assert set(ck._state.layouts.holders) and ck._state.first == [0, 0, 2, 2]
            ck.save(1).durable.result(60)
            ck.save(2).durable.result(60)
        state = stage_state(STAGES[stage], 7, 0.1, dp)
        with Checkpointer(url, state, on_error="raise") as ck:
            assert ck.restore().step == 2
        assert_same(view(state), expected(STAGES[stage]))
        other = stage_state(OTHER_STAGES[rank % 2], 7, 0.1)  # dp and pp the other way round as well
        with Checkpointer(url, other, on_error="raise") as ck:
            assert ck.restore().unexpected == ()
            ck.save(3).durable.result(60)
        assert_same(view(other), expected(OTHER_STAGES[rank % 2]))
        everything = stage_state(["embed", *(f"layer{i}" for i in range(LAYERS))], 7, 0.1)
        with Checkpointer(url, everything, on_error="raise") as ck:
            assert ck.restore().step == 3
        assert_same(view(everything)["model"], {**expected(OTHER_STAGES[0])["model"], **expected(OTHER_STAGES[1])["model"]})


def strict(rank, world, url):
    """A strict restore names the stored tensors that no rank has a place for, but not those that another rank has."""
    stage = rank // 2
    with Checkpointer(url, {"model": torch.nn.ModuleDict({f"a{stage}": torch.nn.Linear(2, 2)}), "x": 1},
                      on_error="raise") as ck:
        ck.save(1).durable.result(60)
    lacking = {"model": torch.nn.ModuleDict({"a0": torch.nn.Linear(2, 2)}), "x": 1}
    with Checkpointer(url, lacking) as ck:
        with pytest.raises(cairn.MissingTensorError, match=r"state lacks model\.a1\.weight, model\.a1\.bias"):
            ck.restore()
        assert ck.restore(strict=False).unexpected == ("model.a1.weight", "model.a1.bias")
    more = {"model": torch.nn.ModuleDict({f"a{stage}": torch.nn.Linear(2, 2)}), "x": 1}
    if rank == 3:
        more["model"]["a2"] = torch.nn.Linear(2, 2)
    with Checkpointer(url, more) as ck:
        with pytest.raises(cairn.MissingTensorError, match=r"lacks model\.a2\.weight" if rank == 3 else "failed on rank 3"):
            ck.restore()
        assert ck.restore(only=["model.a1.*"]).step == 1


def experts(rank, world, url):
    """A dense part on all ranks, an expert of its own on each; restored on two ranks with two experts each."""
    def state(mine, start):
        seed(start)
        experts = {f"expert{i}": torch.nn.Linear(3, 3) for i in range(4)}
        model = torch.nn.ModuleDict({"dense": torch.nn.Linear(3, 3), **{f"expert{i}": experts[f"expert{i}"] for i in mine}})
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
        train(model, optimizer, scheduler, 0.5)
        return {"model": model, "optim": optimizer, "sched": scheduler, "extra": {}}

    with Checkpointer(url, state([rank], 0), on_error="raise") as ck:
        result = ck.save(1).durable.result(60)
    back = state([rank], 5)
    with Checkpointer(url, back, on_error="raise") as ck:
        ck.restore()
    assert_same(view(back), view(state([rank], 0)))
    pair = dist.new_group([0, 1])
    if rank < 2:
        back = state([2 * rank, 2 * rank + 1], 5)
        with pytest.warns(CairnWarning, match="of 4 ranks, now there are 2"):
            with Checkpointer(url, back, on_error="raise", process_group=pair) as ck:
                ck.restore()
        assert_same(view(back), view(state([2 * rank, 2 * rank + 1], 0)))
    dist.barrier()
    return result.plain_bytes


def own_schedules(rank, world, url):
    """Stages whose schedulers are not alike: each gets its own back; in another cut that is said."""
    def state(start):
        built = stage_state(STAGES[rank // 2][1:], start, 0.5, groups=1 + rank // 2, lr=0.1 + rank // 2)
        built["extra"] = {"stage": rank // 2 + start}
        return built
    with Checkpointer(url, state(0), on_error="raise") as ck:
        ck.save(1).durable.result(60)
    back = state(3)
    with Checkpointer(url, back, on_error="raise") as ck:
        ck.restore()
    assert_same(view(back), view(state(0)))
    pair = dist.new_group([0, 2])
    if rank in (0, 2):
        other = {"extra": {"stage": 9}}
        with Checkpointer(url, other, process_group=pair) as ck:
            with pytest.warns(CairnWarning, match="extra: the stages held different ones"):
                ck.restore(strict=False)
        assert other["extra"] == {"stage": 0}
    dist.barrier()
