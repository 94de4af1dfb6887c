# SPDX-License-Identifier: Apache-2.0
"""CairnFileSystem: a run of Cairn as a tree of files, for fsspec and whatever takes its URLs.

A folder ``step-100`` is a checkpoint of kind files. What is written into it stays in this process, in memory, until a
marker is closed or renamed into place (``.metadata``, ``model.safetensors.index.json``, or ``seal``); then it is
committed as a whole, and closing the marker waits for that. Before, only the process that writes sees it; afterwards
nothing of it changes. A file that stands where the folder would (``epoch=3-step=500.ckpt``) is a checkpoint by itself, and
so is a file without a step (``last.ckpt``), in a run of its own.
"""

from __future__ import annotations

import asyncio
import contextvars
import datetime
import errno
import io
import os
from typing import Any, Iterable, Optional

from fsspec.asyn import AsyncFileSystem, sync

from ..doors import settle
from ..errors import InvalidError, UnsupportedError
from ..names import warn_of_local_folder
from . import process, reading, unnumbered
from .files import WriteFile, WriteTree
from .paths import Place, place_of, place_to_read, strip
from .remote import Reader, check_names
from .runs import Runs

MARKERS = frozenset((".metadata", "model.safetensors.index.json"))

_bulk: contextvars.ContextVar = contextvars.ContextVar("cairn_fs_bulk", default=None)  # (place, tree) to commit at a call's end


class _Text(io.TextIOWrapper):
    """Text over a WriteFile, which hears of the exception that ends the ``with`` block."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and isinstance(self.buffer, io.BufferedWriter):
            self.buffer.raw.tear()
        super().__exit__(kind, error, trace)


class CairnFileSystem(AsyncFileSystem):
    """Runs of Cairn as an fsspec file system, for URLs that begin with ``cairn://`` or ``cairn+unix://``.

    Errors are FileNotFoundError and the like where Python's files have them, else CairnError by name. Committed files
    cannot be written or renamed, and a checkpoint is removed as a whole, as ``cairn forget`` does it.

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
        for name in ("fo", "target_protocol", "target_options"):  # of fsspec's chains: what it takes `cairn::` for
            options.pop(name, None)
        self._markers, self._runs = MARKERS | frozenset(markers), Runs(options)
        warn_of_local_folder()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return strip(os.fspath(path))

    def unstrip_protocol(self, name: str) -> str:
        return "cairn://" + strip(name)

    # --- looking --------------------------------------------------------------------------------------

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list:
        """As fsspec's. The names alone of files without a step come as ``cairn::`` URLs: Lightning looks for ``last.ckpt`` by what
        os.path.normpath leaves of a listed name, and would take it for a path on its own disk."""
        rows = sync(self.loop, self._ls, path, **kwargs)
        if detail:
            return rows
        return [f"cairn::{row['name']}" if place_to_read(row["name"]).may_be_unnumbered and row["type"] == "file" else row["name"]
                for row in rows]

    def modified(self, path: str) -> datetime.datetime:
        """Returns when the version of the checkpoint at the path was committed; the present time if it is not committed yet."""
        return reading.modified(self._runs, path)

    async def _info(self, path: str, **_: Any) -> dict:
        return await asyncio.to_thread(reading.info, self._runs, self._strip_protocol(path))

    async def _is(self, kind: str, path: str) -> bool:
        """Returns whether the path is of a kind. fsspec's own look takes an error, such as a server that is away, for "no"."""
        try:
            return (await self._info(path))["type"] == kind
        except FileNotFoundError:
            return False

    async def _isfile(self, path: str) -> bool:
        return await self._is("file", path)

    async def _isdir(self, path: str) -> bool:
        return await self._is("directory", path)

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list:
        rows = await asyncio.to_thread(reading.list_folder, self._runs, self._strip_protocol(path))
        return rows if detail else [row["name"] for row in rows]

    def steps(self, url: str) -> list:
        """Returns (step, folder) of each committed checkpoint of a run, newest first. Waits for the saves of this process into it."""
        place = place_to_read(url)
        settle(place.run_url)
        return [(item.step, Reader.folder(item)) for item in self._runs.reader(place).steps()]

    def forget_older(self, url: str, keep: int) -> None:
        """Forgets the committed checkpoints of a run but for the newest ``keep``, through retention's guard."""
        reader = self._runs.reader(place_to_read(url))
        for item in reader.steps()[keep:]:
            reader.remove(item.step, item.term)

    @staticmethod
    def is_checkpoint(path: str) -> bool:
        """Returns whether a path names a checkpoint as a whole, be it there or not."""
        place = place_to_read(path)
        return place.step is not None and not place.inner

    def is_taken(self, path: str) -> bool:
        """Returns whether a checkpoint is committed, or was begun here under just this name: what is being written as tmp_step-5 is
        listed as step-5 as well, and does not count."""
        return reading.is_taken(self._runs, path)

    def wait_for_ranks(self, path: str) -> None:
        """Called by a rank that has written its files of a checkpoint which another rank commits. Returns when all is durable.

        Args:
            path: The folder of the checkpoint.

        Raises:
            MissingRanksError: No other rank has begun the commit.
            InvalidError: It was not committed; stderr says why.
        """
        self._runs.wait_for_ranks(place_to_read(path))

    # --- reading --------------------------------------------------------------------------------------

    async def _cat_file(self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any) -> bytes:
        result, = await asyncio.to_thread(reading.cat, self._runs, [(self._strip_protocol(path), start, end)])
        if isinstance(result, Exception):
            raise result
        return result

    async def _cat_ranges(self, paths: Any, starts: Any, ends: Any, max_gap: Any = None, batch_size: Any = None,
                          on_error: str = "return", **_: Any) -> list:
        paths = [paths] if isinstance(paths, str) else paths
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        results = await asyncio.to_thread(reading.cat, self._runs, list(zip(self._strip_protocol(list(paths)), starts, ends)))
        for result in results:
            if isinstance(result, Exception) and on_error != "return":
                raise result
        return results

    async def _get_file(self, rpath: str, lpath: Any, **_: Any) -> None:
        await asyncio.to_thread(self._get_now, self._strip_protocol(rpath), lpath)

    def _get_now(self, path: str, lpath: Any) -> None:
        if reading.info(self._runs, path)["type"] == "directory":
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
        if "b" not in mode and compression is None and set(mode) & set("wxa"):
            text = {key: kwargs.pop(key) for key in ("encoding", "errors", "newline") if key in kwargs}
            file = self._open(self._strip_protocol(path), mode.replace("t", "") + "b", autocommit=not self._intrans)
            if self._intrans:
                self.transaction.files.append(file)
            return _Text(io.BufferedWriter(file), **text)
        return super().open(path, mode, block_size=block_size, cache_options=cache_options, compression=compression,
                            **kwargs)

    def _open(self, path: str, mode: str = "rb", block_size: Any = None, autocommit: bool = True,
              cache_options: Any = None, **kwargs: Any) -> Any:
        if mode in ("wb", "xb", "w+b", "wb+"):
            return self._open_to_write(path, mode == "xb", autocommit)
        if mode == "ab":
            return self._open_to_append(path, autocommit)
        if mode != "rb":
            raise UnsupportedError.of(f"cairn://{path}: mode {mode!r}; files can only be read (rb), written as new files (wb, xb) "
                                      "or appended to (ab)")
        return reading.open_file(self, self._runs, path, block_size=block_size or "default", cache_options=cache_options)

    def _open_to_write(self, path: str, exclusive: bool, autocommit: bool) -> WriteFile:
        check_names(place_to_read(path))
        place = self._runs.place(path)  # of the file that is there already
        if exclusive and place.step is not None and place.inner in (self._runs.listing(place) or ((), {}))[1]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"cairn://{path}")
        if place.names_url or place.may_be_unnumbered:
            place = place_to_read(path)
            if reading.list_run(self._runs, place):
                raise InvalidError.of(f"cairn://{place.path} is a folder that holds checkpoints; give the file another name")
            place = unnumbered.to_write(self._runs, place)
        elif place_of(path).step is None:
            raise IsADirectoryError(f"cairn://{path}")
        tree = self._runs.tree_to_write(place)
        return tree.open(place.inner, exclusive, lambda file, keep: self._closed(place, tree, file, keep), autocommit)

    def _open_to_append(self, path: str, autocommit: bool) -> WriteFile:
        """Opens a file that begins with its present content: one that is not committed yet,
        or one without a step, as TensorBoard writes it."""
        place = self._runs.place(path)
        listing = self._runs.listing(place) if place.step is not None else None
        if listing is not None and listing[0] is not None and not place.names_url:
            raise UnsupportedError.of(f"cairn://{path}: what is committed is not changed, so nothing can be appended to it")
        data = b""
        if listing is not None and place.inner in listing[1]:
            data, = reading.cat(self._runs, [(path, None, None)])
            if isinstance(data, Exception):
                raise data
        file = self._open_to_write(path, False, autocommit)
        file.write(data)
        return file

    def _closed(self, place: Place, tree: WriteTree, file: WriteFile, keep: bool) -> None:
        tree.closed(file, keep)
        bulk = _bulk.get()
        if keep and place.inner and self._is_marker(place) and bulk is not None:
            bulk.append((place, tree))
        elif keep and self._is_marker(place):
            self._runs.commit(place, tree)
        elif not keep and not tree.files and not tree.writing:
            self._runs.forget(place, tree)

    def _is_marker(self, place: Place) -> bool:
        return place.inner in self._markers or not place.inner

    def seal(self, path: str) -> None:
        """Commits what was written into a folder, and returns when it is durable.

        Args:
            path: The folder.

        Raises:
            FileNotFoundError: Nothing was written there.
        """
        place = place_of(path)
        tree = self._runs.tree(place)
        if tree is None:
            raise FileNotFoundError(f"cairn://{strip(path)}: nothing is being written there")
        self._runs.commit(place, tree)

    def mv(self, path1: str, path2: str, recursive: bool = False, maxdepth: Any = None, **_: Any) -> None:
        """Renames a file of a checkpoint that is being written. A marker that gets its name so commits the checkpoint; so does a folder
        that is renamed to another name of the same step."""
        old, new = place_to_read(path1), place_to_read(path2)
        if old.may_be_unnumbered and new.may_be_unnumbered:
            self.cp_file(path1, path2)
            if old != new:
                self.rm_file(path1)
            return
        old, new = place_of(path1), place_of(path2)
        check_names(new)
        tree = self._runs.tree(old)
        if (old.run_url, old.step) != (new.run_url, new.step):
            raise UnsupportedError.of(f"cannot move {old.name} to {new.name}: files cannot leave their checkpoint")
        if not old.inner and not new.inner:
            if tree is not None and old.name != new.name:
                self._runs.commit(new, tree)
            elif tree is None and old.name != new.name:
                if self._runs.listing(old) is None:
                    raise FileNotFoundError(f"cairn://{strip(path1)}")
                raise UnsupportedError.of(f"cairn://{strip(path1)}: a committed checkpoint cannot be renamed")
            return
        if tree is None:
            raise UnsupportedError.of(f"cairn://{strip(path1)}: a committed checkpoint cannot be renamed")
        tree.rename(old.inner, new.inner)
        if self._is_marker(new):
            self._runs.commit(new, tree)

    async def _rm_file(self, path: str, recursive: bool = False, **_: Any) -> None:
        place = await asyncio.to_thread(self._runs.place, path)
        tree = await asyncio.to_thread(self._runs.tree, place)
        if tree is not None and not place.inner:
            with tree.lock:  # between the two nobody begins to commit it
                tree.must_be_idle()
                tree.close()
            self._runs.forget(place, tree)
        elif tree is not None:
            with tree.lock:
                gone = [name for name in tree.files if name.startswith(place.inner + "/")]
                known = process.remove_folder(place.path) | tree.remove(place.inner) or gone
                for name in gone:
                    tree.remove(name)
                if known and "/" in place.inner:
                    process.make_folder(place.path.rpartition("/")[0])  # its folder stays, until it is removed itself
            if not known:
                raise FileNotFoundError(f"cairn://{path}")
        elif not process.remove_folder(place.path):
            await asyncio.to_thread(self._remove, path, place, recursive)

    def _remove(self, path: str, place: Place, recursive: bool) -> None:
        """Removes a committed checkpoint, as a whole."""
        is_folder = reading.info(self._runs, path)["type"] == "directory"  # FileNotFoundError where there is nothing
        if place.names_url:
            unnumbered.remove(self._runs, place)
            return
        if place.step is None or place.inner:
            raise UnsupportedError.of(f"cairn://{path}: only a whole checkpoint can be removed by its path; `cairn rm` removes a run")
        if is_folder and not recursive:
            raise IsADirectoryError(errno.EISDIR, "a folder goes with recursive=True only", f"cairn://{path}")
        listing = self._runs.listing(place)
        if listing is not None and not listing[1]:
            raise UnsupportedError.of(f"cairn://{path}: this checkpoint was not written by paths; use `cairn forget`")
        if listing is not None and listing[2] is None and place.name != f"step-{place.step}":
            raise FileNotFoundError(f"cairn://{path}: nobody knows what the checkpoint was called; it is step-{place.step}")
        if listing is not None:
            self._runs.reader(place).remove(place.step, listing[0])

    async def _rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        for item in [path] if isinstance(path, str) else path:
            await self._rm_file(self._strip_protocol(item), recursive)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._mkdir(path)

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """Makes a folder for this process alone: a checkpoint consists of files."""
        place = place_to_read(path)
        if place.name:
            process.make_folder(place.path)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        def write() -> None:
            with self._open(self._strip_protocol(path), "xb" if mode == "create" else "wb") as file:
                file.write(value)
        await asyncio.to_thread(write)

    async def _put_file(self, lpath: Any, rpath: str, callback: Any = None, mode: str = "overwrite", **_: Any) -> None:
        def write() -> None:
            if os.path.isdir(lpath):
                return
            with open(lpath, "rb") as source, self._open(self._strip_protocol(rpath), "xb" if mode == "create" else "wb") as file:
                while data := source.read(16 << 20):
                    file.write(data)
        await asyncio.to_thread(write)

    def rmdir(self, path: str) -> None:
        """Removes an empty folder of a checkpoint that is being written.

        Raises:
            OSError: It holds something.
            UnsupportedError: It is committed.
        """
        place = place_to_read(path)
        rows = reading.list_folder(self._runs, path)  # FileNotFoundError where there is nothing
        if self._runs.tree(place) is None and not process.is_made(place.path):
            raise UnsupportedError.of(f"cairn://{strip(path)}: a committed checkpoint cannot be removed by its path; use `cairn forget`")
        if rows:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), f"cairn://{strip(path)}")
        process.remove_folder(place.path)

    async def _with_markers_last(self, call: Any) -> None:
        """Awaits a call that writes many files at the same time, and then commits the folders whose markers were among them: a marker
        may be closed before other files are begun. If the call fails, none of them is committed."""
        token = _bulk.set([])
        try:
            await call
            pending = _bulk.get()
        finally:
            _bulk.reset(token)
        for place, tree in pending:
            await asyncio.to_thread(self._runs.commit, place, tree)

    async def _put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> None:
        await self._with_markers_last(super()._put(lpath, rpath, *args, **kwargs))

    async def _pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        await self._with_markers_last(super()._pipe(path, value, **kwargs))

    async def _copy(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """Copies without the schemes: the URL of a Unix socket has a question mark, which fsspec takes for a pattern."""
        await self._with_markers_last(super()._copy(_bare(path1), _bare(path2), **kwargs))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
        await self._pipe_file(path2, await self._cat_file(path1))


def _bare(path: Any) -> Any:
    """Returns a path, or a list of them, without the scheme. A slash at its end is kept, since it means a folder."""
    if isinstance(path, list):
        return [_bare(item) for item in path]
    text = os.fspath(path)
    return strip(text) + ("/" if text.endswith("/") else "")


def seal(url: str, **options: Any) -> None:
    """Commits a folder: it is a checkpoint when this returns.

    Args:
        url: The folder, such as ``cairn://host:7421/project/run/step-100``.
        **options: Options of CairnFileSystem.

    Raises:
        CairnError: Nothing of the folder was kept.
    """
    CairnFileSystem(**options).seal(url)
