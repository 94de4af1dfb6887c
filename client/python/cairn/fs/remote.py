# SPDX-License-Identifier: Apache-2.0
"""The server's side of the file system: committed trees to read, open ones to commit.

A file is a tensor of bytes named ``file:`` and its path: so it is written straight from its memfd, chunked and
digested like any tensor, and read by ranges. The blob ``cairn.files`` lists them: path -> size. The name that was written
is a tag: ``path=exp/step-7`` of a folder, ``file=step-7.ckpt`` of a file that is a checkpoint by itself (``path#`` and a
hash, and the name in the blob, where it is too long for a tag). Blocking; any thread.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import threading
from dataclasses import dataclass
from typing import Any, Optional

from .. import tree
from ..client import BYTES, DTYPES, SHARDED, TREE, Checkpoint, Client, Result, new_attempt
from ..errors import CairnError, DeniedError, FencedError, FormatError, NotFoundError
from .files import Content

INDEX_BLOB = "cairn.files"
PREFIX = "file:"
VERSION = 1
_TAG_BYTES = 128
_TAGS = ("path=", "file=", "path#", "file#")


def tag_of(name: str, is_file: bool) -> str:
    """The tag that holds a name."""
    head, text = ("file" if is_file else "path"), name.encode()
    if len(text) + len(_TAGS[0]) <= _TAG_BYTES:
        return f"{head}={name}"
    return f"{head}#{hashlib.sha256(text).hexdigest()}"


@dataclass(frozen=True)
class Entry:
    """A committed checkpoint and its files (path -> size)."""

    term: int
    step: int
    files: dict
    name: str
    sequence: int


class Reader:
    """Reads committed trees of one run over one connection."""

    def __init__(self, run_url: str, options: dict) -> None:
        self._run_url, self._options = run_url, options
        self._client: Optional[Client] = None
        self._lock = threading.Lock()
        self._entries: dict = {}  # (term, step) -> Entry, which never changes
        self.hidden: set = set()  # (term, step) of what was removed, and what retention's guard keeps
        self.pid = os.getpid()

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
        """Committed checkpoints on the lineage, newest first."""
        with self._lock:
            return [item for item in self._live().list() if item.state == "committed" and not item.superseded
                    and (item.term, item.step) not in self.hidden]

    def names(self) -> dict:
        """Name -> the newest checkpoint that was written under it; ``step-N`` where it was not written by a path."""
        found: dict = {}
        for item in self.steps():
            tag = _tag(item)
            name = f"step-{item.step}" if tag is None else tag[5:] if tag[4] == "=" else self._entry(item).name
            found.setdefault(name, item)
        return found

    def find(self, name: str, step: int) -> Optional[Entry]:
        """What is committed under a name. Written before names were stored, it has each name with its step."""
        wanted = {tag_of(name, True), tag_of(name, False)}
        for item in self.steps():
            tag = _tag(item)
            if tag in wanted:
                return self._entry(item)
            if tag is None and item.step == step:
                entry = self._entry(item)
                if entry.files or name == entry.name:
                    return entry
        return None

    def newest(self) -> Optional[Entry]:
        items = self.steps()
        return self._entry(items[0]) if items else None

    def missed(self, base: Optional[Entry], term: int, step: int) -> list:
        """What others committed between ``base`` and (term, step), which is on no lineage any more; the newest first."""
        with self._lock:
            items = self._live().list()
        mine = [item.sequence for item in items if (item.term, item.step) == (term, step)]  # none: forgotten already
        entries = [self.entry(item) for item in items
                   if (base.sequence if base is not None else 0) < item.sequence and (not mine or item.sequence < mine[0])]
        return sorted(filter(None, entries), key=lambda entry: -entry.sequence)

    def entry(self, item: Checkpoint) -> Optional[Entry]:
        """None: it was forgotten meanwhile."""
        try:
            return self._entry(item)
        except NotFoundError:
            return None

    def _entry(self, item: Checkpoint) -> Entry:
        """No files: it was not made by paths."""
        with self._lock:
            key = item.term, item.step
            if key not in self._entries:
                op = self._restore(item.step, item.term, [], [(INDEX_BLOB, BYTES, b"", SHARDED, None)])
                try:
                    root = tree.decode(op.blob(INDEX_BLOB))
                except NotFoundError:
                    root = {"version": VERSION, "files": {}}
                if not isinstance(root, dict) or root.get("version") != VERSION or not isinstance(root.get("files"), dict):
                    raise FormatError.of(f"{self._run_url}: step {item.step} has a list of files in an unknown form; install a newer Cairn")
                if len(self._entries) >= 1000:
                    self._entries.clear()
                self._entries[key] = Entry(*key, root["files"], root.get("name", f"step-{item.step}"), item.sequence)
            return self._entries[key]

    def forget(self, term: int, step: int) -> None:
        """Through retention's guard. What that keeps is hidden here, and tried again by ``sweep``."""
        with self._lock:
            self.hidden.add((term, step))
            try:
                self._live().forget(step, term=term, reason="removed by its path")
                self.hidden.discard((term, step))
            except DeniedError:
                pass

    def sweep(self, name: Optional[str] = None, keep: Optional[tuple] = None) -> None:
        """Forgets what was removed, and older checkpoints of this name (None: of any) than ``keep``, where the guard lets it."""
        tags = {tag_of(name, True), tag_of(name, False)} if name is not None else None
        old = [(item.term, item.step) for item in self.steps()
               if keep is not None and (item.term, item.step) < keep and (tags is None or _tag(item) in tags)]
        for key in [*self.hidden, *old]:
            self.forget(*key)

    def fetch(self, entry: Entry, paths: Any) -> dict:
        """path -> Content: whole files, read again from the server."""
        contents = {path: Content.of_size(entry.files[path]) for path in paths}
        if contents:
            with self._lock:
                self._restore(entry.step, entry.term, [_row(path, content) for path, content in contents.items()], [])
        return contents

    def read(self, step: int, term: int, wanted: list) -> list:
        """The bytes of (path, size, start, end) each, in one restore."""
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

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self.pid == os.getpid():
                client.close(1.0)


class Committer:
    """Commits trees of one run as one rank of one attempt, each step once.

    The attempt descends from what is newest in the run when it comes: a path does not say what was resumed.
    """

    def __init__(self, run_url: str, options: dict, token: Optional[str] = None, rank: int = 0,
                 order: tuple = (0,)) -> None:
        self._run_url, self.options = run_url, options
        self.token, self._rank, self.order = token or new_attempt(), rank, order
        self.done: set = set()  # steps
        self._term = 0
        self._client: Optional[Client] = None
        self._lock = threading.Lock()
        self.pid = os.getpid()

    def join(self) -> None:
        """Takes the attempt's place in the run: what older attempts save from now on is refused."""
        with self._lock:
            if self._client is None:
                self._client = Client(self._run_url, rank=self._rank, world_size=len(self.order), attempt=self.token,
                                      label="fs", **self.options)
                try:
                    self._client.restore(allow_older=True).result()
                except NotFoundError:
                    pass  # the first of the run

    def must_not_be_succeeded(self) -> None:
        """Before this process begins another attempt: FencedError where somebody else's came after this one."""
        with self._lock:
            newest = max((item.term for item in self._client.list()), default=0) if self._client is not None else 0
        if 0 < self._term < newest:
            raise FencedError.of(f"{self._run_url}: term {newest} has taken over the run from this process, which wrote term "
                                 f"{self._term}; stop, or write from a new process")

    def start(self, step: int, files: dict, index: Optional[dict], name: str = "") -> Any:
        """Begins the save; ``index`` of all ranks and the name: rank 0's. The operation; ``files`` must live until it is
        staged, which it is when this returns."""
        self.join()
        with self._lock:
            client = self._client
            client.set_tensors([_row(path, content) for path, content in files.items()])
            blobs, tags = [], []
            if index is not None:
                root = {"version": VERSION, "files": index, "name": name}
                blobs = [(INDEX_BLOB, TREE, tree.encode(root, "files"), SHARDED, None)]
                tags = [tag_of(name, "" in index)] if name else []
            client.set_blobs(blobs)
            note = tree.encode({"framework": "files"})
            return client.save(step, tags=tags, metadata=note)

    def finish(self, op: Any) -> Result:
        result = op.result()
        self.done.add(result.step)
        self._term = result.term
        return result

    def close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
            if client is not None and self.pid == os.getpid():
                try:
                    client.close(1.0)
                except CairnError:
                    pass  # whoever waited for that save has heard of it


def _tag(item: Checkpoint) -> Optional[str]:
    return next((tag for tag in item.tags or () if tag.startswith(_TAGS)), None)


def _row(path: str, content: Content) -> tuple:
    return (PREFIX + path, DTYPES["uint8"], (content.size,), content.address(), None, content, SHARDED, None, None, None)
