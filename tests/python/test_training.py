# SPDX-License-Identifier: Apache-2.0
"""cairn.training.Run, the run behind a framework's checkpoints: a restore waits for the saves in flight, what a failed save
has decided does not count, and what a training that goes back saves takes the place of what was there."""

import contextlib

import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
from cairn.dcp import Reader, Writer, async_save
from cairn.kept import Decision
from cairn.torch import Checkpointer
from cairn.training import Run
from conftest import lineage


def content(url, step="latest"):
    state = {"x": torch.zeros(3)}
    with cairn.torch.Checkpointer(url, state, read_only=True) as reader:
        restored = reader.restore(step)
    return restored.step, state["x"].tolist()[0]


def state(value):
    return {"x": torch.full((3,), float(value))}


def test_whoever_restores_waits_for_the_saves_of_this_process(url):
    """By the same run, by another Checkpointer, and by DCP, of what either has saved."""
    saved, other = {"x": torch.ones(1 << 20)}, {"x": torch.zeros(1 << 20)}
    run, writer = Run(url, on_error="raise"), Writer(url)
    run.save(1, saved)
    assert run.restore(dict(other), 1).step == 1
    run.save(2, saved)
    with Checkpointer(url, dict(other), read_only=True) as viewer:
        assert viewer.restore().step == 2
    run.save(3, saved)
    dcp.load(dict(other), checkpoint_id="step-3", storage_reader=Reader(url))
    run.close()
    with pytest.warns(UserWarning, match="torch.distributed is disabled"):
        saving = async_save(saved, checkpoint_id="step-4", storage_writer=writer)
        dcp.load(dict(other), checkpoint_id="step-4", storage_reader=Reader(url))
    assert saving.done()
    writer.close()


def test_a_save_that_does_not_end_is_named_by_a_restore(url):
    client = cairn.Client(url, rank=0, world_size=2, attempt=cairn.new_attempt())
    op = client.save(7)  # rank 1 never came
    try:
        with pytest.raises(cairn.TimedOutError, match="the save of step 7 by this process has not ended"):
            Reader(f"{url}/step-7", deadline=0.1).read_metadata()
    finally:
        op.abort()
        with contextlib.suppress(cairn.CairnError):
            client.close()


def test_a_checkpoint_is_let_go_when_its_successor_is_durable_and_not_when_that_has_failed(url, lose):
    lose(failed=[2])
    run, undone = Run(url, on_error="raise"), []
    run.save(1, state(1)).durable.result(60)
    run.save(2, state(2), unwanted=[1], undo=lambda: undone.append(2))
    run.decided()
    assert undone == [2] and lineage(url, "kept") == [1]
    with pytest.raises(cairn.TimedOutError):
        run.save(3, state(3), undo=lambda: undone.append(3))
    assert undone == [2, 3]
    run.save(4, state(4), unwanted=[1], undo=lambda: undone.append(4))
    run.close()
    assert undone == [2, 3] and lineage(url, "kept") == [4]


def test_a_save_behind_an_open_one_does_not_wait_for_a_server_that_is_away(url, lose, monkeypatch):
    monkeypatch.setattr("cairn.kept._PATIENCE_S", 0.01)
    monkeypatch.setattr(Decision, "_is_reached", lambda *_: False)
    lose(skipped=[3], open=[2])
    run, undone = Run(url), []
    run.save(1, state(1)).durable.result(60)
    second = run.save(2, state(2), unwanted=[1], undo=lambda: undone.append(2))
    assert run.save(3, state(3), unwanted=[2], undo=lambda: undone.append(3)).skipped and undone == [3]
    second._op._op.is_lost = True
    assert run.decided() and undone == [3, 2]
    run.close()
    assert lineage(url, "kept") == [1]


def test_what_a_killed_training_did_not_let_go_is_let_go_when_it_resumes(url):
    """Between the commit and the next save the tag of what that commit makes unwanted is still there. What the framework
    wants keeps the tag, and so does what nobody has decided about."""
    run = Run(url)
    for step, unwanted in ((1, []), (2, []), (3, [*range(100_000, 110_000), 2, 1]), (4, [])):  # more than fit into the metadata
        run.save(step, state(step), unwanted=unwanted).durable.result(60)
    run._checkpointer.close()  # as a kill leaves it
    again = Run(url)
    assert again.restore(state(0), 3).step == 3
    again.decision.keep([3, 2])
    again.save(5, state(5))
    again.close()
    assert lineage(url, "kept") == [5, 3, 2]


def test_a_save_of_which_nobody_has_heard_is_superseded_as_well(url, lose):
    """The server may have committed it, and then it keeps a step of an attempt as it is."""
    lose(unheard=[2])
    run = Run(url)
    for value, step in enumerate([1, 2, 3]):
        run.save(step, state(value))
    lose()
    run.save(3, state(3))  # follows step 2, of which it hears now
    assert lineage(url) == [3, 2, 1] and content(url) == (3, 3)
    lose(unheard=[2])
    run.save(2, state(4))
    lose()
    run.save(2, state(5)).durable.result(60)
    run.close()
    assert lineage(url) == [2, 1] and content(url) == (2, 5)


def test_what_an_interrupted_save_has_stored_is_superseded(url, lose):
    run = Run(url)
    for value, step in enumerate([1, 1, 2, 2]):
        lose(interrupted=[step] if value in (0, 2) else [])
        try:
            run.save(step, state(value))
        except KeyboardInterrupt:
            assert value in (0, 2)
    run.close()
    assert lineage(url) == [2, 1] and [content(url, step) for step in (2, 1)] == [(2, 3), (1, 1)]


@pytest.mark.parametrize("error, is_reached", [(cairn.UnreachableError, False), (cairn.DeniedError, True)])
def test_a_server_that_answers_with_an_error_is_not_away(error, is_reached):
    """Nor is the error raised, since the other ranks would wait for this one's answer. One that was away is asked for
    a short time only."""
    asked = []

    class Server:
        @staticmethod
        def status(_, seconds):
            asked.append(seconds)
            raise error.of("the test")

    decision = Decision()
    assert decision._is_reached(Server) is is_reached
    decision._is_away = True
    assert decision._is_reached(Server) is is_reached and asked == [5.0, 1.0]


def test_a_wanted_checkpoint_that_is_forgotten_just_now_ends_no_save(url, monkeypatch):
    def fail(*_, **__):
        raise cairn.NotFoundError.of("the test")

    run = Run(url)
    run.save(1, state(1), is_kept=False).durable.result(60)
    run.decision.keep([1])
    with monkeypatch.context() as patch:
        patch.setattr(run._checkpointer, "annotate", fail)
        run.save(2, state(2))
    run.save(3, state(3))
    run.close()
    assert lineage(url, "kept") == [3, 2, 1]


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize("attempt", [None, "1" * 32])
def test_a_step_that_is_saved_again_supersedes_and_follows_what_was_before_it(url, closes, attempt):
    run = Run(url, attempt=attempt)
    for value, step in enumerate([1, 2, 3, 3, 2, 4]):
        run.save(step, state(value))
        if closes:
            run.close()
    run.close()
    assert lineage(url) == [4, 2, 1]
    assert [content(url, step) for step in ("latest", 2, 1)] == [(4, 5), (2, 4), (1, 0)]
    run.save(1, state(6))
    run.close()
    assert lineage(url) == [1] and content(url) == (1, 6)


@pytest.mark.parametrize("attempt", [None, "1" * 32])
def test_a_training_that_begins_anew_follows_nothing(url, attempt):
    for value in range(2):
        run = Run(url, attempt=attempt)
        for step in (1, 2):
            run.save(step, state(value))
        run.close()
    assert content(url) == (2, 1)
    run.begin()
    run.save(9, state(2))
    run.close()
    assert lineage(url) == [9]
