# SPDX-License-Identifier: Apache-2.0
"""Parameters under FSDP2 and FSDP1.

FSDP2 (``fully_shard``) holds DTensors, which only have to be sharded when they are saved. FSDP1 with
``use_orig_params=True`` holds each parameter as a one-dimensional piece of a flat tensor. Cairn stores the piece as boxes
of the parameter's own shape, so that a checkpoint depends on neither flat tensors nor rank numbers.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import torch
import torch.distributed as dist

from ..errors import UnsupportedValueError
from .sharded import Layout, Layouts, Sharded, class_of

_FSDP = "torch.distributed.fsdp"


def is_fsdp(kind: type) -> bool:
    """Returns whether the modules of a class are under FSDP2 or FSDP1."""
    return issubclass(kind, (class_of(_FSDP, "FSDPModule"), class_of(_FSDP, "FullyShardedDataParallel")))


class FlatParam(NamedTuple):
    """A parameter under FSDP1. ``sharded`` is this rank's piece. ``owners`` is the layout of a scalar of the whole parameter (such
    as the step of Adam), which each rank with a piece holds, or None if this rank has no piece."""

    param: torch.Tensor
    sharded: Sharded
    owners: Optional[Layout]


def reshard(model: torch.nn.Module) -> None:
    """Registers the sharded parameters of FSDP2 again. A forward pass without a backward pass leaves the whole ones."""
    kind = class_of(_FSDP, "FSDPModule")
    for module in model.modules() if kind else ():
        if isinstance(module, kind):
            module.reshard()


def flat_params(key: str, model: torch.nn.Module, layouts: Layouts) -> Iterator[FlatParam]:
    """Yields the parameters that FSDP1 has cut. Raises UnsupportedValueError, which names the model and the remedy."""
    kind = class_of(_FSDP, "FullyShardedDataParallel")
    for name, module in model.named_modules() if kind else ():
        handle = getattr(module, "_handle", None) if isinstance(module, kind) else None
        if handle is None:
            continue
        path = f"{key}.{name}" if name else key
        if not getattr(handle, "_use_orig_params", False):
            raise UnsupportedValueError.of(f"{path}: FSDP without use_orig_params hides its parameters in flat tensors; "
                                           "use FullyShardedDataParallel(..., use_orig_params=True), or use fully_shard")
        if handle.uses_sharded_strategy:
            yield from _of_handle(path, module, handle, layouts)


def _of_handle(path: str, module: Any, handle: Any, layouts: Layouts) -> Iterator[FlatParam]:
    flat = handle.flat_param
    if not handle.is_sharded(flat) or getattr(handle, "_skipped_use_sharded_views", False):
        raise UnsupportedValueError.of(f"{path}: FSDP has gathered its parameters (a forward pass without backward came "
                                       "last); save and restore after a training step, or before the first forward pass")
    shard_ranks = dist.get_process_group_ranks(handle.process_group)
    me = dist.get_rank()
    replicas = [me]
    if getattr(module, "_inter_node_pg", None) is not None:  # HYBRID_SHARD: whole groups hold the same
        replicas = dist.get_process_group_ranks(module._inter_node_pg)
    size, at = flat._sharded_size.numel(), shard_ranks.index(me)
    shapes = dict(zip(flat._fqns, flat._shapes))
    pieces = zip(flat._fqns, flat._params, flat._shard_param_infos, _offsets(handle))
    for fqn, param, info, (start, end) in pieces:
        begin, stop = max(start, at * size), min(end, (at + 1) * size)
        begin, stop = (begin - start, stop - start) if begin < stop else (0, 0)
        found = param.numel()
        if found != stop - begin or (info.in_shard and info.intra_param_start_idx != begin):
            raise UnsupportedValueError.of(f"{path}.{fqn}: FSDP's piece has {found} elements, but {stop - begin} were expected; "
                                           "this version of PyTorch lays flat tensors out in a way that Cairn does not know")
        shape = tuple(shapes[fqn])
        local = param.detach().reshape(-1)
        layout = layouts.flat(f"{path}.{fqn}", shape, begin, stop, replicas)
        holders = [rank for k, rank in enumerate(shard_ranks) if k * size < end and start < (k + 1) * size]
        owners = [rank + other - me for rank in holders for other in replicas]
        yield FlatParam(param, Sharded(local, layout),
                        layouts.whole(f"{path}.{fqn}", (), owners) if stop > begin else None)


def _offsets(handle: Any) -> list:
    """Returns (begin, end) of each parameter in the flat tensor, and none of the padding."""
    offsets, at = [], 0
    for numel, padded in zip(handle.flat_param._numels_with_padding, handle.flat_param._is_padding_mask):
        if not padded:
            offsets.append((at, at + numel))
        at += numel
    return offsets
