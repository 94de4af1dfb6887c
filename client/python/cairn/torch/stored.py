# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint says of the state that it holds: the trees of ``Checkpointer``, or the entries that
torch.distributed.checkpoint (DCP) has saved through ``cairn.dcp.Writer``, told as such trees.

DCP's names are keys joined by dots. It knows neither kinds of objects nor types of keys, and what was empty is not
stored: so the live state says what the names mean, and the stored values take the places of the live ones in it.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Mapping
from typing import Any, Iterator, Optional

import torch

from .. import tree
from ..errors import FormatError, InvalidError, NotFoundError, UnsupportedError
from ..tree import Deferred, Ref
from .naming import TRANSPARENT, Names
from .plan import Plan
from .state import DCP_BLOB, PARTITION_BLOB, STATE_BLOB, VERSION, State

EXTRA = "_extra_state"  # the last word of the names of a module's extra state in state_dict()


def stored_root(op: Any, state: State, plan: Plan) -> dict:
    """Returns the tree of all ranks: "parts" by key, and the "coordinates" of the ranks that saved, of which DCP knows none. Raises
    FormatError for a checkpoint of another kind."""
    found = checkpointer_root(op)
    if found is not None:
        return found
    try:
        data = op.blob(DCP_BLOB)
    except NotFoundError:
        raise FormatError.of("this checkpoint was written neither by cairn.torch.Checkpointer nor by cairn.dcp.Writer; restore it with "
                             "cairn.Client or `cairn restore`") from None
    return _DcpState(op, data, plan).root(state)


def dcp_values(op: Any) -> list:
    """Returns the names of the values that are no tensors, if DCP has saved the checkpoint. They come when they are asked for."""
    from ..dcp import metadata
    try:
        found, _ = metadata.decode(op.blob(DCP_BLOB))
    except NotFoundError:
        return []
    return [fqn for fqn, entry in found.state_dict_metadata.raw.items() if isinstance(entry, str)]


def checkpointer_root(op: Any) -> Optional[dict]:
    """Returns the tree that Checkpointer has saved, or None if it has saved none."""
    try:
        root = tree.decode(op.blob(STATE_BLOB), deferred=True)
    except NotFoundError:
        return None
    if type(root) is not dict or root.get("version") != VERSION or type(root.get("parts")) is not dict:
        raise FormatError.of("the stored state does not have the parts that this version reads, so another version of "
                             "cairn.torch.Checkpointer wrote it; restore it with that version or a newer one")
    root.setdefault("coordinates", [f"rank={rank}" for rank in range(root["world_size"])])
    return root


def partition_of(op: Any, name: str, may_lack: bool) -> dict:
    """Returns the optimizer state that the rank of this coordinate held; ``may_lack`` allows that it held none."""
    try:
        return tree.decode(op.blob(PARTITION_BLOB, name), deferred=True)["parts"]
    except NotFoundError:
        if may_lack:
            return {}
        raise


def is_tensor(value: Any) -> bool:
    """Returns whether a stored value is a tensor, of one piece or made of others."""
    return (type(value) is Ref and value.kind == "torch") or (
        type(value) is Deferred and value.tag in tree.TENSOR_TAGS)


def is_leaf(value: Any) -> bool:
    """Returns whether DCP stores a value of a nested state as one: no mapping, and no list that has a mapping or a tensor in it."""
    if isinstance(value, Mapping):
        return False
    return not isinstance(value, list) or all(
        is_leaf(item) and not is_tensor(item) and not isinstance(item, torch.Tensor) for item in value)


def leaves(path: tuple, value: Any) -> Iterator:
    """Yields (path, value) of what DCP stores of a nested state, as it walks it."""
    if is_leaf(value):
        yield path, value
        return
    for key, item in value.items() if isinstance(value, Mapping) else enumerate(value):
        yield from leaves((*path, key if isinstance(value, list) else str(key)), item)


def spellings(names: list, keys: Any) -> list:
    """Returns how DCP calls the parameters of an optimizer: without the key of their model, where that leaves them different names."""
    short = [next((name[len(key) + 1:] for key in keys if name.startswith(f"{key}.")), name) for name in names]
    return short if len(set(short)) == len(set(names)) else list(names)


class _DcpState:
    """The entries of a checkpoint that DCP has saved."""

    def __init__(self, op: Any, data: bytes, plan: Plan) -> None:
        from ..dcp import metadata
        self._op, self._plan = op, plan
        found, _ = metadata.decode(data)
        self._entries = found.state_dict_metadata.raw
        known = found.planner_data if isinstance(found.planner_data, Mapping) else {}
        self._paths = {fqn: tuple(known.get(fqn, fqn.split("."))) for fqn in self._entries}
        self._claimed: set = set()

    def root(self, state: State) -> dict:
        """Returns the tree that Checkpointer would have saved, as far as DCP has stored it."""
        names, parts = state.names(), {}
        walks = {walk.key: walk for walk in names.walks}
        for part in (*state.parts, *state.local_parts):
            live = part._state() if part.kind in ("object", "generator") else part.obj
            if not any(self._under(part.key)) and (part.kind in ("module", "optimizer") or any(leaves((), live))):
                continue  # the plan calls it missing
            if part.kind == "module":
                parts[part.key] = self._module(part.key, walks[part.key])
            elif part.kind == "optimizer":
                parts[part.key] = self._optimizer(part, names)
            else:
                parts[part.key] = {"kind": part.kind, "value": self._filled((part.key,), live)}
        for fqn in self._entries:
            if fqn not in self._claimed:
                parts.setdefault(str(self._paths[fqn][0]).partition(".")[0], {"kind": "value", "value": None})
        return {"version": VERSION, "framework": "dcp", "world_size": 0, "coordinates": [], "parts": parts}

    def _under(self, prefix: str) -> Iterator:
        return (fqn for fqn in self._entries if fqn == prefix or fqn.startswith(f"{prefix}."))

    def _value(self, fqn: str) -> Any:
        """Returns what is stored under a name, with Refs for tensors."""
        self._claimed.add(fqn)
        entry = self._entries[fqn]
        if entry == "opaque" and self._plan.only.has(fqn, fqn.partition(".")[0]):
            raise UnsupportedError.of(f"{fqn}: DCP has saved it as an opaque pickle, which Checkpointer does not read; load it with "
                                      "dcp.load and cairn.dcp.Reader(allow_opaque=True), or leave it out with restore(only=...)")
        if entry == "tree":
            return tree.decode(self._op.blob(fqn), deferred=True)
        return None if entry == "opaque" else Ref(fqn, "torch", entry[0], entry[1])

    def _lacks(self, name: str) -> None:
        if self._plan.only.has(name, name.partition(".")[0]):
            self._plan.missing.append(name)

    def _module(self, key: str, walk: Any) -> dict:
        live = {*walk.tensors, *walk.aliases}
        stored = {fqn: ".".join(word for word in fqn[len(key) + 1:].split(".") if word not in TRANSPARENT) for fqn in self._under(key)}
        if all(name.startswith("module.") for name in stored.values()) and not any(name.startswith("module.") for name in live):
            stored = {fqn: name[len("module."):] for fqn, name in stored.items()}  # DDP's
        tensors, extra = {}, {}
        for fqn, name in stored.items():
            if EXTRA in name.split("."):
                extra[name[:name.index(EXTRA)].rstrip(".")] = fqn[:fqn.index(EXTRA)] + EXTRA
                continue
            tensors[name] = value = self._value(fqn)
            if not is_tensor(value):
                del tensors[name]
                self._plan.unexpected.append(fqn)
        modules = walk.extra_modules
        return {"kind": "module", "tensors": tensors, "buffers": [], "aliases": {}, "transient": {}, "untied": True,
                "extra": {name: self._filled(self._path_of(prefix), modules[name].get_extra_state() if name in modules else None)
                          for name, prefix in extra.items()}}

    def _path_of(self, prefix: str) -> tuple:
        path = self._paths[next(iter(self._under(prefix)))]
        return next(path[:length] for length in range(1, len(path) + 1) if ".".join(map(str, path[:length])) == prefix)

    # --- nested values ----------------------------------------------------------------------------------------------

    def _filled(self, at: tuple, live: Any) -> Any:
        """Returns the live value with the stored leaves in their places. What only one of both has is added, or is missing."""
        return self._place(at, live, {self._paths[fqn]: fqn for fqn in self._under(".".join(map(str, at)))})

    def _place(self, at: tuple, live: Any, found: dict) -> Any:
        if at in found:
            return self._value(found[at])
        below = {path: fqn for path, fqn in found.items() if path[:len(at)] == at}
        steps = list(dict.fromkeys(path[len(at)] for path in below))
        if is_leaf(live) and not (isinstance(live, list) and below):
            if below:
                return self._place(at, [] if isinstance(steps[0], int) else {}, below)
            self._lacks(".".join(map(str, at)))
            return live
        if isinstance(live, list):
            count = max([len(live), *(step + 1 for step in steps if isinstance(step, int))])
            return [self._place((*at, idx), live[idx] if idx < len(live) else None, below) for idx in range(count)]
        made = {key: self._place((*at, str(key)), item, below) for key, item in live.items()}
        known = {str(key) for key in live}
        made.update({step: self._place((*at, step), None, below) for step in steps if str(step) not in known})
        if type(live) is Counter:
            counter: Counter = Counter()
            dict.update(counter, made)
            return counter
        return OrderedDict(made) if type(live) is OrderedDict else made

    # --- optimizers -------------------------------------------------------------------------------------------------

    def _optimizer(self, part: Any, names: Names) -> dict:
        live = [(g, (names.of(param) or [f"[{g}][{i}]"])) for g, i, param in part._params()]
        canonical = [known[0] for _, known in live]
        by_name = {}
        for (_, known), short in zip(live, spellings(canonical, [walk.key for walk in names.walks])):
            by_name.update(dict.fromkeys((short, *known), known[0]))
        by_idx = {str(idx): name for idx, name in enumerate(canonical)}
        state, options, params = {}, {}, {}
        below = {fqn: fqn[len(part.key) + 1:].partition(".")[::2] for fqn in self._under(part.key)}
        lists = [self._value(fqn) for fqn, (kind, rest) in below.items() if kind == "param_groups" and rest.split(".")[1:] == ["params"]]
        is_flat = not lists and any(kind == "param_groups" for kind, _ in below.values())
        if any(isinstance(item, int) for found in lists for item in found or ()):
            of_state = by_idx
        elif lists or is_flat:
            of_state = by_name
        else:
            of_state = self._either(part.key, by_idx, by_name)
        for fqn, (kind, rest) in below.items():
            name, entry = longest(rest, of_state) if kind == "state" else longest(rest, by_name) if is_flat else ("", "")
            if kind == "state":
                state.setdefault(name or rest.rpartition(".")[0], {})[entry or rest.rpartition(".")[2]] = self._value(fqn)
            elif kind == "param_groups" and name:  # flattened: the options of each parameter
                options.setdefault(name, {})[entry] = self._value(fqn)
            elif kind == "param_groups" and rest.partition(".")[0].isdecimal():
                g, _, entry = rest.partition(".")
                if entry == "params":
                    params[int(g)] = [by_idx.get(str(name)) if isinstance(name, int) else by_name.get(name) or name
                                      for name in self._value(fqn)]
                elif entry != "param_names":
                    options.setdefault(int(g), {})[entry] = self._value(fqn)
        groups = self._groups(part, live, options, params)
        strange = [name for name in state if not any(name in group["params"] for group in groups)]
        if strange:
            groups.append({"params": strange, "options": {}})
        return {"kind": "optimizer", "class": type(part._inner).__qualname__, "groups": groups, "state": state, "other": {}}

    @staticmethod
    def _either(key: str, by_idx: dict, by_name: dict) -> dict:
        """Names and numbers, where nothing is stored that tells which were meant."""
        odd = next((name for name in by_idx if by_name.get(name, by_idx[name]) != by_idx[name]), None)
        if odd is not None:
            raise InvalidError.of(f"{key}: DCP has saved its state without its param_groups, and {odd!r} may be the number of "
                                  f"{by_idx[odd]} or the name of {by_name[odd]}: save the param_groups with it, or load it with dcp.load")
        return {**by_idx, **by_name}

    def _groups(self, part: Any, live: list, options: dict, params: dict) -> list:
        if params:
            if any(name is None for names in params.values() for name in names):
                raise InvalidError.of(f"{part.key}: DCP has saved it with numbers for parameters, as optimizer.state_dict() has them, and "
                                      f"more of them than the {len(live)} here; build the optimizer as it was saved")
            return [{"params": params[g], "options": options.get(g, {})} for g in sorted(params)]
        groups: list = [{"params": [], "options": {}} for _ in part.obj.param_groups]
        for g, known in live:
            name = known[0]
            groups[g]["params"].append(name)
            mine = options.get(name)
            if mine is None:
                self._lacks(f"{part.key}.groups[{g}]")
            elif len(groups[g]["params"]) == 1:
                groups[g]["options"] = mine
            elif any(not isinstance(value, Ref) and value != groups[g]["options"].get(key) for key, value in mine.items()):
                raise InvalidError.of(f"{part.key}: parameters of group {g} ({name} among them) were saved with different options: "
                                      "build the optimizer's groups as they were saved")
        return groups


def longest(text: str, names: Mapping) -> tuple:
    """Returns (the name that stands for the longest beginning of a dotted text, the rest), or ("", "")."""
    at = text.rfind(".")
    while at > 0:
        if text[:at] in names:
            return names[text[:at]], text[at + 1:]
        at = text.rfind(".", 0, at)
    return "", ""

