# SPDX-License-Identifier: Apache-2.0
"""Keeps a rank's own copy of state that all ranks should have alike: plain values, and objects with a state_dict.

Such state is stored once, a tensor in equal shares of all ranks. If the ranks differed, that would be a state that no rank
ever had. So each rank's blob ``cairn.local`` also has the rank's plain values (of a part of more than 1 MiB only a digest),
its arrays of up to 64 KiB (1 MiB in all), and samples of at most 64 of its other arrays, contiguous ones. By these a restore
finds that the ranks differed.
"""

from __future__ import annotations

import ctypes
import hashlib
from typing import Any, Mapping, Sequence

import torch

from .. import tree
from ..tree import Ref
from . import arrays
from .sharded import Sharded
from .similar import ranks_text

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


def same_on_devices(data: bytes) -> bytes:
    """Returns the tree of a part without the places of its tensors: each rank has a device of its own."""
    if b"cuda" not in data:
        return data
    value = tree.decode(data, deferred=True)
    for ref in tree.refs(value):
        ref.device = ""
    return tree.encode(value)


def digests_by_key(own: Mapping[str, bytes], kept: Mapping[str, Any], digests: Mapping[str, bytes]) -> dict:
    """Returns for each key two texts that are the same on ranks that hold the same: of what each rank keeps, and of what it does not."""
    found: dict = {key: ([same_on_devices(data)], []) for key, data in own.items()}
    for key, digest in digests.items():
        found.setdefault(key, ([], []))[1].append(digest)
    for name, item in sorted(kept.items()):
        is_sample = type(item) is dict
        key = name.partition(".")[0].partition("[")[0]
        found.setdefault(key, ([], []))[is_sample].append(item["sample"] if is_sample else digest_of(item))
    return {key: [digest_of(b"".join(items)).hex() for items in both] for key, both in found.items()}


def differences(of_ranks: Sequence[dict], first: Sequence[int]) -> list:
    """Returns a text for each key that ranks hold otherwise than the ``first`` one of those with the same names. ``of_ranks`` has for
    each rank its ``digests_by_key``."""
    told = []
    for key in sorted({key for item in of_ranks for key in item}):
        odd, large = ([rank for rank, item in enumerate(of_ranks) if key in item and key in of_ranks[first[rank]] and
                       item[key][at] != of_ranks[first[rank]][key][at]] for at in (0, 1))
        if large:
            told.append(f"{key}: {ranks_text(large)} hold{'s' * (len(large) == 1)} other contents than rank {first[large[0]]}, and too "
                        "much to be kept for each rank: a restore gives all of them one rank's values, and ends with REPLICAS_DIFFER "
                        f"for tensors; use per_rank({key})")
        elif odd:
            told.append(f"{key}: {ranks_text(odd)} hold{'s' * (len(odd) == 1)} other contents than rank {first[odd[0]]}. Each rank gets "
                        f"its own back. On another number of ranks all get rank {first[odd[0]]}'s, unless the state has per_rank({key})")
    return told


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
