# SPDX-License-Identifier: Apache-2.0
"""One small model and its optimizer, saved in every layout, comes back in every other one (cases for ranks.py).

What is compared is the whole state by canonical name, put together by this file's own means, bit for bit.
"""

import contextlib

import torch
import torch.distributed as dist
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import cairn.torch
from bed import assert_same, seed

CPU = torch.device("cpu")
WRAPPERS = ("_orig_mod.", "_checkpoint_wrapped_module.", "_fsdp_wrapped_module.", "module.")


class Model(torch.nn.Module):
    """Sizes that 4 ranks do not divide (but for tensor parallel, whose forward pass wants it); buffers of both kinds."""

    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(5, 6)
        self.up = torch.nn.Linear(6, 8)
        self.down = torch.nn.Linear(8, 6)
        self.norm = torch.nn.LayerNorm(6)
        self.scale = torch.nn.Parameter(torch.ones(1))
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("rope", torch.arange(4.0), persistent=False)

    def forward(self, ids):
        hidden = self.down(torch.tanh(self.up(self.embed(ids))))
        return self.norm(hidden) * self.scale


def train(model, optimizer, steps):
    """The same data on every rank, so that every layout computes a like thing."""
    for step in range(steps):
        optimizer.zero_grad()
        model(torch.arange(5) + 0 * step).pow(2).mean().backward()
        optimizer.step()


def shard_all(model, **options):
    for part in (model.embed, model.up, model.down):
        fully_shard(part, **options)
    fully_shard(model, **options)


def tensor_parallel(model, mesh):
    parallelize_module(model, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def make(layout, world, start):
    """(model as trained, optimizer) in a layout; words joined by "+"."""
    seed(start)
    model = Model()
    with torch.no_grad():
        model.count += start
    words = layout.split("+")
    if "ac" in words:
        model.up = checkpoint_wrapper(model.up)
    if "tp" in words:
        if "fsdp2" in words:
            mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
            tensor_parallel(model, mesh["tp"])
            shard_all(model, mesh=mesh["dp"])
        else:
            tensor_parallel(model, init_device_mesh("cpu", (world,)))
    elif "fsdp2" in words:
        shard_all(model)
    elif "hsdp" in words:
        shard_all(model, mesh=init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard")))
    elif "fsdp1" in words:
        model.up = FullyShardedDataParallel(model.up, use_orig_params=True, device_id=CPU)
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=CPU)
    elif "hybrid1" in words:
        mesh = init_device_mesh("cpu", (2, world // 2), mesh_dim_names=("replicate", "shard"))
        model = FullyShardedDataParallel(model, use_orig_params=True, device_id=CPU, device_mesh=mesh,
                                         sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    if "compile" in words:
        model = torch.compile(model, backend="eager")
    if "ddp" in words or "zero" in words:
        model = torch.nn.parallel.DistributedDataParallel(model)
    if "zero" in words:
        optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01, foreach=False)
    else:
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)  # meshes may differ
    return model, optimizer


def canonical(name):
    for wrapper in WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def whole(tensor):
    tensor = tensor.detach()
    return tensor.full_tensor().clone() if isinstance(tensor, DTensor) else tensor.clone()


def gathered(value):
    """Every rank's value."""
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def whole_state(model, optimizer):
    """({name: tensor}, {name: {key: tensor}}) of everything, the same on all ranks."""
    inner = getattr(optimizer, "optim", optimizer)
    with contextlib.ExitStack() as stack:
        flat = [m for m in model.modules() if isinstance(m, FullyShardedDataParallel)]
        states = {canonical(name): {key: whole(value) for key, value in inner.state[param].items()}
                  for name, param in model.named_parameters() if param in inner.state}
        mixed = gathered({name: param.numel() for name, param in model.named_parameters()}) if flat else None
        if flat:
            stack.enter_context(FullyShardedDataParallel.summon_full_params(model, writeback=False))
        params = {canonical(name): whole(param) for name, param in model.named_parameters()}
        buffers = {canonical(name): whole(buffer) for name, buffer in model.named_buffers()}
    if flat:
        states = join_flat(gathered(states), params, len(mixed))
    elif inner is not optimizer:
        merged = {}
        for state in gathered(states):
            assert not set(merged) & set(state)  # each on one rank
            merged.update(state)
        states = merged
    return {**params, **buffers}, dict(sorted(states.items()))


def join_flat(by_rank, params, world):
    """FSDP1: the pieces of all ranks one after the other (of the first replica where there are two)."""
    joined = {}
    for name, param in params.items():
        states = [state[name] for state in by_rank if name in state and state[name]["exp_avg"].numel() > 0]
        pieces = [state["exp_avg"] for state in states]
        if sum(piece.numel() for piece in pieces) == 2 * param.numel():
            half = len(states) // 2
            assert_same([s for s in states[half:]], [s for s in states[:half]])
            states = states[:half]
        assert states, (name, [sorted(state) for state in by_rank])
        joined[name] = {key: torch.cat([state[key] for state in states]).reshape(param.shape)
                        if states[0][key].dim() else states[0][key] for key in states[0]}
    return joined


def open_ck(url, model, optimizer, **options):
    return cairn.torch.Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise", **options)


def save(rank, world, layout, url, path):
    """Trains, saves, leaves the whole state in a file."""
    model, optimizer = make(layout, world, 0)
    train(model, optimizer, 2)
    with open_ck(url, model, optimizer) as ck:
        ck.save(2).durable.result(60)
    expected = whole_state(model, optimizer)
    if rank == 0:
        torch.save(expected, path)
    dist.barrier()


def save_lazily(rank, world, layout, url, path):
    """The next step begins while the save copies; what is stored is the state before it."""
    model, optimizer = make(layout, world, 0)
    train(model, optimizer, 2)
    expected = whole_state(model, optimizer)
    with open_ck(url, model, optimizer, snapshot="lazy") as ck:
        ck.save(1).durable.result(60)
        handle = ck.save(2)
        train(model, optimizer, 2)
        handle.durable.result(60)
    if rank == 0:
        torch.save(expected, path)
    dist.barrier()


def restore(rank, world, layout, url, path, fresh):
    """Restores into a layout, with or without optimizer state before, compares with the file, trains on."""
    model, optimizer = make(layout, world, 7)
    if not fresh:
        train(model, optimizer, 1)
    with open_ck(url, model, optimizer) as ck:
        restored = ck.restore()
    assert (restored.step, restored.missing, restored.unexpected) == (2, (), ()), restored
    assert_same(whole_state(model, optimizer), torch.load(path, weights_only=False))
    train(model, optimizer, 1)  # the state fits the layout
    dist.barrier()
