# SPDX-License-Identifier: Apache-2.0
"""With snapshot="lazy" a tensor may change only when the contract says so, and a change that comes too early is detected.
Method: the daemon is stopped (SIGSTOP) while the state is larger than the arena, so the copy of what is lazy cannot end:
whatever is read later is read after the test changed it."""

import contextlib
import threading

import numpy
import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from bed import assert_same, optimizer_view, seed
from conftest import stopped
from cairn.errors import DigestMismatchError
from cairn.torch import Checkpointer
from cairn.torch.lazy import Guard, guarded_memory, steps_through_hooks

ARENA = 8 << 20
WIDE = 1024


class Net(torch.nn.Module):
    """Some 24 MiB of parameters, and BatchNorm statistics that change in forward."""

    def __init__(self):
        super().__init__()
        self.a = torch.nn.Linear(WIDE, 3 * WIDE)
        self.norm = torch.nn.BatchNorm1d(3 * WIDE)
        self.b = torch.nn.Linear(3 * WIDE, WIDE)

    def forward(self, x):
        return self.b(torch.tanh(self.norm(self.a(x))))


def loss_of(model):
    return model(torch.randn(8, WIDE)).pow(2).mean()


def clone(module):
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


@contextlib.contextmanager
def saving_lazily(daemon, state, on_error="raise", **options):
    """The checkpointer, and a save under way whose lazy part cannot be copied before the block ends."""
    with Checkpointer(daemon.url("lazy"), state, on_error, snapshot="lazy", arena_bytes=ARENA, when_down="wait", **options) as ck:
        ck.save(1).durable.result(60)
        with stopped(daemon):
            handle = ck.save(2)
            assert not handle.released.done()
            yield ck, handle


def restored(daemon, make):
    state = make()
    with Checkpointer(daemon.url("lazy"), state, on_error="raise") as ck:
        assert ck.restore().step == 2
    return state


def make_adamw(fused=False):
    seed(7)
    model = Net()
    return {"model": model, "optim": torch.optim.AdamW(model.parameters(), lr=0.1, fused=fused)}


def train(state):
    loss_of(state["model"]).backward()
    state["optim"].step()
    state["optim"].zero_grad()


class Blocked:
    """Runs fn in a thread, which must still be waiting after a moment."""

    def __init__(self, fn):
        self.thread = threading.Thread(target=fn, daemon=True)
        self.thread.start()
        self.thread.join(0.5)
        assert self.thread.is_alive(), "the step did not wait for the copy"

    def end(self):
        self.thread.join(60)
        assert not self.thread.is_alive()


def test_torch_04_batchnorm_statistics_are_those_of_the_save(own_daemon):
    state = make_adamw()
    train(state)
    before = clone(state["model"])
    with saving_lazily(own_daemon, state) as (_, handle):
        for _ in range(3):
            loss_of(state["model"])  # forward alone changes them
        assert not torch.equal(state["model"].norm.running_mean, before["norm.running_mean"])
    handle.durable.result(60)
    assert_same(clone(restored(own_daemon, make_adamw)["model"]), before)


@pytest.mark.parametrize("fused", [False, True])
def test_torch_04_a_step_waits_also_fused_adamw(own_daemon, fused):
    state = make_adamw(fused)
    train(state)
    before, optim = clone(state["model"]), optimizer_view(state["optim"])
    optim = {"state": {i: {k: v.clone() for k, v in s.items()} for i, s in optim["state"].items()}}
    loss_of(state["model"]).backward()
    before["norm.running_mean"] = state["model"].norm.running_mean.clone()
    before["norm.running_var"] = state["model"].norm.running_var.clone()
    before["norm.num_batches_tracked"] = state["model"].norm.num_batches_tracked.clone()
    with saving_lazily(own_daemon, state) as (_, handle):
        step = Blocked(state["optim"].step)
    step.end()
    handle.durable.result(60)
    assert not torch.equal(state["model"].a.weight, before["a.weight"])
    back = restored(own_daemon, lambda: make_adamw(fused))
    assert_same(clone(back["model"]), before)
    assert_same({"state": optimizer_view(back["optim"])["state"]}, optim)


def test_a_step_waits_for_a_save_in_which_ctrl_c_was_pressed(own_daemon):
    """The call raises, and the save that had begun is as any other."""
    state = make_adamw()
    train(state)
    with Checkpointer(own_daemon.url("lazy"), state, "raise", snapshot="lazy", arena_bytes=ARENA,
                      when_down="wait") as ck:
        ck.save(1).durable.result(60)
        before = clone(state["model"])
        save = ck._client.save

        def interrupted(*args, **options):
            save(*args, **options)
            raise KeyboardInterrupt

        ck._client.save = interrupted
        with stopped(own_daemon):
            with pytest.raises(KeyboardInterrupt):
                ck.save(2)
            loss_of(state["model"]).backward()
            step = Blocked(state["optim"].step)
        step.end()
        ck._client.save = save
        ck.wait()
        assert not torch.equal(state["model"].a.weight, before["a.weight"])
    assert_same(clone(restored(own_daemon, make_adamw)["model"]), before)


def make_fused_backward():
    seed(3)
    model = Net()
    optims = {f"optim{i}": torch.optim.SGD([p], lr=0.1, momentum=0.9) for i, p in enumerate(model.parameters())}
    for optim, param in zip(optims.values(), model.parameters()):
        def step(_, optim=optim):
            optim.step()
            optim.zero_grad()
        param.register_post_accumulate_grad_hook(step)
    return {"model": model, **optims}


def test_torch_04_optimizers_stepped_in_backward_wait(own_daemon):
    state = make_fused_backward()
    loss_of(state["model"]).backward()
    before = {name: param.detach().clone() for name, param in state["model"].named_parameters()}
    loss = loss_of(state["model"])
    with saving_lazily(own_daemon, state) as (_, handle):
        backward = Blocked(loss.backward)
    backward.end()
    handle.durable.result(60)
    back = dict(restored(own_daemon, make_fused_backward)["model"].named_parameters())
    assert_same({name: param.detach() for name, param in back.items()}, before)
    assert not torch.equal(state["model"].a.weight, before["a.weight"])


def make_with_ema():
    state = make_adamw()
    state["ema"] = torch.optim.swa_utils.AveragedModel(state["model"].b)
    return state


def test_torch_04_an_ema_updated_after_the_step_is_that_of_the_save(own_daemon):
    state = make_with_ema()
    train(state)
    state["ema"].update_parameters(state["model"].b)
    train(state)
    before = clone(state["ema"])
    with Checkpointer(own_daemon.url("lazy"), state, on_error="raise", snapshot="lazy", arena_bytes=5 * ARENA) as ck:
        ck.save(1).durable.result(60)
        with stopped(own_daemon):
            handle = ck.save(2)
            state["ema"].update_parameters(state["model"].b)  # no hook tells of it
        handle.durable.result(60)
    assert not torch.equal(state["ema"].module.weight, before["module.weight"])
    assert_same(clone(restored(own_daemon, make_with_ema)["ema"]), before)


def test_every_optimizer_of_pytorch_steps_through_the_hooks():
    for cls in vars(torch.optim).values():
        if isinstance(cls, type) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer:
            assert steps_through_hooks(cls([torch.nn.Parameter(torch.zeros(2, 2))])), cls


def test_optimizers_that_pass_the_hooks_by_are_copied_at_once():
    param = torch.nn.Parameter(torch.zeros(4))

    def fresh():
        return torch.optim.SGD([param], lr=0.1, momentum=0.9)

    assert guarded_memory([fresh()])
    scheduled = fresh()
    torch.optim.lr_scheduler.StepLR(scheduled, 1)  # wraps step, and calls the class's
    assert guarded_memory([scheduled])
    capturable = fresh()
    capturable.param_groups[0]["capturable"] = True  # the replay of a CUDA graph runs no Python
    replaced = fresh()
    replaced.step = lambda: None

    class Foreign:
        param_groups = [{"params": [param]}]
        state: dict = {}

        def step(self):
            pass

    for other in (capturable, replaced, Foreign()):
        assert not steps_through_hooks(other)
        assert not guarded_memory([other])
        assert not guarded_memory([fresh(), other])  # the same parameter


def test_a_state_dict_of_an_optimizer_that_has_stepped_is_lazy(own_daemon):
    """The state has no optimizer, only what its state_dict() gave; other values are copied at once."""
    state = make_adamw()
    extra = torch.ones(1 << 20)

    def payload():
        return {"model": {"state": state["model"].state_dict()}, "optim": {"state": state["optim"].state_dict()}, "extra": {"ema": extra}}

    values = payload()
    with Checkpointer(own_daemon.url("lazy"), values, "raise", snapshot="lazy", arena_bytes=ARENA, when_down="wait") as ck:
        ck.save(1).durable.result(60)
        train(state)
        ck.state.update(payload())
        ck.save(2).durable.result(60)
        ck.state.update(payload())
        before, moments = clone(state["model"]), [value["exp_avg"].clone() for value in state["optim"].state.values()]
        with stopped(own_daemon):
            handle = ck.save(3)
            extra.zero_()
            assert not handle.released.done()
        train(state)
        assert handle.released.done()
        handle.durable.result(60)
        ck.restore(3)
        found = ck.state
    assert all(torch.equal(found["model"]["state"][name], tensor) for name, tensor in before.items()) and bool(found["extra"]["ema"].all())
    assert all(torch.equal(found["optim"]["state"]["state"][at]["exp_avg"], tensor) for at, tensor in enumerate(moments))


@pytest.mark.parametrize("verify", ["sampled", "full"])
def test_a_parameter_changed_without_a_step_is_named(own_daemon, verify):
    state = make_adamw()
    train(state)
    failed = []
    with saving_lazily(own_daemon, state, lambda step, error: failed.append((step, type(error))),
                       verify_staged=verify) as (_, handle):
        with torch.no_grad():
            state["model"].b.weight.mul_(2)
    with pytest.raises(DigestMismatchError, match="model.b.weight"):
        handle.durable.result(60)
    assert failed == [(2, DigestMismatchError)]


def test_an_optimizers_step_that_comes_too_early_is_named(own_daemon):
    """By default: the step passes PyTorch's hook by, and writes into the state while it is copied."""
    state = make_adamw()
    train(state)
    named = 0
    for _ in range(4):
        failed: list = []
        loss_of(state["model"]).backward()
        with saving_lazily(own_daemon, state, lambda step, error, failed=failed: failed.append(error)) as (_, handle):
            type(state["optim"]).step.__wrapped__(state["optim"])
        with pytest.raises(DigestMismatchError, match="tensor '(model|optim)"):
            handle.durable.result(60)
        named += len(failed)
    assert named == 4


def test_a_lazy_save_that_nobody_disturbs_verifies(own_daemon):
    state = make_adamw()
    with Checkpointer(own_daemon.url("lazy"), state, on_error="raise", snapshot="lazy", verify_staged="full") as ck:
        for step in (1, 2):
            train(state)
            ck.save(step)
        before = clone(state["model"])
    assert_same(clone(restored(own_daemon, make_adamw)["model"]), before)


def test_saves_without_room_are_skipped_and_do_not_count(own_daemon):
    state = {"x": torch.zeros(1 << 20)}
    with Checkpointer(own_daemon.url("skip"), state, on_error="raise", when_full="skip") as ck:
        ck.save(1).durable.result(60)
        with stopped(own_daemon):
            first = ck.save(2)
            second = ck.save(3)
            assert second.skipped and not first.skipped
        first.durable.result(60)
        assert ck.failed_saves == 0
        ck.save(4).durable.result(60)
    with Checkpointer(own_daemon.url("skip"), state, on_error="raise") as ck:
        assert ck.restore().step == 4


def make_with_table(is_frozen=False, max_norm=None):
    """An embedding of 1 MiB beside the layers; the optimizer has its weight."""
    state = make_adamw()
    state["model"].table = torch.nn.Embedding(1024, 256, max_norm=max_norm)
    state["model"].table.weight.requires_grad_(not is_frozen)
    state["optim"].add_param_group({"params": state["model"].table.parameters()})
    return state


@torch.no_grad()
def move(state):
    state["model"].table.weight.mul_(0.5)  # as the average of another model does, in forward


@pytest.mark.parametrize("kind, change", [
    ({"is_frozen": True}, move), ({"max_norm": 0.1}, lambda state: state["model"].table(torch.arange(1024)))], ids=["frozen", "max_norm"])
def test_a_parameter_that_forward_changes_is_copied_at_once(own_daemon, kind, change):
    state = make_with_table(**kind)
    train(state)
    before = state["model"].table.weight.detach().clone()
    with saving_lazily(own_daemon, state, verify_staged=None) as (_, handle):
        change(state)
        assert not torch.equal(state["model"].table.weight, before)
    handle.durable.result(60)
    assert torch.equal(restored(own_daemon, make_with_table)["model"].table.weight, before)


def test_a_parameter_is_frozen_between_two_saves(own_daemon):
    state = make_with_table()
    train(state)
    with Checkpointer(own_daemon.url("lazy"), state, "raise", snapshot="lazy", arena_bytes=ARENA, when_down="wait",
                      verify_staged=None) as ck:
        ck.save(1).durable.result(60)
        state["model"].table.weight.requires_grad_(False)
        before = state["model"].table.weight.detach().clone()
        with stopped(own_daemon):
            handle = ck.save(2)
            move(state)
        handle.durable.result(60)
    assert torch.equal(restored(own_daemon, make_with_table)["model"].table.weight, before)


def test_memory_that_a_tensor_leaves_is_kept(own_daemon):
    """``param.data = other``, in the save that knows all tensors from the one before."""
    state = make_adamw()
    train(state)
    before = clone(state["model"])
    with saving_lazily(own_daemon, state) as (_, handle):
        for param in state["model"].parameters():
            param.data = torch.zeros_like(param)
        others = [torch.full_like(param, 7.0) for param in state["model"].parameters()]
    handle.durable.result(60)
    del others
    assert_same(clone(restored(own_daemon, make_adamw)["model"]), before)


def test_a_hook_of_others_waits_as_well(own_daemon):
    def decay(optimizer, *_):
        with torch.no_grad():
            for param in optimizer.param_groups[0]["params"]:
                param.mul_(0.5)

    hook = register_optimizer_step_pre_hook(decay)
    try:
        state = make_adamw()
        train(state)
        before = clone(state["model"])
        with saving_lazily(own_daemon, state) as (_, handle):
            step = Blocked(state["optim"].step)
        step.end()
        handle.durable.result(60)
    finally:
        hook.remove()
    assert torch.equal(restored(own_daemon, make_adamw)["model"].a.weight, before["a.weight"])


def test_optimizers_that_change_parameters_by_more_than_a_step():
    class ScheduleFree(torch.optim.SGD):
        def eval(self):
            pass

    param = torch.nn.Parameter(torch.ones(3))
    optim, seen = torch.optim.SGD([param], lr=0.1), []
    assert steps_through_hooks(optim) and not steps_through_hooks(ScheduleFree([param], lr=0.1))
    guard = Guard()
    try:
        optim.step(lambda: seen.append(steps_through_hooks(optim)))
    finally:
        guard.close()
    assert seen == [False] and steps_through_hooks(optim)


def test_an_optimizer_of_tensors_without_memory(url):
    other = torch.optim.SGD([torch.nn.Parameter(torch.eye(4).to_sparse())], lr=0.1)
    with Checkpointer(url, {"w": torch.ones(3)}, "raise", snapshot="lazy") as ck:
        ck.save(1).durable.result(60)
        other.step()
        ck.save(2).durable.result(60)


def test_a_read_only_array_is_copied_at_once(own_daemon):
    base = numpy.zeros(1 << 18, dtype=numpy.float32)
    view = base[:]
    view.flags.writeable = False
    state = {**make_adamw(), "table": view}
    train(state)
    with saving_lazily(own_daemon, state, verify_staged=None) as (_, handle):
        base[:] = 1
    handle.durable.result(60)
    assert not restored(own_daemon, lambda: {**make_adamw(), "table": numpy.ones(1 << 18, dtype=numpy.float32)})["table"].any()
