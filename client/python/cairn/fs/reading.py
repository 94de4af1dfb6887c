# SPDX-License-Identifier: Apache-2.0
"""Lists, and the contents of files: of trees that this process writes, and of committed ones. Blocking; any thread."""

from __future__ import annotations

import datetime
import time
from typing import Any, Optional

from fsspec.spec import AbstractBufferedFile

from ..errors import CairnError
from . import process, unnumbered
from .paths import Place, folder_of, joined, place_to_read
from .remote import Reader
from .runs import Runs


def _row(name: str, kind: str, size: int = 0, **known: Any) -> dict:
    return {"name": name, "size": size, "type": kind, **known}


def info(runs: Runs, path: str) -> dict:
    """Returns the row of a path, as fsspec has it. Raises FileNotFoundError."""
    place = runs.place(path)
    full = place.path
    if place.step is None:
        if not place.name or process.is_made(full) or list_run(runs, place):
            return _row(full, "directory")
        raise FileNotFoundError(place.unknown)
    listing = runs.listing(place)
    if listing is None and not process.is_made(full):
        raise FileNotFoundError(f"cairn://{full}")
    files = listing[1] if listing is not None else {}
    if place.inner in files:
        return _row(full, "file", files[place.inner])
    if not place.inner or any(name.startswith(place.inner + "/") for name in files) or process.is_made(full):
        return _row(full, "directory")
    raise FileNotFoundError(f"cairn://{full}")


def list_folder(runs: Runs, path: str) -> list:
    """Returns the rows of what a folder holds, or the row of a file. Raises FileNotFoundError."""
    place = runs.place(path)
    if place.step is None:
        rows = list_run(runs, place) + (unnumbered.rows(runs, place) if not place.name else [])
        if place.name and not rows and not process.is_made(place.path):
            raise FileNotFoundError(place.unknown)
        return rows
    own = info(runs, path)
    if own["type"] == "file":
        return [own]
    listing = runs.listing(place)
    head = place.inner + "/" if place.inner else ""
    found: dict = {}
    for name, size in (listing[1] if listing else {}).items():
        if name.startswith(head) and name:
            first, slash, _ = name[len(head):].partition("/")
            found[first] = _row(f"{own['name']}/{first}", "directory") if slash else _row(f"{own['name']}/{first}", "file", size)
    for below in process.folders_below(own["name"]):
        first = below.partition("/")[0]
        found.setdefault(first, _row(f"{own['name']}/{first}", "directory"))
    return [found[name] for name in sorted(found)]


def list_run(runs: Runs, place: Place) -> list:
    """Returns the rows of a run, or of a folder in it (``place.name``): the folders first, then the checkpoints. Each of these is step-N,
    whatever it was called when it was written; a name is only a way to say N."""
    head = place.name + "/" if place.name else ""
    steps: dict = {}
    folders: set = set()

    def take(step: int, folder: str, **known: Any) -> None:
        if folder == place.name:
            steps.setdefault(step, _row(joined(place.path, f"step-{step}"), "directory", **known))
        elif folder.startswith(head):
            folders.add(folder[len(head):].partition("/")[0])

    for item in runs.reader(place).steps():
        take(item.step, Reader.folder(item), term=item.term, created=item.commit_time, bytes=item.plain_bytes)
    for step, tree in process.trees_of(place.run_url):
        for name in list(tree.names):
            take(step, folder_of(name))
    for below in process.folders_below(place.path):
        if place_to_read(f"{place.path}/{below}").step is None:
            folders.add(below.partition("/")[0])
    return [_row(joined(place.path, name), "directory") for name in sorted(folders)] + [steps[step] for step in sorted(steps)]


def modified(runs: Runs, path: str) -> datetime.datetime:
    """Returns when the version of the checkpoint at the path was committed; the present time if it is not committed yet."""
    place = runs.place(path)
    listing = runs.listing(place) if place.step is not None else None
    if listing is None:
        raise FileNotFoundError(place.unknown)
    seconds = time.time() if listing[0] is None else runs.reader(place).commit_time(place.step, listing[0])
    if seconds is None:  # it was forgotten in between
        raise FileNotFoundError(place.unknown)
    return datetime.datetime.fromtimestamp(seconds, datetime.timezone.utc)


def is_taken(runs: Runs, path: str) -> bool:
    """Returns whether a checkpoint is committed, or was begun here under just this name: what is being written as tmp_step-5 is
    listed as step-5 as well, and does not count."""
    place = place_to_read(path)
    tree = runs.tree(place)
    return (tree is not None and place.name in tree.names) or runs.reader(place).find(place.step, place.is_named) is not None


class ReadFile(AbstractBufferedFile):
    """A committed file, read by ranges, always of the same (term, step)."""

    def __init__(self, fs: Any, path: str, runs: Runs, place: Place, term: int, size: int, **kwargs: Any) -> None:
        self._runs, self._place, self._term, self._length = runs, place, term, size
        super().__init__(fs, path, "rb", size=size, **kwargs)

    def _fetch_range(self, start: int, end: int) -> bytes:
        end = min(end, self._length)
        return self._runs.reader(self._place).read(self._place.step, self._term, [(self._place.inner, self._length, start, end)])[0]


def open_file(fs: Any, runs: Runs, path: str, **options: Any) -> Any:
    """Returns a file to read from.

    Raises:
        FileNotFoundError: There is nothing.
        IsADirectoryError: It is a run, or a folder in one.
    """
    place = runs.place(path)
    if place.step is None:
        info(runs, path)
        raise IsADirectoryError(f"cairn://{path}")
    tree, listing = runs.tree(place), runs.listing(place)
    if listing is None or place.inner not in listing[1]:
        raise FileNotFoundError(f"cairn://{path}")
    if tree is not None:
        return tree.files[place.inner].reader()
    return ReadFile(fs, path, runs, place, listing[0], listing[1][place.inner], **options)


def cat(runs: Runs, wanted: list) -> list:
    """Returns the bytes, or the exception, of each (path, start, end); one restore for each checkpoint."""
    results: list = [None] * len(wanted)
    groups: dict = {}
    for idx, (path, start, end) in enumerate(wanted):
        place = runs.place(path)
        groups.setdefault((place.run_url, place.step), (place, []))[1].append((idx, place.inner, start, end))
    for place, items in groups.values():
        tree, listing = runs.tree(place), runs.listing(place) if place.step is not None else None
        files, reads = (listing[1] if listing is not None else {}), []
        for idx, inner, start, end in items:
            if inner not in files:
                results[idx] = FileNotFoundError(place.unknown)
                continue
            first, last = _clip(start, end, files[inner])
            if tree is not None:
                results[idx] = tree.files[inner].read(first, last)
            else:
                reads.append((idx, (inner, files[inner], first, last)))
        if reads:
            try:
                data = runs.reader(place).read(place.step, listing[0], [read for _, read in reads])
            except CairnError as error:
                data = [error] * len(reads)
            for (idx, _), part in zip(reads, data):
                results[idx] = part
    return results


def _clip(start: Optional[int], end: Optional[int], size: int) -> tuple:
    start = 0 if start is None else start + size if start < 0 else start
    end = size if end is None else end + size if end < 0 else end
    start = max(0, min(start, size))
    return start, max(start, min(end, size))
