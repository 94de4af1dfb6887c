# SPDX-License-Identifier: Apache-2.0
"""Helpers of the PyTorch tests: small models, bitwise comparison."""

import random

import numpy
import torch

from cairn.torch import Checkpointer


def seed(value=0):
    random.seed(value)
    numpy.random.seed(value)
    torch.manual_seed(value)


def small_model(start=0, dtype=torch.float32):
    seed(start)
    return torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)).to(dtype)


def one_step(model, optimizer, scheduler=None):
    """One training step on random data; works for closures (LBFGS) and ReduceLROnPlateau too."""
    param = next(model.parameters())
    x = torch.randn(5, 6).to(param.dtype)

    def closure():
        optimizer.zero_grad()
        loss = model(x).float().pow(2).mean()
        loss.backward()
        return loss

    loss = optimizer.step(closure)
    if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        scheduler.step(float(loss.detach()))
    elif scheduler is not None:
        scheduler.step()
    return loss


def flatten(value, path=""):
    """(path, leaf) of nested dicts and sequences; tensors as (dtype, shape, bytes)."""
    if isinstance(value, torch.Tensor):
        value = value.detach().resolve_conj().resolve_neg().contiguous()
        data = value.reshape(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b""
        yield path, ("tensor", value.dtype, tuple(value.shape), data)
    elif isinstance(value, numpy.ndarray):
        yield path, ("ndarray", value.dtype.str, value.shape, value.tobytes())
    elif isinstance(value, dict):
        yield path, (type(value), len(value))
        for key, item in value.items():
            yield from flatten(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        yield path, (type(value), len(value))
        for idx, item in enumerate(value):
            yield from flatten(item, f"{path}[{idx}]")
    elif isinstance(value, float):
        yield path, ("float", value.hex())
    else:
        yield path, (type(value), repr(value))


def assert_same(left, right):
    """Equal to the bit, types and order included."""
    a, b = list(flatten(left)), list(flatten(right))
    assert [path for path, _ in a] == [path for path, _ in b]
    for (path, x), (_, y) in zip(a, b):
        assert x == y, path


def optimizer_view(optimizer):
    """All that an optimizer holds, by position of the parameter."""
    params = [p for group in optimizer.param_groups for p in group["params"]]
    return {
        "state": {i: dict(optimizer.state[p]) for i, p in enumerate(params) if p in optimizer.state},
        "groups": [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups],
    }


def save(url, state, step=1, **kwargs):
    with Checkpointer(url, state, on_error="raise") as ck:
        return ck.save(step, **kwargs).durable.result(60)


def restore(url, state, **kwargs):
    with Checkpointer(url, state, on_error="raise") as ck:
        return ck.restore(**kwargs)
