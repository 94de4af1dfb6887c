# SPDX-License-Identifier: Apache-2.0
"""The typed tree: state that is not tensors, as bytes that hold values and never code (FORMAT.md 10).

``encode(value)`` gives bytes, ``decode(data)`` the value, of the same types and the same bits: None,
bool, int of any size, float (NaN payloads too), complex, str, bytes, list, tuple, dict (in order; keys
None, bool, int, float, str or tuples of these), OrderedDict, Counter, set, frozenset, io.BytesIO, torch.dtype,
torch.device, torch.Size, NumPy scalars and dtypes, and ``Ref``: the place of a stored tensor. Other
types join by ``register_type``. Types are matched exactly: a subclass is refused, not flattened.

The deepest value has 64 levels. A value that cannot be held is an ``UnsupportedValueError`` that
begins with its path: ``optim.state[3].foo: ...``. Pure Python, any thread.
"""

from __future__ import annotations

import collections
import io
import struct
import sys
from typing import Any, Callable, Optional, Union

from ._cairn import crc32c
from .errors import UnsupportedValueError
from .tree_decode import decode, refs, resolve
from .tree_types import (BITS_TAG, BYTES, COMPLEX, DEPTH_MAX, DICT, FALSE, FLOAT, HEADER, INT, LIST, MAGIC, NODE, NULL, QUANTIZED_TAG,
                         SPARSE_TAG, STR, SUBCLASS_TAG, TAGGED, TENSOR_TAGS, TRUE, TUPLE, U32_MAX, VERSION, At, Deferred, Fragment, Ref,
                         by_class, int_bytes, path_join, register_type, set_maker)

__all__ = ["BITS_TAG", "DEPTH_MAX", "QUANTIZED_TAG", "SPARSE_TAG", "SUBCLASS_TAG", "TENSOR_TAGS", "At", "Deferred", "Encoder", "Fragment",
           "Ref", "crc32c", "decode", "encode", "path_join", "refs", "register_type", "resolve", "set_maker"]


class Encoder:
    """Builds one tree. ``array(path, value)`` makes the Ref of a tensor or ndarray, or a Deferred with its
    components, or gives None when the value is none; without it such values are refused."""

    def __init__(self, array: Optional[Callable[[str, Any], Any]] = None) -> None:
        self._array = array
        self._parts: list = []
        self._nodes = 0
        self._path: list = []  # an At's path, then keys
        self._is_key = False

    def encode(self, value: Any, path: str = "") -> bytes:
        """The bytes of a whole tree; ``path`` is the name of the root in errors."""
        self._parts, self._nodes, self._path = [], 0, [At(path, None)]
        self._put_value(value, 0)
        body = b"".join(self._parts)
        if len(body) > U32_MAX:
            raise UnsupportedValueError.of(f"{path}: the tree has {len(body)} bytes; at most 4 GiB are allowed. "
                                           "Store large data as tensors")
        return HEADER.pack(MAGIC, VERSION, self._nodes, len(body), crc32c(body)) + body

    def fragment(self, value: Any, path: str, depth: int) -> Fragment:
        """The bytes of a value that will stand at this depth of other trees."""
        self._parts, self._nodes, self._path = [], 0, [At(path, None)]
        self._put_value(value, depth)
        return Fragment(b"".join(self._parts), self._nodes)

    def _put_fragment(self, value: Fragment, depth: int) -> None:
        self._parts.append(value.data)
        self._nodes += value.nodes

    def path(self) -> str:
        """Where the encoder stands, for messages and names."""
        last = len(self._path) - 1
        while type(self._path[last]) is not At:  # the first one always is
            last -= 1
        text: str = self._path[last].path
        for item in self._path[last + 1:]:
            text = path_join(text, item)
        return text

    def _refuse(self, what: str) -> UnsupportedValueError:
        return UnsupportedValueError.of(f"{self.path() or 'value'}: {what}")

    def _node(self, kind: int, children: int = 0, payload: bytes = b"") -> None:
        if len(payload) > U32_MAX:
            raise self._refuse(f"{len(payload)} bytes are too many; at most 4 GiB are allowed")
        self._parts.append(NODE.pack(kind, children, len(payload)))
        if payload:
            self._parts.append(payload)
        self._nodes += 1

    def _put_dict(self, items: Any, depth: int) -> None:
        path = self._path
        self._open(DICT, 2 * len(items), depth)
        for key, item in items.items():
            path.append(key)
            was_key, self._is_key = self._is_key, True
            self._put_value(key, depth + 1)
            self._is_key = was_key
            self._put_value(item, depth + 1)
            path.pop()

    def _open(self, kind: int, children: int, depth: int, payload: bytes = b"") -> None:
        if children and depth + 1 >= DEPTH_MAX:
            raise self._refuse(f"nested deeper than {DEPTH_MAX} levels, or contains itself")
        self._node(kind, children, payload)

    def _put_tagged(self, tag: str, child: Any, depth: int) -> None:
        self._open(TAGGED, 1, depth, tag.encode())
        self._put_value(child, depth + 1)

    def _put_value(self, value: Any, depth: int) -> None:
        put = _PUT.get(type(value))
        if put is None:
            self._put_other(value, depth)
        elif self._is_key and type(value) not in _KEY_TYPES:
            raise self._refuse(f"a dict's key of type {type(value).__name__} cannot be stored; keys may "
                               "be None, bool, int, float, str or tuples of these")
        else:
            put(self, value, depth)

    def _put_str(self, value: str, depth: int) -> None:
        try:
            self._node(STR, 0, value.encode())
        except UnicodeEncodeError as error:
            raise self._refuse(f"the text is not valid Unicode ({error.reason}); store bytes") from None

    def _put_items(self, value: Union[list, tuple], depth: int) -> None:
        self._open(LIST if type(value) is list else TUPLE, len(value), depth)
        path = self._path
        for idx, item in enumerate(value):
            path.append(idx)
            self._put_value(item, depth + 1)
            path.pop()

    def _put_set(self, value: Any, depth: int) -> None:
        """Items in the order of their bytes: the same set is the same tree in every process."""
        def order(item: Any) -> bytes:
            inner = Encoder()
            try:
                return inner.encode(item, self.path())
            except RecursionError:
                raise self._refuse("contains itself") from None
        self._put_tagged(type(value).__name__, sorted(value, key=order), depth)

    def _put_ref(self, ref: Ref, depth: int) -> None:
        if ref._encoded is None:
            inner = Encoder()
            inner._path = [At(ref.name, None)]
            inner._put_tagged("ref", ref.astuple(), 0)
            ref._encoded = (b"".join(inner._parts), inner._nodes)
        if depth + 3 >= DEPTH_MAX:
            raise self._refuse(f"nested deeper than {DEPTH_MAX} levels, or contains itself")
        self._parts.append(ref._encoded[0])
        self._nodes += ref._encoded[1]

    def _put_at(self, at: At, depth: int) -> None:
        self._path.append(at)
        self._put_value(at.value, depth)
        self._path.pop()

    def _put_file(self, value: io.BytesIO, depth: int) -> None:
        if value.closed:
            raise self._refuse("the io.BytesIO is closed, so its bytes are gone")
        self._put_tagged("io.BytesIO", (value.getvalue(), value.tell()), depth)

    def _put_other(self, value: Any, depth: int) -> None:
        """Types that are not Python's own: registered ones, torch's, NumPy's, tensors."""
        entry = by_class.get(type(value))
        tag, child = "", None
        if self._is_key:
            raise self._refuse(f"a dict's key of type {type(value).__qualname__} cannot be stored; keys "
                               "may be None, bool, int, float, str or tuples of these")
        if entry is not None:
            tag, child = entry.tag, entry.to_tree(value)
        elif "torch" in sys.modules:
            tag, child = _torch_tagged(value)
        if not tag and "numpy" in sys.modules:
            tag, child = self._numpy_tagged(value)
        if tag:
            self._put_tagged(tag, child, depth)
            return
        ref = self._array(self.path(), value) if self._array is not None else None
        if ref is None:
            has_state = callable(getattr(value, "state_dict", None)) and not isinstance(value, type)
            raise self._refuse(f"a value of type {type(value).__module__}.{type(value).__qualname__} cannot be stored; "
                               + ("give it a name of its own in the state, or put its state_dict() here"
                                  if has_state else "convert it, or register its type with cairn.register_type"))
        if type(ref) is Deferred:
            self._put_tagged(ref.tag, ref.child, depth)
        else:
            self._put_ref(ref, depth)

    def _numpy_tagged(self, value: Any) -> tuple:
        numpy = sys.modules["numpy"]
        if isinstance(value, numpy.dtype):
            if value.hasobject or value.fields is not None or value.subdtype is not None:
                raise self._refuse(f"the NumPy dtype {value} cannot be stored")
            return "numpy.dtype", value.str
        if isinstance(value, numpy.generic):
            dtype = value.dtype
            if dtype.hasobject or dtype.fields is not None or dtype.subdtype is not None:
                raise self._refuse(f"a NumPy scalar of dtype {dtype} cannot be stored")
            return "numpy.scalar", (dtype.str, value.tobytes())
        return "", None


def _torch_tagged(value: Any) -> tuple:
    torch = sys.modules["torch"]
    if type(value) is getattr(torch, "dtype", None):
        return "torch.dtype", str(value)[len("torch."):]
    if type(value) is getattr(torch, "device", None):
        return "torch.device", str(value)
    if type(value) is getattr(torch, "Size", None):
        return "torch.Size", tuple(value)
    return "", None


_PUT: dict = {
    type(None): lambda self, value, depth: self._node(NULL),
    bool: lambda self, value, depth: self._node(TRUE if value else FALSE),
    int: lambda self, value, depth: self._node(INT, 0, int_bytes(value)),
    float: lambda self, value, depth: self._node(FLOAT, 0, struct.pack("<d", value)),
    complex: lambda self, value, depth: self._node(COMPLEX, 0,
                                                   struct.pack("<dd", value.real, value.imag)),
    str: Encoder._put_str,
    bytes: lambda self, value, depth: self._node(BYTES, 0, value),
    list: Encoder._put_items,
    tuple: Encoder._put_items,
    dict: Encoder._put_dict,
    collections.OrderedDict: lambda self, value, depth: self._put_tagged("OrderedDict", dict(value), depth),
    collections.Counter: lambda self, value, depth: self._put_tagged("Counter", dict(value), depth),
    set: Encoder._put_set,
    frozenset: Encoder._put_set,
    io.BytesIO: Encoder._put_file,
    Ref: Encoder._put_ref,
    At: Encoder._put_at,
    Fragment: Encoder._put_fragment,
    Deferred: lambda self, value, depth: self._put_tagged(value.tag, value.child, depth),
}
_KEY_TYPES = frozenset((type(None), bool, int, float, str, tuple))


def encode(value: Any, path: str = "",
           array: Optional[Callable[[str, Any], Any]] = None) -> bytes:
    """Returns the typed tree of a value, as bytes.

    Args:
        value: The value.
        path: What errors call it.
        array: ``array(path, value)`` returns the Ref of a tensor or ndarray inside, or None for any other value.

    Raises:
        UnsupportedValueError: The tree cannot hold something; the text has its path.
    """
    return Encoder(array).encode(value, path)
