# SPDX-License-Identifier: Apache-2.0
"""What libcairn takes of names, shapes and strides (proto/base/limits.h), and what it has of NumPy's types."""

from __future__ import annotations

from typing import Sequence

NAME_BYTES_MAX = 1024  # of tensors and blobs
TAG_BYTES_MAX = 128
NDIM_MAX = 8
NUMPY_NAMES = frozenset(("bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
                         "float32", "float64", "complex64", "complex128"))


def overlaps(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Returns whether two elements share memory, or might."""
    reach = 0
    for step, length in sorted((abs(step), length) for step, length in zip(stride, shape) if length > 1):
        if step <= reach:
            return True
        reach += step * (length - 1)
    return False
