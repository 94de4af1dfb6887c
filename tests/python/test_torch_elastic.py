# SPDX-License-Identifier: Apache-2.0
"""A job of two torchrun agents survives the death of a worker: the agents, which meet over loopback as two nodes would,
start all workers again, and training goes on at the step that was saved."""

import pathlib

import torch

import cairn
from bed import assert_same
from together import free_port, run_together

WORKER = pathlib.Path(__file__).with_name("elastic_worker.py")
STEPS, DEATH = 5, 2


def launch(folder, url, death):
    """Two agents of one worker each, to their end. Port 0 is no choice for two agents that have to know it: the first
    makes the store on a port that it finds free, which the test asks for beforehand."""
    port = free_port()
    folder.mkdir()
    # PyTorch 2.13 remembers the agents' shared store over rounds: where the nodes change their numbers at a restart, the
    # workers of one wait in the old one for ever.
    run_together([["-m", "torch.distributed.run", "--nnodes=2", "--nproc-per-node=1", "--max-restarts=2", "--rdzv-backend=c10d",
                   f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=cairn", "--monitor-interval=0.1", "--local-addr=127.0.0.1",
                   f"--rdzv-conf=is_host={int(node == 0)},join_timeout=60,last_call_timeout=1", WORKER, url, folder, STEPS,
                   death] for node in range(2)], 300, TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1")
    return [(folder / f"log-{rank}").read_text().split("\n")[:-1] for rank in range(2)]


def test_torch_01_agents_restart_a_killed_worker_and_training_resumes(tmp_path, url, ranks2):
    cut = launch(tmp_path / "cut", url, DEATH)
    for lives in cut:
        assert [int(life.split()[2]) for life in lives] == [-1, DEATH]  # began anew, then at the saved step
    nodes = {lives[-1].split()[1] for lives in cut}
    assert nodes == {"0", "1"}  # two agents, not two workers of one
    with cairn.Client(url, read_only=True) as client:
        checkpoints = client.list()
    assert [c.step for c in checkpoints] == list(range(STEPS))[::-1] and {c.world_size for c in checkpoints} == {2}
    assert [c.term for c in checkpoints] == [2] * (STEPS - 1 - DEATH) + [1] * (DEATH + 1)
    ranks2.run("elastic_worker.whole", folder=str(tmp_path), steps=STEPS)
    for rank in range(2):
        assert_same(torch.load(tmp_path / "cut" / f"end-{rank}.pt"), torch.load(tmp_path / f"whole-{rank}.pt"))
