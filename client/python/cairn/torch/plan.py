# SPDX-License-Identifier: Apache-2.0
"""Plan: where each stored array of one restore goes.

Every stored array has one *primary* memory that libcairn fills: the live tensor itself (or this rank's part of it) if it
lies on the CPU or, contiguous, on a CUDA device, else new memory. ``copies`` are live tensors that get the same bits
afterwards. Nothing is written before the restore starts, so an error while planning leaves the state as it was.
"""

from __future__ import annotations

from typing import Any, Callable, Iterable, Optional

import torch

from ..errors import DigestMismatchError, DtypeMismatchError, InvalidError, ReplicasDifferError, ShapeMismatchError, UnsupportedError
from ..limits import overlaps
from ..tree import Ref
from . import arrays, device, memory
from .similar import listed
from .only import Only
from .own import put_back
from .sharded import Layouts, Sharded


class Destination:
    """The memory that one stored array is restored into.

    ``coordinate`` is set if the array belongs to a rank's own state. ``is_exact`` says that it must come into the live tensors,
    ``is_beside`` that the primary is not a live tensor. ``rivals`` are the spans of other arrays in the same memory.
    """

    __slots__ = ("ref", "coordinate", "primary", "copies", "is_exact", "is_beside", "rivals")

    def __init__(self, ref: Ref, coordinate: Optional[str], primary: Any) -> None:
        self.ref, self.coordinate, self.primary = ref, coordinate, primary
        self.copies: list = []
        self.is_exact = self.is_beside = False
        self.rivals: list = []


def _layout(array: Any) -> Any:
    return array.layout if isinstance(array, Sharded) else None


def _is_same(a: Any, b: Any) -> bool:
    """Returns whether two arrays are the same memory."""
    if isinstance(a, Sharded) and isinstance(b, Sharded):
        return a.local is b.local or (a.whole is not None and a.whole is b.whole)
    return a is b


def _local(array: Any) -> Any:
    """Returns the tensor that holds this rank's part."""
    return array.local if isinstance(array, Sharded) else getattr(array, "_local_tensor", array)


def _gives_way(one: Destination, other: Destination, order: dict) -> bool:
    """Returns whether ``one`` gets memory of its own, when both lie in the same memory: the one that may be a new tensor does, or
    else the one that was planned later."""
    return not one.is_exact if one.is_exact != other.is_exact else order[id(one)] > order[id(other)]


def _copy(live: Any, primary: Any) -> None:
    if isinstance(live, Sharded):
        live.local.copy_(primary.local)
    elif isinstance(live, torch.Tensor):
        live.copy_(primary)
    else:
        live[...] = primary


def _can_cast(stored: torch.dtype, live: torch.dtype) -> bool:
    """Returns whether a cast keeps what the numbers are: no float becomes an integer, and no integer is cut."""
    if not any(dtype.is_floating_point or dtype.is_complex or dtype is torch.bool for dtype in (stored, live)):
        small, large = torch.iinfo(stored), torch.iinfo(live)
        return small.min >= large.min and small.max <= large.max
    try:
        torch.empty(1, dtype=stored).to(live)
    except (RuntimeError, NotImplementedError):  # PyTorch computes with neither (packed types)
        return False
    return torch.can_cast(stored, live)


def _as(live: Any, primary: Any) -> Any:
    """Returns the stored array in the type of the live one."""
    if live.dtype == primary.dtype or not isinstance(live, (torch.Tensor, Sharded)):
        return primary
    return primary.with_local(primary.local.to(live.dtype)) if isinstance(primary, Sharded) else primary.to(live.dtype)


class Plan:
    """The destinations of a restore. The parts of the state add the paths that are ``missing`` or ``unexpected`` while they plan,
    among those that ``only`` selects. With ``cast`` a live tensor may have another type than the stored one: it gets the nearest
    values, and ``cast_names`` has its name. ``stored_types`` maps the names of the stored parameters to their types."""

    def __init__(self, layouts: Layouts, only: Optional[Only] = None, cast: bool = False) -> None:
        self.layouts, self.cast = layouts, cast
        self.cast_names: list = []
        self.stored_types: dict = {}
        self.only = only or Only()
        self._destinations: dict = {}
        self._kept: list = []
        self.missing: list = []
        self.unexpected: list = []
        self.warnings: list = []

    def takes(self, ref: Ref, live: Any) -> bool:
        """Returns whether an array can hold the stored one: as it is, or by a cast that was asked for and loses no kind of number."""
        if arrays.fits(ref, live):
            return True
        stored, dtype = arrays.TORCH_TYPES.get(ref.dtype), getattr(live, "dtype", None)
        return (self.cast and ref.kind == "torch" and tuple(live.shape) == ref.shape and isinstance(stored, torch.dtype)
                and isinstance(dtype, torch.dtype) and _can_cast(stored, dtype))

    def check_takes(self, path: str, ref: Ref, live: Any) -> None:
        """Raises ShapeMismatchError or DtypeMismatchError unless an array can hold the stored one."""
        if tuple(live.shape) != ref.shape:
            raise ShapeMismatchError.of(f"{path}: the stored tensor has the shape {list(ref.shape)}, but the live one has "
                                        f"{list(live.shape)}; build the model as it was saved")
        if not self.takes(ref, live):
            raise DtypeMismatchError.of(f"{path}: the stored tensor is {ref.dtype} of {ref.kind}, but the live one is {live.dtype}; "
                                        "convert it to the stored type before the restore" +
                                        (", because the one cannot be cast to the other" if self.cast else ", or restore with cast=True"))

    def want(self, ref: Ref, live: Any = None, coordinate: Optional[str] = None, fresh: Any = None) -> None:
        """Plans to restore the stored array into ``live``, or else into ``fresh``, or else into new CPU memory."""
        live, fresh = self.layouts.wrap(ref.name, live), self.layouts.wrap(ref.name, fresh)
        key = (ref.name, coordinate)
        known = self._destinations.get(key)
        if known is not None:
            if live is not None and not _is_same(live, known.primary):
                if _layout(live) != _layout(known.primary):
                    raise UnsupportedError.of(f"{ref.name}: it was stored once for tied tensors, but these are now neither tied "
                                              "nor sharded alike; shard them alike, or tie them")
                known.copies.append(live)
            return
        target = live if live is not None else fresh
        is_cast = target is not None and isinstance(target, (torch.Tensor, Sharded)) and arrays.TORCH_NAMES.get(target.dtype) != ref.dtype
        if target is not None and not is_cast and arrays.is_direct(target):
            self._destinations[key] = Destination(ref, coordinate, target)
            return
        if is_cast:
            self.cast_names.append(ref.name)
        destination = Destination(ref, coordinate, arrays.beside_as(ref, target) if is_cast else arrays.beside(ref, target))
        destination.is_beside = True
        if target is not None:
            destination.copies.append(target)
        self._destinations[key] = destination

    def want_exact(self, path: str, ref: Ref, live: Any) -> None:
        """Plans to restore into a live tensor that must have the stored shape and dtype. ``path`` names it in errors."""
        live = self.layouts.wrap(path, live)
        local = live.local if isinstance(live, Sharded) else live
        arrays.check_tensor(path, local)
        self.check_takes(path, ref, live)
        if overlaps(tuple(local.shape), local.stride()):
            raise ShapeMismatchError.of(f"{path}: elements of the live tensor share memory (it is expanded); make it "
                                        "contiguous before the restore")
        self.want(ref, live)
        self._destinations[(ref.name, None)].is_exact = True

    def keep(self, name: str, live: Any) -> None:
        """Notes a live tensor that is not restored, so that restoring other arrays does not change its memory."""
        span = memory.span_of(None, name, _local(live))
        self._kept.extend([span] if span is not None else [])

    def get(self, ref: Ref, coordinate: Optional[str] = None) -> Any:
        """Returns the array that holds a stored array after ``finish``: the live one if there is one."""
        destination = self._destinations[(ref.name, coordinate)]
        array = destination.copies[0] if destination.copies else destination.primary
        return array.value() if isinstance(array, Sharded) else array

    def check_memory(self) -> None:
        """Raises InvalidError, which names the tensor, if a live tensor lies in memory that cannot be written: writing would crash."""
        readonly = memory.ReadOnly()
        for destination in self._destinations.values():
            for array in (destination.primary, *destination.copies):
                local = array.local if isinstance(array, Sharded) else array
                if isinstance(local, torch.Tensor) and local.device.type == "cpu" and readonly.covers(local):
                    raise InvalidError.of(f"{destination.ref.name}: the live tensor lies in memory that is mapped read-only (a "
                                          "file that was opened for reading); clone it before the restore")

    def part_memory(self) -> None:
        """Restores an array that shares live memory with another one into memory of its own first. ``finish`` copies it back if both
        were stored with the same bits."""
        found = [memory.span_of(d, d.ref.name, _local(array)) for d in self._destinations.values()
                 for array in (d.primary, *d.copies)]
        order = {id(d): idx for idx, d in enumerate(self._destinations.values())}
        for span, other in memory.shared([span for span in (*found, *self._kept) if span is not None]):
            if span.owner is None or (other.owner is not None and _gives_way(other.owner, span.owner, order)):
                span, other = other, span
            if other.owner is None and span.owner.is_exact:
                continue  # the same tensor, or one that is tied to it
            span.owner.rivals.append(other)
        for d in self._destinations.values():
            if d.rivals and not d.is_beside:
                d.copies.insert(0, d.primary)
                d.primary, d.is_beside = arrays.beside(d.ref, d.primary), True

    def destinations(self) -> Iterable[Destination]:
        return self._destinations.values()

    def rows(self, is_read_here: Callable[[Destination], bool] = lambda destination: True) -> list:
        """Returns the tuples for Client.set_tensors."""
        rows = (arrays.row(d.ref, d.primary, d.coordinate) for d in self._destinations.values() if is_read_here(d))
        return [row for row in rows if row is not None]

    def settle(self) -> None:
        """Waits, before the restore, until no kernel uses the memory on devices any more."""
        found = (d.primary.local if isinstance(d.primary, Sharded) else d.primary for d in self._destinations.values())
        indices = (device.index(memory) for memory in found if isinstance(memory, torch.Tensor))
        device.settle(index for index in indices if index is not None)

    def finish(self) -> None:
        """Copies, after the restore, from the primaries to the live tensors that libcairn cannot write, and checks the copies."""
        with torch.no_grad():
            for destination in self._destinations.values():
                if not destination.rivals:
                    self._copy_out(destination)
            parted = [d for d in self._destinations.values() if d.rivals and not self._copy_beside_rivals(d)]
        if parted:
            self.warnings.append(f"{listed([d.ref.name for d in parted])}: in the live state this lay in the memory of something else "
                                 f"({parted[0].rivals[0].name} for the first), which has other contents: it has come back in new memory")

    def put_back(self, kept: dict, strict: bool) -> None:
        """Gives arrays that should be the same on all ranks the bytes that this rank held, if it has ``kept`` them. If it has kept a
        sample only, and an array differs from that, raises ReplicasDifferError, or warns unless ``strict``."""
        odd = []
        for destination in self._destinations.values():
            mine = kept.get(destination.ref.name) if destination.coordinate is None and not destination.rivals else None
            if mine is None:
                continue
            if put_back(destination.ref, destination.primary, mine):
                self._copy_out(destination)
            else:
                odd.append(destination.ref.name)
        text = (f"{listed(odd)}: when this was saved, the ranks held different tensors under one name, too large to be kept for each "
                "rank, so what is stored is of several ranks; use per_rank where ranks differ")
        if odd and strict:
            raise ReplicasDifferError.of(text + " (restore(strict=False) takes it as it is)")
        self.warnings.extend([text] if odd else [])

    @staticmethod
    def _copy_out(destination: Destination) -> None:
        for live in destination.copies:
            _copy(live, destination.primary)
            if not arrays.same_bits(live, _as(live, destination.primary)):
                raise DigestMismatchError.of(f"{destination.ref.name}: the live tensor on {live.device} differs "
                                             "from the restored bytes, so its memory does not keep what is written to it")

    def _copy_beside_rivals(self, d: Destination) -> bool:
        """Copies into memory that holds other arrays already. Returns False if that would change their bits: they are put back, and
        the copy goes to new memory."""
        before = [arrays.aside(rival.array) for rival in d.rivals]
        self._copy_out(d)
        hurt = [rival for rival, bits in zip(d.rivals, before) if not arrays.same_bits(rival.array, bits)]
        if hurt and d.is_exact:
            raise DigestMismatchError.of(f"{d.ref.name} and {hurt[0].name} share their memory in the live state, but were stored with "
                                         "different contents; build the state as it was saved")
        if hurt:
            for rival, bits in zip(d.rivals, before):
                _copy(rival.array, bits)
            own = arrays.empty(d.ref, getattr(d.copies[0], "device", "cpu"), d.copies[0])
            d.copies = [self.layouts.wrap(d.ref.name, own)]
            self._copy_out(d)
        return not hurt

    def check_live(self, path: str, ref: Ref, live: Any, coordinate: Optional[str] = None) -> None:
        """Raises DigestMismatchError unless the tensor that the state now holds has the restored bits and type."""
        destination = self._destinations[(ref.name, coordinate)]
        live = self.layouts.wrap(path, live)
        if not arrays.is_array(live) or not self.takes(ref, live) or not arrays.same_bits(live, _as(live, destination.primary)):
            raise DigestMismatchError.of(f"{path}: the live tensor differs from the restored bytes ({ref.dtype}, "
                                         f"{list(ref.shape)})")
