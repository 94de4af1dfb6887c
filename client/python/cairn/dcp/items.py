# SPDX-License-Identifier: Apache-2.0
"""What a rank's plan writes: tensors as boxes, everything else as typed trees.

DCP's global plan says which rank writes which chunk; each chunk becomes one explicit box of a sharded tensor, so
that the server's coverage check judges the sum of all ranks. Type and shape come from the resolved tensor: a plan
(cached ones are stale more often than one would think) that says otherwise is refused by name.

Values that are no tensors are never stored as pickles. Where the planner's own ``transform_object`` stands, the
object itself is taken from it; otherwise its bytes are read with PyTorch's restricted reader.
"""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner, WriteItem, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult

from .. import tree
from ..client import BYTES, DTYPES, SHARDED, TREE
from ..errors import InvalidError, UnsupportedValueError
from ..torch import arrays, special
from ..torch.device import Loan
from ..torch.state import DCP_BLOB

#: The blob that says what the checkpoint holds, and the prefix of tensors inside trees.
METADATA_BLOB = DCP_BLOB
INNER = "cairn.dcp/"


class PlanStaleError(InvalidError):
    """DCP's plan disagrees with the tensors: usually one that was cached for other state."""

    NAME = "PLAN_STALE"
    SUMMARY = "the plan does not fit the state"

    @classmethod
    def about(cls, fqn: str, what: str) -> "PlanStaleError":
        """Makes the error of a name of the plan. Its text says what disagrees, and how to plan anew."""
        return cls(cls.CODE, cls.NAME, f"{fqn}: {what}. DCP caches plans under the planner's class name and compares "
                   "neither types nor writers: make the planner with enable_plan_caching=False, or give each kind of "
                   "state a planner class of its own")


@dataclass(frozen=True)
class Stored:
    """What one WriteResult reports to rank 0; ``kind`` "tensor", "tree" or "opaque"."""

    attempt: str
    step: int
    kind: str
    dtype: str = ""
    shape: tuple = ()
    offsets: tuple = ()
    sizes: tuple = ()


@dataclass
class _Tensor:
    dtype: str
    shape: tuple
    boxes: list = field(default_factory=list)  # (offsets, sizes, tensor)


class Collected:
    """The rows for libcairn of one rank, and its results for rank 0."""

    def __init__(self, attempt: str, step: int, allow_opaque: bool) -> None:
        self._attempt, self._step, self._allow_opaque = attempt, step, allow_opaque
        self._tensors: dict = {}
        self._loan = Loan()
        self.blobs: list = []
        self.results: list = []

    def collect(self, plan: SavePlan, planner: SavePlanner) -> None:
        """Resolves every item of the plan, on the calling thread."""
        for item in plan.items:
            if item.type == WriteItemType.BYTE_IO:
                self._add_value(item, planner)
            else:
                self._add_tensor(item, planner)

    # --- tensors ------------------------------------------------------------------------------------

    def _add_tensor(self, item: WriteItem, planner: SavePlanner) -> None:
        fqn, data = item.index.fqn, item.tensor_data
        tensor = planner.resolve_data(item)
        if data is None or not isinstance(tensor, torch.Tensor):
            raise PlanStaleError.about(fqn, "the plan calls it a tensor, but the state holds "
                                       f"{'one without a size' if data is None else type(tensor).__qualname__}")
        tensor = tensor.detach()
        arrays.check_tensor(fqn, tensor)
        shape, offsets, sizes = tuple(data.size), tuple(data.chunk.offsets), tuple(data.chunk.sizes)
        if tensor.dtype != data.properties.dtype:
            raise PlanStaleError.about(fqn, f"the plan says {data.properties.dtype}, but the tensor is {tensor.dtype}")
        if tuple(tensor.shape) != sizes:
            raise PlanStaleError.about(fqn, f"the plan writes {list(sizes)} elements, but the tensor has "
                                       f"{list(tensor.shape)}")
        self.put(fqn, arrays.TORCH_NAMES[tensor.dtype], shape, offsets, tensor)
        self.results.append(WriteResult(item.index, tensor.numel() * tensor.element_size(), Stored(
            self._attempt, self._step, "tensor", arrays.TORCH_NAMES[tensor.dtype], shape, offsets, sizes)))

    def put(self, name: str, dtype: str, shape: tuple, offsets: tuple, tensor: Any) -> None:
        """Adds one box of a tensor. Raises PlanStaleError if two boxes disagree about the type or shape of the whole."""
        entry = self._tensors.setdefault(name, _Tensor(dtype, shape))
        if (entry.dtype, entry.shape) != (dtype, shape):
            raise PlanStaleError.about(name, f"it is written both as {entry.dtype} {list(entry.shape)} and as {dtype} "
                                       f"{list(shape)}")
        self._loan.take(tensor)
        entry.boxes.append((offsets, tuple(tensor.shape), arrays.flat(tensor)))

    def event(self) -> int:
        """What the copies of tensors on CUDA devices wait for: ``cuda_event`` of Client.save."""
        return self._loan.event()

    def rows(self) -> list:
        """Tuples for Client.set_tensors, boxes without elements left out."""
        rows = []
        for name, entry in self._tensors.items():
            boxes = [box for box in entry.boxes if 0 not in box[1] or 0 in entry.shape]
            if not boxes:
                continue
            devices = {arrays.device_field(part) for _, _, part in boxes if part.numel()} or {0}
            if len(devices) > 1:  # a tensor is in one memory
                boxes, devices = [(offset, size, part.cpu()) for offset, size, part in boxes], {0}
            keep = [self._loan, *(tensor for _, _, tensor in boxes)]
            offsets, sizes, tensor = boxes[0]
            head = (name, DTYPES[entry.dtype], entry.shape)
            if 0 in entry.shape or sizes == entry.shape:  # whole, or nothing to hold
                stride, address = _where(tensor)
                rows.append((*head, address, stride, keep, SHARDED, None, None, None, 0, *devices))
            else:
                rows.append((*head, 0, None, keep, SHARDED, None, None,
                             [(offset, size, *_where(part)) for offset, size, part in boxes], 0, *devices))
        return rows

    # --- values -------------------------------------------------------------------------------------

    def _add_value(self, item: WriteItem, planner: SavePlanner) -> None:
        fqn = item.index.fqn
        if fqn == METADATA_BLOB:
            raise InvalidError.of(f"{fqn}: Cairn reserves this name; give the value another name")
        inner: dict = {}
        kind, data = _transcode(item, planner, _Inner(inner), self._allow_opaque)
        for name, (ref, part) in inner.items() if kind == "tree" else ():
            self.put(name, ref.dtype, ref.shape, (0,) * len(ref.shape), part)
        self.blobs.append((fqn, TREE if kind == "tree" else BYTES, data, SHARDED, None))
        self.results.append(WriteResult(item.index, len(data), Stored(self._attempt, self._step, kind)))


class _Inner:
    """tree.encode's ``array``: a tensor or ndarray inside a value becomes a tensor of its own, and one that is made of others becomes
    these. Types below a byte are refused: the planner of a load would pickle them, which PyTorch cannot."""

    def __init__(self, found: dict) -> None:
        self._found = found

    def __call__(self, path: str, value: Any) -> Any:
        if special.is_special(value) and not special.is_bits(value):
            return special.components(path, value)
        if isinstance(value, torch.Tensor):
            arrays.check_tensor(path, value)  # a DTensor inside a value has no plan that shards it
        ref = arrays.Collector(plain=True)(path, value)
        if ref is None:
            return None
        name = INNER + path
        while name in self._found:
            name += "'"
        ref = tree.Ref(name, *ref.astuple()[1:])
        self._found[name] = (ref, torch.from_numpy(arrays.flat(value)) if ref.kind == "numpy" else value.detach())
        return ref


def _where(tensor: torch.Tensor) -> tuple:
    """(stride or None, address) of memory that arrays.flat gave."""
    return (None if tensor.is_contiguous() else tuple(tensor.stride()),
            tensor.data_ptr() if tensor.numel() else 0)


def _transcode(item: WriteItem, planner: SavePlanner, array: Any, allow_opaque: bool) -> tuple:
    """("tree" or "opaque", bytes) of a value."""
    fqn, value, pickled = item.index.fqn, None, None
    failure: Optional[UnsupportedValueError] = None
    if (isinstance(planner, DefaultSavePlanner)
            and type(planner).transform_object is DefaultSavePlanner.transform_object
            and type(planner).resolve_data is DefaultSavePlanner.resolve_data):
        value = planner.lookup_object(item.index)
    else:
        data = planner.resolve_data(item)
        if not isinstance(data, io.BytesIO):
            raise PlanStaleError.about(fqn, f"the plan calls it bytes, but the planner gave {type(data).__qualname__}")
        pickled = data.getvalue()
        try:
            value = torch.load(io.BytesIO(pickled), map_location="cpu", weights_only=True)
        except Exception as error:  # whatever a foreign pickle raises: it is not read
            failure = UnsupportedValueError.of(f"{fqn}: the planner's bytes cannot be read without running code "
                                               f"({str(error).splitlines()[0][:200]}); let the planner give tensors, or values that "
                                               "torch.load(weights_only=True) reads")
    if failure is None:
        try:
            return "tree", tree.encode(value, fqn, array)
        except UnsupportedValueError as error:
            failure = error
    if not allow_opaque:
        raise UnsupportedValueError.of(f"{failure.text}. Writer(allow_opaque=True) stores such a value as an opaque "
                                       "pickle, which cannot be read safely")
    if pickled is None:
        buffer = io.BytesIO()
        torch.save(value, buffer)
        pickled = buffer.getvalue()
    return "opaque", pickled
