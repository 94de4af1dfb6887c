# SPDX-License-Identifier: Apache-2.0
"""Which of the process's memory cannot be written: PyTorch does not know it of a tensor over a mapped file."""

from __future__ import annotations

import bisect

import torch


class ReadOnly:
    """The read-only mappings of this moment, from /proc/self/maps; none where that cannot be read."""

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
        """Whether the first or last byte of a CPU tensor lies there."""
        if tensor.numel() == 0:
            return False
        first = tensor.data_ptr()
        last = first + tensor.element_size() - 1 + tensor.element_size() * sum(
            step * (length - 1) for step, length in zip(tensor.stride(), tensor.shape))
        return self._holds(first) or self._holds(last)

    def _holds(self, address: int) -> bool:
        at = bisect.bisect_right(self._begins, address) - 1
        return at >= 0 and address < self._ends[at]
