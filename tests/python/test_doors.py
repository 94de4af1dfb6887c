# SPDX-License-Identifier: Apache-2.0
"""One checkpoint has two doors: what Checkpointer saves is loaded by torch.distributed.checkpoint through cairn.dcp, and what DCP saves
is restored by Checkpointer, bit for bit, values that are no tensors included."""

import collections

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict

import cairn
import cases_doors as doors
from bed import assert_same, one_step, optimizer_view, restore, save, small_model
from cairn.dcp import Reader, Writer
from cairn.torch import CairnWarning


class Head(torch.nn.Linear):
    """A module with extra state."""

    note = {"seen": 0, "names": ["a"]}

    def get_extra_state(self):
        return self.note

    def set_extra_state(self, state):
        self.note = state


class Tied(torch.nn.Module):
    def __init__(self, start):
        super().__init__()
        torch.manual_seed(start)
        self.embed, self.body, self.head = torch.nn.Embedding(5, 6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 5, bias=False)
        self.norm, self.last = torch.nn.BatchNorm1d(6), Head(6, 6)
        self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.last(self.norm(self.body(x))))


def job(start, steps=0):
    model = Tied(start)
    optimizer = torch.optim.AdamW([{"params": model.body.parameters(), "lr": 0.01 * (1 + start)},
                                   {"params": [p for n, p in model.named_parameters() if "body" not in n]}], lr=0.02)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2 + start)
    for _ in range(steps):
        loss = model(torch.randn(5, 6)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
    extra = {"epoch": start, "big": 1 << 90, "best": float("nan") if start else 0.5, "names": ["x", str(start)], "empty": {},
             "ema": torch.randn(3, dtype=torch.float64), "list": [{"t": torch.randn(2)}, {"t": torch.randn(1, 2)}],
             "order": collections.OrderedDict(a=(start, 2), b=None)}
    if steps:
        model.last.note = {"seen": steps, "names": ["b", "c"]}
    return {"model": model, "optim": optimizer, "sched": scheduler, "extra": extra}


def view(state):
    return {"model": {k: v for k, v in state["model"].state_dict().items()}, "optim": optimizer_view(state["optim"]),
            "sched": state["sched"].state_dict(), "extra": state["extra"]}


def test_dcp_loads_what_checkpointer_saved(url):
    right = job(0, 3)
    save(url, right, step=7)
    back = job(1, 1)
    loaded = doors.as_dcp(back)
    dcp.load(loaded, checkpoint_id="step-7", storage_reader=Reader(url))
    doors.put_back(back, loaded)
    assert_same(view(back), view(right))


def test_checkpointer_restores_what_dcp_saved(url):
    right = job(0, 3)
    dcp.save(doors.as_dcp(right), checkpoint_id="step-7", storage_writer=Writer(url))
    back = job(1, 1)
    with pytest.warns(CairnWarning, match="stores no RNGs"):
        assert restore(url, back).step == 7
    assert_same(view(back), view(right))
    with pytest.warns(CairnWarning, match="stores no RNGs"):
        fresh = job(1)  # an optimizer without state
        restore(url, fresh)
    assert_same(view(fresh), view(right))


def test_a_run_goes_through_both_doors_in_turn(url):
    right = job(0, 2)
    save(url, right, step=1)
    loaded = doors.as_dcp(job(1, 1))
    dcp.load(loaded, checkpoint_id="latest", storage_reader=Reader(url))
    dcp.save(loaded, checkpoint_id="step-2", storage_writer=Writer(url))
    back = job(1)
    with pytest.warns(CairnWarning):
        assert restore(url, back).step == 2
    assert_same(view(back), view(right))
    with cairn.Client(url, read_only=True) as client:
        assert [(item.step, item.parent) for item in client.list()] == [(2, (1, 1)), (1, None)]


def test_fsdp2_ranks_go_in_by_dcp_where_one_came_out_by_checkpointer(url, ranks2):
    """1 rank by Checkpointer, 2 by DCP, 1 by Checkpointer."""
    right = doors.build(1, 0)
    doors.train(right, 3)
    save(url, right, step=1)
    assert ranks2.run("cases_doors.in_by_dcp", url=url, step=1) == [doors.view(right)] * 2
    back = doors.build(1, 3)
    with pytest.warns(CairnWarning, match="stores no RNGs"):
        assert restore(url, back).step == 2
    assert doors.view(back) == doors.view(right)


def test_fsdp2_ranks_go_in_by_checkpointer_where_one_came_out_by_dcp(url, ranks2):
    """1 rank by DCP, 2 by Checkpointer, 1 by DCP."""
    right = doors.build(1, 0)
    doors.train(right, 3)
    dcp.save(doors.as_dcp(right), checkpoint_id="step-1", storage_writer=Writer(url))
    for row in ranks2.run("cases_doors.in_by_checkpointer", url=url, step=1):
        assert row["view"] == doors.view(right) and "stores no RNGs" in row["told"][0]
    back = doors.build(1, 3)
    doors.load(url, back, 2)
    assert doors.view(back) == doors.view(right)


def test_a_ranks_own_state_is_given_to_its_rank_or_refused_by_name(url, ranks2):
    for rank, row in enumerate(ranks2.run("cases_doors.own_state", url=url)):
        assert row["back"] == 10 + rank
        assert "loader: its state belongs to each rank" in row["said"] and "on_reshape" in row["said"]
    with pytest.raises(CheckpointException, match="loader: its state belongs to each of the 2 ranks that saved, but 1 load now"):
        dcp.load({"loader": {"at": 0}}, checkpoint_id="step-1", storage_reader=Reader(url))


def test_each_rank_gets_its_own_options_of_an_optimizer(url, ranks2):
    assert ranks2.run("cases_doors.own_options", url=url) == [{"lr": 0.1 * (rank + 1), "same": True} for rank in range(2)]
    loaded = {"optim": torch.optim.Adam(torch.nn.Linear(3, 2).parameters(), lr=7.0).state_dict()}
    with pytest.warns(CairnWarning, match="optim: when this was saved, rank 1 held something else than rank 0"):
        dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url))
    assert loaded["optim"]["param_groups"][0]["lr"] == 0.1


def test_tensors_that_differ_come_to_their_ranks_or_are_named(url, ranks2):
    assert ranks2.run("cases_doors.own_tensors", url=url) == [[True, True]] * 2


def test_each_rank_gets_what_its_own_stage_held(url, ranks2):
    assert ranks2.run("cases_doors.own_stage", url=url) == [0, 1]
    with pytest.warns(CairnWarning, match="extra: the stages held different ones"):
        dcp.load({"extra": {"seen": []}}, checkpoint_id="step-1", storage_reader=Reader(url))


@pytest.mark.parametrize("layout", ["zero", "fsdp1", "hybrid1", "hsdp", "fsdp2+tp"])
def test_layouts_go_through_both_doors(url, ranks4, layout):
    ranks4.run("cases_doors.layouts_through_both", url=url, layout=layout)


@pytest.mark.parametrize("sharded", [False, True])
def test_pipeline_stages_go_through_both_doors(url, ranks4, sharded):
    ranks4.run("cases_doors.stages_through_both", url=url, sharded=sharded)


def test_optimizers_are_found_as_pytorch_spells_them(url):
    """By number, as optimizer.state_dict() counts parameters, and flattened."""
    model = small_model()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.3)
    one_step(model, optimizer)
    save(url, {"model": model, "optim": optimizer}, step=1)
    other = small_model(9)
    plain = torch.optim.Adam(other.parameters(), lr=0.1)
    one_step(other, plain)
    loaded = {"model": {f"module.{name}": value for name, value in other.state_dict().items()}, "optim": plain.state_dict()}
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url))
    plain.load_state_dict({"state": {idx: loaded["optim"]["state"][idx] for idx in range(4)},
                           "param_groups": loaded["optim"]["param_groups"]})
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(optimizer_view(plain), optimizer_view(optimizer))
    flat = {"optim": get_state_dict(other, plain, options=StateDictOptions(flatten_optimizer_state_dict=True))[1]}
    flat["optim"] = {key: torch.zeros_like(value) if isinstance(value, torch.Tensor) else None for key, value in flat["optim"].items()}
    dcp.load(flat, checkpoint_id="step-1", storage_reader=Reader(url))
    assert flat["optim"]["param_groups.0.weight.lr"] == 0.3 and "state.2.bias.exp_avg" in flat["optim"]
    assert torch.equal(flat["optim"]["state.2.bias.exp_avg"], optimizer.state[model[2].bias]["exp_avg"])
    for step, saved in ((2, {"model": loaded["model"], "optim": plain.state_dict()}), (3, {"model": other.state_dict(), **flat})):
        dcp.save(saved, checkpoint_id=f"step-{step}", storage_writer=Writer(url))
        third = small_model(4)
        back = torch.optim.Adam(third.parameters(), lr=0.7)
        restore(url, {"model": third, "optim": back}, step=step)
        assert_same(dict(third.state_dict()), dict(model.state_dict()))
        assert_same(optimizer_view(back), optimizer_view(optimizer))


def numbered(groups, value=0.0):
    """Parameters whose names are numbers, in an optimizer that counts them in another order, and two groups."""
    model = torch.nn.ParameterList([torch.full((2 + shape,), value) for shape in (0, 0, 0, 1)])
    optimizer = torch.optim.Adam([{"params": [model[idx] for idx in group], "lr": value + 0.1 * g} for g, group in enumerate(groups)])
    for idx, param in enumerate(model):
        param.grad = torch.full_like(param, value + idx + 1)
    optimizer.step()
    return model, optimizer


def flat_of(model, optimizer):
    return get_state_dict(model, optimizer, options=StateDictOptions(flatten_optimizer_state_dict=True))[1]


def named_of(model, optimizer):
    return get_state_dict(model, optimizer)[1]


def plain_of(model, optimizer):
    return optimizer.state_dict()


def put_optimizer(model, optimizer, loaded, way):
    if way is plain_of:
        optimizer.load_state_dict(loaded)
    else:
        set_state_dict(model, optimizer, model_state_dict=model.state_dict(), optim_state_dict=loaded,
                       options=StateDictOptions(flatten_optimizer_state_dict=way is flat_of))


@pytest.mark.parametrize("way", [plain_of, named_of, flat_of])
def test_numbers_as_names_of_parameters_are_not_taken_for_their_places(url, way):
    """What is in the live param_groups, or in the stored ones, says whether "0" is a name."""
    groups = ([2, 1, 0], [3]) if way is plain_of else ([3, 1], [2, 0])  # a place holds a tensor of its name's size, or DCP refuses it
    model, optimizer = numbered(groups, 0.5)
    right = optimizer_view(optimizer)
    save(url, {"model": model, "optim": optimizer}, step=1)
    other, back = numbered(groups)
    loaded = {"optim": way(other, back)}
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url))
    put_optimizer(other, back, loaded["optim"], way)
    assert_same(optimizer_view(back), right)
    dcp.save({"model": model.state_dict(), "optim": way(model, optimizer)}, checkpoint_id="step-2", storage_writer=Writer(url))
    third, back = numbered(groups)
    with pytest.warns(CairnWarning, match="stores no RNGs"):
        restore(url, {"model": third, "optim": back}, step=2)
    assert_same(optimizer_view(back), right)


@pytest.mark.parametrize("wanted", [{"k": {"a.b": torch.zeros(2)}}, {"e": {1: torch.zeros(1)}}])
def test_a_name_that_two_entries_have_in_dcp_is_an_error(url, wanted):
    save(url, {"k": {"a.b": torch.ones(2), "a": {"b": torch.full((2,), 2.)}, "c": 3}, "e": {1: torch.ones(1), "1": torch.zeros(1)}}, step=1)
    with pytest.raises(CheckpointException, match=r"(k\.a\.b|e\.1): two entries of the saved state have this name in DCP"):
        dcp.load(wanted, checkpoint_id="step-1", storage_reader=Reader(url))
    others = {"k": {"c": 0}}
    dcp.load(others, checkpoint_id="step-1", storage_reader=Reader(url))
    assert others == {"k": {"c": 3}}


def test_a_number_that_may_be_a_name_or_a_place_is_an_error(url):
    model, optimizer = numbered(([2, 1, 0], [3]), 0.5)
    save(url, {"model": model, "optim": optimizer}, step=1)
    alone = {"optim": {"state": optimizer.state_dict()["state"]}}
    with pytest.raises(CheckpointException, match=r"optim.state.0.step: parameters of optim have numbers for names.*load its param_groups"):
        dcp.load(alone, checkpoint_id="step-1", storage_reader=Reader(url))
    dcp.save({"model": model.state_dict(), **alone}, checkpoint_id="step-2", storage_writer=Writer(url))
    with pytest.raises(cairn.InvalidError, match="'0' may be the number of model.2 or the name of model.0: save the param_groups"):
        restore(url, {"model": model, "optim": optimizer}, step=2)


def test_what_cannot_be_carried_over_is_an_error_that_says_what_to_do(url):
    dcp.save({"odd": {1, 2}, "set": complex}, checkpoint_id="step-1", storage_writer=Writer(url, allow_opaque=True))
    with pytest.raises(cairn.UnsupportedError, match=r"set: DCP has saved it as an opaque pickle.*restore\(only="):
        restore(url, {"odd": {3}, "set": 1})
    with cairn.torch.Checkpointer(url, {"odd": {3}}) as ck:
        ck.restore(only=["odd"])
        assert ck.state["odd"] == {1, 2}
    with pytest.raises(cairn.MissingTensorError, match="the checkpoint lacks model, more;"):
        restore(url, {"odd": {3}, "model": small_model(), "more": {"a": 1}}, only=["model", "more"])
    torn = Tied(0)
    dcp.save({"model": {**torn.state_dict(), "head.weight": torch.zeros(5, 6)}}, checkpoint_id="step-2", storage_writer=Writer(url))
    with pytest.raises(cairn.DigestMismatchError, match="stored with different contents"):
        restore(url, {"model": Tied(1)}, step=2)


def test_sparse_tensors_and_components_come_in_by_dcp(url):
    sparse = torch.tensor([[0., 1.], [2., 0.]]).to_sparse()
    low = torch.arange(6, dtype=torch.uint8).view(torch.uint4)
    save(url, {"extra": {"s": sparse, "b": 1, "low": low}}, step=1)
    loaded = {"extra": {"s": torch.zeros(2, 2).to_sparse(), "b": 0}}
    dcp.load(loaded, checkpoint_id="step-1", storage_reader=Reader(url))
    with pytest.raises(CheckpointException, match="extra.low: PyTorch pickles no torch.uint4"):
        dcp.load({"extra": {"low": low}}, checkpoint_id="step-1", storage_reader=Reader(url))
    assert torch.equal(loaded["extra"]["s"].to_dense(), sparse.to_dense()) and loaded["extra"]["b"] == 1
