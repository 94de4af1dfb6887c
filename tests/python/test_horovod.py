# SPDX-License-Identifier: Apache-2.0
"""Commits of Horovod's elastic state outlive the job, and what a worker holds in memory is never lost to an older checkpoint. Horovod's
own driver, workers and collectives run; tests/reach installs them and kills them at random."""

import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("horovod.torch", reason="Horovod is not installed; tests/reach/run BUILD-FOLDER horovod builds it")

import horovod.torch as hvd
import torch

import cairn
import cairn.horovod
from bed import assert_same, small_model
from cairn.torch import Checkpointer

WORKER = pathlib.Path(__file__).with_name("horovod_worker.py")


def horovodrun(*words, ranks=2, fewest=None, check=0, script=WORKER):
    """Runs a worker under horovodrun on names of this machine, each of which counts as a host. Returns what it has printed."""
    elastic = [] if fewest is None else ["--min-np", fewest, "--max-np", ranks,
                                         "--host-discovery-script", "printf 'localhost:1\\n127.0.0.1:1\\n'"]
    words = [pathlib.Path(sys.executable).with_name("horovodrun"), "--gloo", "--disable-cache", "--network-interfaces", "lo",
             "-np", ranks, *elastic, sys.executable, script, *words]
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, timeout=300, check=False, stdin=subprocess.DEVNULL,
                          env={**os.environ, "PYTHONPATH": str(WORKER.parent)})
    assert (done.returncode == 0) == (check == 0), done.stdout[-6000:] + done.stderr[-6000:]
    return done.stdout + done.stderr


def ends(folder):
    return [torch.load(path) for path in sorted(folder.glob("end-*.pt"))]


@pytest.fixture(scope="module")
def whole(daemon, tmp_path_factory):
    """The ends of a job of two workers that commits step 6, and of one worker that goes on from there to step 12."""
    folder, url = tmp_path_factory.mktemp("whole"), daemon.url("horovod-whole")
    horovodrun(url, folder, 6, "")
    (folder / "resumed").unlink()
    for path in folder.glob("end-*.pt"):
        path.unlink()
    horovodrun(url, folder, 12, "", ranks=1)
    assert (folder / "resumed").read_text().split("\n") == ["0 3", ""]  # two workers to one
    return ends(folder)


@pytest.mark.parametrize("dead", [1, 0])
def test_a_killed_worker_is_taken_over_from_memory_with_the_bits_of_a_restart(whole, url, tmp_path, dead):
    horovodrun(url, tmp_path, 12, f"{dead}@7", fewest=1)
    assert sorted((tmp_path / "resumed").read_text().split("\n")) == ["", "0 None", "1 None"]  # nothing was read behind the beginning
    found = ends(tmp_path)
    assert [end["ranks"] for end in found] == [1]
    assert_same(found, whole)
    with cairn.Client(url, read_only=True) as client:
        items = {item.step: item for item in client.list()}
    assert {4, 5, 6} <= set(items) and items[6].latest
    if dead == 0:  # the survivor saves in a term of its own, behind a commit that it had seen
        assert {items[step].term for step in (4, 5, 6)} == {2} and items[4].parent in ((1, 3), (1, 2), (1, 1), None)


@pytest.mark.parametrize("dead", [1, 0])
def test_a_worker_that_dies_while_a_job_resumes_leaves_the_others_with_the_checkpoint(whole, url, tmp_path, dead):
    """And not with the first weights, as what those workers held in memory until then."""
    horovodrun(url, tmp_path, 6, "")
    for path in tmp_path.glob("end-*.pt"):
        path.unlink()
    horovodrun(url, tmp_path, 12, f"{dead}@sync", fewest=1)
    assert (tmp_path / "dead").exists()
    found = ends(tmp_path)
    assert [end["ranks"] for end in found] == [1]
    assert_same(found, whole)


SCRIPT = """
import sys
import time
import horovod.torch as hvd
import torch
import cairn.horovod

hvd.init()
url, mode = sys.argv[1:]
model = torch.nn.Linear(2, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
state = cairn.horovod.TorchState(url, model=model, optimizer=optimizer, value=0, options={"io_deadline": 3.0},
                                 **({"bad": object()} if mode == "bad" else {}))
if mode == "memory":
    def fill(value):
        torch.nn.init.constant_(model.weight, value)
        for param in model.parameters():
            param.grad = torch.zeros_like(param)
        state.value = value
    fill(5.0)
    state.sync()
    state.commit()
    state.close()
    if hvd.rank() == 0:  # as a new process of rank 0 would be
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
        state = cairn.horovod.TorchState(url, model=model, optimizer=optimizer, value=0)
    else:
        fill(6.0)
        optimizer.step()
        fill(7.0)
        state.commits = 2
        state.save()
    state.sync()
    assert (model.weight == 7).all() and state.value == 7 and state.commits == 2, (model.weight, state.value)
    assert [float(item["step"]) for item in optimizer.state.values()] == [1, 1], optimizer.state
    state.commit()
    state.close()
else:
    try:
        state.sync()
        for turn in range(6):
            state.commit()
            if turn == 0 and hvd.rank() == 0:
                state._run.wait()
                with cairn.torch.Checkpointer(url, {"x": 1}) as other:  # another job takes the run
                    other.restore(only=["x"], strict=False)
                    other.save(100).durable.wait()
    except cairn.errors.CairnError as error:
        print(f"rank {hvd.rank()}: {type(error).__name__}: {error}", flush=True)
        time.sleep(5)  # horovodrun ends the others when one has failed
        sys.exit(1)
"""


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "worker.py"
    path.write_text(SCRIPT)
    return path


def test_a_new_rank_0_gets_what_another_worker_holds_in_memory(url, script):
    horovodrun(url, "memory", script=script)
    with cairn.Client(url, read_only=True) as client:
        items = client.list()
    assert [(item.step, item.term, item.parent) for item in items] == [(3, 2, (1, 1)), (1, 1, None)]


@pytest.mark.parametrize("mode, name", [("bad", "Unsupported"), ("fenced", "Fenced"), ("away", "Unreachable")])
def test_errors_are_raised_on_all_workers(url, script, tmp_path, mode, name):
    said = horovodrun(url if mode != "away" else f"cairn+unix://{tmp_path}/nobody.sock?run=py/x", mode, script=script, check=1)
    assert f"rank 0: {name}" in said and f"rank 1: {name}" in said, said


@pytest.fixture
def alone():
    hvd.init()
    yield
    hvd.shutdown()


def test_every_so_many_commits_is_a_checkpoint_that_others_can_read(url, alone):
    model = small_model()
    state = cairn.horovod.TorchState(url, model=model, every=2, epoch=0, options={"label": "lab"})
    state.sync()
    for epoch in range(1, 6):
        state.epoch = epoch
        with torch.no_grad():
            model[0].weight.fill_(epoch)
        state.commit()
    state.close()
    state.close()
    again = small_model()
    with Checkpointer(url, {"model": again}, read_only=True) as checkpointer:
        assert [item.step for item in checkpointer.list()] == [4, 2]
        assert checkpointer.restore(only=["model"]).step == 4 and (again[0].weight == 4).all()
    state.restore()  # Horovod's own: from memory
    assert (model[0].weight == 5).all() and state.commits == 5


def test_an_optimizer_without_state_changes_nothing_at_a_resume(url, alone):
    """Horovod gives such a one a step, in which its weight decay would count."""
    def state_of(start, lr):
        model = small_model(start)
        return cairn.horovod.TorchState(url, model=model, optimizer=torch.optim.SGD(model.parameters(), lr=lr, weight_decay=0.5))

    state = state_of(0, 0.25)
    state.sync()
    state.commit()
    state.close()
    again = state_of(1, 0.5)
    again.sync()
    assert_same(again.model.state_dict(), small_model(0).state_dict())
    assert again.optimizer.param_groups[0]["lr"] == 0.25
    again.close()


def test_wrong_arguments_are_refused_by_name(url):
    for attributes, word in (({"every": 0}, "every"), ({"commits": 1}, "commits"), ({"save": 1}, "save")):
        with pytest.raises(cairn.errors.InvalidError, match=word):
            cairn.horovod.TorchState(url, **attributes)
    with pytest.raises(cairn.errors.InvalidError):
        cairn.horovod.TorchState("/tmp/folder")
