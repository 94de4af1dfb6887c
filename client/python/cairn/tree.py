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
from typing import Any, Callable, Optional

from .errors import DamagedError, FormatError, InvalidError, UnsupportedError, UnsupportedValueError

NULL, FALSE, TRUE, INT, FLOAT, COMPLEX, STR, BYTES, LIST, TUPLE, DICT, TAGGED = range(12)

MAGIC = b"CRNT"
VERSION = 1
DEPTH_MAX = 64
TAG_BYTES_MAX = 128
_HEADER = struct.Struct("<4sIIII")
_NODE = struct.Struct("<B3xII")
_NODE_STRICT = struct.Struct("<B3sII")
_U32_MAX = 0xFFFFFFFF
_KEY_KINDS = frozenset((NULL, FALSE, TRUE, INT, FLOAT, STR, TUPLE))


def _crc_table() -> list:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return table


_CRC_TABLE = _crc_table()


def crc32c_python(data: bytes) -> int:
    """crc32c (Castagnoli), the slow way: for when the extension is not there, and to test it."""
    crc, table = _U32_MAX, _CRC_TABLE
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ _U32_MAX


try:
    from ._cairn import crc32c
except ImportError:  # the package used from its source folder: only the tree works then
    crc32c = crc32c_python


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


_by_class: dict = {}
_by_tag: dict = {}
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
    if tag in _by_tag and _by_tag[tag].cls is not cls:
        raise InvalidError.of(f"register_type({cls.__qualname__}): the name {tag!r} belongs to "
                              f"{_by_tag[tag].cls!r}; give another one")
    entry = _Registered(tag, cls, to_tree, from_tree)
    if cls in _by_class:
        _by_tag.pop(_by_class[cls].tag, None)
    _by_class[cls] = entry
    _by_tag[tag] = entry


def set_maker(tag: str, from_tree: Callable[[Any], Any]) -> None:
    """For Cairn's own adapters: what makes a value of a tag that the ``array`` callback of an encoder gave as Deferred."""
    _by_tag[tag] = _Registered(tag, Deferred, lambda value: value, from_tree)


def _int_bytes(value: int) -> bytes:
    """Two's complement, little-endian, as short as possible; 0 is one byte."""
    bits = (value if value >= 0 else ~value).bit_length()
    return value.to_bytes(bits // 8 + 1, "little", signed=True)


def path_join(path: str, key: Any) -> str:
    """The path of a child: ``a.b`` for names, ``a[3]`` and ``a['b c']`` for the rest."""
    if type(key) is str and key.replace("_", "a").isalnum() and not key[0].isdigit():
        return f"{path}.{key}" if path else key
    return f"{path}[{key!r}]"


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
        if len(body) > _U32_MAX:
            raise UnsupportedValueError.of(f"{path}: the tree has {len(body)} bytes; at most 4 GiB are allowed. "
                                           "Store large data as tensors")
        return _HEADER.pack(MAGIC, VERSION, self._nodes, len(body), crc32c(body)) + body

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
        if len(payload) > _U32_MAX:
            raise self._refuse(f"{len(payload)} bytes are too many; at most 4 GiB are allowed")
        self._parts.append(_NODE.pack(kind, children, len(payload)))
        if payload:
            self._parts.append(payload)
        self._nodes += 1

    def _put_children(self, items: Any, depth: int) -> None:
        """Each item with its index as path."""
        path = self._path
        for idx, item in enumerate(items):
            path.append(idx)
            self._put_value(item, depth)
            path.pop()

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

    def _put_list(self, value: list, depth: int) -> None:
        self._open(LIST, len(value), depth)
        self._put_children(value, depth + 1)

    def _put_tuple(self, value: tuple, depth: int) -> None:
        self._open(TUPLE, len(value), depth)
        self._put_children(value, depth + 1)

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
        entry = _by_class.get(type(value))
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
    int: lambda self, value, depth: self._node(INT, 0, _int_bytes(value)),
    float: lambda self, value, depth: self._node(FLOAT, 0, struct.pack("<d", value)),
    complex: lambda self, value, depth: self._node(COMPLEX, 0,
                                                   struct.pack("<dd", value.real, value.imag)),
    str: Encoder._put_str,
    bytes: lambda self, value, depth: self._node(BYTES, 0, value),
    list: Encoder._put_list,
    tuple: Encoder._put_tuple,
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


class _Decoder:
    """Reads one tree; every byte is judged, nothing is trusted, depth is bounded before recursion."""

    def __init__(self, data: bytes, deref: Optional[Callable[[Ref], Any]], deferred: bool) -> None:
        self._data, self._deref, self._deferred = data, deref, deferred
        self._at, self._node_idx = _HEADER.size, 0
        self._nodes = 0

    def _bad(self, what: str) -> FormatError:
        return FormatError.of(f"typed tree, node {self._node_idx} (offset {self._at}): {what}")

    def decode(self) -> Any:
        data = self._data
        if len(data) < _HEADER.size or data[:4] != MAGIC:
            raise FormatError.of("this is not a typed tree")
        _, version, self._nodes, length, crc = _HEADER.unpack_from(data)
        if version != VERSION:
            raise UnsupportedError.of(f"the typed tree has version {version}; this package reads version {VERSION}")
        if length != len(data) - _HEADER.size:
            raise FormatError.of(f"the typed tree's header says {length} bytes follow, but "
                                 f"{len(data) - _HEADER.size} do")
        found = crc32c(data[_HEADER.size:])
        if found != crc:
            raise DamagedError.of(f"the typed tree is damaged: its crc32c is {found:08x}, but {crc:08x} is stored")
        value = self._value(0, False)
        if self._at != len(data) or self._node_idx != self._nodes:
            raise self._bad("the tree ends here, but bytes or nodes are left over")
        return value

    def _value(self, depth: int, is_key: bool) -> Any:
        data = self._data
        if self._node_idx >= self._nodes or self._at + _NODE.size > len(data):
            raise self._bad("the tree is cut off")
        kind, reserved, children, length = _NODE_STRICT.unpack_from(data, self._at)
        start = self._at + _NODE.size
        if reserved != b"\0\0\0" or length > len(data) - start or kind > TAGGED:
            raise self._bad("it is cut off, or has an unknown kind")
        if is_key and kind not in _KEY_KINDS:
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
                    if _int_bytes(value) == payload:
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
        entry = _by_tag.get(tag)
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
        return _by_tag[value.tag].from_tree(resolve(value.child, deref))
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
