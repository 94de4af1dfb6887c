# SPDX-License-Identifier: Apache-2.0
"""The Writer of cairn.dcp gives async_save the state itself in a thread, and waits until it is copied; what another process needs is a
true copy, with ties and views kept, that crosses uncopied."""

import collections
import pickle
import threading
from multiprocessing.reduction import ForkingPickler

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.staging import AsyncStager

import cairn
from bed import assert_same
from cairn.dcp import Reader, Writer
from cairn.dcp import stager
from cairn.dcp.stager import Handed, Staging


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


@pytest.fixture
def no_copy(monkeypatch):
    """No copy is made but libcairn's, however slow threads are to start."""
    monkeypatch.setattr(stager, "PATIENCE_S", 600.0)
    monkeypatch.setattr(stager, "Staging", None)


def test_rule_03_async_save_reads_the_state_itself_and_waits_until_it_is_copied(url, no_copy):
    writer, saved = Writer(url), {"x": torch.rand(2_000_000), "strided": torch.rand(300, 400).t(), "list": [1, {"y": torch.ones(3)}]}
    before = {"x": saved["x"].clone(), "strided": saved["strided"].clone(), "list": [1, {"y": torch.ones(3)}]}
    for step in (1, 2):
        future = dcp.async_save(saved, checkpoint_id=f"step-{step}", storage_writer=writer, no_dist=True)
        for tensor in (saved["x"], saved["strided"], saved["list"][1]["y"]):
            tensor.fill_(9)
        saved["list"].append("later")
        future.result()
    back = {"x": torch.zeros(2_000_000), "strided": torch.zeros(400, 300), "list": [0, {"y": torch.zeros(3)}]}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert_same(back, before)


def test_async_save_returns_at_once_if_the_caller_synchronizes_later(url, no_copy):
    writer, tensor, planning = Writer(url), torch.zeros(1000), threading.Event()
    writer.should_synchronize_after_execute = False

    class Slow(DefaultSavePlanner):
        def create_local_plan(self):
            assert planning.wait(60)
            return super().create_local_plan()

    future = dcp.async_save({"x": tensor}, checkpoint_id="step-1", storage_writer=writer, planner=Slow(), no_dist=True)
    assert not future.done()
    planning.set()
    writer.synchronize_staging()
    tensor.fill_(1)
    future.result()
    back = {"x": torch.ones(1000)}
    dcp.load(back, checkpoint_id="step-1", storage_reader=Reader(url))
    assert not back["x"].any()


def test_rule_05_a_save_that_fails_keeps_no_caller_of_async_save_waiting(url, no_copy):
    class Failing(DefaultSavePlanner):
        def create_local_plan(self):
            raise OSError("no plan today")

    writer = Writer(url)
    future = dcp.async_save({"x": torch.ones(3)}, checkpoint_id="step-1", storage_writer=writer, planner=Failing(), no_dist=True)
    with pytest.raises(CheckpointException, match="no plan today"):
        future.result()
    future = dcp.async_save({"x": object()}, checkpoint_id="step-2", storage_writer=writer, no_dist=True)
    with pytest.raises(CheckpointException, match="UnsupportedValueError"):
        future.result()
    dcp.async_save({"x": torch.ones(3)}, checkpoint_id="step-3", storage_writer=writer, no_dist=True).result()


def test_torch_17_what_is_pickled_for_another_process_is_a_copy():
    tensor, read = torch.zeros(1000), []
    handed = Handed({"x": tensor, "tied": tensor}, read.append)
    sent = bytes(ForkingPickler.dumps(handed))
    handed.wait()
    tensor.fill_(1)
    assert not tensor.is_shared() and not read  # the training's memory is as it was
    there = pickle.loads(sent)
    assert type(there) is dict and not there["x"].any() and there["tied"].data_ptr() == there["x"].data_ptr()


def test_a_state_that_nobody_fetches_in_time_is_copied(monkeypatch):
    """A helper process takes seconds to start, for which training does not wait."""
    monkeypatch.setattr(stager, "PATIENCE_S", 0.0)
    tensor, read = torch.zeros(1000), []
    handed = Handed({"x": tensor}, read.append)
    handed.wait()
    tensor.fill_(1)
    assert not dict(handed)["x"].any() and not read


def test_a_state_that_could_not_be_copied_in_time_is_not_read_later(monkeypatch):
    monkeypatch.setattr(stager, "PATIENCE_S", 0.0)
    gone = torch.ones(4)
    gone.untyped_storage().resize_(0)
    handed = Handed({"x": gone}, lambda handed: None)
    for use in (handed.wait, lambda: dict(handed), lambda: ForkingPickler.dumps(handed)):
        with pytest.raises(cairn.UnsupportedValueError, match="has no memory"):
            use()


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
