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
import atexit
import contextlib
import contextvars
import datetime
import errno
import io
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
import time
from typing import Any, Iterable, Optional

from fsspec.asyn import AsyncFileSystem, sync
from fsspec.spec import AbstractBufferedFile

from .. import _cairn
from ..client import Result
from ..errors import CairnError, ExistsError, InvalidError, UnsupportedError
from ..names import warn_of_local_folder
from . import unnumbered
from .files import WriteFile, WriteTree
from .paths import Place, folder_of, joined, place_of, place_to_read, strip
from .ranks import Deal, end_watches, forget_tokens, meeting_of
from .remote import Committer, Reader

MARKERS = frozenset((".metadata", "model.safetensors.index.json"))

_lock = threading.Lock()
_trees: dict = {}  # (run URL, step) -> WriteTree; shared by all instances of a process
_committers: dict = {}
_readers: dict = {}
_done: dict = {}  # (process, run URL) -> steps that it committed
_made: set = set()  # paths of folders that mkdir has made in this process; a folder with files needs none
_bulk: contextvars.ContextVar = contextvars.ContextVar("cairn_fs_bulk", default=None)  # (place, tree) to commit at a call's end
_children: set = set()  # processes that multiprocessing has started, where _leave is registered


def _of_this_process(table: dict, key: Any, make: Any) -> Any:
    """The entry, made anew in a forked child."""
    with _lock:
        if key not in table or table[key].pid != os.getpid():
            table[key] = make()
        return table[key]


def _is_made(path: str) -> bool:
    """Whether mkdir has made the folder, or one below it, and nobody has removed it since."""
    return any(made == path or made.startswith(path + "/") for made in list(_made))


def _unmake(path: str) -> bool:
    """Forgets the folder and those below it. Returns whether mkdir had made one."""
    gone = {made for made in list(_made) if made == path or made.startswith(path + "/")}
    _made.difference_update(gone)
    return bool(gone)


class ReadFile(AbstractBufferedFile):
    """A committed file, read by ranges, always of the same (term, step)."""

    def __init__(self, fs: "CairnFileSystem", path: str, place: Place, term: int, size: int, **kwargs: Any) -> None:
        self._place, self._term, self._length = place, term, size
        super().__init__(fs, path, "rb", size=size, **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self._length)
        return self.fs._reader(self._place).read(self._place.step, self._term,
                                                 [(self._place.inner, self._length, start, end)])[0]


class _Text(io.TextIOWrapper):
    """Text over a WriteFile, which hears of the exception that ends the ``with`` block."""

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is not None and isinstance(self.buffer, io.BufferedWriter):
            self.buffer.raw._discard = True
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
        self._markers, self._options = MARKERS | frozenset(markers), options
        warn_of_local_folder()

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(item) for item in path]
        return strip(os.fspath(path))

    def unstrip_protocol(self, name: str) -> str:
        return "cairn://" + strip(name)

    # --- where things are -----------------------------------------------------------------------------

    def _reader(self, place: Place) -> Reader:
        key = (place.run_url, tuple(sorted(self._options.items())))
        return _of_this_process(_readers, key, lambda: Reader(place.run_url, self._options))

    def _committer(self, place: Place, deal: Optional[Deal]) -> Committer:
        share = (deal.token, deal.rank, deal.world_size) if deal is not None else ()
        key = (place.run_url, share, tuple(sorted(self._options.items())))
        return _of_this_process(_committers, key, lambda: Committer(place.run_url, self._options, *share))

    def _place(self, path: str) -> Place:
        """What a path names, for somebody who reads."""
        return unnumbered.to_read(self, place_to_read(path))

    def _tree(self, place: Place) -> Optional[WriteTree]:
        """The tree that this process is writing at the place. While another rank seals it, this waits for the end: the
        sealer may know that all is committed, and go on, before this process does."""
        while True:
            with _lock:
                tree = _trees.get((place.run_url, place.step))
            if tree is None or tree.pid != os.getpid():
                return None
            if not tree.is_sealed_elsewhere:
                return tree
            tree.ended.wait()

    def _tree_to_write(self, place: Place) -> WriteTree:
        if self._tree(place) is None and place.step in _done.get((os.getpid(), place.run_url), ()):
            listing = self._listing(place)
            if listing is None or place.inner not in listing[1]:
                raise ExistsError.of(f"cairn://{place.root}/{place.name} was already committed by this process, so no file can be added "
                                     "to it; who writes one of its files again begins a newer version of the whole step")
            self._begin_again(place.run_url)
        with _lock:
            tree = _trees.get((place.run_url, place.step))
            if tree is None or tree.pid != os.getpid():
                _leave_with_the_child()
                tree = WriteTree(f"cairn://{place.root}/{place.name}")
                tree.meeting = meeting_of(place.run_url, place.step)
                _trees[place.run_url, place.step] = tree
                if tree.meeting is not None:
                    tree.meeting.watch(tree.seal_elsewhere, lambda deal, why="", is_raised=True: self._commit_share(place, tree, deal, why, is_raised))
            tree.names.add(place.name)
            return tree

    @staticmethod
    def _begin_again(run_url: str) -> None:
        """Called when this process overwrites a step that it has committed, as DCP does by default. An attempt saves a step once,
        so what is committed from now on belongs to a new attempt, and the step has a newer version."""
        with _lock:
            sealing = [tree for key, tree in _trees.items() if key[0] == run_url and tree.pid == os.getpid() and tree.state == "sealing"]
        for tree in sealing:
            tree.ended.wait()  # the new attempt would fence what the old one is committing
        with _lock:
            former = [_committers.pop(key) for key in list(_committers) if key[0] == run_url]
        for committer in former:
            committer.close()
        forget_tokens(run_url)

    def _listing(self, place: Place) -> Optional[tuple]:
        """(term or None, path -> size, name or None) of a checkpoint: what is being written here, else what is committed. None:
        there is nothing of that name, though the step may be there under another one."""
        tree = self._tree(place)
        if tree is not None:
            with tree.lock:
                if any(map(place.is_named, tree.names)):
                    return None, {inner: content.size for inner, content in tree.files.items()}, None
            return None
        return self._reader(place).find(place.step, place.is_named)

    # --- looking --------------------------------------------------------------------------------------

    def _info_now(self, path: str) -> dict:
        place = self._place(path)
        full = place.path
        if place.step is None:
            if not place.name or _is_made(full) or self._ls_run(place):
                return {"name": full, "size": 0, "type": "directory"}
            raise FileNotFoundError(place.unknown)
        listing = self._listing(place)
        if listing is None and not _is_made(full):
            raise FileNotFoundError(f"cairn://{full}")
        files = listing[1] if listing is not None else {}
        if place.inner in files:
            return {"name": full, "size": files[place.inner], "type": "file"}
        if not place.inner or any(name.startswith(place.inner + "/") for name in files) or _is_made(full):
            return {"name": full, "size": 0, "type": "directory"}
        raise FileNotFoundError(f"cairn://{full}")

    def _ls_now(self, path: str) -> list:
        place = self._place(path)
        if place.step is None:
            rows = self._ls_run(place) + (unnumbered.rows(self, place) if not place.name else [])
            if place.name and not rows and not _is_made(place.path):
                raise FileNotFoundError(place.unknown)
            return rows
        info = self._info_now(path)
        if info["type"] == "file":
            return [info]
        listing = self._listing(place)
        head = place.inner + "/" if place.inner else ""
        found: dict = {}
        for name, size in (listing[1] if listing else {}).items():
            if name.startswith(head) and name:
                first, slash, _ = name[len(head):].partition("/")
                found[first] = {"name": f"{info['name']}/{first}", "size": 0 if slash else size,
                                "type": "directory" if slash else "file"}
        for made in list(_made):
            if made.startswith(info["name"] + "/"):
                first = made[len(info["name"]) + 1:].partition("/")[0]
                found.setdefault(first, {"name": f"{info['name']}/{first}", "size": 0, "type": "directory"})
        return [found[name] for name in sorted(found)]

    def _ls_run(self, place: Place) -> list:
        """The folders of a run, or of a folder in it (``place.name``), and after them its checkpoints as step-N, whatever they were
        called when they were written; a name is only a way to say N."""
        head = place.name + "/" if place.name else ""
        steps: dict = {}
        folders: set = set()

        def take(step: int, folder: str, **known: Any) -> None:
            if folder == place.name:
                steps.setdefault(step, {"name": joined(place.path, f"step-{step}"), "size": 0, "type": "directory", **known})
            elif folder.startswith(head):
                folders.add(folder[len(head):].partition("/")[0])

        for item in self._reader(place).steps():
            take(item.step, Reader.folder(item), term=item.term, created=item.commit_time, bytes=item.plain_bytes)
        with _lock:
            mine = [(key[1], folder_of(name)) for key, tree in _trees.items() if key[0] == place.run_url and tree.pid == os.getpid()
                    for name in tree.names]
        for step, folder in mine:
            take(step, folder)
        for made in list(_made):
            if made.startswith(f"{place.path}/") and place_to_read(made).step is None:
                folders.add(made[len(place.path) + 1:].partition("/")[0])
        return [{"name": joined(place.path, name), "size": 0, "type": "directory"} for name in sorted(folders)] + [
            steps[step] for step in sorted(steps)]

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list:
        """As fsspec's. The names alone of files without a step come as ``cairn::`` URLs: Lightning looks for ``last.ckpt`` by what
        os.path.normpath leaves of a listed name, and would take it for a path on its own disk."""
        rows = sync(self.loop, self._ls, path, **kwargs)
        if detail:
            return rows
        return [f"cairn::{row['name']}" if place_to_read(row["name"]).may_be_unnumbered and row["type"] == "file" else row["name"]
                for row in rows]

    def modified(self, path: str) -> datetime.datetime:
        """When the version of the checkpoint at the path was committed; now, where it is not yet."""
        place = self._place(path)
        listing = self._listing(place) if place.step is not None else None
        if listing is None:
            raise FileNotFoundError(place.unknown)
        seconds = time.time() if listing[0] is None else self._reader(place).commit_time(place.step, listing[0])
        if seconds is None:  # it was forgotten in between
            raise FileNotFoundError(place.unknown)
        return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)

    async def _info(self, path: str, **_: Any) -> dict:
        return await asyncio.to_thread(self._info_now, self._strip_protocol(path))

    async def _ls(self, path: str, detail: bool = True, **_: Any) -> list:
        rows = await asyncio.to_thread(self._ls_now, self._strip_protocol(path))
        return rows if detail else [row["name"] for row in rows]

    def steps(self, url: str) -> list:
        """Returns (step, folder) of each committed checkpoint of a run, newest first."""
        return [(item.step, Reader.folder(item)) for item in self._reader(place_to_read(url)).steps()]

    def forget_older(self, url: str, keep: int) -> None:
        """Forgets the committed checkpoints of a run but for the newest ``keep``, through retention's guard."""
        reader = self._reader(place_to_read(url))
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
        place = place_to_read(path)
        tree = self._tree(place)
        return (tree is not None and place.name in tree.names) or self._reader(place).find(place.step, place.is_named) is not None

    def wait_for_ranks(self, path: str) -> None:
        """Called by a rank that has written its files of a checkpoint which another rank commits. Returns when all is durable.

        Args:
            path: The folder of the checkpoint.

        Raises:
            MissingRanksError: No other rank has begun the commit.
            InvalidError: It was not committed; stderr says why.
        """
        place = place_to_read(path)
        with _lock:
            tree = _trees.get((place.run_url, place.step))
        if tree is None or tree.pid != os.getpid() or tree.meeting is None or tree.meeting.rank == 0:
            return
        tree.meeting.await_seal()
        tree.ended.wait()
        if place.step not in _done.get((os.getpid(), place.run_url), ()):
            raise InvalidError.of(f"{tree.name} was not committed, as the rank that commits it says as well; stderr says why")

    # --- reading --------------------------------------------------------------------------------------

    def _cat_now(self, wanted: list) -> list:
        """Bytes or exceptions of (path, start, end); one restore for each checkpoint."""
        results: list = [None] * len(wanted)
        groups: dict = {}
        for idx, (path, start, end) in enumerate(wanted):
            place = self._place(path)
            groups.setdefault((place.run_url, place.step), (place, []))[1].append((idx, place.inner, start, end))
        for place, items in groups.values():
            tree, listing = self._tree(place), self._listing(place) if place.step is not None else None
            files, reads = (listing[1] if listing is not None else {}), []
            for idx, inner, start, end in items:
                if inner not in files:
                    results[idx] = FileNotFoundError(place.unknown)
                    continue
                a, b = _clip(start, end, files[inner])
                if tree is not None:
                    results[idx] = tree.files[inner].read(a, b)
                else:
                    reads.append((idx, (inner, files[inner], a, b)))
            if reads:
                try:
                    data = self._reader(place).read(place.step, listing[0], [read for _, read in reads])
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
            raise UnsupportedError.of(f"cairn://{path}: mode {mode!r}; files can only be read (rb), written as new files (wb, xb) or appended to (ab)")
        place = self._place(path)
        if place.step is None:
            self._info_now(path)  # FileNotFoundError where there is nothing
            raise IsADirectoryError(f"cairn://{path}")
        tree, listing = self._tree(place), self._listing(place)
        if listing is None or place.inner not in listing[1]:
            raise FileNotFoundError(f"cairn://{path}")
        if tree is not None:
            return tree.files[place.inner].reader()
        return ReadFile(self, path, place, listing[0], listing[1][place.inner], block_size=block_size or "default",
                        cache_options=cache_options)

    def _open_to_write(self, path: str, exclusive: bool, autocommit: bool) -> WriteFile:
        place = self._place(path)  # of what is there
        if exclusive and place.step is not None and place.inner in (self._listing(place) or ((), {}))[1]:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), f"cairn://{path}")
        if place.names_url or place.may_be_unnumbered:
            place = unnumbered.to_write(self, place_to_read(path))
        elif place_of(path).step is None:
            raise IsADirectoryError(f"cairn://{path}")
        tree = self._tree_to_write(place)
        return tree.open(place.inner, exclusive, lambda file, keep: self._closed(place, tree, file, keep), autocommit)

    def _open_to_append(self, path: str, autocommit: bool) -> WriteFile:
        """A file that begins with what is there: what is not committed yet, or a file without a step, as TensorBoard writes it."""
        place = self._place(path)
        listing = self._listing(place) if place.step is not None else None
        if listing is not None and listing[0] is not None and not place.names_url:
            raise UnsupportedError.of(f"cairn://{path}: what is committed is not changed, so nothing can be appended to it")
        data = b""
        if listing is not None and place.inner in listing[1]:
            data, = self._cat_now([(path, None, None)])
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
            self._commit(place, tree)
        elif not keep and not tree.files and not tree.writing:
            self._forget(place, tree)

    def _is_marker(self, place: Place) -> bool:
        return place.inner in self._markers or not place.inner

    def _forget(self, place: Place, tree: WriteTree) -> None:
        with _lock:
            if _trees.get((place.run_url, place.step)) is tree:
                del _trees[place.run_url, place.step]
        for name in tree.names:
            _unmake(f"{place.root}/{name}")
        if tree.meeting is not None:
            tree.meeting.leave()

    def _drop(self, place: Place, tree: WriteTree) -> None:
        try:
            self._forget(place, tree)
        finally:
            tree.close()

    def _commit(self, place: Place, tree: WriteTree) -> None:
        """All or nothing: after an error the files are gone, and may be written again."""
        tree.start_sealing()
        try:
            index = tree.sizes()
            deal = tree.meeting.seal(index) if tree.meeting is not None else None
            index = deal.index if deal is not None else index
            if "" in index and len(index) > 1:
                raise InvalidError.of(f"{tree.name} was written both as a file and as a folder")
            if place.names_url:
                unnumbered.note(self, place)
            committer = self._committer(place, deal)
            op = committer.start(place.step, tree.files, index, place.name)
            if deal is not None:
                tree.meeting.wait(op)
            self._committed(place, committer.finish(op))
        finally:
            self._drop(place, tree)

    def _commit_share(self, place: Place, tree: WriteTree, deal: Optional[Deal], why: str, is_raised: bool) -> None:
        """Commits this process's part of a tree that another rank seals, or drops it where ``deal`` is None. Nobody waits for
        this in this process, so stderr hears of a loss and its reason."""
        try:
            if deal is None:
                if tree.tell_lost(why) and not is_raised:
                    _cairn.fail_exit()
            else:
                committer = self._committer(place, deal)
                self._committed(place, committer.finish(committer.start(place.step, tree.files, None, place.name)))
        except CairnError as error:
            tree.tell_lost(str(error))
            raise
        finally:
            self._drop(place, tree)

    def _committed(self, place: Place, result: Result) -> None:
        with _lock:
            _done.setdefault((os.getpid(), place.run_url), set()).add(result.step)
        with contextlib.suppress(CairnError):  # the next commit tries again
            self._reader(place).settle()

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
        """Inside what is being written. A marker that gets its name commits; so does a folder that is renamed to another
        name of the same step."""
        if place_to_read(path1).may_be_unnumbered and place_to_read(path2).may_be_unnumbered:
            self.cp_file(path1, path2)
            self.rm_file(path1)
            return
        old, new = place_of(path1), place_of(path2)
        tree = self._tree(old)
        if (old.run_url, old.step) != (new.run_url, new.step):
            raise UnsupportedError.of(f"cannot move {old.name} to {new.name}: files cannot leave their checkpoint")
        if not old.inner and not new.inner:
            if tree is not None and old.name != new.name:
                self._commit(new, tree)
            elif tree is None and old.name != new.name:
                if self._listing(old) is None:
                    raise FileNotFoundError(f"cairn://{strip(path1)}")
                raise UnsupportedError.of(f"cairn://{strip(path1)}: a committed checkpoint cannot be renamed")
            return
        if tree is None:
            raise UnsupportedError.of(f"cairn://{strip(path1)}: a committed checkpoint cannot be renamed")
        tree.rename(old.inner, new.inner)
        if self._is_marker(new):
            self._commit(new, tree)

    async def _rm_file(self, path: str, recursive: bool = False, **_: Any) -> None:
        place = await asyncio.to_thread(self._place, path)
        tree = await asyncio.to_thread(self._tree, place)
        if tree is not None and not place.inner:
            with tree.lock:  # between the two nobody begins to commit it
                tree.must_be_idle()
                tree.close()
            self._forget(place, tree)
        elif tree is not None:
            with tree.lock:
                gone = [name for name in tree.files if name.startswith(place.inner + "/")]
                known = _unmake(place.path) | tree.remove(place.inner) or gone
                for name in gone:
                    tree.remove(name)
                if known and "/" in place.inner:
                    _made.add(place.path.rpartition("/")[0])  # its folder stays, until it is removed itself
            if not known:
                raise FileNotFoundError(f"cairn://{path}")
        elif not _unmake(place.path):
            await asyncio.to_thread(self._remove, path, place, recursive)

    def _remove(self, path: str, place: Place, recursive: bool) -> None:
        """A committed checkpoint, as a whole."""
        is_folder = self._info_now(path)["type"] == "directory"  # FileNotFoundError where there is nothing
        if place.names_url:
            unnumbered.remove(self, place)
            return
        if place.step is None or place.inner:
            raise UnsupportedError.of(f"cairn://{path}: only a whole checkpoint can be removed by its path; `cairn rm` removes a run")
        if is_folder and not recursive:
            raise IsADirectoryError(errno.EISDIR, "a folder goes with recursive=True only", f"cairn://{path}")
        listing = self._listing(place)
        if listing is not None and not listing[1]:
            raise UnsupportedError.of(f"cairn://{path}: this checkpoint was not written by paths; use `cairn forget`")
        if listing is not None and listing[2] is None and place.name != f"step-{place.step}":
            raise FileNotFoundError(f"cairn://{path}: nobody knows what the checkpoint was called; it is step-{place.step}")
        if listing is not None:
            self._reader(place).remove(place.step, listing[0])

    async def _rm(self, path: Any, recursive: bool = False, **_: Any) -> None:
        for item in [path] if isinstance(path, str) else path:
            await self._rm_file(self._strip_protocol(item), recursive)

    async def _makedirs(self, path: str, exist_ok: bool = False) -> None:
        await self._mkdir(path)

    async def _mkdir(self, path: str, create_parents: bool = True, **_: Any) -> None:
        """A folder without files is there for this process only: a checkpoint consists of files."""
        place = place_to_read(path)
        if place.name:
            _made.add(place.path)

    async def _pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **_: Any) -> None:
        def write() -> None:
            with self._open(self._strip_protocol(path), "xb" if mode == "create" else "wb") as file:
                file.write(value)
        await asyncio.to_thread(write)

    async def _put_file(self, lpath: Any, rpath: str, callback: Any = None, **_: Any) -> None:
        def write() -> None:
            if os.path.isdir(lpath):
                return
            with open(lpath, "rb") as source, self._open(self._strip_protocol(rpath), "wb") as file:
                while data := source.read(16 << 20):
                    file.write(data)
        await asyncio.to_thread(write)

    def rmdir(self, path: str) -> None:
        """Of an empty folder in what is being written. OSError: it holds something; UnsupportedError: it is committed."""
        place = place_to_read(path)
        rows = self._ls_now(path)  # FileNotFoundError where there is nothing
        if self._tree(place) is None and not _is_made(place.path):
            raise UnsupportedError.of(f"cairn://{strip(path)}: a committed checkpoint cannot be removed by its path; use `cairn forget`")
        if rows:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), f"cairn://{strip(path)}")
        _unmake(place.path)

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
            await asyncio.to_thread(self._commit, place, tree)

    async def _put(self, lpath: Any, rpath: Any, *args: Any, **kwargs: Any) -> None:
        await self._with_markers_last(super()._put(lpath, rpath, *args, **kwargs))

    async def _pipe(self, path: Any, value: Any = None, **kwargs: Any) -> None:
        await self._with_markers_last(super()._pipe(path, value, **kwargs))

    async def _copy(self, path1: Any, path2: Any, **kwargs: Any) -> None:
        """The URL of a Unix socket has a question mark, which fsspec takes for a pattern."""
        await self._with_markers_last(super()._copy(_bare(path1), _bare(path2), **kwargs))

    async def _cp_file(self, path1: str, path2: str, **_: Any) -> None:
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


@atexit.register
def _leave() -> None:
    """The end of the process. May be called twice."""
    end_watches()
    with _lock:
        lost = [_trees.pop(key) for key, tree in list(_trees.items()) if tree.pid == os.getpid()]
        ends = [item for table in (_committers, _readers) for item in table.values() if item.pid == os.getpid()]
    told = [tree.tell_lost("this process ended before the folder's marker was closed") for tree in lost]
    for item in ends:
        item.close()
    if any(told):
        _cairn.fail_exit()
        if os.getpid() in _children:
            multiprocessing.util.Finalize(None, _fail_the_child, exitpriority=-100)  # after all others


def _fail_the_child() -> None:
    """multiprocessing ends a forked child by os._exit, with a status that it has chosen already."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(1)


def _leave_with_the_child() -> None:
    """A child that multiprocessing has forked ends without atexit's functions; it has a list of its own."""
    if multiprocessing.parent_process() is not None and os.getpid() not in _children:
        _children.add(os.getpid())
        multiprocessing.util.Finalize(None, _leave, exitpriority=0)
