# SPDX-License-Identifier: Apache-2.0
"""How models, objects, generators and values are collected and restored; optimizers are in optim.py.

PyTorch's own state-dict helpers are not used: they cast state to the parameter's type and step the optimizer (they
change training). The steps of a part are explained in part.py.
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

import torch

from .. import tree
from ..errors import CairnError, InvalidError, UnsupportedValueError
from ..tree import At, Deferred, Ref, path_join
from . import arrays, sharded
from .beyond import check_module
from .naming import Names, Walk
from .optim import OptimizerState
from .part import CairnWarning, Part
from .plan import Plan
from .sharded import Layouts, Sharded, is_sharded
from .special import Planned, is_special


class ModuleState(Part):
    """The parameters, persistent buffers and extra state of an nn.Module, by canonical name."""

    kind = "module"

    def __init__(self, key: str, obj: torch.nn.Module, layouts: Layouts) -> None:
        super().__init__(key, obj, layouts)
        self._digests: dict = {}  # name -> (identity of the content, digest)

    def _transient_digest(self, name: str, tensor: torch.Tensor) -> str:
        arrays.check_tensor(f"{self.key}.{name}", tensor)
        version = -1 if tensor.is_inference() else tensor._version
        identity = (id(tensor), tensor.data_ptr(), version)
        if self._digests.get(name, (None,))[0] != identity:
            self._digests[name] = (identity, arrays.sha256_hex(tensor))
        return self._digests[name][1]

    def collect(self, names: Names) -> dict:
        walk = Walk(self.key, self.obj, self.layouts)
        if not walk.flat:  # the state_dict of FSDP1, which gathers, is its own
            check_module(self.key, self.obj)
        return {
            "kind": self.kind,
            "tensors": {name: At(f"{self.key}.{name}", self._placed(walk, name, tensor))
                        for name, tensor in walk.tensors.items()},
            "buffers": [name for name in walk.tensors if name in walk.buffers],
            "aliases": walk.aliases,
            "transient": {name: self._transient_digest(name, tensor) for name, tensor in walk.transient.items()
                          if not is_sharded(tensor) and not is_special(tensor)},  # a shard's says nothing elsewhere
            "extra": {name: At(f"{self.key}.{name}.extra_state" if name else f"{self.key}.extra_state",
                               module.get_extra_state()) for name, module in walk.extra_modules.items()},
        }

    def _placed(self, walk: Walk, name: str, tensor: Any) -> Any:
        ranks = walk.synced.get(id(tensor))
        return tensor if ranks is None or is_special(tensor) else self.layouts.of_first(f"{self.key}.{name}", tensor, ranks)

    def live_names(self, names: Names) -> list:
        walk = Walk(self.key, self.obj, self.layouts)
        return [f"{self.key}.{name}" for name in (*walk.tensors, *walk.aliases)] + [
            f"{self.key}.{name}.extra_state" for name in walk.extra_modules]

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        tensors, aliases = self._field(stored, "tensors", dict), self._field(stored, "aliases", dict)
        self._walk = walk = Walk(self.key, self.obj, self.layouts)
        self._stored, self._pairs = stored, []
        self._made: list = []  # tensors that are made of others
        used: set = set()
        targets: dict = {}  # stored name -> live name that it went to first
        for name, live in walk.tensors.items():
            wanted = [name] + [alias for alias, first in walk.aliases.items() if first == name]
            if not any([plan.only.has(f"{self.key}.{alias}", self.key) for alias in wanted]):
                continue
            found = list(dict.fromkeys(aliases.get(alias, alias) for alias in wanted))
            found = [alias for alias in found if alias in tensors]
            if not found:
                plan.missing.append(f"{self.key}.{name}")
                continue
            if len(found) > 1 and not stored.get("untied"):
                raise InvalidError.of(f"{self.key}: {' and '.join(wanted)} are tied in the live model, but were stored as "
                                      f"different tensors ({', '.join(found)}): build the model as it was saved")
            used.update(found)
            if found[0] in targets:
                plan.warnings.append(f"{self.key}.{name} and {self.key}.{targets[found[0]]} were tied when they were saved "
                                     "and are not tied now: both get the same values and will part when training goes on")
            targets.setdefault(found[0], name)
            stored_tensor = tensors[found[0]]
            if isinstance(stored_tensor, Deferred):
                self._made.append(Planned(f"{self.key}.{name}", stored_tensor, live, plan))
                continue
            for alias in found:  # DCP stores tied tensors one by one; that they are the same is checked
                plan.want_exact(f"{self.key}.{name}", tensors[alias], live)
            self._pairs.append((name, stored_tensor))
        plan.unexpected.extend(f"{self.key}.{name}" for name in tensors
                               if name not in used and plan.only.has(f"{self.key}.{name}", self.key))
        self._plan_extra(self._field(stored, "extra", dict), plan)

    def _plan_extra(self, extra: dict, plan: Plan) -> None:
        self._extra: list = []  # names of modules
        live = self._walk.extra_modules
        for name in dict.fromkeys([*live, *extra]):
            path = f"{self.key}.{name}.extra_state"
            if not plan.only.has(path, self.key):
                continue
            if name not in extra:
                plan.missing.append(path)
            elif name not in live:
                plan.unexpected.append(path)
            else:
                self._extra.append(name)
                for ref in tree.refs(extra[name]):
                    plan.want(ref)

    def apply(self, plan: Plan) -> None:
        for made in self._made:
            made.apply(plan)
        for name in self._extra:
            self._walk.extra_modules[name].set_extra_state(tree.resolve(self._stored["extra"][name], plan.get))

    def verify(self, plan: Plan) -> None:
        for made in self._made:
            made.verify(plan)
        live = Walk(self.key, self.obj, self.layouts).tensors
        for name, ref in self._pairs:
            plan.check_live(f"{self.key}.{name}", ref, live.get(name))
        for name, digest in self._field(self._stored, "transient", dict).items():
            tensor = self._walk.transient.get(name)
            if tensor is None or not plan.only.has(f"{self.key}.{name}", self.key):
                continue
            if self._transient_digest(name, tensor) != digest:
                warnings.warn(f"{self.key}.{name}: this non-persistent buffer is not stored and differs from the one at the "
                              "time of the save; if it is a constant (a RoPE table), initialise it as the model's "
                              "constructor does", CairnWarning, stacklevel=5)


class ObjectState(Part):
    """Any object with state_dict and load_state_dict: schedulers, scalers, samplers."""

    kind = "object"

    def _state(self) -> Any:
        return self.obj.state_dict()

    def _load(self, value: Any) -> None:
        self.obj.load_state_dict(value)

    def live_names(self, names: Names) -> list:
        return [f"{self.key}.state"]  # it comes back as a whole

    def collect(self, names: Names) -> dict:
        return {"kind": self.kind, "class": type(self.obj).__qualname__, "value": At(self.key, self._state())}

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        self._stored = self._field(stored, "value")
        refs = list(tree.refs(self._stored))
        live = self._live_arrays() if refs else {}
        for ref in refs:  # into new memory, for load_state_dict; sharded where the live state is
            array = live.get(ref.name, (None, None))[1]
            fresh = sharded.like(array, array.dtype) if isinstance(array, Sharded) and arrays.fits(ref, array) else None
            plan.want(ref, coordinate=self.coordinate, fresh=fresh)

    def _live_arrays(self) -> dict:
        live = arrays.Collector(self.layouts, self.coordinate)
        try:
            tree.encode(self._state(), self.key, live)
        except CairnError:
            pass  # it holds more than can be stored; what was met so far is used
        return live.arrays

    def _resolved(self, plan: Plan) -> Any:
        return tree.resolve(self._stored, lambda ref: plan.get(ref, self.coordinate))

    def apply(self, plan: Plan) -> None:
        self._before = arrays.Collector(self.layouts, self.coordinate)
        # The bytes before load_state_dict may keep or change what it is given.
        self._bytes = tree.encode(self._resolved(plan), self.key, self._before)
        self._copies = {name: arrays.clone(array) for name, (_, array) in self._before.arrays.items()}
        self._load(self._resolved(plan))

    def verify(self, plan: Plan) -> None:
        """Warns if the live state differs from the stored one: load_state_dict is the user's code, so this is no error. A data loader
        is not asked: it would begin its iterator for that, before the training has told the sampler its epoch."""
        if isinstance(self.obj, torch.utils.data.DataLoader):
            return
        after = arrays.Collector(self.layouts, self.coordinate)
        try:
            same = tree.encode(self._state(), self.key, after) == self._bytes
        except CairnError as error:
            warnings.warn(f"{self.key}: the state after load_state_dict cannot be checked: {error}", CairnWarning,
                          stacklevel=5)
            return
        same = same and all(arrays.same_bits(self._copies[name], array) for name, (_, array) in after.arrays.items()
                            if name in self._copies)
        if not same:
            warnings.warn(f"{self.key}: state_dict() after load_state_dict() differs from what was stored: "
                          f"{type(self.obj).__qualname__} does not restore all that it saves", CairnWarning, stacklevel=5)
        self._before, self._copies, self._bytes = arrays.Collector(self.layouts), {}, b""


class GeneratorState(ObjectState):
    """A torch.Generator: its state belongs to the rank."""

    kind = "generator"

    def _state(self) -> Any:
        return bytes(self.obj.get_state().numpy().tobytes())

    def _load(self, value: Any) -> None:
        self.obj.set_state(value if isinstance(value, torch.Tensor) else torch.frombuffer(bytearray(value), dtype=torch.uint8))


class ValueState(Part):
    """Plain values. A dict or list is refilled in place, and so are its tensors that have the stored type and shape. Any other value
    is replaced in ``Checkpointer.state``."""

    kind = "value"

    def __init__(self, key: str, obj: Any, layouts: Layouts, coordinate: Optional[str] = None) -> None:
        super().__init__(key, obj, layouts, coordinate)
        self.replaced = False

    def live_names(self, names: Names) -> list:
        return entry_names(self.key, self.obj)

    def collect(self, names: Names) -> dict:
        return {"kind": self.kind, "value": At(self.key, self.obj)}

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        self._stored = self._field(stored, "value")
        live = arrays.Collector(self.layouts, self.coordinate)
        try:
            tree.encode(self.obj, self.key, live)
        except UnsupportedValueError:
            pass  # it holds more than can be stored; what was met so far is used
        self._entries = None if plan.only.has(self.key) else self._select(self.key, self._stored, self.obj, plan)
        if arrays.is_array(self.obj) and type(self._stored) is Ref:
            plan.check_takes(self.key, self._stored, self.obj)
        for ref in self._refs():
            found = live.arrays.get(ref.name)
            array = found[1] if found is not None and plan.takes(ref, found[1]) and arrays.is_writable(found[1]) else None
            plan.want(ref, array, self.coordinate)

    def _select(self, path: str, stored: Any, live: Any, plan: Plan) -> list:
        """Returns (live dict, key, stored value) of the selected entries, at any depth."""
        found: list = []
        if type(stored) is not dict:
            return found
        for key in live if type(live) is dict else ():
            if isinstance(key, str) and key not in stored and plan.only.has(path_join(path, key)):
                plan.missing.append(path_join(path, key))
        for key, value in stored.items():
            below = path_join(path, key)
            if plan.only.has(below):
                if type(live) is dict:
                    found.append((live, key, value))
                else:
                    plan.unexpected.append(below)
            else:
                found += self._select(below, value, live.get(key) if type(live) is dict else None, plan)
        return found

    def _refs(self) -> list:
        if self._entries is None:
            return list(tree.refs(self._stored))
        return [ref for _, _, value in self._entries for ref in tree.refs(value)]

    def apply(self, plan: Plan) -> None:
        if self._entries is not None:
            for live, key, stored in self._entries:
                live[key] = tree.resolve(stored, lambda ref: plan.get(ref, self.coordinate))
            return
        value = tree.resolve(self._stored, lambda ref: plan.get(ref, self.coordinate))
        if type(self.obj) is type(value) and hasattr(self.obj, "clear") and hasattr(self.obj, "update"):
            self.obj.clear()
            self.obj.update(value)
        elif type(self.obj) is list and type(value) is list:
            self.obj[:] = value
        elif value is not self.obj:
            self.obj, self.replaced = value, True

    def verify(self, plan: Plan) -> None:
        for ref in self._refs():
            plan.check_live(ref.name, ref, plan.get(ref, self.coordinate), self.coordinate)


def entry_names(path: str, value: Any) -> list:
    """Returns the names of the entries of nested dicts."""
    found: list = []
    for key, item in value.items() if type(value) is dict else ():
        below = path_join(path, key)
        found += [below, *entry_names(below, item)]
    return found


def stored_names(key: str, stored: dict) -> list:
    """Returns the names that a restore may select in a stored part, beside its key; compare Part.live_names."""
    kind, names = stored.get("kind"), []
    if kind == "module":
        names = [*stored.get("tensors", {}), *stored.get("aliases", {})]
        names += [f"{name}.extra_state" for name in stored.get("extra", {})]
    elif kind == "optimizer":
        groups = stored.get("groups", [])
        names = [name for group in groups for name in group["params"]] + ["other"]
        names += [f"groups[{g}]" for g in range(len(groups))]
    elif kind == "value":
        return entry_names(key, stored.get("value"))
    else:
        names = ["state"]
    return [f"{key}.{name}" for name in names]


def make_part(key: str, obj: Any, layouts: Layouts, coordinate: Optional[str] = None) -> Part:
    """Returns the part for an object. ``coordinate`` is given for an object that belongs to the rank."""
    if isinstance(obj, type):
        raise InvalidError.of(f"{key}: the state holds the class {obj.__qualname__}; give an object of that class")
    if isinstance(obj, torch.Generator):
        return GeneratorState(key, obj, layouts, coordinate)
    if isinstance(obj, (torch.nn.Module, torch.optim.Optimizer)) and coordinate is not None:
        raise InvalidError.of(f"{key}: models and optimizers cannot be per_rank")
    if isinstance(obj, torch.nn.Module):
        return ModuleState(key, obj, layouts)
    if isinstance(obj, torch.optim.Optimizer):
        return OptimizerState(key, obj, layouts)
    if callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None)):
        return ObjectState(key, obj, layouts, coordinate)
    return ValueState(key, obj, layouts, coordinate)
