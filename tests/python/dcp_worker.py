# SPDX-License-Identifier: Apache-2.0
"""One rank of the tests of cairn.dcp, a case for ranks.py: runs the scenarios that are named. The group that saves is a gloo group
made for it, never the trainer's own."""

import logging
import os
import pathlib
import signal
import traceback

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor

import cairn
from cairn.client import RELEASED, Operation
from cairn.dcp import Reader, Writer, async_save, session, stager


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def same(a, b):
    return a.keys() == b.keys() and all(
        torch.equal(whole(a[key]), whole(b[key])) if isinstance(b[key], torch.Tensor) else a[key] == b[key]
        for key in b)


def emptied(state):
    return {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for key, value in state.items()}


def tensors(mesh, scale=1.0):
    """The same whole tensors in every world, sharded over the mesh: rows, uneven rows, columns, fewer rows than ranks."""
    rows, uneven = torch.arange(48.).reshape(12, 4) * scale, torch.arange(35.).reshape(7, 5) * scale
    return {"rows": distribute_tensor(rows, mesh, [Shard(0)]), "uneven": distribute_tensor(uneven, mesh, [Shard(0)]),
            "columns": distribute_tensor(uneven.clone(), mesh, [Shard(1)]),
            "few": distribute_tensor(torch.full((1, 3), 7. * scale), mesh, [Shard(0)]),
            "replicated": distribute_tensor(rows.clone(), mesh, [Replicate()]), "plain": torch.arange(10) + 1,
            "other": torch.ones(3, dtype=torch.bfloat16) * scale, "lr": 0.5 * scale}


def model(mesh):
    torch.manual_seed(11)
    net = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.Linear(10, 5))
    for layer in net:
        fully_shard(layer, mesh=mesh)
    fully_shard(net, mesh=mesh)
    return net


def raised(call):
    """The exception's text where DCP raised on this rank, with the names of the errors inside."""
    try:
        call()
    except CheckpointException as error:
        return "; ".join(f"rank {rank}: {type(inner[0]).__name__}: {inner[0]}"
                         for rank, inner in error.failures.items())
    return None


def listed(url):
    with cairn.Client(url, read_only=True) as client:
        return [(item.term, item.step) for item in client.list()]


def arenas():
    """How many arenas this process has."""
    maps = pathlib.Path("/proc/self/maps").read_text()
    return len({line.split()[4] for line in maps.splitlines() if "memfd:cairn" in line and "arena" in line})


class Scenarios:
    def __init__(self, rank, world, prefix, meet):
        self.rank, self.world, self.prefix, self.meet = rank, world, prefix, meet
        self.group = dist.new_group(backend="gloo")
        self.mesh = init_device_mesh("cpu", (world,))

    def url(self, name):
        return f"{self.prefix}-{name}"

    def writer(self, name, **options):
        return Writer(self.url(name), process_group=self.group, **options)

    def save(self, state, step, writer, **options):
        dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=writer, process_group=self.group, **options)

    def load(self, state, step, name, **options):
        dcp.load(state, checkpoint_id=f"step-{step}", storage_reader=Reader(self.url(name)), process_group=self.group,
                 **options)
        return state

    def round_trip(self):
        state, writer = tensors(self.mesh), self.writer("shared")
        self.save(state, 1, writer)
        back = self.load(emptied(state), 1, "shared")
        return {"same": same(back, state), "committed": writer.last is not None}

    def reshard(self):
        """Loads what a world of another size saved."""
        return {"same": same(self.load(emptied(tensors(self.mesh)), 1, "shared"), tensors(self.mesh))}

    def meshes(self):
        """HSDP, two shards, and FSDP over tensor parallel with uneven rows: saved in one layout, loaded in another."""
        mesh = init_device_mesh("cpu", (2, self.world // 2), mesh_dim_names=("a", "b"))
        value, out = torch.arange(70.).reshape(7, 10), {}
        layouts = {"hsdp": [Replicate(), Shard(0)], "grid": [Shard(0), Shard(1)], "columns": [Shard(1), Shard(1)],
                   "swapped": [Shard(1), Replicate()]}
        state = {name: distribute_tensor(value.clone(), mesh, layout) for name, layout in layouts.items()}
        self.save(state, 1, self.writer("meshes"))
        names = list(layouts)
        for shift in (0, 1):
            back = {name: distribute_tensor(torch.zeros(7, 10), mesh, layouts[names[idx - shift]])
                    for idx, name in enumerate(names)}
            self.load(back, 1, "meshes")
            out[shift] = all(torch.equal(item.full_tensor(), value) for item in back.values())
        return {"same": out[0] and out[1]}

    def partial(self):
        wanted = {"columns": torch.zeros(7, 5), "lr": None}
        self.load(wanted, 1, "shared")
        return {"same": torch.equal(wanted["columns"], torch.arange(35.).reshape(7, 5)) and wanted["lr"] == 0.5}

    def fsdp_save(self):
        net = model(self.mesh)
        self.save({"model": net.state_dict()}, 3, self.writer("fsdp"))
        return {}

    def fsdp_load(self):
        net = model(self.mesh)
        right = {key: whole(value) for key, value in net.state_dict().items()}
        state = {"model": {key: torch.zeros_like(value) for key, value in net.state_dict().items()}}
        self.load(state, 3, "fsdp")
        return {"same": all(torch.equal(whole(state["model"][key]), right[key]) for key in right)}

    def failing_rank(self):
        """Rank 1 cannot resolve a tensor: all raise, nothing is listed, the next try of the step succeeds."""
        class Planner(DefaultSavePlanner):
            fail = self.rank == 1

            def resolve_data(planner, item):
                if planner.fail:
                    raise OSError("the disk of rank 1 is gone")
                return super().resolve_data(item)

        state, writer = tensors(self.mesh), self.writer("failing")
        text = raised(lambda: self.save(state, 5, writer, planner=Planner()))
        dist.barrier(self.group)
        before = listed(self.url("failing"))
        self.save(state, 5, writer)
        back = self.load(emptied(state), 5, "failing")
        return {"text": text, "before": before, "after": listed(self.url("failing")), "same": same(back, state)}

    def interrupted(self):
        """Ctrl-C on rank 0 while it waits for the commit: all ranks raise, and the state may change on all of them at once."""
        state, writer, result, ops = tensors(self.mesh), self.writer("interrupted"), Operation.result, []
        Operation.result = lambda op: ops.append(op) or signal.default_int_handler(signal.SIGINT, None)
        text = raised(lambda: self.save(state, 5, writer))
        Operation.result = result
        copied = writer._session(self.url("interrupted"))._op.wait(RELEASED, 0) if self.rank else ops[0].done()
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.add_(1)
        self.save(state, 6, writer)
        back = self.load(emptied(state), 6, "interrupted")
        return {"text": text, "copied": copied, "same": same(back, state), "listed": listed(self.url("interrupted"))}

    def unsupported_value(self):
        state = {**tensors(self.mesh), f"odd{self.rank}": object() if self.rank == 1 else 1}
        return {"text": raised(lambda: self.save(state, 6, self.writer("unsupported"))),
                "listed": listed(self.url("unsupported"))}

    def server_fails(self):
        """finish fails on rank 0 only: all ranks hear of it."""
        state, writer = tensors(self.mesh), self.writer("twice")
        self.save(state, 1, writer)
        return {"text": raised(lambda: self.save(state, 1, writer)), "listed": listed(self.url("twice"))}

    def caching(self):
        """Two planners of one class with caching on, a type that changed, a failure, then a retry."""
        class Planner(DefaultSavePlanner):
            pass

        def planner():
            return Planner(enable_plan_caching=True)

        writer, other, out = self.writer("cached"), self.writer("cached-ema"), {}
        for step in (1, 2, 3):
            self.save(tensors(self.mesh, step), step, writer, planner=planner())
            self.save({"ema": torch.ones(4) * step}, step, other, planner=planner())
        out["same"] = all(same(self.load(emptied(tensors(self.mesh)), step, "cached"), tensors(self.mesh, step))
                          and float(self.load({"ema": torch.zeros(4)}, step, "cached-ema")["ema"][0]) == step
                          for step in (1, 2, 3))
        for step in (4, 5):
            self.save(tensors(self.mesh, step), step, writer, planner=planner())
        changed = {key: value.to(torch.bfloat16) if key in ("rows", "plain") else value
                   for key, value in tensors(self.mesh, 6).items()}
        out["stale"] = raised(lambda: self.save(changed, 6, writer, planner=planner()))
        self.save(tensors(self.mesh, 6), 6, writer, planner=planner())
        out["retried"] = same(self.load(emptied(tensors(self.mesh)), 6, "cached"), tensors(self.mesh, 6))
        out["listed"] = listed(self.url("cached"))
        return out

    def async_thread(self):
        """One copy, by DCP's own async_save: what would make another is out of order. A rank that fails keeps no caller waiting."""
        state, writer = tensors(self.mesh), self.writer("thread")
        patience, stager.PATIENCE_S = stager.PATIENCE_S, 600.0
        staging, stager.Staging = stager.Staging, None
        for step in (1, 2):
            future = dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer,
                                    process_group=self.group)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.add_(1)  # the trainer goes on; the checkpoint must not see it
            future.result()
        odd = {**tensors(self.mesh), f"odd{self.rank}": object() if self.rank == 1 else 1}
        text = raised(dcp.async_save(odd, checkpoint_id="step-3", storage_writer=writer, process_group=self.group).result)
        writer.should_synchronize_after_execute = False
        future = dcp.async_save(state, checkpoint_id="step-4", storage_writer=writer, process_group=self.group)
        writer.synchronize_staging()
        fourth = {key: value.clone() if isinstance(value, torch.Tensor) else value for key, value in state.items()}
        for value in state.values():
            if isinstance(value, torch.Tensor):
                value.add_(1)
        future.result()
        stager.PATIENCE_S, stager.Staging = patience, staging
        back = self.load(emptied(state), 1, "thread")
        return {"same": same(back, tensors(self.mesh)) and same(self.load(emptied(state), 4, "thread"), fourth), "text": text,
                "listed": listed(self.url("thread"))}

    def async_waves(self):
        """A state four times its arena: the copy ends long after the opening, which waits for no copy."""
        state = {f"t{i}": distribute_tensor(torch.full((1024, 1024), float(i)), self.mesh, [Shard(0)]) for i in range(32)}
        writer = Writer(self.url("waves"), process_group=self.group, arena_bytes=16 << 20)
        future = dcp.async_save(state, checkpoint_id="step-1", storage_writer=writer, process_group=self.group)
        for value in state.values():
            value.mul_(0)
        future.result()
        back = self.load(state, 1, "waves")
        writer.close()
        return {"same": all(bool((value.to_local() == i).all()) for i, value in enumerate(back.values()))}

    def async_arena(self):
        """One copy, into the arena: the trainer goes on, and a rank that cannot collect its state stops all."""
        state, writer = tensors(self.mesh), self.writer("arena")
        for step in (1, 2):
            future = cairn.dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer, process_group=self.group)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.add_(1)
        ended = future.result(60).step
        odd = {**tensors(self.mesh), f"odd{self.rank}": object() if self.rank == 1 else 1}
        text = raised(lambda: cairn.dcp.async_save(odd, checkpoint_id="step-3", storage_writer=writer, process_group=self.group))
        again = cairn.dcp.async_save(state, checkpoint_id="step-2", storage_writer=writer, process_group=self.group)
        twice = str(again.exception(60)) if self.rank == 0 else ""
        again.wait()
        self.save(tensors(self.mesh), 4, writer)  # the same Writer, by DCP's own road
        back = self.load(emptied(state), 1, "arena")
        return {"same": same(back, tensors(self.mesh)), "listed": listed(self.url("arena")), "step": ended, "text": text, "twice": twice}

    def async_process(self):
        """The helper process saves in this rank's name; then a plain save, then the helper again, in one term."""
        state, writer = tensors(self.mesh), self.writer("process")
        for step in (1, 3):
            future = dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer,
                                    process_group=self.group, async_checkpointer_type=AsyncCheckpointerType.PROCESS)
            for value in state.values():
                if isinstance(value, torch.Tensor):
                    value.add_(1)
            future.result()
            self.save(tensors(self.mesh), step + 1, writer)
        back = self.load(emptied(state), 1, "process")
        failing = {**tensors(self.mesh), "odd": (complex,)}
        future = dcp.async_save(failing, checkpoint_id="step-9", storage_writer=writer, process_group=self.group,
                                async_checkpointer_type=AsyncCheckpointerType.PROCESS)
        text = raised(future.result)
        before = listed(self.url("process"))
        for step, loaded in ((20, 2), (21, None), (22, 1)):  # the helper's saves descend from what this process loaded
            if loaded:
                self.load(state, loaded, "process")
            dcp.async_save(state, checkpoint_id=f"step-{step}", storage_writer=writer, process_group=self.group,
                           async_checkpointer_type=AsyncCheckpointerType.PROCESS).result()
        with cairn.Client(self.url("process"), read_only=True) as client:
            parents = [(item.term, item.step, item.parent) for item in client.list()][:3]
        return {"same": same(back, tensors(self.mesh)), "listed": before, "text": text, "parents": parents}

    def no_dist(self):
        state, writer = {"x": torch.ones(2)}, self.writer("nodist")
        alone = raised(lambda: dcp.save(state, checkpoint_id="step-1", storage_writer=writer, no_dist=True))
        other = raised(lambda: dcp.save(state, checkpoint_id="step-1", storage_writer=writer, no_dist=False,
                                        process_group=self.halves()))
        own = Writer(f"{self.url('own')}{self.rank}", rank=0, world_size=1)
        dcp.save(state, checkpoint_id="step-1", storage_writer=own, no_dist=True)
        return {"alone": alone, "other": other, "listed": listed(self.url("nodist")),
                "own": listed(f"{self.url('own')}{self.rank}")}

    def halves(self):
        groups = [dist.new_group([rank], backend="gloo") for rank in range(self.world)]
        return groups[self.rank]

    def lineage(self):
        """What was loaded is the parent of what is saved next, also after going back; a Writer for each save."""
        state, out = tensors(self.mesh), []
        for step in (1, 2):
            self.save(state, step, self.writer("lineage"))
        self.load(state, 1, "lineage")
        self.save(state, 2, self.writer("lineage"))
        with cairn.Client(self.url("lineage"), read_only=True) as client:
            out = [(item.term, item.step, item.parent, item.superseded) for item in client.list()]
        return {"list": out}

    def again(self):
        """torch.distributed is torn down and initialised anew while a save is in flight. Of the ranks of "lineage" one is new, and has
        loaded nothing."""
        old, state = self.writer("again"), tensors(self.mesh)
        saving = async_save(state, checkpoint_id="step-1", storage_writer=old, process_group=self.group)
        out = {"arenas": [arenas()], "loaded": len(session.loads())}
        dist.destroy_process_group()
        dist.init_process_group("gloo", init_method=f"file://{self.meet}", rank=self.rank, world_size=self.world)
        self.__init__(self.rank, self.world, self.prefix, self.meet)
        if self.rank == 1:
            session._loads.clear()
        self.save(tensors(self.mesh), 2, self.writer("again"))
        out["arenas"].append(arenas())
        self.save(tensors(self.mesh), 3, self.writer("lineage"))
        return {**out, "first": saving.result().step, "steps": listed(self.url("again")), "lineage": listed(self.url("lineage")),
                "old": raised(lambda: self.save(state, 3, old))}

    def mismatch(self):
        """Each rank loads by itself; two that found different checkpoints are told so."""
        reader = Reader(self.url("shared"))

        class Shifted(Reader):
            def _identity(inner):
                term, step = super()._identity()
                return (term + 1, step) if self.rank == 1 else (term, step)

        wanted = {"lr": None}
        return {"text": raised(lambda: dcp.load(wanted, checkpoint_id="step-1", process_group=self.group,
                                                storage_reader=Shifted(self.url("shared")))),
                "missing": raised(lambda: dcp.load(wanted, checkpoint_id="step-77", process_group=self.group,
                                                   storage_reader=reader))}


def run(rank, world, prefix, meet, names):
    """What came of each scenario; ``meet`` is a file in which the ranks may meet again."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"  # of the processes that DCP starts
    logging.disable(logging.WARNING)
    scenarios, results = Scenarios(rank, world, prefix, meet), {}
    for name in names:
        try:
            results[name] = getattr(scenarios, name)()
        except BaseException:  # CheckpointException is one; the test shows it
            results[name] = {"error": traceback.format_exc()}
    return results
