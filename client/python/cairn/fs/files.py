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
from typing import Any, Callable, Iterable, Optional

from ..errors import BusyError, ExistsError, InvalidError

_NAMES_SHOWN = 8


class WriteFile(io.FileIO):
    """A file open for writing. ``fileno()`` is its memfd, so that fsync costs nothing; ``close`` hands it to the
    tree and, where it is a marker, waits until the checkpoint is durable. Discarded instead: when the ``with`` block
    raises, when it is closed in an exception that was not there when it was opened, when it is only dropped."""

    def __init__(self, name: str, on_close: Callable[["WriteFile", bool], None]) -> None:
        super().__init__(os.memfd_create("cairn-file", os.MFD_CLOEXEC), "w+b")
        self.path, self._on_close = name, on_close
        self.on_end: Optional[Callable[[bool], None]] = None  # in a transaction: its end, and whether that commits
        self._outer = sys.exc_info()[1]
        self._discard = False

    def discard(self) -> None:
        """Closes it; nothing of it stays."""
        self._discard = True
        self.close()
        if self.on_end is not None:
            self.on_end(False)

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        self._discard = self._discard or kind is not None
        self.close()

    def __del__(self) -> None:
        if not self.closed:
            self.discard()

    def close(self) -> None:
        if self.closed:
            return
        inner = sys.exc_info()[1]
        keep = not self._discard and (inner is None or inner is self._outer)
        fd = os.dup(self.fileno()) if keep else -1
        super().close()
        self.kept_fd = fd
        self._on_close(self, keep)

    def commit(self) -> None:
        """The end of an fsspec transaction; elsewhere ``close`` has done it."""
        self.close()
        if self.on_end is not None:
            self.on_end(True)


class Content:
    """A closed file: its memfd, mapped for as long as libcairn reads it."""

    def __init__(self, fd: int) -> None:
        self.fd, self.size = fd, os.fstat(fd).st_size
        self._map: Optional[mmap.mmap] = None
        self._view: Any = None

    @classmethod
    def of_size(cls, size: int) -> "Content":
        fd = os.memfd_create("cairn-file", os.MFD_CLOEXEC)
        os.ftruncate(fd, size)
        return cls(fd)

    def address(self) -> int:
        if self.size == 0:
            return 0
        if self._map is None:
            self._map = mmap.mmap(self.fd, self.size)
            self._view = ctypes.c_char.from_buffer(self._map)
        return ctypes.addressof(self._view)

    def reader(self) -> io.BufferedReader:
        """A reader with an offset of its own."""
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


def say(text: str) -> None:
    """On stderr, which may be None, or closed."""
    with contextlib.suppress(AttributeError, OSError, ValueError):
        print("cairn: " + text, file=sys.stderr, flush=True)


class WriteTree:
    """The files of a checkpoint that is not committed yet. ``state``: "open", "sealing", "done"."""

    def __init__(self, name: str) -> None:
        self.name, self.state, self.pid = name, "open", os.getpid()
        self.lock = threading.RLock()
        self.files: dict = {}  # inner path -> Content
        self.writing: Any = weakref.WeakValueDictionary()  # inner path -> WriteFile; dropping one discards it
        self.base: Any = None  # what is committed under this name: a remote.Entry; its files stay, unless ...
        self.removed: set = set()  # ... they are written anew or are among these
        self.torn: set = set()  # files that an exception discarded, and that were not written again
        self.meeting: Any = None  # of several ranks that write it (ranks.py)
        self.is_sealed_elsewhere = False  # another rank has asked for it: until the end nobody here may use it
        self.commit: Any = None  # by the file system that began it
        self.is_warned = False
        self._is_told = False
        self._names: list = []  # of what was in it when it was closed
        self.ended = threading.Event()

    def open(self, inner: str, exclusive: bool, on_close: Callable) -> WriteFile:
        with self.lock:
            if self.state != "open":
                raise ExistsError.of(f"{self.name}: the checkpoint is being committed, so no file can be added; write files before the marker")
            if inner in self.writing or (exclusive and inner in self.listing()):
                raise FileExistsError(f"{self.name}/{inner} is " + ("already open for writing" if inner in self.writing
                                                                    else "already there"))
            file = self.writing[inner] = WriteFile(inner, on_close)
            return file

    def closed(self, file: WriteFile, keep: bool) -> None:
        with self.lock:
            if self.writing.get(file.path) is file:
                del self.writing[file.path]
            if keep and self.state == "open":
                if (old := self.files.pop(file.path, None)) is not None:
                    old.close()
                self.files[file.path] = Content(file.kept_fd)
                self.torn.discard(file.path)
            elif keep:
                os.close(file.kept_fd)
            else:
                self.torn.add(file.path)

    def listing(self) -> dict:
        """path -> size, with what is committed and stays."""
        with self.lock:
            return {**self.carried(self.files), **self.sizes()}

    def carried(self, written: Iterable) -> dict:
        """path -> size of the committed files that stay beside those that are written."""
        files = self.base.files if self.base is not None else {}
        return {inner: size for inner, size in files.items() if inner not in self.removed and inner not in written}

    def must_be_idle(self) -> None:
        """Files that are being committed stay: libcairn reads their memory, and must not find another mapping there."""
        with self.lock:
            if self.state == "sealing":
                raise BusyError.of(f"{self.name}: the checkpoint is being committed, so nothing in it can be removed or renamed until that has ended")

    def remove(self, inner: str) -> bool:
        with self.lock:
            self.must_be_idle()
            known = inner in self.listing()
            content = self.files.pop(inner, None)
            if content is not None:
                content.close()
            self.removed.add(inner)
            self.torn.discard(inner)
            return known

    def rename(self, old: str, new: str) -> bool:
        """False: it is not among the files that were written here."""
        with self.lock:
            self.must_be_idle()
            if old not in self.files:
                return False
            content = self.files.pop(old)
            self.remove(new)
            self.files[new] = content
            return True

    def seal_elsewhere(self) -> dict:
        """Another rank seals: path -> size. Even when that fails, the tree is dropped when all have been told."""
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

    def tell_lost(self, why: str) -> None:
        """Says on stderr, once, which files of this process go with the tree, and what would have kept them. For a loss that
        no exception tells of; a ResourceWarning would be hidden, since Python shows none unless it is asked to."""
        with self.lock:
            names, is_told = sorted({*self.files, *self.writing}) or self._names, self._is_told
            self._is_told = True
        if not names or is_told:
            return
        shown = ", ".join(map(repr, names[:_NAMES_SHOWN]))
        more = f" and {len(names) - _NAMES_SHOWN} more" if len(names) > _NAMES_SHOWN else ""
        text = (f"{self.name} was not committed: {why}. {len(names)} {'file is' if len(names) == 1 else 'files are'} "
                f"lost: {shown}{more}. Write the folder again and, before the process ends, close its marker (.metadata, "
                f"model.safetensors.index.json, trainer_state.json, a name given by markers=) or call cairn.fs.seal({self.name!r}).")
        say(text)

    def close(self) -> None:
        with self.lock:
            self.state, self._names = "done", sorted({*self.files, *self.writing})
            for inner in list(self.files):
                self.remove(inner)
        self.ended.set()
