# SPDX-License-Identifier: Apache-2.0
"""Two ranks under DDP that are killed in a save and restarted end where an uninterrupted training ends, bit for bit."""

import pathlib

import pytest
import torch

import cairn
from bed import assert_same
from together import end_together, run_together

WORKER = pathlib.Path(__file__).with_name("ddp_worker.py")
STEPS = 6


def launch(folder, name, url, death=-1, world=2):
    """Runs all ranks to their end; gives (exit statuses, outputs)."""
    return end_together([[WORKER, rank, world, folder / f"{name}-rendezvous", url, STEPS, folder / f"{name}-{rank}.pt", death]
                         for rank in range(world)], 150)


def result(folder, name, rank):
    return torch.load(folder / f"{name}-{rank}.pt", weights_only=False)


def test_kill_and_resume(tmp_path, url):
    codes, outputs = launch(tmp_path, "whole", url + "-whole")
    assert codes == [0, 0], outputs
    codes, outputs = launch(tmp_path, "cut", url, death=3)
    assert codes == [3, -9], outputs
    codes, outputs = launch(tmp_path, "again", url)
    assert codes == [0, 0], outputs
    assert all("restored Restored" in output for output in outputs)
    for rank in range(2):
        assert_same(result(tmp_path, "again", rank), result(tmp_path, "whole", rank))
    a, b = result(tmp_path, "again", 0), result(tmp_path, "again", 1)
    assert_same(a["model"], b["model"])
    assert not torch.equal(a["rng"][0], b["rng"][0])  # each rank has its own
    with cairn.Client(url, read_only=True) as client:
        checkpoints = client.list()
    assert {c.step for c in checkpoints if c.state == "committed"} == set(range(STEPS))
    assert all(c.world_size == 2 for c in checkpoints)
    assert {c.term for c in checkpoints} == {1, 2} and checkpoints[0].latest
    # Read by one process without ranks: the state of all is there, other RNGs aside.
    model = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 3))
    with cairn.torch.Checkpointer(url, {"model": model}, read_only=True) as ck:
        with pytest.warns(cairn.torch.CairnWarning, match="2 ranks, now there are 1"):
            assert ck.restore(strict=False).step == STEPS - 1
    assert_same(model.state_dict(), a["model"])


def test_ranks_agree_on_errors(tmp_path, url):
    """One rank cannot restore: all raise, none hangs, none has touched its state."""
    script = tmp_path / "worker.py"
    script.write_text(f"""
import sys, torch, torch.distributed as dist, cairn.torch
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://{tmp_path}/meet", rank=rank, world_size=2)
model = torch.nn.Linear(2, 2)
with cairn.torch.Checkpointer({url!r}, {{"model": model, "w": torch.ones(2)}}, on_error="raise") as ck:
    ck.save(1).durable.result(60)
other = torch.nn.Linear(2, 2)
before = other.weight.detach().clone()
with cairn.torch.Checkpointer({url!r}, {{"model": other, "w": torch.zeros(2 + rank)}}) as ck:
    try:
        ck.restore()
    except cairn.ShapeMismatchError as error:
        print(error)
    assert torch.equal(other.weight, before)
try:
    cairn.torch.Checkpointer({url!r}, {{"model": other}}, ca_file="/nonexistent" if rank else None)
except cairn.CairnError as error:
    print("open:", error)
dist.destroy_process_group()
""")
    outputs = run_together([[script, rank] for rank in range(2)], 120)
    assert "planning the restore failed on rank 1" in outputs[0] and "w: the stored tensor has the shape [2]" in outputs[1]
    assert "open: " in outputs[0] and "opening the checkpointer failed on rank 1" in outputs[0]


def test_needs_ranks(monkeypatch, url):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(cairn.InvalidError, match="init_process_group"):
        cairn.torch.Checkpointer(url, {})
    monkeypatch.delenv("WORLD_SIZE")
    with pytest.raises(cairn.InvalidError, match="attempt is needed"):
        cairn.torch.Checkpointer(url, {}, rank=0, world_size=2)
