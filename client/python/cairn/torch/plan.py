# SPDX-License-Identifier: Apache-2.0
"""Plan: where each stored array of one restore goes.

Every stored array has one *primary* memory that libcairn fills: the live tensor itself (or this rank's part of it)
where it lies on the CPU or, contiguous, on a CUDA device, else fresh memory; ``copies`` are live tensors that get the same bits afterwards. Nothing is written
before the restore starts, so an error while planning leaves the state as it was.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

import torch

from ..errors import DigestMismatchError, DtypeMismatchError, InvalidError, ShapeMismatchError, UnsupportedError
from ..tree import Ref
from . import arrays, device, memory
from .only import Only
from .sharded import Layouts, Sharded


class Destination:
    """Of one stored array; ``coordinate``: where it belongs to a rank's own state."""

    __slots__ = ("ref", "coordinate", "primary", "copies")

    def __init__(self, ref: Ref, coordinate: Optional[str], primary: Any) -> None:
        self.ref, self.coordinate, self.primary = ref, coordinate, primary
        self.copies: list = []


def _layout(array: Any) -> Any:
    return array.layout if isinstance(array, Sharded) else None


def _is_same(a: Any, b: Any) -> bool:
    """Whether they are the same memory."""
    if isinstance(a, Sharded) and isinstance(b, Sharded):
        return a.local is b.local or (a.whole is not None and a.whole is b.whole)
    return a is b


def _copy(live: Any, primary: Any) -> None:
    if isinstance(live, Sharded):
        live.local.copy_(primary.local)
    elif isinstance(live, torch.Tensor):
        live.copy_(primary)
    else:
        live[...] = primary


class Plan:
    """``missing`` and ``unexpected`` are paths; the parts of the state fill them while they plan, of what ``only`` selects."""

    def __init__(self, layouts: Layouts, only: Optional[Only] = None) -> None:
        self.layouts = layouts
        self.only = only or Only()
        self._destinations: dict = {}
        self.missing: list = []
        self.unexpected: list = []
        self.warnings: list = []

    def want(self, ref: Ref, live: Any = None, coordinate: Optional[str] = None, fresh: Any = None) -> None:
        """The stored array is to come into ``live``, or into ``fresh`` (default: new CPU memory)."""
        live, fresh = self.layouts.wrap(ref.name, live), self.layouts.wrap(ref.name, fresh)
        key = (ref.name, coordinate)
        known = self._destinations.get(key)
        if known is not None:
            if live is not None and not _is_same(live, known.primary):
                if _layout(live) != _layout(known.primary):
                    raise UnsupportedError.of(f"{ref.name}: it was stored once for tied tensors, and these are not tied now "
                                              "and sharded in different ways: shard them alike, or tie them")
                known.copies.append(live)
            return
        target = live if live is not None else fresh
        if target is not None and arrays.is_direct(target):
            self._destinations[key] = Destination(ref, coordinate, target)
            return
        destination = Destination(ref, coordinate, arrays.beside(ref, target))
        if target is not None:
            destination.copies.append(target)
        self._destinations[key] = destination

    def want_exact(self, path: str, ref: Ref, live: Any) -> None:
        """The same into a live tensor that must have the stored shape and dtype. ``path`` names it in errors."""
        live = self.layouts.wrap(path, live)
        local = live.local if isinstance(live, Sharded) else live
        arrays.check_tensor(path, local)
        if tuple(live.shape) != ref.shape:
            raise ShapeMismatchError.of(f"{path}: the stored tensor has the shape {list(ref.shape)}, the live one "
                                        f"{list(live.shape)}: build the model as it was saved")
        if not arrays.fits(ref, live):
            raise DtypeMismatchError.of(f"{path}: the stored tensor is {ref.dtype}, the live one {live.dtype}: convert "
                                        "the model to the stored type before the restore")
        if arrays.overlaps(tuple(local.shape), local.stride()):
            raise ShapeMismatchError.of(f"{path}: elements of the live tensor share memory (it is expanded); make it "
                                        "contiguous before the restore")
        self.want(ref, live)

    def get(self, ref: Ref, coordinate: Optional[str] = None) -> Any:
        """The memory that holds a stored array after ``finish``: the live one where there is one."""
        destination = self._destinations[(ref.name, coordinate)]
        array = destination.copies[0] if destination.copies else destination.primary
        return array.value() if isinstance(array, Sharded) else array

    def check_memory(self) -> None:
        """InvalidError names a live tensor whose memory cannot be written: better than a crash in the middle."""
        readonly = memory.ReadOnly()
        for destination in self._destinations.values():
            for array in (destination.primary, *destination.copies):
                local = array.local if isinstance(array, Sharded) else array
                if isinstance(local, torch.Tensor) and local.device.type == "cpu" and readonly.covers(local):
                    raise InvalidError.of(f"{destination.ref.name}: the live tensor lies in memory that is mapped read-only (a "
                                          "file opened for reading?): clone it before the restore")

    def destinations(self) -> Iterable[Destination]:
        return self._destinations.values()

    def rows(self, is_read_here: Callable[[Destination], bool] = lambda destination: True) -> list:
        """Tuples for Client.set_tensors."""
        rows = (arrays.row(d.ref, d.primary, d.coordinate) for d in self._destinations.values() if is_read_here(d))
        return [row for row in rows if row is not None]

    def settle(self) -> None:
        """Before the restore: nothing uses the memory on devices any more."""
        found = (d.primary.local if isinstance(d.primary, Sharded) else d.primary for d in self._destinations.values())
        indices = (device.index(memory) for memory in found if isinstance(memory, torch.Tensor))
        device.settle(index for index in indices if index is not None)

    def finish(self) -> None:
        """After the restore: copies from primaries to the live tensors that libcairn cannot write, and checks them."""
        with torch.no_grad():
            for destination in self._destinations.values():
                for live in destination.copies:
                    _copy(live, destination.primary)
                    if not arrays.same_bits(live, destination.primary):
                        raise DigestMismatchError.of(f"{destination.ref.name}: the live tensor on {live.device} differs "
                                                     "from what was restored; its memory does not keep what is written")

    def check_live(self, path: str, ref: Ref, live: Any, coordinate: Optional[str] = None) -> None:
        """DigestMismatchError unless the tensor that the state now holds has the restored bits and type."""
        destination = self._destinations[(ref.name, coordinate)]
        live = self.layouts.wrap(path, live)
        if not arrays.is_array(live) or not arrays.fits(ref, live) or not arrays.same_bits(live, destination.primary):
            raise DigestMismatchError.of(f"{path}: the live tensor differs from what was restored ({ref.dtype}, "
                                         f"{list(ref.shape)})")
