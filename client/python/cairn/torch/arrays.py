# SPDX-License-Identifier: Apache-2.0
"""Tensors and ndarrays as memory: which can be stored, where they lie, whether two hold the same bits.

Stored are dense tensors of the element types in ``TORCH_NAMES``, at any strides, whole or as this rank's
part of a sharded one (sharded.py): on the CPU in place, on a CUDA device in place where they are contiguous
(device.py), else by a copy. Conjugate and negative views are resolved. Sparse tensors and subclasses with
``__tensor_flatten__`` are stored as their components (special.py). Refused by name: quantized, nested and
meta tensors, other subclasses, element types that Cairn does not know, more than 8 dimensions.
"""

from __future__ import annotations

from typing import Any, Iterable, Iterator, Optional, Union

import torch

from ..client import DTYPES, LOCAL, REPLICATED, SHARDED
from ..errors import UnsupportedValueError
from ..limits import NDIM_MAX, NUMPY_NAMES, overlaps
from ..tree import Ref
from . import device, sharded, special
from .sharded import Layouts, Sharded

try:
    import numpy
except ImportError:  # torch works without it, and so does Cairn
    numpy = None  # type: ignore[assignment]

TORCH_NAMES = {getattr(torch, name): name for name in DTYPES if isinstance(getattr(torch, name, None), torch.dtype)}
TORCH_TYPES = {name: dtype for dtype, name in TORCH_NAMES.items()}
_PLAIN = (torch.Tensor, torch.nn.Parameter)


def is_array(value: Any) -> bool:
    return (isinstance(value, (torch.Tensor, Sharded)) or (numpy is not None and isinstance(value, numpy.ndarray)))


def has_memory(tensor: torch.Tensor) -> bool:
    """Returns False if the storage was freed (offloading and FSDP call ``resize_(0)``) or there is none (inside torch.func)."""
    try:
        return tensor.numel() == 0 or tensor.data_ptr() != 0
    except RuntimeError:
        return False


def check_tensor(path: str, tensor: torch.Tensor) -> None:
    """Raises UnsupportedValueError, whose text begins with the path, for a tensor that cannot be stored."""
    kind = type(tensor)
    why = ""
    if tensor.is_nested:
        why = "is nested, which is not supported: save its values() and offsets()"
    elif isinstance(tensor, torch.nn.parameter.UninitializedTensorMixin):
        why = "is not initialised (lazy module): run one forward pass first"
    elif kind not in _PLAIN and kind.__torch_function__ is not torch._C._disabled_torch_function_impl:
        why = f"is a tensor subclass, {kind.__module__}.{kind.__qualname__}, which is not supported"
    elif hasattr(kind, "__tensor_flatten__") or (kind not in _PLAIN and not issubclass(kind, torch.nn.Parameter)):
        why = f"is a tensor subclass, {kind.__module__}.{kind.__qualname__}, which is not supported"
    elif tensor.is_meta:
        why = ("is on the meta device and has no data: call model.to_empty(device=...), tie weights again, initialise "
               "non-persistent buffers, then save or restore")
    elif tensor.is_quantized:
        why = f"is quantized ({tensor.dtype}), which is not supported: save int_repr(), scale and zero point"
    elif tensor.layout is not torch.strided:
        why = (f"is sparse ({tensor.layout}), which is not supported here: save its indices and values"
               if str(tensor.layout).startswith("torch.sparse")
               else f"has the layout {tensor.layout}, which is not supported: save its to_dense()")
    elif tensor.dtype not in TORCH_NAMES:
        why = f"has the element type {tensor.dtype}, which is not supported"
    elif tensor.dim() > NDIM_MAX:
        why = f"has {tensor.dim()} dimensions; at most {NDIM_MAX} are possible; reshape it"
    elif not has_memory(tensor):
        why = ("has no memory: its storage was freed (offloaded, or gathered and released again); bring it back before the save "
               "or restore")
    if why:
        raise UnsupportedValueError.of(f"{path}: the tensor {why}")


def check_ndarray(path: str, array: Any) -> None:
    why = ""
    if type(array) is not numpy.ndarray:
        why = f"is a subclass of ndarray, {type(array).__qualname__}, which is not supported"
    elif array.dtype.name not in NUMPY_NAMES or not array.dtype.isnative:
        why = f"has the dtype {array.dtype!r}, which is not supported: convert it, for instance with astype"
    elif array.ndim > NDIM_MAX:
        why = f"has {array.ndim} dimensions; at most {NDIM_MAX} are possible; reshape it"
    if why:
        raise UnsupportedValueError.of(f"{path}: the ndarray {why}")


def is_direct(array: Any) -> bool:
    """Returns whether libcairn can read and write this memory as it is."""
    if isinstance(array, Sharded):
        return (is_direct(array.local) and (not array.layout.is_flat or array.local.is_contiguous())
                and (device.index(array.local) is None or all(view.is_contiguous() for _, view in _views(array))))
    if not isinstance(array, torch.Tensor):
        return bool(array.flags.c_contiguous and array.flags.writeable)
    if array.is_conj() or array.is_neg():
        return False
    if device.index(array) is not None:
        return array.is_contiguous()
    return array.device.type == "cpu" and (array.is_contiguous() or not overlaps(array.shape, array.stride()))


def is_writable(array: Any) -> bool:
    """Returns False for a read-only ndarray, for expanded tensors and for tensors without memory. Memory that is mapped read-only
    is found by memory.py."""
    local = array.local if isinstance(array, Sharded) else array
    if isinstance(local, torch.Tensor):
        return not overlaps(tuple(local.shape), local.stride()) and has_memory(local)
    return bool(local.flags.writeable)


def row(ref: Ref, array: Any, coordinate: Optional[str], eager: int = 0) -> Optional[tuple]:
    """Returns the tuple of Client.set_tensors for memory that is_direct, or that ``flat`` returned, or None if this rank holds
    nothing of the array."""
    if isinstance(array, Sharded):
        return _sharded_row(ref, array, eager)
    place = REPLICATED if coordinate is None else LOCAL
    if isinstance(array, torch.Tensor):
        stride = None if array.is_contiguous() else array.stride()
        address = array.data_ptr() if array.numel() else 0
    else:
        stride, address = None, array.ctypes.data if array.size else 0
    return (ref.name, DTYPES[ref.dtype], ref.shape, address, stride, array, place, coordinate, None, None, eager,
            device_field(array))


def device_field(array: Any) -> int:
    """Returns ``device`` of cairn_tensor: 0 for the CPU's memory, and for a tensor without elements, which has none."""
    found = device.index(array) if isinstance(array, torch.Tensor) and array.numel() else None
    return 0 if found is None else found + 1


def _views(array: Sharded) -> Iterator[tuple]:
    """Yields (box, its part of the local tensor)."""
    layout, local = array.layout, array.local
    for box in layout.boxes:
        view = local
        if layout.is_flat:
            view = local.reshape(-1)[box.start[0]:]
        elif box.length != layout.local and 0 not in box.length:
            for dim, (start, length) in enumerate(zip(box.start, box.length)):
                view = view.narrow(dim, start, length)
        yield box, view


def _sharded_row(ref: Ref, array: Sharded, eager: int) -> Optional[tuple]:
    layout, local = array.layout, array.local
    if not layout.boxes:
        return None
    boxes, keep = [], [local]
    for box, view in _views(array):
        if device.index(view) is not None and not view.is_contiguous():
            try:
                view = view.contiguous()  # a device's boxes have no strides
            except device.NoRoom:
                device.note_no_room(local)
                return _sharded_row(ref, array.with_local(device.on_cpu(local)), eager)
            keep.append(view)
        stride = None if layout.is_flat or view.is_contiguous() else view.stride()
        boxes.append((box.offset, box.length, stride, view.data_ptr() if view.numel() else 0))
    place = REPLICATED if layout.is_whole else SHARDED
    return (ref.name, DTYPES[ref.dtype], ref.shape, 0, None, keep, place, None, layout.group, boxes, eager,
            device_field(local))


def memory_key(array: Any) -> Any:
    """Returns a key that is equal for two arrays that are the same memory."""
    array = array.local if isinstance(array, Sharded) else array
    return (array.data_ptr(), array.numel(), array.dtype) if isinstance(array, torch.Tensor) else id(array)


def flat(array: Any) -> Any:
    """Returns the array that is read for a save: the array itself if libcairn can read it as it is, else a copy, on its device if
    that is CUDA's, else on the CPU."""
    if isinstance(array, Sharded):
        return array.with_local(array.local.detach() if is_direct(array) else device.contiguous(flat(array.local)))
    if isinstance(array, torch.Tensor):
        array = array.detach()  # keeps the memory, also if the tensor gets another by ``.data``
        if not is_direct(array):
            return _packed(array.resolve_conj().resolve_neg())
        return array
    return array if array.flags.c_contiguous else numpy.ascontiguousarray(array).reshape(array.shape)


def _packed(tensor: torch.Tensor) -> torch.Tensor:
    made = device.contiguous(tensor)
    if device.index(made) is not None:
        return made
    if device.index(tensor) is not None:
        device.note_no_room(tensor)
    return made.cpu()


def empty(ref: Ref, where: Any = "cpu", like: Union[torch.Tensor, Sharded, None] = None) -> Any:
    """Returns new memory for a stored array, with the strides of ``like``, or its layout over ranks, if shape and kind allow."""
    if ref.kind == "numpy":
        return numpy.empty(ref.shape, dtype=ref.dtype)
    dtype = TORCH_TYPES[ref.dtype]
    if isinstance(like, Sharded):
        if like.shape == ref.shape:
            return sharded.like(like, dtype)
        like = None
    if like is not None and tuple(like.shape) == ref.shape and like.layout is torch.strided:
        return torch.empty_like(like, dtype=dtype, device=where, requires_grad=False,
                                memory_format=torch.preserve_format)
    return torch.empty(ref.shape, dtype=dtype, device=where)


def beside(ref: Ref, target: Any) -> Any:
    """Returns memory that libcairn can write, to be copied into ``target`` afterwards, which libcairn cannot write. It is on the
    same CUDA device if there is room."""
    if target is None or not isinstance(target, (torch.Tensor, Sharded)):
        return empty(ref)
    local = target.local if isinstance(target, Sharded) else target
    shape = target.layout.local if isinstance(target, Sharded) else ref.shape
    if device.index(local) is not None:
        made = device.empty(shape, local.dtype, local.device)
        made = target.with_local(made) if isinstance(target, Sharded) else made
        if is_direct(made):
            return made
    return target.with_local(torch.empty(shape, dtype=local.dtype, device="cpu")) if isinstance(target, Sharded) else empty(ref)


def beside_as(ref: Ref, target: Union[torch.Tensor, Sharded]) -> Any:
    """Returns memory on the CPU of the stored type, for what is cast into ``target`` afterwards."""
    if isinstance(target, Sharded):
        return target.with_local(torch.empty(target.layout.local, dtype=TORCH_TYPES[ref.dtype], device="cpu"))
    return torch.empty(ref.shape, dtype=TORCH_TYPES[ref.dtype], device="cpu")


def fits(ref: Ref, array: Any) -> bool:
    """Returns whether the array has the stored kind, element type and shape."""
    if tuple(array.shape) != ref.shape:
        return False
    if isinstance(array, (torch.Tensor, Sharded)):
        return ref.kind == "torch" and TORCH_NAMES.get(array.dtype) == ref.dtype
    return ref.kind == "numpy" and array.dtype.name == ref.dtype


def as_bytes(array: Any) -> torch.Tensor:
    """Returns the bytes in row-major order, on their device: the memory itself if it is contiguous, else a copy."""
    if not isinstance(array, torch.Tensor):
        return torch.from_numpy(numpy.ascontiguousarray(array).reshape(-1).view(numpy.uint8))
    return device.contiguous(array.detach().resolve_conj().resolve_neg()).reshape(-1).view(torch.uint8)


def _is_same_memory(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.numel() > 0
                      and (a.device, a.dtype, a.shape, a.stride(), a.is_conj(), a.is_neg())
                      == (b.device, b.dtype, b.shape, b.stride(), b.is_conj(), b.is_neg()) and a.data_ptr() == b.data_ptr())


def clone(array: Any) -> Any:
    """Returns a copy of the array."""
    if isinstance(array, Sharded):
        return array.with_local(array.local.detach().clone())
    return array.detach().clone() if isinstance(array, torch.Tensor) else array.copy()


def aside(array: Any) -> Any:
    """Returns a copy of the array, on the CPU if its device has no room."""
    try:
        return clone(array)
    except device.NoRoom:
        return device.on_cpu(array)


def same_bits(a: Any, b: Any) -> bool:
    """Returns whether two arrays are equal bit for bit: NaNs and signs of zero count."""
    if _is_same_memory(a, b):
        return True
    if isinstance(a, Sharded) or isinstance(b, Sharded):
        if not (isinstance(a, Sharded) and isinstance(b, Sharded) and a.layout == b.layout):
            return False
        return same_bits(a.local, b.local)
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor) and a.shape == b.shape:
        return all(_equal(as_bytes(left), as_bytes(right)) for left, right in device.pieces(a, b))
    return _equal(as_bytes(a), as_bytes(b))


def _equal(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Compares on the device if both tensors are on the same one, else on the CPU."""
    return bool(torch.equal(left, right) if left.device == right.device else torch.equal(left.cpu(), right.cpu()))


def sha256_hex(tensor: torch.Tensor) -> str:
    """Returns a digest of the tensor's bytes, dtype and shape, for tensors that are compared but not stored."""
    import hashlib
    digest = hashlib.sha256(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    for piece, in device.pieces(as_bytes(tensor)):
        data = piece.cpu()
        if data.numel():
            import ctypes
            digest.update((ctypes.c_char * data.numel()).from_address(data.data_ptr()))
    return digest.hexdigest()


class Collector:
    """Gathers the arrays that an encoder meets: the ``array`` callback of tree.encode.

    A tensor that is made of others becomes a Deferred with them in it, unless ``plain`` wants Refs only.
    With a ``coordinate`` the arrays are local to it; without one they are replicated or sharded. ``known`` holds the Refs of the
    save before, which are used again if nothing changed, since their bytes are made already. ``taken`` are names that others have.
    """

    def __init__(self, layouts: Optional[Layouts] = None, coordinate: Optional[str] = None,
                 known: Optional[dict] = None, plain: bool = False, taken: Iterable[str] = ()) -> None:
        self.layouts, self.coordinate, self._plain = layouts or Layouts(), coordinate, plain
        self.known: dict = {} if known is None else known
        self.arrays: dict = {}  # name -> (Ref, array as given)
        self._taken = taken
        self.is_direct = True  # after ``rows``: all memory is read where it is

    def __call__(self, path: str, value: Any) -> Any:
        if not self._plain and special.is_special(value):
            return special.components(path, value)
        value = self._wrap(path, value)
        if isinstance(value, (torch.Tensor, Sharded)):
            check_tensor(path, value.local if isinstance(value, Sharded) else value)
            fields = ("torch", TORCH_NAMES[value.dtype], tuple(value.shape), str(value.device))
        elif numpy is not None and isinstance(value, numpy.ndarray):
            check_ndarray(path, value)
            fields = ("numpy", value.dtype.name, tuple(value.shape), "cpu")
        else:
            return None
        name = path
        while name in self.arrays or name in self._taken:  # two paths that read alike: names only have to differ, the tree says which
            name += "'"
        ref = self.known.get(name)
        if ref is None or (ref.kind, ref.dtype, ref.shape, ref.device) != fields:
            ref = self.known[name] = Ref(name, *fields)
        self.arrays[name] = (ref, value)
        return ref

    def again(self, path: str, value: Any) -> Any:
        """The ``array`` callback for a second tree, whose arrays have been gathered already."""
        if not self._plain and special.is_special(value):
            return special.components(path, value)
        found = self.arrays.get(path) if is_array(value) else None
        return found[0] if found is not None else None

    def _wrap(self, path: str, value: Any) -> Any:
        if self.coordinate is not None and sharded.is_sharded(value):
            raise UnsupportedValueError.of(f"{path}: a sharded tensor cannot belong to one rank; give it outside per_rank")
        value = self.layouts.wrap(path, value)
        holders = self.layouts.holders
        if self.coordinate is not None or not holders:
            return value
        return self.layouts.held(path if path in holders else path.partition(".")[0], value)

    def rows(self, loan: device.Loan, guarded: Optional[set] = None) -> list:
        """Returns tuples for Client.set_tensors; new memory that these need is kept in the loan. ``guarded`` has the keys (memory_key) of
        arrays that a lazy save may copy later. All others are copied at once, but for those that were copied just now."""
        rows = []
        for ref, array in self.arrays.values():
            local = array.local if isinstance(array, Sharded) else array
            if isinstance(local, torch.Tensor):
                loan.take(local)
            borrowed = flat(array)
            direct = is_direct(array)
            eager = guarded is not None and memory_key(array) not in guarded and (direct or borrowed is array)
            self.is_direct = self.is_direct and direct
            if eager and isinstance(local, torch.Tensor):
                made = loan.cloned(local)
                if made is not None:
                    self.is_direct = False
                    borrowed, eager = array.with_local(made) if isinstance(array, Sharded) else made, False
            item = row(ref, borrowed, self.coordinate, int(eager))
            if item is not None:
                rows.append((*item[:5], loan.hold(item[5]), *item[6:]))
        return rows
