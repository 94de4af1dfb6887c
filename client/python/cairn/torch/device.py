# SPDX-License-Identifier: Apache-2.0
"""Tensors in CUDA device memory: libcairn copies them itself, on side streams between the device and page-locked
memory, several at a time. But for the RNG (rng.py) this module is all that knows torch.cuda.

A save's copies wait, on the device, for an event behind what the training has asked of its current streams; whatever a
save had to make for them (contiguous copies, the event) is in a Loan until the save is released. A restore writes when the
devices are idle. Devices of other kinds, ROCm's among them, have no such road: PyTorch copies their tensors to the CPU.
"""

from __future__ import annotations

import logging
from typing import Any, Iterable, Optional

import torch

from ..errors import InvalidError

PIECE_BYTES = 32 << 20  # what goes through the CPU's memory, goes in such pieces
CLONES_BYTES = 64 << 20  # of one lazy save
NoRoom = getattr(torch, "OutOfMemoryError", None) or torch.cuda.OutOfMemoryError  # an older PyTorch has the second only
_log = logging.getLogger("cairn.torch")


def index(tensor: torch.Tensor) -> Optional[int]:
    """Returns the index of the CUDA device that holds the tensor, or None for the CPU and other kinds of devices."""
    return tensor.device.index if tensor.is_cuda and torch.version.hip is None else None


def is_capturing() -> bool:
    """Returns whether this thread's CUDA calls are being captured in a CUDA graph."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def settle(devices: Iterable[int]) -> None:
    """Waits until nothing runs on these devices, because running kernels may use memory that will be written."""
    for device in sorted(set(devices)):
        torch.cuda.synchronize(device)


def contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """Returns the tensor if it is contiguous, else a contiguous copy, which is on the CPU if the device has no room for it."""
    if tensor.is_contiguous() or index(tensor) is None:
        return tensor.contiguous()
    try:
        return tensor.contiguous()
    except NoRoom:
        return on_cpu(tensor)


def on_cpu(tensor: torch.Tensor) -> torch.Tensor:
    """Returns a contiguous copy on the CPU, made in pieces, since PyTorch makes each one contiguous on the device first."""
    made = torch.empty(tensor.shape, dtype=tensor.dtype, device="cpu")
    for to, part in pieces(made, tensor):
        to.copy_(part)
    return made


def note_no_room(tensor: torch.Tensor) -> None:
    _log.warning("cairn: there is no room on %s for a contiguous copy of a tensor %s, so it goes through the CPU's memory and training "
                 "waits", tensor.device, list(tensor.shape))


def empty(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Returns a new tensor, on the CPU if the device has no room."""
    try:
        return torch.empty(shape, dtype=dtype, device=device)
    except NoRoom:
        return torch.empty(shape, dtype=dtype, device="cpu")


def pieces(*tensors: torch.Tensor) -> Iterable[tuple]:
    """Yields views of tensors that have one shape: the same piece of each, along the longest dimension."""
    shape = tensors[0].shape
    dim = max(range(len(shape)), key=lambda d: shape[d], default=None)
    if dim is None or 0 in shape:
        yield tensors
        return
    line = tensors[0].numel() * tensors[0].element_size() // shape[dim]
    step = max(1, PIECE_BYTES // max(1, line))
    for begin in range(0, shape[dim], step):
        length = min(step, shape[dim] - begin)
        yield tuple(tensor.narrow(dim, begin, length) for tensor in tensors)


def bounce(nbytes: int, is_locked: bool) -> torch.Tensor:
    """Returns CPU memory through which bytes of a device pass."""
    return torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=is_locked)


class Loan:
    """Keeps the memory that libcairn reads for one save alive until ``end``, when the save is released.

    ``is_lazy``: tensors that must be copied before ``save`` returns are copied on their device first, as far as
    CLONES_BYTES go, so that ``save`` need not wait for the device.
    """

    def __init__(self, is_lazy: bool = False) -> None:
        self._held: list = []
        self._devices: set = set()
        self._room = CLONES_BYTES if is_lazy else 0

    def take(self, tensor: torch.Tensor) -> None:
        """Notes that this tensor will be read. Raises InvalidError if it has no contents yet, because a graph is being captured."""
        device = index(tensor)
        if device is None:
            return
        if is_capturing():
            raise InvalidError.of("save: a CUDA graph is being captured, so that tensors on the device have no contents yet: "
                                  "save before or after the capture")
        self._devices.add(device)

    @property
    def has_devices(self) -> bool:
        """Whether tensors on devices are read."""
        return bool(self._devices)

    def hold(self, value: Any) -> "Loan":
        self._held.append(value)
        return self

    def cloned(self, tensor: torch.Tensor) -> Optional[torch.Tensor]:
        """Returns a copy of a CUDA tensor on its device, or None if it is no CUDA tensor or there is no room."""
        nbytes = tensor.numel() * tensor.element_size()
        if index(tensor) is None or nbytes > self._room:
            return None
        try:
            made = tensor.detach().clone(memory_format=torch.contiguous_format)
        except NoRoom:
            return None
        self._room -= nbytes
        return made

    def event(self) -> int:
        """Returns a CUevent that follows all work so far on the devices' current streams, or 0 if no device is read."""
        events = []
        for device in sorted(self._devices):
            events.append(torch.cuda.Event())
            events[-1].record(torch.cuda.current_stream(device))
        if len(events) > 1:  # one behind all of them, on a stream that the training does not use
            joined, stream = torch.cuda.Event(), torch.cuda.Stream(min(self._devices))
            for event in events:
                stream.wait_event(event)
            joined.record(stream)
            events.append(joined)
        self._held.extend(events)
        return events[-1].cuda_event if events else 0

    def end(self) -> None:
        self._held.clear()
