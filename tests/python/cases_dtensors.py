# SPDX-License-Identifier: Apache-2.0
"""A DTensor comes back with its values whatever its placement (cases for ranks.py): single DTensors of known values in
many placements."""

import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

import cairn
from bed import assert_same
from cairn.torch import Checkpointer

PLACEMENTS = {
    "hsdp": (Replicate(), Shard(0)),
    "other_way": (Shard(0), Replicate()),
    "both": (Shard(0), Shard(0)),
    "fsdp_tp": (_StridedShard(0, split_factor=2), Shard(0)),
    "strided": (Shard(0), _StridedShard(0, split_factor=2)),
    "two_dims": (Shard(0), Shard(1)),
    "columns": (Replicate(), Shard(1)),
    "replicated": (Replicate(), Replicate()),
}
ROWS = (1, 2, 5, 6, 7, 8, 9)


def values():
    """name -> whole tensor."""
    result = {}
    for name in PLACEMENTS:
        for rows in ROWS:
            result[f"{name}_{rows}"] = torch.arange(rows * 3, dtype=torch.float32).reshape(rows, 3) + len(name)
    result["hsdp_bf16"] = torch.randn(5, 2, 3, generator=torch.Generator().manual_seed(1)).bfloat16()
    result["two_dims_transposed"] = torch.arange(24.0).reshape(6, 4)
    result["both_empty"] = torch.zeros(0, 4)
    result["replicated_scalar"] = torch.tensor(2.5)
    result["columns_wide"] = torch.arange(300000, dtype=torch.int32).reshape(3, 100000)  # more than one chunk's row
    return result


def cut(whole, placements, mesh):
    """The DTensor of a whole tensor, its local part cut by PyTorch's own split."""
    local = whole
    for dim, placement in enumerate(placements):
        if not isinstance(placement, Replicate):
            parts = placement._split_tensor(local, mesh.size(dim), with_padding=False)[0]
            local = parts[mesh.get_coordinate()[dim]]
    return DTensor.from_local(local.clone(), mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride())


def make(mesh):
    tensors = {}
    for name, whole in values().items():
        kind = max((kind for kind in PLACEMENTS if name.startswith(kind)), key=len)
        tensor = cut(whole, PLACEMENTS[kind], mesh)
        if name.endswith("transposed"):  # the local memory is not row-major
            local = tensor.to_local().t().contiguous().t()
            tensor = DTensor.from_local(local, mesh, PLACEMENTS[kind], run_check=False, shape=whole.shape,
                                        stride=whole.stride())
        tensors[name] = tensor
    return tensors


def save(rank, world, url):
    tensors = make(init_device_mesh("cpu", (2, 2)))
    with Checkpointer(url, {"t": tensors}, on_error="raise") as ck:
        ck.save(1).durable.result(60)


def restore(rank, world, url):
    """Each into its own layout, in place, and into the one of its neighbour."""
    mesh = init_device_mesh("cpu", (2, 2))
    expected = make(mesh)
    kinds = list(PLACEMENTS.values())
    for shift in (0, 3):
        live = {}
        for name, tensor in expected.items():
            placements = tensor.placements
            if shift and tensor.dim() > 1:
                placements = kinds[(kinds.index(placements) + shift) % len(kinds)]
            live[name] = cut(torch.zeros(tensor.shape, dtype=tensor.dtype), placements, mesh)
        kept = dict(live)
        with Checkpointer(url, {"t": live}, on_error="raise") as ck:
            ck.restore()
        for name, whole in values().items():
            assert live[name] is kept[name], name
            assert_same(live[name].to_local(), cut(whole, live[name].placements, mesh).to_local())


def refused(rank, world, url):
    """A Partial, a mesh that this rank is not in, a local part of the wrong size."""
    mesh = init_device_mesh("cpu", (4,))
    partial = DTensor.from_local(torch.ones(2), mesh, [Partial()], run_check=False)
    wrong = DTensor.from_local(torch.ones(3), mesh, [Shard(0)], run_check=False, shape=(8,), stride=(1,))
    with Checkpointer(url, {"a": {"b": [partial]}}, on_error="raise") as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"a\.b\[0\]: .*Partial.*redistribute"):
            ck.save(1)
        ck.state["a"]["b"] = [wrong]
        with pytest.raises(cairn.ShapeMismatchError, match=r"a\.b\[0\]: the local shard has the shape \[3\].*\[2\]"):
            ck.save(1)
        ck.state["a"]["b"] = cairn.torch.per_rank(1)
        with pytest.raises(cairn.UnsupportedValueError, match=r"a\.b: "):
            ck.save(1)
    assert ck.failed_saves == 0
    pair = dist.new_group([0, 1])
    if rank < 2:
        shard = DTensor.from_local(torch.ones(2), mesh, [Shard(0)], run_check=False)
        with Checkpointer(url, {"x": {"y": shard}}, process_group=pair) as ck:
            with pytest.raises(cairn.InvalidError, match=r"x\.y: rank 2 holds a part of it.*process_group"):
                ck.save(1)
    dist.barrier()


def differ(rank, world, url):
    """One name for two tensors: one of them would be lost."""
    with pytest.raises(cairn.InvalidError, match=r"model\.bias: it is torch.float32\[2\] on rank 0, but torch.float32\[3\] on rank 1"):
        Checkpointer(url, {"model": torch.nn.Linear(2, 2 + rank)})


class Average:
    """An EMA that somebody wrote: a state_dict with DTensors in it."""

    def __init__(self, tensors):
        self.shadow = tensors

    def state_dict(self):
        return {"decay": 0.9, "shadow": self.shadow}

    def load_state_dict(self, state):
        self.shadow = state["shadow"]


def objects(rank, world, url):
    """DTensors in an object's state, in per_rank (refused), and parameters that are not sharded at the moment."""
    mesh = init_device_mesh("cpu", (world,))
    average = Average({"w": cut(torch.arange(10.0).reshape(5, 2), (Shard(0),), mesh)})
    with Checkpointer(url, {"ema": average}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        average.shadow["w"].to_local().zero_()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ck.restore()
        assert isinstance(average.shadow["w"], DTensor)
        assert_same(average.shadow["w"].full_tensor(), torch.arange(10.0).reshape(5, 2))
    with Checkpointer(url + "-own", {"own": cairn.torch.per_rank(average.shadow)}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"own\.w: a sharded tensor cannot belong to one rank"):
            ck.save(1)
    model = torch.nn.Sequential(torch.nn.Linear(5, 3), torch.nn.Linear(3, 5))
    fully_shard(model[0])
    fully_shard(model)
    wanted = {name: p.full_tensor().detach() for name, p in model.named_parameters()}
    with torch.no_grad():
        model(torch.ones(1, 5))
    assert not isinstance(model[1].weight, DTensor)  # the root stays whole after a forward pass alone
    with Checkpointer(url + "-whole", {"model": model}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        with torch.no_grad():
            model(torch.ones(1, 5))
        ck.restore()
    assert_same({name: p.full_tensor().detach() for name, p in model.named_parameters()}, wanted)


class LocalOptimizer(torch.optim.Optimizer):
    """Keeps plain tensors of its shard's shape."""

    def __init__(self, params):
        super().__init__(params, {})

    def step(self):
        for p in self.param_groups[0]["params"]:
            self.state[p]["buf"] = torch.zeros_like(p.to_local())


def plain_state_beside_a_shard(rank, world, url):
    model = torch.nn.Linear(5, 4)
    fully_shard(model)
    optimizer = LocalOptimizer(model.parameters())
    optimizer.step()
    with Checkpointer(url, {"model": model, "optim": optimizer}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"optim\.model\.weight: the optimizer keeps a plain tensor"):
            ck.save(1)
