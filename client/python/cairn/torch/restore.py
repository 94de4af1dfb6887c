# SPDX-License-Identifier: Apache-2.0
"""One restore: first the typed trees, which say what arrays the checkpoint holds; then the arrays, straight into the
live tensors where they lie on the CPU.

Planning touches nothing, and all ranks agree on it before anything is. If the second step had to fall back to an older
checkpoint, it is planned anew from that one's trees, on all ranks alike, since all see the same (term, step).
"""

from __future__ import annotations

import warnings
from typing import Any, Callable, Optional, Sequence, Union

from .. import tree
from ..client import LATEST, LOCAL, TREE, Client
from ..errors import (CairnError, FormatError, InternalError, InvalidError, MissingTensorError, NotFoundError, with_text)
from . import near, rng
from .futures import Restored
from .group import Group
from .local import refuse_reshape
from .optim import merge_partitions
from .part import CairnWarning, Part
from .parts import ValueState
from .plan import Plan
from .state import LOCAL_BLOB, PARTITION_BLOB, STATE_BLOB, VERSION, State, names_digest

_ROUNDS_MAX = 64


def parse_step(step: Union[str, int]) -> tuple:
    """(step, term) of "latest", 150, "150" or "150@2"."""
    if step == "latest":
        return LATEST, 0
    if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LATEST:
        return step, 0
    if isinstance(step, str):
        number, at, term = step.partition("@")
        if number.isdecimal() and (term.isdecimal() and int(term) > 0 if at else True):
            return int(number), int(term) if at else 0
    raise InvalidError.of(f'step is {step!r}; it may be "latest", a number, or "STEP@TERM"')


class Restore:
    """``unusable`` says, after a failure, why the state in memory must not be used; "" when it was not touched."""

    def __init__(self, client: Client, group: Group, state: State, deadline: Optional[float]) -> None:
        self._client, self._group, self._state, self._deadline = client, group, state, deadline
        self.unusable = ""
        self.is_done = False

    def run(self, step: Union[str, int], strict: bool) -> Optional[Restored]:
        """None only for a run proven to be empty."""
        wanted, term = parse_step(step)
        allow = wanted == LATEST
        fell_back = False
        try:
            op = self._fetch([], (wanted, term), allow)
        except NotFoundError:
            if wanted == LATEST:
                return None
            raise
        for _ in range(_ROUNDS_MAX):
            result = op.result(0)
            fell_back = fell_back or result.fell_back
            plan = self._plan_all(op, strict)
            try:
                op = self._fetch(plan.rows(), (result.step, result.term), allow)
                again = op.result(0)
                if (again.term, again.step) != (result.term, result.step):
                    fell_back = True
                    continue
                self._apply_all(plan)
            except BaseException as error:
                self.unusable = f"the restore of step {result.step} failed"
                if isinstance(error, CairnError) and "unusable" not in error.text:
                    raise with_text(error, f"{error.text}; the state in memory is unusable: restore again, or start "
                                           "anew") from error
                raise
            self.is_done = True
            for text in plan.warnings:
                warnings.warn(text, CairnWarning, stacklevel=3)
            return Restored(result.term, result.step, fell_back, self._metadata(op), tuple(plan.missing),
                            tuple(plan.unexpected))
        raise InternalError.of(f"the restore fell back {_ROUNDS_MAX} times without coming to an end")

    # --- trees ------------------------------------------------------------------------------------------------

    def _fetch(self, rows: list, which: tuple, allow_older: bool, coordinates: Sequence[str] = ()) -> Any:
        """One restore of (step, term) into these rows, finished; blobs of this rank or of these coordinates."""
        client = self._client
        client.set_tensors(rows)
        # Blobs of a coordinate come when something is registered under it.
        client.set_blobs([(LOCAL_BLOB, TREE, tree.encode(None), LOCAL, coordinate)
                          for coordinate in coordinates or [self._state.coordinate]])
        op = client.restore(which[0], term=which[1], allow_older=allow_older, strict=True, deadline=self._deadline)
        op.wait()
        client.set_tensors([])  # nothing refers to the tensors any longer
        return op

    @staticmethod
    def _metadata(op: Any) -> Any:
        data = op.metadata()
        if not data:
            return {}
        try:
            return tree.decode(data)
        except FormatError:
            return data  # another client's

    @staticmethod
    def _root(op: Any) -> dict:
        try:
            root = tree.decode(op.blob(STATE_BLOB), deferred=True)
        except NotFoundError:
            raise FormatError.of("this checkpoint was not written by cairn.torch.Checkpointer: restore it with "
                                 "cairn.Client or `cairn restore`") from None
        if type(root) is not dict or root.get("version") != VERSION or type(root.get("parts")) is not dict:
            raise FormatError.of("the stored state is of another version of cairn.torch.Checkpointer")
        root.setdefault("coordinates", [f"rank={rank}" for rank in range(root["world_size"])])
        return root

    def _fetch_all_ranks(self, op: Any, root: dict) -> tuple:
        """(local trees, partition trees) of all old ranks, where a rule for another mesh or an optimizer whose state
        is spread over the ranks wants them."""
        partitioned = any(stored.get("partitioned") for stored in root["parts"].values())
        rules = self._is_reshaped(root) and any(callable(rule) for rule in self._state.on_reshape.values())
        if not partitioned and not rules:
            return [], []
        result, names = op.result(0), root["coordinates"]
        all_op = self._fetch([], (result.step, result.term), False, names)
        local = [tree.decode(all_op.blob(LOCAL_BLOB, name), deferred=True) for name in names] if rules else []
        spread = [tree.decode(all_op.blob(PARTITION_BLOB, name), deferred=True)["parts"]
                  for name in names] if partitioned else []
        return local, spread

    def _is_reshaped(self, root: dict) -> bool:
        """Whether the ranks are others than those that saved."""
        return sorted(root["coordinates"]) != sorted(self._group.coordinates)

    # --- plan: nothing of the state is touched ----------------------------------------------------------------------

    def _plan_all(self, op: Any, strict: bool) -> Plan:
        plan, error = Plan(self._state.layouts), None
        self._rng_state: Optional[dict] = None
        self._apply_parts: list = []
        try:
            root = self._root(op)
        except CairnError as failure:
            root, error = {}, failure
        self._group.agree(error, "reading the stored state")
        states, partitions = self._fetch_all_ranks(op, root)
        try:
            self._root_names = names_digest({ref.name for ref in tree.refs(root["parts"])})
            self._plan_parts(root, partitions, plan)
            self._plan_local(op, root, states, plan)
            if strict and (plan.missing or plan.unexpected):
                raise MissingTensorError.of(near.explain(plan.missing, plan.unexpected))
            plan.check_memory()
        except CairnError as failure:
            error = failure
        self._group.agree(error, "planning the restore")
        return plan

    def _plan_parts(self, root: dict, partitions: list, plan: Plan) -> None:
        names = self._state.names()
        stored = root["parts"]
        for part in self._state.parts:
            if stored.get(part.key, {}).get("partitioned"):
                stored[part.key]["state"] = merge_partitions(part.key, partitions)
            self._plan_part(part, stored, plan, names)
        plan.unexpected.extend(key for key in stored if key not in self._state.values)

    def _plan_part(self, part: Part, stored: dict, plan: Plan, names: Any) -> None:
        if part.key not in stored:
            plan.missing.append(part.key)
            return
        kind = stored[part.key].get("kind")
        if kind != part.kind:
            raise InvalidError.of(f"{part.key}: stored as {kind}, the live one is {part.kind}: give the same objects under "
                                  "the same names as in the save")
        part.plan(stored[part.key], plan, names)
        self._apply_parts.append(part)

    def _plan_local(self, op: Any, root: dict, states: list, plan: Plan) -> None:
        """What belongs to the rank: as it was on the same mesh, by each part's rule on another one."""
        result = op.result(0)
        self._reseed = f"term {result.term} step {result.step} rank {self._group.rank} of {self._group.world_size}"
        self._reshaped: list = []
        if self._is_reshaped(root):
            old, new = root["coordinates"], self._group.coordinates
            what = (f"of {len(old)} ranks, now there are {len(new)}" if len(old) != len(new)
                    else f"of the ranks {old[0]} to {old[-1]}, now they are {new[0]} to {new[-1]}")
            plan.warnings.append(f"the checkpoint is {what}: the RNGs are seeded anew, so training goes on from the same "
                                 "state on another trajectory")
            self._plan_reshape(old, states, plan)
            return
        local = tree.decode(op.blob(LOCAL_BLOB, self._state.coordinate), deferred=True)
        if type(local) is not dict or type(local.get("parts")) is not dict or type(local.get("rng")) is not dict:
            raise FormatError.of("the stored state of this rank is of another version of cairn.torch.Checkpointer")
        self._rng_state = local["rng"]
        if local.get("names", self._root_names) != self._root_names:
            plan.warnings.append("when this was saved, this rank held other tensors than rank 0 (optimizer state of parameters "
                                 "that got a gradient on some ranks only?); what rank 0 had is what comes back on all ranks")
        for part in self._state.local_parts:
            self._plan_part(part, local["parts"], plan, None)
        plan.unexpected.extend(key for key in local["parts"] if key not in self._state.on_reshape)

    def _plan_reshape(self, old: list, states: list, plan: Plan) -> None:
        for part in self._state.local_parts:
            rule = self._state.on_reshape[part.key]
            if rule == "error":
                raise refuse_reshape(part.key, old, self._group.coordinates)
            if rule == "reseed":
                plan.warnings.append(f"{part.key}: left as it is, because the ranks have changed")
                continue
            values = []
            for coordinate, state in zip(old, states):
                if part.key not in state["parts"]:
                    raise MissingTensorError.of(f"{part.key}: {coordinate} of the checkpoint has no such state")
                value = state["parts"][part.key]["value"]
                for ref in tree.refs(value):
                    plan.want(ref, coordinate=coordinate)
                values.append((coordinate, value))
            self._reshaped.append((part, rule, values))

    # --- apply: the arrays have come --------------------------------------------------------------------------------

    def _apply_all(self, plan: Plan) -> None:
        plan.finish()
        for part in self._apply_parts:
            part.apply(plan)
        for part, rule, values in self._reshaped:
            self._apply_reshaped(part, rule, values, plan)
        for part in self._apply_parts:
            part.verify(plan)
            if isinstance(part, ValueState) and part.replaced:
                part.replaced = False
                self._state.replaced(part)
        if self._rng_state is not None:
            rng.apply(self._rng_state)
        else:
            rng.reseed(self._reseed)

    def _apply_reshaped(self, part: Part, rule: Callable, values: list, plan: Plan) -> None:
        states = [tree.resolve(value, lambda ref, at=coordinate: plan.get(ref, at)) for coordinate, value in values]
        state = rule(states, self._group.rank, self._group.world_size)
        if isinstance(part, ValueState):
            part.obj = state
            self._state.replaced(part)
        else:
            part._load(state)
