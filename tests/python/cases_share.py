# SPDX-License-Identifier: Apache-2.0
"""What ranks hold alike is read once and handed over (cases for ranks.py)."""

import os
import pathlib
import tempfile

import numpy
import pytest
import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import cairn
import standin
from bed import assert_same, optimizer_view, seed
from cairn.torch import Checkpointer, gloo, per_rank, share


def make(start, rank):
    """Types, strides and sizes of all kinds; the same on all ranks, but for the loader."""
    seed(start)
    model = torch.nn.Sequential(torch.nn.Linear(300, 200), torch.nn.Linear(200, 7, dtype=torch.bfloat16))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 + start)
    for param in model.parameters():
        param.grad = torch.randn(param.shape).to(param.dtype)
    optimizer.step()
    values = {"nan": torch.tensor([float("nan"), -0.0, 1.0]) * (start + 1), "turned": torch.randn(40, 30).t(), "empty": torch.empty(0, 3),
              "scalar": torch.tensor(start), "bool": torch.rand(9) > 0.5, "c": torch.randn(3, dtype=torch.complex64),
              "np": numpy.random.rand(5, 3), "step": start}
    return {"model": model, "optim": optimizer, "values": values, "loader": per_rank({"at": torch.full((3,), 10.0 * start + rank)})}


def view(state):
    return [state["model"].state_dict(), optimizer_view(state["optim"]), state["values"], state["loader"].obj["at"]]


def leaves(value):
    if isinstance(value, (torch.Tensor, numpy.ndarray)):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [leaf for item in items for leaf in leaves(item)]


def on_device(rank, world, url):
    """What gloo cannot move goes through the CPU's memory; it comes into the same tensors on the device."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        with standin.installed(standin.Device(standin.build(folder)), patch) as driver:
            def fresh(start):
                seed(start)
                return {"values": {"big": driver.put(torch.randn(300, 200)), "turned": driver.put(torch.randn(40, 30)).t(),
                                   "small": driver.put(torch.randn(7).bfloat16()), "cpu": torch.randn(5)}}

            with Checkpointer(url, fresh(0), on_error="raise") as ck:
                ck.save(1).durable.result(60)
            state = fresh(5)
            address = state["values"]["big"].data_ptr()
            with Checkpointer(url, state, on_error="raise") as ck:
                read = ck.restore(share="broadcast").read_bytes
            for name, tensor in fresh(0)["values"].items():
                assert_same(driver.get(state["values"][name]), driver.get(tensor))
            assert state["values"]["big"].data_ptr() == address
            return read


def ddp(rank, world, url):
    """Gives the bytes that this rank read, without and with sharing, and those of all arrays that the ranks hold alike."""
    with Checkpointer(url, make(0, rank), on_error="raise") as ck:
        ck.save(1).durable.result(60)
    read = []
    for how in (None, "broadcast"):
        state = make(5, rank)
        with Checkpointer(url, state, on_error="raise") as ck:
            read.append(ck.restore(share=how).read_bytes)
            assert_same(view(state), view(make(0, rank)))
            state["values"]["nan"].fill_(3)
            state["model"][0].weight.data.fill_(3)
            ck.restore(share=how, only=["values.nan"])
            assert_same(state["values"], make(0, rank)["values"])
            assert bool((state["model"][0].weight == 3).all())
    return read + [sum(leaf.nbytes for leaf in leaves(view(state)[:3]))]


def hsdp(rank, world, url):
    """2 x 2: pieces are alike along the one dimension, the replicated tensor on all."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "fsdp"))
    def state(value):
        whole = torch.arange(4000.0) * value
        piece = whole.reshape(8, 500)[4 * (rank % 2):4 * (rank % 2) + 4].clone()
        return {"w": DTensor.from_local(piece, mesh, [Replicate(), Shard(0)], run_check=False),
                "r": DTensor.from_local(whole.clone(), mesh, [Replicate(), Replicate()], run_check=False), "p": whole + 1}
    with Checkpointer(url, state(1), on_error="raise") as ck:
        ck.save(1).durable.result(60)
    back = state(3)
    with Checkpointer(url, back, on_error="raise") as ck:
        read = [ck.restore(share=how).read_bytes for how in (None, "broadcast")]
    for key, value in state(1).items():
        got = back[key]
        assert_same(got.to_local() if key != "p" else got, value.to_local() if key != "p" else value)
    return read


def refused(rank, world, url):
    state = {"w": torch.ones(3)}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        with pytest.raises(cairn.InvalidError, match="share"):
            ck.restore(share="scatter")
        with pytest.raises(cairn.InvalidError, match="rank 0 gave .*share=None.* but rank 1 gave .*share='broadcast'"):
            ck.restore(share="broadcast" if rank else None)
        with pytest.raises(cairn.InvalidError):
            ck.restore(share="broadcast" if rank else "scatter")
        assert ck.restore(share="broadcast").step == 1


def flipped(rank, world, url):
    """A bit that flips on the way is found, on all ranks, and the state is unusable until a restore that ends well."""
    state = make(0, rank)
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        broadcast = gloo.Gloo.broadcast

        def flip(self, data, root, *rest):
            broadcast(self, data, root, *rest)
            if rank == 1 and root == 0 and data.numel() > 1000:
                data[17] ^= 4
        gloo.Gloo.broadcast = flip
        try:
            said = "the bytes that rank 0 read differ from those that came here.*unusable" if rank == 1 else "failed on rank 1"
            with pytest.raises(cairn.DigestMismatchError, match=said):
                ck.restore(share="broadcast")
        finally:
            gloo.Gloo.broadcast = broadcast
        with pytest.raises(cairn.InvalidError, match="unusable"):
            ck.save(2)
        ck.restore(share="broadcast")
        ck.save(2).durable.result(60)


def reader_dies(rank, world, url, folder):
    """Rank 1 dies between reading and handing over."""
    state = make(0, rank)
    ck = Checkpointer(url, state, on_error="raise")
    ck.save(1).durable.result(60)
    if rank == 1:
        share.Sharing.hand_over = lambda self: os._exit(9)
    try:
        ck.restore(share="broadcast")
    except cairn.MissingRanksError as error:
        pathlib.Path(folder, str(rank)).write_text(str(error))
    os._exit(0)
