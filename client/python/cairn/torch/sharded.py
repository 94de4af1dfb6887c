# SPDX-License-Identifier: Apache-2.0
"""Tensors whose elements lie on several ranks: which boxes of the whole tensor this rank holds, and which ranks hold the same.

A layout comes from a DTensor's mesh and placements (FSDP2, tensor parallel, HSDP), or from a flat range of a tensor's
row-major elements (FSDP1). Boxes are computed from indices and never taken from PyTorch, which reports wrong ones for a
strided shard. A rank whose shard is empty saves and restores nothing of the tensor. A DTensor with a ``Partial``
placement holds no value of the tensor; it is refused by name.
"""

from __future__ import annotations

import itertools
import math
import sys
from typing import Any, Iterable, NamedTuple, Optional, Sequence

import torch

from ..errors import InvalidError, ShapeMismatchError, UnsupportedValueError


class Box(NamedTuple):
    """A rectangle of the whole tensor. ``start`` is where the rectangle begins in the local tensor: an index per dimension,
    or one number if the local tensor is flat."""

    offset: tuple
    length: tuple
    start: tuple


class Layout(NamedTuple):
    """The boxes that a rank holds of a tensor of ``shape``, in a local tensor of shape ``local``. ``group`` lists, in ascending
    order, Cairn's ranks that hold the same boxes. ``is_flat`` says that the elements of the boxes lie one after the other."""

    shape: tuple
    local: tuple
    boxes: tuple
    group: tuple
    is_flat: bool

    @property
    def is_whole(self) -> bool:
        return len(self.boxes) == 1 and self.boxes[0].length == self.shape


class Sharded:
    """The local memory of a tensor with a layout. ``whole`` is the DTensor around that memory, or None."""

    __slots__ = ("local", "layout", "whole")

    def __init__(self, local: torch.Tensor, layout: Layout, whole: Any = None) -> None:
        self.local, self.layout, self.whole = local, layout, whole

    @property
    def shape(self) -> tuple:
        return self.layout.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.local.dtype

    @property
    def device(self) -> torch.device:
        return self.local.device

    def with_local(self, local: torch.Tensor) -> "Sharded":
        """Returns the same layout over other memory."""
        return Sharded(local, self.layout)

    def value(self) -> Any:
        """Returns the object that the framework holds: the DTensor, or the local tensor."""
        return self.local if self.whole is None else self.whole


def class_of(module: str, name: str) -> Any:
    """Returns a class of PyTorch, or () if the program has not imported its module. Then there is no instance, and the import,
    which takes up to a second, is spared."""
    return getattr(sys.modules.get(module), name, ())


def is_dtensor(value: Any) -> bool:
    return isinstance(value, class_of("torch.distributed.tensor", "DTensor"))


def is_sharded(value: Any) -> bool:
    return isinstance(value, Sharded) or is_dtensor(value)


# --- intervals ----------------------------------------------------------------------------------------------

def _cut(runs: Sequence[tuple], begin: int, end: int) -> list:
    """Returns the positions from begin to end of a list of (global start, length)."""
    result, at = [], 0
    for start, length in runs:
        low, high = max(begin, at), min(end, at + length)
        if low < high:
            result.append((start + low - at, high - low))
        at += length
    return result


def _chunk(runs: Sequence[tuple], count: int, idx: int) -> list:
    """Returns chunk ``idx`` of ``count`` as torch.chunk cuts: equal chunks, then a shorter one, then empty ones."""
    total = sum(length for _, length in runs)
    size = -(-total // count)
    return _cut(runs, min(total, size * idx), min(total, size * (idx + 1)))


def _merge(runs: Iterable[tuple]) -> list:
    merged: list = []
    for start, length in runs:
        if merged and merged[-1][0] + merged[-1][1] == start:
            merged[-1] = (merged[-1][0], merged[-1][1] + length)
        else:
            merged.append((start, length))
    return merged


def shard_runs(length: int, cuts: Sequence[tuple]) -> list:
    """Returns the intervals of one dimension that a rank holds, in the order in which they lie in local memory. ``cuts`` has
    (split factor, number of shards, index of this shard) for each mesh dimension that shards it, in the mesh's order."""
    runs: list = [(0, length)]
    for factor, count, idx in cuts:
        runs = [run for piece in range(factor) for run in _chunk(_chunk(runs, factor, piece), count, idx)]
    return _merge(runs)


def product_boxes(runs: Sequence[Sequence[tuple]]) -> tuple:
    """Returns the boxes of the product of the intervals of each dimension: no box if a dimension has no interval."""
    placed = []
    for of_dim in runs:
        starts = itertools.accumulate((length for _, length in of_dim), initial=0)
        placed.append([(start, length, local) for (start, length), local in zip(of_dim, starts)])
    return tuple(Box(tuple(p[0] for p in pick), tuple(p[1] for p in pick), tuple(p[2] for p in pick))
                 for pick in itertools.product(*placed))


def flat_boxes(shape: Sequence[int], begin: int, end: int) -> tuple:
    """Returns boxes whose row-major elements, one box after the other, are the flat range from begin to end of the tensor.
    There are at most 2 * dimensions - 1 of them."""
    boxes, at = [], begin
    inner = [math.prod(shape[d + 1:]) for d in range(len(shape))]
    while at < end:
        offset, length, count = [0] * len(shape), [1] * len(shape), 1
        for d, below in enumerate(inner):
            offset[d] = at // below % shape[d]
            if at % below == 0 and end - at >= below:
                rows = min((end - at) // below, shape[d] - offset[d])
                length[d:] = [rows, *shape[d + 1:]]
                count = rows * below
                break
        boxes.append(Box(tuple(offset), tuple(length), (at - begin,)))
        at += count
    return tuple(boxes)


# --- layouts --------------------------------------------------------------------------------------------------

class Layouts:
    """Makes layouts. ``ranks`` lists the global ranks that save together, in Cairn's order; None stands for a world of one.
    ``me`` is the global rank of this process."""

    def __init__(self, ranks: Optional[Sequence[int]] = None, me: int = 0) -> None:
        self.me = me
        self.holders: dict = {}  # name -> Cairn's ranks that have it, of names that not all have (pipeline stages)
        self._of: dict = {rank: idx for idx, rank in enumerate([me] if ranks is None else ranks)}
        self._cache: dict = {}

    @property
    def world_size(self) -> int:
        return len(self._of)

    def group(self, path: str, ranks: Iterable[int]) -> tuple:
        """Returns Cairn's ranks of the global ``ranks``. Raises InvalidError if one of them does not save with the others."""
        ranks = list(ranks)
        outside = [rank for rank in ranks if rank not in self._of]
        if outside:
            raise InvalidError.of(f"{path}: rank {outside[0]} holds a part of it, but is not among the ranks that save; "
                                  "make the Checkpointer with a process_group that has all ranks of the device mesh")
        return tuple(sorted(self._of[rank] for rank in ranks))

    def flat(self, path: str, shape: Sequence[int], begin: int, end: int, ranks: Iterable[int]) -> Layout:
        """Returns the layout of a flat range that each of ``ranks`` holds."""
        return Layout(tuple(shape), (end - begin,), flat_boxes(shape, begin, end), self.group(path, ranks), True)

    def whole(self, path: str, shape: Sequence[int], ranks: Iterable[int]) -> Layout:
        """Returns the layout of a tensor that ``ranks`` hold as a whole, and that no other rank holds."""
        shape = tuple(shape)
        box = Box((0,) * len(shape), shape, (0,) * len(shape))
        return Layout(shape, shape, (box,), self.group(path, ranks), False)

    def of_first(self, name: str, tensor: torch.Tensor, ranks: Sequence[int]) -> Any:
        """Returns a tensor for a save of which only the value of the first of the global ``ranks`` is stored, if these are all the
        ranks that hold it. Returns any other tensor unchanged."""
        first = self._of.get(ranks[0])
        holders = self.holders.get(name, range(self.world_size))
        if len(ranks) == 1 or is_dtensor(tensor) or sorted(self._of.get(rank, -1) for rank in ranks) != sorted(holders):
            return tensor
        layout = self.whole(name, tensor.shape, [ranks[0]])
        return Sharded(tensor.detach(), layout if first == self._of[self.me] else layout._replace(boxes=()))

    def held(self, name: str, value: Any) -> Any:
        """Returns a tensor or Sharded for a save, as held by just those ranks that have this name."""
        ranks = self.holders.get(name)
        if ranks is None or not isinstance(value, (torch.Tensor, Sharded)):
            return value
        if isinstance(value, Sharded):
            group = tuple(rank for rank in value.layout.group if rank in ranks)
            return Sharded(value.local, value.layout._replace(group=group), value.whole)
        shape = tuple(value.shape)
        box = Box((0,) * len(shape), shape, (0,) * len(shape))
        return Sharded(value.detach(), Layout(shape, shape, (box,), ranks, False))

    def wrap(self, path: str, value: Any) -> Any:
        """Returns a DTensor as Sharded, and any other value unchanged. Raises UnsupportedValueError for a layout that cannot be
        stored."""
        if not is_dtensor(value):
            return value
        # The local tensor itself: to_local() and detach() cost more than all the rest of a save's walk.
        local = value._local_tensor if hasattr(value, "_local_tensor") else value.detach().to_local()
        local = local.detach() if local.requires_grad else local
        key = (value.device_mesh, tuple(value.placements), tuple(value.shape))
        layout = self._cache.get(key)
        if layout is None:
            layout = self._cache[key] = self._of_dtensor(path, value)
        if tuple(local.shape) != layout.local:
            raise ShapeMismatchError.of(f"{path}: the local shard has the shape {list(local.shape)}, but its mesh and "
                                        f"placements {list(value.placements)} say {list(layout.local)}")
        return Sharded(local, layout, value)

    def _of_dtensor(self, path: str, tensor: Any) -> Layout:
        mesh, shape = tensor.device_mesh, tuple(tensor.shape)
        coordinate = mesh.get_coordinate()
        if coordinate is None:
            raise UnsupportedValueError.of(f"{path}: this rank is not in the tensor's device mesh; give each Checkpointer "
                                           "only tensors that it holds a part of")
        self.group(path, mesh.mesh.reshape(-1).tolist())  # all who hold parts of it save it
        cuts: list = [[] for _ in shape]
        same: list = []  # how to index the mesh for the ranks that hold the same boxes
        for dim, placement in enumerate(tensor.placements):
            if placement.is_replicate():
                same.append(slice(None))
                continue
            factor = _factor(placement)
            if factor is None:
                raise UnsupportedValueError.of(
                    f"{path}: it is a DTensor with the placement {placement!r}, which holds no value of the tensor; "
                    "redistribute it to Replicate() or Shard(dim) before the save")
            cuts[placement.dim].append((factor, mesh.size(dim), coordinate[dim]))
            same.append(coordinate[dim])
        runs = [shard_runs(length, cut) for length, cut in zip(shape, cuts)]
        ranks = _with_replicas(mesh, mesh.mesh[tuple(same)].reshape(-1).tolist())
        if 0 in shape:  # nothing to shard: known to all who have it
            return self.whole(path, shape, _with_replicas(mesh, mesh.mesh.reshape(-1).tolist()))._replace(
                local=tuple(sum(length for _, length in run) for run in runs))
        local = tuple(sum(length for _, length in run) for run in runs)
        return Layout(shape, local, product_boxes(runs), self.group(path, ranks), False)


def _factor(placement: Any) -> Optional[int]:
    """Returns into how many strides a placement cuts each shard: 1 for a plain Shard, None for what is no shard."""
    from torch.distributed.tensor import Shard, placement_types

    strided = getattr(placement_types, "_StridedShard", None)
    if strided is not None and isinstance(placement, strided):
        return int(placement.split_factor)
    return 1 if type(placement) is Shard else None


def _with_replicas(mesh: Any, ranks: list) -> list:
    """Returns ``ranks`` of a mesh, and the ranks that differ from these only in dimensions of the root mesh that this mesh leaves
    out. If "dp" of the mesh ("dp", "tp") shards a norm, each tp rank holds the same shard."""
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    if root.mesh.numel() == mesh.mesh.numel():
        return ranks
    at = {rank: tuple((root.mesh == rank).nonzero()[0].tolist()) for rank in mesh.mesh.reshape(-1).tolist()}
    left_out = [len({place[dim] for place in at.values()}) == 1 for dim in range(root.ndim)]
    found: set = set()
    for rank in ranks:
        index = tuple(slice(None) if free else place for free, place in zip(left_out, at[rank]))
        found.update(root.mesh[index].reshape(-1).tolist())
    return sorted(found)


def like(sharded: Sharded, dtype: torch.dtype) -> Sharded:
    """Returns new memory with the same layout, in a DTensor if there was one."""
    local = torch.empty_like(sharded.local, dtype=dtype, memory_format=torch.preserve_format)
    whole = sharded.whole
    if whole is not None:
        from torch.distributed.tensor import DTensor

        whole = DTensor.from_local(local, whole.device_mesh, whole.placements, run_check=False, shape=whole.shape,
                                   stride=whole.stride())
        local = whole._local_tensor if hasattr(whole, "_local_tensor") else whole.to_local()
    return Sharded(local, sharded.layout, whole)


def replicated_like(tensor: Any, local: torch.Tensor) -> Any:
    """Returns a DTensor around ``local`` that is replicated on all ranks of the mesh of ``tensor``."""
    from torch.distributed.tensor import DTensor, Replicate

    mesh = tensor.device_mesh
    return DTensor.from_local(local, mesh, [Replicate()] * mesh.ndim, run_check=False)
