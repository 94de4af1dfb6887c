# SPDX-License-Identifier: Apache-2.0
"""cairn.torchtitan on one rank, where torchtitan is installed. tests/reach runs this after its proof on two ranks."""

import pytest
import torch

pytest.importorskip("torchtitan", reason="torchtitan is not installed; tests/reach/run BUILD-FOLDER torchtitan has it")

import torch.distributed as dist  # noqa: E402
from torchtitan.components.checkpointer.dcp import CheckpointManager as Theirs  # noqa: E402

import cairn  # noqa: E402
import cairn.dcp  # noqa: E402
from cairn.torchtitan import CheckpointManager as Ours  # noqa: E402


class Part:
    """What torchtitan saves beside the model."""

    def __init__(self, value=0):
        self.value = value

    def state_dict(self):
        return {"value": torch.tensor(self.value), "position": self.value}

    def load_state_dict(self, state):
        self.value = int(state["value"])
        assert state["position"] == self.value


@pytest.fixture(autouse=True, scope="module")
def group():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def manager_of(kind, folder, model, part, **options):
    config = kind.Config(enable=True, folder=folder, interval=1, last_save_model_only=False, **{"keep_latest_k": 0, **options})
    return config.build(dataloader=Part(), model_parts=[model], optimizers=Part(), lr_schedulers=Part(),
                        states={"train_state": part}, sd_adapter=None)


def model_of(value):
    model = torch.nn.Linear(3, 2)
    torch.nn.init.constant_(model.weight, value)
    return model


def steps_of(url):
    with cairn.Client(url, read_only=True) as client:
        return sorted(item.step for item in client.list())


def check_resumed(url, step):
    model, part = model_of(0), Part()
    manager = manager_of(Ours, url, model, part)
    assert manager.load()
    assert part.value == step and torch.equal(model.weight, torch.full((2, 3), float(step)))
    manager.close()


@pytest.mark.parametrize("mode", ["disabled", "async"])
def test_saved_kept_and_resumed(url, mode):
    model, part = model_of(0), Part()
    manager = manager_of(Ours, url, model, part, async_mode=mode, keep_latest_k=2)
    assert not manager.load()
    for step in range(1, 6):
        torch.nn.init.constant_(model.weight, step)
        part.value = step
        assert manager.save(step)
        torch.nn.init.constant_(model.weight, -1)  # what is saved is the state at the call
    manager.maybe_wait_for_saving()
    manager.close()
    assert steps_of(url)[-2:] == [4, 5] and 1 not in steps_of(url)
    check_resumed(url, 5)
    state = {"weight": torch.zeros(2, 3)}
    torch.distributed.checkpoint.load(state, storage_reader=cairn.dcp.Reader(f"{url}/step-5"))
    assert torch.equal(state["weight"], torch.full((2, 3), 5.0))


def test_goes_on_from_what_torchtitan_wrote_by_paths(url):
    theirs = manager_of(Theirs, url, model_of(3), Part(3))
    theirs.save(3)
    theirs.close()
    check_resumed(url, 3)
    ours = manager_of(Ours, url, model_of(4), Part(4), async_mode="async")
    assert ours.load()
    torch.nn.init.constant_(ours.states["model"].model[0].weight, 4)
    ours.states["train_state"].value = 4
    ours.save(4)
    ours.close()
    check_resumed(url, 4)
    assert steps_of(url) == [3, 4]


def test_a_failed_save_is_told(url, caplog):
    """torchtitan's loop hears of it where it waits for the save, and the log without that: here the step is there already, which the
    server finds."""
    manager = manager_of(Ours, url, model_of(1), Part(1), async_mode="async")
    manager.save(1)
    manager.save(1)
    with pytest.raises(cairn.ExistsError, match="step 1"):
        manager.maybe_wait_for_saving()
    manager.close()
    assert steps_of(url) == [1] and "the last asynchronous save has failed: EXISTS: step 1" in caplog.text


def test_refusals(url, tmp_path):
    with pytest.raises(cairn.UnsupportedError, match='use async_mode="async"'):
        manager_of(Ours, url, model_of(1), Part(), async_mode="async_with_pinned_mem")
    with pytest.raises(cairn.InvalidError, match="run"):
        manager_of(Ours, str(tmp_path), model_of(1), Part())
