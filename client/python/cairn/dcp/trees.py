# SPDX-License-Identifier: Apache-2.0
"""A checkpoint that ``cairn.torch.Checkpointer`` has saved, told as DCP's Metadata, so that ``dcp.load`` reads it.

Names are those that DCP gives a state dict of the same keys: ``model.0.weight``, ``optim.state.0.weight.exp_avg``,
``optim.param_groups.0.lr``. Optimizers are also found under the numbers of ``optimizer.state_dict()`` and under the
flattened names of ``get_optimizer_state_dict``. A rank's own state is given to the rank that has its place.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Mapping
from typing import Any, Iterator, Optional

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from .. import tree
from ..client import LOCAL, TREE, Client
from ..errors import UnsupportedError
from ..torch.naming import TRANSPARENT
from ..torch.optim import merge_partitions, with_own
from ..torch.own import not_kept
from ..torch.part import CairnWarning
from ..torch.stages import STAGE_BLOB, merge, others_were_odd
from ..torch.state import LOCAL_BLOB
from ..torch.stored import EXTRA, leaves, longest, partition_of, spellings
from ..tree import Deferred, Ref
from .metadata import tensor_entry


_NAMES, _NUMBERS, _FLAT = "names", "numbers", "flat"


class _Spelling:
    """How an optimizer's parameters are called: in the checkpoint, and, when that is known, in the live state dict: by names, by the
    numbers of ``optimizer.state_dict()``, or by names also for the options of groups, as ``get_optimizer_state_dict`` flattens them."""

    def __init__(self, names: list, short: list, groups: list) -> None:
        self.short = short
        self.kind: Optional[str] = None
        self._group_of = dict(zip(short, groups))
        self._known = {**dict(zip(names, short)), **dict(zip(short, short))}

    def note(self, live: Mapping) -> None:
        """Takes what the live state dict has below its param_groups."""
        lists = [value for name, value in live.items() if name.split(".")[1:] == ["params"]]
        items = [item for value in lists if isinstance(value, list) for item in value]
        if lists:
            self.kind = _NUMBERS if items and all(isinstance(item, int) for item in items) else _NAMES
        elif len(self.short) > len(set(self._group_of.values())):
            found = {longest(name, self._known)[0] for name in live}
            self.kind = _FLAT if found.issuperset(self.short) else None

    def readings(self, key: str, text: str) -> Iterator:
        """Yields what a name below the key may stand for, names before numbers."""
        kind, _, rest = text.partition(".")
        if kind == "state":
            plain = ".".join(word for word in rest.split(".") if word not in TRANSPARENT)
            for spelled in dict.fromkeys((rest, plain)) if self.kind != _NUMBERS else ():
                yield f"{key}.state.{spelled}"
                name, entry = longest(spelled, self._known)
                yield f"{key}.state.{name}.{entry}"
            number, _, entry = rest.partition(".")
            if self.kind in (None, _NUMBERS) and number.isdecimal() and int(number) < len(self.short):
                yield f"{key}.state.{self.short[int(number)]}.{entry}"
        elif kind == "param_groups":
            if self.kind != _FLAT:
                yield f"{key}.{text}"
            plain = ".".join(word for word in rest.split(".") if word not in TRANSPARENT)
            for spelled in dict.fromkeys((rest, plain)) if self.kind in (None, _FLAT) else ():
                name, entry = longest(spelled, self._known)
                if name:
                    yield f"{key}.param_groups.{self._group_of[name]}.{entry}"
        else:
            yield f"{key}.{text}"


class StateEntries(Mapping):
    """state_dict_metadata of such a checkpoint. The names of a plan may be spelled in any of the ways above; iterating gives each
    once."""

    def __init__(self) -> None:
        self._leaves: dict = {}  # name -> (path, value, coordinate)
        self._refused: dict = {}  # key -> why it cannot be had
        self.kept: dict = {}  # name of a stored tensor -> what this rank has kept of its own
        self._clashes: set = set()  # names of which there are two
        self._optimizers: dict = {}  # key -> _Spelling
        self._wholes: dict = {}  # name -> leaf, of lists that DCP's planner asks for as one where a rank has no shard of a tensor

    # --- what DCP asks ----------------------------------------------------------------------------------------------

    def __getitem__(self, fqn: str) -> Any:
        key = fqn.partition(".")[0]
        if key in self._refused:
            raise UnsupportedError.of(self._refused[key])
        value = self._leaf(fqn)[1]
        if self._spelled(fqn) in self._clashes:
            raise UnsupportedError.of(f"{fqn}: two entries of the saved state have this name in DCP, which joins keys by dots and takes "
                                      "1 and \"1\" for one key; restore it by cairn.torch.Checkpointer, or leave it out of the state dict")
        if type(value) is Deferred and value.tag == tree.BITS_TAG:
            raise UnsupportedError.of(f"{fqn}: PyTorch pickles no {value.child['dtype']}, which DCP's planners would have to; "
                                      "restore it by cairn.torch.Checkpointer, or leave it out of the state dict")
        if type(value) is Ref and value.kind == "torch":
            return tensor_entry(fqn, value.dtype, value.shape, [((0,) * len(value.shape), value.shape)])
        return BytesStorageMetadata()

    def __iter__(self) -> Iterator:
        return iter(self._leaves)

    def __len__(self) -> int:
        return len(self._leaves)

    def __contains__(self, fqn: object) -> bool:
        return isinstance(fqn, str) and (fqn.partition(".")[0] in self._refused or self._spelled(fqn) in self._leaves
                                         or fqn in self._wholes)

    # --- what the Reader asks ---------------------------------------------------------------------------------------

    def place(self, fqn: str) -> tuple:
        """Returns (the name of the stored tensor, its coordinate or None)."""
        _, value, coordinate = self._leaf(fqn)
        return value.name, coordinate

    def value(self, fqn: str, live: Any) -> tuple:
        """Returns (a value with Refs in it, the coordinate of these). Parameters are counted where the live value counts them."""
        path, value, coordinate = self._leaf(fqn)
        if path[0] in self._optimizers and path[1:2] == ("param_groups",) and path[3:] == ("params",):
            names = self._optimizers[path[0]].short
            if isinstance(live, list) and live and all(isinstance(item, int) for item in live):
                value = [names.index(name) for name in value]
        return value, coordinate

    def paths(self) -> dict:
        return {fqn: path for fqn, (path, _, _) in self._leaves.items()}

    def settle(self, live: Mapping, wanted: Any) -> None:
        """Takes from the live state dict, as DCP flattens it, how it calls parameters. Raises UnsupportedError for the first wanted name
        that may still mean two things. DCP has planned before, and has compared sizes."""
        for key, spelling in self._optimizers.items():
            prefix = f"{key}.param_groups."
            spelling.note({fqn[len(prefix):]: value for fqn, value in live.items() if fqn.startswith(prefix)})
        for fqn in wanted:
            key, found = fqn.partition(".")[0], self._readings(fqn)
            if len(found) > 1:
                raise UnsupportedError.of(f"{fqn}: parameters of {key} have numbers for names, and nothing in the state dict says whether "
                                          f"this is {found[0]} or {found[1]} of the checkpoint: load its param_groups with it, or restore "
                                          "it by cairn.torch.Checkpointer")
            if not found and key in self._optimizers and fqn not in self._wholes:
                raise UnsupportedError.of(f"{fqn}: the checkpoint has no such name where parameters of {key} are called "
                                          "as its param_groups here call them; build the optimizer as it was saved, "
                                          "or restore it by cairn.torch.Checkpointer")

    def _leaf(self, fqn: str) -> tuple:
        name = self._spelled(fqn)
        found: tuple = self._wholes[fqn] if fqn in self._wholes and name not in self._leaves else self._leaves[name]
        return found

    def _spelled(self, fqn: str) -> str:
        """Returns the name that stands in the list for one that is spelled in another way."""
        return next(iter(self._readings(fqn)), fqn)

    def _readings(self, fqn: str) -> list:
        """Returns the names in the list that a name may stand for: several, if parameters have numbers for names and nothing has said
        what the live state dict means."""
        key, _, rest = fqn.partition(".")
        if key not in self._optimizers:
            plain = ".".join(word for word in fqn.split(".") if word not in TRANSPARENT)
            ddp = f"{key}.{plain[len(key) + len('.module.'):]}" if plain.startswith(f"{key}.module.") else plain
            return [name for name in (fqn, plain, ddp) if name in self._leaves][:1]
        found = [name for name in self._optimizers[key].readings(key, rest) if name in self._leaves]
        return list(dict.fromkeys(found))

    # --- what is put in ---------------------------------------------------------------------------------------------

    def refuse(self, key: str, why: str) -> None:
        self._refused[key] = why

    def add(self, path: tuple, value: Any, coordinate: Optional[str] = None) -> None:
        for at, leaf in leaves(path, value):
            self._put(".".join(map(str, at)), (at, leaf, coordinate))

    def _put(self, fqn: str, leaf: tuple) -> None:
        if fqn in self._leaves:
            self._clashes.add(fqn)
        self._leaves[fqn] = leaf

    def add_part(self, key: str, stored: dict, modules: list, coordinate: Optional[str] = None) -> None:
        """Adds what Checkpointer has stored of one key."""
        if stored.get("kind") == "module":
            tensors, aliases = stored["tensors"], stored["aliases"]
            for name, value in {**tensors, **{alias: tensors[first] for alias, first in aliases.items()}}.items():
                self._put(f"{key}.{name}", ((key, name), value, None))
            for name, value in stored["extra"].items():
                self.add((key, f"{name}.{EXTRA}" if name else EXTRA), value)
        elif stored.get("kind") == "optimizer":
            self._add_optimizer(key, stored, modules)
        elif stored.get("kind") == "generator":
            self.add((key,), torch.frombuffer(bytearray(stored["value"]), dtype=torch.uint8))
        else:
            self.add((key,), stored["value"], coordinate)

    def _add_optimizer(self, key: str, stored: dict, modules: list) -> None:
        names = [name for group in stored["groups"] for name in group["params"]]
        short = spellings(names, modules)
        known = dict(zip(names, short))
        self._optimizers[key] = _Spelling(names, short, [g for g, group in enumerate(stored["groups"]) for _ in group["params"]])
        for name, state in stored["state"].items():
            for entry, value in state.items() if type(state) is dict else (("", state),):
                self.add((key, "state", known.get(name, name), entry), value)
        groups = [{**group["options"], "params": [known[name] for name in group["params"]]} for group in stored["groups"]]
        self._wholes[f"{key}.param_groups"] = (key, "param_groups"), groups, None
        self.add((key, "param_groups"), groups)


def read(client: Client, result: Any, root: dict, deadline: Optional[float]) -> Metadata:
    """Returns the Metadata of a checkpoint whose tree is ``root``. Reads the trees of ranks as far as they are needed."""
    coordinates, stages = root["coordinates"], root.get("stages", {})
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    mine = coordinates[dist.get_rank() if world > 1 else 0] if world == len(coordinates) else None
    partitioned = any(stored.get("partitioned") for stored in root["parts"].values())
    wanted = coordinates if partitioned or stages or mine is None else [mine]
    client.set_tensors([])
    client.set_blobs([(LOCAL_BLOB, TREE, tree.encode(None), LOCAL, name) for name in wanted])
    op = client.restore(result.step, term=result.term, allow_older=False, deadline=deadline)
    op.result()
    parts, notes = root["parts"], []
    if stages:
        ordered = sorted(dict.fromkeys(stages.values()), key=lambda name: mine is not None and name != stages.get(mine))  # its own first
        parts, notes = merge([tree.decode(op.blob(STAGE_BLOB, name), deferred=True)["parts"] for name in ordered], mine is not None)
    spread = [partition_of(op, name, bool(stages)) for name in coordinates] if partitioned else []
    states = [tree.decode(op.blob(LOCAL_BLOB, name), deferred=True) for name in ([mine] if mine is not None else coordinates)]
    local = states[0]
    for text in notes + (others_were_odd(states) if mine is None else not_kept(root, local)):
        warnings.warn(text, CairnWarning, stacklevel=2)

    @functools.lru_cache(None)
    def arrays() -> dict:
        return {item.name: Ref(item.name, "torch", item.dtype, item.shape)
                for item in op.entries() if item.kind == 0 and not item.coordinate}

    entries, modules = StateEntries(), [key for key, stored in parts.items() if stored.get("kind") == "module"]
    entries.kept = local.get("arrays", {}) if mine is not None else {}
    for key, stored in parts.items():
        data = local.get("own", {}).get(key) if mine is not None else None
        own = tree.decode(data, deferred=True) if data is not None else {}
        if stored.get("partitioned"):
            stored["state"] = merge_partitions(key, spread, bool(stages))
        elif own.get("kind") == stored.get("kind"):
            stored = with_own(key, stored, own, lambda name: arrays().get(name)) if stored["kind"] == "optimizer" else own
        entries.add_part(key, stored, modules)
    for key, stored in local["parts"].items():
        if mine is None:
            entries.refuse(key, f"{key}: its state belongs to each of the {len(coordinates)} ranks that saved, but {world} load now; "
                           "restore it by cairn.torch.Checkpointer with per_rank(obj, on_reshape=...), or leave it out of the state dict")
        else:
            entries.add_part(key, stored, modules, mine)
    return Metadata(entries, planner_data=entries.paths(), storage_data={})
