# SPDX-License-Identifier: Apache-2.0
"""DCP's Metadata as a typed tree, and back: what the checkpoint holds, and no code.

The tree is a dict: "version" 1; "save", random text; "entries", name -> (dtype, shape, list of (offsets, sizes)) of a
tensor or "tree" / "opaque" of a value, in DCP's order; "planner_data" (DefaultSavePlanner: name -> path in the nested
state). Types, shapes and boxes are those that the ranks wrote; what a cached Metadata claims is only compared with
them. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Iterator

import torch
from torch.distributed.checkpoint.metadata import (BytesStorageMetadata, ChunkStorageMetadata, Metadata,
                                                   TensorProperties, TensorStorageMetadata)

from .. import tree
from ..errors import FormatError, InternalError, UnsupportedError
from ..torch.arrays import TORCH_TYPES
from .items import PlanStaleError, Stored

VERSION = 1


def encode(metadata: Metadata, results: list, attempt: str, step: int, save: str) -> bytes:
    """Returns the tree of what ``results`` (a list for each rank) wrote. Raises PlanStaleError, which names what disagrees."""
    entries: dict = dict.fromkeys(metadata.state_dict_metadata)
    for rank, result in ((rank, result) for rank, row in enumerate(results) for result in row):
        fqn, stored = result.index.fqn, result.storage_data
        if not isinstance(stored, Stored) or (stored.attempt, stored.step) != (attempt, step):
            raise InternalError.of(f"{fqn}: rank {rank} wrote it for another save ({stored!r}); every rank must save "
                                   f"step {step} with the same Writer and checkpoint_id")
        if fqn not in entries:
            raise PlanStaleError.about(fqn, f"rank {rank} wrote it, but the plan of all ranks does not have it")
        if stored.kind != "tensor":
            entries[fqn] = stored.kind
            continue
        entry = entries[fqn] = entries[fqn] or (stored.dtype, stored.shape, [])
        if entry[:2] != (stored.dtype, stored.shape):
            raise PlanStaleError.about(fqn, f"rank {rank} wrote it as {stored.dtype} {list(stored.shape)}, but another rank "
                                       f"as {entry[0]} {list(entry[1])}")
        entry[2].append((stored.offsets, stored.sizes))
    for fqn, entry in entries.items():
        _compare(fqn, entry, metadata.state_dict_metadata[fqn])
    planner_data = metadata.planner_data
    if planner_data is not None:
        planner_data = dict(planner_data) if isinstance(planner_data, Mapping) else planner_data
    return tree.encode({"version": VERSION, "save": save, "entries": entries, "planner_data": planner_data}, "metadata")


def _compare(fqn: str, entry: Any, planned: Any) -> None:
    if entry is None:
        raise PlanStaleError.about(fqn, "the plan of all ranks has it, but no rank wrote it")
    if isinstance(entry, str) or isinstance(planned, BytesStorageMetadata):
        if isinstance(entry, str) != isinstance(planned, BytesStorageMetadata):
            raise PlanStaleError.about(fqn, "the plan of all ranks calls it "
                                       f"{'a tensor' if isinstance(entry, str) else 'bytes'}, but something else was written")
    elif TORCH_TYPES[entry[0]] != planned.properties.dtype or entry[1] != tuple(planned.size):
        raise PlanStaleError.about(fqn, f"it was written as {entry[0]} {list(entry[1])}, but the plan of all ranks says "
                                   f"{planned.properties.dtype} {list(planned.size)}")


class LazyEntries(Mapping):
    """state_dict_metadata: DCP's objects are made when they are asked for."""

    def __init__(self, entries: dict) -> None:
        self.raw, self._made = entries, {}

    def __getitem__(self, fqn: str) -> Any:
        if fqn not in self._made:
            self._made[fqn] = _entry(fqn, self.raw[fqn])
        return self._made[fqn]

    def __iter__(self) -> Iterator:
        return iter(self.raw)

    def __len__(self) -> int:
        return len(self.raw)

    def __contains__(self, fqn: object) -> bool:
        return fqn in self.raw

    def place(self, fqn: str) -> tuple:
        """Returns (the name of the stored tensor, its coordinate or None)."""
        return fqn, None


def _entry(fqn: str, entry: Any) -> Any:
    return BytesStorageMetadata() if isinstance(entry, str) else tensor_entry(fqn, *entry)


def tensor_entry(fqn: str, dtype: str, shape: tuple, boxes: list) -> TensorStorageMetadata:
    """DCP's description of a tensor that is stored as boxes of (offsets, sizes)."""
    if dtype not in TORCH_TYPES:
        raise UnsupportedError.of(f"{fqn}: its element type {dtype} is unknown to this PyTorch")
    chunks = [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in boxes]
    return TensorStorageMetadata(TensorProperties(dtype=TORCH_TYPES[dtype]), torch.Size(shape), chunks)


def decode(data: bytes) -> tuple:
    """Returns (Metadata with LazyEntries, text "save").

    Raises DamagedError for damaged bytes, FormatError for a tree that this package did not write, and UnsupportedError for
    another version.
    """
    root = tree.decode(data)
    if not isinstance(root, dict) or not isinstance(root.get("version"), int):
        raise FormatError.of("the checkpoint's DCP metadata is not what this package writes")
    if root["version"] != VERSION:
        raise UnsupportedError.of(f"the checkpoint's DCP metadata has version {root['version']}; this package reads version "
                                  f"{VERSION}")
    entries = root.get("entries")
    if not isinstance(entries, dict) or not all(_is_entry(fqn, entry) for fqn, entry in entries.items()):
        raise FormatError.of("the checkpoint's DCP metadata has entries of no known form")
    return Metadata(LazyEntries(entries), planner_data=root.get("planner_data"), storage_data={}), str(root.get("save"))


def _is_entry(fqn: Any, entry: Any) -> bool:
    if not isinstance(fqn, str) or entry in ("tree", "opaque"):
        return isinstance(fqn, str)
    if not isinstance(entry, tuple) or len(entry) != 3 or not isinstance(entry[0], str):
        return False
    ndim = len(entry[1]) if isinstance(entry[1], tuple) else -1
    return isinstance(entry[2], list) and all(
        isinstance(box, tuple) and len(box) == 2 and all(
            isinstance(side, tuple) and len(side) == ndim and all(type(n) is int and n >= 0 for n in side)
            for side in box) for box in entry[2])
