# SPDX-License-Identifier: Apache-2.0
"""cairn:// with two ranks: DCP's own file writer by URL alone, one checkpoint of all ranks' files; who writes alone; what
is refused. The ranks run fs_worker.py."""

import json
import os
import pathlib
import subprocess
import sys

import fsspec
import pytest

import cairn
import cairn.fs

WORKER = pathlib.Path(__file__).with_name("fs_worker.py")


@pytest.fixture(scope="module")
def ranks(daemon, tmp_path_factory):
    folder = tmp_path_factory.mktemp("fs")
    processes = [subprocess.Popen(
        [sys.executable, str(WORKER), str(rank), "2", str(folder / "meet"), daemon.url("fsranks"),
         str(folder / f"result{rank}.json")], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=dict(os.environ, OMP_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")) for rank in range(2)]
    try:
        outputs = [process.communicate(timeout=240)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)
    rows = [json.loads((folder / f"result{rank}.json").read_text()) for rank in range(2)]
    for row in rows:
        assert "error" not in row, row["error"]
    return rows


def test_torch_16_dcp_by_url_alone_is_one_checkpoint_of_all_ranks(ranks):
    for row in ranks:
        assert row["same"]
        assert row["listed"] == [[2, 3, 1], [1, 2, 2], [1, 1, 2]]  # term, step, world size: 3 was written by one rank


def test_ranks_that_disagree_commit_nothing(ranks):
    assert "'same' was written by rank 1 and by another rank" in ranks[0]["same_name"]
    assert "rank 1" in ranks[0]["still_open"] and "still open for writing" in ranks[0]["still_open"]


def test_a_failed_tree_can_be_written_again(ranks):
    for row in ranks:
        assert row["again"] == ["0", "1"] and row["end"][0] == [3, 5, 2]


def test_rule_05_a_failing_rank_leaves_nothing(ranks):
    for row in ranks:
        assert "pickle" in row["failed"] and row["after"] == row["end"]


def test_ranks_that_cannot_agree_are_refused(url, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(cairn.InvalidError, match="init_process_group"):
        fsspec.open(f"{url}/step-1/x", "wb").open()
