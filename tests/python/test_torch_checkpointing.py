# SPDX-License-Identifier: Apache-2.0
"""cairn.torch_checkpointing.CheckpointManager: torch_checkpointing's manager, whose state goes straight into the arena."""

import multiprocessing
import os
import pathlib

import pytest
import torch

pytest.importorskip("torch_checkpointing")
pytest.importorskip("fsspec")

import torch_checkpointing  # noqa: E402
from torch_checkpointing import ItemSpec  # noqa: E402
from torch_checkpointing.checkpoint_layout import JsonSerialization, LayoutInfo  # noqa: E402
from torch_checkpointing.config import SyncCheckpointSaverConfig  # noqa: E402
from torch_checkpointing.default_resharder import DefaultResharder  # noqa: E402

import cairn  # noqa: E402
from conftest import steps_of, stopped  # noqa: E402
from ranks import break_once, run_once  # noqa: E402
from cairn.torch import per_rank  # noqa: E402
from cairn.torch_checkpointing import CheckpointManager, StorageConfig, commit  # noqa: E402


def state(value):
    return {"model": {"w": torch.full((5, 4), float(value)), "b": torch.arange(3) + value}, "step": value}


def manager_of(url, save=None, options=None, **config):
    more = {"save": save} if save else {}
    return CheckpointManager(CheckpointManager.Config(storage_config=StorageConfig(url), **more, **config), **(options or {}))


@pytest.fixture
def manager(url):
    made = manager_of(url)
    yield made
    made.close()


@pytest.mark.parametrize("save", [None, SyncCheckpointSaverConfig()], ids=["async", "sync"])
@pytest.mark.parametrize("use_url", [False, True], ids=["name", "url"])
def test_saved_and_loaded(url, save, use_url):
    """No process is started, and each checkpoint is one of Cairn's."""
    storage, manager, processes = StorageConfig(url), manager_of(url, save), multiprocessing.active_children()
    head = f"{url}/" if use_url else ""
    for step in (1, 2):
        future = manager.save(f"{head}step-{step}", state(step))
        assert (future is None) == (save is not None)
        if future is not None:
            assert future.result(60).step == step and future.done() and not future.cancel()
        assert storage.latest() == f"step-{step}" and multiprocessing.active_children() == processes
    manager.close()
    for name, step in (("step-2", 2), ("step-1", 1), ("latest", 2)):
        other = manager_of(url, save)
        found = other.load(f"{head}{name}", into=state(0), strict=True)
        assert found["step"] == step and torch.equal(found["model"]["w"], state(step)["model"]["w"])
        other.close()
    assert steps_of(url) == [2, 1]


def test_built_by_the_configuration(url):
    manager = CheckpointManager.Config(storage_config=StorageConfig(url)).build()
    assert type(manager) is CheckpointManager
    with manager.lock():
        pass
    manager.prewarm_staging(state(1))
    manager.close()
    with pytest.raises(RuntimeError, match="closed"):
        manager.save("step-1", state(1))


def test_live_values_are_filled_in_place(manager):
    """Containers and tensors stay the same objects. What the checkpoint lacks is named, what is not asked for is not read."""
    manager.save("step-1", {**state(1), "list": [torch.ones(2), 5], "more": {"a": 1, "b": 2}}).result()
    live = state(0)
    w, weights = live["model"]["w"], live["model"]
    weights["half"] = torch.zeros(2)
    wider = {"b": torch.zeros(3, dtype=torch.float64)}
    found = manager.load("step-1", into={**live, "list": [torch.zeros(2), 0], "more": {"b": 0}})
    assert found["model"] is weights and found["model"]["w"] is w and torch.equal(w, torch.full((5, 4), 1.0))
    assert torch.equal(found["list"][0], torch.ones(2)) and found["list"][1] == 5 and found["more"] == {"b": 2}
    assert torch.equal(manager.load("step-1", into={"model": wider})["model"]["b"], torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    with pytest.raises(RuntimeError, match="model.*half"):
        manager.load("step-1", into=live, strict=True)
    assert manager.load("step-1", into={"model": None}, map_location="cpu")["model"].keys() == {"w", "b"}


def test_what_is_not_there(url, manager):
    with pytest.raises(FileNotFoundError, match="no checkpoint yet"):
        manager.load("latest", into=state(0))
    manager.save("step-1", state(1)).result()
    with pytest.raises(FileNotFoundError, match="step 3"):
        manager.load("step-3", into=state(0))
    with pytest.raises(cairn.MissingTensorError, match="optimizer"):
        manager.load("step-1", into={"optimizer": None})
    for call in (lambda: manager.save(f"{url}x/step-2", state(2)), lambda: manager.save("best", state(2)),
                 lambda: manager.save("latest", state(2)), lambda: manager.load(f"{url}x/step-1", into=state(0))):
        with pytest.raises(cairn.InvalidError, match="step-100|no checkpoint of the run"):
            call()
    assert steps_of(url) == [1]


class Own(DefaultResharder):
    """A resharder of the user's."""


@pytest.mark.parametrize("config, text", [
    ({"items": {"model": ItemSpec(layout=LayoutInfo("model.json", JsonSerialization()))}}, "model has a layout"),
    ({"default": ItemSpec(resharder=Own())}, "default has a Own"), ({"finalize_callback": commit}, "finalize_callback"),
    ({"subprocess_init_fn": print}, "subprocess_init_fn")], ids=["layout", "resharder", "callback", "process"])
def test_what_is_about_files_is_refused(url, config, text):
    with pytest.raises(cairn.UnsupportedError, match=f"{text}.*torch_checkpointing's own CheckpointManager"):
        manager_of(url, **config)


def test_what_cannot_be_is_refused_by_name(url, manager):
    with pytest.raises(cairn.InvalidError, match="storage_config"):
        CheckpointManager(torch_checkpointing.CheckpointManager.Config())
    with pytest.raises(cairn.UnsupportedValueError, match=r"model\.opaque"):
        manager.save("step-1", {"model": {"opaque": object()}})
    manager.save("step-1", state(1)).result()
    with pytest.raises(cairn.UnsupportedError, match="metadata_format"):
        manager.load("step-1", into=state(0), metadata_format=dict)
    with pytest.raises(cairn.UnsupportedError, match="map_location"):
        manager.load("step-1", into=state(0), map_location={"cuda:0": "cpu"})
    with pytest.raises(cairn.FormatError, match="neither"):
        files = torch_checkpointing.CheckpointManager(torch_checkpointing.CheckpointManager.Config(
            storage_config=StorageConfig(url), save=SyncCheckpointSaverConfig()))
        files.save("step-2", state(2))
        manager.load("step-2", into=state(0))


def test_state_of_one_rank(manager):
    manager.save("step-1", {"mine": per_rank({"rank": 0, "t": torch.ones(3)}), **state(1)}).result()
    found = manager.load("latest", into={"mine": per_rank(None), **state(0)})
    assert found["mine"]["rank"] == 0 and torch.equal(found["mine"]["t"], torch.ones(3)) and found["step"] == 1


class Net(torch.nn.Module):
    """Some 24 MiB, and statistics that change in forward."""

    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = torch.nn.Linear(1024, 3072), torch.nn.BatchNorm1d(3072), torch.nn.Linear(3072, 1024)

    def forward(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))


def test_training_goes_on_while_the_state_is_copied(own_daemon):
    """Without the manager's lock: the optimizer's step waits for the copy, and buffers are copied at once. The daemon is stopped and the
    arena is smaller than the state, so the copy cannot end before."""
    torch.manual_seed(1)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train():
        model(torch.randn(8, 1024)).pow(2).mean().backward()
        optimizer.step()

    def payload():
        return {"model": model.state_dict(), "optimizer": optimizer.state_dict()}

    manager = manager_of(own_daemon.url("lazy"), options={"arena_bytes": 8 << 20, "when_down": "wait"})
    manager.save("step-1", payload()).result(60)
    train()
    manager.save("step-2", payload()).result(60)
    train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with stopped(own_daemon):
        future = manager.save("step-3", payload())
        model(torch.randn(8, 1024))  # changes the statistics, and no optimizer's step is in the way
        assert not manager._staging_future.done() and not future.done()
    train()
    assert future.result(60).step == 3
    found = manager.load("step-3", into={"model": None})["model"]
    assert all(torch.equal(found[name], tensor) for name, tensor in before.items())
    assert not torch.equal(model.norm.running_mean, before["norm.running_mean"])
    manager.close()


def test_a_save_that_fails(own_daemon):
    """Its future has the error; the next save and the checkpoint before are good, and ``close`` waits."""
    url = own_daemon.url("fails")
    manager = manager_of(url, options={"when_down": "wait", "save_deadline": 2.0, "io_deadline": 2.0})
    manager.save("step-1", state(1)).result(60)
    with stopped(own_daemon):
        with pytest.raises(cairn.CairnError):
            manager.save("step-2", state(2)).result(60)
    manager.save("step-3", state(3)).result(60)
    manager.save("step-4", state(4))
    manager.close()
    assert steps_of(url) == [4, 3, 1]


def test_close_raises_the_error_of_the_last_save(own_daemon):
    manager = manager_of(own_daemon.url("last"), options={"when_down": "wait", "save_deadline": 2.0, "io_deadline": 2.0})
    manager.save("step-1", state(1)).result(60)
    with stopped(own_daemon):
        manager.save("step-2", state(2))
        with pytest.raises(cairn.CairnError):
            manager.close()
    manager.close()


def test_an_outage_does_not_end_the_training(own_daemon):
    """Saves are skipped, which their futures tell; neither the next save nor ``close`` raises it."""
    manager = manager_of(own_daemon.url("outage"), options={"save_deadline": 3.0})
    manager.save("step-1", state(1)).result(60)
    own_daemon.kill()
    for step in (2, 3):
        future = manager.save(f"step-{step}", state(step))
    with pytest.raises(cairn.SkippedError):
        future.result(60)
    manager.close()


def test_the_newest_good_checkpoint(own_daemon, caplog):
    """A damaged newest one is passed over by "latest", and is an error by its name."""
    url = own_daemon.url("damaged")
    manager = manager_of(url)
    manager.save("step-1", {"step": 1, "big": torch.rand(1 << 20)}).result()
    there = set(own_daemon.store.rglob("*"))
    manager.save("step-2", {"step": 2, "big": torch.rand(1 << 20)}).result()
    manager.close()
    for path in set(own_daemon.store.rglob("*")) - there:
        if path.is_file() and path.stat().st_size > 1 << 20:
            data = bytearray(path.read_bytes())
            data[len(data) // 2] ^= 1
            path.chmod(0o600)
            path.write_bytes(data)
    reader = manager_of(url)
    with pytest.raises(cairn.CairnError, match="step 2"):
        reader.load("step-2", into={"step": 0, "big": None})
    assert reader.load("latest", into={"step": 0, "big": None})["step"] == 1 and "restored step 1" in caplog.text
    reader.close()


def test_ranks_commit_together(url):
    """Two ranks with a DTensor, a tensor that both have, and a value of each; resharded to one rank and back to two."""
    assert run_once("tc_worker.run", 2, url=url, action="arena") == [None, None]
    assert run_once("tc_worker.run", 2, url=url, action="arena") == ["step-2", "step-2"]
    assert run_once("tc_worker.run", 1, url=url, action="arena") == ["step-4"]
    assert steps_of(url) == [6, 5, 4, 3, 2, 1]


def test_a_rank_that_dies_leaves_no_part(url):
    """It is killed in a save: that checkpoint is not listed, or whole where the daemon had all of it, and the next start goes on."""
    run_once("tc_worker.run", 2, url=url, action="arena")
    break_once("tc_worker.run", 2, url=url, action="arena-break")
    assert run_once("tc_worker.run", 2, url=url, action="arena") in (["step-2", "step-2"], ["step-3", "step-3"])
