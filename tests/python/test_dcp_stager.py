# SPDX-License-Identifier: Apache-2.0
"""The Writer of cairn.dcp stages a true copy for async_save, with ties and views kept, that crosses processes uncopied."""

import collections

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import AsyncStager

import cairn
from bed import assert_same
from cairn.dcp import Reader, Writer
from cairn.dcp.stager import Staging


def state():
    base = torch.arange(1000.)
    return {"w": base, "tied": base, "view": base[10:20], "column": torch.arange(12).reshape(3, 4)[:, 1],
            "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4), "param": torch.nn.Parameter(torch.ones(3)),
            "conj": torch.tensor([1 + 2j]).conj(), "expanded": torch.ones(1).expand(4),
            "nested": [{"x": torch.ones(2)}, (1, "a", torch.zeros(1, dtype=torch.bfloat16))],
            "ordered": collections.OrderedDict(y=torch.ones(1), z=[1])}


def test_torch_17_rule_03_stage_copies_cpu_tensors_views_and_ties():
    source = state()
    staged = Staging(source).state
    before = {key: value.detach().clone() for key, value in source.items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        source["w"].fill_(7)
        source["param"].fill_(7)
    source["ordered"]["z"].append(2)
    assert all(torch.equal(staged[key], value) for key, value in before.items())
    assert staged["tied"].data_ptr() == staged["w"].data_ptr()
    assert staged["view"].data_ptr() == staged["w"].data_ptr() + 40
    assert type(staged["ordered"]) is collections.OrderedDict and staged["ordered"]["z"] == [1]
    assert not staged["param"].requires_grad and staged["nested"][1][2].dtype == torch.bfloat16
    assert staged["nested"][1][:2] == (1, "a")


def test_freed_storages_are_refused():
    """Else the copy would lie in whatever is staged beside it."""
    gone = torch.ones(4)
    gone.untyped_storage().resize_(0)
    with pytest.raises(cairn.UnsupportedValueError, match=r"torch\.float32 \[4\] has no memory"):
        Staging({"w": torch.zeros(8), "gone": gone})


def test_small_views_of_large_storages_are_copied_alone():
    big = torch.zeros(1_000_000)
    assert Staging({"x": big[:10]}).nbytes == 64
    assert 4_000_000 <= Staging({"x": big, "y": big[:10]}).nbytes < 4_000_200


def test_torch_17_staged_memory_is_shared_and_never_used_again():
    first, source = Staging({"x": torch.ones(1000)}).state, {"x": torch.zeros(1000)}
    second = Staging(source).state
    assert first["x"].is_shared() and second["x"].is_shared() and first["x"].sum() == 1000
    with open("/proc/self/maps") as maps:
        assert "memfd:cairn-stage" in maps.read()


def test_torch_17_missing_private_call_is_reported(monkeypatch, caplog):
    import cairn.dcp.stager
    monkeypatch.setattr(cairn.dcp.stager, "_told", False)
    monkeypatch.setattr(torch.UntypedStorage, "_new_shared_fd_cpu", None)
    staged = Staging({"x": torch.ones(10)}).state
    assert staged["x"].sum() == 10 and "copies the state once more" in caplog.text


def test_torch_17_writer_is_the_stager(url):
    writer, tensor = Writer(url), torch.zeros(1000)
    assert isinstance(writer, AsyncStager)
    future = dcp.async_save({"x": tensor}, checkpoint_id="step-1", storage_writer=writer, no_dist=True)
    tensor.fill_(1)
    future.result()
    back = {"x": torch.ones(1000)}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert not back["x"].any()
    writer.close()
    dcp.save({"x": tensor}, checkpoint_id="step-2", storage_writer=writer)  # connects again
    dcp.load(back, checkpoint_id="latest", storage_reader=Reader(url))
    assert back["x"].all()


def test_state_of_an_optimizer_round_trips(url):
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    checkpoint = {"model": model.state_dict(), "optim": optimizer.state_dict()}
    dcp.async_save(checkpoint, checkpoint_id="step-1", storage_writer=Writer(url), no_dist=True).result()
    back = {"model": {key: torch.zeros_like(value) for key, value in checkpoint["model"].items()},
            "optim": torch.optim.AdamW(model.parameters()).state_dict()}
    back["optim"]["state"] = {idx: {key: torch.zeros_like(value) for key, value in row.items()}
                              for idx, row in checkpoint["optim"]["state"].items()}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert_same(back["model"], dict(checkpoint["model"]))
    assert_same(back["optim"]["state"], checkpoint["optim"]["state"])
