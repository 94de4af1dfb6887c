# SPDX-License-Identifier: Apache-2.0
"""Lazy saves: which tensors may be copied behind the training step, and what keeps them still until they are.

Only parameters in, and state of, optimizers that step through torch.optim.Optimizer: its step runs PyTorch's global
pre-step hooks, also for optimizers that are stepped one parameter at a time in backward. Ours waits until every lazy
save is released, and remembers the optimizer, so that its ``state_dict()`` may be copied lazily as well. All else (buffers
change in forward, an EMA after the step, schedulers whenever they like) is eager: copied before ``save`` returns. So are the
tensors of an optimizer whose steps may pass the hook by: one whose ``step`` was replaced, one that is ``capturable`` or
was seen to be captured, since the replay of a CUDA graph runs no Python, one that changes parameters by other methods, and one
in whose step (a closure) the save is. Of the parameters only those that a step changes are lazy: not those without a gradient,
nor those that an embedding's forward renormalises.

On CUDA devices all of this holds as it stands: a step's kernels are launched behind the hook, which returns when libcairn's
copies have ended; what is eager and small is copied on the device first (device.Loan).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Iterable

import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks, register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from ..client import RELEASED, Operation
from ..errors import CairnError
from .arrays import has_memory, memory_key
from .device import Loan, is_capturing

_captured: weakref.WeakSet = weakref.WeakSet()  # optimizers with a step in a CUDA graph (SGD needs no capturable for it)
_stepped: weakref.WeakSet = weakref.WeakSet()  # optimizers that a Guard has seen
_stepping: weakref.WeakSet = weakref.WeakSet()  # those whose step has begun and has not returned
_CHANGING = ("first_step", "second_step", "train", "eval")  # with these, sharpness-aware and schedule-free optimizers change parameters


def steps_through_hooks(optimizer: Any) -> bool:
    """Returns whether every step of this optimizer runs the global pre-step hooks."""
    if not isinstance(optimizer, torch.optim.Optimizer) or not getattr(type(optimizer).step, "hooked", False):
        return False
    own = vars(optimizer).get("step")  # schedulers put a wrapper there, which calls the class's
    if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):
        return False
    if optimizer in _captured or optimizer in _stepping or any(hasattr(optimizer, name) for name in _CHANGING):
        return False
    return not any(group.get("capturable") for group in optimizer.param_groups)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)  # of a DTensor


def stepped() -> list:
    """Returns the optimizers that have stepped since there is a Guard."""
    return list(_stepped)


def _key(tensor: torch.Tensor) -> Any:
    """Returns the tensor's memory_key, or None if it has no memory of its own."""
    local = _local(tensor.detach())
    return memory_key(local) if local.layout is torch.strided and has_memory(local) else None


def guarded_memory(optimizers: Iterable[Any], modules: Iterable[torch.nn.Module] = ()) -> set:
    """Returns the keys (memory_key) of the tensors that change only in steps of these optimizers. ``modules`` are those whose forward
    may change a parameter."""
    keys: set = set()
    others: set = set()  # what changes otherwise, whichever optimizer has it
    for optimizer in optimizers:
        guarded = keys if steps_through_hooks(optimizer) else others
        for group in optimizer.param_groups:
            for param in group["params"]:
                (guarded if param.requires_grad else others).add(_key(param))
                state = optimizer.state.get(param)
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        guarded.add(_key(value))
    for module in modules:
        if getattr(module, "max_norm", None) is not None:
            others.update(_key(param) for param in module.parameters(recurse=False))
    return keys - others - {None}


class Guard:
    """Makes the next optimizer step wait for the saves in ``_ops``; active until ``close``."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ops: list = []
        self._hooks = register_optimizer_step_pre_hook(self._before_step), register_optimizer_step_post_hook(_after_step)
        _global_optimizer_pre_hooks.move_to_end(self._hooks[0].id, last=False)  # others' hooks may change parameters

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            _stepped.add(optimizer)
            _stepping.add(optimizer)
            if is_capturing():
                _captured.add(optimizer)
        if self._ops:
            self.wait()

    def add(self, op: Operation, loan: Loan) -> None:
        """Adds a save to wait for. Its ``loan`` is ended once the save is released."""
        with self._lock:
            self._ops.append((op, loan))

    def wait(self) -> None:
        """Waits until each save is released or has failed. A failed save reads no tensor any more; its future has the error."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            ops = list(self._ops)
        for op, loan in ops:
            try:
                op.wait(RELEASED)
            except CairnError:
                pass  # reported by the save's handle
            loan.end()
        with self._lock:
            self._ops = [op for op in self._ops if op not in ops]

    def close(self) -> None:
        for hook in self._hooks:
            hook.remove()


def _after_step(optimizer: Any, args: Any, kwargs: Any) -> None:
    if not torch.compiler.is_compiling():
        _stepping.discard(optimizer)
