# SPDX-License-Identifier: Apache-2.0
"""npz archives of numpy.savez and savez_compressed: each array is a tensor of its name. No objects, which are pickles.

What is stored is mapped where it lies; what is compressed is decompressed, an entry at a time, into an unnamed file in
$TMPDIR, and mapped there. Both ways the entry is read once for its checksum. Types that NumPy lacks are V1, V2 and V4
there; Cairn's own exports say in the entry cairn.json which they are.
"""

from __future__ import annotations

import json
import tempfile
import zipfile
import zlib
from typing import Any

import numpy
from numpy.lib import format as npy

from ..client import DTYPES
from ..errors import FormatError, UnsupportedError
from ..limits import NUMPY_NAMES
from . import zips
from .bundle import Bundle, Mapped, Tensor, View, element_bytes, os_error, span, whole

TYPES_ENTRY = "cairn.json"
_PIECE = 1 << 20
_HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0, (3, 0): npy.read_array_header_2_0}


def _types(path: str, archive: zipfile.ZipFile, entries: dict) -> dict:
    """What cairn.json says: the type of each array that NumPy has no type for."""
    if TYPES_ENTRY not in entries:
        return {}
    try:
        types = json.loads(archive.read(TYPES_ENTRY))
    except (ValueError, RecursionError, zipfile.BadZipFile, zlib.error) as error:
        raise FormatError.of(f"{path}: {TYPES_ENTRY}: {error}") from None
    if not isinstance(types, dict) or not all(isinstance(value, str) for value in types.values()):
        raise FormatError.of(f"{path}: {TYPES_ENTRY} does not name types; export the checkpoint again")
    return types


def _dtype(path: str, name: str, dtype: numpy.dtype, types: dict) -> str:
    if dtype.kind == "V" and dtype.fields is None and dtype.subdtype is None and types.get(name) in DTYPES:
        said = types[name]
        if dtype.itemsize == element_bytes(said):
            return said
    if dtype.name in NUMPY_NAMES and dtype.byteorder in "=|<" and not dtype.hasobject:
        return dtype.name
    raise UnsupportedError.of(f"{path}: {name}: arrays of type {dtype.str!r} cannot be read"
                              + (", because objects are pickles" if dtype.hasobject else "; convert it with astype and save it again"))


def _open(view: View, archive: zipfile.ZipFile, entry: zips.Entry) -> View:
    """The entry's bytes, where they lie or decompressed; they match the entry's checksum."""
    info = entry.info
    if entry.is_stored:
        with archive.open(info) as stream:
            while stream.read(_PIECE):  # zipfile compares the checksum at the end
                pass
        return View(view.mapped, entry.offset, info.file_size)
    if info.compress_type != zipfile.ZIP_DEFLATED:
        raise UnsupportedError.of(f"{view.path}: {info.filename} is compressed by method {info.compress_type}; save it with numpy.savez")
    zips.check_growth(view, info)
    try:
        with archive.open(info) as stream, tempfile.TemporaryFile(prefix="cairn-") as file:
            while piece := stream.read(_PIECE):
                file.write(piece)
            file.flush()
            return View(Mapped(f"/proc/self/fd/{file.fileno()}"))
    except OSError as error:
        raise os_error(f"{view.path}: decompress {info.filename}", error, "compressed arrays need room in $TMPDIR") from None


def _array(path: str, name: str, source: Any, types: dict) -> Tensor:
    try:
        version = npy.read_magic(source)
        if version not in _HEADERS:
            raise ValueError(f"the header has version {version}")
        shape, is_fortran, dtype = _HEADERS[version](source)
    except Exception as error:  # what NumPy raises over a header that is none has no list
        raise FormatError.of(f"{path}: {name}: this is not an array of NumPy ({str(error)[:200]}); save the file again") from None
    kind = _dtype(path, name, dtype, types)
    stride = None
    if is_fortran and len(shape) > 1:
        stride, step = [], 1
        for length in shape:
            stride.append(step)
            step *= length
        stride = tuple(stride)
    begin = source.tell()
    if any(length < 0 for length in shape) or begin + span(shape, stride, kind) > source.size:
        raise FormatError.of(f"{path}: {name}: the array {tuple(shape)} does not fit into the {source.size} bytes of its entry")
    return Tensor(name, kind, tuple(shape), whole(tuple(shape), stride, source.address + begin), source.mapped)


def read(path: str) -> Bundle:
    """Returns the bundle of an npz archive.

    Raises NotFoundError if there is no file, FormatError if it is damaged, UnsupportedError for arrays that cannot be converted,
    and NoSpaceError if $TMPDIR has no room for compressed ones.
    """
    view = View(Mapped(path))
    bundle = Bundle(path, "npz", view.size)
    with zips.open_archive(view) as archive:
        entries = zips.entries(view, archive)
        types = _types(path, archive, entries)
        for name, entry in entries.items():
            if name == TYPES_ENTRY:
                continue
            if not name.endswith(".npy") or name == ".npy":
                raise FormatError.of(f"{path}: {name} is not a .npy file; an archive of numpy.savez holds nothing else")
            try:
                source = _open(view, archive, entry)
            except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
                raise FormatError.of(f"{path}: {name}: {error}; the file is damaged, fetch or save it again") from None
            bundle.add(_array(path, name[:-len(".npy")], source, types))
    return bundle
