# SPDX-License-Identifier: Apache-2.0
"""cairn.dcp works with several ranks over gloo: two ranks and then four run all scenarios of
dcp_worker.py, and the tests read what came of each. They are named after the points of the notes on PyTorch that they
hold Cairn to."""

import pytest
import torch
import torch.distributed.checkpoint as dcp

from cairn.dcp import Reader
from ranks import run_once

TWO = ("round_trip", "partial", "fsdp_save", "failing_rank", "interrupted", "unsupported_value", "server_fails",
       "caching", "async_thread", "async_waves", "async_arena", "async_process", "no_dist", "lineage", "mismatch", "again")


@pytest.fixture(scope="module")
def ranks(daemon, tmp_path_factory):
    meet, prefix = str(tmp_path_factory.mktemp("dcp") / "meet"), daemon.url("dcp")
    two = run_once("dcp_worker.run", 2, prefix=prefix, meet=meet, names=TWO)
    four = run_once("dcp_worker.run", 4, prefix=prefix, meet=meet, names=("reshard", "fsdp_load", "meshes"))
    return {"two": two, "four": four, "prefix": prefix}


def both(ranks, name, world="two"):
    rows = [row[name] for row in ranks[world]]
    for row in rows:
        assert "error" not in row, row["error"]
    return rows


def test_sharded_and_replicated_round_trip(ranks):
    rows = both(ranks, "round_trip")
    assert [row["same"] for row in rows] == [True, True] and rows[0]["committed"]


def test_reshard_2_to_4_and_1(ranks):
    assert all(row["same"] for row in both(ranks, "reshard", "four"))
    assert all(row["same"] for row in both(ranks, "fsdp_load", "four"))
    back = {"rows": torch.zeros(12, 4), "uneven": torch.zeros(7, 5), "other": torch.zeros(3, dtype=torch.bfloat16)}
    dcp.load(back, storage_reader=Reader(ranks["prefix"] + "-shared/step-1"))
    assert torch.equal(back["rows"], torch.arange(48.).reshape(12, 4))
    assert torch.equal(back["uneven"], torch.arange(35.).reshape(7, 5)) and back["other"].sum() == 3


def test_torch_08_placements_hsdp_and_grids(ranks):
    assert all(row["same"] for row in both(ranks, "meshes", "four"))


def test_partial_load(ranks):
    assert all(row["same"] for row in both(ranks, "partial"))


def test_rule_05_any_failure_on_any_rank_fails_the_save_on_all(ranks):
    for row in both(ranks, "failing_rank"):
        assert "rank 1: OSError: the disk of rank 1 is gone" in row["text"]
        assert row["before"] == [] and row["after"] == [[1, 5]] and row["same"]
    for row in both(ranks, "server_fails"):
        assert "rank 0: ExistsError" in row["text"] and "step 1 was saved before" in row["text"]
        assert row["listed"] == [[1, 1]]


def test_ctrl_c_gives_the_save_up_on_all_ranks(ranks):
    for row in both(ranks, "interrupted"):
        assert "rank 0: KeyboardInterrupt" in row["text"] and row["copied"] and row["same"]
        assert [step for _, step in row["listed"]] in ([6], [6, 5])  # the commit may have been faster


def test_torch_14_unsupported_value_fails_the_save_by_name_on_all_ranks(ranks):
    for row in both(ranks, "unsupported_value"):
        assert "rank 1: UnsupportedValueError" in row["text"] and "odd1" in row["text"] and row["listed"] == []


def test_torch_15_no_dist_with_a_shared_id_is_refused(ranks):
    for rank, row in enumerate(both(ranks, "no_dist")):
        assert "no_dist=True" in row["alone"] and "InvalidError" in row["alone"]
        assert "process_group" in row["other"]
        assert row["listed"] == [] and row["own"] == [[1, 1]]


def test_torch_17_async_save_in_thread_mode(ranks):
    for row in both(ranks, "async_thread"):
        assert row["same"] and row["listed"] == [[1, 4], [1, 2], [1, 1]]
        assert "rank 1: UnsupportedValueError" in row["text"] and "odd1" in row["text"]
    assert all(row["same"] for row in both(ranks, "async_waves"))


def test_async_save_with_one_copy(ranks):
    for rank, row in enumerate(both(ranks, "async_arena")):
        assert row["same"] and row["step"] == 2 and row["listed"] == [[1, 4], [1, 2], [1, 1]]
        assert "rank 1: UnsupportedValueError" in row["text"] and "odd1" in row["text"]
        assert "step 2 was saved before" in row["twice"] or rank != 0


def test_torch_17_async_save_in_process_mode(ranks):
    for row in both(ranks, "async_process"):
        assert row["same"] and row["listed"] == [[1, 4], [1, 3], [1, 2], [1, 1]]
        assert "UnsupportedValueError" in row["text"] and "odd" in row["text"]
        assert row["parents"] == [[3, 22, [1, 1]], [2, 21, [1, 2]], [2, 20, [1, 2]]]


def test_torch_18_plan_caching_hands_the_writer_stale_truth(ranks):
    """Rule 7: no per-save state in cached plans."""
    for row in both(ranks, "caching"):
        assert row["same"] and row["retried"]
        assert "PLAN_STALE" in row["stale"] and "PlanStaleError" in row["stale"]
        assert "rows" in row["stale"] or "plain" in row["stale"]
        assert [step for _, step in row["listed"]] == [6, 5, 4, 3, 2, 1]


def test_what_was_loaded_is_the_parent_of_what_is_saved(ranks):
    for row in both(ranks, "lineage"):
        assert row["list"] == [[2, 2, [1, 1], False], [1, 2, None, True], [1, 1, None, False]]


def test_ranks_never_load_different_checkpoints(ranks):
    for row in both(ranks, "mismatch"):
        assert "rank 1: ConflictError" in row["text"] and "load again" in row["text"]
        assert "NOT_FOUND" in row["missing"] and "step 77" in row["missing"]


def test_torch_distributed_is_initialised_anew(ranks):
    rows = both(ranks, "again")
    assert all(after < before for before, after in (row["arenas"] for row in rows)), "with the new one, less is open than before"
    assert [row["first"] for row in rows] == [1, 1] and [step for _, step in rows[0]["steps"]] == [2, 1]
    assert rows[0]["loaded"] and rows[0]["lineage"][0][1] == 3, "what one rank has not loaded is no parent"
    assert all("made before torch.distributed was torn down" in row["old"] for row in rows)
