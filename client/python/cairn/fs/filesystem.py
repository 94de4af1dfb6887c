# SPDX-License-Identifier: Apache-2.0
"""CairnFileSystem: a run of Cairn as a tree of files, for fsspec and whatever takes its URLs.

A folder whose name holds a step is a checkpoint of kind files. What is written into it stays in this process, in memory,
until a marker is closed or renamed into place (``.metadata``, ``seal``, the end of a transaction and others) or the process
ends; then it is committed as a whole, and closing the marker waits for that. Before, only the process that writes sees it.
A file that stands where the folder would (``epoch=3-step=500.ckpt``) is a checkpoint by itself, and so is, in a run of
their own, all that lies in no such folder (``last.ckpt``). Writing what is committed begins its next version.
"""

from __future__ import annotations

import asyncio
import contextvars
import errno
import io
import os
from typing import Any, Iterable, Optional

from fsspec.asyn import AsyncFileSystem
from fsspec.spec import AbstractBufferedFile

from ..errors import CairnError, UnsupportedError
from .commits import of_this_process, readers, run_of
from .files import WriteFile, WriteTree
from .paths import Place, place_of, place_to_read, strip
from .ranks import meeting_of
from .remote import Entry, Reader

MARKERS = frozenset((".metadata", "model.safetensors.index.json", "trainer_state.json"))
_LATE = "meta.pt"  # Lightning's, written behind DCP's .metadata

_bulk: contextvars.ContextVar = contextvars.ContextVar("cairn_fs_bulk", default=None)  # trees to commit at a call's end


class ReadFile(AbstractBufferedFile):
    """A committed file, read by ranges, always of the same (term, step)."""

    def __init__(self, fs: "CairnFileSystem", path: str, place: Place, entry: Entry, **kwargs: Any) -> None:
        self._place, self._entry = place, entry
        super().__init__(fs, path, "rb", size=entry.files[place.inner], **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        inner, size = self._place.inner, self._entry.files[self._place.inner]
        return self.fs._reader(self._place.run_url).read(self._entry.step, self._entry.term,
                                                         [(inner, size, start, min(end, size))])[0]


class _Text(io.TextIOWrapper):
    """Text over a WriteFile, which hears of the exception that ends the ``with`` block."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and isinstance(self.buffer, io.BufferedWriter):
            self.buffer.raw._discard = True
        super().__exit__(kind, error, trace)


class CairnFileSystem(AsyncFileSystem):
    """Runs of Cairn as an fsspec file system, for URLs that begin with ``cairn://`` or ``cairn+unix://``.

    Errors are FileNotFoundError and the like where Python's files have them, else CairnError by name.

    Args:
        *args: As for fsspec.AsyncFileSystem.
        markers: Names of files that commit a folder, beside the two that always do.
        asynchronous: As for fsspec.AsyncFileSystem.
        loop: As for fsspec.AsyncFileSystem.
        batch_size: As for fsspec.AsyncFileSystem.
        skip_instance_cache: As for fsspec.AsyncFileSystem.
        use_listings_cache: As for fsspec.AsyncFileSystem.
        **options: As for cairn.Client (``ca_file``, ``io_deadline``, ``save_deadline`` and others).
    """

    protocol = ("cairn", "cairn+unix")
    root_marker = ""
    cachable = True

    def __init__(self, *args: Any, markers: Iterable = (), asynchronous: bool = False, loop: Any = None,
                 batch_size: Optional[int] = None, skip_instance_cache: bool = False, use_listings_cache: bool = False,
                 **options: Any) -> None:
        super().__init__(*args, asynchronous=asynchronous, loop=loop, batch_size=batch_size)
        self._markers, self._options = MARKERS | frozenset(markers), options

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return strip(os.fspath(path))

    def unstrip_protocol(self, name: str) -> str:
        return "cairn://" + strip(name)

    # --- where things are -----------------------------------------------------------------------------

    def _reader(self, run_url: str) -> Reader:
        key = (run_url, tuple(sorted(self._options.items())))
        return of_this_process(readers, key, lambda: Reader(run_url, self._options))

    def _tree(self, place: Place) -> Optional[WriteTree]:
        """The tree that this process is writing at the place. While another rank seals it, this waits for the end: the
        sealer may know that all is committed, and go on, before this process does."""
        while True:
            tree = run_of(place.run_url).trees.get(place.name or place.inner)
            if tree is None or not tree.is_sealed_elsewhere:
                return tree
            tree.ended.wait()

    def _tree_to_write(self, place: Place) -> WriteTree:
        run = run_of(place.run_url)
        self._tree(place)  # for the end of an earlier one

        def make() -> WriteTree:
            tree = WriteTree(f"cairn://{place.root}/{place.name or place.inner}")
            tree.commit = lambda: self._commit(place, tree)
            if not place.is_loose:
                tree.base = self._reader(place.run_url).find(place.name, place.step)
                tree.meeting = meeting_of(place.run_url, place.name)
            if tree.meeting is not None:
                tree.meeting.watch(tree.seal_elsewhere,
                                   lambda deal, why="": run.commit_share(place, tree, self._options, deal, why))
            return tree

        return run.tree(place.name or place.inner, make)

    def _look(self, place: Place) -> tuple:
        """(tree, entry, path -> size or None) of the checkpoint at a place: what is being written here, else what is
        committed, the base of the tree."""
        tree, reader = self._tree(place), self._reader(place.run_url)
        if place.is_loose:
            return tree, *self._loose(place.run_url)
        if tree is not None:
            return tree, tree.base, tree.listing()
        entry = reader.find(place.name, place.step) if place.step is not None else None
        return None, entry, entry.files if entry is not None else None

    def _loose(self, loose_url: str) -> tuple:
        """(entry, path -> size) of the loose files of a run."""
        entry = self._reader(loose_url).newest()
        files = dict(entry.files) if entry is not None else {}
        for item in list(run_of(loose_url).trees.values()):
            files.update(item.sizes())
        return entry, files

    # --- looking --------------------------------------------------------------------------------------

    def _info_now(self, path: str) -> dict:
        place = place_to_read(path)
        folder = {"name": place.path, "size": 0, "type": "directory"}
        if not place.below:
            return folder
        files = self._look(place)[2]
        if place.inner in (files or {}):
            return {"name": place.path, "size": files[place.inner], "type": "file"}
        head = place.inner + "/" if place.inner else ""
        if files is not None and (any(name.startswith(head) for name in files) if head else True):
            return folder
        if self._is_made(place) or (place.is_loose and self._names_below(place)):
            return folder
        raise FileNotFoundError(f"cairn://{place.path}")

    def _is_made(self, place: Place) -> bool:
        """By mkdir."""
        return any(folder == place.below or folder.startswith(place.below + "/") for folder in run_of(place.main_url).folders)

    def _names_below(self, place: Place) -> dict:
        """The rest of each checkpoint's name -> what is committed there, or None of what is being written, of the run or a
        folder above checkpoints."""
        head = place.inner + "/" if place.inner else ""
        names: dict = dict.fromkeys(run_of(place.main_url).trees)
        names.update(self._reader(place.main_url).names())
        return {name[len(head):]: item for name, item in names.items() if name.startswith(head)}

    def _ls_now(self, path: str) -> list:
        place = place_to_read(path)
        info = self._info_now(path)
        if info["type"] == "file":
            return [info]
        found: dict = {}
        files = (self._look(place)[2] or {}) if place.below else self._loose(place.loose_url)[1]
        head = place.inner + "/" if place.inner else ""
        for name, size in files.items():
            if name.startswith(head) and name:
                first, slash, _ = name[len(head):].partition("/")
                found[first] = {"name": f"{info['name']}/{first}", "size": 0 if slash else size,
                                "type": "directory" if slash else "file"}
        if place.step is None:
            for name, item in self._names_below(place).items():
                first, slash, _ = name.partition("/")
                row = {} if slash else self._row(place.main_url, item, head + name)
                found[first] = {"size": 0, "type": "directory", **row, "name": f"{info['name']}/{first}"}
        within = place.below + "/" if place.below else ""
        for folder in run_of(place.main_url).folders:
            if folder.startswith(within):
                first = folder[len(within):].partition("/")[0]
                found.setdefault(first, {"name": f"{info['name']}/{first}", "size": 0, "type": "directory"})
        return [found[name] for name in sorted(found)]

    def _row(self, run_url: str, item: Any, name: str) -> dict:
        """What ``ls`` says of a checkpoint."""
        if item is None:
            files = run_of(run_url).trees[name].listing()
            return {"size": files[""], "type": "file"} if "" in files else {}
        row = {"term": item.term, "step": item.step, "created": item.commit_time, "bytes": item.plain_bytes}
        if any(tag.startswith("file") for tag in item.tags or ()):
            entry = self._reader(run_url).entry(item)
            row.update({"size": entry.files.get("", 0) if entry is not None else 0, "type": "file"})
        return row

    async def _info(self, path: str, **_: Any) -> dict:
        return await asyncio.to_thread(self._info_now, self._strip_protocol(path))

    async def _exists(self, path: str, **_: Any) -> bool:
        """An error of the server's is raised: it says nothing about the file."""
        try:
            await self._info(path)
            return True
        except FileNotFoundError:
            return False

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list:
        rows = await asyncio.to_thread(self._ls_now, self._strip_protocol(path))
        return rows if detail else [row["name"] for row in rows]

    # --- reading --------------------------------------------------------------------------------------

    def _cat_now(self, wanted: list) -> list:
        """Bytes or exceptions of (path, start, end); one restore for each checkpoint."""
        results: list = [None] * len(wanted)
        groups: dict = {}
        for idx, (path, start, end) in enumerate(wanted):
            try:
                place = place_to_read(path)
            except FileNotFoundError as error:
                results[idx] = error
                continue
            key = place.inner if place.is_loose else ""
            groups.setdefault((place.run_url, place.name, key), (place, []))[1].append((idx, place.inner, start, end))
        for place, items in groups.values():
            tree, entry, files = self._look(place)
            reads: list = []
            for idx, inner, start, end in items:
                if inner not in (files or {}):
                    results[idx] = FileNotFoundError(f"cairn://{wanted[idx][0]}")
                    continue
                a, b = _clip(start, end, files[inner])
                if tree is not None and inner in tree.files:
                    results[idx] = tree.files[inner].read(a, b)
                else:
                    reads.append((idx, (inner, files[inner], a, b)))
            if reads:
                try:
                    data = self._reader(place.run_url).read(entry.step, entry.term, [read for _, read in reads])
                except CairnError as error:
                    data = [error] * len(reads)
                for (idx, _), part in zip(reads, data):
                    results[idx] = part
        return results

    async def _cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any) -> bytes:
        result, = await asyncio.to_thread(self._cat_now, [(self._strip_protocol(path), start, end)])
        if isinstance(result, Exception):
            raise result
        return result

    async def _cat_ranges(self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, batch_size: Any = None,
                          on_error: str = "return", **_: Any) -> list:
        paths = [paths] if isinstance(paths, str) else paths
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        results = await asyncio.to_thread(self._cat_now, list(zip(self._strip_protocol(list(paths)), starts, ends)))
        for result in results:
            if isinstance(result, Exception) and on_error != "return":
                raise result
        return results

    async def _get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        await asyncio.to_thread(self._get_now, self._strip_protocol(rpath), lpath)

    def _get_now(self, path: str, lpath: Any) -> None:
        if self._info_now(path)["type"] == "directory":
            os.makedirs(lpath, exist_ok=True)
            return
        if os.path.dirname(lpath):
            os.makedirs(os.path.dirname(lpath), exist_ok=True)
        with self._open(path, "rb", block_size=16 << 20) as source, open(lpath, "wb") as target:
            while data := source.read(16 << 20):
                target.write(data)

    # --- writing --------------------------------------------------------------------------------------

    def open(self, path: str, mode: str = "rb", block_size: Any = None, cache_options: Any = None,
             compression: Any = None, **kwargs: Any) -> Any:
        if "b" not in mode and compression is None and set(mode) & set("wx"):
            text = {key: kwargs.pop(key) for key in ("encoding", "errors", "newline") if key in kwargs}
            return _Text(io.BufferedWriter(self._create(path, mode.replace("t", "") + "b")), **text)
        return super().open(path, mode, block_size=block_size, cache_options=cache_options, compression=compression,
                            **kwargs)

    def _create(self, path: str, mode: str = "wb") -> WriteFile:
        """As ``open`` does."""
        file = self._open(self._strip_protocol(path), mode, autocommit=not self._intrans)
        if self._intrans:
            self.transaction.files.append(file)
        return file

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **kwargs: Any) -> Any:
        place = place_to_read(path) if mode == "rb" else place_of(path)
        if not place.below:
            raise IsADirectoryError(f"cairn://{path}")
        if mode in ("wb", "xb", "w+b", "wb+"):
            if mode == "xb" and place.is_loose and place.inner in self._look(place)[2]:
                raise FileExistsError(f"cairn://{path} is already there")
            tree = self._tree_to_write(place)
            file = tree.open(place.inner, mode == "xb", lambda file, keep: self._closed(place, tree, file, keep))
            if not autocommit:
                file.on_end = lambda commits: self._end_of_transaction(place, tree, commits)
            return file
        if mode != "rb":
            raise UnsupportedError.of(f"cairn://{path}: mode {mode!r}; files can only be read (rb) or written as new files (wb, xb)")
        tree, entry, files = self._look(place)
        if place.inner not in (files or {}):
            raise FileNotFoundError(f"cairn://{path}")
        if tree is not None and place.inner in tree.files:
            return tree.files[place.inner].reader()
        return ReadFile(self, path, place, entry, block_size=block_size or "default", cache_options=cache_options)

    def _closed(self, place: Place, tree: WriteTree, file: WriteFile, keep: bool) -> None:
        tree.closed(file, keep)
        if keep and self._is_marker(place, tree) and file.on_end is None:
            self._commit_at_the_end(place, tree)
        elif not keep:
            self._forget_if_empty(place, tree)

    def _is_marker(self, place: Place, tree: WriteTree) -> bool:
        return (place.is_loose or not place.inner or place.inner in self._markers
                or (place.inner == _LATE and ".metadata" in tree.carried(())))

    def _forget_if_empty(self, place: Place, tree: WriteTree) -> None:
        if not tree.files and not tree.writing and not tree.removed:
            run_of(place.run_url).forget(tree)

    def _end_of_transaction(self, place: Place, tree: WriteTree, commits: bool) -> None:
        """All folders of it are complete, and are committed by the first of their files."""
        if tree.state != "open":
            return
        if commits:
            self._commit(place, tree)
        else:
            tree.remove(place.inner)
            tree.removed.discard(place.inner)
            self._forget_if_empty(place, tree)

    def _commit(self, place: Place, tree: WriteTree) -> None:
        run, reader = run_of(place.run_url), self._reader(place.run_url)
        if not place.is_loose:
            run.commit(place, tree, reader, self._options)
            return
        tree.start_sealing()
        try:
            run.commit_loose(tree.files, reader, self._options)
        finally:
            run.drop(tree)

    def _commit_at_the_end(self, place: Place, tree: WriteTree) -> None:
        """Of a call that writes many files; else now."""
        bulk = _bulk.get()
        if bulk is None:
            self._commit(place, tree)
        else:
            bulk.append((place, tree))

    async def _many(self, call: Any) -> Any:
        """Awaits a call that writes many files; then commits the folders whose markers were among them."""
        trees: list = []
        token = _bulk.set(trees)
        try:
            result = await call
        finally:
            _bulk.reset(token)
            for place, tree in trees:
                if tree.state == "open":
                    await asyncio.to_thread(self._commit, place, tree)
        return result

    async def _put(self, *args: Any, **kwargs: Any) -> Any:
        return await self._many(super()._put(*args, **kwargs))

    async def _pipe(self, *args: Any, **kwargs: Any) -> Any:
        return await self._many(super()._pipe(*args, **kwargs))

    async def _copy(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """The URL of a Unix socket has a question mark, which fsspec takes for a pattern."""
        await self._many(super()._copy(_bare(path1), _bare(path2), **kwargs))

    def seal(self, path: str) -> None:
        """Commits what was written into a folder, and returns when it is durable.

        Args:
            path: The folder.

        Raises:
            FileNotFoundError: Nothing was written there.
        """
        place = place_of(path)
        tree = self._tree(place)
        if tree is None:
            raise FileNotFoundError(f"cairn://{strip(path)}: nothing is being written there")
        self._commit(place, tree)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **_: Any) -> None:
        """A marker that gets its name commits, and so does a folder that is renamed."""
        old, new = place_of(path1), place_of(path2)
        run, tree = run_of(old.run_url), self._tree(old)
        same = (old.run_url, old.name) == (new.run_url, new.name) and not old.is_loose
        if same and tree is not None and tree.rename(old.inner, new.inner):
            if self._is_marker(new, tree):
                self._commit(new, tree)
        elif old.path != new.path:
            self.copy(path1, path2, recursive=recursive or not old.inner)
            if new.step is not None and not new.inner and (made := self._tree(new)) is not None:
                self._commit(new, made)
            self._rm_now(path1, True)

    def _rm_now(self, path: str, recursive: bool) -> None:
        """What is committed is forgotten, through retention's guard; of a folder that goes on there is a version without it."""
        place = place_of(path)
        if not place.below:
            raise UnsupportedError.of(f"cairn://{place.path}: a run cannot be removed by its path; use `cairn rm`")
        info = self._info_now(path)  # FileNotFoundError where there is nothing
        folders = run_of(place.main_url).folders
        folders -= {folder for folder in folders if folder == place.below or folder.startswith(place.below + "/")}
        tree, entry, files = self._look(place)
        gone = [name for name in files or {} if name == place.inner or name.startswith(place.inner + "/") or not place.inner]
        if place.is_loose:
            if gone:
                run_of(place.run_url).commit_loose(dict.fromkeys(gone), self._reader(place.run_url), self._options)
            for name in self._names_below(place) if info["type"] == "directory" else ():
                self._rm_now(f"{place.path}/{name}", True)
        elif tree is not None:
            with tree.lock:  # between the two nobody begins to commit it
                tree.must_be_idle()
                for name in gone:
                    tree.remove(name)
                if not place.inner:
                    tree.close()
            if not place.inner:
                run_of(place.run_url).forget(tree)
        if entry is not None and not place.is_loose and not place.inner:
            self._reader(place.run_url).forget(entry.term, entry.step)
        elif entry is not None and not place.is_loose and tree is None and gone:
            if len(gone) == len(entry.files):
                self._reader(place.run_url).forget(entry.term, entry.step)
                return
            tree = self._tree_to_write(place)
            for name in gone:
                tree.remove(name)
            self._commit(place, tree)

    async def _rm_file(self, path: str, **_: Any) -> None:
        await asyncio.to_thread(self._rm_now, self._strip_protocol(path), False)

    async def _rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        for item in [path] if isinstance(path, str) else path:
            await asyncio.to_thread(self._rm_now, self._strip_protocol(item), recursive)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._mkdir(path)

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """A folder without files is remembered until this process ends."""
        place = place_of(path)
        if place.below:
            run_of(place.main_url).folders.add(place.below)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        def write() -> None:
            with self._create(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
        await asyncio.to_thread(write)

    async def _put_file(self, lpath: Any, rpath: str, callback: Any = None, **_: Any) -> None:
        def write() -> None:
            if os.path.isdir(lpath):
                return
            with open(lpath, "rb") as source, self._create(rpath) as file:
                while data := source.read(16 << 20):
                    file.write(data)
        if os.path.isdir(lpath):
            await self._mkdir(self._strip_protocol(rpath))
        await asyncio.to_thread(write)

    def rmdir(self, path: str) -> None:
        """Of an empty folder. OSError: it holds something."""
        place = place_of(path)
        if self._info_now(path)["type"] != "directory":
            raise NotADirectoryError(f"cairn://{strip(path)}")
        if self._ls_now(path):
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), f"cairn://{strip(path)}")
        run_of(place.main_url).folders.discard(place.below)

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        if (await self._info(path1))["type"] == "directory":
            await self._mkdir(self._strip_protocol(path2))
        else:
            await self._pipe_file(path2, await self._cat_file(path1))


def _bare(path: Any) -> Any:
    """A path, or a list of them, without the scheme; a slash at its end is kept, since it means a folder."""
    if isinstance(path, list):
        return [_bare(item) for item in path]
    text = os.fspath(path)
    return strip(text) + ("/" if text.endswith("/") else "")


def _clip(start: Optional[int], end: Optional[int], size: int) -> tuple:
    start = 0 if start is None else start + size if start < 0 else start
    end = size if end is None else end + size if end < 0 else end
    start = max(0, min(start, size))
    return start, max(start, min(end, size))


def seal(url: str, **options: Any) -> None:
    """Commits a folder: it is a checkpoint when this returns.

    Args:
        url: The folder, such as ``cairn://host:7421/project/run/step-100``.
        **options: Options of CairnFileSystem.

    Raises:
        CairnError: Nothing of the folder was kept.
    """
    CairnFileSystem(**options).seal(url)
