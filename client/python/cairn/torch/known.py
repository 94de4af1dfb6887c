# SPDX-License-Identifier: Apache-2.0
"""What a save finds as the save before left it, so that neither its names, nor its trees, nor its rows are made again.

A save takes a fingerprint of the models and optimizers: of every tensor the type, address, element type, shape, strides and
device, and the modules, keys and groups on the way to it. A fingerprint knows no tensor by identity, so that a ``state_dict`` of
new objects over the same memory is the same, and another tensor in the old one's place is not. Only what a fingerprint describes
completely is known: not FSDP, pipeline stages, tensors made of others, extra state, copies.
"""

from __future__ import annotations

import gc
import operator
from contextlib import contextmanager
from typing import Any, Iterable, Iterator, Optional

import torch

from .arrays import TORCH_NAMES
from .beyond import has_hooks, is_plain_kind
from .fsdp import is_fsdp
from .lazy import steps_through_hooks
from .naming import Walk
from .optim import OptimizerState
from .parts import ModuleState

_VALUES = frozenset((type(None), bool, int, float, str))
_TENSORS = (torch.Tensor, torch.nn.Parameter)
_is_plain: dict = {}  # class of a module -> whether a fingerprint describes all of it


def _is_described(kind: type) -> bool:
    found = _is_plain.get(kind)
    if found is None:
        found = _is_plain[kind] = (kind.get_extra_state is torch.nn.Module.get_extra_state and is_plain_kind(kind)
                                   and not is_fsdp(kind))
    return found


def _of_ddp(module: Any) -> tuple:
    """Returns what decides which of DDP's ranks a buffer is stored from."""
    if not isinstance(module, torch.nn.parallel.DistributedDataParallel):
        return ()
    return (getattr(module, "broadcast_buffers", False), hasattr(module, "buffer_hook"), id(module.process_group),
            frozenset(getattr(module, "parameters_to_ignore", ())))


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python's garbage collector still, which would begin at so many new objects, and take longer than all else."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


class Fingerprint:
    """The models and optimizers of a state as they are now. ``same`` compares two fingerprints; ``is_whole`` is False
    where the state holds more than a fingerprint describes."""

    def __init__(self, parts: Iterable[Any]) -> None:
        self.is_whole = True
        self.shape: list = []  # modules, groups and keys, in order
        self.metas: list = []
        self.tensors: list = []
        self._first: dict = {}
        found = [part for part in parts if isinstance(part, (ModuleState, OptimizerState))]
        try:
            for part in found:
                if isinstance(part, ModuleState):
                    self._add_module(part.obj)
            # The first place of each tensor: by it parameters of optimizers are named, and tied ones are told from others.
            first = self._first.setdefault
            self.shape.append([first(id(tensor), at) for at, tensor in enumerate(self.tensors)])
            for part in found:
                if isinstance(part, OptimizerState):
                    self._add_optimizer(part)
            self.metas = [(kind, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride(), tensor.device, tensor.is_neg(),
                           tensor.is_conj(), tensor.requires_grad) if (kind := type(tensor)) in _TENSORS else self._value(kind, tensor)
                          for tensor in self.tensors]
        except (AttributeError, RuntimeError, TypeError, ValueError):  # what has no memory, or is made otherwise
            self.is_whole = False
        self._first = {}

    def _value(self, kind: type, value: Any) -> tuple:
        self.is_whole = self.is_whole and kind in _VALUES
        return kind, value

    def _add_module(self, root: torch.nn.Module) -> None:
        shape, tensors, left = self.shape, self.tensors, [root]
        while left:
            module = left.pop()
            if module is None:
                shape.append(None)
                continue
            kind = type(module)
            params, buffers, children = module._parameters, module._buffers, module._modules
            if not _is_described(kind) or has_hooks(module):
                self.is_whole = False
            shape.append((kind, *params, 0, *buffers, 0, *children))
            if params:
                tensors += params.values()
            if buffers:
                tensors += buffers.values()
                hidden = module._non_persistent_buffers_set
                # Their contents are in the tree, as a digest.
                shape.append([(name, id(buffer), -1 if buffer.is_inference() else buffer._version)
                              for name, buffer in buffers.items() if name in hidden and buffer is not None])
            if children:
                left += reversed(children.values())
                shape.append(_of_ddp(module))

    def _add_optimizer(self, part: OptimizerState) -> None:
        state, shape, known = part.obj.state, self.shape, self._first
        self.is_whole = self.is_whole and part.is_plain
        shape.append((type(part.obj), steps_through_hooks(part.obj), len(state)))
        for group in part.obj.param_groups:
            params = group["params"]
            shape.append([known[id(param)] if id(param) in known else self._missing() for param in params])
            for entry in map(state.get, params):
                if entry is None:
                    shape.append(None)
                elif type(entry) is dict:
                    shape.append((*entry,))
                    self.tensors += entry.values()
                else:
                    self.is_whole = False

    def _missing(self) -> None:
        self.is_whole = False  # a parameter of no model

    def same(self, other: "Fingerprint") -> bool:
        """Returns whether both describe the whole of the same state."""
        return self.is_whole and other.is_whole and self.metas == other.metas and self.shape == other.shape

    def has_plain_types(self) -> bool:
        """Returns whether each tensor is stored as it is, so that nothing of it (a scale) escapes the fingerprint."""
        return all(len(meta) == 2 or meta[2] in TORCH_NAMES for meta in self.metas)


class Known:
    """What the next save may use again if its fingerprint is the same: ``fragments`` of trees by key, ``rows`` of tensors without
    what keeps their memory alive, their ``names``, and ``guarded``, the memory that only optimizers' steps change."""

    def __init__(self, fingerprint: Fingerprint, parts: list, holders: Any, lazy: bool) -> None:
        self._fingerprint, self._parts, self._holders, self._lazy = fingerprint, list(parts), holders, lazy
        self.fragments: dict = {}
        self.rows: list = []
        self.names: list = []
        self.guarded: Optional[set] = None
        # One tensor of each device, by its place in the fingerprint.
        seen: dict = {}
        for at, tensor in enumerate(fingerprint.tensors):
            if isinstance(tensor, torch.Tensor):
                seen.setdefault(tensor.device, at)
        self.devices = list(seen.values())

    def holds(self, fingerprint: Fingerprint, parts: list, holders: Any, lazy: bool) -> bool:
        """Returns whether a save with this fingerprint, and these settings, may use it."""
        return (self._holders is holders and self._lazy == lazy and len(parts) == len(self._parts)
                and all(map(operator.is_, parts, self._parts)) and fingerprint.same(self._fingerprint))


def is_told_apart(walks: Iterable[Walk]) -> bool:
    """Returns whether only one and the same tensor is tied, so that a fingerprint tells what is tied to what."""
    return all(not walk.flat and len(walk.names) == len(walk.tensors) for walk in walks)
