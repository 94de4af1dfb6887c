# SPDX-License-Identifier: Apache-2.0
"""Modules and optimizers whose own ``state_dict`` holds more than is stored.

Cairn stores the parameters, persistent buffers and extra state of modules, and ``state`` and ``param_groups`` of
optimizers, without asking ``state_dict``. A class may override it, or have hooks, to add what it keeps elsewhere: packed
weights of quantized layers, the sums of a metric, the slow weights of Lookahead. Such an object is refused by name. A copy of
stored weights under another name, or in a dict beside theirs, is refused, too: slow weights look just so before the first step.
Objects of all other classes are known by a look at their class and hooks, and no ``state_dict`` is called for them.
"""

from __future__ import annotations

import collections
from collections.abc import Mapping
from typing import Any, Iterator, Optional

import torch
from torch.optim import Optimizer

from ..errors import UnsupportedValueError
from ..limits import overlaps
from ..tree_types import DEPTH_MAX
from . import arrays
from .naming import TRANSPARENT

# These hooks rename entries, gather shards, or write a version.
_HARMLESS = ("torch.distributed.algorithms._checkpoint", "torch.distributed.fsdp", "torch.nn.utils.spectral_norm")


def _instead(kind: type) -> str:
    return (f"or, where the state is your own, put into it, instead of the {kind.__name__}, an object whose state_dict and "
            f"load_state_dict call those of the {kind.__name__}")


def is_plain_kind(kind: type) -> bool:
    """Returns whether this class of modules leaves ``state_dict`` as it is."""
    return (kind.state_dict is torch.nn.Module.state_dict  # type: ignore[attr-defined]
            and kind._save_to_state_dict is torch.nn.Module._save_to_state_dict)  # type: ignore[attr-defined]


def has_hooks(module: torch.nn.Module) -> bool:
    """Returns whether this module alone, not its class, may put more into its ``state_dict``."""
    hooks = module._state_dict_hooks
    return "state_dict" in vars(module) or (bool(hooks) and not all(
        (getattr(hook, "__module__", None) or "").startswith(_HARMLESS) for hook in hooks.values()))


def _outermost(name: str, module: torch.nn.Module) -> Iterator[tuple]:
    """Yields (name, module) of the modules that have to be asked, but not of those below one."""
    if has_hooks(module) or not is_plain_kind(type(module)):
        yield name, module
        return
    for child, below in module._modules.items():
        if below is not None:
            yield from _outermost(f"{name}.{child}", below)


def _bare(name: str) -> str:
    return ".".join(part for part in name.split(".") if part not in TRANSPARENT)


def check_module(key: str, root: torch.nn.Module) -> None:
    """Raises UnsupportedValueError if a module's ``state_dict`` holds what is not stored of it."""
    stored: Optional[_Stored] = None
    for name, module in _outermost(key, root):
        stored = stored or _Stored(root)
        extra = {_bare(f"{path}._extra_state".lstrip(".")) for path, item in module.named_modules(remove_duplicate=False)
                 if type(item).get_extra_state is not torch.nn.Module.get_extra_state}
        entries = list(_entries(name, _ask(module), extra))
        times = collections.Counter(entry for _, entry, _ in entries)  # once, or beside others in dicts of their own
        for where, entry, value in entries:
            if value is None or _bare(entry) in extra or stored.has(f"{name}.{entry}"[len(key) + 1:], value, times[entry] == 1):
                continue
            raise UnsupportedValueError.of(
                f"{where}: a method or a hook of {type(module).__name__}, or of a module in it, puts this into the "
                "state_dict, but it is no parameter, persistent buffer or extra state, and would be lost: make it one of "
                f"these (register_buffer, get_extra_state and set_extra_state), {_instead(type(module))}")


def _ask(module: torch.nn.Module) -> dict:
    try:
        return module.state_dict(keep_vars=True)
    except TypeError:
        return module.state_dict()  # an override without arguments; another error comes again


def _entries(path: str, found: Mapping, extra: set, depth: int = 0) -> Iterator[tuple]:
    """Yields (path, name, value) of what a ``state_dict`` holds, also within a dict that somebody has put around it. One that is extra
    state, by its name, is a value, and so is one deeper than anything that can be stored."""
    for name, value in zip(map(str, found), found.values()):
        if isinstance(value, Mapping) and _bare(name) not in extra and depth < DEPTH_MAX:
            yield from _entries(f"{path}.{name}", value, extra, depth + 1)
        else:
            yield f"{path}.{name}", name, value


class _Stored:
    """The tensors of a module that are stored, and where they lie."""

    def __init__(self, root: torch.nn.Module) -> None:
        self._by_name: dict = {}
        for path, module in root.named_modules(remove_duplicate=False):
            hidden = module._non_persistent_buffers_set
            buffers = {name: buffer for name, buffer in module._buffers.items() if name not in hidden}
            for name, tensor in (*module._parameters.items(), *buffers.items()):
                if tensor is not None:
                    self._by_name[f"{path}.{name}".lstrip(".")] = tensor
        self._ids = {id(tensor) for tensor in self._by_name.values()}
        self._ranges = [_range(tensor) for tensor in self._by_name.values() if _is_solid(tensor)]

    def has(self, name: str, value: Any, takes_copies: bool) -> bool:
        """Returns whether the value is a stored tensor, a part of one, or, if ``takes_copies``, that of the same name, copied or rounded to
        a narrower type."""
        if id(value) in self._ids:
            return True
        if not isinstance(value, torch.Tensor):
            return False
        if _is_solid(value):
            device, begin, end = _range(value)
            if any(on == device and first <= begin and end <= last for on, first, last in self._ranges):
                return True
        live = self._by_name.get(name)
        if live is None or value.shape != live.shape or not takes_copies:
            return False
        if value.dtype != live.dtype:
            if not (_is_narrower(value.dtype, live.dtype) and live.layout is torch.strided):
                return False
            live = live.detach().to(value.dtype)
        if type(value) not in _PLAIN or value.layout is not torch.strided:
            return isinstance(live, type(value))  # a detached one, whose memory is in several tensors
        return arrays.same_bits(live.detach(), value.detach().to(live.device))


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _is_narrower(kind: torch.dtype, other: torch.dtype) -> bool:
    return kind.is_floating_point and other.is_floating_point and kind.itemsize < other.itemsize


def _is_solid(tensor: torch.Tensor) -> bool:
    """Returns whether the tensor is all that lies between its first and its last element."""
    if type(tensor) not in _PLAIN or tensor.layout is not torch.strided or tensor.numel() == 0:
        return False
    reach = sum((length - 1) * step for length, step in zip(tensor.shape, tensor.stride()))
    return reach == tensor.numel() - 1 and not overlaps(tensor.shape, tensor.stride())


def _range(tensor: torch.Tensor) -> tuple:
    return tensor.device, tensor.data_ptr(), tensor.data_ptr() + tensor.numel() * tensor.element_size()


def is_plain_optimizer(optimizer: Optimizer) -> bool:
    """Returns whether this optimizer's ``state_dict`` is PyTorch's own."""
    return (type(optimizer).state_dict is Optimizer.state_dict and "state_dict" not in vars(optimizer)
            and not getattr(optimizer, "_optimizer_state_dict_post_hooks", None))


def _is_group(value: Any, held: set) -> bool:
    """Returns whether the value is a dict of values that the optimizer's state has (bitsandbytes makes such dicts)."""
    return isinstance(value, dict) and all(id(item) in held for item in value.values())


def check_optimizer(key: str, optimizer: Optimizer) -> None:
    """Raises UnsupportedValueError if its ``state_dict`` has more than its ``state`` and ``param_groups``."""
    if is_plain_optimizer(optimizer):
        return
    found = optimizer.state_dict()
    more = [name for name in found if name not in ("state", "param_groups")]
    for mine, group in zip(optimizer.param_groups, found.get("param_groups", ())):
        more += [f"param_groups.{name}" for name in group if name not in mine and name not in ("params", "param_names")]
    state = found.get("state", {})
    entries = [entry for entry in optimizer.state.values() if isinstance(entry, dict)]
    known, held = {name for entry in entries for name in entry}, {id(value) for entry in entries for value in entry.values()}
    more += [f"state.{name}" for entry in state.values() if isinstance(entry, dict) for name, value in entry.items()
             if name not in known and not _is_group(value, held)]
    more += ["state"] if len(state) > len(optimizer.state) else []
    if more:
        raise UnsupportedValueError.of(
            f"{key}.{more[0]}: {type(optimizer).__name__} puts this into its state_dict, but it is in neither its state nor its "
            f"param_groups, and would be lost: make it an entry of state[param] or of a group, {_instead(type(optimizer))}")
