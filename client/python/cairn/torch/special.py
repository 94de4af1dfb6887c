# SPDX-License-Identifier: Apache-2.0
"""Tensors that are made of other tensors: sparse ones, and subclasses with ``__tensor_flatten__`` (torchao's quantized
weights, for one). They are stored as their components, each a tensor of its own, and put together again.

A class is never imported by a stored name: a subclass must have been seen in this process, in the live state, or be
told by ``register_subclass``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .. import tree
from ..errors import InvalidError, UnsupportedError, UnsupportedValueError
from ..tree import At, Deferred, Ref
from .sharded import is_sharded

if TYPE_CHECKING:
    from .plan import Plan

SPARSE, SUBCLASS = tree.SPARSE_TAG, tree.SUBCLASS_TAG
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
    """Whether this module stores it. Quantized, nested and meta tensors it does not."""
    if not isinstance(value, torch.Tensor) or is_sharded(value) or value.is_meta or value.is_nested:
        return False
    return value.layout in _LAYOUTS.values() or _is_flattenable(type(value))


def components(path: str, value: torch.Tensor) -> Deferred:
    """What stands in the tree for it. UnsupportedValueError: its context cannot be stored."""
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


tree.set_maker(SPARSE, _make_sparse)
tree.set_maker(SUBCLASS, _make_subclass)


class Planned:
    """A special tensor of a model on its way back: subclasses in place, component by component; sparse tensors, whose
    components have other lengths, by a new tensor in the same object."""

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
        if stored.tag == SUBCLASS:
            self._plan_inner(path, stored.child, live, plan)
        else:
            self._is_parameter = isinstance(live, torch.nn.Parameter)
            for ref in tree.refs(stored):
                plan.want(ref)

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
            else:
                self._plan_inner(below, inner.child, target, plan)

    def apply(self, plan: Plan) -> None:
        if self.stored.tag != SPARSE:
            return
        made = tree.resolve(self.stored, plan.get).to(self.live.device)
        if self._is_parameter:
            made = torch.nn.Parameter(made, requires_grad=self.live.requires_grad)
        torch.utils.swap_tensors(self.live, made)

    def verify(self, plan: Plan) -> None:
        """DigestMismatchError unless the live components have the restored bits."""
        if self.stored.tag == SUBCLASS:
            for path, ref, target in self.pairs:
                plan.check_live(path, ref, target)
            return
        live = components(self.path, self.live).child
        for key, value in self.stored.child.items():
            if type(value) is Ref:
                plan.check_live(f"{self.path}.{key}", value, live[key])


def note_class(value: Any) -> None:
    """Remembers the class of a live subclass tensor."""
    if isinstance(value, torch.Tensor) and _is_flattenable(type(value)) and not is_sharded(value):
        _classes[_class_name(type(value))] = type(value)
