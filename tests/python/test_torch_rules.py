# SPDX-License-Identifier: Apache-2.0
"""Checkpointer keeps what every adapter owes its framework, rule by rule. Rules 5 and 10 are in test_torch_life.py."""

import copy
import os
import pathlib
import pickle
import signal
import subprocess
import sys

import pytest
import torch

import cairn
from bed import assert_same, one_step, optimizer_view, restore, save, seed, small_model
from cairn.torch import Checkpointer


def listed(url):
    with cairn.Client(url, read_only=True) as client:
        return [(c.step, c.latest) for c in client.list()]


def test_rule_01_latest_moves_after_the_commit_of_all_ranks(url):
    """One of two ranks has saved: nothing is listed and the older step is what restores. When the other has, it is."""
    token = cairn.new_attempt()
    values = [{"n": 1}, {"n": 1}]
    cks = [Checkpointer(url, values[rank], on_error="raise", rank=rank, world_size=2, attempt=token) for rank in range(2)]
    first = [ck.save(1) for ck in cks]
    assert [handle.durable.result(60).step for handle in first] == [1, 1]
    alone = cks[0].save(2)
    assert not alone.durable.wait(0.3) and listed(url) == [(1, True)]
    with Checkpointer(url, {"n": 0}, read_only=True) as reader:
        with pytest.warns(cairn.torch.CairnWarning):
            assert reader.restore().step == 1
    other = cks[1].save(2)
    assert other.durable.result(60).step == alone.durable.result(60).step == 2
    assert listed(url) == [(2, True), (1, False)]
    for ck in cks:
        ck.close()


def test_rule_02_released_is_not_durable(url):
    token = cairn.new_attempt()
    with Checkpointer(url, {"n": torch.ones(3)}, rank=0, world_size=2, attempt=token, save_deadline=30) as ck:
        handle = ck.save(1)
        assert handle.released.result(30) is None
        with pytest.warns(DeprecationWarning, match="handed_over"):
            assert handle.staged is handle.released  # the old name
        assert not handle.durable.done()
        with pytest.raises(cairn.AgainError):
            handle.durable.result(0.05)
        handle.abort()
        with pytest.raises(cairn.CairnError):
            handle.durable.result(30)
        assert handle.released.done() and handle.handed_over.done()


def test_rule_02_handed_over_is_when_the_server_has_it(own_daemon):
    """A server that stands still has nothing: the state may change, but the process must not die yet."""
    with Checkpointer(own_daemon.url("moments"), {"n": torch.ones(3)}, on_error="raise") as ck:
        ck.save(0).durable.result(60)
        os.kill(own_daemon.process.pid, signal.SIGSTOP)
        try:
            handle = ck.save(1)
            assert handle.released.result(30) is None
            assert not handle.handed_over.wait(1.0) and not handle.durable.done()
        finally:
            os.kill(own_daemon.process.pid, signal.SIGCONT)
        assert handle.handed_over.result(30) is None
        assert handle.durable.result(30).step == 1


def test_rule_02_after_the_hand_over_the_process_may_die(own_daemon):
    """Killed at that moment: the server finishes the save alone."""
    url = own_daemon.url("dies")
    code = f"""
import os, signal, torch, cairn.torch
ck = cairn.torch.Checkpointer({url!r}, {{"n": torch.full((5_000_000,), 7.0)}})
ck.save(1).handed_over.result(60)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=120).returncode == -signal.SIGKILL
    state = {"n": torch.zeros(5_000_000)}
    assert restore(url, state).step == 1 and bool((state["n"] == 7).all())


def test_rule_03_the_copy_is_a_copy(url):
    """Memory on the CPU, views, ties: what changes after save is not in the checkpoint."""
    base = torch.arange(40.0)
    tensors = {"plain": torch.arange(5.0), "view": base[3:9], "strided": base[::4], "transposed": base.reshape(5, 8).t(),
               "scalar": torch.tensor(2.0)}
    tensors["tied"] = tensors["plain"]
    before = {name: tensor.clone() for name, tensor in tensors.items()}
    with Checkpointer(url, {"t": tensors}, on_error="raise") as ck:
        handle = ck.save(1)
        with torch.no_grad():
            base.fill_(-1)
            tensors["plain"].fill_(-2)
            tensors["scalar"].fill_(-3)
        handle.durable.result(60)
    live = {"t": {}}
    restore(url, live)
    assert_same(live["t"], before)


def test_rule_04_no_tensor_is_known_by_its_address(url):
    """Every save looks at the state anew: parameters replaced by others, and other tensors at the same address."""
    model = torch.nn.Linear(3, 3)
    state = {"model": model, "x": {"t": torch.zeros(4)}}
    with Checkpointer(url, state, on_error="raise") as ck:
        kept = {}
        for step in range(4):
            model.weight = torch.nn.Parameter(torch.full((3, 3), float(step)))
            # The memory of the last round's tensor is free and most likely taken again.
            state["x"]["t"] = torch.full((4,), float(10 * step))
            ck.save(step).durable.result(60)
            kept[step] = (step, 10 * step)
        shared = model.weight.detach().reshape(-1)[:4]
        state["x"]["t"] = shared  # now inside the parameter's memory
        ck.save(4).durable.result(60)
    for step, (weight, t) in kept.items():
        other, live = torch.nn.Linear(3, 3), {"t": torch.zeros(4)}
        restore(url, {"model": other, "x": live}, step=step)
        assert other.weight.unique().tolist() == [weight] and live["t"].unique().tolist() == [t]


def test_rule_06_no_exception_that_cannot_be_pickled(url, monkeypatch):
    """Everything that save and restore raise crosses processes, causes and notes included."""
    model = torch.nn.Linear(2, 2)
    save(url, {"model": model})
    calls = [lambda: restore(url, {"model": torch.nn.Linear(3, 2)}), lambda: restore(url, {"other": 1}),
             lambda: restore(url, {"model": 1}), lambda: restore(url, {"model": model}, step=77),
             lambda: save(url, {"x": {"y": object()}}), lambda: Checkpointer(url, {"a.b": 1})]
    for call in calls:
        with pytest.raises(cairn.CairnError) as caught:
            call()
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is type(caught.value) and str(again) == str(caught.value)


def test_rule_07_nothing_of_one_save_is_taken_for_the_next(url):
    """Types, shapes, names, ties and groups change between saves of one Checkpointer; each step restores as it was."""
    model = torch.nn.Sequential(torch.nn.Linear(2, 3))
    extra = {"t": torch.ones(3), "gone": 1}
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    want = []
    with Checkpointer(url, {"model": model, "extra": extra, "sched": scheduler}, on_error="raise") as ck:
        def step(number):
            ck.save(number).durable.result(60)
            want.append((copy.deepcopy(model), copy.deepcopy(extra), scheduler.state_dict()))
            optimizer.step()
            scheduler.step()
        step(0)
        extra["t"] = torch.ones(3, dtype=torch.bfloat16)  # the type
        model.bfloat16()
        step(1)
        extra["t"] = torch.ones(2, 3)  # the shape
        del extra["gone"]
        step(2)
        model.append(torch.nn.Linear(3, 2))  # the names
        extra["new"] = [torch.zeros(0)]
        step(3)
        model[0].bias = None
        step(4)
    for number, (there, values, scheduled) in enumerate(want):
        live, found = copy.deepcopy(there), {}
        other = torch.optim.lr_scheduler.StepLR(torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=7.0), 1)
        with torch.no_grad():
            for p in live.parameters():
                p.zero_()
        assert restore(url, {"model": live, "extra": found, "sched": other}, step=number).missing == ()
        assert_same([live.state_dict(), found, other.state_dict()], [there.state_dict(), values, scheduled])


def test_rule_07_two_models_of_one_class_do_not_mix(url):
    """Live and average, generator and critic: one Checkpointer, then two in one process, at the same time."""
    models = [small_model(i) for i in range(2)]
    optimizers = [torch.optim.Adam(model.parameters()) for model in models]
    for model, optimizer in zip(models, optimizers):
        one_step(model, optimizer)
    state = {"a": models[0], "b": models[1], "optim_a": optimizers[0], "optim_b": optimizers[1]}
    with Checkpointer(url, state, on_error="raise") as one, Checkpointer(url + "-2", {"a": models[1]}, on_error="raise") as two:
        handles = [one.save(1), two.save(1)]
        for handle in handles:
            handle.durable.result(60)
    fresh = [small_model(i + 5) for i in range(3)]
    opts = [torch.optim.Adam(model.parameters()) for model in fresh[:2]]
    restore(url, {"a": fresh[0], "b": fresh[1], "optim_a": opts[0], "optim_b": opts[1]})
    restore(url + "-2", {"a": fresh[2]})
    assert_same([m.state_dict() for m in fresh], [m.state_dict() for m in (*models, models[1])])
    assert_same([optimizer_view(o) for o in opts], [optimizer_view(o) for o in optimizers])


def test_rule_08_deleting_comes_after_the_successors_commit(url, daemon):
    """Nothing in the package deletes: retention does, beside the training. It keeps the last one until its successor is committed,
    does nothing the second time, and takes the bytes later: until then what was forgotten can be brought back."""
    def forget(*words, what="forget"):
        program = pathlib.Path(os.environ["CAIRND"]).with_name("cairn")
        done = subprocess.run([program, what, url.partition("run=")[2], *words], text=True, capture_output=True, timeout=60,
                              env={**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}"}, check=False)
        return done.returncode, done.stdout + done.stderr
    last = ("--keep-last", "1", "--keep-least", "1")
    token = cairn.new_attempt()
    values = [{"n": 1}, {"n": 1}]
    cks = [Checkpointer(url, values[rank], on_error="raise", rank=rank, world_size=2, attempt=token) for rank in range(2)]
    assert [handle.durable.result(60).step for handle in [ck.save(1) for ck in cks]] == [1, 1]
    alone = cks[0].save(2)
    assert forget(*last)[0] == 0 and listed(url) == [(1, True)]  # step 2 is open: nothing has succeeded step 1
    other = cks[1].save(2)
    assert other.durable.result(60).step == alone.durable.result(60).step == 2
    code, said = forget(*last)
    assert code == 0 and "1 forgotten" in said and listed(url) == [(2, True)]
    code, said = forget(*last)
    assert code == 0 and "0 forgotten" in said
    assert forget("1@1")[0] == 0  # what is gone already is no failure
    for ck in cks:
        ck.close()
    with cairn.Client(url, read_only=True) as client:
        assert client.status(1, 1).state == "forgotten"
    assert forget("1@1", what="undelete")[0] == 0 and listed(url) == [(2, True), (1, False)]
    with pytest.warns(cairn.torch.CairnWarning):  # two ranks saved it
        assert restore(url, {"n": 0}, step=1).step == 1


def test_rule_09_a_run_is_known_by_its_name(url, tmp_path):
    """Another host name, folder and user: the same run."""
    code = (f"import torch, cairn.torch\nck = cairn.torch.Checkpointer({url!r}, {{'n': 0}}, on_error='raise')\n"
            "r = ck.restore()\nstep = r.step + 1 if r else 0\nck.state['n'] = step\nck.save(step).durable.result(60)\nck.close()\n")
    for i in range(2):
        folder = tmp_path / str(i)
        folder.mkdir()
        env = dict(os.environ, HOSTNAME=f"host{i}", HOME=str(folder), USER=f"user{i}", SLURM_JOB_ID=str(i))
        subprocess.run([sys.executable, "-c", code], check=True, timeout=120, cwd=folder, env=env)
    assert listed(url) == [(1, True), (0, False)]


# --- points of PyTorch that have no other file -------------------------------------------------------------------------

def test_torch_05_saving_never_steps(url):
    """Before the first step, between steps, with gradients there: neither weights nor state nor RNG move."""
    model = small_model(0)
    optimizer = torch.optim.Adam(model.parameters())
    with Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise") as ck:
        for step in range(3):
            if step:
                one_step(model, optimizer)
                model(torch.ones(1, 6)).sum().backward()
            before = copy.deepcopy([optimizer_view(optimizer), model.state_dict(), [p.grad for p in model.parameters()]])
            rng = torch.get_rng_state()
            ck.save(step).durable.result(60)
            after = [optimizer_view(optimizer), model.state_dict(), [p.grad for p in model.parameters()]]
            assert_same(after, before)
            assert torch.equal(torch.get_rng_state(), rng)


def test_torch_06_the_same_trajectory_at_the_same_world_size(url, ranks2):
    """Two ranks of DDP, restored in new objects: the same bits after three more steps, dropout and all."""
    ranks2.run("cases_state.trajectory", url=url)


@pytest.mark.parametrize("lazy", [False, True])
def test_torch_06_buffers_under_ddp_are_those_of_its_first_rank(url, ranks2, lazy):
    ranks2.run("cases_state.ddp_buffers", url=url, lazy=lazy)


def test_torch_06_warm_ddp(url, ranks4):
    """Four ranks: DDP's buckets are rebuilt before the restore, so that sums have the same order."""
    ranks4.run("cases_state.trajectory", url=url)


def test_torch_07_a_loader_per_rank(url, ranks2):
    """StatefulDataLoader's kind of object: each rank goes on where it was; another world size is an error with the way
    out."""
    ranks2.run("cases_state.loader_save", url=url)
    ranks2.run("cases_state.loader_restore", url=url)
    import cases_state
    with Checkpointer(url, {"loader": cairn.torch.per_rank(cases_state.Loader(0))}, read_only=True) as ck:
        with pytest.raises(cairn.UnsupportedError, match=r"loader: its state belongs to 2 ranks.*per_rank\(obj, on_reshape"):
            ck.restore()


def test_torch_07_a_restore_does_not_begin_the_iterator_of_a_loader(url):
    """torchdata's loader makes its first iterator when it is asked for its state. The sampler does not know its epoch yet."""
    class Loader(torch.utils.data.DataLoader):
        begun_with: list = []

        def state_dict(self):
            self.begun_with.append(self.sampler.epoch)
            return {"batches": 3}

        def load_state_dict(self, state):
            self.begun_with.clear()

    def make():
        return Loader(range(8), sampler=torch.utils.data.DistributedSampler(range(8), 1, 0))

    save(url, {"loader": make()})
    loader = make()
    restore(url, {"loader": loader})
    assert loader.begun_with == []


def test_torch_10_ties_and_tables_under_fsdp(url, ranks2, tmp_path):
    """A tied pair is stored once from FSDP2 and from plain, comes back tied, and warns where it is not tied; a garbage
    RoPE table warns; a model on the meta device is told about to_empty, then restores."""
    ranks2.run("cases_state.tied", url=url)


def test_torch_11_ordinary_state(url):
    """EMA as AveragedModel and as a dict, GradScaler, schedulers with a tensor lr, a loader, nested plain values."""
    def make(start):
        seed(start)
        model = small_model(start)
        optimizer = torch.optim.AdamW(model.parameters(), lr=torch.tensor(0.01 + start))
        average = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
        import cases_state
        return {"model": model, "optim": optimizer, "ema": average, "swa": torch.optim.swa_utils.SWALR(optimizer, 0.05),
                "sched": torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=20),
                "scaler": torch.amp.GradScaler("cpu", init_scale=2.0**(4 + start)), "loader": cases_state.Loader(start),
                "shadow": {name: p.detach().clone() for name, p in model.named_parameters()},
                "extra": {"epoch": start, "best": float("inf"), "seen": {1, 2}, "names": ["a", ("b", None)]}}

    state = make(0)
    for _ in range(3):
        one_step(state["model"], state["optim"], state["sched"])
        state["ema"].update_parameters(state["model"])
        for name, p in state["model"].named_parameters():
            state["shadow"][name].lerp_(p.detach(), 0.1)
        next(state["loader"])
    save(url, state)
    fresh = make(1)
    shadow = dict(fresh["shadow"])
    restored = restore(url, fresh)
    assert restored.missing == () and restored.unexpected == ()
    for key in ("model", "ema", "sched", "swa", "scaler", "loader"):
        assert_same(fresh[key].state_dict(), state[key].state_dict())
    assert_same(optimizer_view(fresh["optim"]), optimizer_view(state["optim"]))
    assert_same([fresh["shadow"], fresh["extra"]], [state["shadow"], state["extra"]])
    assert all(fresh["shadow"][name] is tensor for name, tensor in shadow.items())  # in place
    rng = torch.get_rng_state()
    for one in (state, fresh):
        torch.set_rng_state(rng)
        one_step(one["model"], one["optim"], one["sched"])
    assert_same(fresh["model"].state_dict(), state["model"].state_dict())


def test_torch_09_lists_that_differ(url, ranks2):
    """An optimizer that has state of other parameters on one of the ranks: saved, and said at the restore."""
    ranks2.run("cases_state.lists_differ", url=url)
