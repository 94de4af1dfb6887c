# SPDX-License-Identifier: Apache-2.0
"""Paths of the file system: which run, which step, which file.

A path is ``authority/project/run/name/inner``: the URL without its scheme. ``authority`` is host:port[,...], empty for
CAIRN_SERVER, or ``unix%3A`` and the percent-encoded path of a socket, which is what ``cairn+unix:///sock?run=...``
becomes (a question mark would be taken for a wildcard). ``name`` ends with the first part that holds a step
(cairn.names), a bare number only directly below the run: ``exp/trial-1/checkpoint-7``. Where no part holds one, the path
is a loose file: these lie in a run of their own, ``run.paths``, each of whose checkpoints has them all. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional
from urllib.parse import parse_qsl, quote, unquote

from ..errors import InvalidError
from ..names import parse_step

_UNIX = "unix%3A"
_LOOSE = ".paths"


@dataclass(frozen=True)
class Place:
    """What a path names. ``inner`` "" is the checkpoint itself. ``step`` None, and ``name`` "": the run itself, or a loose
    file or folder ``inner``, whose ``run_url`` is that of the loose files."""

    run_url: str
    root: str  # the run as a path
    name: str
    step: Optional[int]
    inner: str

    @property
    def below(self) -> str:
        """The path below the run."""
        return "/".join(part for part in (self.name, self.inner) if part)

    @property
    def path(self) -> str:
        return f"{self.root}/{self.below}" if self.below else self.root

    @property
    def is_loose(self) -> bool:
        return self.step is None and self.inner != ""

    @property
    def main_url(self) -> str:
        return self.run_url.removesuffix(_LOOSE) if self.is_loose else self.run_url

    @property
    def loose_url(self) -> str:
        return self.run_url if self.is_loose else self.run_url + _LOOSE


def strip(path: str) -> str:
    """A URL or path in the form that this file works with."""
    if path.startswith("cairn+unix://"):
        socket, _, query = path[len("cairn+unix://"):].partition("?")
        path = f"{_UNIX}{quote(socket, safe='')}/{dict(parse_qsl(query)).get('run', '')}"
    elif path.startswith("cairn://"):
        path = path[len("cairn://"):]
    return path.rstrip("/")


def place_of(path: str) -> Place:
    """InvalidError: the path names no run, or two steps, or leads out of it."""
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
    for end, part in enumerate(parts[2:], 3):
        step = parse_step(part) if end == 3 or not part.isdecimal() else None
        if step is not None:
            return Place(run_url, f"{authority}/{run}", "/".join(parts[2:end]), step, "/".join(parts[end:]))
    return Place(run_url + _LOOSE, f"{authority}/{run}", "", None, "/".join(parts[2:]))


def place_to_read(path: str) -> Place:
    """FileNotFoundError where nothing can be there. InvalidError: the path names no run."""
    try:
        return place_of(path)
    except InvalidError as error:
        if len([part for part in strip(path).split("/")[1:] if part]) < 2:
            raise
        raise FileNotFoundError(error.text) from None
