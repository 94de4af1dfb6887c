# SPDX-License-Identifier: Apache-2.0
"""All ranks of a job stop together, keep what belongs to each, and a failure stays on the rank that has it; notes may
come after the fact."""

import os
import signal
import subprocess
import sys

import pytest
import torch

import cairn
from bed import assert_same
from cairn.torch import CairnWarning, Checkpointer, per_rank
from conftest import lineage
from ranks import Ranks


@pytest.mark.parametrize("victim, slow", [(2, 1), (0, 0), (3, 0)])
def test_torch_03_all_ranks_stop_at_the_same_step(url, ranks4, victim, slow):
    """A signal to one rank of four, staggered: all stop at one step and save it; the earlier handler ran, once for the
    signal and once after the end."""
    answers = ranks4.run("cases_life.stop", url=url, victim=victim, slow=slow)
    steps = {step for step, _ in answers}
    assert len(steps) == 1 and 6 <= steps.pop() <= 8, answers
    assert [len(calls) for _, calls in answers] == [2 if rank == victim else 1 for rank in range(4)]
    with cairn.Client(url, read_only=True) as client:
        assert [c.world_size for c in client.list()] == [4]


def test_a_rank_that_has_not_heard_of_a_commit_goes_back_with_the_others(url, ranks2):
    assert ranks2.run("cases_life.come_back", url=url) == [[9.0] * 3] * 2
    assert lineage(url) == [3, 2, 1]


def test_torch_03_steps_must_agree(url, ranks2):
    ranks2.run("cases_life.stop_at_different_steps", url=url)


def test_rule_10_a_signal_sets_a_flag_only(url):
    """One process: no save happens in the handler; without should_stop SIGTERM ends the job as ever."""
    code = f"""
import os, signal, sys, torch, cairn.torch
with cairn.torch.Checkpointer({url!r}, {{"x": torch.ones(2)}}, on_error="raise") as ck:
    if sys.argv[1] == "deaf":
        os.kill(os.getpid(), signal.SIGTERM)
        raise SystemExit("still here")
    assert not ck.should_stop(0)
    os.kill(os.getpid(), signal.SIGTERM)
    with cairn.Client({url!r}, read_only=True) as client:
        assert client.list() == []
    stops = [ck.should_stop(step) for step in (1, 2, 3)]
    assert stops == [False, True, True], stops
    ck.request_stop()
    ck.save(3).durable.result(60)
print("done")
"""
    for mode, status in (("asks", 0), ("deaf", -signal.SIGTERM)):
        done = subprocess.run([sys.executable, "-c", code, mode], capture_output=True, text=True, timeout=120)
        assert done.returncode == status, done.stderr


def test_torch_07_state_of_a_rank_goes_by_coordinate(url, ranks4):
    """A mesh laid out in another order: each place gets its own loader and its own random numbers."""
    saved = ranks4.run("cases_life.mesh_save", url=url)
    restored = dict(ranks4.run("cases_life.mesh_restore", url=url))
    assert [restored[place] for place in range(4)] == saved


def test_torch_07_growing_reseeds_and_asks_the_callable(url, ranks2, ranks4):
    ranks2.run("cases_life.grow_save", url=url)
    drawn = ranks4.run("cases_life.grow", url=url)
    assert len(set(drawn)) == 4
    assert ranks4.run("cases_life.grow", url=url) == drawn


def test_rule_05_a_failure_on_one_rank_fails_the_save_on_all(url, ranks2):
    ranks2.run("cases_life.one_fails", url=url)


def test_annotate(url, ranks2):
    for _, metrics, tags in ranks2.run("cases_life.annotate", url=url)[:1]:
        assert metrics == {"loss": 2.0, "eval": 0.5} and list(tags) == ["best"]


def test_torch_01_an_attempt_is_not_what_torchrun_calls_it(url, ranks2):
    assert ranks2.run("cases_life.identity", url=url, launch=1) == [[None, 1], [None, 1]]
    assert ranks2.run("cases_life.identity", url=url, launch=2) == [[1, 2], [1, 2]]
    ranks2.run("cases_life.stalled", url=url)


def test_torch_02_ranks_restore_the_same_step(own_daemon, ranks4):
    """Only one rank reads the damaged object; all go back to the same step."""
    url = own_daemon.url("damaged")
    ranks4.run("cases_life.shards_save", url=url)
    found = [path for path in own_daemon.store.rglob("3-*") if path.parent.parent.name == "objects"
             and path.parent.name == "1-2"]
    assert len(found) == 1, sorted(map(str, own_daemon.store.rglob("*")))
    found[0].chmod(0o600)
    data = bytearray(found[0].read_bytes())
    data[100] ^= 1
    found[0].write_bytes(data)
    ranks4.run("cases_life.shards_restore", url=url)


def test_torch_02_a_rank_whose_own_code_fails_stays_not_behind_alone(url, ranks2):
    ranks2.send("cases_life.one_cannot_load", url=url)
    ranks2.answers(60)


def test_torch_13_wrong_options_of_one_rank_reach_all(url, ranks2):
    ranks2.send("cases_life.one_has_wrong_options", url=url)
    ranks2.answers(60)


def test_the_group_outlives_torch_distributed(url, tmp_path):
    """In processes of their own, since the group that all cases share would end."""
    pool = Ranks(2)
    try:
        pool.send("cases_life.outlives", url=url, meet=str(tmp_path / "meet"))
        pool.answers(60)
    finally:
        pool.close()


def test_groups_meet_whatever_else_a_rank_has_made(url, ranks2):
    ranks2.send("cases_life.uneven_groups", url=url)
    ranks2.answers(60)
