# SPDX-License-Identifier: Apache-2.0
"""Directories of torch.distributed.checkpoint, of any number of ranks.

The metadata says which rectangles of which tensor lie where; each is an archive of torch.save, a part of a .distcp file.
torch.load describes it on the meta device, without its bytes, which stay in the mapped file. Objects that are no tensors
are kept as the bytes of their archives, which nothing here opens.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch

from ..errors import FormatError, UnsupportedError
from .bundle import Box, Bundle, Mapped, Tensor, View, span
from . import dcp_metadata as metadata
from .torch_file import NAMES, check_archive, load, unsupported


def _dtype(properties: Any) -> Optional[str]:
    """TensorProperties keeps its state as a tuple whose first item is the type."""
    if not isinstance(properties, metadata.Made):
        return None
    found = properties.state[0] if isinstance(properties.state, tuple) and properties.state else properties.get("dtype")
    return str(found) if isinstance(found, metadata.Dtype) else None


class _Directory:
    def __init__(self, path: str) -> None:
        self.path = path
        self.metadata = metadata.read(os.path.join(path, ".metadata"))
        self.bundle = Bundle(path, "dcp")
        self._files: dict = {}
        self._places: dict = {}  # (name, offsets or None) -> the stand-in of a _StorageInfo
        for index, info in self.metadata.get("storage_data").items():
            if isinstance(index, metadata.Made) and isinstance(index.get("fqn"), str):
                self._places[index.get("fqn"), metadata.lengths(index.get("offset"))] = info

    def _bad(self, name: str, what: str) -> FormatError:
        return FormatError.of(f"{self.path}: {name}: {what}; the directory is damaged or incomplete")

    def _open(self, name: str, offsets: Optional[tuple]) -> View:
        """The archive of a rectangle, or of an object where ``offsets`` is None. A tensor in one place may have none."""
        info = self._places.get((name, None)) or self._places.get((name, offsets))
        file, begin, size = (info.get(key) if isinstance(info, metadata.Made) else None
                             for key in ("relative_path", "offset", "length"))
        if (not isinstance(file, str) or not file or file.startswith(".") or "/" in file or "\0" in file
                or type(begin) is not int or type(size) is not int):
            raise self._bad(name, f"the metadata has no place for it{'' if offsets is None else f' at {offsets}'}")
        if info.get("transform_descriptors"):
            raise UnsupportedError.of(f"{self.path}: {name} is stored with a transform: save it again without extensions")
        if file not in self._files:
            self._files[file] = Mapped(os.path.join(self.path, file))
            self.bundle.file_bytes += self._files[file].size
        return View(self._files[file], begin, size)

    def _box(self, name: str, dtype: str, chunk: Any) -> tuple:
        offsets, sizes = ((metadata.lengths(chunk.get(key)) for key in ("offsets", "sizes"))
                          if isinstance(chunk, metadata.Made) else (None, None))
        if offsets is None or sizes is None or len(offsets) != len(sizes):
            raise self._bad(name, "a rectangle has no offsets or sizes")
        view = self._open(name, offsets)
        _, storages = check_archive(view)
        view.seek(0)
        tensor = load(f"{self.path}: {name}", view, map_location="meta")
        if (not isinstance(tensor, torch.Tensor) or unsupported(tensor) or tensor.is_conj() or tensor.is_neg()
                or NAMES[tensor.dtype] != dtype or tuple(tensor.shape) != sizes):
            raise self._bad(name, f"the rectangle at {offsets} is not what the metadata says")
        if 0 in sizes:
            return Box(offsets, sizes, None, 0), view.mapped
        storage = tensor.untyped_storage()
        begin = getattr(storage, "_checkpoint_offset", None)
        if begin is None:
            raise UnsupportedError.of(f"PyTorch {torch.__version__} does not report where a tensor lies in its file; "
                                      "install a newer PyTorch")
        stride = None if tensor.is_contiguous() else tuple(tensor.stride())
        inside = tensor.storage_offset() * tensor.element_size()
        if storages.get(begin) != storage.nbytes() or inside + span(sizes, stride, dtype) > storage.nbytes():
            raise self._bad(name, f"the rectangle at {offsets} does not lie in its storage")
        return Box(offsets, sizes, stride, view.address + begin + inside), view.mapped

    def _tensor(self, name: str, stored: metadata.Made) -> Tensor:
        dtype, shape, chunks = _dtype(stored.get("properties")), metadata.lengths(stored.get("size")), stored.get("chunks")
        if dtype is None or shape is None or not isinstance(chunks, list):
            raise self._bad(name, "its type, size or rectangles are not known here")
        found = [self._box(name, dtype, chunk) for chunk in chunks]
        return Tensor(name, dtype, shape, [box for box, _ in found], list({id(mapped): mapped for _, mapped in found}.values()))

    def read(self) -> Bundle:
        for name, stored in self.metadata.get("state_dict_metadata").items():
            if not isinstance(name, str):
                raise self._bad(".metadata", "a name is not text")
            if isinstance(stored, metadata.TensorMetadata):
                self.bundle.add(self._tensor(name, stored))
            elif isinstance(stored, metadata.BytesMetadata):
                self.bundle.add_bytes(name, self._open(name, None).read())
            else:
                raise self._bad(name, "it is neither a tensor nor bytes")
        return self.bundle


def read(path: str) -> Bundle:
    """Returns the bundle of a directory of DCP.

    Raises NotFoundError if a file is missing, FormatError if one is damaged, and UnsupportedError for what cannot be converted.
    """
    return _Directory(path).read()
