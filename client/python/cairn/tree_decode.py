# SPDX-License-Identifier: Apache-2.0
"""From the bytes of a typed tree (tree.py) to its value, and what is done with a value that holds places of tensors."""

from __future__ import annotations

import collections
import io
import struct
from typing import Any, Callable, Optional

from ._cairn import crc32c
from .errors import DamagedError, FormatError, UnsupportedError
from .tree_types import (BYTES, COMPLEX, DEPTH_MAX, DICT, FLOAT, HEADER, INT, KEY_KINDS, LIST, MAGIC, NODE, NODE_STRICT, STR,
                         TAG_BYTES_MAX, TAGGED, TRUE, VERSION, Deferred, Ref, by_tag, int_bytes)


class _Decoder:
    """Reads one tree; every byte is judged, nothing is trusted, depth is bounded before recursion."""

    def __init__(self, data: bytes, deref: Optional[Callable[[Ref], Any]], deferred: bool) -> None:
        self._data, self._deref, self._deferred = data, deref, deferred
        self._at, self._node_idx = HEADER.size, 0
        self._nodes = 0

    def _bad(self, what: str) -> FormatError:
        return FormatError.of(f"typed tree, node {self._node_idx} (offset {self._at}): {what}")

    def decode(self) -> Any:
        data = self._data
        if len(data) < HEADER.size or data[:4] != MAGIC:
            raise FormatError.of("this is not a typed tree")
        _, version, self._nodes, length, crc = HEADER.unpack_from(data)
        if version != VERSION:
            raise UnsupportedError.of(f"the typed tree has version {version}; this package reads version {VERSION}")
        if length != len(data) - HEADER.size:
            raise FormatError.of(f"the typed tree's header says {length} bytes follow, but "
                                 f"{len(data) - HEADER.size} do")
        found = crc32c(data[HEADER.size:])
        if found != crc:
            raise DamagedError.of(f"the typed tree is damaged: its crc32c is {found:08x}, but {crc:08x} is stored")
        value = self._value(0, False)
        if self._at != len(data) or self._node_idx != self._nodes:
            raise self._bad("the tree ends here, but bytes or nodes are left over")
        return value

    def _value(self, depth: int, is_key: bool) -> Any:
        data = self._data
        if self._node_idx >= self._nodes or self._at + NODE.size > len(data):
            raise self._bad("the tree is cut off")
        kind, reserved, children, length = NODE_STRICT.unpack_from(data, self._at)
        start = self._at + NODE.size
        if reserved != b"\0\0\0" or length > len(data) - start or kind > TAGGED:
            raise self._bad("it is cut off, or has an unknown kind")
        if is_key and kind not in KEY_KINDS:
            raise self._bad("a dict's key may be null, bool, int, float, str, or a tuple of these")
        if children and depth + 1 >= DEPTH_MAX:
            raise self._bad(f"it is nested too deep; {DEPTH_MAX} levels are allowed")
        payload = data[start:start + length]
        if kind < LIST:
            value = self._scalar(kind, children, payload)
            self._step(start + length)
            return value
        if kind == TAGGED:
            return self._tagged(children, payload, start + length, depth)
        if length != 0 or (kind == DICT and children % 2 != 0):
            raise self._bad("its payload or child count does not fit its kind")
        self._step(start)
        if kind == DICT:
            return self._dict(children // 2, depth)
        items = [self._value(depth + 1, is_key) for _ in range(children)]
        return items if kind == LIST else tuple(items)

    def _step(self, at: int) -> None:
        self._at = at
        self._node_idx += 1

    def _scalar(self, kind: int, children: int, payload: bytes) -> Any:
        size = len(payload)
        try:
            if children == 0:
                if kind <= TRUE and size == 0:
                    return (None, False, True)[kind]
                if kind == INT and size > 0:
                    value = int.from_bytes(payload, "little", signed=True)
                    if int_bytes(value) == payload:
                        return value
                if kind == FLOAT and size == 8:
                    return struct.unpack("<d", payload)[0]
                if kind == COMPLEX and size == 16:
                    return complex(*struct.unpack("<dd", payload))
                if kind == STR:
                    return payload.decode()
                if kind == BYTES:
                    return bytes(payload)
        except UnicodeDecodeError:
            pass
        raise self._bad("its payload or child count does not fit its kind")

    def _dict(self, pairs: int, depth: int) -> dict:
        result = {}
        for _ in range(pairs):
            key = self._value(depth + 1, True)
            result[key] = self._value(depth + 1, False)
        if len(result) != pairs:
            raise self._bad("a dict has the same key twice")
        return result

    def _tagged(self, children: int, payload: bytes, at: int, depth: int) -> Any:
        try:
            tag = payload.decode()
        except UnicodeDecodeError:
            tag = ""
        if children != 1 or not 0 < len(payload) <= TAG_BYTES_MAX or not tag:
            raise self._bad("its payload or child count does not fit its kind")
        self._step(at)
        child = self._value(depth + 1, False)
        try:
            return self._untag(tag, child)
        except (TypeError, ValueError, AttributeError, KeyError, ImportError) as error:
            raise self._bad(f"the value of {tag!r} does not fit it ({error})") from error

    def _untag(self, tag: str, child: Any) -> Any:
        make = _UNTAG.get(tag)
        if tag == "ref":
            name, kind, dtype, shape, device = child
            ref = Ref(name, kind, dtype, shape, device)
            return self._deref(ref) if self._deref is not None else ref
        if make is not None:
            return make(child)
        entry = by_tag.get(tag)
        if entry is not None and self._deferred:
            return Deferred(tag, child)
        if entry is None:
            raise UnsupportedError.of(f"the tree holds a value of the registered type {tag!r}, which this "
                                      "process does not know: call cairn.register_type for it first")
        return entry.from_tree(child)


def _as_dict(child: Any) -> dict:
    if type(child) is not dict:
        raise TypeError("a dict is expected here")
    return child


def _as_set(cls: type, child: Any) -> Any:
    if type(child) is not list:
        raise TypeError("a list is expected here")
    result = cls(child)
    if len(result) != len(child):
        raise ValueError("a set has the same item twice")
    return result


def _torch_dtype(child: str) -> Any:
    import torch
    dtype = getattr(torch, child)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"torch.{child} is not a dtype")
    return dtype


def _torch_device(child: str) -> Any:
    import torch
    return torch.device(child)


def _torch_size(child: tuple) -> Any:
    import torch
    return torch.Size(child)


def _numpy_dtype(child: str) -> Any:
    import numpy
    dtype = numpy.dtype(child)
    if dtype.hasobject:
        raise ValueError(f"dtype {child} holds objects")
    return dtype


def _numpy_scalar(child: tuple) -> Any:
    import numpy
    name, data = child
    return numpy.frombuffer(data, dtype=_numpy_dtype(name), count=1)[0]


def _counter(child: Any) -> collections.Counter:
    result: collections.Counter = collections.Counter()
    dict.update(result, _as_dict(child))
    return result


def _bytes_io(child: tuple) -> io.BytesIO:
    data, at = child
    result = io.BytesIO(data)
    result.seek(at)
    return result


_UNTAG: dict = {
    "OrderedDict": lambda child: collections.OrderedDict(_as_dict(child)),
    "Counter": _counter,
    "set": lambda child: _as_set(set, child),
    "frozenset": lambda child: _as_set(frozenset, child),
    "io.BytesIO": _bytes_io,
    "torch.dtype": _torch_dtype,
    "torch.device": _torch_device,
    "torch.Size": _torch_size,
    "numpy.dtype": _numpy_dtype,
    "numpy.scalar": _numpy_scalar,
}


def decode(data: bytes, deref: Optional[Callable[[Ref], Any]] = None, deferred: bool = False) -> Any:
    """Returns the value of a typed tree.

    Args:
        data: The bytes of the tree. Every byte is judged.
        deref: ``deref(ref)`` returns the object for a stored array; without it the Ref itself stands there.
        deferred: True leaves values of registered types Deferred until ``resolve``.

    Raises:
        FormatError: The bytes are no typed tree.
        DamagedError: Their checksum is wrong.
        UnsupportedError: The tree has a newer version, or a type that is not registered.
    """
    return _Decoder(bytes(data), deref, deferred).decode()


def resolve(value: Any, deref: Callable[[Ref], Any]) -> Any:
    """A copy of a decoded value with arrays in place of Refs and values in place of Deferred ones."""
    kind = type(value)
    if kind is Ref:
        return deref(value)
    if kind is Deferred:
        return by_tag[value.tag].from_tree(resolve(value.child, deref))
    if kind is list:
        return [resolve(item, deref) for item in value]
    if kind is tuple or kind is set or kind is frozenset:
        return kind(resolve(item, deref) for item in value)
    if kind is dict or kind is collections.OrderedDict:
        return kind((key, resolve(item, deref)) for key, item in value.items())
    if kind is collections.Counter:
        return _counter({key: resolve(item, deref) for key, item in value.items()})
    return value


def refs(value: Any) -> Any:
    """Every Ref in a decoded value, in order (generator)."""
    kind = type(value)
    if kind is Ref:
        yield value
    elif kind is Deferred:
        yield from refs(value.child)
    elif kind in (list, tuple, set, frozenset):
        for item in value:
            yield from refs(item)
    elif kind in (dict, collections.OrderedDict, collections.Counter):
        for item in value.values():
            yield from refs(item)
