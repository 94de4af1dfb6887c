# SPDX-License-Identifier: Apache-2.0
"""Several ranks come in and go out through DCP's door and through Checkpointer's (cases for ranks.py)."""

import warnings

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import cases_layouts as layouts
import cases_stages as stages
from cairn.dcp import Reader, Writer
from cairn.torch import CairnWarning, Checkpointer, per_rank


def build(world, start):
    """A model whose rows do not come out even over two ranks, its optimizer and scheduler, and values."""
    torch.manual_seed(start)
    model = torch.nn.Sequential(torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3))
    if world > 1:
        mesh = init_device_mesh("cpu", (world,))
        fully_shard(model[0], mesh=mesh)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01 * (1 + start))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2 + start)
    return {"model": model, "optim": optimizer, "sched": scheduler,
            "extra": {"epoch": start, "seen": torch.arange(4) * (start + 1), "names": ["a", str(start)]}}


def train(state, steps):
    for _ in range(steps):
        torch.manual_seed(state["extra"]["epoch"])
        state["model"](torch.randn(5, 6)).pow(2).mean().backward()
        state["optim"].step()
        state["optim"].zero_grad()
        state["sched"].step()


def as_dcp(state):
    model, optim = get_state_dict(state["model"], state["optim"])
    return {"model": model, "optim": optim, "sched": state["sched"].state_dict(), "extra": state["extra"]}


def put_back(state, loaded):
    set_state_dict(state["model"], state["optim"], model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
    state["sched"].load_state_dict(loaded["sched"])


def load(url, state, step, group=None):
    train(state, 1)  # get_state_dict wants optimizer state that is there
    loaded = as_dcp(state)
    dcp.load(loaded, checkpoint_id=f"step-{step}", storage_reader=Reader(url), process_group=group)
    put_back(state, loaded)


def text(value):
    """All of a state as a text, bits included, whatever the ranks hold of it."""
    if isinstance(value, torch.Tensor):
        whole = value.full_tensor() if hasattr(value, "full_tensor") else value
        return f"{whole.dtype}{list(whole.shape)}{whole.detach().contiguous().view(-1).view(torch.uint8).tolist()}"
    if isinstance(value, dict):
        return "{" + ",".join(f"{key}:{text(item)}" for key, item in sorted(value.items(), key=lambda pair: str(pair[0]))) + "}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}[" + ",".join(map(text, value)) + "]"
    return f"{type(value).__name__}:{value!r}"


def view(state):
    params = [param for group in state["optim"].param_groups for param in group["params"]]
    return text({"model": dict(state["model"].state_dict()), "state": [dict(state["optim"].state[param]) for param in params],
                 "groups": [{k: v for k, v in group.items() if k != "params"} for group in state["optim"].param_groups],
                 "sched": state["sched"].state_dict(), "extra": state["extra"]})


def in_by_dcp(rank, world, url, step):
    """Loads by DCP, and saves what was loaded by DCP as the next step."""
    group = dist.new_group(backend="gloo")
    state = build(world, 5)
    load(url, state, step, group)
    writer = Writer(url, process_group=group)
    dcp.save(as_dcp(state), checkpoint_id=f"step-{step + 1}", storage_writer=writer, process_group=group)
    writer.close()
    return view(state)


def in_by_checkpointer(rank, world, url, step):
    state = build(world, 5)
    with warnings.catch_warnings(record=True) as told, Checkpointer(url, state, on_error="raise") as ck:
        warnings.simplefilter("always")
        assert ck.restore().step == step
        ck.save(step + 1).durable.result(60)
    return {"view": view(state), "told": [str(item.message) for item in told]}


class Loader:
    def __init__(self, at):
        self.at = at

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


def own_state(rank, world, url):
    """A rank's own state goes out by Checkpointer and comes in by DCP on the same ranks, and not the other way."""
    group = dist.new_group(backend="gloo")
    with Checkpointer(url, {"loader": per_rank(Loader(10 + rank)), "x": torch.ones(2) * rank}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
    back = {"loader": Loader(0).state_dict()}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    writer = Writer(url, process_group=group)
    dcp.save(back, checkpoint_id="step-2", storage_writer=writer, process_group=group)
    writer.close()
    said = ""
    with Checkpointer(url, {"loader": per_rank(Loader(0))}, on_error="raise") as ck:
        try:
            ck.restore()
        except Exception as error:  # the test reads its text
            said = str(error)
    return {"back": back["loader"]["at"], "said": said}


def own_options(rank, world, url):
    """What each rank holds of an optimizer and a scheduler comes in by DCP as it went out."""
    group = dist.new_group(backend="gloo")

    def job(lr):
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.Adam(model.parameters(), lr=lr)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        return model, optimizer

    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, optimizer = job(0.5)
    optimizer.param_groups[0]["lr"] = 0.1 * (rank + 1)
    with Checkpointer(url, {"optim": optimizer, "model": model}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
    loaded = {"optim": job(7.0)[1].state_dict()}
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    return {"lr": loaded["optim"]["param_groups"][0]["lr"], "same": text(loaded["optim"]["state"]) == text(optimizer.state_dict()["state"])}


def own_stage(rank, world, url):
    """What a stage holds under everybody's name comes in by DCP on that stage."""
    group = dist.new_group(backend="gloo")
    model = torch.nn.ModuleDict({f"stage{rank}": torch.nn.Linear(2, 2)})
    with Checkpointer(url, {"model": model, "extra": {"seen": list(range(rank, rank + 8000))}}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
    loaded = {"extra": {"seen": []}}
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    return loaded["extra"]["seen"][0]


def own_tensors(rank, world, url):
    """Small tensors outside models are each rank's own, and a large one that differs is named."""
    group = dist.new_group(backend="gloo")
    big = torch.zeros(1 << 20)
    state = {"t": torch.full((64,), float(rank)), "extra": {"a": numpy.full(3, rank)}, "big": big, "huge": ["x" * 1000 + str(rank)] * 2000}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        big.fill_(float(rank))
        ck.save(2).durable.result(60)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        dcp.load({"huge": []}, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    assert any("huge: when this was saved" in str(item.message) for item in told) == (rank > 0)
    loaded, said = {"t": torch.zeros(64), "extra": {"a": None}, "big": torch.ones(1 << 20)}, ""
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    assert not loaded["big"].any()
    try:
        dcp.load({"big": big}, checkpoint_id="step-2", storage_reader=Reader(url), process_group=group)
    except dcp.api.CheckpointException as error:
        said = str(error)
    return loaded["t"].tolist() == [rank] * 64 and loaded["extra"]["a"].tolist() == [rank] * 3, "big: when this was saved" in said


def cast(rank, world, url):
    """A whole checkpoint of float32 into shards of bfloat16, once read by each rank and once shared."""
    state = build(world, 4)
    state["model"].to(torch.bfloat16)
    for share in (None, "broadcast"):
        with Checkpointer(url, {"model": state["model"]}, on_error="raise") as ck:
            assert len(ck.restore(1, only=["model"], share=share, cast=True).cast) == 4
    return text(list(state["model"].parameters()))


def layouts_through_both(rank, world, url, layout):
    """What Checkpointer saved in a layout comes in by DCP, and what DCP saves of it is restored into the layout. DCP has nothing to
    say of ZeRO's shares, so there it is DDP on its side."""
    group = dist.new_group(backend="gloo")
    model, optimizer = layouts.make(layout, world, 0)
    layouts.train(model, optimizer, 2)
    with layouts.open_ck(url, model, optimizer) as ck:
        ck.save(1).durable.result(60)
    right = text(layouts.whole_state(model, optimizer))
    other, back = layouts.make("ddp" if layout == "zero" else layout, world, 1)
    layouts.train(other, back, 1)  # get_state_dict wants optimizer state that is there
    loaded = dict(zip(("model", "optim"), get_state_dict(other, back)))
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    set_state_dict(other, back, model_state_dict=loaded["model"], optim_state_dict=loaded["optim"])
    assert text(layouts.whole_state(other, back)) == right
    writer = Writer(url, process_group=group)
    dcp.save(dict(zip(("model", "optim"), get_state_dict(other, back))), checkpoint_id="step-2", storage_writer=writer, process_group=group)
    writer.close()
    again, last = layouts.make(layout, world, 2)
    with warnings.catch_warnings(), layouts.open_ck(url, again, last) as ck:
        warnings.simplefilter("ignore", CairnWarning)
        assert ck.restore().step == 2
    assert text(layouts.whole_state(again, last)) == right


def stages_through_both(rank, world, url, sharded):
    """Pipeline stages of two ranks each. Their options are flattened, because DCP has one list of groups for all ranks."""
    group = dist.new_group(backend="gloo")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))["dp"] if sharded else None
    names, options = stages.STAGES[rank // 2], StateDictOptions(flatten_optimizer_state_dict=True)

    def as_flat(state):
        return {**dict(zip(("model", "optim"), get_state_dict(state["model"], state["optim"], options=options))),
                "sched": state["sched"].state_dict(), "extra": state["extra"]}

    with Checkpointer(url, stages.stage_state(names, 0, 0.5, mesh), on_error="raise") as ck:
        ck.save(1).durable.result(60)
    back = stages.stage_state(names, 7, 0.1, mesh)
    loaded = as_flat(back)
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url), process_group=group)
    set_state_dict(back["model"], back["optim"], model_state_dict=loaded["model"], optim_state_dict=loaded["optim"], options=options)
    back["sched"].load_state_dict(loaded["sched"])
    assert text(stages.view(back)) == text(stages.expected(names))
    writer = Writer(url, process_group=group)
    dcp.save(as_flat(back), checkpoint_id="step-2", storage_writer=writer, process_group=group)
    writer.close()
    again = stages.stage_state(names, 3, 0.2, mesh)
    with warnings.catch_warnings(), Checkpointer(url, again, on_error="raise") as ck:
        warnings.simplefilter("ignore", CairnWarning)
        assert ck.restore().step == 2
    assert text(stages.view(again)) == text(stages.expected(names))
