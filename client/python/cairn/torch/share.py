# SPDX-License-Identifier: Apache-2.0
"""restore(share="broadcast"): what several ranks hold alike is read by one of them and handed to the others.

Ranks are alike where they want the same whole tensors, or the same pieces of sharded ones; each reads its share of the
bytes, so that the store is read once, by all of them together. The reader's bytes are checked against the stored digests
as always; it sends their SHA-256 along, which every receiver compares.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Iterator, Optional

import torch

from ..errors import CairnError, DigestMismatchError
from . import device
from .arrays import as_bytes
from .group import Group
from .plan import Destination, Plan
from .sharded import Sharded
from .stages import classes

_BUCKET_BYTES = 16 << 20
_DIGEST_BYTES = 32


def _memory(destination: Destination) -> Any:
    array = destination.primary.local if isinstance(destination.primary, Sharded) else destination.primary
    return array if isinstance(array, torch.Tensor) else torch.from_numpy(array)


def _bytes_of(tensor: torch.Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _gather(memories: list, data: torch.Tensor) -> None:
    """Copies the bytes of the memories into ``data``, one after the other, also from devices."""
    at = 0
    for memory in memories:
        part = as_bytes(memory)
        data[at:at + part.numel()].copy_(part)
        at += part.numel()


def _sha256(data: torch.Tensor) -> bytes:
    if data.numel() == 0:
        return hashlib.sha256(b"").digest()
    return hashlib.sha256((ctypes.c_char * data.numel()).from_address(data.data_ptr())).digest()


class _Alike:
    """The destinations that one set of ranks wants alike. ``lots`` yields (the reader's index among the ranks, destinations), the
    same on all ranks. A lot has at most a bucket's bytes, unless it is one large array."""

    def __init__(self, ranks: list, destinations: list) -> None:
        self.ranks = ranks
        sized = sorted(destinations, key=lambda item: (-_bytes_of(_memory(item)), item.ref.name))
        load = [0] * len(ranks)
        self.by_reader: list = [[] for _ in ranks]
        for item in sized:
            reader = load.index(min(load))
            load[reader] += max(1, _bytes_of(_memory(item)))
            self.by_reader[reader].append(item)

    def lots(self) -> Iterator[tuple]:
        for reader, items in enumerate(self.by_reader):
            lot: list = []
            room = _BUCKET_BYTES
            for item in items:
                size = _bytes_of(_memory(item))
                if lot and size > room:
                    yield reader, lot
                    lot, room = [], _BUCKET_BYTES
                lot.append(item)
                room -= size
            if lot:
                yield reader, lot


class Sharing:
    """Divides the reading among ranks that want the same arrays. Every rank makes one for its plan, before it asks for arrays."""

    def __init__(self, group: Group, plan: Plan) -> None:
        self._group, self._sets = group, []
        wanted = [item for item in plan.destinations() if item.coordinate is None]
        whole = [item for item in wanted if not isinstance(item.primary, Sharded) or item.primary.layout.is_whole]
        pieces = [item for item in wanted if isinstance(item.primary, Sharded) and not item.primary.layout.is_whole
                  and item.primary.layout.boxes]
        lists = (whole, pieces)
        found = group.gather(b"".join(self._signature(items) for items in lists))
        for i, items in enumerate(lists):
            of_rank = classes([data[i * _DIGEST_BYTES:(i + 1) * _DIGEST_BYTES] for data in found])
            ranks = [rank for rank, first in enumerate(of_rank) if first == of_rank[group.rank]]
            if items and len(ranks) > 1:
                self._sets.append(_Alike(ranks, items))
        self._skipped = {id(item) for alike in self._sets for reader, items in enumerate(alike.by_reader)
                         if alike.ranks[reader] != group.rank for item in items}

    @staticmethod
    def _signature(items: list) -> bytes:
        lines = sorted(repr((item.ref.name, item.ref.dtype, item.ref.shape, _layout(item.primary))) for item in items)
        return hashlib.sha256("\n".join(lines).encode()).digest()

    def is_read_here(self, destination: Destination) -> bool:
        return id(destination) not in self._skipped

    def hand_over(self) -> None:
        """Sends the arrays that this rank has read to the others, and receives theirs. Every rank calls it once its own arrays have
        come. Raises on all ranks: DigestMismatchError, which names the tensors, or MissingRanksError, in which
        each rank names the ranks that it misses."""
        error: Optional[CairnError] = None
        for alike in self._sets:
            for reader, lot in alike.lots():
                error = self._move(alike, reader, lot) or error
        self._group.agree(error, "sharing what was read")

    def _move(self, alike: _Alike, reader: int, lot: list) -> Optional[CairnError]:
        memories = [_memory(item) for item in lot]
        mine = alike.ranks[reader] == self._group.rank
        on_device = any(device.index(memory) is not None for memory in memories)
        direct = len(lot) == 1 and memories[0].is_contiguous() and not on_device
        if direct:
            data = as_bytes(memories[0])
        else:  # gloo moves what is in the CPU's memory
            data = device.bounce(sum(map(_bytes_of, memories)), on_device)
            if mine:
                _gather(memories, data)
        digest = torch.frombuffer(bytearray(_sha256(data) if mine else _DIGEST_BYTES), dtype=torch.uint8)
        self._group.broadcast(data, alike.ranks, reader)
        self._group.broadcast(digest, alike.ranks, reader)
        if mine:
            return None
        if not direct:
            self._spread(data, memories)
            _gather(memories, data.fill_(0))  # what is there now
        if _sha256(data) != digest.numpy().tobytes():
            return DigestMismatchError.of(f"{lot[0].ref.name}{f' or one of {len(lot) - 1} more' if len(lot) > 1 else ''}: "
                                          f"the bytes that rank {alike.ranks[reader]} read differ from those that came here")
        return None

    @staticmethod
    def _spread(data: torch.Tensor, memories: list) -> None:
        at = 0
        with torch.no_grad():
            for memory in memories:
                part = data[at:at + _bytes_of(memory)]
                at += part.numel()
                if part.numel() == 0:
                    continue
                if memory.is_contiguous():
                    memory.reshape(-1).view(torch.uint8).copy_(part)
                else:
                    memory.copy_(part.clone().view(memory.dtype).reshape(memory.shape))


def _layout(array: Any) -> Any:
    return (array.layout.local, array.layout.boxes) if isinstance(array, Sharded) and not array.layout.is_whole else None
