# SPDX-License-Identifier: Apache-2.0
"""What the typed tree (tree.py) is made of: the kinds of nodes, what stands for tensors, and the types that joined by name."""

from __future__ import annotations

import struct
from typing import Any, Callable, Optional

from .errors import InvalidError

NULL, FALSE, TRUE, INT, FLOAT, COMPLEX, STR, BYTES, LIST, TUPLE, DICT, TAGGED = range(12)

MAGIC = b"CRNT"
VERSION = 1
DEPTH_MAX = 64
TAG_BYTES_MAX = 128
HEADER = struct.Struct("<4sIIII")
NODE = struct.Struct("<B3xII")
NODE_STRICT = struct.Struct("<B3sII")
U32_MAX = 0xFFFFFFFF
KEY_KINDS = frozenset((NULL, FALSE, TRUE, INT, FLOAT, STR, TUPLE))


class Ref:
    """Where a stored array stands in a tree. Immutable.

    Args:
        name: The name of the stored tensor.
        kind: "torch" or "numpy".
        dtype: Its type by the name in Cairn ("bfloat16").
        shape: Elements for each dimension.
        device: The device that it was on ("cpu", "cuda:0").
    """

    __slots__ = ("name", "kind", "dtype", "shape", "device", "_encoded")

    def __init__(self, name: str, kind: str, dtype: str, shape: tuple, device: str = "cpu") -> None:
        self.name, self.kind, self.dtype = name, kind, dtype
        self.shape, self.device = tuple(shape), device
        self._encoded: Optional[tuple] = None

    def astuple(self) -> tuple:
        return (self.name, self.kind, self.dtype, self.shape, self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and self.astuple() == other.astuple()

    def __hash__(self) -> int:
        return hash(self.astuple())

    def __repr__(self) -> str:
        return f"Ref({self.name!r}, {self.kind!r}, {self.dtype!r}, {self.shape!r}, {self.device!r})"


class At:
    """Encodes as ``value``, whose path (in errors, in names of tensors) becomes ``path``."""

    __slots__ = ("path", "value")

    def __init__(self, path: str, value: Any) -> None:
        self.path, self.value = path, value


class Fragment:
    """A value that is encoded already."""

    __slots__ = ("data", "nodes")

    def __init__(self, data: bytes, nodes: int) -> None:
        self.data, self.nodes = data, nodes


class Deferred:
    """A value of a registered type that is not made yet, because tensors inside it are still to come."""

    __slots__ = ("tag", "child")

    def __init__(self, tag: str, child: Any) -> None:
        self.tag, self.child = tag, child


class _Registered:
    __slots__ = ("tag", "cls", "to_tree", "from_tree")

    def __init__(self, tag: str, cls: type, to_tree: Callable, from_tree: Callable) -> None:
        self.tag, self.cls, self.to_tree, self.from_tree = tag, cls, to_tree, from_tree


by_class: dict = {}
by_tag: dict = {}
# Tensors that are made of others, or of plain bytes; cairn.torch.special
SPARSE_TAG, SUBCLASS_TAG, BITS_TAG, QUANTIZED_TAG = "torch.sparse", "torch.subclass", "torch.bits", "torch.quantized"
TENSOR_TAGS = frozenset((SPARSE_TAG, SUBCLASS_TAG, BITS_TAG, QUANTIZED_TAG))
_BUILTIN_TAGS = frozenset(("OrderedDict", "Counter", "set", "frozenset", "io.BytesIO", "torch.dtype", "torch.device",
                           "torch.Size", "numpy.scalar", "numpy.dtype", "ref", *TENSOR_TAGS))


def register_type(cls: type, to_tree: Callable[[Any], Any], from_tree: Callable[[Any], Any],
                  name: Optional[str] = None) -> None:
    """Makes values of exactly this class storable. The same class may be registered again under the same name.

    Args:
        cls: The class.
        to_tree: Turns a value into one that the tree can hold; tensors are allowed where state is saved.
        from_tree: Makes the value again from what ``to_tree`` returned.
        name: The name that is stored; None is ``module.qualname``. It must stay the same for as long as checkpoints
            shall be readable.

    Raises:
        InvalidError: The name is taken, too long, or one of Cairn's own.
    """
    tag = name or f"{cls.__module__}.{cls.__qualname__}"
    if not 0 < len(tag.encode()) <= TAG_BYTES_MAX or tag in _BUILTIN_TAGS:
        raise InvalidError.of(f"register_type({cls.__qualname__}): the name {tag!r} cannot be used; "
                              f"give another one of 1 to {TAG_BYTES_MAX} bytes")
    if tag in by_tag and by_tag[tag].cls is not cls:
        raise InvalidError.of(f"register_type({cls.__qualname__}): the name {tag!r} belongs to "
                              f"{by_tag[tag].cls!r}; give another one")
    entry = _Registered(tag, cls, to_tree, from_tree)
    if cls in by_class:
        by_tag.pop(by_class[cls].tag, None)
    by_class[cls] = entry
    by_tag[tag] = entry


def set_maker(tag: str, from_tree: Callable[[Any], Any]) -> None:
    """For Cairn's own adapters: what makes a value of a tag that the ``array`` callback of an encoder gave as Deferred."""
    by_tag[tag] = _Registered(tag, Deferred, lambda value: value, from_tree)


def int_bytes(value: int) -> bytes:
    """Two's complement, little-endian, as short as possible; 0 is one byte."""
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "little", signed=True)


def path_join(path: str, key: Any) -> str:
    """The path of a child: ``a.b`` for names, ``a[3]`` and ``a['b c']`` for the rest."""
    if type(key) is str and key.replace("_", "a").isalnum() and not key[0].isdigit():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"
