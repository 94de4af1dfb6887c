# SPDX-License-Identifier: Apache-2.0
"""Paths of the file system: which run, which step, which file.

A path is ``authority/project/run/[folders/]id/inner``: the URL without its scheme. ``authority`` is host:port[,...], empty for
CAIRN_SERVER, or ``unix%3A`` and the percent-encoded path of a socket, which is what ``cairn+unix:///sock?run=...``
becomes (a question mark would be taken for a wildcard). ``id`` is the first part that holds a step (cairn.names); folders before
it belong to the name under which the checkpoint is known. A file in the run itself whose name holds no step (``last.ckpt``) is
*unnumbered*: its versions are the checkpoints of a run of its own, beside this one. Pure.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from typing import Optional
from urllib.parse import quote, unquote

from ..errors import InvalidError
from ..names import parse_step

_UNIX = "unix%3A"
_RUN = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_NAMES = "names"  # ends the name of the run that lists the unnumbered files of a run


@dataclass(frozen=True)
class Place:
    """What a path names. ``name`` is the id with the folders before it. ``step`` is None for the run itself, and for a folder in it
    (``name``) that holds no step. ``inner`` is empty for the checkpoint itself."""

    run_url: str
    root: str  # the run as a path
    name: str
    step: Optional[int]
    inner: str
    names_url: str = ""  # of an unnumbered file: the run that lists such files; ``run_url`` is the run of its versions

    @property
    def path(self) -> str:
        """Returns the path itself."""
        return "/".join(part for part in (self.root, self.name, self.inner) if part)

    @property
    def unknown(self) -> str:
        """Returns what to say if nothing is there."""
        why = f": {self.name!r} has no step, and holds no checkpoint" if self.name and self.step is None else ""
        return f"cairn://{self.path}{why}"

    @property
    def may_be_unnumbered(self) -> bool:
        """Returns whether a file can stand here whose name holds no step."""
        return self.step is None and self.name != "" and not folder_of(self.name)

    def version(self, step: int) -> "Place":
        """Returns the place of a version of an unnumbered file."""
        return replace(self, run_url=_beside(self.run_url, self.name), step=step, names_url=self.names)

    @property
    def names(self) -> str:
        """Returns the URL of the run that lists the unnumbered files of this run."""
        return _beside(self.run_url, _NAMES, is_list=True)

    def is_named(self, written: Optional[str]) -> bool:
        """Returns whether this is a name of the checkpoint that was written as ``written``: that name, or ``step-N`` in the same folder, as
        lists show it. If ``written`` is None, each name with its step will do, but for one in a folder."""
        if written is None:
            return not folder_of(self.name)
        return self.name == written or self.name == joined(folder_of(written), f"step-{self.step}")


def folder_of(name: str) -> str:
    """Returns the folders of a checkpoint's name, or "" if it is in the run itself."""
    return name.rpartition("/")[0]


def joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if folder else name


def _beside(run_url: str, name: str, is_list: bool = False) -> str:
    """Returns the URL of the run for a name beside a run: ``run.name``, or a digest of it where a run cannot be called so."""
    head, _, run = run_url.rpartition("/")
    beside = f"{run}.{name}"
    if not _RUN.fullmatch(beside) or (name == _NAMES and not is_list):
        digest = hashlib.sha256(f"{run}{'.' if is_list else '/'}{name}".encode()).hexdigest()
        beside = f"{run[:46]}.{digest[:16]}"
    return f"{head}/{beside}"


def strip(path: str) -> str:
    """Returns a URL or path in the form that this file works with."""
    if path.startswith("cairn+unix://"):
        socket, _, query = path[len("cairn+unix://"):].partition("?")
        path = f"{_UNIX}{quote(socket, safe='')}/{query.removeprefix('run=')}"  # as it stands: names of files may have & and +
    elif path.startswith(("cairn://", "cairn::")):  # fsspec takes both; the second one survives os.path.normpath
        path = path.removeprefix("cairn::").removeprefix("cairn://")
    return path.rstrip("/")


def place_to_read(path: str) -> Place:
    """Returns the place that a path names. Raises InvalidError if it names no run, or leads out of the checkpoint."""
    path = strip(path)
    authority, *parts = path.split("/")
    parts = [part for part in parts if part]
    if len(parts) < 2:
        raise InvalidError.of(f"cairn://{path}: a path must begin with a run, as in cairn://host:port/project/run/step-100/file")
    run = "/".join(parts[:2])
    if authority.startswith(_UNIX):
        run_url = f"cairn+unix://{unquote(authority[len(_UNIX):])}?run={run}"
    else:
        run_url = f"cairn://{authority}/{run}"
    if len(parts) == 2:
        return Place(run_url, f"{authority}/{run}", "", None, "")
    if "." in parts[2:] or ".." in parts[2:]:
        raise InvalidError.of(f"cairn://{path}: '.' and '..' cannot be names of files")
    for at, part in enumerate(parts[2:], 3):
        step = parse_step(part)
        if step is not None:
            return Place(run_url, f"{authority}/{run}", "/".join(parts[2:at]), step, "/".join(parts[at:]))
    return Place(run_url, f"{authority}/{run}", "/".join(parts[2:]), None, "")


def place_of(path: str) -> Place:
    """Returns the place that a path names: the run itself, or a place in a checkpoint.

    Raises InvalidError as ``place_to_read`` does, and if the path goes beyond the run and no part of it has a step.
    """
    place = place_to_read(path)
    if place.name and place.step is None:
        raise InvalidError.of(f"cairn://{strip(path)}: {place.name!r} has no step; after the run comes a checkpoint, such as "
                              "step-100, iter_0000100 or epoch=3-step=500.ckpt, or a folder that holds some. A file without a step, "
                              "such as last.ckpt, stands in the run itself; files that belong to no checkpoint, as in a storage_path of "
                              "Ray, need a folder on a disk")
    return place
