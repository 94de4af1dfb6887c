# SPDX-License-Identifier: Apache-2.0
"""One restore: first the typed trees, which say what arrays the checkpoint holds; then the arrays, straight into the
live tensors where libcairn can write them: on the CPU, and contiguous on a CUDA device.

Planning touches nothing, and all ranks agree on it before anything is. If the second step had to fall back to an older
checkpoint, it is planned anew from that one's trees, on all ranks alike, since all see the same (term, step).
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Callable, Optional, Sequence, Union

from .. import tree
from ..client import BYTES, LATEST, LOCAL, SHARDED, TREE, Client
from ..doors import tell_restored
from ..errors import (CairnError, DamagedError, DigestMismatchError, FormatError, InternalError, InvalidError, MissingTensorError,
                      NotFoundError, UnsupportedError, with_text)
from . import similar, rng
from ..tree import Ref
from .futures import Restored
from .group import Group
from .local import refuse_reshape
from .only import RNG, Only
from .optim import merge_partitions
from .own import not_kept
from .part import CairnWarning, Part
from .parts import ValueState, make_part, stored_names
from .plan import Plan
from .share import Sharing
from .stages import STAGE_BLOB, merge, others_were_odd
from .state import DCP_BLOB, LOCAL_BLOB, State, names_digest
from .stored import dcp_values, partition_of, stored_root

_ROUNDS_MAX = 64


def parse_step(step: Union[str, int]) -> tuple:
    """Returns (step, term) of "latest", 150, "150" or "150@2". The term is 0 where none is named."""
    if step == "latest":
        return LATEST, 0
    if isinstance(step, int) and not isinstance(step, bool) and 0 <= step < LATEST:
        return step, 0
    if isinstance(step, str):
        number, at, term = step.partition("@")
        if number.isdecimal() and (term.isdecimal() and int(term) > 0 if at else True):
            return int(number), int(term) if at else 0
    raise InvalidError.of(f'step is {step!r}; it must be "latest", a number, or "STEP@TERM"')


class Restore:
    """The restores of a Checkpointer. After a failure ``unusable`` says why the state in memory must not be used; it is "" if the
    state was not touched."""

    def __init__(self, client: Client, group: Group, state: State, deadline: Optional[float], error: Optional[CairnError] = None) -> None:
        self._client, self._group, self._state, self._deadline, self._error = client, group, state, deadline, error
        self.unusable = ""
        self.is_done = False

    def run(self, step: Union[str, int], strict: bool, only: Optional[Sequence[str]] = None,
            share: Optional[str] = None, cast: bool = False) -> Optional[Restored]:
        """Restores. Returns None only if the run is proven to be empty."""
        self._only, self._cast = only, bool(cast)
        self._check(step, strict, only, share)
        wanted, term = parse_step(step)
        allow = wanted == LATEST
        fell_back = False
        op = self._first(wanted, term, allow)
        if op is None:
            return None
        for _ in range(_ROUNDS_MAX):
            result = op.result(0)
            fell_back = fell_back or result.fell_back or self._fell_back
            plan = self._plan_all(op, strict)
            sharing = Sharing(self._group, plan) if share is not None else None
            rows = plan.rows(sharing.is_read_here) if sharing is not None else plan.rows()
            plan.settle()
            try:
                op = self._fetch_alike(rows, (result.step, result.term), allow)
                again = op.result(0)
                if (again.term, again.step) != (result.term, result.step):
                    fell_back = True
                    continue
                if sharing is not None:
                    sharing.hand_over()
                self._apply_together(plan)
            except BaseException as error:
                self.unusable = f"the restore of step {result.step} failed"
                if isinstance(error, CairnError) and "unusable" not in error.text:
                    raise with_text(error, f"{error.text}; the state in memory is unusable; restore again, or start "
                                           "from the beginning") from error
                raise
            self.is_done = True
            tell_restored(self._client.url, result.step, result.term, self._group.rank, fell_back)
            for text in plan.warnings:
                warnings.warn(text, CairnWarning, stacklevel=3)
            return Restored(result.term, result.step, fell_back, self._metadata(op), tuple(plan.missing),
                            tuple(plan.unexpected), again.plain_bytes, tuple(plan.cast_names))
        raise InternalError.of(f"the restore fell back to an older checkpoint {_ROUNDS_MAX} times and gave up; restore one by its step "
                               "with restore(step=N), and report this with the logs of all ranks")

    def _check(self, step: Any, strict: bool, only: Any, share: Optional[str]) -> None:
        """Raises on all ranks alike if an argument is wrong, or one has an error already, before any request is sent."""
        error = self._error
        try:
            parse_step(step)
            Only(only)
            if share not in (None, "broadcast"):
                raise InvalidError.of(f'restore: share is {share!r}; it must be "broadcast" or None')
            if self._client.read_only and self._group.world_size > 1 and not self._group.is_joined and parse_step(step)[0] == LATEST:
                raise InvalidError.of("restore: with read_only, and with ranks that do not use torch.distributed, nothing makes all "
                                      "of them take the same latest checkpoint; give the step, or call init_process_group")
        except CairnError as failure:
            error = failure
        self._group.agree(error, "reading the arguments of restore")
        self._group.agree_same("restore", f"step={step!r}, strict={bool(strict)}, only={only!r}, share={share!r}, cast={self._cast}")

    # --- trees ------------------------------------------------------------------------------------------------

    def _first(self, wanted: int, term: int, allow: bool) -> Any:
        """Returns the trees of the checkpoint that is asked for, or None if the run is proven to be empty. Ranks of an attempt get
        the same checkpoint from the server; readers take the one that rank 0 gets."""
        self._fell_back = False
        error: Optional[CairnError] = None
        found: Any = None
        op: Any = None
        if not self._client.read_only or self._group.rank == 0:
            op = self._begin([], (wanted, term), allow)
            try:
                self._finish(op)
                found = [op.result(0).step, op.result(0).term]
            except NotFoundError as failure:
                error = None if op.run_is_empty else failure
            except DamagedError as failure:  # a reader looks for an older one itself
                error, found = (None, self._latest()) if self._client.read_only and allow else (failure, None)
            except CairnError as failure:
                error = failure
        if not self._client.read_only:
            if error is not None:
                raise error
            return op if found is not None else None
        self._group.agree(error, "restore")
        found = json.loads(self._group.gather(json.dumps(found).encode())[0])
        return None if found is None else self._fetch_alike([], tuple(found), allow)

    def _latest(self, before: Optional[tuple] = None) -> list:
        """(step, term) of the newest checkpoint on the lineage, or of the newest good one before another."""
        for item in self._client.list():
            if not item.superseded and (before is None or (item.health != "damaged" and (item.term, item.step) < before)):
                return [item.step, item.term]
        raise DamagedError.of("no checkpoint before the damaged one is good; `cairn ls RUN --all` shows what there is")

    def _fetch_alike(self, rows: list, which: tuple, allow_older: bool) -> Any:
        """As ``_fetch``. For an attempt the server finds an older checkpoint when this one is damaged; readers, which the server
        does not know to belong together, look for it themselves, and all take the same one."""
        while self._client.read_only:
            op, error = self._try(rows, which, allow_older)
            codes = [int(code) for code in self._group.gather(str(0 if error is None else error.code).encode())]
            if not any(codes):
                return op
            if not allow_older or not set(codes) <= {0, DamagedError.CODE, DigestMismatchError.CODE}:
                self._group.agree(error, "reading the checkpoint")
            older: Any = None
            error = None
            try:
                older = self._latest((which[1], which[0])) if self._group.rank == 0 else None
            except CairnError as failure:
                error = failure
            self._group.agree(error, "looking for an older checkpoint")
            which, rows, self._fell_back = tuple(json.loads(self._group.gather(json.dumps(older).encode())[0])), [], True
        return self._fetch(rows, which, allow_older)

    def _fetch(self, rows: list, which: tuple, allow_older: bool, coordinates: Sequence[str] = (), values: Sequence[str] = ()) -> Any:
        """One restore of (step, term) into these rows, finished; blobs of this rank or of these coordinates, and DCP's ``values``."""
        op, error = self._try(rows, which, allow_older, coordinates, values)
        if self._client.read_only:
            self._group.agree(error, "reading the checkpoint")
        elif error is not None:
            raise error
        return op

    def _try(self, rows: list, which: tuple, allow_older: bool, coordinates: Sequence[str] = (), values: Sequence[str] = ()) -> tuple:
        """Returns (the operation, its error or None)."""
        op: Any = None
        try:
            op = self._begin(rows, which, allow_older, coordinates, values)
            self._finish(op)
        except CairnError as failure:
            return op, failure
        return op, None

    def _begin(self, rows: list, which: tuple, allow_older: bool, coordinates: Sequence[str] = (), values: Sequence[str] = ()) -> Any:
        client = self._client
        if client.read_only:
            rows = [(*row[:8], None, *row[9:]) for row in rows]  # a reader has no group of ranks
        client.set_tensors(rows)
        # Blobs of a coordinate come when something is registered under it, and those that DCP has saved by their names.
        client.set_blobs([(LOCAL_BLOB, TREE, tree.encode(None), LOCAL, coordinate)
                          for coordinate in coordinates or [self._state.coordinate]]
                         + [(name, BYTES, b"", SHARDED, None) for name in (DCP_BLOB, *values)])
        return client.restore(which[0], term=which[1], allow_older=allow_older, strict=True, deadline=self._deadline)

    def _finish(self, op: Any) -> None:
        op.wait()
        self._client.set_tensors([])  # nothing refers to the tensors any longer

    @staticmethod
    def _metadata(op: Any) -> Any:
        try:
            data = op.metadata()
        except DamagedError:
            warnings.warn("the metadata of this checkpoint is lost: its manifest was made again from its parts (cairn salvage)",
                          CairnWarning, stacklevel=4)
            return None
        if not data:
            return {}
        try:
            return tree.decode(data)
        except FormatError:
            return data  # another client's

    def _fetch_all_ranks(self, op: Any, root: dict) -> tuple:
        """(local trees, partition trees, trees of stages by coordinate) of all old ranks, where a rule for another mesh, an
        optimizer whose state is spread over the ranks, or stages want them."""
        partitioned = any(stored.get("partitioned") for stored in root["parts"].values())
        rules = self._is_reshaped(root)
        stages = root.get("stages", {})
        if not root["coordinates"] or not (partitioned or rules or stages):
            return [], [], {}
        result, names = op.result(0), root["coordinates"]
        all_op = self._fetch([], (result.step, result.term), False, names)
        local = [tree.decode(all_op.blob(LOCAL_BLOB, name), deferred=True) for name in names] if rules else []
        spread = [partition_of(all_op, name, bool(stages)) for name in names] if partitioned else []
        return local, spread, {name: tree.decode(all_op.blob(STAGE_BLOB, name), deferred=True)
                               for name in dict.fromkeys(stages.values())}

    def _is_reshaped(self, root: dict) -> bool:
        """Returns whether the ranks are others than those that saved."""
        return sorted(root["coordinates"]) != sorted(self._group.coordinates)

    # --- plan: nothing of the state is touched ----------------------------------------------------------------------

    def _plan_all(self, op: Any, strict: bool) -> Plan:
        plan, error = Plan(self._state.layouts, Only(self._only), self._cast), None
        self._rng_state: Optional[dict] = None
        self._strict = strict
        self._apply_parts: list = []
        values = dcp_values(op)  # the same on all ranks, as is its error
        if values:
            op = self._fetch([], (op.result(0).step, op.result(0).term), False, (), values)
        try:
            root = stored_root(op, self._state, plan)
        except CairnError as failure:
            root, error = {}, failure
        self._group.agree(error, "reading the stored state")
        states, partitions, stages = self._fetch_all_ranks(op, root)
        try:
            self._join_stages(root, stages, plan)
            self._root_names = names_digest({ref.name for ref in tree.refs(root["parts"])})
            self._local = None if self._is_reshaped(root) else self._local_tree(op)
            self._take_own(op, root, states, plan)
            self._plan_parts(root, partitions, plan)
            self._plan_local(op, root, states, plan)
            plan.check_memory()
            plan.part_memory()
        except CairnError as failure:
            error = failure
        self._group.agree(error, "planning the restore")
        if stages or any(self._state.first):
            self._unexpected_by_all(plan)
        if strict:
            self._group.agree(self._check_strict(plan), "planning the restore")
        return plan

    @staticmethod
    def _check_strict(plan: Plan) -> Optional[CairnError]:
        try:
            plan.only.check_used()
        except MissingTensorError as error:
            return error
        if plan.missing or plan.unexpected:
            return MissingTensorError.of(similar.explain(plan.missing, plan.unexpected))
        return None

    def _unexpected_by_all(self, plan: Plan) -> None:
        """Of what this rank has no place for, only what no other rank has one for either."""
        of_all = set.intersection(*(set(json.loads(data)) for data in self._group.gather(json.dumps(plan.unexpected).encode())))
        plan.unexpected = [name for name in plan.unexpected if name in of_all]

    def _join_stages(self, root: dict, stages: dict, plan: Plan) -> None:
        if not stages:
            return
        has_own = not self._is_reshaped(root)
        own = root["stages"][self._state.coordinate] if has_own else None
        ordered = sorted(stages, key=lambda name: name != own)  # its own first, the others as they were
        root["parts"], notes = merge([stages[name].get("parts") for name in ordered], has_own)
        plan.warnings.extend(notes)

    def _local_tree(self, op: Any) -> dict:
        local = tree.decode(op.blob(LOCAL_BLOB, self._state.coordinate), deferred=True)
        if type(local) is not dict or type(local.get("parts")) is not dict or type(local.get("rng")) is not dict:
            raise FormatError.of("the stored state of this rank does not have the parts that this version reads, so another version of "
                                 "cairn.torch.Checkpointer wrote it; restore it with that version or a newer one")
        return local

    def _take_own(self, op: Any, root: dict, states: list, plan: Plan) -> None:
        """Parts that the ranks should have alike, as this rank had them. Where the ranks have changed, rank 0's stand, with a
        word where the others were different."""
        self._own_arrays = {} if self._local is None else self._local.get("arrays", {})
        if self._local is None:
            plan.warnings.extend(others_were_odd(states) if plan.only.is_all else ())
            return
        plan.warnings.extend(not_kept(root, self._local) if plan.only.is_all else ())
        stored: dict = {}

        def find(name: str) -> Optional[Ref]:
            if not stored:
                stored.update({item.name: item for item in op.entries() if item.kind == 0 and not item.coordinate})
            item = stored.get(name)
            return None if item is None else Ref(name, "torch", item.dtype, item.shape)

        for part in self._state.parts:
            data = self._local.get("own", {}).get(part.key)
            known = root["parts"].get(part.key, {})
            if data is not None and known.get("kind") == part.kind and not known.get("partitioned"):
                root["parts"][part.key] = part.with_own(known, tree.decode(data, deferred=True), find)

    def _plan_of_rank(self, part: Part, local: dict, shared: dict, plan: Plan, coordinate: Optional[str] = None) -> None:
        """A part that belongs to the rank; an older checkpoint may hold it as one for all, or for another coordinate."""
        if part.key not in local and part.key in shared:
            part = make_part(part.key, part.obj, self._state.layouts, coordinate)
            local = shared
        self._plan_part(part, local, plan, None)

    def _plan_parts(self, root: dict, partitions: list, plan: Plan) -> None:
        names = self._state.names()
        for walk in names.walks:
            for name, tensor in walk.tensors.items():
                plan.keep(f"{walk.key}.{name}", tensor)
        stored = root["parts"]
        plan.stored_types = {f"{key}.{name}": ref.dtype for key, part in stored.items() if part.get("kind") == "module"
                             for name, ref in part["tensors"].items() if type(ref) is Ref}
        for part in self._state.parts:
            if stored.get(part.key, {}).get("partitioned"):
                stored[part.key]["state"] = merge_partitions(part.key, partitions, "stages" in root)
            self._plan_part(part, stored, plan, names)
        plan.unexpected.extend(key for key in stored if key not in self._state.values
                               and self._is_selected(key, stored_names(key, stored[key]), plan))

    @staticmethod
    def _is_selected(key: str, names: Sequence[str], plan: Plan) -> bool:
        """Whether anything of a part is; asks for all names, so that each pattern finds what it means."""
        return plan.only.is_all or any([plan.only.has(name) for name in (key, *names)])

    def _plan_part(self, part: Part, stored: dict, plan: Plan, names: Any) -> None:
        found = [] if plan.only.is_all else part.live_names(names) + stored_names(part.key, stored.get(part.key, {}))
        if not self._is_selected(part.key, found, plan):
            return
        if part.key not in stored:
            plan.missing.append(part.key)
            return
        kind = stored[part.key].get("kind")
        if kind != part.kind:
            raise InvalidError.of(f"{part.key}: it was stored as {kind}, but the live one is {part.kind}; give the same objects under "
                                  "the same names as in the save")
        part.plan(stored[part.key], plan, names)
        self._apply_parts.append(part)

    def _plan_local(self, op: Any, root: dict, states: list, plan: Plan) -> None:
        """What belongs to the rank: as it was on the same mesh, by each part's rule on another one."""
        result = op.result(0)
        self._reseed = f"term {result.term} step {result.step} rank {self._group.rank} of {self._group.world_size}"
        self._reshaped: list = []
        self._has_rng = plan.only.has(RNG)
        if not root["coordinates"]:
            if self._has_rng:
                plan.warnings.append("the checkpoint was saved by torch.distributed.checkpoint, which stores no RNGs: they are seeded "
                                     "anew, so training goes on from the same state on another trajectory")
            self._plan_one_for_all(root["parts"], plan)
            return
        if self._is_reshaped(root):
            old, new = root["coordinates"], self._group.coordinates
            what = (f"of {len(old)} ranks, now there are {len(new)}" if len(old) != len(new)
                    else f"of the ranks {old[0]} to {old[-1]}, now they are {new[0]} to {new[-1]}")
            if self._has_rng:
                plan.warnings.append(f"the checkpoint is {what}: the RNGs are seeded anew, so training goes on from the same "
                                     "state on another trajectory")
            self._plan_reshape(old, states, root["parts"], plan)
            return
        assert self._local is not None
        local = self._local
        self._rng_state = local["rng"]
        if plan.only.is_all and "own" not in local and "stages" not in root and local.get("names", self._root_names) != self._root_names:
            plan.warnings.append("when this was saved, this rank held other tensors than rank 0 (optimizer state of parameters "
                                 "that got a gradient on some ranks only?); what rank 0 had is what comes back on all ranks")
        for part in self._state.local_parts:
            self._plan_of_rank(part, local["parts"], root["parts"], plan)
        plan.unexpected.extend(key for key, stored in local["parts"].items() if key not in self._state.on_reshape
                               and self._is_selected(key, stored_names(key, stored), plan))

    def _plan_one_for_all(self, shared: dict, plan: Plan) -> None:
        """What belongs to the rank, from a checkpoint that holds one state of it for all ranks."""
        for part in self._state.local_parts:
            rule = self._state.on_reshape[part.key]
            if not self._is_selected(part.key, part.live_names(None), plan):
                continue
            if self._group.world_size > 1 and rule == "error":
                raise UnsupportedError.of(f"{part.key}: its state belongs to each rank, but torch.distributed.checkpoint has saved one for "
                                          "all; use per_rank(obj, on_reshape=\"reseed\"), or leave it out with restore(only=...)")
            if self._group.world_size > 1 and rule == "reseed":
                plan.warnings.append(f"{part.key}: it is left as it is, because the checkpoint has one state of it for all ranks")
                continue
            if self._group.world_size > 1 and callable(rule):
                stored = shared.get(part.key, {}).get("value")
                for ref in tree.refs(stored):
                    plan.want(ref)
                self._reshaped.append((part, rule, [(None, stored)]))
                continue
            if self._group.world_size > 1:
                plan.warnings.append(f"{part.key}: torch.distributed.checkpoint has saved one rank's, which comes back on all")
            self._plan_of_rank(part, {}, shared, plan)

    def _plan_reshape(self, old: list, states: list, shared: dict, plan: Plan) -> None:
        for part in self._state.local_parts:
            if not self._is_selected(part.key, part.live_names(None), plan):
                continue
            rule = self._state.on_reshape[part.key]
            if rule == "error":
                raise refuse_reshape(part.key, old, self._group.coordinates)
            if all(part.key not in state["parts"] for state in states) and part.key in shared:
                self._plan_of_rank(part, {}, shared, plan)
                continue
            if rule == "same":
                values = [state["parts"].get(part.key) for state in states]
                if len(old) > 1 and any(value is None or value != values[0] or list(tree.refs(value)) for value in values):
                    raise refuse_reshape(part.key, old, self._group.coordinates)
                self._plan_of_rank(part, {}, {} if values[0] is None else {part.key: values[0]}, plan, old[0])
                continue
            if rule == "reseed":
                plan.warnings.append(f"{part.key}: it is left as it is, because the ranks have changed")
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

    def _apply_together(self, plan: Plan) -> None:
        """On all ranks, or an error on all: one that could not (foreign code in load_state_dict) must not stay behind alone."""
        error: Optional[Exception] = None
        try:
            self._apply_all(plan)
        except Exception as failure:  # whatever it is, the other ranks have to hear of it
            error = failure
        self._group.agree(error, "putting the state back")

    def _apply_all(self, plan: Plan) -> None:
        plan.finish()
        plan.put_back(self._own_arrays, self._strict)
        for part in self._apply_parts:
            part.apply(plan)
        for part, rule, values in self._reshaped:
            self._apply_reshaped(part, rule, values, plan)
        for part in self._apply_parts:
            part.verify(plan)
            if isinstance(part, ValueState) and part.replaced:
                part.replaced = False
                self._state.replaced(part)
        if not self._has_rng:
            pass
        elif self._rng_state is not None:
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
