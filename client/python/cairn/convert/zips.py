# SPDX-License-Identifier: Apache-2.0
"""The entries of a zip archive, checked before anything is read: each lies inside the file, and no two share bytes.

zipfile reads the directory; older versions of it accept entries that overlap, which is how a small archive becomes a huge one.
"""

from __future__ import annotations

import struct
import zipfile
from dataclasses import dataclass

from ..errors import FormatError, UnsupportedError
from .bundle import View

_LOCAL = struct.Struct("<4s22xHH")
_DEFLATE_RATIO_MAX = 1032  # deflate makes no more of one byte


@dataclass
class Entry:
    """``info`` is zipfile's. The entry's bytes, compressed or not, begin at ``offset`` of the view."""

    info: zipfile.ZipInfo
    offset: int

    @property
    def is_stored(self) -> bool:
        return self.info.compress_type == zipfile.ZIP_STORED


def entries(view: View, archive: zipfile.ZipFile) -> dict:
    """Returns the entries by name.

    Raises FormatError if entries are broken, overlap or have one name, and UnsupportedError if one is encrypted.
    """
    found: dict = {}
    spans = []
    for info in archive.infolist():
        head = view.part(info.header_offset, _LOCAL.size)
        if len(head) < _LOCAL.size or head[:4] != b"PK\3\4":
            raise FormatError.of(f"{view.path}: the entry {info.filename} begins at byte {info.header_offset}, where no "
                                 "entry is; the file is damaged, fetch or save it again")
        _, name_bytes, extra_bytes = _LOCAL.unpack(head)
        offset = info.header_offset + _LOCAL.size + name_bytes + extra_bytes
        if info.filename in found:
            raise FormatError.of(f"{view.path}: two entries are called {info.filename}; save the file again")
        if info.flag_bits & 1:
            raise UnsupportedError.of(f"{view.path}: {info.filename} is encrypted: save it without a password")
        if info.compress_type == zipfile.ZIP_STORED and info.file_size != info.compress_size:
            raise FormatError.of(f"{view.path}: {info.filename} has two sizes; the file is damaged, fetch or save it again")
        found[info.filename] = Entry(info, offset)
        spans.append((info.header_offset, offset + info.compress_size, info.filename))
    spans.sort()
    for (_, end, name), (begin, _, other) in zip(spans, spans[1:]):
        if end > begin:
            raise FormatError.of(f"{view.path}: the entries {name} and {other} overlap; the file is damaged or forged")
    if spans and spans[-1][1] > archive.start_dir:
        raise FormatError.of(f"{view.path}: the entry {spans[-1][2]} overlaps the directory; the file is damaged or forged")
    return found


def open_archive(view: View) -> zipfile.ZipFile:
    """Opens the archive. Raises FormatError if it is no zip archive that can be read."""
    try:
        return zipfile.ZipFile(view)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error, UnicodeDecodeError, OverflowError) as error:
        raise FormatError.of(f"{view.path}: this is not a zip archive that can be read ({error}); the file is damaged or "
                             "incomplete, fetch or save it again") from None


def check_growth(view: View, info: zipfile.ZipInfo) -> None:
    """Raises FormatError if the entry claims more bytes than deflate can make of its compressed ones."""
    if info.file_size > info.compress_size * _DEFLATE_RATIO_MAX + _DEFLATE_RATIO_MAX:
        raise FormatError.of(f"{view.path}: {info.filename} claims {info.file_size} bytes in {info.compress_size}: deflate "
                             "cannot expand data that much, so the file is damaged or forged; fetch or save it again")
