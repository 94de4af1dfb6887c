# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold different tensors: pipeline stages, experts.

A name means one tensor, whoever holds it. Ranks with the same names form a *stage*; the first rank of each stage stores
its typed tree (blob ``cairn.stage``, at its coordinate), and a restore reads all of them and takes them as one, so that
stages can be cut in another way, or joined, as ranks can. What has no name of its own on each stage (a scheduler) comes
from the rank's own stage where the ranks are as they were, else from the first stage that has it.
"""

from __future__ import annotations

from typing import Any, Sequence

from ..errors import FormatError, InvalidError
from .own import same_on_devices
from .similar import listed, ranks_text

STAGE_BLOB = "cairn.stage"
_BY_NAME = ("tensors", "aliases", "transient", "extra")


def classes(digests: Sequence[bytes]) -> list:
    """Returns for each rank the first rank with the same digest."""
    first: dict = {}
    return [first.setdefault(digest, rank) for rank, digest in enumerate(digests)]


def merge(stages: Sequence[dict], has_own: bool) -> tuple:
    """Merges the trees of all stages into one. Returns (the tree of parts, warnings).

    A part that several stages have comes from the first one. ``has_own`` says that the first is this rank's own stage; without
    it the ranks have changed. The arguments are not changed. Raises FormatError or InvalidError.
    """
    merged: dict = {}
    notes: list = []
    for parts in stages:
        if type(parts) is not dict:
            raise FormatError.of("the stored tree of a stage is not a dict, so another version of cairn.torch.Checkpointer wrote it; "
                                 "restore it with that version or a newer one")
        for key, part in parts.items():
            if key not in merged:
                merged[key] = dict(part)
            elif merged[key].get("kind") != part.get("kind"):
                raise InvalidError.of(f"{key}: one stage stored it as {merged[key].get('kind')}, and another as "
                                      f"{part.get('kind')}: give each a name of its own")
            elif part.get("kind") == "module":
                _merge_module(merged[key], part)
            elif part.get("kind") == "optimizer":
                _merge_optimizer(key, merged[key], part)
            elif not has_own and not _is_same(merged[key], part):
                notes.append(key)
    return merged, [f"{key}: the stages held different ones, and the ranks are others now: the first stage's comes back"
                    for key in dict.fromkeys(notes)]


def others_were_odd(states: Sequence[dict]) -> list:
    """Returns warnings about what the ranks should have had alike and had not, where the ranks have changed. ``states`` are their
    local trees."""
    others = sorted({name for state in states for name in state.get("arrays", {})
                     if state["arrays"][name] != states[0].get("arrays", {}).get(name)})
    notes = [f"{listed(others)}: when this was saved, the ranks held different tensors; they are others now, and what comes back is of "
             "several ranks"] if others else []
    for key in sorted({key for state in states for key in state.get("own", {})}):
        own = [same_on_devices(state.get("own", {}).get(key) or b"") for state in states]
        odd = [rank for rank, data in enumerate(own) if data != own[0]]
        if odd:
            notes.append(f"{key}: when this was saved, {ranks_text(odd)} held something else than rank 0; the ranks are others now, "
                         "and rank 0's comes back on all")
    return notes


def _is_same(a: Any, b: Any) -> bool:
    return a == b or repr(a) == repr(b)  # the same NaNs are


def _merge_module(into: dict, part: dict) -> None:
    for field in _BY_NAME:
        into[field] = {**part.get(field, {}), **into.get(field, {})}
    into["buffers"] = list(dict.fromkeys([*into.get("buffers", ()), *part.get("buffers", ())]))


def _merge_optimizer(key: str, into: dict, part: dict) -> None:
    if into.get("class") != part.get("class"):
        raise InvalidError.of(f"{key}: one stage stored a {into.get('class')}, and another stored a {part.get('class')}: give each a "
                              "name of its own")
    groups = [dict(group) for group in into["groups"]]
    known = {name for group in groups for name in group["params"]}
    for g, group in enumerate(part["groups"]):
        new = [name for name in group["params"] if name not in known]
        if g < len(groups) and _is_same(groups[g]["options"], group["options"]):
            groups[g]["params"] = [*groups[g]["params"], *new]
        elif new:  # a group of its own: nothing says that the two belong together
            groups.append({**group, "params": new})
    into["groups"] = groups
    for field in ("state", "other"):
        into[field] = {**part.get(field, {}), **into.get(field, {})}
    if part.get("partitioned"):
        into["partitioned"] = True
