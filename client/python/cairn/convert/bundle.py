# SPDX-License-Identifier: Apache-2.0
"""What a foreign file holds, as a save needs it: tensors with the addresses of their bytes in mapped files, and blobs.

Reading a format fills a Bundle and copies no tensor. Every tensor is checked here before anything is saved: names,
ranges, whether the rectangles of a tensor cover it, and whether a small file claims a huge tensor.
"""

from __future__ import annotations

import ctypes
import errno
import io
import math
import mmap
import os
from dataclasses import dataclass, field
from typing import Any, Optional

from ..client import BYTES, DTYPES, REPLICATED, TREE
from ..errors import (CairnError, DeniedError, FormatError, InvalidError, IoError, NoSpaceError, NotFoundError, TooLargeError,
                      UnsupportedError)
from ..limits import NAME_BYTES_MAX, NDIM_MAX, overlaps

_REPEATED_MIN, _REPEATS_MAX = 1 << 30, 1024
_BY_ERRNO = {errno.ENOENT: NotFoundError, errno.ENOTDIR: NotFoundError, errno.EACCES: DeniedError, errno.EPERM: DeniedError,
             errno.EROFS: DeniedError, errno.ENOSPC: NoSpaceError, errno.EDQUOT: NoSpaceError, errno.EFBIG: TooLargeError,
             errno.EISDIR: InvalidError, errno.ENAMETOOLONG: InvalidError}


def os_error(what: str, error: OSError, remedy: str = "") -> CairnError:
    """The error of the operating system as Cairn's, which names what was tried."""
    kind = _BY_ERRNO.get(error.errno or 0, IoError)
    return kind.of(f"{what}: {error.strerror or error}{'; ' + remedy if remedy else ''}")


class Mapped:
    """A regular file, mapped private and copy on write; whoever uses ``address`` keeps the object alive.

    A file that becomes shorter while it is used ends the process with SIGBUS, and the save with it: nothing that was
    half read is ever committed.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self.data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY) if self.size else None
        except OSError as error:
            raise os_error(f"cannot read {path}", error) from None
        except ValueError as error:  # not a regular file
            raise InvalidError.of(f"cannot read {path}: {error}") from None
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.data)) if self.data else 0


class View(io.RawIOBase):
    """A stream over a part of a mapped file; by default over all of it."""

    def __init__(self, mapped: Mapped, offset: int = 0, size: Optional[int] = None) -> None:
        self.mapped, self.path, self.offset, self._at = mapped, mapped.path, offset, 0
        self.size = mapped.size - offset if size is None else size
        if offset < 0 or self.size < 0 or offset + self.size > mapped.size:
            raise FormatError.of(f"{mapped.path}: {self.size} bytes from byte {offset} on are not in the file, which has only "
                                 f"{mapped.size}; it is damaged or incomplete")

    @property
    def address(self) -> int:
        return self.mapped.address + self.offset

    def part(self, begin: int, count: int) -> bytes:
        """The bytes from ``begin`` on; fewer than ``count`` at the end."""
        if begin < 0 or begin >= self.size or count <= 0:
            return b""
        return self.mapped.data[self.offset + begin:self.offset + min(begin + count, self.size)]

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        at = offset + (0, self._at, self.size)[whence]
        if at < 0:
            raise OSError(errno.EINVAL, "a place in front of the file")
        self._at = at
        return at

    def read(self, count: Optional[int] = -1) -> bytes:
        data = self.part(self._at, self.size if count is None or count < 0 else count)
        self._at += len(data)
        return data

    def readinto(self, buffer: Any) -> int:
        data = self.read(len(buffer))
        buffer[:len(data)] = data
        return len(data)


@dataclass
class Box:
    """A rectangle of a tensor. ``stride`` is in elements; None means row-major."""

    offset: tuple
    length: tuple
    stride: Optional[tuple]
    address: int


@dataclass
class Tensor:
    name: str
    dtype: str  # a key of client.DTYPES
    shape: tuple
    boxes: list
    keep: Any  # owns the memory

    @property
    def size(self) -> int:
        return math.prod(self.shape) * element_bytes(self.dtype)


def element_bytes(dtype: str) -> int:
    from .. import _cairn
    return _cairn.dtype_row(DTYPES[dtype])[1] // 8


def whole(shape: tuple, stride: Optional[tuple], address: int) -> list:
    """The one rectangle of a tensor that lies in one place."""
    return [Box((0,) * len(shape), shape, stride, address if 0 not in shape else 0)]


def span(shape: tuple, stride: Optional[tuple], dtype: str) -> int:
    """Returns the number of bytes from a rectangle's first element to the end of its last one."""
    if 0 in shape:
        return 0
    if stride is None:
        return math.prod(shape) * element_bytes(dtype)
    return (1 + sum(step * (length - 1) for step, length in zip(stride, shape))) * element_bytes(dtype)


@dataclass
class Bundle:
    path: str
    format: str
    file_bytes: int = 0
    tensors: list = field(default_factory=list)
    blobs: list = field(default_factory=list)  # (name, BYTES or TREE, data)

    def add(self, tensor: Tensor) -> None:
        if not 0 < len(tensor.name.encode("utf-8", "surrogatepass")) <= NAME_BYTES_MAX or "\0" in tensor.name:
            raise InvalidError.of(f"{self.path}: {tensor.name[:100]!r}: a tensor's name has 1 to {NAME_BYTES_MAX} bytes, "
                                  "and none of them is zero")
        if len(tensor.shape) > NDIM_MAX:
            raise UnsupportedError.of(f"{self.path}: {tensor.name} has {len(tensor.shape)} dimensions; at most {NDIM_MAX} are possible")
        self.tensors.append(tensor)

    def add_bytes(self, name: str, data: bytes) -> None:
        self.blobs.append((name, BYTES, data))

    def add_tree(self, name: str, data: bytes) -> None:
        self.blobs.append((name, TREE, data))

    @property
    def plain_bytes(self) -> int:
        return sum(tensor.size for tensor in self.tensors) + sum(len(data) for _, _, data in self.blobs)

    def finish(self) -> None:
        """Sorts the tensors by name and checks them.

        Raises InvalidError if two have one name or if elements share memory, FormatError if rectangles do not cover their tensor, and
        TooLargeError if the tensors repeat the same bytes too often.
        """
        self.tensors.sort(key=lambda tensor: tensor.name.encode("utf-8", "surrogatepass"))
        for before, after in zip(self.tensors, self.tensors[1:]):
            if before.name == after.name:
                raise InvalidError.of(f"{self.path}: two tensors are called {after.name}; rename one of them and save again")
        for tensor in self.tensors:
            _check_cover(self.path, tensor)
        # A view may repeat one element without end, so that a kilobyte would fill a store.
        if self.plain_bytes > _REPEATED_MIN and self.plain_bytes // _REPEATS_MAX > self.file_bytes:
            raise TooLargeError.of(
                f"{self.path}: its tensors have {self.plain_bytes} bytes in files of {self.file_bytes} bytes: they repeat the "
                "same bytes again and again; where that is meant, save them as copies (.contiguous())")
        for tensor in self.tensors:
            if any(box.stride is not None and overlaps(box.length, box.stride) for box in tensor.boxes):
                raise InvalidError.of(f"{self.path}: {tensor.name}: its elements share memory (an expanded view); save a copy of it "
                                      "(.contiguous())")

    def rows(self) -> list:
        """The tuples of Client.set_tensors."""
        rows = []
        for tensor in self.tensors:
            number, first = DTYPES[tensor.dtype], tensor.boxes[0] if tensor.boxes else None
            if first is not None and len(tensor.boxes) == 1:
                rows.append((tensor.name, number, tensor.shape, first.address, first.stride, tensor.keep, REPLICATED, None,
                             None, None))
            else:
                boxes = [(box.offset, box.length, box.stride, box.address) for box in tensor.boxes]
                rows.append((tensor.name, number, tensor.shape, 0, None, tensor.keep, REPLICATED, None, None, boxes))
        return rows

    def blob_rows(self) -> list:
        """The tuples of Client.set_blobs."""
        return [(name, kind, data, REPLICATED, None) for name, kind, data in self.blobs]


def _check_cover(path: str, tensor: Tensor) -> None:
    """Raises FormatError unless the rectangles cover the tensor and none of them overlap."""
    boxes = [box for box in tensor.boxes if 0 not in box.length]
    for box in tensor.boxes:
        if (len(box.offset) != len(tensor.shape) or len(box.length) != len(tensor.shape)
                or any(at < 0 or length < 0 or at + length > size
                       for at, length, size in zip(box.offset, box.length, tensor.shape))):
            raise FormatError.of(f"{path}: {tensor.name}: the rectangle at {box.offset} of {box.length} "
                                 f"is outside the shape {tensor.shape}")
    if sum(math.prod(box.length) for box in boxes) != math.prod(tensor.shape) * (0 not in tensor.shape):
        raise FormatError.of(f"{path}: {tensor.name}: its rectangles leave a gap or overlap")
    if len(boxes) < 2:
        return
    # A sweep along the dimension in which most rectangles begin at different places keeps few of them open at once.
    sweep = max(range(len(tensor.shape)), key=lambda dim: len({box.offset[dim] for box in boxes}))
    open_boxes: list = []
    for box in sorted(boxes, key=lambda box: box.offset[sweep]):
        open_boxes = [other for other in open_boxes if other.offset[sweep] + other.length[sweep] > box.offset[sweep]]
        for other in open_boxes:
            if all(a < b + m and b < a + n for a, n, b, m in zip(box.offset, box.length, other.offset, other.length)):
                raise FormatError.of(f"{path}: {tensor.name}: the rectangles at {other.offset} and {box.offset} overlap")
        open_boxes.append(box)
