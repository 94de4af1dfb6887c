# SPDX-License-Identifier: Apache-2.0
"""Two ranks that write to cairn:// make one checkpoint of all their files, by URL alone with DCP's own file writer; a
rank that writes alone makes its own; the rest is refused. The ranks run fs_worker.py."""

import json
import os
import pathlib
import subprocess
import sys
import threading

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
        outputs = [process.communicate(timeout=600)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [1, 1], "\n".join(outputs)  # they lose step 7
    rows = [json.loads((folder / f"result{rank}.json").read_text()) for rank in range(2)]
    for row in rows:
        assert "error" not in row, row["error"]
    return [{**row, "words": words} for row, words in zip(rows, outputs)]


def test_torch_16_dcp_by_url_alone_is_one_checkpoint_of_all_ranks(ranks):
    for row in ranks:
        assert row["same"]
        assert row["listed"] == [[2, 3, 1], [1, 2, 2], [1, 1, 2]]  # term, step, world size: 3 was written by one rank


def test_a_step_that_all_ranks_have_committed_is_overwritten_by_all(ranks):
    for row in ranks:
        assert row["overwritten"] == [0.5, [4, 2, 2]]  # a new term, since an attempt saves a step once


def test_ranks_that_disagree_commit_nothing(ranks):
    assert "'same' was written by rank 1 and by another rank" in ranks[0]["same_name"]
    assert "rank 1" in ranks[0]["still_open"] and "still open for writing" in ranks[0]["still_open"]


def test_a_failed_tree_can_be_written_again(ranks):
    for row in ranks:
        assert row["again"] == ["0", "1"] and row["end"][0] == [3, 5, 2]


def test_rule_05_a_failing_rank_leaves_nothing(ranks):
    for row in ranks:
        assert "pickle" in row["failed"] and row["after"] == row["end"]


def test_a_loss_that_no_exception_tells_of_is_told_on_stderr(ranks):
    """The rank whose files are dropped, because another rank could not commit them, says so. So does each rank whose process group is
    destroyed before the marker file that commits is written."""
    words = ranks[1]["words"]
    assert words.count("/step-4 was not committed: the rank that commits it failed: ") == 1
    assert "'same' was written by rank 1 and by another rank" in words
    assert "/step-4 was not committed" not in ranks[0]["words"]  # it has raised
    for rank, row in enumerate(ranks):
        assert row["words"].count("/step-7 was not committed: ") == 1 and f"1 file is lost: 'of-rank-{rank}'" in row["words"]


def test_files_whose_process_group_is_gone_are_named(url, monkeypatch, capfd):
    gone = threading.Event()

    class Store:
        def add(self, key, amount):
            return 0

        def set(self, key, value):
            pass

        def delete_key(self, key):
            pass

        def check(self, keys):
            if gone.is_set():
                raise RuntimeError("connection closed")
            return False

    monkeypatch.setattr(cairn.fs.runs, "meeting_of",
                        lambda run_url, step: cairn.fs.ranks.Meeting(Store(), 1, 2, run_url, step))
    failed = threading.Event()
    monkeypatch.setattr(cairn.fs.runs._cairn, "fail_exit", failed.set)  # this process is pytest's
    fs = fsspec.filesystem("cairn")
    fs.pipe(f"{url}/step-1/data", b"x")
    tree = cairn.fs.process.tree_at(cairn.fs.paths.place_of(f"{url}/step-1"))
    gone.set()
    assert tree.ended.wait(60)
    words = capfd.readouterr().err
    assert "/step-1 was not committed: torch.distributed's process group ended before" in words and "'data'" in words
    assert failed.is_set()


def test_ranks_that_cannot_agree_are_refused(url, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    with pytest.raises(cairn.InvalidError, match="init_process_group"):
        fsspec.open(f"{url}/step-1/x", "wb").open()
