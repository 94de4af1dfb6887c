# SPDX-License-Identifier: Apache-2.0
"""FullyShardedDataParallel, both of them: parameters back in their shards, and FSDP1's flat ranges by parameter.

FSDP2 (``fully_shard``) holds DTensors, which need no help but to be sharded at the moment. FSDP1 holds, with
``use_orig_params=True``, each parameter as a one-dimensional piece of a flat tensor: the piece becomes boxes of the
parameter's own shape, so that nothing stored knows of flat tensors or of rank numbers.
"""

from __future__ import annotations

from typing import Any, Iterator, NamedTuple, Optional

import torch

from ..errors import UnsupportedValueError
from .sharded import Layout, Layouts, Sharded

try:
    import torch.distributed as dist
    from torch.distributed.fsdp import FullyShardedDataParallel
except ImportError:  # a PyTorch without it
    FullyShardedDataParallel = None  # type: ignore[assignment,misc]
try:
    from torch.distributed.fsdp import FSDPModule
except ImportError:
    FSDPModule = None  # type: ignore[assignment,misc]


class FlatParam(NamedTuple):
    """A parameter under FSDP1. ``sharded``: this rank's piece; ``owners``: the layout of a scalar that belongs to the
    whole parameter (Adam's step): all ranks that have a piece hold it; None where this rank has none."""

    param: torch.Tensor
    sharded: Sharded
    owners: Optional[Layout]


def reshard(model: torch.nn.Module) -> None:
    """FSDP2: registers the sharded parameters again where a forward pass without backward left whole ones."""
    if FSDPModule is not None:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()


def flat_params(key: str, model: torch.nn.Module, layouts: Layouts) -> Iterator[FlatParam]:
    """The parameters that FSDP1 has cut. UnsupportedValueError names the model and the remedy."""
    if FullyShardedDataParallel is None:
        return
    for name, module in model.named_modules():
        handle = getattr(module, "_handle", None) if isinstance(module, FullyShardedDataParallel) else None
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
    """(begin, end) of each parameter in the flat tensor, padding left out."""
    offsets, at = [], 0
    for numel, padded in zip(handle.flat_param._numels_with_padding, handle.flat_param._is_padding_mask):
        if not padded:
            offsets.append((at, at + numel))
        at += numel
    return offsets
