# SPDX-License-Identifier: Apache-2.0
"""Files of torch.save: every tensor under the keys that lead to it, joined by dots; all else as the typed tree torch.state.

torch.load reads them with weights_only, which makes nothing but tensors and plain values, and with mmap, which leaves the
tensors in the file.
"""

from __future__ import annotations

import collections
import pickle
import re
from typing import Any

import torch

from .. import tree
from ..client import DTYPES
from ..errors import FormatError, InvalidError, NoMemoryError, TooLargeError, UnsupportedError, UnsupportedValueError
from . import zips
from .bundle import Bundle, Mapped, Tensor, View, whole

# cairn.torch, which has this table too, would double the seconds in which the command starts.
NAMES = {getattr(torch, name): name for name in DTYPES if isinstance(getattr(torch, name, None), torch.dtype)}
_VALUES_MAX = 16 << 20
_SHARED_MAX, _VALUES_MIN = 16, 1 << 16
_NOT_READ = re.compile(r"GLOBAL (\w[\w.]*)")
_WHY = re.compile(r"WeightsUnpickler error: (.*)")


def load(path: str, source: Any, **how: Any) -> Any:
    """Calls torch.load with weights_only: whatever the bytes are, nothing of them is executed.

    Raises UnsupportedError for a pickle that names other things than weights_only reads, and FormatError for bytes that PyTorch
    cannot read.
    """
    try:
        return torch.load(source, weights_only=True, **how)
    except MemoryError:
        raise NoMemoryError.of(f"{path}: there is not enough memory for the state that its pickle describes; "
                               "free memory on this host") from None
    except OSError as error:
        raise FormatError.of(f"{path}: {error}") from None
    except Exception as error:  # what torch.load raises over bytes that are broken has no list
        text = str(error)
        found = _NOT_READ.search(text)
        if isinstance(error, pickle.UnpicklingError) and found:
            raise UnsupportedError.of(f"{path}: its pickle names {found[1]}, which is not among the names that PyTorch reads with "
                                      "weights_only; Cairn never executes code from a pickle. "
                                      "Save tensors and plain values instead") from None
        why = _WHY.search(text)
        line = why[1] if why else (text.splitlines() or [""])[0]
        raise FormatError.of(f"{path}: PyTorch cannot read it: {type(error).__name__}: {line[:300]}") from None


def unsupported(tensor: torch.Tensor) -> str:
    """Why a tensor cannot become one of Cairn's; empty where it can."""
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter):
        return f"is a tensor subclass, {type(tensor).__module__}.{type(tensor).__qualname__}: save a plain tensor"
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "is sparse or nested: save what it is made of, or its to_dense()"
    if tensor.is_quantized:
        return f"is quantized ({tensor.dtype}): save int_repr(), scale and zero point"
    return "" if tensor.dtype in NAMES else f"has the element type {tensor.dtype}, which Cairn does not know"


class _Walk:
    """Replaces each tensor of a state by a Ref, and adds it to the bundle."""

    def __init__(self, bundle: Bundle, pickle_bytes: int) -> None:
        self._bundle, self._values = bundle, 0
        # A value has a byte of the pickle at least. More of them are containers that are shared, and a kilobyte of those
        # would be expanded to any number of values.
        self._values_max = min(_VALUES_MAX, max(_VALUES_MIN, pickle_bytes * _SHARED_MAX))
        self.storages: set = set()  # (address, bytes)

    def value(self, value: Any, name: str, depth: int = 0) -> Any:
        self._values += 1
        if depth > tree.DEPTH_MAX:
            raise TooLargeError.of(f"{self._bundle.path}: {name[:200]}: the state is nested deeper than {tree.DEPTH_MAX} levels")
        if self._values > self._values_max:
            raise TooLargeError.of(f"{self._bundle.path}: the state has more than {self._values_max} values, or repeats the same values "
                                   "and again")
        kind = type(value)
        if isinstance(value, torch.Tensor):
            return self._tensor(value, name or "tensor")
        if kind in (dict, collections.OrderedDict):
            return kind((key, self.value(item, self._join(name, key, idx), depth + 1))
                        for idx, (key, item) in enumerate(value.items()))
        if kind in (list, tuple):
            return kind(self.value(item, self._join(name, idx, idx), depth + 1) for idx, item in enumerate(value))
        return value

    def _join(self, name: str, key: Any, idx: int) -> str:
        """Keys that are neither text nor integers are named by their place."""
        if type(key) is not str:
            key = str(key if type(key) is int else idx)
        if "\0" in key:
            raise InvalidError.of(f"{self._bundle.path}: {name}: the key {key[:100]!r} cannot become a name, "
                                  "because it contains a NUL character")
        return f"{name}.{key}" if name else key

    def _tensor(self, tensor: torch.Tensor, name: str) -> tree.Ref:
        why = unsupported(tensor)
        if why:
            raise UnsupportedError.of(f"{self._bundle.path}: {name}: the tensor {why}")
        storage = tensor.untyped_storage()
        if storage.nbytes():
            self.storages.add((storage.data_ptr(), storage.nbytes()))
        tensor = tensor.detach().resolve_conj().resolve_neg()  # a copy in memory, of conjugated and negated views alone
        dtype, shape = NAMES[tensor.dtype], tuple(tensor.shape)
        stride = None if tensor.is_contiguous() else tuple(tensor.stride())
        self._bundle.add(Tensor(name, dtype, shape, whole(shape, stride, tensor.data_ptr() if tensor.numel() else 0), tensor))
        return tree.Ref(name, "torch", dtype, shape)


def _check_storages(path: str, storages: set, offsets: dict) -> None:
    """Raises FormatError unless every storage, an address and a size, is one entry of the archive: PyTorch believes the pickle.

    ``offsets``: where the entries begin in the file, with their sizes. PyTorch does not say where it has mapped the file,
    so the one address is looked for at which all storages are entries.
    """
    found = sorted(storages)
    for first in sorted(offsets) if found else ():
        base = found[0][0] - first
        if all(offsets.get(address - base) == size for address, size in found):
            return
    if found:
        raise FormatError.of(f"{path}: a tensor's storage is not what the archive holds for it; the file is damaged or forged")


def check_archive(view: View) -> tuple:
    """Returns the size of the archive's pickle, and a dict with the sizes of its storages by the byte where each begins.

    Raises FormatError if torch.save did not write it, and UnsupportedError if it is compressed, a bare pickle or not little-endian.
    """
    head = view.part(0, 2)
    if len(head) == 2 and head[0] == 0x80 and head[1] <= pickle.HIGHEST_PROTOCOL:
        raise UnsupportedError.of(f"{view.path} is a bare pickle (torch.save before 1.6, or without the zip format): load it and "
                                  "save it again with torch.save")
    with zips.open_archive(view) as archive:
        entries = zips.entries(view, archive)
    prefix = next((name[:-len("data.pkl")] for name in entries if name.endswith("/data.pkl")), None)
    if prefix is None:
        raise FormatError.of(f"{view.path}: the archive has no data.pkl, so torch.save did not write it")
    for name, entry in entries.items():
        if not entry.is_stored:
            raise UnsupportedError.of(f"{view.path}: {name} is compressed: save it again with torch.save")
    order = entries.get(prefix + "byteorder")
    if order is not None and view.part(order.offset, order.info.file_size) != b"little":
        raise UnsupportedError.of(f"{view.path} is not little-endian: save it again on the machine that wrote it, after byteswap()")
    return entries[prefix + "data.pkl"].info.file_size, {
        entry.offset: entry.info.file_size for name, entry in entries.items() if name.startswith(prefix + "data/")}


def read(path: str) -> Bundle:
    """Returns the bundle of a file of torch.save.

    Raises NotFoundError if there is no file, FormatError if it is damaged or forged, UnsupportedError for values that are not
    converted, TooLargeError for a state that is nested too deeply, and InvalidError for a key that cannot become a name.
    """
    mapped = Mapped(path)
    bundle = Bundle(path, "torch", mapped.size)
    pickle_bytes, offsets = check_archive(View(mapped))
    state = load(path, path, map_location="cpu", mmap=True)
    walk = _Walk(bundle, pickle_bytes)
    try:
        bundle.add_tree("torch.state", tree.encode(walk.value(state, ""), "torch.state"))
    except UnsupportedValueError as error:
        raise UnsupportedError.of(f"{path}: {error.text.partition('; ')[0]}; save tensors and plain values instead") from None
    except RecursionError:
        raise TooLargeError.of(f"{path}: the state is nested too deeply") from None
    _check_storages(path, walk.storages, offsets)
    return bundle
