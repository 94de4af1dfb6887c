# SPDX-License-Identifier: Apache-2.0
"""Staging for DCP's async_save: the live state for a thread of this process, a copy in one memfd for another process.

``Handed`` goes to whatever saves the state. A thread gets the live tensors, and the caller of async_save waits until
libcairn has copied them into the arena; what is pickled for the helper process of the process mode is a copy.

``Staging`` makes that copy. CPU tensors are copied too, storages once, so that views and ties stay what they are; a small
view of a large storage is copied alone. Each call has memory of its own: what an earlier save still reads is never written
again. A memfd crosses into the helper process without a copy (and without /dev/shm); where this PyTorch has no such
storage, ordinary memory is used, and that is logged once.
"""

from __future__ import annotations

import copy
import logging
import os
import threading
from collections.abc import Iterator, Mapping
from typing import Any, Callable, Optional

import torch
from torch.distributed.tensor import DTensor

from ..client import RELEASED, Operation
from ..errors import CairnError, CancelledError, UnsupportedValueError
from ..torch.arrays import has_memory

PATIENCE_S = 0.2  # until a state that nobody fetches is copied: a helper process takes seconds to start
_LOOK_S = 0.05  # between two looks whether the thread that saves has ended
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


class Handed(Mapping):
    """A state between the caller of async_save and what saves it. Whoever comes first decides what is given away: a thread that reads
    it gets the live state, and ``wait`` waits for its save; what pickles it, or a caller whose patience ends, makes the copy.

    Any thread. ``wait`` is the caller's.
    """

    def __init__(self, state: Mapping, taken: Callable[["Handed"], None]) -> None:
        self._state, self._taken = state, taken
        self._changed = threading.Condition()
        self._thread: Optional[threading.Thread] = None  # reads the live state
        self._op: Optional[Operation] = None
        self._copy: Any = None
        self._error: Optional[Exception] = None  # of the copy
        _settle(state)

    # --- what saves -----------------------------------------------------------------------------------

    def _given(self) -> Any:
        with self._changed:
            if self._error is not None:
                raise self._error
            if self._copy is not None:
                return self._copy
            if self._thread is None:
                self._thread = threading.current_thread()
                self._taken(self)
                self._changed.notify_all()
            return self._state

    def __getitem__(self, key: Any) -> Any:
        return self._given()[key]

    def __iter__(self) -> Iterator:
        return iter(self._given())

    def __len__(self) -> int:
        return len(self._given())

    def __reduce__(self) -> tuple:
        with self._changed:
            self._make_copy()
            return dict, (self._copy,)

    def begun(self, op: Operation) -> None:
        """Notes the save that copies the state. Raises CancelledError, which fails it on all ranks, if nobody waits for it."""
        with self._changed:
            self._op = op
            self._changed.notify_all()
            if self._error is not None:
                raise self._error

    # --- the caller -----------------------------------------------------------------------------------

    def _make_copy(self) -> None:
        if self._copy is None and self._error is None:
            try:
                self._copy = Staging(self._state).state
            except Exception as error:
                self._error = error  # also of whoever comes later: the caller has not waited for it
            self._changed.notify_all()
        if self._error is not None:
            raise self._error

    def wait(self) -> None:
        """Returns when the state may change: it is copied, or its save has failed, which the save's future tells. Ctrl-C is
        raised then, too; a second one gives the save up."""
        try:
            self._wait()
        except (KeyboardInterrupt, SystemExit):
            self._wait_or_give_up()
            raise

    def _wait_or_give_up(self) -> None:
        try:
            self._wait()
        except (KeyboardInterrupt, SystemExit):
            self._error = CancelledError.of("the caller of async_save was interrupted before the state was copied, and may "
                                            "change it")
            if self._op is not None:
                self._op.abort()
            raise

    def _wait(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._thread or self._copy is not None or self._error, PATIENCE_S)
            if self._thread is None:
                self._make_copy()
                return
        while not self.is_over():
            with self._changed:
                op = self._op if self._changed.wait_for(lambda: self._op is not None, _LOOK_S) else None
            try:
                if op is not None and op.wait(RELEASED, _LOOK_S):
                    return
            except CairnError:
                return

    def is_over(self) -> bool:
        """Returns whether nobody will read the live state any more."""
        thread, op = self._thread, self._op
        if thread is None:
            return self._copy is not None or self._error is not None
        return not thread.is_alive() or thread is threading.current_thread() or (op is not None and op.done())


def _settle(state: Any) -> None:
    """Waits for what this thread has asked of the devices that hold the state: the thread that saves has other streams."""
    devices: set = set()

    def note(value: Any) -> Any:
        if isinstance(value, torch.Tensor) and value.device.type not in ("cpu", "meta"):
            devices.add(value.device)
        return value

    _walk(state, note, note)
    for device in devices:
        module = torch.get_device_module(device)
        (module.current_stream(device) if hasattr(module, "current_stream") else module).synchronize()
