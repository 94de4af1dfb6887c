# SPDX-License-Identifier: Apache-2.0
"""Canonical names of tensors, which do not change when a model is compiled, wrapped in DDP or FSDP, or checkpoints activations.

The names leave out wrappers: DistributedDataParallel and DataParallel (``module.``), torch.compile (``_orig_mod.``),
activation checkpointing (``_checkpoint_wrapped_module.``), FSDP1 (``_fsdp_wrapped_module.``). The canonical name of tied
tensors is the first that the walk meets; their other names are aliases.
"""

from __future__ import annotations

from typing import Any, Optional

import torch

from . import fsdp
from .pieces import Pieces
from .sharded import Layouts, is_dtensor

TRANSPARENT = ("_orig_mod", "_checkpoint_wrapped_module", "_fsdp_wrapped_module")


def unwrap(module: torch.nn.Module) -> tuple:
    """Returns the module inside all wrappers, and a list of the DistributedDataParallel wrappers around it."""
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
    """Returns, by id(buffer), the ranks to which DDP sends the first rank's buffer before each forward pass. Between two passes
    these buffers differ (statistics of BatchNorm), and the first rank's are saved."""
    if not getattr(ddp, "broadcast_buffers", False) or hasattr(ddp, "buffer_hook"):
        return {}
    ignored = getattr(ddp, "parameters_to_ignore", ())
    ranks = torch.distributed.get_process_group_ranks(ddp.process_group)
    return {id(buffer): ranks for name, buffer in ddp.module.named_buffers() if name not in ignored}


class Walk:
    """The tensors of one module. Raises UnsupportedValueError if FSDP hides the parameters.

    Attributes:
        tensors: Tensors by canonical name; a Sharded for a piece of FSDP1's, or of Pieces.
        buffers: Canonical names of the persistent buffers.
        aliases: Canonical names by other name.
        names: Lists of all names by id(tensor).
        transient: Non-persistent buffers by name.
        extra_modules: Modules with an extra state by name.
        flat: FlatParam by id(parameter).
        synced: Ranks by id(buffer); the first rank's buffer is the one that is saved.
    """

    def __init__(self, key: str, module: torch.nn.Module, layouts: Layouts) -> None:
        self.key = key
        fsdp.reshard(module)
        self.flat = {id(item.param): item for item in (module.flat_params(key, layouts) if isinstance(module, Pieces)
                                              else fsdp.flat_params(key, module, layouts))}
        self.tensors: dict = {}
        self.buffers: set = set()
        self.aliases: dict = {}
        self.names: dict = {}
        self.transient: dict = {}
        self.extra_modules: dict = {}
        self.synced: dict = dict(module.first_ranks) if isinstance(module, Pieces) else {}
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
    """Returns a key that is equal for two tensors exactly if they are tied."""
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
    """The names (``key.name``) of all parameters of all models of a state."""

    def __init__(self, walks: list) -> None:
        self.walks = walks
        self._names: dict = {}
        self._flat: dict = {}
        for walk in walks:
            self._flat.update(walk.flat)
            for ident, names in walk.names.items():
                self._names.setdefault(ident, []).extend(f"{walk.key}.{name}" for name in names)

    def of(self, tensor: torch.Tensor) -> list:
        """Returns all names of a parameter: an empty list if it is in no model."""
        return self._names.get(id(tensor), [])

    def flat(self, tensor: torch.Tensor) -> Optional[fsdp.FlatParam]:
        """Returns the piece of a parameter that FSDP1 has cut, or None if FSDP1 has not cut it."""
        return self._flat.get(id(tensor))
