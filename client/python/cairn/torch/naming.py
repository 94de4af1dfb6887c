# SPDX-License-Identifier: Apache-2.0
"""Canonical names: the same for a model plain, compiled, in DDP, FSDP or under activation checkpointing.

Wrappers are walked through, not named: DistributedDataParallel and DataParallel (``module.``), torch.compile
(``_orig_mod.``), activation checkpointing (``_checkpoint_wrapped_module.``), FSDP1 (``_fsdp_wrapped_module.``). Tied tensors have one canonical name,
the first in the order of the walk, and aliases.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from . import fsdp
from .sharded import Layouts, is_dtensor

TRANSPARENT = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def unwrap(module: torch.nn.Module) -> tuple:
    """(the module inside all wrappers, the DistributedDataParallel among them)."""
    ddp: list = []
    while True:
        children = module._modules  # of TorchScript's modules no dict
        is_data_parallel = isinstance(module, (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel))
        inner = next((name for name in (("module",) if is_data_parallel else TRANSPARENT) if name in children), None)
        if inner is None or children[inner] is None:
            return module, ddp
        if isinstance(module, torch.nn.parallel.DistributedDataParallel):
            ddp.append(module)
        module = children[inner]


def _synced(ddp: Any) -> dict:
    """id(buffer) -> ranks, of the buffers that DDP gives to all from the first of them before each forward pass. Between two
    passes they differ (BatchNorm's statistics): the first rank's are what counts."""
    if not getattr(ddp, "broadcast_buffers", False) or hasattr(ddp, "buffer_hook"):
        return {}
    ignored = getattr(ddp, "parameters_to_ignore", ())
    ranks = torch.distributed.get_process_group_ranks(ddp.process_group)
    return {id(buffer): ranks for name, buffer in ddp.module.named_buffers() if name not in ignored}


class Walk:
    """One module's tensors. ``tensors``: canonical name -> tensor, or Sharded for a piece of FSDP1's; ``aliases``: other name -> canonical name;
    ``names``: id(tensor) -> all its names; ``transient``: non-persistent buffers; ``extra``: module's name ->
    get_extra_state(); ``flat``: id(parameter) -> FlatParam; ``synced``: id(buffer) -> ranks, of which the first has what
    counts. UnsupportedValueError: FSDP in a form that hides them."""

    def __init__(self, key: str, module: torch.nn.Module, layouts: Layouts) -> None:
        self.key = key
        fsdp.reshard(module)
        self.flat = {id(item.param): item for item in fsdp.flat_params(key, module, layouts)}
        self.tensors: dict = {}
        self.buffers: set = set()
        self.aliases: dict = {}
        self.names: dict = {}
        self.transient: dict = {}
        self.extra_modules: dict = {}
        self.synced: dict = {}
        self._by_memory: dict = {}
        self._walk(module, "")

    def _walk(self, module: torch.nn.Module, prefix: str) -> None:
        module, ddp = unwrap(module)
        for wrapper in ddp:
            self.synced.update(_synced(wrapper))
        for name, param in module._parameters.items():
            if param is not None:
                self._add(prefix + name, param)
        for name, buffer in module._buffers.items():
            if buffer is None:
                continue
            if name in module._non_persistent_buffers_set:
                self.transient[prefix + name] = buffer
            else:
                self.buffers.add(prefix + name)
                self._add(prefix + name, buffer)
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            self.extra_modules[prefix[:-1]] = module
        for name, child in module._modules.items():
            if child is not None:
                self._walk(child, f"{prefix}{name}.")

    def _add(self, name: str, tensor: torch.Tensor) -> None:
        flat = self.flat.get(id(tensor))
        first = self._by_memory.setdefault(id(tensor) if flat is not None else _memory(tensor), name)
        if first == name:
            self.tensors[name] = tensor if flat is None else flat.sharded
        else:
            self.aliases[name] = first
        names = self.names.setdefault(id(tensor), [])
        names.append(name)
        if first not in names:  # tied by memory, not by object
            names.append(first)


def _memory(tensor: torch.Tensor) -> Any:
    """Equal for two tensors exactly when they are tied."""
    if is_dtensor(tensor):  # a shard may be empty here and not elsewhere; all ranks must see the same ties
        return id(tensor)
    try:
        address = tensor.data_ptr() if tensor.numel() > 0 else 0
    except (RuntimeError, ValueError):  # lazy, or a subclass without memory: refused by name later
        address = 0
    if address == 0:
        return id(tensor)
    return (str(tensor.device), address, tuple(tensor.shape), tensor.stride(), tensor.dtype)


class Names:
    """Names of all parameters of all models of a state: ``key.name``."""

    def __init__(self, walks: list) -> None:
        self.walks = walks
        self._names: dict = {}
        self._flat: dict = {}
        for walk in walks:
            self._flat.update(walk.flat)
            for ident, names in walk.names.items():
                self._names.setdefault(ident, []).extend(f"{walk.key}.{name}" for name in names)

    def of(self, tensor: torch.Tensor) -> list:
        """All names of a parameter; empty for one that is in no model."""
        return self._names.get(id(tensor), [])

    def flat(self, tensor: torch.Tensor) -> Optional[fsdp.FlatParam]:
        """What FSDP1 made of a parameter; None where it did nothing."""
        return self._flat.get(id(tensor))
