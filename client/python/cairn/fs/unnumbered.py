# SPDX-License-Identifier: Apache-2.0
"""Files in a run whose names hold no step, such as ``last.ckpt``.

Each is a run of its own beside the run: what is written is its next checkpoint, and what is read is its newest one, which
retention never takes. A further run lists the names, since no run lists those beside it; its newest checkpoint has them all.
A removed file has a newest checkpoint without a file. Blocking; any thread.
"""

from __future__ import annotations

import random
import time
from dataclasses import replace
from typing import Any

from ..errors import FencedError
from .paths import Place

_TRIES = 12  # of a commit to the list of names, which other processes may write at the same time
_PAUSE_S = 0.1  # at most, after the first try; doubled after each, up to _LONGEST_PAUSE_S
_LONGEST_PAUSE_S = 5.0
_chance = random.SystemRandom()  # the training's own generators stay as they are


def to_read(runs: Any, place: Place) -> Place:
    """Returns the newest version of the unnumbered file at the place; the place itself where there is none."""
    if not place.may_be_unnumbered or place.name not in names(runs, place):
        return place
    newest = runs.reader(place.version(0)).newest()
    return place.version(newest[0].step) if newest is not None and "" in newest[1] else place


def to_write(runs: Any, place: Place) -> Place:
    """Returns the next version of the unnumbered file."""
    return place.version(runs.reader(place.version(0)).next_step())


def names(runs: Any, run: Place) -> dict:
    """Returns the names of a run's unnumbered files, also those that are removed."""
    newest = runs.reader(replace(run, run_url=run.names)).newest()
    return newest[1] if newest is not None else {}


def rows(runs: Any, run: Place) -> list:
    """Returns the rows of them for a list of the run."""
    found = []
    for name in sorted(names(runs, run)):
        place = replace(run, name=name)
        newest = runs.reader(place.version(0)).newest()
        if newest is not None and "" in newest[1]:
            found.append({"name": place.path, "size": newest[1][""], "type": "file", "created": newest[0].commit_time})
    return found


def note(runs: Any, place: Place) -> None:
    """Adds the name of a version to the list, before it is committed. Another process may have committed a list that lacks what a
    third one has added: the names of all lists count, until the newest list has them."""
    listed = replace(place, run_url=place.names_url)
    for tries in range(_TRIES):
        lists = runs.reader(listed).every_index()
        known = {name: 0 for one in lists for name in one}
        if place.name in known and lists[0].keys() == known.keys():
            return
        committer = runs.committer(listed)
        try:
            committer.start(runs.reader(listed).next_step(), {}, {**known, place.name: 0}, "names").result()
        except FencedError:  # by another process, which has added a name
            runs.begin_again(listed.run_url)
            if tries == _TRIES - 1:
                raise
            time.sleep(_chance.uniform(0, min(_PAUSE_S * 2 ** tries, _LONGEST_PAUSE_S)))  # or they would fence each other again and again


def remove(runs: Any, place: Place) -> None:
    """Commits a version without a file."""
    runs.committer(place).start(runs.reader(place).next_step(), {}, {}, place.name).result()
