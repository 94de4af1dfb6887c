# SPDX-License-Identifier: Apache-2.0
"""Files in a run whose names hold no step, such as ``last.ckpt``.

Each is a run of its own beside the run: what is written is its next checkpoint, and what is read is its newest one, which
retention never takes. A further run lists the names, since no run lists those beside it; its newest checkpoint has them all.
A removed file has a newest checkpoint without a file. Blocking; any thread.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ..errors import FencedError, InvalidError
from .paths import Place

_TRIES = 8  # of a commit to the list of names, which other processes may write at the same time


def to_read(fs: Any, place: Place) -> Place:
    """The newest version of the unnumbered file at the place; the place itself where there is none."""
    if not place.may_be_unnumbered or place.name not in names(fs, place):
        return place
    newest = fs._reader(place.version(0)).newest()
    return place.version(newest[0].step) if newest is not None and "" in newest[1] else place


def to_write(fs: Any, place: Place) -> Place:
    """The next version of the unnumbered file. InvalidError: there is a folder of that name."""
    if fs._ls_run(place):
        raise InvalidError.of(f"cairn://{place.path} is a folder that holds checkpoints; give the file another name")
    return place.version(fs._reader(place.version(0)).next_step())


def names(fs: Any, run: Place) -> dict:
    """The names of a run's unnumbered files, those too that are removed."""
    newest = fs._reader(replace(run, run_url=run.names)).newest()
    return newest[1] if newest is not None else {}


def rows(fs: Any, run: Place) -> list:
    """What a list of the run shows of them."""
    found = []
    for name in sorted(names(fs, run)):
        place = replace(run, name=name)
        newest = fs._reader(place.version(0)).newest()
        if newest is not None and "" in newest[1]:
            found.append({"name": place.path, "size": newest[1][""], "type": "file", "created": newest[0].commit_time})
    return found


def note(fs: Any, place: Place) -> None:
    """Adds the name of a version to the list, before it is committed. Another process may have committed a list that lacks what a
    third one has added: the names of all lists count, until the newest list has them."""
    listed = replace(place, run_url=place.names_url)
    for tries in range(_TRIES):
        lists = fs._reader(listed).every_index()
        known = {name: 0 for one in lists for name in one}
        if place.name in known and lists[0].keys() == known.keys():
            return
        committer = fs._committer(listed, None)
        try:
            committer.finish(committer.start(fs._reader(listed).next_step(), {}, {**known, place.name: 0}, "names"))
        except FencedError:  # by another process, which has added a name
            fs._begin_again(listed.run_url)
            if tries == _TRIES - 1:
                raise


def remove(fs: Any, place: Place) -> None:
    """Commits a version without a file."""
    committer = fs._committer(place, None)
    committer.finish(committer.start(fs._reader(place).next_step(), {}, {}, place.name))
