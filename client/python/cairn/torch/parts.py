# SPDX-License-Identifier: Apache-2.0
"""The parts of a state: how a model, an optimizer, an object, a value is collected and put back.

Each part has five steps, called in this order: ``collect`` (save) gives a tree with live tensors in it;
``plan`` (restore) says where stored arrays go and touches nothing; ``apply`` runs after the arrays have come;
``verify`` holds the live state against what was stored. PyTorch's own state-dict helpers are not used: they
cast state to the parameter's type and step the optimizer (they change training).
"""

from __future__ import annotations

import warnings
from typing import Any, Optional

import torch

from .. import tree
from ..errors import (CairnError, DigestMismatchError, FormatError, InvalidError, MissingTensorError,
                      UnsupportedValueError)
from ..tree import At, Ref, path_join
from . import arrays
from .naming import Names, Walk
from .plan import Plan


class CairnWarning(UserWarning):
    """What a restore had to do that may surprise: reseeded RNG, tied weights restored into an untied model."""


class Part:
    """One key of the state. ``coordinate`` is set for parts that belong to the rank."""

    kind = ""

    def __init__(self, key: str, obj: Any, coordinate: Optional[str] = None) -> None:
        self.key, self.obj, self.coordinate = key, obj, coordinate

    def _field(self, stored: dict, name: str, kind: type) -> Any:
        value = stored.get(name)
        if type(value) is not kind:
            raise FormatError.of(f"{self.key}: the stored state has no {name!r}: it was written by another version")
        return value

    def collect(self, names: Names) -> dict:
        raise NotImplementedError

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        raise NotImplementedError

    def apply(self, plan: Plan) -> None:
        raise NotImplementedError

    def verify(self, plan: Plan) -> None:
        raise NotImplementedError


class ModuleState(Part):
    """Parameters, persistent buffers and extra state of an nn.Module, by canonical name."""

    kind = "module"

    def __init__(self, key: str, obj: torch.nn.Module) -> None:
        super().__init__(key, obj)
        self._digests: dict = {}  # name -> (identity of the content, digest)

    def _transient_digest(self, name: str, tensor: torch.Tensor) -> str:
        arrays.check_tensor(f"{self.key}.{name}", tensor)
        version = -1 if tensor.is_inference() else tensor._version
        identity = (id(tensor), tensor.data_ptr(), version)
        if self._digests.get(name, (None,))[0] != identity:
            self._digests[name] = (identity, arrays.sha256_hex(tensor))
        return self._digests[name][1]

    def collect(self, names: Names) -> dict:
        walk = Walk(self.key, self.obj)
        return {
            "kind": self.kind,
            "tensors": {name: At(f"{self.key}.{name}", tensor) for name, tensor in walk.tensors.items()},
            "buffers": [name for name in walk.tensors if name in walk.buffers],
            "aliases": walk.aliases,
            "transient": {name: self._transient_digest(name, tensor) for name, tensor in walk.transient.items()},
            "extra": {name: At(f"{self.key}.{name}.extra_state" if name else f"{self.key}.extra_state",
                               module.get_extra_state()) for name, module in walk.extra_modules.items()},
        }

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        tensors, aliases = self._field(stored, "tensors", dict), self._field(stored, "aliases", dict)
        self._walk = walk = Walk(self.key, self.obj)
        self._stored, self._pairs = stored, []
        used: set = set()
        targets: dict = {}  # stored name -> live name that it went to first
        for name, live in walk.tensors.items():
            wanted = [name] + [alias for alias, first in walk.aliases.items() if first == name]
            found = list(dict.fromkeys(aliases.get(alias, alias) for alias in wanted))
            found = [alias for alias in found if alias in tensors]
            if not found:
                plan.missing.append(f"{self.key}.{name}")
                continue
            if len(found) > 1:
                raise InvalidError.of(f"{self.key}: {' and '.join(wanted)} are tied in the live model, but were stored as "
                                      f"different tensors ({', '.join(found)}): build the model as it was saved")
            used.update(found)
            if found[0] in targets:
                plan.warnings.append(f"{self.key}.{name} and {self.key}.{targets[found[0]]} were tied when they were saved "
                                     "and are not tied now: both get the same values and will part when training goes on")
            targets.setdefault(found[0], name)
            ref = tensors[found[0]]
            plan.want_exact(f"{self.key}.{name}", ref, live)
            self._pairs.append((name, ref))
        plan.unexpected.extend(f"{self.key}.{name}" for name in tensors if name not in used)
        self._plan_extra(self._field(stored, "extra", dict), plan)

    def _plan_extra(self, extra: dict, plan: Plan) -> None:
        for name in self._walk.extra_modules:
            if name not in extra:
                plan.missing.append(f"{self.key}.{name}.extra_state")
        for name, value in extra.items():
            if name not in self._walk.extra_modules:
                plan.unexpected.append(f"{self.key}.{name}.extra_state")
            else:
                for ref in tree.refs(value):
                    plan.want(ref)

    def apply(self, plan: Plan) -> None:
        for name, module in self._walk.extra_modules.items():
            if name in self._stored["extra"]:
                module.set_extra_state(tree.resolve(self._stored["extra"][name], plan.get))

    def verify(self, plan: Plan) -> None:
        live = Walk(self.key, self.obj).tensors
        for name, ref in self._pairs:
            plan.check_live(f"{self.key}.{name}", ref, live.get(name))
        for name, digest in self._field(self._stored, "transient", dict).items():
            tensor = self._walk.transient.get(name)
            if tensor is not None and self._transient_digest(name, tensor) != digest:
                warnings.warn(f"{self.key}.{name}: this non-persistent buffer is not stored and differs from the one at the "
                              "time of the save; if it is a constant (a RoPE table), initialise it as the model's "
                              "constructor does", CairnWarning, stacklevel=5)


class OptimizerState(Part):
    """State and group options of a torch.optim.Optimizer, keyed by parameter name. Reads and writes ``optimizer.state``
    itself; never steps."""

    kind = "optimizer"
    _SKIPPED = ("params", "param_names")

    def __init__(self, key: str, obj: torch.optim.Optimizer) -> None:
        super().__init__(key, obj)
        if type(obj).__name__ == "ZeroRedundancyOptimizer":
            raise UnsupportedValueError.of(f"{key}: ZeroRedundancyOptimizer's sharded state is not supported")

    def _param_name(self, names: Names, group: int, idx: int, param: torch.Tensor) -> str:
        known = names.of(param)
        return known[0] if known else f"[{group}][{idx}]"

    def _params(self) -> list:
        """(group, index, parameter) of all."""
        return [(g, i, param) for g, group in enumerate(self.obj.param_groups) for i, param in enumerate(group["params"])]

    def collect(self, names: Names) -> dict:
        groups: list = []
        for g, group in enumerate(self.obj.param_groups):
            options = {key: value for key, value in group.items() if key not in self._SKIPPED}
            groups.append({"params": [self._param_name(names, g, i, p) for i, p in enumerate(group["params"])],
                           "options": At(f"{self.key}.groups[{g}]", options)})
        state: dict = {}
        seen: set = set()
        for g, i, param in self._params():
            if param in self.obj.state:
                name = self._param_name(names, g, i, param)
                state[name] = At(f"{self.key}.{name}", self.obj.state[param])
                seen.add(id(param))
        other: dict = {}
        for key, value in self.obj.state.items():
            if not isinstance(key, torch.Tensor):
                other[key] = value
            elif id(key) not in seen:
                raise UnsupportedValueError.of(f"{self.key}: the optimizer holds state of a parameter that is in none of "
                                               "its groups; remove it from optimizer.state")
        return {"kind": self.kind, "class": type(self.obj).__qualname__, "groups": groups, "state": state,
                "other": At(f"{self.key}.other", other)}

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        self._stored = stored
        groups, state = self._field(stored, "groups", list), self._field(stored, "state", dict)
        if stored.get("class") != type(self.obj).__qualname__:
            raise InvalidError.of(f"{self.key}: the stored optimizer is {stored.get('class')}, the live one "
                                  f"{type(self.obj).__qualname__}")
        group_of = {name: g for g, group in enumerate(groups) for name in group["params"]}
        self._matched: list = []  # (parameter, stored name or None)
        self._group_match: dict = {}  # live group -> stored group
        used: set = set()
        for g, i, param in self._params():
            candidates = names.of(param) or [f"[{g}][{i}]"]
            name = next((name for name in candidates if name in group_of), None)
            self._matched.append((g, param, name))
            if name is None:
                plan.missing.append(f"{self.key}.{candidates[0]}")
                continue
            used.add(name)
            if self._group_match.setdefault(g, group_of[name]) != group_of[name]:
                raise InvalidError.of(f"{self.key}: parameters of group {g} ({candidates[0]} among them) were stored in "
                                      f"different groups ({self._group_match[g]} and {group_of[name]}): build the "
                                      "optimizer's groups as they were saved")
        plan.unexpected.extend(f"{self.key}.{name}" for name in group_of if name not in used)
        for g, param, name in self._matched:
            if name in state:
                options = {**self.obj.param_groups[g], **groups[group_of[name]]["options"]}
                self._plan_state(state[name], param, options, plan)
        for g, s in self._group_match.items():
            for key, value in groups[s]["options"].items():
                live = self.obj.param_groups[g].get(key)
                self._want(value, live, plan)
        self._want(self._field(stored, "other", dict), None, plan)

    @staticmethod
    def _want(value: Any, live: Any, plan: Plan) -> None:
        if type(value) is Ref and arrays.is_array(live) and arrays.fits(value, live) and not isinstance(
                live, torch.nn.Parameter):
            plan.want(value, live)
            return
        for ref in tree.refs(value):
            plan.want(ref)

    def _plan_state(self, stored: Any, param: torch.Tensor, options: dict, plan: Plan) -> None:
        """In place where the live state has the stored type and shape, else into new tensors beside the parameter."""
        live_state = self.obj.state[param] if param in self.obj.state else {}
        for key, value in stored.items() if type(stored) is dict else (("", stored),):
            on_cpu = key == "step" and not (options.get("capturable") or options.get("fused"))
            device = torch.device("cpu") if on_cpu else param.device
            live = live_state.get(key) if isinstance(live_state, dict) else None
            if (type(value) is Ref and isinstance(live, torch.Tensor) and live.device == device
                    and arrays.fits(value, live) and not arrays.overlaps(tuple(live.shape), live.stride())):
                plan.want(value, live)
                continue
            for ref in tree.refs(value):
                like = param if ref.kind == "torch" else None
                plan.want(ref, fresh=arrays.empty(ref, device, like))

    def apply(self, plan: Plan) -> None:
        state = self._stored["state"]
        for _, param, name in self._matched:
            if name is None:
                continue
            if name not in state:
                self.obj.state.pop(param, None)  # absent is stored as absent
            else:
                self.obj.state[param] = tree.resolve(state[name], plan.get)
        for key in [key for key in self.obj.state if not isinstance(key, torch.Tensor)]:
            del self.obj.state[key]
        self.obj.state.update(tree.resolve(self._stored["other"], plan.get))
        for g, s in self._group_match.items():
            self.obj.param_groups[g].update(tree.resolve(self._stored["groups"][s]["options"], plan.get))

    def verify(self, plan: Plan) -> None:
        for _, param, name in self._matched:
            stored = self._stored["state"].get(name)
            if type(stored) is not dict:
                continue
            live = self.obj.state[param]
            if list(live) != list(stored):
                raise DigestMismatchError.of(f"{self.key}.{name}: the live state has the entries {list(live)}, restored were "
                                             f"{list(stored)}")
            for key, value in stored.items():
                if type(value) is Ref:
                    plan.check_live(path_join(f"{self.key}.{name}", key), value, live[key])


class ObjectState(Part):
    """Any object with state_dict and load_state_dict: schedulers, scalers, samplers."""

    kind = "object"

    def _state(self) -> Any:
        return self.obj.state_dict()

    def _load(self, value: Any) -> None:
        self.obj.load_state_dict(value)

    def collect(self, names: Names) -> dict:
        return {"kind": self.kind, "class": type(self.obj).__qualname__, "value": At(self.key, self._state())}

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        if "value" not in stored:
            raise FormatError.of(f"{self.key}: the stored state has no 'value': it was written by another version")
        self._stored = stored["value"]
        for ref in tree.refs(self._stored):
            plan.want(ref, coordinate=self.coordinate)

    def _resolved(self, plan: Plan) -> Any:
        return tree.resolve(self._stored, lambda ref: plan.get(ref, self.coordinate))

    def apply(self, plan: Plan) -> None:
        self._before = arrays.Collector(self.coordinate)
        # The bytes before load_state_dict may keep or change what it is given.
        self._bytes = tree.encode(self._resolved(plan), self.key, self._before)
        self._copies = {name: array.clone() if isinstance(array, torch.Tensor) else array.copy()
                        for name, (_, array) in self._before.arrays.items()}
        self._load(self._resolved(plan))

    def verify(self, plan: Plan) -> None:
        """load_state_dict is foreign code: a difference is worth a warning, not a failure."""
        after = arrays.Collector(self.coordinate)
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
        self._before, self._copies, self._bytes = arrays.Collector(), {}, b""


class GeneratorState(ObjectState):
    """A torch.Generator: its state belongs to the rank."""

    kind = "generator"

    def _state(self) -> Any:
        return bytes(self.obj.get_state().numpy().tobytes())

    def _load(self, value: Any) -> None:
        self.obj.set_state(torch.frombuffer(bytearray(value), dtype=torch.uint8))


class ValueState(Part):
    """Plain values: a dict or list is refilled in place, tensors in them where the live ones fit; anything else is
    replaced in ``Checkpointer.state``."""

    kind = "value"

    def __init__(self, key: str, obj: Any, coordinate: Optional[str] = None) -> None:
        super().__init__(key, obj, coordinate)
        self.replaced = False

    def collect(self, names: Names) -> dict:
        return {"kind": self.kind, "value": At(self.key, self.obj)}

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        if "value" not in stored:
            raise FormatError.of(f"{self.key}: the stored state has no 'value': it was written by another version")
        self._stored = stored["value"]
        live = arrays.Collector(self.coordinate)
        try:
            tree.encode(self.obj, self.key, live)
        except UnsupportedValueError:
            pass  # it holds more than can be stored; what was met so far is used
        if arrays.is_array(self.obj) and type(self._stored) is Ref and not arrays.fits(self._stored, self.obj):
            raise MissingTensorError.of(f"{self.key}: stored is {self._stored!r}, which does not fit the live one "
                                        f"({self.obj.dtype}, {list(self.obj.shape)})")
        for ref in tree.refs(self._stored):
            found = live.arrays.get(ref.name)
            array = found[1] if found is not None and arrays.fits(ref, found[1]) else None
            plan.want(ref, array, self.coordinate)

    def apply(self, plan: Plan) -> None:
        value = tree.resolve(self._stored, lambda ref: plan.get(ref, self.coordinate))
        if type(self.obj) is type(value) and hasattr(self.obj, "clear") and hasattr(self.obj, "update"):
            self.obj.clear()
            self.obj.update(value)
        elif type(self.obj) is list and type(value) is list:
            self.obj[:] = value
        elif value is not self.obj:
            self.obj, self.replaced = value, True

    def verify(self, plan: Plan) -> None:
        for ref in tree.refs(self._stored):
            plan.check_live(ref.name, ref, plan.get(ref, self.coordinate), self.coordinate)


def make_part(key: str, obj: Any, coordinate: Optional[str] = None) -> Part:
    """The part for an object; ``coordinate`` for one that belongs to the rank."""
    if isinstance(obj, torch.Generator):
        return GeneratorState(key, obj, coordinate)
    if isinstance(obj, (torch.nn.Module, torch.optim.Optimizer)) and coordinate is not None:
        raise InvalidError.of(f"{key}: models and optimizers cannot be per_rank")
    if isinstance(obj, torch.nn.Module):
        return ModuleState(key, obj)
    if isinstance(obj, torch.optim.Optimizer):
        return OptimizerState(key, obj)
    if callable(getattr(obj, "state_dict", None)) and callable(getattr(obj, "load_state_dict", None)):
        return ObjectState(key, obj, coordinate)
    return ValueState(key, obj, coordinate)
