# SPDX-License-Identifier: Apache-2.0
"""What each rank keeps for itself of state that all ranks should have alike: plain values, and objects with a state_dict.

Such state is stored once, a tensor in equal shares of all ranks. If the ranks differ, that would be state that no rank ever
had. So each rank's local tree has its values and its small arrays as well, and samples of its large arrays, by which a
restore sees that the ranks differed.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Mapping

import torch

from ..tree import Ref
from . import arrays
from .sharded import Sharded

VALUES_MAX = 1 << 20  # bytes of the tree of one part; of a larger one each rank keeps a digest
ARRAY_MAX, ARRAYS_MAX = 64 << 10, 1 << 20  # bytes of one array, and of all of a rank
_SAMPLES_MAX = 64  # arrays that are sampled in one save: on a CUDA device each waits for the device
_SAMPLE = 4096  # bytes


def digest_of(data: bytes) -> bytes:
    """Returns a digest of the tree of a part."""
    return hashlib.blake2b(data, digest_size=16).digest()


def _sample(flat: torch.Tensor) -> bytes:
    """Returns a digest of some bytes of all over an array. The stride is odd, so that not only the low bytes of numbers count."""
    return digest_of(flat[::flat.numel() // _SAMPLE | 1].cpu().numpy().tobytes())


def _is_plain(array: Any) -> bool:
    return not isinstance(array, Sharded) and (not isinstance(array, torch.Tensor) or array.is_contiguous())


def keep(found: Mapping[str, tuple]) -> dict:
    """Returns the bytes of each small array, and the sample of each large one, by name. ``found`` is Collector.arrays."""
    kept: dict = {}
    left, samples = ARRAYS_MAX, _SAMPLES_MAX
    for name, (_, array) in found.items():
        if isinstance(array, Sharded):
            continue
        size = array.numel() * array.element_size() if isinstance(array, torch.Tensor) else array.nbytes
        if size <= min(ARRAY_MAX, left):
            left -= size
            kept[name] = arrays.as_bytes(array).cpu().numpy().tobytes()
        elif _is_plain(array) and samples > 0:
            samples -= 1
            kept[name] = {"sample": _sample(arrays.as_bytes(array))}
    return kept


def not_kept(root: dict, local: dict) -> list:
    """Returns warnings about values that a rank had otherwise than rank 0, and of which there was too much to keep."""
    known = root.get("digests", {})
    return [f"{key}: when this was saved, this rank held something else than rank 0, and too much to be kept for each rank; rank 0's comes "
            f"back. Use per_rank({key}) where ranks differ" for key, digest in local.get("digests", {}).items() if known.get(key) != digest]


def put_back(ref: Ref, array: Any, kept: Any) -> bool:
    """Writes this rank's own bytes into a restored array. Returns False if only a sample is kept, and the array differs from it."""
    if isinstance(array, Sharded):
        return True
    if type(kept) is dict:
        return not _is_plain(array) or _sample(arrays.as_bytes(array)) == kept.get("sample")
    flat = arrays.as_bytes(array)
    if type(kept) is not bytes or len(kept) != flat.numel() or flat.cpu().numpy().tobytes() == kept:
        return True
    fresh = arrays.empty(ref)
    target = arrays.as_bytes(fresh)
    ctypes.memmove(target.data_ptr(), kept, len(kept))
    if isinstance(array, torch.Tensor):
        with torch.no_grad():
            array.copy_(fresh)
    else:
        array[...] = fresh
    return True
