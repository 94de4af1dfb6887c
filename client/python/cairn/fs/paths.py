# SPDX-License-Identifier: Apache-2.0
"""Paths of the file system: which run, which step, which file.

A path is ``authority/project/run/id/inner``: the URL without its scheme. ``authority`` is host:port[,...], empty for
CAIRN_SERVER, or ``unix%3A`` and the percent-encoded path of a socket, which is what ``cairn+unix:///sock?run=...``
becomes (a question mark would be taken for a wildcard). ``id`` holds the step (cairn.names). Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional
from urllib.parse import parse_qsl, quote, unquote

from ..errors import InvalidError
from ..names import parse_step

_UNIX = "unix%3A"


@dataclass(frozen=True)
class Place:
    """What a path names. ``step`` None: the run itself (``name`` is then empty); ``inner`` "": the checkpoint itself."""

    run_url: str
    root: str  # the run as a path
    name: str
    step: Optional[int]
    inner: str

    @property
    def path(self) -> str:
        """The path itself."""
        return "/".join(part for part in (self.root, self.name, self.inner) if part)

    def is_named(self, written: Optional[str]) -> bool:
        """Whether this is a name of the checkpoint that was written as ``written``: that name, and ``step-N``, as lists show
        it. None: nobody knows what it was called, so every name with its step will do."""
        return written is None or self.name in (written, f"step-{self.step}")


def strip(path: str) -> str:
    """A URL or path in the form that this file works with."""
    if path.startswith("cairn+unix://"):
        socket, _, query = path[len("cairn+unix://"):].partition("?")
        path = f"{_UNIX}{quote(socket, safe='')}/{dict(parse_qsl(query)).get('run', '')}"
    elif path.startswith("cairn://"):
        path = path[len("cairn://"):]
    return path.rstrip("/")


def place_of(path: str) -> Place:
    """InvalidError: the path names no run, or its id no step, or leads out of the checkpoint."""
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
    step = parse_step(parts[2])
    if step is None:
        raise InvalidError.of(f"cairn://{path}: {parts[2]!r} has no step; after the run comes a checkpoint, such as "
                              "step-100, iter_0000100 or epoch=3-step=500.ckpt")
    if "." in parts[3:] or ".." in parts[3:]:
        raise InvalidError.of(f"cairn://{path}: '.' and '..' cannot be names of files")
    return Place(run_url, f"{authority}/{run}", parts[2], step, "/".join(parts[3:]))


def place_to_read(path: str) -> Place:
    """FileNotFoundError where the id holds no step: nothing can be there. InvalidError: the path names no run."""
    try:
        return place_of(path)
    except InvalidError as error:
        if len([part for part in strip(path).split("/")[1:] if part]) < 2:
            raise
        raise FileNotFoundError(error.text) from None
