# SPDX-License-Identifier: Apache-2.0
"""All ranks of a job stop together, keep what is their own by coordinate, and hear of a rank that fails (cases for
ranks.py); also notes after the fact."""

import os
import signal
import time
import warnings

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import cairn
from bed import assert_same
from cairn.torch import CairnWarning, Checkpointer, per_rank
from cairn.training import Run
from conftest import Lost


def stop(rank, world, url, victim, slow):
    """One rank gets SIGTERM in the middle of a step; the ranks are apart by most of a step. Gives the step at which this
    rank stopped and the calls of the handler that was there before."""
    calls = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: calls.append(number))
    try:
        with Checkpointer(url, {"w": torch.full((3,), float(rank))}, on_error="raise") as ck:
            for step in range(100):
                if rank == victim and step == 5:
                    os.kill(os.getpid(), signal.SIGTERM)
                if rank == slow:
                    time.sleep(0.03)
                if ck.should_stop(step):
                    ck.save(step).durable.result(60)
                    break
            assert ck.should_stop(step + 1)  # and ever after
        handler = signal.getsignal(signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)  # after close it is the earlier handler's alone
        assert handler.__name__ == "<lambda>"
    finally:
        signal.signal(signal.SIGTERM, before)
    return [step, calls]


def come_back(rank, world, url):
    """The last rank hears nothing of two commits of step 2: the training comes back to the first one, and leaves the run behind the
    second one and goes on. Gives what step 2 holds then."""
    run = Run(url, restore_deadline=60, save_deadline=60, ranks_deadline=60, on_error="warn")

    def save(step, value):
        handle = run.save(step, {"x": torch.full((3,), value)})
        handle.durable.result(60)
        if step == 2 and rank == world - 1:
            handle._op._op = Lost(True, cairn.OutcomeUnknownError)

    save(1, 1.0)
    save(2, 2.0)
    save(2, 9.0)
    run.close()
    save(3, 3.0)
    run.close()
    state = {"x": torch.zeros(3)}
    with Checkpointer(url, state, read_only=True) as reader:
        reader.restore(2)
    return state["x"].tolist()


def stop_at_different_steps(rank, world, url):
    with Checkpointer(url, {}) as ck:
        ck.should_stop(rank)
        with pytest.raises(cairn.InvalidError, match="different steps, 0 to 1"):
            ck.should_stop(rank + 1)


def mesh_save(rank, world, url):
    """2 x 2 ranks, each with a loader of its own."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(rank)
    with Checkpointer(url, {"loader": per_rank({"pos": list(mesh.get_coordinate())})}, coordinate=mesh, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        return torch.rand(1).item()


def mesh_restore(rank, world, url):
    """The same mesh with its dimensions laid out in another way: rank 1 is now dp=1, tp=0."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("tp", "dp"))
    tp, dp = mesh.get_coordinate()
    loader = {}
    with Checkpointer(url, {"loader": per_rank(loader)}, coordinate={"dp": dp, "tp": tp}, on_error="raise") as ck:
        with warnings.catch_warnings():
            warnings.simplefilter("error", CairnWarning)
            ck.restore()
    assert loader == {"pos": [dp, tp]}, loader
    drawn = torch.rand(1).item()
    with Checkpointer(url, {"loader": per_rank({})}, on_error="raise") as ck:  # by rank: not the coordinates of the save
        with pytest.raises(cairn.UnsupportedError, match=r"loader: .*dp=0,tp=0 to dp=1,tp=1.*rank=0 to rank=3"):
            ck.restore()
    for wrong in ({"dp": 0}, {"dp": 1.5}, {}, "dp=1"):
        with pytest.raises(cairn.InvalidError, match="coordinate"):
            Checkpointer(url, {}, coordinate=wrong)
    return [dp * 2 + tp, drawn]


def grow(rank, world, url):
    """A checkpoint of two ranks at four."""
    live = {"x": torch.zeros(4)}
    with Checkpointer(url, {"plain": live, "loader": per_rank({}, on_reshape=lambda states, rank, world: {
            "rank": rank, "world": world, "all": [state["pos"] for state in states]})}, on_error="raise") as ck:
        with pytest.warns(CairnWarning, match="of 2 ranks, now there are 4"):
            ck.restore()
        assert_same(ck.state["loader"].obj, {"rank": rank, "world": 4, "all": [0, 10]})
    assert_same(live["x"], torch.arange(4.0))
    return torch.rand(1).item()  # seeded from the checkpoint and the rank


def grow_save(rank, world, url):
    with Checkpointer(url, {"plain": {"x": torch.arange(4.0)}, "loader": per_rank({"pos": rank * 10})},
                      on_error="raise") as ck:
        ck.save(3).durable.result(60)


class Sampler:
    """Foreign code, which cannot take its state back on one rank."""

    def __init__(self, fails):
        self.at, self.fails = 0, fails

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        if self.fails:
            raise ValueError("another version of the sampler")
        self.at = state["at"]


def one_cannot_load(rank, world, url):
    """The arrays have come on all ranks when rank 1's own code fails: no rank goes on alone."""
    sampler = Sampler(False)
    with Checkpointer(url, {"w": torch.ones(2), "sampler": sampler}, on_error="raise") as ck:
        sampler.at = 7
        ck.save(1).durable.result(60)
        sampler.at, sampler.fails = 0, rank == 1
        if rank == 1:
            with pytest.raises(ValueError, match="another version"):
                ck.restore()
        else:
            with pytest.raises(cairn.InternalError, match="putting the state back failed on rank 1.*unusable"):
                ck.restore()
        with pytest.raises(cairn.InvalidError, match="unusable"):
            ck.save(2)
        sampler.fails = False
        assert ck.restore().step == 1 and sampler.at == 7


def one_has_wrong_options(rank, world, url):
    """Whatever is wrong with them, the other ranks are told instead of waiting."""
    options = {"arena_bytes": "1G"} if rank == 1 else {}
    with pytest.raises(cairn.InvalidError, match="arena_bytes is '1G'" if rank == 1 else "failed on rank 1"):
        Checkpointer(url, {"w": torch.ones(2)}, **options)
    with pytest.raises(TypeError if rank == 1 else cairn.InternalError, match="integer" if rank == 1 else "failed on rank 1"):
        Checkpointer(url, {"w": torch.ones(2)}, threads="many" if rank == 1 else 0)


def one_fails(rank, world, url):
    """What cannot be stored on one rank fails the save on all, by name; nothing partial is listed."""
    extra = {"t": torch.ones(2)}
    with Checkpointer(url, {"extra": extra}, on_error="raise", save_deadline=2) as ck:
        extra["bad"] = object() if rank == 1 else 0
        if rank == 1:
            with pytest.raises(cairn.UnsupportedValueError, match=r"extra\.bad"):
                ck.save(1)
        else:
            with pytest.raises(cairn.UnsupportedError, match=r"rank 1 .*extra\.bad"):
                ck.save(1).durable.result(60)
        dist.barrier()
        assert ck.restore() is None
        extra["bad"] = 1
        ck.save(2).durable.result(60)  # the next one is whole
        assert ck.restore().step == 2


def annotate(rank, world, url):
    with Checkpointer(url, {"x": torch.ones(3)}, on_error="raise") as ck:
        ck.save(4, metrics={"loss": 2.0})
        ck.annotate(4, metrics={"eval": 0.5 + rank}, tags=["best"])  # waits for the save
        with pytest.raises(cairn.CairnError) if rank == 0 else warnings.catch_warnings():
            ck.annotate(5, metrics={"eval": 1.0})
    with cairn.Client(url, read_only=True) as client:
        return [rank, {key: float(value) for key, value in client.list()[0].metrics.items()}, client.list()[0].tags]


def identity(rank, world, url, launch):
    """What an elastic agent sets says nothing: the counts differ between ranks, the names are the same for two
    launches. The token is one for all ranks and another for each launch."""
    os.environ.update(TORCHELASTIC_RUN_ID="none", TORCHELASTIC_RESTART_COUNT=str(rank), GROUP_RANK=str(rank))
    try:
        with Checkpointer(url, {"n": torch.ones(2)}, on_error="raise") as ck:
            restored = ck.restore()
            return [restored and restored.step, ck.save(launch).durable.result(60).term]
    finally:
        for name in ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "GROUP_RANK"):
            del os.environ[name]


def stalled(rank, world, url):
    """A job that hangs while its successor, of the same names, has taken over: it wakes up and is fenced, all ranks,
    until it restores."""
    old = Checkpointer(url, {"n": torch.ones(2)}, on_error="warn")
    for step in (10, 12):
        old.save(step).durable.result(60)
        with Checkpointer(url, {"n": torch.ones(2)}, on_error="raise") as new:
            assert new.restore().step == step
            new.save(step + 1).durable.result(60)
        dist.barrier()
        with pytest.raises(cairn.FencedError):
            old.save(step + 1).durable.result(60)
        if step == 10:
            with pytest.raises(cairn.FencedError):
                old.save(12)
            assert old.restore().step == 11  # it is the one that shall go on, says somebody
    with pytest.raises(cairn.FencedError):
        old.close()
    dist.barrier()


def shards(world):
    mesh = init_device_mesh("cpu", (world,))
    return DTensor.from_local(torch.zeros(1000), mesh, [Shard(0)], run_check=False)


def shards_save(rank, world, url):
    tensor = shards(world)
    with Checkpointer(url, {"x": {"t": tensor}}, on_error="raise") as ck:
        for step in range(3):
            tensor.to_local().fill_(step * 10 + rank)
            ck.save(step).durable.result(60)


def shards_restore(rank, world, url):
    """One rank's part of the newest is damaged: all take the one before. Asked for by number: an error on all, and the
    state is unusable until a restore that ends well."""
    tensor = shards(world)
    with Checkpointer(url, {"x": {"t": tensor}}, on_error="raise") as ck:
        restored = ck.restore()
        assert (restored.step, restored.fell_back) == (1, True), restored
        assert tensor.to_local().unique().tolist() == [10 + rank]
        with pytest.raises(cairn.CairnError):
            ck.restore(2)
        dist.barrier()
        assert ck.restore(0).step == 0
        assert tensor.to_local().unique().tolist() == [rank]
        ck.save(7).durable.result(60)


def outlives(rank, world, url, meet):
    """torch.distributed ends and begins anew under a Checkpointer that has a process_group: it goes on."""
    pair = dist.new_group(list(range(world)))
    state = {"w": torch.zeros(3)}
    with Checkpointer(url, state, process_group=pair, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        dist.destroy_process_group()
        assert not ck.should_stop(1)
        dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
        if rank == 0:
            ck.request_stop()
        state["w"].fill_(2)
        ck.save(2).durable.result(60)
        stops = [ck.should_stop(step) for step in (2, 3, 4)]
        assert stops[-1] and not stops[0]
        state["w"].fill_(0)
        assert ck.restore().step == 2 and state["w"].tolist() == [2.0] * 3
    with Checkpointer(url, state, on_error="raise") as ck:
        assert ck.restore().step == 2


def uneven_groups(rank, world, url):
    """One rank has made more groups than the other, as ranks do that are in several meshes."""
    for _ in range(3 if rank == 0 else 0):
        dist.new_group([0], use_local_synchronization=True)
    pair = dist.new_group(list(range(world)))
    for _ in range(2):
        with Checkpointer(url, {"w": torch.ones(2)}, process_group=pair, on_error="raise") as ck:
            ck.restore()
            ck.save(1 + _).durable.result(60)


def paced(rank, world, url):
    """Gives the steps at which this rank saved. A step takes a second on rank 0's clock, more on rank 1's, whose first
    answer would be another one."""
    saved, now = [], [0.0]
    with Checkpointer(url, {"w": torch.zeros(3)}, on_error="raise", interval=10.0) as ck:
        ck._pacer._clock = lambda: now[0]
        ck._pacer._ended = now[0]
        for step in range(60):
            now[0] += 1 if rank == 0 else 50
            if ck.should_save(step):
                ck.save(step).durable.result(60)
                saved.append(step)
    return saved
