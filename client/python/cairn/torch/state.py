# SPDX-License-Identifier: Apache-2.0
"""The state that a Checkpointer was given, as parts: what is the same or sharded over the ranks, and what is a rank's
own. ``collect`` makes of it the tensors and trees of one save."""

from __future__ import annotations

import hashlib
from typing import Any, Iterable, Iterator, Mapping, Optional, Sequence

import torch

from .. import tree
from ..client import LOCAL, REPLICATED, TREE
from ..errors import InvalidError
from . import arrays, rng
from .device import Loan
from .known import Fingerprint, Known, is_told_apart, no_collection
from .lazy import guarded_memory, stepped
from .local import PerRank, rule_of
from .naming import Names, Walk
from .optim import OptimizerState
from .own import VALUES_MAX, digest_of, digests_by_key, keep
from .part import Part
from .parts import ModuleState, ObjectState, ValueState, make_part
from .sharded import Layouts, Sharded
from .stages import STAGE_BLOB

STATE_BLOB, LOCAL_BLOB, PARTITION_BLOB = "cairn.state", "cairn.local", "cairn.partition"
DCP_BLOB = "cairn.dcp"  # of a checkpoint that torch.distributed.checkpoint has saved
VERSION = 1


def names_digest(names: Iterable[str]) -> bytes:
    """Returns a digest of the names that does not depend on their order."""
    return hashlib.sha256("\n".join(sorted(names)).encode()).digest()[:16]


def _what(tensor: Any) -> str:
    try:
        return f"{tensor.dtype}{list(tensor.shape)}"
    except RuntimeError:  # a lazy module's, which the first save refuses by name
        return "not initialised"


class State:
    """The state that is saved. ``values`` maps keys to objects, as the caller sees them; ``parts`` and ``local_parts`` hold them as
    Parts; ``on_reshape`` maps the key of a local part to its rule. Raises InvalidError for a key that cannot be used."""

    def __init__(self, values: Mapping[str, Any], layouts: Layouts, coordinate: str) -> None:
        if not isinstance(values, Mapping):
            raise InvalidError.of(f"state is a {type(values).__qualname__}; it must be a mapping of names to objects, such as "
                                  "{'model': model, 'optim': optimizer}")
        self.values, self.layouts, self.coordinate = dict(values), layouts, coordinate
        self._taken: dict = {}  # what ``values`` held when the parts were made of it
        self.parts: list = []
        self.local_parts: list = []
        self.on_reshape: dict = {}
        self._names: dict = {}
        self._known: dict = {}
        self._known_local: dict = {}
        self._last_names: tuple = (None, b"")
        self._last: Optional[Known] = None  # what the last save found
        self.registered: Any = None  # of the rows that the client has; set by who gives them to it
        self.first: list = [0]
        self._is_changed = False
        self.held: Optional[tuple] = None  # of the last save: what ``digests_by_key`` takes, where there are several ranks
        self._take()

    def _take(self) -> None:
        """Makes the parts of the objects in ``values``. The parts of objects that were there before are kept."""
        old = {part.key: part for part in (*self.parts, *self.local_parts)}
        parts: list = []
        local_parts: list = []
        on_reshape: dict = {}
        taken: dict = {}
        for key, obj in self.values.items():
            if not isinstance(key, str) or not key or "." in key or key.startswith("cairn"):
                raise InvalidError.of(f"state: the key {key!r} must be a text without a dot that does not begin with cairn")
            before, live = self._taken.get(key), obj.obj if isinstance(obj, PerRank) else obj
            # A replaced object keeps the per_rank rule of the object that it replaces.
            taken[key] = said = obj if isinstance(obj, PerRank) or not isinstance(before, PerRank) else before
            rule = said.on_reshape if isinstance(said, PerRank) else rule_of(obj)
            part = old.get(key)
            if part is None or part.obj is not live or (part.coordinate is None) != (rule is None):
                part = make_part(key, live, self.layouts, None if rule is None else self.coordinate)
            if rule is None:
                parts.append(part)
            else:
                local_parts.append(part)
                on_reshape[key] = rule
        self.parts, self.local_parts, self.on_reshape = parts, local_parts, on_reshape
        self._taken = taken
        self._live = {key: obj.obj if isinstance(obj, PerRank) else obj for key, obj in self.values.items()}

    def names(self) -> Names:
        return Names([Walk(part.key, part.obj, self.layouts) for part in self.parts if isinstance(part, ModuleState)])

    def held_names(self) -> dict:
        """Returns a dict: ``key.name`` of each tensor of each model, ties included -> shape and type, and each key -> its kind."""
        held = {part.key: part.kind for part in self.parts}
        for part in self.parts:
            walk = Walk(part.key, part.obj, self.layouts) if isinstance(part, ModuleState) else None
            for name, tensor in walk.tensors.items() if walk is not None else ():
                held[f"{part.key}.{name}"] = _what(tensor)
            for name, first in walk.aliases.items() if walk is not None else ():
                held[f"{part.key}.{name}"] = held[f"{part.key}.{first}"]
        return held

    def check_values(self) -> None:
        """Raises UnsupportedValueError, which names it, for a plain value that cannot be stored, whatever its tensors are."""
        def array(path: str, value: Any) -> Optional[tree.Ref]:
            if not arrays.is_array(value):
                return None
            if not isinstance(value, (torch.Tensor, Sharded)):
                arrays.check_ndarray(path, value)
            return tree.Ref("", "", "", (), "")

        for part in (*self.parts, *self.local_parts):
            if isinstance(part, ValueState):
                tree.encode(part.obj, part.key, array)

    def digests(self) -> dict:
        """Returns what ``differences`` compares, of the last save."""
        return {} if self.held is None else digests_by_key(*self.held)

    def set_stages(self, first: Sequence[int], holders: Mapping[str, Sequence[int]], names: Mapping[str, str]) -> None:
        """Sets who holds what: ``first`` has for each rank the first one with the same names, ``holders`` the ranks of the names that
        not all ranks have, and ``names`` is this rank's ``held_names``."""
        self.first, self.layouts.holders, self._names, self._is_changed = list(first), dict(holders), dict(names), False

    def refresh(self) -> Optional[dict]:
        """Takes over changes of ``values``. Returns ``held_names`` if they are not those that the ranks have agreed on, else None."""
        live = {key: obj.obj if isinstance(obj, PerRank) else obj for key, obj in self.values.items()}
        if live.keys() != self._live.keys() or not all(live[key] is obj for key, obj in self._live.items()):
            self._take()
            self._is_changed = True  # until all ranks have agreed, or it is as it was
        names = self.held_names() if self._is_changed else self._names
        self._is_changed = names != self._names
        return names if self._is_changed else None

    def replaced(self, part: Part) -> None:
        """Hands the caller the new object that a restore has made for this part."""
        holder = self.values[part.key]
        if isinstance(holder, PerRank):
            holder.obj = part.obj
        else:
            self.values[part.key] = part.obj
        self._live[part.key] = part.obj

    def _fragments(self, names: Any, shared: arrays.Collector) -> dict:
        """Returns the trees of values and objects by key."""
        return {part.key: tree.Encoder(shared).fragment(part.collect(names), part.key, 2) for part in self.parts
                if isinstance(part, (ValueState, ObjectState))}

    def _own(self, stored: Mapping[str, Any], shared: arrays.Collector, known: Known) -> dict:
        """Returns this rank's share of parts that all ranks should have alike. A restore gives each rank its own share, and takes
        rank 0's only if the ranks have changed. Its arrays are the shared ones."""
        own: dict = {}
        for part in self.parts:
            value = stored[part.key]
            if isinstance(part, OptimizerState):
                value = part.own(value, known.fragments.get(part.key))
            elif isinstance(part, ModuleState) or len(value.data) > VALUES_MAX:
                continue
            if value is not None:
                own[part.key] = tree.encode(value, "", shared.again)
        return own

    def _names_digest(self, names: list) -> bytes:
        """Returns a digest by which a restore sees whether this rank had other tensors than rank 0, whose tree is stored."""
        if names != self._last_names[0]:
            self._last_names = (names, names_digest(names))
        return self._last_names[1]

    def collect(self, rank: int, coordinates: Sequence[str], loan: Loan, lazy: bool = False) -> tuple:
        """Returns (rows for set_tensors, or None if they are those of ``registered``; rows for set_blobs; what ``registered`` is to
        be with these rows). With ``lazy`` all rows are marked eager, except those of tensors that only optimizer steps change.
        ``loan`` keeps what the rows borrow. Raises UnsupportedValueError, which names the value."""
        known, names, steady = self._find(len(coordinates) > 1, loan, lazy)
        shared = arrays.Collector(self.layouts, None, self._known, taken=known.names)
        fragments = self._fragments(names, shared)
        is_shared = len(coordinates) > 1
        own_arrays = keep(shared.arrays) if is_shared else {}
        parts = {part.key: fragments.get(part.key) or self._part(part, names, known) for part in self.parts}
        digests = {key: digest_of(item.data) for key, item in fragments.items() if is_shared and len(item.data) > VALUES_MAX}
        root = {"version": VERSION, "framework": "torch", "world_size": len(coordinates), "coordinates": list(coordinates),
                "parts": parts, "digests": digests}
        local = arrays.Collector(self.layouts, self.coordinate, self._known_local)
        if any(self.first):
            root["stages"] = {coordinates[rank]: coordinates[first] for rank, first in enumerate(self.first)}
        root_tree = tree.encode(root, "", shared)
        mine = {"version": VERSION, "rank": rank, "rng": rng.collect(), "names": self._names_digest([*known.names, *shared.arrays]),
                "parts": {part.key: part.collect(names) for part in self.local_parts},
                "own": self._own(parts, shared, known) if is_shared else {}, "arrays": own_arrays, "digests": digests}
        self.held = (mine["own"], own_arrays, digests) if is_shared else None
        blobs = [(STATE_BLOB, TREE, root_tree, REPLICATED, None),
                 (LOCAL_BLOB, TREE, tree.encode(mine, "", local), LOCAL, self.coordinate)]
        if any(self.first) and self.first[rank] == rank:
            stage = {"version": VERSION, "parts": root["parts"]}
            blobs.append((STAGE_BLOB, TREE, tree.encode(stage, "", arrays.Collector(self.layouts, None, self._known)), LOCAL,
                          self.coordinate))
        partition = {part.key: part.collect_state(names) for part in self.parts
                     if isinstance(part, OptimizerState) and part.key not in known.fragments}
        if partition:
            data = tree.encode({"version": VERSION, "parts": partition}, "", shared)
            blobs.append((PARTITION_BLOB, TREE, data, LOCAL, self.coordinate))
        guarded = self._guarded(known)
        rows = shared.rows(loan, guarded) + local.rows(loan, guarded)
        registered = (known, [(*row[:5], *row[6:]) for row in rows]) if self._last is not None else None
        if registered is not None and registered == self.registered:
            return None, blobs, registered
        return (steady or [(*row[:5], loan, *row[6:]) for row in known.rows]) + rows, blobs, registered

    def _guarded(self, known: Known) -> Optional[set]:
        """Returns the memory of values that only optimizers' steps change; None where the save is not lazy."""
        mine = [part.obj for part in self.parts if isinstance(part, OptimizerState)]
        others = [item for item in stepped() if all(item is not own for own in mine)] if known.guarded is not None else []
        return guarded_memory([*mine, *others], self._modules()) if others else known.guarded

    def _modules(self) -> Iterator[torch.nn.Module]:
        for part in self.parts:
            if isinstance(part, ModuleState):
                yield from part.obj.modules()

    @staticmethod
    def _part(part: Part, names: Optional[Names], known: Known) -> Any:
        found = known.fragments.get(part.key)
        if found is None:
            return part.collect(names)
        return part.collect(names, found) if isinstance(part, OptimizerState) else found

    def _find(self, is_shared: bool, loan: Loan, lazy: bool) -> tuple:
        """Returns (what is known of models and optimizers, names of parameters, rows). The last two are None and empty if the save
        before had the same."""
        last, self._last = self._last, None
        with no_collection():  # a fingerprint makes many objects and drops them
            fingerprint = Fingerprint(self.parts)
            if last is not None and last.holds(fingerprint, self.parts, self.layouts.holders, lazy):
                for at in last.devices:
                    loan.take(fingerprint.tensors[at])
                # The ``.data`` of a tensor may be replaced.
                loan.hold([tensor.untyped_storage() for tensor in fingerprint.tensors if isinstance(tensor, torch.Tensor)])
                fingerprint.metas, fingerprint.shape = [], []
                self._last = last
                return last, None, []
            del last
        names = self.names()
        known = Known(fingerprint, self.parts, self.layouts.holders, lazy)
        found = arrays.Collector(self.layouts, None, self._known)
        for part in self.parts:
            if isinstance(part, ModuleState):
                known.fragments[part.key] = tree.Encoder(found).fragment(part.collect(names), part.key, 2)
            elif isinstance(part, OptimizerState) and not part.is_partitioned(names):
                known.fragments[part.key] = part.fragments(part.collect(names), found, found.again if is_shared else None)
        known.names = found.arrays.keys()
        if lazy:
            known.guarded = guarded_memory((part.obj for part in self.parts if isinstance(part, OptimizerState)), self._modules())
        rows = found.rows(loan, known.guarded)
        if fingerprint.is_whole and fingerprint.has_plain_types() and found.is_direct and is_told_apart(names.walks):
            known.rows = [(*row[:5], None, *row[6:]) for row in rows]
            known.names = set(found.arrays)
            fingerprint.tensors = []
            self._last = known
        return known, names, rows
