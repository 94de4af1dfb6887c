# SPDX-License-Identifier: Apache-2.0
"""Lazy saves: which tensors may be copied behind the training step, and what keeps them still until they are.

Only parameters in, and state of, optimizers that step through torch.optim.Optimizer: its step runs PyTorch's global
pre-step hooks, also for optimizers that are stepped one parameter at a time in backward. Ours waits until every lazy
save is released, and remembers the optimizer, so that its ``state_dict()`` may be copied lazily as well. All else (buffers
change in forward, an EMA after the step, schedulers whenever they like) is eager: copied before ``save`` returns. So are the
tensors of an optimizer whose steps may pass the hook by: one whose ``step`` was replaced, and one that is ``capturable`` or
was seen to be captured, since the replay of a CUDA graph runs no Python.

On CUDA devices all of this holds as it stands: a step's kernels are launched behind the hook, which returns when libcairn's
copies have ended; what is eager and small is copied on the device first (device.Loan).
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any, Iterable

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from ..client import RELEASED, Operation
from ..errors import CairnError
from .arrays import memory_key
from .device import Loan, is_capturing

_captured: weakref.WeakSet = weakref.WeakSet()  # optimizers with a step in a CUDA graph (SGD needs no capturable for it)
_stepped: weakref.WeakSet = weakref.WeakSet()  # optimizers that a Guard has seen


def steps_through_hooks(optimizer: Any) -> bool:
    """Returns whether every step of this optimizer runs the global pre-step hooks."""
    if not isinstance(optimizer, torch.optim.Optimizer) or not getattr(type(optimizer).step, "hooked", False):
        return False
    own = vars(optimizer).get("step")  # schedulers put a wrapper there, which calls the class's
    if own is not None and not getattr(own, "_wrapped_by_lr_sched", False):
        return False
    return optimizer not in _captured and not any(group.get("capturable") for group in optimizer.param_groups)


def _local(tensor: torch.Tensor) -> torch.Tensor:
    return getattr(tensor, "_local_tensor", tensor)  # of a DTensor


def stepped() -> list:
    """Returns the optimizers that have stepped since there is a Guard."""
    return list(_stepped)


def guarded_memory(optimizers: Iterable[Any]) -> set:
    """Returns the keys (memory_key) of the tensors that change only in steps of these optimizers."""
    keys: set = set()
    others: set = set()  # of optimizers that pass the hooks by, whoever else has them
    for optimizer in optimizers:
        guarded = keys if steps_through_hooks(optimizer) else others
        for group in optimizer.param_groups:
            for param in group["params"]:
                guarded.add(memory_key(_local(param.detach())))
                state = optimizer.state.get(param)
                for value in state.values() if isinstance(state, dict) else ():
                    if isinstance(value, torch.Tensor):
                        guarded.add(memory_key(_local(value.detach())))
    return keys - others


class Guard:
    """Makes the next optimizer step wait for the saves in ``_ops``; active until ``close``."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._ops: list = []
        self._hook = register_optimizer_step_pre_hook(self._before_step)

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        if not torch.compiler.is_compiling():
            _stepped.add(optimizer)
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
        self._hook.remove()
