# SPDX-License-Identifier: Apache-2.0
"""The harness of tests/reach refuses a restart that begins anew although a checkpoint was committed, and takes one that could not
find any."""

import importlib
import pathlib
import sys

import pytest

import cairn
from cairn.arrays import Checkpointer

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "reach"))


class Framework:
    """A framework whose restart calls ``restore``."""

    found = None

    def restore(self):
        return self.found


@pytest.fixture
def job(daemon, url, tmp_path, monkeypatch):
    """A job of one rank, whose processes are this one."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setenv("REACH_RUN", url)
    import harness

    started = harness.Job.__new__(harness.Job)
    started.folder, started.framework, started.ranks, started.attempts = tmp_path, "jax", 1, 0
    return started


@pytest.fixture
def start(job, monkeypatch):
    """Starts the program: its restart finds what it is told to."""
    import drive

    importlib.reload(drive)  # it reads TMPDIR once

    def call(found):
        monkeypatch.setattr(Framework, "restore", lambda self: found)
        drive.watch("jax", Framework, "restore")
        job.attempts += 1
        Framework().restore()
    return call


def commit(url, step):
    with Checkpointer(url) as checkpointer:
        checkpointer.save(step, {"value": step})


def test_a_start_from_nothing_is_honest_where_nothing_is_committed(job, start, url):
    start(None)
    commit(url, 5)
    start(5)
    start(cairn.arrays.Restored(5, 1, {}, False))
    assert job.restored() == [["nothing", "5", "5"]]


@pytest.mark.parametrize("nothing", [None, False, -1])
def test_a_start_from_nothing_is_refused_where_a_step_is_committed(job, start, url, nothing):
    commit(url, 5)
    start(nothing)
    with pytest.raises(AssertionError, match="resumed from nothing, though there was step 5"):
        job.restored()


def test_a_start_that_never_asks_is_refused(job, start):
    start(None)
    job.attempts += 1
    with pytest.raises(AssertionError, match="asked for a checkpoint 1 times in 2 starts"):
        job.restored()
