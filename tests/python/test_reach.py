# SPDX-License-Identifier: Apache-2.0
"""The harness of tests/reach refuses a restart that begins anew although a checkpoint was committed, and takes one that could not
find any. Its kills are spread over the training and end whole jobs, and it counts a training with other bits as what it is."""

import importlib
import os
import pathlib
import random
import subprocess
import sys
import types

import pytest
import torch

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
    monkeypatch.setenv("REACH_JOB", str(tmp_path))
    monkeypatch.setenv("REACH_RUN", url)
    import jobs

    started = jobs.Job.__new__(jobs.Job)
    started.folder, started.framework, started.ranks, started.attempts = tmp_path, "jax", 1, 0
    return started


@pytest.fixture
def start(job, monkeypatch):
    """Starts the program: its restart finds what it is told to."""
    import drive

    importlib.reload(drive)  # it reads REACH_JOB once

    def call(found, is_logged=True):
        monkeypatch.setattr(Framework, "restore", lambda self: found)
        drive.watch("jax", Framework, "restore")
        if is_logged:
            drive.note("logged", f"cairn:///lab/run: restored step {getattr(found, 'step', found)} of term 1")
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
    assert job.restored() == ["nothing", "5", "5"]


def test_a_restart_that_the_adapter_does_not_log_is_refused(job, start, url):
    commit(url, 5)
    start(5, is_logged=False)
    with pytest.raises(AssertionError, match=r"nothing is logged of the restart from \['5'\]"):
        job.restored()


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


def test_a_rank_that_gets_another_number_takes_over_its_kills(job, monkeypatch):
    import drive
    from kills import Kill, to_text

    importlib.reload(drive)
    hooks, struck = [], []
    monkeypatch.setitem(drive.FRAMEWORKS, "elastic", types.SimpleNamespace(after_step=hooks.append))
    monkeypatch.setattr(drive, "strike", lambda kill: struck.append(kill.number))
    monkeypatch.setattr(drive.threading, "Timer", lambda _, strike, kills: types.SimpleNamespace(start=lambda: strike(*kills)))
    monkeypatch.setenv("REACH_KILLS", to_text([Kill(0, "daemon", 3, 0, False), Kill(1, "all", 5, 0, True), Kill(2, "1", 6, 0, True)]))
    monkeypatch.setenv("RANK", "1")
    drive.arm("elastic")
    drive.note("killed", 0)  # the daemon, by rank 0 before it died
    hooks[0](5)
    assert struck == []
    monkeypatch.setenv("RANK", "0")
    for step in (4, 5, 6):
        hooks[0](step)
    assert struck == [1]


def test_a_program_names_cairn_in_two_lines_at_most():
    """Its import, and the one place where Cairn comes in. Other calls are the framework's own, or stand in their place."""
    from frameworks import FRAMEWORKS, ROOT, program_of

    texts = {name: program_of(name) for name in FRAMEWORKS}
    texts |= {name: (ROOT / "client" / "examples" / name).read_text(encoding="utf-8") for name in ("train_torch.py", "dcp_save.py")}
    counts = {name: sum("cairn." in line for line in text.splitlines()) for name, text in texts.items()}
    assert counts.pop("lightning-paths") == 0
    # DCP's writer and reader, and Keras' two callbacks, are two places each; DCP by paths has none.
    assert all(1 <= count <= (3 if name.startswith(("dcp", "keras")) else 2) for name, count in counts.items()), counts


@pytest.mark.parametrize("ranks, restarts", [(1, 0), (2, 0), (2, 3)])
def test_the_kills_are_spread_over_the_training_and_each_start_has_its_own(ranks, restarts):
    from kills import draw, from_text, to_text

    seen = set()
    for seed in range(100):
        starts = draw(random.Random(seed), 8, 48, ranks, restarts)
        kills = [kill for start in starts for kill in start]
        assert [kill.number for kill in kills] == list(range(8))
        assert all(kill.is_last == (kill is start[-1]) for start in starts[:-1] for kill in start)
        assert not any(kill.is_last for kill in starts[-1])
        assert restarts == 0 or all(sum(kill.kind == "rank" for kill in start) <= restarts for start in starts)
        assert from_text(to_text(kills)) == kills
        seen |= {(kill.kind, (kill.step - 1) // 12) for kill in kills}
    assert seen == {(kind, quarter) for kind in ("job", "rank", "daemon") for quarter in range(4)}


def test_a_kill_of_the_job_takes_the_ranks_in_groups_of_their_own_and_nobody_else(tmp_path):
    from kills import end_job

    def start(job):
        return subprocess.Popen(["sleep", "60"], start_new_session=True, env={**os.environ, "REACH_JOB": job})

    ranks, other = [start(str(tmp_path)) for _ in range(2)], start(f"{tmp_path}-2")
    try:
        end_job(str(tmp_path))
        assert [rank.wait(10) for rank in ranks] == [-9, -9]
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("value, counted", [(1.0, (0, 0)), (2.0, (1, 0)), (None, (0, 1))], ids=["same bits", "other bits", "no end"])
def test_a_campaign_counts_what_became_of_a_training(value, counted, tmp_path, monkeypatch, capsys):
    import campaign
    import jobs

    def disturbed(job, starts, tally):
        tally.kills["rank"] += 1
        if value is None:
            raise RuntimeError("it ended with 1")

    monkeypatch.setattr(campaign, "BUILD", tmp_path)
    monkeypatch.setattr(campaign, "undisturbed", lambda *_: ([{"x": torch.tensor(1.0)}], 48))
    monkeypatch.setattr(campaign, "disturbed", disturbed)
    monkeypatch.setattr(jobs.Job, "restored", lambda _: ["nothing", "nothing", "5"])
    monkeypatch.setattr(jobs.Job, "results", lambda _: [{"x": torch.tensor(value)}])
    rounds = campaign.Campaign(8)
    rounds.run([("jax", 1)], 7, 2, 60)
    total, said = rounds.sum(), capsys.readouterr().out
    assert (total.other_bits, total.failed, total.kills["rank"]) == (2 * counted[0], 2 * counted[1], 2)
    assert (total.resumed, total.from_nothing) == ((2, 2) if value is not None else (0, 0))
    assert ("jax --ranks 1 --kills 8 --total 1 --seed 8" in said) == any(counted)
    assert (tmp_path / "reach-failed" / "jax-1-8" / "store").exists() == any(counted)
