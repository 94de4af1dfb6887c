# SPDX-License-Identifier: Apache-2.0
"""Staging for async_save: a copy of a state in one memfd, made before ``stage`` returns.

CPU tensors are copied too, storages once, so that views and ties stay what they are; a small view of a large storage is
copied alone. Each call has memory of its own: what an earlier save still reads is never written again. A memfd crosses
into the helper process of async_save's process mode without a copy (and without /dev/shm); where this PyTorch has no
such storage, ordinary memory is used, and that is logged once. libcairn's own copy comes later, in the background.
"""

from __future__ import annotations

import copy
import logging
import os
from typing import Any, Callable

import torch
from torch.distributed.tensor import DTensor

from ..errors import UnsupportedValueError
from ..torch.arrays import has_memory

_ALIGN = 64
_log = logging.getLogger("cairn.dcp")
_told = False


def _memory(nbytes: int) -> torch.UntypedStorage:
    """Memory that another process can map."""
    global _told
    fd = os.memfd_create("cairn-stage", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, nbytes)
        return torch.UntypedStorage._new_shared_fd_cpu(fd, nbytes)
    except (AttributeError, RuntimeError, TypeError) as error:
        if not _told:
            _told = True
            _log.warning("cairn: this PyTorch cannot share a memfd (%s): async_save in process mode copies the state "
                         "once more", error)
        return torch.UntypedStorage(nbytes)
    finally:
        os.close(fd)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a strided copy holds all of it."""
    return (type(tensor) in (torch.Tensor, torch.nn.Parameter) and tensor.layout is torch.strided
            and not tensor.is_meta and not tensor.is_quantized)


def _up(nbytes: int) -> int:
    return -(-nbytes // _ALIGN) * _ALIGN


class _Room:
    """One storage to copy, or one tensor of it."""

    def __init__(self, source: torch.Tensor, whole: bool) -> None:
        self.source, self.whole, self.offset = source, whole, 0
        self.nbytes = source.untyped_storage().nbytes() if whole else source.numel() * source.element_size()

    def fill(self, storage: torch.UntypedStorage) -> None:
        if self.whole:
            target = torch.empty(0, dtype=torch.uint8, device="cpu").set_(storage, self.offset, (self.nbytes,))
            target.copy_(torch.empty(0, dtype=torch.uint8, device=self.source.device).set_(
                self.source.untyped_storage(), 0, (self.nbytes,)))
        elif self.nbytes:
            self.tensor(storage, self.source).copy_(self.source)

    def tensor(self, storage: torch.UntypedStorage, source: torch.Tensor) -> torch.Tensor:
        """The copy of a tensor that lives here."""
        start, stride = self.offset // source.element_size(), None
        if self.whole:
            start, stride = start + source.storage_offset(), source.stride()
        else:
            stride = torch.empty(source.shape, device="meta").stride()
        return torch.empty(0, dtype=source.dtype, device="cpu").set_(storage, start, source.shape, stride)


class Staging:
    """One state, staged: ``state`` has its structure, with tensors in memory that nobody else writes."""

    def __init__(self, state: Any) -> None:
        self._plain: list = []  # tensors to copy, in the order in which they are met
        _walk(state, self._note, lambda value: value)
        rooms = self._rooms()
        self.nbytes = 0
        for room in dict.fromkeys(rooms):
            room.offset = self.nbytes
            self.nbytes += _up(room.nbytes)
        storage = _memory(max(self.nbytes, _ALIGN))
        with torch.no_grad():
            for room in dict.fromkeys(rooms):
                room.fill(storage)
        copies = iter([room.tensor(storage, tensor) for room, tensor in zip(rooms, self._plain)])
        self.state = _walk(state, lambda tensor: next(copies), copy.deepcopy)
        del self._plain

    def _note(self, tensor: torch.Tensor) -> torch.Tensor:
        tensor = tensor.detach()
        if not has_memory(tensor):
            raise UnsupportedValueError.of(f"stage: a tensor {tensor.dtype} {list(tensor.shape)} has no memory: its storage was freed "
                                           "(offloaded, or gathered and released again); bring it back before the save")
        self._plain.append(tensor.resolve_conj().resolve_neg())
        return tensor

    def _rooms(self) -> list:
        """For each tensor the room that it shares with those of its storage, or has alone."""
        by_storage: dict = {}
        for tensor in self._plain:
            by_storage.setdefault(tensor.untyped_storage()._cdata, []).append(tensor)
        whole = {}
        for key, tensors in by_storage.items():
            distinct = {(t.storage_offset(), tuple(t.shape), tuple(t.stride())): t.numel() * t.element_size()
                        for t in tensors}
            if 2 * sum(distinct.values()) >= tensors[0].untyped_storage().nbytes():
                whole[key] = _Room(tensors[0], True)
        return [whole.get(tensor.untyped_storage()._cdata) or _Room(tensor, False) for tensor in self._plain]


def _walk(value: Any, leaf: Callable[[torch.Tensor], torch.Tensor], other: Callable[[Any], Any]) -> Any:
    """A copy of the structure with ``leaf(tensor)`` for plain tensors, always in the same order, ``other(x)`` else."""
    if isinstance(value, DTensor) and _is_plain(value._local_tensor):
        return _dtensor(leaf(value._local_tensor), value)
    if isinstance(value, torch.Tensor) and _is_plain(value):
        return leaf(value)
    if isinstance(value, dict):
        made = {key: _walk(item, leaf, other) for key, item in value.items()}
        return made if type(value) is dict else _same_kind(value, made)
    if type(value) in (list, tuple):
        return type(value)(_walk(item, leaf, other) for item in value)
    return other(value)


def _dtensor(local: torch.Tensor, like: DTensor) -> DTensor:
    """A DTensor over ``local``. Made over an empty tensor first: PyTorch takes the storage offset from what it is made
    over, and when that is not 0 it takes the wrapper for memory of its own and crashes as it pickles it."""
    made = DTensor(torch.empty(0, dtype=local.dtype, device="cpu"), like._spec, requires_grad=False)
    made._local_tensor = local
    return made


def _same_kind(like: dict, items: dict) -> Any:
    """OrderedDict and its like, without what the original's own values would cost to copy."""
    made = copy.copy(like)
    dict.update(made, items)
    return made


def stage(state: Any) -> Any:
    """The staged copy of a state; see the top of the file."""
    return Staging(state).state
