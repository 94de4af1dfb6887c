# SPDX-License-Identifier: Apache-2.0
"""What this process holds for all its file systems: the trees that it writes, its connections, and the folders that mkdir has made.

When the process ends, each tree that nobody has sealed is named on stderr, and the process fails. A forked child begins with
nothing: what its parent holds is the parent's. Any thread.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
from typing import Any, Callable, Optional

from .. import _cairn
from .files import WriteTree
from .paths import Place
from .ranks import end_watches

lock = threading.Lock()  # guards the tables
trees: dict = {}  # (run URL, step) -> WriteTree
committers: dict = {}
readers: dict = {}
_done: dict = {}  # (process, run URL) -> steps that it committed
_made: set = set()  # paths of folders that mkdir has made in this process; a folder with files needs none
_children: set = set()  # processes that multiprocessing has started, where _leave is registered


def entry(table: dict, key: Any, make: Callable[[], Any]) -> Any:
    """Returns the entry of a table, which is made anew in a forked child."""
    with lock:
        if key not in table or table[key].pid != os.getpid():
            table[key] = make()
        return table[key]


def tree_at(place: Place) -> Optional[WriteTree]:
    """Returns the tree that this process is writing at a place, or None."""
    with lock:
        tree = trees.get((place.run_url, place.step))
    return tree if tree is not None and tree.pid == os.getpid() else None


def trees_of(run_url: str) -> list:
    """Returns (step, tree) of each tree that this process is writing in a run."""
    with lock:
        return [(key[1], tree) for key, tree in trees.items() if key[0] == run_url and tree.pid == os.getpid()]


def remove_tree(place: Place, tree: WriteTree) -> None:
    """Takes a tree out of the table, unless another one has taken its place there."""
    with lock:
        if trees.get((place.run_url, place.step)) is tree:
            del trees[place.run_url, place.step]


def take_trees() -> list:
    """Takes out of the table the trees that this process is writing, and returns them."""
    with lock:
        return [trees.pop(key) for key, tree in list(trees.items()) if tree.pid == os.getpid()]


def note_commit(run_url: str, step: int) -> None:
    """Takes note that this process has committed a step."""
    with lock:
        _done.setdefault((os.getpid(), run_url), set()).add(step)


def has_committed(place: Place) -> bool:
    """Returns whether this process has committed the step of a place."""
    return place.step in _done.get((os.getpid(), place.run_url), ())


def make_folder(path: str) -> None:
    """Takes note of a folder, which is there for this process alone."""
    _made.add(path)


def is_made(path: str) -> bool:
    """Returns whether mkdir has made the folder, or one below it, and nobody has removed it since."""
    return any(made == path or made.startswith(path + "/") for made in list(_made))


def folders_below(path: str) -> list:
    """Returns the folders below a folder that mkdir has made, as paths from there."""
    return [made[len(path) + 1:] for made in list(_made) if made.startswith(path + "/")]


def remove_folder(path: str) -> bool:
    """Forgets the folder and those below it. Returns whether mkdir had made one of them."""
    gone = {made for made in list(_made) if made == path or made.startswith(path + "/")}
    _made.difference_update(gone)
    return bool(gone)


@atexit.register
def _leave() -> None:
    """Ends what this process holds, and names the files that are lost. May be called twice."""
    end_watches()
    told = [tree.tell_lost("this process ended before the folder's marker was closed") for tree in take_trees()]
    with lock:
        ends = [item for table in (committers, readers) for item in table.values() if item.pid == os.getpid()]
    for item in ends:
        item.close()
    if any(told):
        _cairn.fail_exit()
        if os.getpid() in _children:
            _at_the_child_s_end(_fail_the_child, -100)  # after all others


def _fail_the_child() -> None:
    """Ends a child with status 1. multiprocessing ends it by os._exit, with a status that it has chosen already."""
    for stream in sys.stdout, sys.stderr:
        with contextlib.suppress(AttributeError, OSError, ValueError):
            stream.flush()
    os._exit(1)


def leave_with_the_child() -> None:
    """Registers the end where atexit does not: a child that multiprocessing has forked has a list of its own."""
    module = sys.modules.get("multiprocessing.process")  # is there in its children
    if module is not None and module.parent_process() is not None and os.getpid() not in _children:
        _children.add(os.getpid())
        _at_the_child_s_end(_leave, 0)


def _at_the_child_s_end(call: Callable[[], None], priority: int) -> None:
    from multiprocessing.util import Finalize  # here, since the import of cairn.fs is to be short

    Finalize(None, call, exitpriority=priority)
