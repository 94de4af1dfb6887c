# SPDX-License-Identifier: Apache-2.0
"""Readers are a group without an attempt, a rank that does not come is named in time, one that refuses ends the step on all,
and what is changed or differs is kept (cases for ranks.py)."""

import contextlib
import os
import signal
import socket
import time
import warnings

import numpy
import pytest
import torch
import torch.distributed as dist

import cairn
from bed import assert_same
from cairn.torch import CairnWarning, Checkpointer

WAIT_S = 4.0  # for ranks that have just met, which even on a busy machine are less apart


def together(name, count):
    """Returns when so many ranks have come to it."""
    store = dist.distributed_c10d._get_default_store()
    store.add(name, 1)
    while store.add(name, 0) < count:
        time.sleep(0.005)  # the others need the processor


def leave(how):
    """This rank is not heard of any more: it stands still, is killed, or has raised and comes to nothing of Cairn's."""
    if how == "raise":
        raise RuntimeError("a bug of the training")
    os.kill(os.getpid(), {"stop": signal.SIGSTOP, "kill": signal.SIGKILL}[how])


def told(call):
    """[name of the error, its text, seconds] of a call that must fail."""
    began = time.monotonic()
    try:
        call()
    except cairn.CairnError as error:
        return [type(error).__name__, error.text, time.monotonic() - began]
    return ["nothing", "", time.monotonic() - began]


class Metrics:
    def __init__(self, value):
        self.value = value

    def state_dict(self):
        return self.value

    def load_state_dict(self, value):
        self.value = value


def absent(rank, world, url, where, how):
    """The last rank leaves before ``where``, and the others call it."""
    gone = rank == world - 1
    state = {"w": torch.ones(1000), "x": torch.ones(5)}
    if where == "Checkpointer":
        if gone:
            leave(how)
        together(url, world - 1)
        return told(lambda: Checkpointer(url, state, ranks_deadline=WAIT_S))
    ck = Checkpointer(url, state, on_error="raise", interval=1000.0)
    ck.save(1).durable.result(60)
    calls = {"restore": ck.restore, "share": lambda: ck.restore(share="broadcast"),
             "should_stop": lambda: [ck.should_stop(step) for step in range(7, 10)],
             "should_save": lambda: [ck.should_save(step) for step in range(7, 10)]}
    for step in range(3):
        ck.should_stop(step)
    if gone:
        ck.should_stop(3)
        ck.save(4).released.result(60)
        leave(how)
    ck._group.seconds = ck._restore_s = WAIT_S  # also of what this begins: the last rank may leave before it has sent its part
    ck.should_stop(3)
    ck.save(4)
    together(url, world - 1)
    first = told(calls[where])
    return [*first, *told(lambda: ck.should_stop(20))]


def late(rank, world, url):
    """Within the deadline a rank may come as late as it likes."""
    if rank == 1:
        time.sleep(1.5)
    with Checkpointer(url, {"w": torch.ones(3)}, ranks_deadline=30) as ck:
        return ck.restore() is None


# --- readers ---------------------------------------------------------------------------------------------------

def read_only(rank, world, url, tokens):
    """A group of readers needs no attempt, and its ranks agree."""
    state = {"w": torch.full((8,), 3.0), "own": cairn.torch.per_rank({"r": rank})}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        ck.save(2).durable.result(60)
    state = {"w": torch.zeros(8), "own": cairn.torch.per_rank({"r": -1})}
    with Checkpointer(url, state, read_only=True, attempt=tokens[rank] if tokens else None) as ck:
        assert ck.restore().step == 2
        assert ck.state["own"].obj == {"r": rank} and state["w"].tolist() == [3.0] * 8
        assert ck.restore(1, share="broadcast").step == 1
        assert not ck.should_stop(1)
        with pytest.raises(cairn.ReadOnlyError):
            ck.save(3)
    with Checkpointer(url + "-none", {"w": torch.zeros(1)}, read_only=True) as ck:
        assert ck.restore() is None
    with Checkpointer(url, {"w": torch.zeros(8)}, read_only=True) as ck:
        with pytest.raises(cairn.NotFoundError):
            ck.restore(77)
    dist.barrier()


def read_damaged(rank, world, url):
    """One rank reads the damaged object; all take the same older checkpoint."""
    from cases_life import shards
    tensor = shards(world)
    with Checkpointer(url, {"x": {"t": tensor}}, read_only=True) as ck:
        restored = ck.restore()
        assert tensor.to_local().unique().tolist() == [10 + rank]
        return [restored.step, restored.fell_back]


# --- refusals --------------------------------------------------------------------------------------------------

def refuses(rank, world, url, who, first):
    """One rank cannot save: all hear of it at once, with the reason, and the next save is whole."""
    extra = {"t": torch.ones(2), "n": 0}
    with Checkpointer(url, {"extra": extra}, on_error="raise", save_deadline=240) as ck:
        if not first:
            ck.save(0).durable.result(60)
        extra["bad"] = object() if rank == who else 0
        began = time.monotonic()
        if rank == who:
            with pytest.raises(cairn.UnsupportedValueError, match=r"extra\.bad"):
                ck.save(1)
            text = ""
        else:
            with pytest.raises(cairn.UnsupportedError) as error:
                ck.save(1).durable.result(60)
            text = error.value.text
        seconds = time.monotonic() - began
        extra["bad"] = 1
        if not first:  # otherwise the next step comes while others may still hear of this one
            dist.barrier()
            ck.save(1).durable.result(60)
        ck.save(2).durable.result(60)
        assert ck.restore().step == 2
    return [text, seconds]


def refuses_otherwise(rank, world, url):
    """Foreign code that fails, and what the library refuses."""
    class Odd:
        def state_dict(self):
            if rank == 1:
                raise KeyError("nothing here")
            return {}

        def load_state_dict(self, state):
            pass

    with Checkpointer(url, {"odd": Odd(), "w": torch.ones(3)}, on_error="raise") as ck:
        if rank == 1:
            with pytest.raises(KeyError):
                ck.save(1)
            return ""
        with pytest.raises(cairn.InternalError) as error:
            ck.save(1).durable.result(60)
        return error.value.text


# --- the default device ----------------------------------------------------------------------------------------

def default_device(rank, world, url):
    """PyTorch makes tensors on the meta device unless it is told otherwise: nothing of Cairn's minds."""
    torch.manual_seed(1)
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    state = {"model": model, "optim": optimizer, "extra": {"ema": torch.full((6,), 2.0)}}
    before = {key: value.clone() for key, value in model.state_dict().items()}
    torch.set_default_device("meta")
    try:
        with Checkpointer(url, state, on_error="raise", interval=1000.0) as ck:
            assert ck.restore() is None
            ck.should_stop(0), ck.should_save(0)
            ck.save(1).durable.result(60)
            with torch.no_grad():
                for value in (*model.parameters(), state["extra"]["ema"]):
                    value.zero_()
            for share in (None, "broadcast"):
                assert ck.restore(share=share).step == 1
            ck.should_stop(1), ck.should_save(1)
        fresh = {"model": model, "optim": torch.optim.AdamW(model.parameters()), "extra": {}}
        with Checkpointer(url, fresh, on_error="raise", coordinate={"dp": rank}) as ck:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CairnWarning)
                assert ck.restore(strict=False).step == 1
    finally:
        torch.set_default_device("cpu")
    assert_same(dict(model.state_dict()), before)
    assert state["extra"]["ema"].tolist() == [2.0] * 6 and fresh["extra"]["ema"].tolist() == [2.0] * 6


# --- a state that is changed -----------------------------------------------------------------------------------

def replaced(rank, world, url):
    """Models, optimizers and values that are put into ck.state, added, and removed."""
    model = torch.nn.Linear(3, 2)
    with Checkpointer(url, {"m": model, "old": 1}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        other = torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.Linear(5, 2))  # other names
        with torch.no_grad():
            for param in other.parameters():
                param.fill_(7.0)
        ck.state["m"], ck.state["new"] = other, {"n": 4}
        del ck.state["old"]
        ck.save(2).durable.result(60)
        with torch.no_grad():
            for param in other.parameters():
                param.zero_()
        ck.state["new"]["n"] = 0
        assert ck.restore().step == 2
        assert all(param.unique().tolist() == [7.0] for param in other.parameters()) and ck.state["new"] == {"n": 4}
        ck.state["m"] = model
        ck.state.pop("new")
        ck.state["old"] = 0
        assert ck.restore(1).step == 1 and ck.state["old"] == 1
        ck.state["a.b"] = 1
        with pytest.raises(cairn.InvalidError, match="'a.b'"):
            ck.save(3)


def replaced_on_one(rank, world, url):
    """Only one rank has changed what it holds: no save and no restore goes on without the others, until they are alike again."""
    with Checkpointer(url, {"m": torch.nn.Linear(3, 2)}, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        if rank == 1:
            ck.state["m"] = torch.nn.Linear(9, 9)
        answers = [told(lambda: ck.save(2).durable.result(60)), told(lambda: ck.save(3).durable.result(60)), told(ck.restore)]
        if rank == 0:
            ck.state["m"] = torch.nn.Linear(9, 9)
        ck.save(4).durable.result(60)
        ck.state["m"] = torch.nn.Linear(3, 2)
        assert ck.restore(1).step == 1
    return answers


def unstorable(rank, world, url):
    """One rank's state holds a value that cannot be stored: the Checkpointer is made on no rank."""
    return told(lambda: Checkpointer(url, {"x": 1, "extra": {"a": [torch.ones(2), object() if rank == 1 else 0]}}))


# --- a rank that was late --------------------------------------------------------------------------------------

def late_once(rank, world, url, where):
    """The last rank comes to one call when the others have given it up. All have failed then, and the next call goes on."""
    state, store = {"w": torch.full((4,), 3.0)}, dist.distributed_c10d._get_default_store()
    with Checkpointer(url, state, on_error="raise", interval=1000.0) as ck:
        ck.save(1).durable.result(60)
        calls = {"restore": ck.restore, "should_stop": lambda: [ck.should_stop(step) for step in (1, 2)],
                 "should_save": lambda: [ck.should_save(step) for step in (1, 2)]}
        given_up = [f"{url}/{where}/{other}" for other in range(world - 1)]
        if rank == world - 1:
            store.wait(given_up)
        else:
            together(f"{url}/{where}", world - 1)
            ck._group.seconds = ck._restore_s = WAIT_S
        failed = told(calls[where])
        if rank < world - 1:
            store.set(given_up[rank], "")
        ck._group.seconds = ck._restore_s = 60.0
        dist.barrier()
        state["w"].zero_()
        assert ck.restore().step == 1 and state["w"].tolist() == [3.0] * 4
        # A rank that failed in an earlier step of the training than the others is at their step again with the second call.
        assert not any(ck.should_stop(step) or ck.should_save(step) for step in range(4 - (rank == 0), 9))
        ck.save(2).durable.result(60)
        assert ck.restore(share="broadcast").step == 2
        ck.request_stop()
        assert [ck.should_stop(step) for step in (9, 10, 11)][-1]
    return failed


# --- states that differ ----------------------------------------------------------------------------------------

class Sampler:
    """A sampler or loader that nobody has wrapped."""

    def __init__(self, at):
        self.at = at

    def state_dict(self):
        return {"at": self.at, "order": torch.arange(3) + self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Schedule(Sampler):
    """Nothing in its name or its bases says that it belongs to a rank."""

    def state_dict(self):
        return {"at": self.at}


class Plan:
    state_dict, load_state_dict, __init__ = Schedule.state_dict, Sampler.load_state_dict, Sampler.__init__


def experts(rank, idle):
    """A model of which each rank's tokens have gone to some experts only: others have no optimizer state."""
    torch.manual_seed(3)
    model = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1 * (rank + 1))
    for idx, expert in enumerate(model):
        if idx not in idle[rank]:
            expert(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    return model, optimizer


def differs(rank, world, url, idle):
    """What differs comes back on each rank as it was there."""
    model, optimizer = experts(rank, idle)
    names = {id(param): name for name, param in model.named_parameters()}
    want = {names[id(param)]: {key: value.clone() for key, value in state.items()} for param, state in optimizer.state.items()}
    state = {"model": model, "optim": optimizer, "loader": Sampler(10 + rank), "plan": Plan(20 + rank),
             "extra": {"n": rank, "t": torch.ones(2)}}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
    for again in range(2):  # into a state that is used, and into a new one
        if again:
            model = torch.nn.ModuleList(torch.nn.Linear(2, 2) for _ in range(3))
            optimizer = torch.optim.AdamW(model.parameters())
        loader, plan = Sampler(0), Plan(0)
        state = {"model": model, "optim": optimizer, "loader": loader, "plan": plan, "extra": {"n": -1, "t": torch.zeros(2)}}
        with warnings.catch_warnings():
            warnings.simplefilter("error", CairnWarning)
            with Checkpointer(url, state, on_error="raise") as ck:
                assert ck.restore().step == 1
        assert (loader.at, plan.at, state["extra"]["n"]) == (10 + rank, 20 + rank, rank)
        names = {id(param): name for name, param in model.named_parameters()}
        found = {names[id(param)]: dict(value) for param, value in optimizer.state.items()}
        assert found.keys() == want.keys(), (found.keys(), want.keys())
        for name, value in want.items():
            for key in value:
                assert found[name][key].shape == value[key].shape, (name, key)
        assert optimizer.param_groups[0]["lr"] == 0.1 * (rank + 1)


def differs_told(rank, world, url):
    """The first save names what differs, and on which ranks, once, on rank 0, whatever becomes of it."""
    def state(odd):
        mine = rank if odd else 0
        model = torch.nn.Linear(2, 2)
        return {"m": model, "optim": torch.optim.SGD(model.parameters(), lr=0.1 * (1 + mine)), "plan": Plan(mine), "same": {"n": 1},
                "extra": {"n": [mine] * 3, "t": torch.full((3,), float(mine))}, "big": torch.full((1 << 18,), float(mine)),
                "long": ["x" * 1000 + str(mine)] * 2000, "loader": Sampler(rank), "own": cairn.torch.per_rank({"r": rank})}
    answers = []
    for odd, end in ((False, "close"), (True, "close"), (True, "wait"), (True, "save")):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            with Checkpointer(f"{url}-{end}-{int(odd)}", state(odd), on_error="raise") as ck:
                for step in (1, 2):
                    ck.save(step).durable.result(60)
                    if end == "wait":
                        ck.wait()
                seen = len(told)
        assert seen == len(told) or end == "close"
        answers.append(sorted(str(item.message) for item in told if issubclass(item.category, CairnWarning)))
    return answers


def tensors_differ(rank, world, url):
    """Values beyond a few thousand, and tensors under one name: small ones are kept for each rank, a large one is refused."""
    run, big = Metrics({"seen": list(range(rank, rank + 20000)), "ema": torch.tensor([float(rank)])}), torch.zeros(1 << 20)
    state = {"extra": {"n": list(range(rank, rank + 20000)), "t": torch.full((64,), float(rank)), "a": numpy.full(3, rank)},
             "run": run, "huge": ["x" * 1000 + str(rank)] * 2000, "big": big}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        big.fill_(float(rank))
        ck.save(2).durable.result(60)
        run.value, ck.state["extra"]["n"] = {}, []
        ck.state["extra"]["t"].fill_(-1)
        ck.state["extra"]["a"].fill(-1)
        with pytest.warns(CairnWarning, match="huge: .*rank 0") if rank else contextlib.nullcontext():
            ck.restore(1)
        assert ck.state["extra"]["n"][0] == rank and ck.state["extra"]["t"].tolist() == [rank] * 64
        assert ck.state["extra"]["a"].tolist() == [rank] * 3
        assert run.value["seen"][0] == rank and run.value["ema"].item() == rank
        with pytest.raises(cairn.ReplicasDifferError, match="big: .*use per_rank"):
            ck.restore(2)
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            ck.restore(2, strict=False)
        return any("big: " in str(item.message) for item in told)  # a rank whose bytes are the stored ones has nothing to tell


def differs_elsewhere(rank, world, url):
    """The ranks are others: what they had alike comes back, and what differed is named."""
    extra, loader = {"n": -1, "t": torch.zeros(2)}, Sampler(0)
    with Checkpointer(url, {"extra": extra}, on_error="raise", coordinate={"dp": rank}) as ck:
        with pytest.warns(CairnWarning, match="extra: .*rank 1 held something else than rank 0"):
            ck.restore(strict=False)
    assert extra["n"] == 0
    with Checkpointer(url, {"loader": loader}, coordinate={"dp": rank}) as ck:
        with pytest.raises(cairn.UnsupportedError, match="loader: "):
            ck.restore(strict=False)


def older(rank, world, url):
    """A checkpoint of a version in which rank 0's loaders and values stood for all is restored as it was then."""
    from cairn.torch import state as of_state
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(of_state, "rule_of", lambda obj: None)
        patch.setattr(of_state.State, "_own", lambda *args: {})
        patch.setattr(of_state, "keep", lambda found: {})
        with Checkpointer(url, {"loader": Sampler(10 + rank), "extra": {"n": rank}}, on_error="raise") as ck:
            ck.save(1).durable.result(60)
    for place in (None, {"dp": rank}):  # the same ranks, and others
        loader, extra = Sampler(0), {"n": -1}
        with Checkpointer(url, {"loader": loader, "extra": extra}, on_error="raise", coordinate=place) as ck:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", CairnWarning)
                assert ck.restore().step == 1
        assert (loader.at, extra) == (10, {"n": 0})
