# SPDX-License-Identifier: Apache-2.0
"""Memory that a restore must not write as if it belonged to one tensor: memory that is mapped read-only, which PyTorch does
not know of a tensor over a file; and memory that several live tensors share (an EMA that began as the model's own tensors)."""

from __future__ import annotations

import bisect
from typing import Any, Iterable, NamedTuple, Optional

import torch


class ReadOnly:
    """The read-only mappings of this process now, from /proc/self/maps. There are none if that file cannot be read."""

    def __init__(self) -> None:
        self._begins: list = []
        self._ends: list = []
        try:
            with open("/proc/self/maps", "rb") as maps:
                lines = maps.read().splitlines()
        except OSError:
            lines = []
        for line in lines:
            span, access = line.split(None, 2)[:2]
            if b"w" not in access:
                begin, end = (int(part, 16) for part in span.split(b"-"))
                self._begins.append(begin)
                self._ends.append(end)

    def covers(self, tensor: torch.Tensor) -> bool:
        """Returns whether the first or the last byte of a CPU tensor lies in a read-only mapping."""
        if tensor.numel() == 0:
            return False
        first = tensor.data_ptr()
        last = first + tensor.element_size() - 1 + tensor.element_size() * sum(
            step * (length - 1) for step, length in zip(tensor.stride(), tensor.shape))
        return self._holds(first) or self._holds(last)

    def _holds(self, address: int) -> bool:
        at = bisect.bisect_right(self._begins, address) - 1
        return at >= 0 and address < self._ends[at]


# --- shared ----------------------------------------------------------------------------------------------------

class Span(NamedTuple):
    """The bytes ``begin`` to ``end`` of a device, in which an array lies. ``owner`` is the Destination that will be written there,
    or None if the array stays as it is."""

    where: str
    begin: int
    end: int
    owner: Any
    name: str
    array: Any


def _geometry(array: Any) -> tuple:
    """Returns (first byte, bytes of an element, lengths, steps in bytes) of a tensor or ndarray; no step is below 0."""
    if isinstance(array, torch.Tensor):
        size = array.element_size()
        return array.data_ptr(), size, tuple(array.shape), tuple(step * size for step in array.stride())
    steps = tuple(abs(step) for step in array.strides)
    back = sum(abs(step) * (length - 1) for step, length in zip(array.strides, array.shape) if step < 0)
    return array.ctypes.data - back, array.itemsize, array.shape, steps


def span_of(owner: Any, name: str, array: Any) -> Optional[Span]:
    """Returns the Span of an array, or None if the array has no elements or no address."""
    try:
        if not array.shape or 0 not in array.shape:
            first, size, shape, steps = _geometry(array)
            reach = size + sum(step * (length - 1) for step, length in zip(steps, shape))
            where = str(array.device) if isinstance(array, torch.Tensor) else "cpu"
            return Span(where, first, first + reach, owner, name, array) if first else None
    except (RuntimeError, ValueError):  # a sparse tensor, a subclass, a lazy module's
        pass
    return None


def _is_dense(array: Any) -> bool:
    return bool(array.is_contiguous() if isinstance(array, torch.Tensor) else array.flags.c_contiguous)


def have_common_bytes(a: Span, b: Span) -> bool:
    """Returns whether two arrays share a byte. If rows of one lie between rows of the other, they share none."""
    if a.where != b.where or a.begin >= b.end or b.begin >= a.end:
        return False
    if (_is_dense(a.array) and _is_dense(b.array)) or _geometry(a.array) == _geometry(b.array):
        return True
    begin = min(a.begin, b.begin)
    touched = torch.zeros(max(a.end, b.end) - begin, dtype=torch.bool, device="cpu")

    def view(span: Span) -> torch.Tensor:
        first, size, shape, steps = _geometry(span.array)
        return touched.as_strided((*shape, size), (*steps, 1), first - begin)
    view(a).fill_(True)
    return bool(view(b).any())


def shared(spans: Iterable[Span]) -> list:
    """Returns a pair for each two spans of different owners that have bytes in common."""
    found: list = []
    active: list = []
    for span in sorted(spans, key=lambda span: span[:3]):
        active = [other for other in active if other.where == span.where and other.end > span.begin]
        found += [(span, other) for other in active if other.owner is not span.owner and have_common_bytes(span, other)]
        active.append(span)
    return found
