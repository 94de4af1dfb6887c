# SPDX-License-Identifier: Apache-2.0
"""Reader: DCP's StorageReader over Cairn.

Wanted boxes are planned by the server and read straight into the planner's tensors where those have the
stored type and lie in CPU memory or, contiguous, on a CUDA device. Values come from typed trees and are
pickled anew, in this process, since DCP's planner reads nothing else: no stored byte is ever unpickled,
unless it was stored as opaque and Reader(allow_opaque=True) says so. Planner hooks run on the calling thread.
"""

from __future__ import annotations

import io
import logging
import os
from dataclasses import replace
from typing import Any, Optional

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader

from .. import tree
from ..client import BYTES, DTYPES, LATEST, LOCAL, SHARDED, Client
from ..doors import settle as settle_saves
from ..errors import (CairnError, ConflictError, DtypeMismatchError, InvalidError, NotFoundError, ReplicasDifferError,
                      UnsupportedError)
from ..torch import arrays
from ..torch.device import settle
from ..torch.own import put_back
from ..torch.similar import listed
from ..torch.stored import checkpointer_root
from . import metadata as codec
from . import trees
from .items import METADATA_BLOB
from ..names import is_checkpoint, parse_id, split_url
from ..tree import Ref
from .session import note_load
from .trees import StateEntries

_log = logging.getLogger("cairn.dcp")


class _Box:
    """One box to read: where it lies in the tensor, and the targets that want it."""

    def __init__(self, dtype: str, shape: tuple, offsets: tuple, sizes: tuple) -> None:
        self.dtype, self.shape, self.offsets, self.sizes = dtype, shape, offsets, sizes
        self.memory: Any = None
        self.targets: list = []

    def add(self, target: torch.Tensor) -> None:
        if (self.memory is None and arrays.TORCH_NAMES.get(target.dtype) == self.dtype and arrays.is_direct(target)):
            self.memory = target
        else:
            self.targets.append(target)

    @property
    def device(self) -> int:
        """``device`` of cairn_tensor."""
        return 0 if self.memory is None else arrays.device_field(self.memory)

    def leave_device(self) -> None:
        if self.device:
            self.targets.insert(0, self.memory)
            self.memory = None

    def row(self) -> tuple:
        if self.memory is None:
            self.memory = torch.empty(self.sizes, dtype=arrays.TORCH_TYPES[self.dtype], device="cpu")
        stride = None if self.memory.is_contiguous() else tuple(self.memory.stride())
        return self.offsets, self.sizes, stride, self.memory.data_ptr() if self.memory.numel() else 0

    def spread(self) -> None:
        for target in self.targets:
            target.copy_(self.memory)


class Reader(StorageReader):
    """Loads from a run of Cairn: ``dcp.load(sd, checkpoint_id="step-100", storage_reader=Reader(run_url))``.

    Each rank reads alone, and all must have seen the same (term, step). Errors while the metadata is read are logged here
    too, because DCP wraps them.

    Args:
        path: The URL of the run, or of a checkpoint in it. Ids may also be "latest" and "step-100@2".
        step: The step, for ids that hold none.
        resume: True lets what this process saves to the run later descend from the checkpoint; False only looks.
        allow_opaque: True hands pickles that were stored by ``Writer(allow_opaque=True)`` to the planner, which runs what
            is in them.
        cast: True loads into tensors of another type than the stored one, which get the nearest values. Without it that is
            DtypeMismatchError, where DCP's own reader casts without a word.
        deadline: Seconds for each restore.
        **options: Other options, as for cairn.Client.
    """

    def __init__(self, path: Any, *, step: Optional[int] = None, resume: bool = True, allow_opaque: bool = False,
                 cast: bool = False, deadline: Optional[float] = None, **options: Any) -> None:
        super().__init__()
        self._run_url, name = split_url(os.fspath(path))
        self._step, self._resume, self._allow_opaque = step, resume, allow_opaque
        self._cast, self._deadline, self._options = cast, deadline, options
        self._given_id: Optional[str] = os.fspath(path) if name else None
        self._found: Optional[tuple] = None  # (URL of the run, term, step, Metadata)
        self.failure: Optional[CairnError] = None  # of read_metadata, for which DCP raises an AssertionError

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_checkpoint(checkpoint_id, latest=True)

    @property
    def checkpoint_id(self) -> Any:
        """The id that the load was given, or None."""
        return self._given_id

    def reset(self, checkpoint_id: Any = None) -> None:
        if checkpoint_id is not None:
            self._given_id = str(checkpoint_id) if isinstance(checkpoint_id, int) else os.fspath(checkpoint_id)
        self._found = None

    def _target(self) -> tuple:
        """(URL of the run, step, term)."""
        if self._given_id is None:
            return self._run_url, LATEST if self._step is None else self._step, 0
        parsed = parse_id(self._given_id, self._run_url, latest=True)
        if parsed.step is None and self._step is None:
            raise InvalidError.of(f"the checkpoint id {self._given_id!r} holds no step: use \"step-100\" or \"latest\", or "
                                  "give Reader(step=...)")
        return parsed.run_url, parsed.step if parsed.step is not None else self._step, parsed.term

    # --- DCP's road ----------------------------------------------------------------------------------

    def read_metadata(self, *args: Any, **_: Any) -> Metadata:
        """What the checkpoint holds; the objects for each tensor are made when they are asked for. Waits for the saves of this
        process into the run."""
        try:
            run_url, step, term = self._target()
            settle_saves(run_url, self._deadline)
            with Client(run_url, read_only=True, **self._options) as client:
                client.set_blobs([(METADATA_BLOB, BYTES, b"", SHARDED, None)])
                op = client.restore(step, term=term, allow_older=False, deadline=self._deadline)
                result = op.result()
                root = checkpointer_root(op)
                if root is not None:
                    metadata = trees.read(client, result, root, self._deadline)
                else:
                    metadata, _save = codec.decode(self._metadata_blob(op, run_url, result.step))
        except CairnError as error:
            _log.error("cairn: cannot read the metadata of %s: %s", self._given_id or self._run_url, error)
            self.failure = error
            raise
        metadata.storage_meta = StorageMeta(checkpoint_id=self._given_id)
        self._found = (run_url, result.term, result.step, metadata)
        return metadata

    @staticmethod
    def _metadata_blob(op: Any, run_url: str, step: int) -> bytes:
        try:
            return op.blob(METADATA_BLOB)
        except NotFoundError:
            raise NotFoundError.of(f"step {step} of {run_url} was not saved through DCP, nor by cairn.torch.Checkpointer: it has no "
                                   f"blob {METADATA_BLOB}; read it by cairn.Client") from None

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        if self._found is None or self._found[3] is not metadata:
            raise InvalidError.of("the metadata is not the one that this Reader read last; use one Reader for one load")

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        return [replace(plan, storage_data=(*self._identity(), len(plans))) for plan in plans]

    def _identity(self) -> tuple:
        if self._found is None:
            raise InvalidError.of("read_data was called without read_metadata; let dcp.load call both")
        return self._found[1], self._found[2]

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> torch.futures.Future:
        mine = self._identity()
        term, step, ranks = plan.storage_data if plan.storage_data is not None else (*mine, 1)
        if (term, step) != mine:
            raise ConflictError.of(f"rank 0 loads step {step} of term {term}, but this rank found step {mine[1]} "
                                   f"of term {mine[0]}: a save was committed in between; load again")
        run_url, metadata = self._found[0], self._found[3]
        if isinstance(metadata.state_dict_metadata, StateEntries):
            metadata.state_dict_metadata.settle(getattr(planner, "state_dict", {}), (item.storage_index.fqn for item in plan.items))
        with Client(run_url, read_only=True, **self._options) as client:
            self._read_tensors(client, plan, planner, metadata)
            self._read_values(client, plan, planner, metadata)
        if self._resume:
            note_load(run_url, ranks, term, step)
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(None)
        return future

    def _restore(self, client: Client, tensors: list, blobs: list) -> Any:
        term, step = self._identity()
        client.set_tensors(tensors)
        client.set_blobs(blobs)
        op = client.restore(step, term=term, allow_older=False, strict=True, deadline=self._deadline)
        op.result()
        return op

    def _read_tensors(self, client: Client, plan: LoadPlan, planner: LoadPlanner, metadata: Metadata) -> None:
        boxes: dict = {}
        targets = []
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                continue
            fqn = item.storage_index.fqn
            entry = metadata.state_dict_metadata[fqn]
            target = planner.resolve_tensor(item)
            if tuple(target.shape) != tuple(item.lengths):
                raise InvalidError.of(f"{fqn}: the planner gave a tensor of {list(target.shape)} elements for a box of "
                                      f"{list(item.lengths)}")
            if target.dtype != entry.properties.dtype and not self._cast:
                raise DtypeMismatchError.of(f"{fqn}: the stored tensor is {entry.properties.dtype}, but the one to load into is "
                                            f"{target.dtype}; convert it before the load, or load with Reader(cast=True)")
            offsets, sizes = _global_offsets(item, len(entry.size)), tuple(item.lengths)
            of_tensor = boxes.setdefault(metadata.state_dict_metadata.place(fqn), {})
            stored = arrays.TORCH_NAMES[entry.properties.dtype]
            box = of_tensor.setdefault((offsets, sizes), None) or _Box(stored, tuple(entry.size), offsets, sizes)
            of_tensor[offsets, sizes] = box
            box.add(target.detach())
            targets.append((item, target))
        rows = [_row(place, list(of_tensor.values())) for place, of_tensor in boxes.items()]
        if rows:
            settle(row[-1] - 1 for row in rows if row[-1])
            self._restore(client, rows, [])
        _take_own(metadata, [(Ref(name, "torch", box.dtype, box.shape), coordinate, box.memory)
                             for (name, coordinate), of_tensor in boxes.items() for box in of_tensor.values() if box.sizes == box.shape])
        for of_tensor in boxes.values():
            for box in of_tensor.values():
                box.spread()
        for item, target in targets:
            planner.commit_tensor(item, target)

    def _read_values(self, client: Client, plan: LoadPlan, planner: LoadPlanner, metadata: Metadata) -> None:
        items = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
        names = sorted({item.storage_index.fqn for item in items})
        if not names:
            return
        entries, live = metadata.state_dict_metadata, getattr(planner, "state_dict", {})
        values: dict = {}  # name -> (value with Refs in it, their coordinate)
        pickles: dict = {}
        if isinstance(entries, StateEntries):
            values = {item.storage_index.fqn: entries.value(item.storage_index.fqn, live.get(item.dest_index.fqn)) for item in items}
        else:
            op = self._restore(client, [], [(name, BYTES, b"", SHARDED, None) for name in names])
            pickles = {name: self._opaque(name, op.blob(name)) for name in names if entries.raw[name] == "opaque"}
            values = {name: (tree.decode(op.blob(name), deferred=True), None) for name in names if name not in pickles}
        found = {(ref.name, coordinate): ref for value, coordinate in values.values() for ref in tree.refs(value)}
        made = {place: arrays.empty(ref) for place, ref in found.items()}
        if made:
            self._restore(client, [_whole(found[place], made[place], place[1]) for place in made], [])
            _take_own(metadata, [(found[place], place[1], made[place]) for place in made])
        for item in items:
            name = item.storage_index.fqn
            data = io.BytesIO(pickles.get(name, b""))
            if name in values:
                value, coordinate = values[name]
                torch.save(tree.resolve(value, lambda ref, at=coordinate: made[ref.name, at]), data)
                data.seek(0)
            planner.load_bytes(item, data)

    def _opaque(self, name: str, data: bytes) -> bytes:
        if not self._allow_opaque:
            raise UnsupportedError.of(f"{name}: it was stored as an opaque pickle, and reading it executes code that it contains; if "
                                      "you trust the store and the author of the checkpoint, use Reader(allow_opaque=True)")
        return data


def _take_own(metadata: Metadata, arrived: list) -> None:
    """Gives tensors that all ranks should have alike the bytes that this rank had, as Checkpointer keeps them."""
    kept = getattr(metadata.state_dict_metadata, "kept", {})
    odd = [ref.name for ref, coordinate, array in arrived
           if coordinate is None and ref.name in kept and not put_back(ref, array, kept[ref.name])]
    if odd:
        raise ReplicasDifferError.of(f"{listed(odd)}: when this was saved, the ranks held different tensors under one name, too large "
                                     "to be kept for each rank, so what is stored is of several ranks; use per_rank where ranks differ, "
                                     "or leave it out of the state dict")


def _row(place: tuple, boxes: list) -> tuple:
    """A tuple of Client.set_tensors for boxes of the tensor at a place (name, coordinate)."""
    if len({box.device for box in boxes if 0 not in box.sizes}) > 1:  # a tensor is in one memory
        for box in boxes:
            box.leave_device()
    name, coordinate = place
    found = [box.row() for box in boxes]
    head = (name, DTYPES[boxes[0].dtype], boxes[0].shape)
    if coordinate is not None:  # a tensor of one rank is stored, and read, whole
        (_, _, stride, address), = found
        return (*head, address, stride, boxes, LOCAL, coordinate, None, None, 0, boxes[0].device)
    return (*head, 0, None, boxes, SHARDED, None, None, found, 0, max(box.device for box in boxes))


def _global_offsets(item: ReadItem, ndim: int) -> tuple:
    base = item.storage_index.offset
    base = tuple(base) if base is not None else (0,) * ndim
    return tuple(a + b for a, b in zip(base, item.storage_offsets))


def _whole(ref: tree.Ref, array: Any, coordinate: Optional[str]) -> tuple:
    name, dtype, shape, address, stride, keep = arrays.row(ref, array, None)[:6]
    return name, dtype, shape, address, stride, keep, SHARDED if coordinate is None else LOCAL, coordinate, None, None
