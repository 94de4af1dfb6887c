# SPDX-License-Identifier: Apache-2.0
"""The .metadata of a directory of torch.distributed.checkpoint, without running what it says.

It is a pickle, which DCP's own reader loads with pickle.load: whoever can write the file can run any code there. Here the
few classes that DCP writes become stand-ins, which keep their arguments and their state and do nothing; every other name,
and every opcode that is not needed, is an error by name.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

from ..client import DTYPES
from ..errors import CairnError, FormatError, UnsupportedError
from .bundle import Mapped, View

_CLASSES = "torch.distributed.checkpoint.metadata"
_FORMATS = ("TORCH_CONTIGUOUS_FORMAT", "TORCH_CHANNELS_LAST", "TORCH_PRESERVE_FORMAT")


class Made:
    """An object of the pickle: the arguments that it was made of, and its state."""

    def __init__(self, *args: Any) -> None:
        self.args, self.state = args, None

    def __setstate__(self, state: Any) -> None:
        self.state = state

    def get(self, name: str) -> Any:
        """A field of a dataclass; None."""
        return self.state.get(name) if isinstance(self.state, dict) else None


class Metadata(Made):
    pass


class TensorMetadata(Made):
    pass


class BytesMetadata(Made):
    pass


class _MemoryFormat(Made):
    pass


class _GetAttr(Made):
    """Python 3.11.0 to 3.11.3 (Debian 12 has 3.11.2) pickle a member of an enum as getattr(class, name)."""

    def __init__(self, *args: Any) -> None:
        if len(args) != 2 or args[0] is not _MemoryFormat or args[1] not in _FORMATS:
            raise UnsupportedError.of("it calls builtins.getattr for something else than a memory format")
        super().__init__(*args)


class Dtype(str):
    """An element type by its name in PyTorch."""


_NAMES: dict = {
    (_CLASSES, "Metadata"): Metadata, (_CLASSES, "TensorStorageMetadata"): TensorMetadata,
    (_CLASSES, "BytesStorageMetadata"): BytesMetadata, (_CLASSES, "_MEM_FORMAT_ENCODING"): _MemoryFormat,
    **{(_CLASSES, name): Made for name in ("MetadataIndex", "ChunkStorageMetadata", "TensorProperties", "StorageMeta")},
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): Made, ("torch.serialization", "_get_layout"): Made,
    ("pathlib", "PosixPath"): Made, ("pathlib._local", "PosixPath"): Made, ("collections", "OrderedDict"): dict,
    ("torch", "Size"): tuple, ("builtins", "getattr"): _GetAttr,
    **{("torch", name): Dtype(name) for name in DTYPES},
}
_OPCODES = ("PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE BININT BININT1 BININT2 LONG1 BINFLOAT BINUNICODE SHORT_BINUNICODE "
            "BINBYTES SHORT_BINBYTES EMPTY_TUPLE TUPLE TUPLE1 TUPLE2 TUPLE3 EMPTY_LIST APPEND APPENDS EMPTY_DICT SETITEM "
            "SETITEMS GLOBAL STACK_GLOBAL NEWOBJ REDUCE BUILD BINPUT LONG_BINPUT BINGET LONG_BINGET MEMOIZE").split()
_MACHINE: Any = getattr(pickle, "_Unpickler")  # the one in Python: its memo is a dict, which no opcode makes huge


class _Refused(dict):
    def __missing__(self, opcode: int) -> Any:
        raise UnsupportedError.of(f"it has the opcode {bytes((opcode,))!r}, which DCP does not write")


class _Unpickler(_MACHINE):
    dispatch = _Refused((opcode, _MACHINE.dispatch[opcode]) for opcode in (getattr(pickle, name)[0] for name in _OPCODES))

    def find_class(self, module: str, name: str) -> Any:
        found = _NAMES.get((module, name))
        if found is None:
            raise UnsupportedError.of(f"it names {module}.{name}, which DCP does not write; no code of it was executed")
        return found


def lengths(value: Any) -> Any:
    """A torch.Size as a tuple of numbers from 0 on; None for anything else."""
    if isinstance(value, (tuple, list)) and all(type(item) is int and item >= 0 for item in value):
        return tuple(value)
    return None


def read(path: str) -> Metadata:
    """Reads a ``.metadata`` file of DCP without executing code.

    Raises NotFoundError if there is no file, FormatError if DCP did not write it, and UnsupportedError for names and opcodes
    that DCP does not write.
    """
    data = View(Mapped(path)).read()
    try:
        root = _Unpickler(io.BytesIO(data)).load()
    except CairnError as error:
        raise type(error).of(f"{path}: {error.text}") from None
    except Exception as error:  # what the machine raises over bytes that are broken has no list
        raise FormatError.of(f"{path}: it is not a pickle that can be read: {type(error).__name__}: {str(error)[:200]}") from None
    if (type(root) is not Metadata or not isinstance(root.get("state_dict_metadata"), dict)
            or not isinstance(root.get("storage_data"), dict)):
        raise FormatError.of(f"{path} was not written by torch.distributed.checkpoint")
    return root
