# SPDX-License-Identifier: Apache-2.0
"""Tensors that are made of other tensors: sparse ones, and subclasses with ``__tensor_flatten__`` (torchao's quantized
weights, for one). They are stored as their components, each a tensor of its own, and put together again.

Types that Cairn has no number for (``uint1`` to ``int7``, ``bits8`` and its like) are stored as the bytes that PyTorch
keeps, and so are PyTorch's own quantized tensors, with their scales and zero points.

A class is never imported by a stored name: a subclass must have been seen in this process, in the live state, or be
told by ``register_subclass``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import tree
from ..errors import DtypeMismatchError, InvalidError, UnsupportedError, UnsupportedValueError
from ..tree import At, Deferred, Ref
from .sharded import is_sharded

if TYPE_CHECKING:
    from .plan import Plan

SPARSE, SUBCLASS, BITS, QUANTIZED = tree.SPARSE_TAG, tree.SUBCLASS_TAG, tree.BITS_TAG, tree.QUANTIZED_TAG
BITS_TYPES = frozenset(getattr(torch, name) for name in (
    "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)))
    if isinstance(getattr(torch, name, None), torch.dtype))
_PACKED = frozenset(getattr(torch, name) for name in ("quint4x2", "quint2x4") if hasattr(torch, name))
_COMPRESSED = {
    torch.sparse_csr: ("crow_indices", "col_indices"), torch.sparse_bsr: ("crow_indices", "col_indices"),
    torch.sparse_csc: ("ccol_indices", "row_indices"), torch.sparse_bsc: ("ccol_indices", "row_indices"),
}
_LAYOUTS = {str(layout)[len("torch."):]: layout for layout in (torch.sparse_coo, *_COMPRESSED)}
_classes: dict = {}


def _class_name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


def register_subclass(cls: type) -> None:
    """Makes stored tensors of a subclass readable in a process whose state holds none yet.

    Args:
        cls: The subclass of torch.Tensor.

    Raises:
        InvalidError: It lacks ``__tensor_flatten__`` and ``__tensor_unflatten__``.
    """
    if not _is_flattenable(cls):
        raise InvalidError.of(f"register_subclass: {_class_name(cls)} has no __tensor_flatten__ and __tensor_unflatten__")
    _classes[_class_name(cls)] = cls


def _is_flattenable(cls: type) -> bool:
    return hasattr(cls, "__tensor_flatten__") and hasattr(cls, "__tensor_unflatten__")


def is_special(value: Any) -> bool:
    """Whether this module stores it. Nested and meta tensors it does not."""
    if not isinstance(value, torch.Tensor) or is_sharded(value) or value.is_meta or value.is_nested:
        return False
    if value.layout in _LAYOUTS.values() or _is_flattenable(type(value)):
        return True
    return type(value) in (torch.Tensor, torch.nn.Parameter) and (value.dtype in BITS_TYPES or value.is_quantized)


def is_bits(value: torch.Tensor) -> bool:
    """Returns whether it has a type below a byte, or one of plain bits."""
    return value.dtype in BITS_TYPES


def _as_plain(value: torch.Tensor) -> torch.Tensor:
    """The same memory as numbers that PyTorch computes with."""
    return value.detach().view(torch.int16 if value.element_size() == 2 else torch.uint8)


def _storage(value: torch.Tensor) -> torch.Tensor:
    """The bytes of the storage of a quantized tensor."""
    storage = value.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=value.device).set_(storage, 0, (storage.nbytes(),))


def _quantized(path: str, value: torch.Tensor) -> Deferred:
    value = value.detach()
    if value.dtype in _PACKED and not (value.is_contiguous() and value.storage_offset() == 0):
        raise UnsupportedValueError.of(f"{path}: the tensor is a view of another one of the packed type {value.dtype}; save a copy of it")
    child: dict = {"dtype": value.dtype, "shape": tuple(value.shape), "scheme": str(value.qscheme())[len("torch."):],
                   "data": _storage(value) if value.dtype in _PACKED else value.int_repr().contiguous()}
    if value.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        child.update(scale=value.q_scale(), zero_point=value.q_zero_point())
    else:
        child.update(scales=value.q_per_channel_scales(), zero_points=value.q_per_channel_zero_points(),
                     axis=value.q_per_channel_axis())
    return Deferred(QUANTIZED, child)


def components(path: str, value: torch.Tensor) -> Deferred:
    """Returns the value that stands in the tree for the tensor. Raises UnsupportedValueError if its context cannot be stored."""
    if _is_flattenable(type(value)):
        register_subclass(type(value))
        names, context = value.__tensor_flatten__()
        try:
            tree.encode(context, f"{path}.context")
        except UnsupportedValueError as error:
            raise UnsupportedValueError.of(f"{path}: the tensor subclass {_class_name(type(value))} has a context that "
                                           f"cannot be stored ({error.text})") from error
        return Deferred(SUBCLASS, {"class": _class_name(type(value)), "shape": tuple(value.shape),
                                   "stride": tuple(value.stride()), "context": context,
                                   "inner": {name: At(f"{path}.{name}", getattr(value, name)) for name in names}})
    if value.is_quantized:
        return _quantized(path, value)
    if value.dtype in BITS_TYPES:
        return Deferred(BITS, {"dtype": value.dtype, "shape": tuple(value.shape), "bytes": _as_plain(value)})
    value = value.detach()
    child: dict = {"layout": str(value.layout)[len("torch."):], "shape": tuple(value.shape)}
    if value.layout is torch.sparse_coo:
        child.update(coalesced=value.is_coalesced(), indices=value._indices(), values=value._values())
    else:
        compressed, plain = _COMPRESSED[value.layout]
        child.update(compressed=getattr(value, compressed)(), plain=getattr(value, plain)(), values=value.values())
    return Deferred(SPARSE, child)


def _make_sparse(child: dict) -> torch.Tensor:
    layout = _LAYOUTS[child["layout"]]
    if layout is torch.sparse_coo:
        return torch.sparse_coo_tensor(child["indices"], child["values"], child["shape"], check_invariants=True,
                                       is_coalesced=child["coalesced"])
    return torch.sparse_compressed_tensor(child["compressed"], child["plain"], child["values"], child["shape"],
                                          layout=layout, check_invariants=True)


def _make_subclass(child: dict) -> torch.Tensor:
    cls = _classes.get(child["class"])
    if cls is None:
        raise UnsupportedError.of(f"the checkpoint holds a tensor of the subclass {child['class']}, which this process has "
                                  "not met yet; call cairn.torch.register_subclass for it before the restore")
    return cls.__tensor_unflatten__(dict(child["inner"]), child["context"], torch.Size(child["shape"]), child["stride"])


def _make_bits(child: dict) -> torch.Tensor:
    found: torch.Tensor = child["bytes"].view(child["dtype"])
    return found


def _make_quantized(child: dict) -> torch.Tensor:
    shape, dtype, device = child["shape"], child["dtype"], child["data"].device
    if "scale" in child:
        made = torch._empty_affine_quantized(shape, scale=child["scale"], zero_point=child["zero_point"], dtype=dtype, device=device)
    else:
        made = torch._empty_per_channel_affine_quantized(shape, scales=child["scales"], zero_points=child["zero_points"],
                                                         axis=child["axis"], dtype=dtype, device=device)
    data = child["data"].reshape(-1).view(torch.uint8)
    _storage(made)[:data.numel()].copy_(data)
    return made


tree.set_maker(SPARSE, _make_sparse)
tree.set_maker(BITS, _make_bits)
tree.set_maker(QUANTIZED, _make_quantized)
tree.set_maker(SUBCLASS, _make_subclass)


class Planned:
    """A special tensor of a model on its way back: subclasses in place, component by component, and bits as bytes; sparse and
    quantized tensors, whose components may be others, by a new tensor in the same object."""

    def __init__(self, path: str, stored: Deferred, live: torch.Tensor, plan: Plan) -> None:
        self.path, self.stored, self.live = path, stored, live
        self.pairs: list = []  # (path, Ref) of components in place
        if not is_special(live):
            raise InvalidError.of(f"{path}: a tensor made of others ({stored.tag}) is stored, but the live one is plain; build "
                                  "the model as it was saved")
        here = components(path, live)
        if here.tag != stored.tag or tuple(here.child["shape"]) != tuple(stored.child["shape"]):
            raise InvalidError.of(f"{path}: a {stored.tag} of the shape {list(stored.child['shape'])} is stored, but the live one is "
                                  f"a {here.tag} of {list(here.child['shape'])}; build the model as it was saved")
        if stored.tag == BITS:
            self._plan_bits(path, stored.child, live, plan)
        elif stored.tag == SUBCLASS:
            self._plan_inner(path, stored.child, live, plan)
        else:
            self._is_parameter = isinstance(live, torch.nn.Parameter)
            for ref in tree.refs(stored):
                plan.want(ref)

    def _plan_bits(self, path: str, child: dict, live: torch.Tensor, plan: Plan) -> None:
        if child["dtype"] is not live.dtype:
            raise DtypeMismatchError.of(f"{path}: the stored tensor is {child['dtype']}, but the live one is {live.dtype}; build the model "
                                        "as it was saved")
        plan.want_exact(path, child["bytes"], _as_plain(live))
        self.pairs.append((path, child["bytes"], live))

    def _plan_inner(self, path: str, child: dict, live: torch.Tensor, plan: Plan) -> None:
        names, context = live.__tensor_flatten__()
        if child["class"] != _class_name(type(live)) or list(child["inner"]) != list(names) or \
                tree.encode(child["context"]) != tree.encode(context):
            raise InvalidError.of(f"{path}: a {child['class']} with the context {child['context']!r} is stored, but the live one is "
                                  f"a {_class_name(type(live))} with {context!r}; build the model as it was saved")
        for name, inner in child["inner"].items():
            below, target = f"{path}.{name}", getattr(live, name)
            if type(inner) is Ref:
                plan.want_exact(below, inner, target)
                self.pairs.append((below, inner, target))
            elif inner.tag == BITS and isinstance(target, torch.Tensor):
                self._plan_bits(below, inner.child, target, plan)
            else:
                self._plan_inner(below, inner.child, target, plan)

    def apply(self, plan: Plan) -> None:
        if self.stored.tag not in (SPARSE, QUANTIZED):
            return
        made = tree.resolve(self.stored, plan.get).to(self.live.device)
        if self._is_parameter:
            made = torch.nn.Parameter(made, requires_grad=self.live.requires_grad)
        torch.utils.swap_tensors(self.live, made)

    def verify(self, plan: Plan) -> None:
        """Raises DigestMismatchError if a live component differs from the restored one."""
        if self.stored.tag in (SUBCLASS, BITS):
            for path, ref, target in self.pairs:
                plan.check_live(path, ref, _as_plain(target) if target.dtype in BITS_TYPES else target)
            return
        live = components(self.path, self.live).child
        for key, value in self.stored.child.items():
            if type(value) is Ref:
                plan.check_live(f"{self.path}.{key}", value, live[key])


def note_class(value: Any) -> None:
    """Remembers the class of a live subclass tensor."""
    if isinstance(value, torch.Tensor) and _is_flattenable(type(value)) and not is_sharded(value):
        _classes[_class_name(type(value))] = type(value)
