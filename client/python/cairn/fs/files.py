# SPDX-License-Identifier: Apache-2.0
"""Files that are being written: each is a private memfd until its tree is committed.

What is closed by an exception is discarded: a torn file never becomes part of a checkpoint. Any thread; the tree's
lock guards its table.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import mmap
import os
import sys
import threading
import weakref
from typing import Any, Callable, Optional

from ..errors import BusyError, ExistsError, InvalidError

_NAMES_SHOWN = 8


class WriteFile(io.FileIO):
    """A file open for writing. ``fileno()`` is its memfd, so that fsync costs nothing; ``close`` hands it to the
    tree and, where it is a marker, waits until the checkpoint is durable. Discarded instead: when the ``with`` block
    raises, when it is closed in an exception that was not there when it was opened, when it is only dropped. In a
    transaction of fsspec (``autocommit`` False) ``close`` only keeps it, and ``commit`` or ``discard`` follows."""

    def __init__(self, name: str, on_close: Callable[["WriteFile", bool], None], autocommit: bool = True) -> None:
        super().__init__(os.memfd_create("cairn-file", os.MFD_CLOEXEC), "w+b")
        self.path, self._on_close, self._autocommit = name, on_close, autocommit
        self.kept_fd, self._waits = -1, False
        self._outer = sys.exc_info()[1]
        self._discard = False

    def write(self, data: Any) -> int:
        """Writes all of it. One call of the system writes 2 GiB at most, and torch.save does not look how much was written."""
        with memoryview(data).cast("B") as view:
            done = 0
            while done < len(view):
                done += super().write(view[done:])
            return done

    def tear(self) -> None:
        """Lets ``close`` discard it."""
        self._discard = True

    def discard(self) -> None:
        """Closes it, and keeps nothing of it."""
        self.tear()
        self.close()
        if self._waits:
            self._waits = False
            os.close(self.kept_fd)
            self._on_close(self, False)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._discard = self._discard or kind is not None
        self.close()

    def __del__(self) -> None:
        if not self.closed or self._waits:
            self.discard()

    def close(self) -> None:
        if self.closed:
            return
        inner = sys.exc_info()[1]
        keep = not self._discard and (inner is None or inner is self._outer)
        fd = os.dup(self.fileno()) if keep else -1
        super().close()
        self.kept_fd = fd
        self._waits = keep and not self._autocommit
        if not self._waits:
            self._on_close(self, keep)

    def commit(self) -> None:
        """Called at the end of fsspec's transaction, from where the file counts as closed."""
        if self._waits:
            self._waits = False
            self._on_close(self, True)


class Content:
    """A closed file: its memfd, mapped for as long as libcairn reads it."""

    def __init__(self, fd: int) -> None:
        self.fd, self.size = fd, os.fstat(fd).st_size
        self._map: Optional[mmap.mmap] = None
        self._view: Any = None

    def address(self) -> int:
        if self.size == 0:
            return 0
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size)
            self._view = ctypes.c_char.from_buffer(self._map)
        return ctypes.addressof(self._view)

    def reader(self) -> io.BufferedReader:
        """Returns a reader with an offset of its own."""
        return open(f"/proc/self/fd/{self.fd}", "rb")

    def read(self, start: int, end: int) -> bytes:
        return os.pread(self.fd, end - start, start)

    def close(self) -> None:
        self._view = None
        if self._map is not None:
            self._map.close()
            self._map = None
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


class WriteTree:
    """The files of a checkpoint that is not committed yet. ``state``: "open", "sealing", "done"."""

    def __init__(self, name: str) -> None:
        self.name, self.state, self.pid = name, "open", os.getpid()
        self.lock = threading.RLock()
        self.files: dict = {}  # inner path -> Content
        self.writing: Any = weakref.WeakValueDictionary()  # inner path -> WriteFile; dropping one discards it
        self.names: set = set()  # of its folder, as it was opened
        self.meeting: Any = None  # of several ranks that write it (ranks.py)
        self.is_sealed_elsewhere = False  # another rank has asked for it: until the end nobody here may use it
        self._is_told = False
        self.ended = threading.Event()

    def open(self, inner: str, exclusive: bool, on_close: Callable, autocommit: bool = True) -> WriteFile:
        with self.lock:
            if self.state != "open":
                raise ExistsError.of(f"{self.name}: the checkpoint is being committed, so no file can be added; "
                                     "write files before the marker")
            if inner in self.writing or (exclusive and inner in self.files):
                raise FileExistsError(f"{self.name}/{inner} is " + ("already open for writing" if inner in self.writing
                                                                    else "already there"))
            file = self.writing[inner] = WriteFile(inner, on_close, autocommit)
            return file

    def closed(self, file: WriteFile, keep: bool) -> None:
        with self.lock:
            if self.writing.get(file.path) is file:
                del self.writing[file.path]
            if keep and self.state == "open":
                self.remove(file.path)
                self.files[file.path] = Content(file.kept_fd)
            elif keep:
                os.close(file.kept_fd)

    def must_be_idle(self) -> None:
        """Files that are being committed stay: libcairn reads their memory, and must not find another mapping there."""
        with self.lock:
            if self.state == "sealing":
                raise BusyError.of(f"{self.name}: the checkpoint is being committed, so nothing in it can be removed or renamed "
                                   "until that has ended")

    def remove(self, inner: str) -> bool:
        with self.lock:
            self.must_be_idle()
            content = self.files.pop(inner, None)
            if content is not None:
                content.close()
            return content is not None

    def rename(self, old: str, new: str) -> None:
        with self.lock:
            self.must_be_idle()
            if old not in self.files:
                raise FileNotFoundError(f"{self.name}/{old}")
            content = self.files.pop(old)
            self.remove(new)
            self.files[new] = content

    def seal_elsewhere(self) -> dict:
        """Called when another rank seals. Returns path -> size. Even if that fails, the tree is dropped when all have been told."""
        with self.lock:
            self.is_sealed_elsewhere = True
            self.start_sealing()
            return self.sizes()

    def sizes(self) -> dict:
        with self.lock:
            return {inner: content.size for inner, content in sorted(self.files.items())}

    def start_sealing(self) -> None:
        with self.lock:
            if self.writing:
                raise InvalidError.of(f"{self.name}: {sorted(self.writing)[0]!r} is still open for writing; close every "
                                      "file before the marker")
            if self.state != "open":
                raise ExistsError.of(f"{self.name}: the checkpoint is already being committed")
            self.state = "sealing"

    def tell_lost(self, why: str) -> bool:
        """Says on stderr, once, which files of this process go with the tree, and what would have kept them. Returns whether it
        did. For a loss that no exception tells of; a ResourceWarning would be hidden, since Python shows none unless it is asked
        to."""
        with self.lock:
            names, is_told = sorted({*self.files, *self.writing}), self._is_told
            self._is_told = True
        if not names or is_told:
            return False
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        text = (f"cairn: {self.name} was not committed: {why}. {len(names)} {'file is' if len(names) == 1 else 'files are'} "
                f"lost: {shown}{more}. Write the folder again and, before the process ends, close its marker (.metadata, "
                f"model.safetensors.index.json, a name given by markers=) or call cairn.fs.seal({self.name!r}).")
        with contextlib.suppress(AttributeError, OSError, ValueError):  # stderr may be None, or closed
            print(text, file=sys.stderr, flush=True)
        return True

    def close(self) -> None:
        with self.lock:
            self.state = "done"
            for inner in list(self.files):
                self.remove(inner)
        self.ended.set()
