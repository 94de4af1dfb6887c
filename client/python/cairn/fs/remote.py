# SPDX-License-Identifier: Apache-2.0
"""The server's side of the file system: committed trees to read, open ones to commit.

A file is a tensor of bytes named ``file:`` and its path: so it is written straight from its memfd, chunked and
digested like any tensor, and read by ranges. The blob ``cairn.files`` lists them: path -> size. Blocking; any thread.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from typing import Any, Callable, Optional

from .. import tree
from ..client import BYTES, DTYPES, SHARDED, TREE, Client, new_attempt
from ..errors import CairnError, DeniedError, FormatError, InvalidError, NotFoundError
from ..limits import NAME_BYTES_MAX, TAG_BYTES_MAX
from .files import Content
from .paths import Place, folder_of

INDEX_BLOB = "cairn.files"
PREFIX = "file:"
FOLDER = "folder:"  # begins the tag of a checkpoint that is not in the run itself; lists show tags, and names they do not
VERSION = 1
_FILE_BYTES_MAX, _FOLDER_BYTES_MAX = NAME_BYTES_MAX - len(PREFIX), TAG_BYTES_MAX - len(FOLDER)


def check_names(place: Place) -> None:
    """Raises InvalidError if no checkpoint can hold a file of this name, or stand in this folder."""
    try:
        place.path.encode()
        is_possible = ("\0" not in place.path and len(place.inner.encode()) <= _FILE_BYTES_MAX
                       and len(folder_of(place.name).encode()) <= _FOLDER_BYTES_MAX)
    except UnicodeEncodeError:
        is_possible = False
    if not is_possible:
        raise InvalidError.of(f"{'cairn://' + place.path!r} cannot be written: a file's path in its checkpoint may have "
                              f"{_FILE_BYTES_MAX} bytes, and the folder of a checkpoint {_FOLDER_BYTES_MAX}, in valid UTF-8 without NUL; "
                              "give it another name")


class _Connection:
    """A connection to a run, which is made when it is needed. It belongs to the process that has made the object."""

    def __init__(self, run_url: str, options: dict) -> None:
        self._run_url, self._options = run_url, options
        self._client: Optional[Client] = None
        self._lock = threading.RLock()
        self.pid = os.getpid()

    def close(self) -> None:
        """Leaves the run. The next use connects again."""
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self.pid == os.getpid():
                with contextlib.suppress(CairnError):  # of a save; whoever waited for it has heard of it
                    client.close(1.0)


class Reader(_Connection):
    """Reads committed trees of one run over one connection."""

    def __init__(self, run_url: str, options: dict) -> None:
        super().__init__(run_url, options)
        self._leaving: set = set()  # (step, term): removed here; the guard keeps it until there is something newer

    def _live(self) -> Client:
        if self._client is None:
            self._client = Client(self._run_url, read_only=True, label="fs", **self._options)
        return self._client

    def _restore(self, step: int, term: int, tensors: list, blobs: list) -> Any:
        client = self._live()
        client.set_tensors(tensors)
        client.set_blobs(blobs)
        op = client.restore(step, term=term, allow_older=False)
        op.result()
        return op

    def steps(self) -> list:
        """Returns the committed checkpoints on the lineage, newest first."""
        return [item for item in self._all() if (item.step, item.term) not in self._leaving]

    def _all(self) -> list:
        with self._lock:
            return [item for item in self._live().list() if item.state == "committed" and not item.superseded]

    def newest(self) -> Optional[tuple]:
        """Returns (listed row, path -> size) of the newest checkpoint on the lineage, or None if the run has none."""
        with self._lock:
            for row in self._all():
                index = self._index(row.step, row.term)
                if index is not None:  # else it was forgotten in between
                    return row, index[1]
            return None

    def commit_time(self, step: int, term: int) -> Optional[float]:
        """Returns when a version was committed, in seconds since 1970 UTC, or None if it is not there."""
        with self._lock:
            return next((row.commit_time for row in self._live().list() if (row.step, row.term) == (step, term)), None)

    def every_index(self) -> list:
        """Returns path -> size of each committed checkpoint, superseded ones too, newest first."""
        with self._lock:
            found = [self._index(row.step, row.term) for row in self._live().list() if row.state == "committed"]
            return [index[1] for index in found if index is not None]

    def next_step(self) -> int:
        """Returns a step that nobody has saved."""
        with self._lock:
            return max((row.step for row in self._live().list()), default=0) + 1

    @staticmethod
    def folder(item: Any) -> str:
        """Returns the folder of a listed checkpoint, or "" if it is in the run itself."""
        return next((tag[len(FOLDER):] for tag in item.tags or () if tag.startswith(FOLDER)), "")

    def find(self, step: int, is_named: Callable[[Optional[str]], bool]) -> Optional[tuple]:
        """Returns (term, path -> size, name as written) of the newest committed version of a step that was written under the name, or None.
        A checkpoint that was not written by paths has no files and no name; an older version of Cairn stored no name."""
        with self._lock:
            newest = self._index(step, 0)
            if newest is None:
                return None
            if is_named(newest[2]) and (step, newest[0]) not in self._leaving:
                return newest
            for row in self.steps():  # an older attempt may have written it
                if row.step == step and row.term < newest[0]:
                    older = self._index(step, row.term)
                    if older is not None and is_named(older[2]):
                        return older
            return None

    def _index(self, step: int, term: int) -> Optional[tuple]:
        try:
            op = self._restore(step, term, [], [(INDEX_BLOB, BYTES, b"", SHARDED, None)])
        except NotFoundError:
            return None
        try:
            root = tree.decode(op.blob(INDEX_BLOB))
        except NotFoundError:
            return op.result().term, {}, None
        if not isinstance(root, dict) or root.get("version") != VERSION or not isinstance(root.get("files"), dict):
            raise FormatError.of(f"{self._run_url}: step {step} has a list of files in an unknown form; install a newer Cairn")
        return op.result().term, root["files"], root.get("name")

    def remove(self, step: int, term: int) -> None:
        """Forgets a committed step, or notes that it is to go. Retention's guard keeps the last two good ones, so a program that
        keeps one (``save_top_k=1``) removes what cannot go yet: it is gone for this process, and forgotten after a later
        commit. Raises DeniedError if it is the newest."""
        with self._lock:
            if any((row.step, row.term) == (step, term) for row in self._all()[:1]):
                raise DeniedError.of(f"{self._run_url}: step {step} stays: it is the newest checkpoint; `cairn rm` removes a whole run")
            self._leaving.add((step, term))
            self.settle()

    def settle(self) -> None:
        """Forgets what is to go and may go by now. What is kept for another reason than for being one of the last two is told
        on stderr, once, and is there again."""
        with self._lock:
            for step, term in sorted(self._leaving):
                try:
                    self._live().forget(step, term=term, reason="removed by its path")
                except NotFoundError:
                    pass  # somebody else has forgotten it
                except DeniedError as error:
                    if any((row.step, row.term) == (step, term) for row in self._all()[:2]):
                        continue
                    print(f"cairn: {self._run_url}: step {step} was not removed: {error.text}", file=sys.stderr, flush=True)
                self._leaving.discard((step, term))

    def read(self, step: int, term: int, wanted: list) -> list:
        """Returns the bytes of each (path, size, start, end), in one restore."""
        rows: dict = {}
        results: list = []
        for path, size, start, end in wanted:
            boxes = rows.setdefault(path, (size, {}))[1]
            if end > start and (start, end) not in boxes:
                boxes[start, end] = bytearray(end - start)
            results.append(boxes.get((start, end), b""))
        keep = {id(data): (ctypes.c_char * len(data)).from_buffer(data)
                for _, boxes in rows.values() for data in boxes.values()}
        tensors = [(PREFIX + path, DTYPES["uint8"], (size,), 0, None, keep, SHARDED, None, None,
                    [((start,), (end - start,), None, ctypes.addressof(keep[id(data)]))
                     for (start, end), data in boxes.items()])
                   for path, (size, boxes) in rows.items() if boxes]
        if tensors:
            with self._lock:
                self._restore(step, term, tensors, [])
        del keep, tensors
        return [bytes(data) for data in results]


class Committer(_Connection):
    """Commits trees of one run as one rank of one attempt.

    The attempt descends from what is newest in the run when it comes: a path does not say what was resumed.
    """

    def __init__(self, run_url: str, options: dict, token: Optional[str] = None, rank: int = 0,
                 world_size: int = 1) -> None:
        super().__init__(run_url, options)
        self._token, self._rank, self._world, self._is_alone = token or new_attempt(), rank, world_size, token is None

    def start(self, step: int, files: dict, index: Optional[dict], name: str) -> Any:
        """Begins the save, and returns it when ``files`` are copied. Rank 0 gives the ``index`` of all ranks' files, the others None."""
        with self._lock:
            client = self._client = self._client or self._connect()
            client.set_tensors([_row(path, content) for path, content in files.items()])
            listed = tree.encode({"version": VERSION, "files": index, "name": name}, "files")
            client.set_blobs([(INDEX_BLOB, TREE, listed, SHARDED, None)] if index is not None else [])
            note = tree.encode({"framework": "files"})
            folder = folder_of(name)
            return client.save(step, metadata=note, tags=[FOLDER + folder] if folder else [])

    def _connect(self) -> Client:
        """Returns a client that descends from the newest checkpoint. One that does not would begin a lineage beside it."""
        client = Client(self._run_url, rank=self._rank, world_size=self._world, attempt=self._token, label="fs", **self._options)
        try:
            client.restore(allow_older=True).result()
        except NotFoundError:
            pass  # there is none
        except BaseException:
            client.close(0)
            if self._is_alone:
                self._token = new_attempt()  # the next restore of this one could still hear of the failed one
            raise
        return client


def _row(path: str, content: Content) -> tuple:
    return (PREFIX + path, DTYPES["uint8"], (content.size,), content.address(), None, content, SHARDED, None, None, None)
