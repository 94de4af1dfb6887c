# SPDX-License-Identifier: Apache-2.0
"""The state of a torch.optim.Optimizer by parameter name, read from and written to ``optimizer.state`` itself.

The optimizer takes no step and nothing is cast. PyTorch's own helpers do both, which changes the training. State of a
sharded parameter is sharded like the parameter. If each rank holds the state of other parameters
(ZeroRedundancyOptimizer, FSDP1), the optimizer is *partitioned*: each rank saves a tree of its own, and a restore reads
the trees of all ranks.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

import torch
import torch.distributed as dist

from .. import tree
from ..errors import DigestMismatchError, FormatError, InvalidError, UnsupportedValueError
from ..tree import At, Ref, path_join
from . import arrays
from .beyond import check_optimizer
from .naming import Names
from .part import Part
from .plan import Plan
from .sharded import Layouts, Sharded, class_of, is_dtensor, replicated_like
from .special import is_special, note_class


def _map_arrays(value: Any, change: Any) -> Any:
    """Returns a copy of plain containers, with ``change`` applied to the tensors in them."""
    if isinstance(value, torch.Tensor):
        return change(value)
    if type(value) is dict:
        return {key: _map_arrays(item, change) for key, item in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_map_arrays(item, change) for item in value)
    return value


class OptimizerState(Part):
    """State and group options of an optimizer, keyed by parameter name."""

    kind = "optimizer"
    _SKIPPED = ("params", "param_names")

    def __init__(self, key: str, obj: torch.optim.Optimizer, layouts: Layouts) -> None:
        super().__init__(key, obj, layouts)
        self._inner: Any = obj
        if isinstance(obj, class_of("torch.distributed.optim", "ZeroRedundancyOptimizer")):
            self._inner = self._inside_zero(key, obj)

    def _inside_zero(self, key: str, obj: Any) -> Any:
        if obj._overlap_with_ddp:
            raise UnsupportedValueError.of(f"{key}: ZeroRedundancyOptimizer(overlap_with_ddp=True) makes its partition "
                                           "while training runs; use overlap_with_ddp=False")
        ranks = dist.get_process_group_ranks(obj.process_group)
        if len(self.layouts.group(key, ranks)) != self.layouts.world_size:
            raise UnsupportedValueError.of(f"{key}: ZeroRedundancyOptimizer is spread over {len(ranks)} of the "
                                           f"{self.layouts.world_size} ranks that save together; use all of them")
        return obj.optim

    # --- parameters ---------------------------------------------------------------------------------------------

    def _param_name(self, names: Names, group: int, idx: int, param: torch.Tensor) -> str:
        known = names.of(param)
        return known[0] if known else f"[{group}][{idx}]"

    def _params(self) -> list:
        """Returns (group, index, parameter) of all parameters."""
        return [(g, i, param) for g, group in enumerate(self.obj.param_groups) for i, param in enumerate(group["params"])]

    def is_partitioned(self, names: Names) -> bool:
        """Returns whether the ranks hold the state of different parameters."""
        return self._inner is not self.obj or any(names.flat(param) is not None for _, _, param in self._params())

    def _mine(self, names: Names) -> Optional[set]:
        """Returns the ids of the parameters whose state is on this rank, or None if the state of all is."""
        if self._inner is not self.obj:
            return {id(param) for group in self._inner.param_groups for param in group["params"]}
        flats = [(param, names.flat(param)) for _, _, param in self._params()]
        if all(flat is None for _, flat in flats):
            return None
        return {id(param) for param, flat in flats if flat is None or flat.owners is not None}

    def _place(self, path: str, param: torch.Tensor, value: Any, names: Names) -> Any:
        """Returns a tensor of the state with its layout over all ranks."""
        value = self._place_on_holders(path, param, value, names)
        known = names.of(param)
        if not self.layouts.holders or not known or is_special(value):
            return value
        return self.layouts.held(known[0], self.layouts.wrap(path, value))

    def _place_on_holders(self, path: str, param: torch.Tensor, value: Any, names: Names) -> Any:
        flat = names.flat(param)
        if flat is not None and not is_dtensor(value):
            if value.dim() == 0:
                return Sharded(value, flat.owners)
            if tuple(value.shape) == flat.sharded.layout.local:
                return flat.sharded.with_local(value)
            raise UnsupportedValueError.of(f"{path}: a state of the shape {list(value.shape)} beside FSDP's piece of "
                                           f"{list(flat.sharded.layout.local)} elements: it is not known to which part of the "
                                           "parameter this state belongs; use fully_shard")
        if self._inner is not self.obj:
            return Sharded(value, self.layouts.whole(path, value.shape, [self.layouts.me]))
        if is_dtensor(param) and not is_dtensor(value) and value.dim() > 0 and tuple(value.shape) != tuple(param.shape):
            local = self.layouts.wrap(path, param).layout
            if tuple(value.shape) == local.local or not local.boxes:
                raise UnsupportedValueError.of(f"{path}: the optimizer keeps a plain tensor beside a shard of its "
                                               "parameter; let it keep DTensors (torch.zeros_like(parameter) makes one)")
        return value

    # --- save ---------------------------------------------------------------------------------------------------

    @property
    def is_plain(self) -> bool:
        """Whether all state is in the optimizer itself."""
        return self._inner is self.obj

    def collect(self, names: Optional[Names], known: Optional[dict] = None) -> dict:
        """``known`` has what ``fragments`` made: the names of parameters, and their state."""
        if self.is_plain:
            check_optimizer(self.key, self.obj)
        groups: list = []
        for g, group in enumerate(self.obj.param_groups):
            options = {key: value for key, value in group.items() if key not in self._SKIPPED}
            groups.append({"params": known["params"][g] if known is not None else
                           [self._param_name(names, g, i, p) for i, p in enumerate(group["params"])],
                           "options": At(f"{self.key}.groups[{g}]", options)})
        params = {id(param) for _, _, param in self._params()}
        other: dict = {}
        for key, value in self._inner.state.items():
            if not isinstance(key, torch.Tensor):
                other[key] = value
            elif id(key) not in params:
                raise UnsupportedValueError.of(f"{self.key}: the optimizer holds state of a parameter that is in none of "
                                               "its groups; remove it from optimizer.state")
        stored = {"kind": self.kind, "class": type(self._inner).__qualname__, "groups": groups, "state": {},
                  "other": At(f"{self.key}.other", other)}
        if known is not None:
            stored["state"] = known["state"]
        elif self.is_partitioned(names):
            stored["partitioned"] = True
        else:
            stored["state"] = self.collect_state(names)
        return stored

    def fragments(self, stored: dict, array: Callable, again: Optional[Callable]) -> dict:
        """Returns what is the same in the next save if its tensors are: fragments of ``stored`` and, with ``again``, of ``own``."""
        found = {"params": [tree.Encoder().fragment(group["params"], self.key, 5) for group in stored["groups"]],
                 "state": tree.Encoder(array).fragment(stored["state"], self.key, 3), "own": {}}
        own = self.own(stored) if again is not None else None
        for key in ("schemas", "which", "trees", "lacks") if own is not None else ():
            found["own"][key] = tree.Encoder(again).fragment(own[key], self.key, 1)
        return found

    def collect_state(self, names: Names) -> dict:
        """Returns the state that this rank has, by name of the parameter."""
        mine, state = self._mine(names), {}
        for g, i, param in self._params():
            if param not in self._inner.state or (mine is not None and id(param) not in mine):
                continue
            name = self._param_name(names, g, i, param)
            path = f"{self.key}.{name}"
            state[name] = At(path, _map_arrays(self._inner.state[param],
                                               lambda value: self._place(path, param, value, names)))
        return state

    def own(self, stored: dict, known: Optional[dict] = None) -> Optional[dict]:
        """Returns the options, and which parameters have which entries. A parameter that got no gradient on this rank has none.
        Entries that are tensors are found in the checkpoint by name. ``known`` is from ``fragments``, where the state is one."""
        if stored.get("partitioned"):
            return None
        if isinstance(stored["state"], tree.Fragment):
            return self._own(stored, known["own"])
        schemas: dict = {}
        which: dict = {}
        trees: dict = {}
        for name, at in stored["state"].items():
            schema = _schema(at.value)
            if schema is None:
                trees[name] = at
            else:
                which[name] = schemas.setdefault(schema, len(schemas))
        lacks = [name for group in stored["groups"] for name in group["params"] if name not in stored["state"]]
        return self._own(stored, {"schemas": list(schemas), "which": {name: number for name, number in which.items() if number != 0},
                                  "trees": trees, "lacks": lacks if stored["state"] else None})

    def _own(self, stored: dict, of_state: dict) -> dict:
        return {"kind": self.kind, "options": [group["options"] for group in stored["groups"]], "other": stored["other"], **of_state}

    def with_own(self, stored: dict, own: dict, find: Callable[[str], Optional[Ref]]) -> dict:
        return with_own(self.key, stored, own, find)

    # --- restore ------------------------------------------------------------------------------------------------

    def live_names(self, names: Names) -> list:
        found = [f"{self.key}.{name}" for g, i, param in self._params() for name in names.of(param) or [f"[{g}][{i}]"]]
        return found + [f"{self.key}.groups[{g}]" for g in range(len(self.obj.param_groups))]

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        self._stored, self._names = stored, names
        groups, state = self._field(stored, "groups", list), self._field(stored, "state", dict)
        if stored.get("class") != type(self._inner).__qualname__:
            raise InvalidError.of(f"{self.key}: the stored optimizer is {stored.get('class')}, but the live one is "
                                  f"{type(self._inner).__qualname__}; create the optimizer that was saved")
        group_of = {name: g for g, group in enumerate(groups) for name in group["params"]}
        self._matched: list = []  # (parameter, stored name or None)
        self._group_match: dict = {}  # live group -> stored group
        used: set = set()
        for g, i, param in self._params():
            candidates = names.of(param) or [f"[{g}][{i}]"]
            name = next((name for name in candidates if name in group_of), None)
            is_selected = any([plan.only.has(f"{self.key}.{item}", self.key) for item in candidates])
            if is_selected:
                self._matched.append((g, param, name))
            if name is None:
                plan.missing.extend([f"{self.key}.{candidates[0]}"] if is_selected else [])
                continue
            used.add(name)
            differs = self._group_match.setdefault(g, group_of[name]) != group_of[name]
            if differs and plan.only.has(f"{self.key}.groups[{g}]", self.key):
                raise InvalidError.of(f"{self.key}: parameters of group {g} ({candidates[0]} among them) were stored in "
                                      f"different groups ({self._group_match[g]} and {group_of[name]}): build the "
                                      "optimizer's groups as they were saved")
        plan.unexpected.extend(f"{self.key}.{name}" for name in group_of
                               if name not in used and plan.only.has(f"{self.key}.{name}", self.key))
        mine = self._mine(names)
        self._here = [item for item in self._matched if mine is None or id(item[1]) in mine]
        for g, param, name in self._here:
            if name in state:
                options = {**self.obj.param_groups[g], **groups[group_of[name]]["options"]}
                self._plan_state(state[name], param, options, plan, plan.stored_types.get(name))
        self._group_match = {g: s for g, s in self._group_match.items() if plan.only.has(f"{self.key}.groups[{g}]", self.key)}
        for g, s in self._group_match.items():
            for key, value in groups[s]["options"].items():
                live = self.obj.param_groups[g].get(key)
                self._want(value, live, plan)
        self._has_other = plan.only.has(f"{self.key}.other", self.key)
        if self._has_other:
            self._want(self._field(stored, "other", dict), None, plan)

    @staticmethod
    def _want(value: Any, live: Any, plan: Plan) -> None:
        if type(value) is Ref and arrays.is_array(live) and arrays.fits(value, live) and arrays.is_writable(
                live) and not isinstance(live, torch.nn.Parameter):
            plan.want(value, live)
            return
        for ref in tree.refs(value):
            plan.want(ref)

    def _plan_state(self, stored: Any, param: torch.Tensor, options: dict, plan: Plan, stored_type: Optional[str]) -> None:
        """Plans to restore in place if the live state has the stored type and shape, else into new tensors on the parameter's device.
        With ``cast``, state that had the parameter's type gets its new type."""
        live_state = self._inner.state[param] if param in self._inner.state else {}
        for key, value in stored.items() if type(stored) is dict else (("", stored),):
            on_cpu = key == "step" and not (options.get("capturable") or options.get("fused"))
            device = torch.device("cpu") if on_cpu else param.device
            live = live_state.get(key) if isinstance(live_state, dict) else None
            if isinstance(live, torch.Tensor):
                note_class(live)
                live = self._live(param, live)
            if (type(value) is Ref and live is not None and arrays.is_array(live) and live.device == device
                    and arrays.fits(value, live) and arrays.is_writable(live)):
                plan.want(value, live)
                continue
            for ref in tree.refs(value):
                as_stored = Ref(*ref.astuple())
                if plan.cast and ref.dtype == stored_type and ref.shape == tuple(param.shape):
                    as_stored.dtype = arrays.TORCH_NAMES[param.dtype]
                plan.want(ref, fresh=self._fresh(as_stored, device, param))

    def _live(self, param: torch.Tensor, live: torch.Tensor) -> Any:
        """Returns a live state tensor with its layout over all ranks."""
        flat = self._names.flat(param)
        if flat is not None and live.dim() > 0 and tuple(live.shape) == flat.sharded.layout.local:
            return flat.sharded.with_local(live)
        return self.layouts.wrap(self.key, live)

    def _fresh(self, ref: Ref, device: torch.device, param: torch.Tensor) -> Any:
        flat = self._names.flat(param)
        if ref.kind != "torch" or not (flat is not None or is_dtensor(param)):
            return arrays.empty(ref, device, param if ref.kind == "torch" else None)
        like = flat.sharded if flat is not None else self.layouts.wrap(self.key, param)
        fresh = arrays.empty(ref, device, like)
        if isinstance(fresh, Sharded) or not ref.shape or flat is not None:
            return fresh
        # Beside a DTensor parameter an optimizer computes with DTensors only, but for scalars.
        return replicated_like(param, fresh)

    def apply(self, plan: Plan) -> None:
        state = self._stored["state"]
        here = {id(param) for _, param, _ in self._here}
        for _, param, name in self._matched:
            if name is None:
                continue
            if name not in state or id(param) not in here:
                self._inner.state.pop(param, None)  # absent is stored as absent
            else:
                self._inner.state[param] = tree.resolve(state[name], plan.get)
        if self._has_other:
            for key in [key for key in self._inner.state if not isinstance(key, torch.Tensor)]:
                del self._inner.state[key]
            self._inner.state.update(tree.resolve(self._stored["other"], plan.get))
        for g, s in self._group_match.items():
            options = tree.resolve(self._stored["groups"][s]["options"], plan.get)
            self.obj.param_groups[g].update(options)
            if self._inner is not self.obj:
                self._inner.param_groups[g].update(options)

    def verify(self, plan: Plan) -> None:
        for _, param, name in self._here:
            stored = self._stored["state"].get(name)
            if type(stored) is not dict:
                continue
            live = self._inner.state[param]
            if list(live) != list(stored):
                raise DigestMismatchError.of(f"{self.key}.{name}: the live state has the entries {list(live)}, but restored were "
                                             f"{list(stored)}")
            for key, value in stored.items():
                if type(value) is Ref:
                    found = self._live(param, live[key]) if isinstance(live[key], torch.Tensor) else live[key]
                    plan.check_live(path_join(f"{self.key}.{name}", key), value, found)


def with_own(key: str, stored: dict, own: dict, find: Callable[[str], Optional[Ref]]) -> dict:
    """Returns the stored state as a rank had it whose share of it is ``own``; see ``Part.with_own``."""
    found = {**stored, "other": own["other"]}
    if len(own["options"]) == len(stored["groups"]):
        found["groups"] = [{**group, "options": options} for group, options in zip(stored["groups"], own["options"])]
    found["state"] = {} if own["lacks"] is None else {
        **_completed(key, stored, own, find), **own["trees"]}
    return found


def _completed(key: str, stored: dict, own: dict, find: Callable[[str], Optional[Ref]]) -> dict:
    state: dict = {}
    lacks = set(own["lacks"])
    for name in [name for group in stored["groups"] for name in group["params"]]:
        known = stored["state"].get(name)
        schema = own["schemas"][own["which"].get(name, 0)] if own["schemas"] else ()
        if name in lacks or name in own["trees"]:
            continue
        if type(known) is not dict or [entry[0] for entry in schema] != list(known):
            known = {entry[0]: find(path_join(f"{key}.{name}", entry[0])) for entry in schema if entry[1]}
            if None in known.values() or not schema:
                if name in stored["state"]:
                    state[name] = stored["state"][name]
                continue
        state[name] = {entry: known[entry] if is_tensor else plain for entry, is_tensor, plain in schema}
    return state


def _schema(state: Any) -> Optional[tuple]:
    """Returns (entry, whether it is a tensor, its value if it is not) for each entry of a parameter's state, or None if the state
    holds anything else."""
    if type(state) is not dict:
        return None
    found = []
    for key, value in state.items():
        is_tensor = arrays.is_array(value)
        if type(key) is not str or is_special(value) or not (is_tensor or value is None or type(value) in (bool, int, float, str)):
            return None
        found.append((key, is_tensor, None if is_tensor else value))
    return tuple(found)


def merge_partitions(key: str, partitions: list, may_lack: bool) -> dict:
    """Returns the state of all ranks' trees by name of the parameter. Raises FormatError if a tree lacks the optimizer, unless the
    rank is a pipeline stage."""
    merged: dict = {}
    for rank, partition in enumerate(partitions):
        state = partition.get(key)
        if state is None and may_lack:
            continue
        if type(state) is not dict:
            raise FormatError.of(f"{key}: the stored state of rank {rank} has no partition of this optimizer")
        for name, value in state.items():
            merged.setdefault(name, value)
    return merged
