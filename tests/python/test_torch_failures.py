# SPDX-License-Identifier: Apache-2.0
"""Bad input is named before anything moves, and saves that fail are never silent, also in workers and at the
interpreter's end."""

import gc
import logging
import mmap
import os
import pickle
import signal
import subprocess
import sys
import threading
import warnings

import numpy
import pytest
import torch

import cairn
from bed import assert_same, restore, save, small_model
from cairn.torch import Checkpointer, futures, similar
from cairn.torch.futures import Failures


# --- names ----------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("saved, live, hint", [("model", "net", "net is perhaps the stored model"),
                                               ("optimizer", "optim", "optim is perhaps the stored optimizer")])
def test_a_renamed_key_of_the_state_is_named_with_the_nearest(url, saved, live, hint):
    save(url, {saved: small_model(), "x": {"a": 1}})
    with pytest.raises(cairn.MissingTensorError, match=hint):
        restore(url, {live: small_model(), "x": {"a": 1}})


def test_renamed_tensors_are_named_with_the_nearest(url):
    class Net(torch.nn.Module):
        def __init__(self, *names):
            super().__init__()
            for name in names:
                self.add_module(name, torch.nn.Linear(2, 2))

    save(url, {"model": Net("encoder", "classifier")})
    with pytest.raises(cairn.MissingTensorError) as caught:
        restore(url, {"model": Net("encoder", "classifer")})
    text = caught.value.text
    assert "the checkpoint lacks model.classifer.weight, model.classifer.bias" in text
    assert "the state lacks model.classifier.weight, model.classifier.bias" in text
    assert "model.classifer.weight is perhaps the stored model.classifier.weight" in text
    inner = torch.nn.Module()
    inner.net = Net("encoder", "classifier")  # one prefix more
    with pytest.raises(cairn.MissingTensorError, match=r"model\.net\.encoder\.weight is perhaps the stored model\.encoder\.w"):
        restore(url, {"model": inner})


def test_long_lists_are_cut():
    missing, extra = [f"m.layer{i}.weight" for i in range(40)], [f"m.block{i}.weight" for i in range(3000)]
    text = similar.explain(missing, extra)
    assert "and 30 more" in text and "and 2990 more" in text and len(text) < 2000
    assert similar.pairs(["a.x"], ["b.x"]) == [] and similar.pairs(["optim"], ["optim2"]) == [("optim", "optim2")]


def test_what_is_a_ranks_own_in_the_one_and_everybodys_in_the_other(url):
    save(url, {"g": torch.Generator(), "n": 1})
    with pytest.raises(cairn.MissingTensorError, match=r": g: a rank's own in the one .* as it was said in the save; strict") as caught:
        restore(url, {"g": None, "n": 1})
    assert "lacks" not in caught.value.text


@pytest.mark.parametrize("options", [{"max_failures": 0}, {"max_failures": "3"}, {"max_age": -1}, {"max_age": "x"},
                                     {"max_age": float("nan")}, {"snapshot": "lazy", "verify_staged": "foo"}])
def test_options_that_cannot_be_are_refused_at_once(url, options):
    with pytest.raises(cairn.InvalidError, match=f"{list(options)[-1]} is "):
        Checkpointer(url, {"n": 1}, **options)


def test_a_step_that_is_saved_already_says_so(url):
    """The server keeps one content for a step of an attempt; what has changed since is not saved in silence."""
    state = {"n": 1}
    with Checkpointer(url, {"x": state}, on_error="raise") as ck:
        ck.save(5).durable.result(60)
        state["n"] = 2
        with pytest.warns(cairn.torch.CairnWarning, match="step 5 is already saved and stays as it was"):
            ck.save(5).durable.result(60)
        ck.restore(5)
        assert state["n"] == 1
        state["n"] = 3
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ck.save(5).durable.result(60)  # after a restore it is another term's
        state["n"] = 4
        ck.restore()
        assert state["n"] == 3


# --- memory -----------------------------------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore:The given buffer is not writable")
def test_read_only_memory(url, tmp_path):
    """It can be saved from; a restore into it is an error that names it, not a crash."""
    file = tmp_path / "weights"
    file.write_bytes(torch.arange(2048.0).numpy().tobytes())
    with open(file, "rb") as opened:
        mapped = mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ)
    model = torch.nn.Linear(2, 2)
    model.weight = torch.nn.Parameter(torch.frombuffer(mapped, dtype=torch.float32).reshape(1024, 2))
    save(url, {"model": model})
    bias = model.bias.detach().clone()
    with torch.no_grad():
        model.bias.zero_()
    with pytest.raises(cairn.InvalidError, match=r"model\.weight: .*read-only.*clone"):
        restore(url, {"model": model})
    assert model.bias.tolist() == [0, 0]  # nothing was touched
    model.weight = torch.nn.Parameter(model.weight.detach().clone())
    restore(url, {"model": model})
    assert_same(model.bias.detach(), bias)
    del model
    frozen = numpy.arange(5.0)
    frozen.flags.writeable = False
    save(url, {"x": {"a": frozen}, "y": frozen}, 2)
    live = numpy.zeros(5)
    live.flags.writeable = False
    with Checkpointer(url, {"x": {"a": live}, "y": live}) as ck:
        ck.restore()
        assert_same([ck.state["x"]["a"], ck.state["y"]], [frozen, frozen])  # replaced
        assert live.tolist() == [0] * 5


def test_ndarrays_of_another_order_in_place(url):
    value = numpy.arange(12.0).reshape(3, 4)
    save(url, {"x": value, "y": {"z": value}})
    x, z = numpy.zeros((4, 3)).T, numpy.zeros((6, 8))[::2, ::2]
    restore(url, {"x": x, "y": {"z": z}})
    assert_same([x.copy(), z.copy()], [value, value])


# --- on_error ---------------------------------------------------------------------------------------------------------

@pytest.fixture
def clock(monkeypatch):
    now = [1000.0]
    monkeypatch.setattr(futures.time, "monotonic", lambda: now[0])
    return now


LOST = cairn.ConnectionLostError.of("made up")


def test_torch_13_warn_logs_counts_and_raises_in_time(clock, caplog):
    """Logged each time; raised by the save after max_failures in a row, or max_age after the last good one."""
    rule = Failures("warn", 3, 100.0)
    with caplog.at_level(logging.WARNING, "cairn"):
        for n in (1, 2):
            rule.failed(n, LOST)
            rule.check(before_save=True)
        rule.failed(3, LOST)
        rule.check(before_save=False)  # wait and close only report
        with pytest.raises(cairn.ConnectionLostError, match="3 saves failed in a row.*made up"):
            rule.check(before_save=True)
        rule.check(before_save=True)  # said once; the count begins again
    assert [record.args[0] for record in caplog.records] == [1, 2, 3] and rule.total == 3
    rule.succeeded()
    clock[0] += 1000  # old, but nothing has failed since
    rule.check(before_save=True)
    rule.failed(9, LOST)
    with pytest.raises(cairn.ConnectionLostError, match="1 saves failed.*1000 s ago"):
        rule.check(before_save=True)
    rule.succeeded()
    rule.failed(10, LOST)
    clock[0] += 99
    rule.check(before_save=True)
    clock[0] += 2
    with pytest.raises(cairn.ConnectionLostError):
        rule.check(before_save=True)
    forever = Failures("warn", 2, None)
    forever.failed(1, LOST)
    clock[0] += 1e9
    forever.check(before_save=True)


def test_short_outages_share_one_warning_a_minute(clock, caplog):
    away = cairn.SkippedError.of("step 1 was skipped because the server is away")
    rule = Failures("warn", 3, None)
    with caplog.at_level(logging.WARNING, "cairn"):
        for n in range(4):
            rule.failed(n, away)
            rule.succeeded()
            clock[0] += 10
        assert len(caplog.records) == 2 and caplog.messages[0].startswith("1 save was skipped since ")
        assert caplog.messages[1].startswith("a save is durable again, after 1 save was skipped")
        clock[0] += 60
        rule.failed(5, away)
    assert len(caplog.records) == 3 and rule.skipped == 5 and rule.outage.skipped == 1


def test_torch_13_raise_and_callback(clock):
    rule = Failures("raise", 3, None)
    rule.failed(1, LOST)
    rule.failed(2, cairn.IoError.of("second"))
    with pytest.raises(cairn.ConnectionLostError):  # the first one, once
        rule.check(before_save=False)
    rule.check(before_save=True)
    rule.failed(3, LOST, told=True)  # the future's result() raised it: not twice
    rule.check(before_save=True)
    assert rule.total == 3
    told = []
    rule = Failures(lambda step, error: told.append((step, error)), 1, 0.001)
    for step in range(5):
        rule.failed(step, LOST)
        clock[0] += 10
        rule.check(before_save=True)  # the callback decides, not the limits
    assert [step for step, _ in told] == list(range(5))

    def stop(step, error):
        raise SystemExit(f"step {step}: {error}")

    with pytest.raises(SystemExit, match="step 7: CONNECTION_LOST"):
        Failures(stop, 3, None).failed(7, LOST)


@pytest.mark.parametrize("on_error", ["warn", "raise", lambda step, error: None], ids=["warn", "raise", "callback"])
def test_torch_13_fencing_always_raises(on_error):
    rule = Failures(on_error, 100, None)
    rule.failed(1, cairn.FencedError.of("a newer attempt"))
    rule.succeeded()
    for before_save in (True, False, True):
        with pytest.raises(cairn.FencedError):
            rule.check(before_save)
    rule.restored()
    rule.check(False)


def test_torch_13_exceptions_survive_pickling():
    for name in cairn.errors.__all__:
        cls = getattr(cairn.errors, name)
        if isinstance(cls, type) and issubclass(cls, cairn.CairnError) and cls is not cairn.CairnError:
            error = pickle.loads(pickle.dumps(cls.of("a\nb")))
            assert type(error) is cls and (error.code, error.name, error.text) == (cls.CODE, cls.NAME, "a\nb")


# --- processes --------------------------------------------------------------------------------------------------------

class Numbers(torch.utils.data.Dataset):
    def __init__(self, held=None):
        self.held = held

    def __len__(self):
        return 4

    def __getitem__(self, idx):
        return idx


def test_spawned_workers(url):
    """They disturb nothing; a dataset that holds the Checkpointer is told so."""
    with Checkpointer(url, {"x": torch.ones(100000)}, on_error="raise") as ck:
        handle = ck.save(1)
        loader = torch.utils.data.DataLoader(Numbers(), num_workers=1, multiprocessing_context="spawn")
        assert [int(item) for item in loader] == [0, 1, 2, 3]
        handle.durable.result(60)
        with pytest.raises(cairn.UnsupportedValueError, match="keep it out of the dataset"):
            next(iter(torch.utils.data.DataLoader(Numbers(ck), num_workers=1, multiprocessing_context="spawn")))
        ck.save(2).durable.result(60)


@pytest.mark.parametrize("ending", ["fall off", "exception"])
def test_the_interpreter_ends_with_a_save_in_flight(url, ending):
    """It is said, waited for, and durable; the exit status is the program's own."""
    last = {"fall off": "", "exception": "raise ValueError('mine')"}[ending]
    code = (f"import torch, cairn.torch\nck = cairn.torch.Checkpointer({url!r}, {{'x': torch.ones(3000000)}})\n"
            f"ck.save(7)\n{last}\n")
    done = subprocess.run([sys.executable, "-c", code], timeout=120, capture_output=True, text=True)
    assert done.returncode == {"fall off": 0, "exception": 1}[ending], done.stderr
    with cairn.Client(url, read_only=True) as client:
        assert [c.step for c in client.list()] == [7]


def test_a_dropped_checkpointer_waits_for_its_save(own_daemon, caplog):
    """A function that returns without close: what it saved is not lost."""
    ck = Checkpointer(own_daemon.url("dropped"), {"x": torch.ones(1000)})
    os.kill(own_daemon.process.pid, signal.SIGSTOP)
    goes_on = threading.Timer(0.3, os.kill, (own_daemon.process.pid, signal.SIGCONT))
    handle = ck.save(1)
    assert not handle.durable.done()
    goes_on.start()
    with caplog.at_level(logging.WARNING, "cairn"):
        del ck
        gc.collect()
    goes_on.join()
    assert handle.durable.result(0).step == 1
    assert "the Checkpointer was dropped while the save of step 1 is in flight" in caplog.text


def test_the_end_with_a_save_that_cannot_end(url):
    """The other rank never came: the wait is bounded, and what was lost is named."""
    code = f"""
import torch, cairn.torch
from cairn import exits
exits.WAIT_S = 0.5
ck = cairn.torch.Checkpointer({url!r}, {{"x": torch.ones(3)}}, rank=0, world_size=2, attempt=cairn.new_attempt(),
                              save_deadline=900)
ck.save(7)
"""
    # A wait for the save's deadline would take three times the limit; importing PyTorch alone can take a minute of a busy machine.
    done = subprocess.run([sys.executable, "-c", code], timeout=300, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "while the save of step 7 is in flight" in done.stderr and "step 7 was not saved" in done.stderr


def test_unsupported_values_are_named_before_the_save_starts(url):
    """In each kind of object, with the whole path; the next save is whole."""
    class Odd:
        def state_dict(self):
            return {"deep": [{"f": print}]}

        def load_state_dict(self, state):
            pass

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.param_groups[0]["hook"] = print
    cases = {"sched": (Odd(), r"sched\.deep\[0\]\.f: "), "optim": (optimizer, r"optim\.groups\[0\]\.hook: "),
             "own": (cairn.torch.per_rank({"k": print}), r"own\.k: ")}
    for key, (value, path) in cases.items():
        with pytest.raises(cairn.UnsupportedValueError, match=path + r".*builtin_function_or_method"):
            ck = Checkpointer(url, {"model": model, **({key: value} if key == "own" else {})})
            with ck:
                ck.state[key] = value
                try:
                    ck.save(1)
                finally:
                    assert ck.failed_saves == 0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save(url, {"model": model}, 1)
