# SPDX-License-Identifier: Apache-2.0
"""What this process writes to runs: its trees, its attempt in each run, the commit, and the end of the process.

A step is saved once by an attempt, so writing a committed folder again begins another one. One commit of a run runs at a
time in a process, except those of several ranks, which wait for each other. Any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import multiprocessing
import multiprocessing.util
import os
import sys
import threading
from typing import Any, Callable, Optional

from ..client import Result, new_attempt
from ..errors import CairnError, FencedError, InvalidError, NotFoundError
from .files import Content, WriteTree, say
from .paths import Place
from .ranks import Deal
from .remote import Committer, Reader

_TRIES = 64  # of loose files, against other processes that write them
_UNTOLD_MAX = 2  # folders without a marker, until a line says how they are committed

_lock = threading.Lock()
_runs: dict = {}  # run URL -> Run; shared by all instances of a process
readers: dict = {}
_children: set = set()  # processes that multiprocessing has started, where _leave is registered


def of_this_process(table: dict, key: Any, make: Callable) -> Any:
    """The entry, made anew in a forked child."""
    with _lock:
        if key not in table or table[key].pid != os.getpid():
            table[key] = make()
        return table[key]


def run_of(run_url: str) -> "Run":
    return of_this_process(_runs, run_url, lambda: Run(run_url))


class Run:
    """A run, as this process writes it."""

    def __init__(self, run_url: str) -> None:
        self.url, self.pid = run_url, os.getpid()
        self.lock = threading.RLock()
        self.trees: dict = {}  # name, or the path of a loose file -> WriteTree
        self.folders: set = set()  # made by mkdir, until the process ends
        self.committer: Optional[Committer] = None
        self._one = threading.RLock()  # commit at a time

    # --- trees ----------------------------------------------------------------------------------------

    def tree(self, key: str, make: Callable[[], WriteTree]) -> WriteTree:
        with self.lock:
            if key not in self.trees:
                _leave_with_the_child()
                self._tell_unsealed()
                self.trees[key] = make()
            return self.trees[key]

    def _tell_unsealed(self) -> None:
        """A process that goes on to other folders may have taken its files for saved."""
        idle = [tree for tree in self.trees.values() if tree.state == "open" and tree.files and not tree.writing]
        for tree in idle if len(idle) >= _UNTOLD_MAX else ():
            if not tree.is_warned:
                tree.is_warned = True
                say(f"{tree.name} is not committed yet, since none of its {len(tree.files)} files is a marker. It is committed when "
                    f"the process ends, and lost if that is killed: call cairn.fs.seal({tree.name!r}) when it is complete.")

    def forget(self, tree: WriteTree) -> None:
        with self.lock:
            for key in [key for key, item in self.trees.items() if item is tree]:
                del self.trees[key]
                self.folders -= {folder for folder in self.folders if folder == key or folder.startswith(key + "/")}
        if tree.meeting is not None:
            tree.meeting.leave()

    def drop(self, tree: WriteTree) -> None:
        try:
            self.forget(tree)
        finally:
            tree.close()

    # --- attempts -------------------------------------------------------------------------------------

    def _token_of(self, step: int, order: tuple, options: dict) -> str:
        """The last attempt, where it was of these ranks and has not saved the step; else a new one."""
        with self.lock:
            old = self.committer
            if old is None or old.order != order or old.options != options:
                return new_attempt()
            if step in old.done:
                old.must_not_be_succeeded()
                return new_attempt()
            return old.token

    def _use(self, options: dict, token: str, rank: int = 0, order: tuple = (0,)) -> Committer:
        with self.lock:
            if self.committer is None or self.committer.token != token:
                if self.committer is not None:
                    self.committer.close()
                self.committer = Committer(self.url, options, token, rank, order)
            return self.committer

    # --- commits --------------------------------------------------------------------------------------

    def commit(self, place: Place, tree: WriteTree, reader: Reader, options: dict) -> None:
        """All or nothing: after an error the files are gone, and may be written again."""
        tree.start_sealing()
        contents: dict = {}
        try:
            with self._one if tree.meeting is None else contextlib.nullcontext():
                index, deal = tree.sizes(), None
                if tree.meeting is not None:
                    deal = tree.meeting.seal(index, lambda order: self._token_of(place.step, order, options))
                index = dict(deal.index) if deal is not None else index
                carried = tree.carried(index)
                index.update(carried)
                if "" in index and len(index) > 1:
                    raise InvalidError.of(f"{tree.name} was written both as a file and as a folder")
                contents = reader.fetch(tree.base, carried)
                committer = (self._use(options, self._token_of(place.step, (0,), options)) if deal is None
                             else self._use(options, deal.token, deal.rank, deal.order))
                op = committer.start(place.step, {**contents, **tree.files}, index, place.name)
                if deal is not None:
                    tree.meeting.wait(op)
                result = committer.finish(op)
        finally:
            self._close(contents)
            self.drop(tree)
        if tree.base is not None or reader.hidden:
            self._sweep(reader, result, place.name if tree.base is not None else None)

    def commit_share(self, place: Place, tree: WriteTree, options: dict, deal: Optional[Deal], why: str) -> None:
        """Commits this process's part of a tree that another rank seals, or drops it where ``deal`` is None. Nobody waits for
        this in this process, so stderr hears of a loss and its reason."""
        try:
            if deal is None:
                tree.tell_lost(why)
            else:
                committer = self._use(options, deal.token, deal.rank, deal.order)
                committer.finish(committer.start(place.step, tree.files, None))
        except CairnError as error:
            tree.tell_lost(str(error))
            raise
        finally:
            self.drop(tree)

    def commit_loose(self, changes: dict, reader: Reader, options: dict) -> None:
        """Of the run of loose files: a checkpoint of all that are there, with these changes (path -> Content, or None where it
        is removed). What others write after its commit is refused, and they begin again; what they wrote between the
        reading and the commit is added by another one."""
        missed: list = []
        is_fenced = False
        with self._one:
            for left in reversed(range(_TRIES)):
                committer = self._use(options, self.committer.token if self.committer is not None else new_attempt())
                contents: dict = {}
                try:
                    committer.join()
                    newest = reader.newest()
                    for entry in (newest, *missed) if is_fenced or not missed else missed:
                        known = entry.files if entry is not None else {}
                        contents.update(reader.fetch(entry, [path for path in known if path not in {**changes, **contents}]))
                    files = {**contents, **{path: content for path, content in changes.items() if content is not None}}
                    index = {path: content.size for path, content in files.items()}
                    op = committer.start(newest.step + 1 if newest is not None else 0, files, index)
                    result = committer.finish(op)
                    is_fenced = False
                    if not (found := reader.missed(newest, result.term, result.step)):
                        break
                    missed = found + missed
                except FencedError:  # another process has written: begin with what it left
                    is_fenced = True
                    with self.lock:
                        self.committer = None
                    committer.close()
                    if left == 0:
                        raise
                except NotFoundError:  # another process has replaced it meanwhile
                    if left == 0:
                        raise
                finally:
                    self._close(contents)
            self._sweep(reader, result, None, is_all=True)

    def _close(self, contents: dict) -> None:
        for content in contents.values():
            content.close()

    def _sweep(self, reader: Reader, result: Result, name: Optional[str], is_all: bool = False) -> None:
        """Forgets what the commit has replaced. Where the server is gone by now, the next commit does."""
        keep = (result.term, result.step) if is_all or name is not None else None
        with contextlib.suppress(CairnError):
            reader.sweep(name, keep)


# --- the end of the process ---------------------------------------------------------------------------


def _why_lost(tree: WriteTree) -> Optional[str]:
    """None: it may be committed now."""
    if sys.exc_info()[1] is not None or getattr(sys, "last_value", None) is not None:
        return "an exception ended this process before the folder's marker was closed"
    if tree.writing:
        return f"this process ended while {sorted(tree.writing)[0]!r} was open for writing"
    if tree.torn:
        return f"an exception discarded {sorted(tree.torn)[0]!r}, and the process ended before the folder's marker was closed"
    try:
        others = tree.meeting.others() if tree.meeting is not None else []
    except RuntimeError:
        return "torch.distributed's process group ended before any rank closed the folder's marker"
    return "this process ended before any rank closed the folder's marker" if others else None


@atexit.register
def _leave() -> None:
    """The end of the process: what has no marker is committed, or told to be lost. May be called twice."""
    with _lock:
        runs = [run for run in _runs.values() if run.pid == os.getpid()]
        mine = [reader for reader in readers.values() if reader.pid == os.getpid()]
    for tree in [tree for run in runs for tree in run.trees.values() if tree.state == "open"]:
        if not tree.files and not tree.writing and tree.base is None:
            continue
        why = _why_lost(tree)
        if why is None:
            try:
                tree.commit()
            except (CairnError, OSError, RuntimeError) as error:
                why = str(error)
        if why is not None:
            tree.tell_lost(why)
    for item in [*(run.committer for run in runs if run.committer is not None), *mine]:
        item.close()


def _leave_with_the_child() -> None:
    """A child that multiprocessing has forked ends without atexit's functions; it has a list of its own."""
    if multiprocessing.parent_process() is not None and os.getpid() not in _children:
        _children.add(os.getpid())
        multiprocessing.util.Finalize(None, _leave, exitpriority=0)
