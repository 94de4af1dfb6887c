# SPDX-License-Identifier: Apache-2.0
"""Every optimizer and scheduler class of PyTorch comes back bit for bit as it was saved, and training that goes on from
it gives the weights of training that was never interrupted."""

import inspect

import pytest
import torch
from torch.optim import lr_scheduler

from bed import assert_same, one_step, optimizer_view, restore, save, seed, small_model

OPTIMIZERS = sorted(
    (cls for cls in vars(torch.optim).values()
     if inspect.isclass(cls) and issubclass(cls, torch.optim.Optimizer) and cls is not torch.optim.Optimizer),
    key=lambda cls: cls.__name__)
# More than the defaults where an option adds state.
OPTIONS = {
    "SGD": [{"momentum": 0.9, "nesterov": True}, {}],
    "Adam": [{"amsgrad": True}, {"capturable": False, "foreach": False}, {"fused": True}],
    "AdamW": [{}, {"lr": "tensor"}],
    "RMSprop": [{"centered": True, "momentum": 0.5}],
    "LBFGS": [{"history_size": 3, "line_search_fn": "strong_wolfe"}],
}


class Embedded(torch.nn.Module):
    """For SparseAdam: only sparse gradients."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(10, 4, sparse=True)

    def forward(self, x):
        return self.table((x.abs() * 3).long().clamp(max=9))


class Flat(torch.nn.Module):
    """For Muon: only matrices."""

    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(6, 8, bias=False), torch.nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)))


def make_model(cls, start):
    seed(start)
    if cls is torch.optim.SparseAdam:
        return Embedded()
    if cls.__name__ == "Muon":
        return Flat()
    return small_model(start)


def make(cls, options, start=0):
    model = make_model(cls, start)
    options = dict(options)
    if options.get("lr") == "tensor":
        options["lr"] = torch.tensor(0.01)
    params = list(model.parameters())
    if cls is torch.optim.LBFGS:
        groups = params
    else:
        groups = [{"params": params[:1], "lr": options.get("lr", 0.01)}, {"params": params[1:]}] if params[1:] else params
    options.setdefault("lr", 0.02)
    return model, cls(groups, **options)


CASES = [(cls, options) for cls in OPTIMIZERS for options in OPTIONS.get(cls.__name__, [{}])]


def test_there_are_optimizers():
    assert len(OPTIMIZERS) >= 13


@pytest.mark.parametrize("cls, options", CASES, ids=[f"{cls.__name__}-{i}" for i, (cls, _) in enumerate(CASES)])
def test_torch_11_optimizer(url, cls, options):
    model, optimizer = make(cls, options)
    for _ in range(3):
        one_step(model, optimizer)
    save(url, {"model": model, "optim": optimizer}, 3)
    saved = optimizer_view(optimizer)
    saved = torch.utils._pytree.tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, saved)
    for _ in range(3):
        one_step(model, optimizer)

    model2, optimizer2 = make(cls, options, start=9)
    assert restore(url, {"model": model2, "optim": optimizer2}).step == 3
    assert_same(optimizer_view(optimizer2), saved)
    for _ in range(3):
        one_step(model2, optimizer2)
    assert_same(model2.state_dict(), model.state_dict())
    assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))


SCHEDULERS = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda n: 0.9**n),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda n: 0.9),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 4, 4]),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.5, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, total_iters=5),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, 9),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, 7),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, 3),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=20),
    "ReduceLROnPlateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.MultiStepLR(o, [1, 2])], [2]),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)], optimizer=o),
    "SWALR": lambda o: torch.optim.swa_utils.SWALR(o, 0.05, 3),
}


def test_every_scheduler_is_here():
    classes = {name for name, cls in vars(lr_scheduler).items()
               if inspect.isclass(cls) and issubclass(cls, lr_scheduler.LRScheduler) and not name.startswith("_")}
    assert classes - {"LRScheduler"} <= set(SCHEDULERS)


@pytest.mark.filterwarnings("error::cairn.torch.CairnWarning")
@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("tensor_lr", [False, True], ids=["float", "tensor"])
def test_torch_11_scheduler(url, name, tensor_lr):
    def make(start):
        model = small_model(start)
        optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1) if tensor_lr else 0.1, momentum=0.9)
        return model, optimizer, SCHEDULERS[name](optimizer)

    model, optimizer, scheduler = make(0)
    for _ in range(3):
        one_step(model, optimizer, scheduler)
    save(url, {"model": model, "optim": optimizer, "sched": scheduler}, 3)
    saved = list(_flat(scheduler.state_dict()))
    for _ in range(4):
        one_step(model, optimizer, scheduler)

    model2, optimizer2, scheduler2 = make(9)
    restore(url, {"model": model2, "optim": optimizer2, "sched": scheduler2})
    assert list(_flat(scheduler2.state_dict())) == saved
    for _ in range(4):
        one_step(model2, optimizer2, scheduler2)
    assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))
    assert_same(model2.state_dict(), model.state_dict())


def _flat(value):
    from bed import flatten
    return flatten(value)


def test_torch_05_save_at_step_0_does_not_change_training(url):
    """PyTorch's own helper runs a step to make the state; here nothing may move."""
    model, optimizer = make(torch.optim.Adam, {})
    state = torch.get_rng_state()
    save(url, {"model": model, "optim": optimizer}, 0)
    assert len(optimizer.state) == 0 and torch.equal(torch.get_rng_state(), state)
    plain, plain_optimizer = make(torch.optim.Adam, {})
    for _ in range(3):
        one_step(plain, plain_optimizer)
    torch.set_rng_state(state)
    for _ in range(3):
        one_step(model, optimizer)
    assert_same(model.state_dict(), plain.state_dict())
    assert_same(optimizer_view(optimizer), optimizer_view(plain_optimizer))
    # And what was absent comes back as absent, in an optimizer that has state.
    restore(url, {"model": model, "optim": optimizer})
    assert len(optimizer.state) == 0


def test_torch_05_bf16_parameters_keep_fp32_state(url):
    """load_state_dict would cast 1.33333 to 1.3359."""
    model = small_model(0, torch.bfloat16)
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    for p in model.parameters():
        optimizer.state[p]["exp_avg"] = torch.full(p.shape, 4 / 3, dtype=torch.float32)
    save(url, {"model": model, "optim": optimizer})
    model2 = small_model(1, torch.bfloat16)
    optimizer2 = torch.optim.AdamW(model2.parameters())
    restore(url, {"model": model2, "optim": optimizer2})
    assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))
    assert optimizer2.state[next(model2.parameters())]["exp_avg"].dtype == torch.float32


def test_torch_09_state_of_some_parameters_only(url):
    model = small_model(0)
    optimizer = torch.optim.Adam(model.parameters())
    model[0](torch.randn(2, 6)).sum().backward()  # the second layer gets no gradient
    optimizer.step()
    assert len(optimizer.state) == 2
    save(url, {"model": model, "optim": optimizer})
    model2 = small_model(1)
    optimizer2 = torch.optim.Adam(model2.parameters())
    one_step(model2, optimizer2)
    restore(url, {"model": model2, "optim": optimizer2})
    assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))


def test_parameters_in_another_order(url):
    """State is keyed by name, not by position."""
    def make(order, start):
        model = small_model(start)
        params = dict(model.named_parameters())
        return model, torch.optim.Adam([params[name] for name in order])

    order = ["0.weight", "0.bias", "2.weight", "2.bias"]
    model, optimizer = make(order, 0)
    one_step(model, optimizer)
    save(url, {"model": model, "optim": optimizer})
    model2, optimizer2 = make(order[::-1], 1)
    restore(url, {"model": model2, "optim": optimizer2})
    for name, p in model.named_parameters():
        assert_same(dict(optimizer2.state[dict(model2.named_parameters())[name]]), dict(optimizer.state[p]))
