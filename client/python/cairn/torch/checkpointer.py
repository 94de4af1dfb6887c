# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves and restores a whole training state. The road: parts.py collects, libcairn moves the bytes.

A restore has two steps: first the typed trees, which say what arrays the checkpoint holds; then the arrays, straight
into the live tensors where they lie on the CPU. If the second step had to fall back to an older checkpoint, it is
planned anew from that one's trees, on all ranks alike, since all see the same (term, step).
"""

from __future__ import annotations

import os
import warnings
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from .. import tree
from ..client import LATEST, LOCAL, REPLICATED, TREE, Client
from ..errors import (CairnError, ClosedError, FencedError, ForkedError, FormatError, InternalError, InvalidError,
                      MissingTensorError, NotFoundError, ReadOnlyError, UnsupportedError, with_text)
from . import arrays, rng
from .futures import Failures, Restored, SaveHandle
from .group import Group
from .naming import Names, Walk
from .parts import CairnWarning, GeneratorState, ModuleState, Part, ValueState, make_part
from .plan import Plan

STATE_BLOB, LOCAL_BLOB = "cairn.state", "cairn.local"
VERSION = 1
_ROUNDS_MAX = 64
# Of an error that the call itself gives, these are the caller's to mend; the rest is as if it failed later.
_CALLERS = (InvalidError, UnsupportedError, FencedError, ForkedError, ClosedError, InternalError, ReadOnlyError)


class PerRank:
    """See per_rank."""

    def __init__(self, obj: Any, on_reshape: Union[str, Callable]) -> None:
        if on_reshape not in ("error", "reseed") and not callable(on_reshape):
            raise InvalidError.of(f'per_rank: on_reshape is {on_reshape!r}; it may be "error", "reseed" or a callable')
        self.obj, self.on_reshape = obj, on_reshape


def per_rank(obj: Any, on_reshape: Union[str, Callable[[list, int, int], Any]] = "error") -> PerRank:
    """Marks an object whose state differs from rank to rank (a data loader, a sampler), for ``state``.

    ``on_reshape`` decides when the world size has changed: "error" raises; "reseed" leaves the object as it is, with a
    warning; a callable gets (states of all old ranks, rank, world size) and gives this rank's state.
    """
    return PerRank(obj, on_reshape)


def warm_ddp(ddp: Any, fn: Callable[[], Any]) -> None:
    """Lets DDP rebuild its gradient buckets before a restore: two backward passes of ``fn()``, a loss; gradients are
    dropped. With three or more ranks training is bit-identical after a restart only if the buckets are. Call it before
    ``restore``, which puts back buffers and RNG."""
    for _ in range(2):
        fn().backward()
        ddp.zero_grad(set_to_none=True)


def _parse_step(step: Union[str, int]) -> tuple:
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


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10])
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


class Checkpointer:
    """Saves and restores a training state; every rank makes one, with the same ``state``.

    ``url``: ``cairn://host:port/project/run`` or ``cairn+unix:///path?run=project/run``. ``state``: name -> model,
    optimizer, anything with state_dict and load_state_dict, ``per_rank(...)``, torch.Generator, tensor, or plain values
    (the typed tree, cairn.tree). The RNGs of every rank are saved too. ``on_error``: "warn", "raise" or a callable
    (step, error), for saves that fail in the background. ``read_only``: restore only, without a rank.
    ``process_group``: the ranks that save together (default: all). ``attempt``: the attempt token (default: drawn by
    rank 0 and handed out).

    Options: ``arena_bytes``, ``threads``, ``io_deadline``, ``save_deadline`` (seconds), ``restore_deadline`` (seconds),
    ``cert_file``, ``key_file``, ``ca_file``, ``label`` as for cairn.Client; ``max_failures`` (3), ``max_age`` (seconds,
    1800); ``rank`` and ``world_size`` where torch.distributed is not used.

    Construction is a collective call when there is more than one rank. Errors: UnreachableError and the others of
    Client, on all ranks. Not thread-safe; one thread saves and restores. In a forked child every call raises
    ForkedError.
    """

    def __init__(self, url: str, state: Mapping[str, Any], on_error: Union[str, Callable] = "warn",
                 read_only: bool = False, process_group: Any = None, attempt: Optional[str] = None, *,
                 rank: Optional[int] = None, world_size: Optional[int] = None, max_failures: int = 3,
                 max_age: Optional[float] = 1800.0, restore_deadline: Optional[float] = None, **options: Any) -> None:
        self._pid = os.getpid()
        self._failures = Failures(on_error, max_failures, max_age)
        self._restore_deadline, self._read_only = restore_deadline, read_only
        self.state = dict(state)
        self._inflight: list = []
        self._known: dict = {}
        self._known_local: dict = {}
        self._unusable = ""
        self._client: Optional[Client] = None
        self._group = Group(process_group, rank, world_size, read_only)
        self._coordinate = f"rank={self._group.rank}"
        error: Optional[BaseException] = None
        token = self._group.token(attempt)
        try:
            self._make_parts()
            self._client = Client(url, rank=self._group.rank, world_size=self._group.world_size, attempt=token,
                                  read_only=read_only, **options)
        except (CairnError, TypeError) as failure:
            error = failure
        try:
            self._group.agree(error, "opening the checkpointer")
        except BaseException:
            self._drop()
            raise

    def _make_parts(self) -> None:
        self._parts: list = []
        self._local_parts: list = []
        self._on_reshape: dict = {}
        for key, obj in self.state.items():
            if not isinstance(key, str) or not key or "." in key or key.startswith("cairn"):
                raise InvalidError.of(f"state: the key {key!r} must be a text without a dot that does not begin with cairn")
            if isinstance(obj, PerRank):
                self._local_parts.append(make_part(key, obj.obj, self._coordinate))
                self._on_reshape[key] = obj.on_reshape
                continue
            part = make_part(key, obj)
            if isinstance(part, GeneratorState):  # belongs to the rank without being told
                self._local_parts.append(make_part(key, obj, self._coordinate))
                self._on_reshape[key] = "reseed"
            else:
                self._parts.append(part)

    def _drop(self) -> None:
        if self._client is not None:
            try:
                self._client.close(0)
            except CairnError:
                pass  # the error that led here says more
            self._client = None

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.close()
        except CairnError as failure:
            if error is None:
                raise
            warnings.warn(f"while closing the checkpointer: {failure}", CairnWarning, stacklevel=2)

    def _live(self) -> Client:
        if os.getpid() != self._pid:
            raise ForkedError.of("this Checkpointer belongs to the parent process; only the parent saves")
        if self._client is None:
            raise ClosedError.of("this Checkpointer is closed; make a new one")
        return self._client

    def _names(self) -> Names:
        return Names([Walk(part.key, part.obj) for part in self._parts if isinstance(part, ModuleState)])

    def _refresh(self) -> None:
        """Plain values may have been replaced in self.state."""
        for part in self._parts + self._local_parts:
            if isinstance(part, ValueState):
                live = self.state[part.key]
                part.obj = live.obj if isinstance(live, PerRank) else live

    # --- save ---------------------------------------------------------------------------------------

    def _collect(self) -> tuple:
        """(rows for set_tensors, rows for set_blobs)."""
        names = self._names()
        shared = arrays.Collector(None, self._known)
        root = {"version": VERSION, "framework": "torch", "world_size": self._group.world_size,
                "parts": {part.key: part.collect(names) for part in self._parts}}
        local = arrays.Collector(self._coordinate, self._known_local)
        mine = {"version": VERSION, "rank": self._group.rank, "rng": rng.collect(),
                "parts": {part.key: part.collect(names) for part in self._local_parts}}
        blobs = [(STATE_BLOB, TREE, tree.encode(root, "", shared), REPLICATED, None),
                 (LOCAL_BLOB, TREE, tree.encode(mine, "", local), LOCAL, self._coordinate)]
        return shared.rows() + local.rows(), blobs

    def save(self, step: int, metadata: Optional[Mapping[str, Any]] = None,
             metrics: Optional[Mapping[str, float]] = None, tags: Sequence[str] = (),
             deadline: Optional[float] = None) -> SaveHandle:
        """Saves the state as ``step``; every rank calls it, after the same training step.

        Returns when the state is copied: it may change at once. ``metadata``: plain values, 16 KiB at most once
        encoded; ``metrics``: name -> number; ``tags``: texts; all from rank 0. ``deadline``: seconds until durable.
        What cannot be stored raises UnsupportedValueError with its path before the save starts. Earlier saves that
        failed are raised here according to ``on_error``; FencedError always: a newer attempt has taken over, stop.
        """
        client = self._live()
        self._poll()
        self._failures.check(before_save=True)
        if self._read_only:
            raise ReadOnlyError.of("this Checkpointer was made with read_only=True")
        if self._unusable:
            raise InvalidError.of(f"the state in memory is unusable ({self._unusable}): restore again, or start anew")
        self._refresh()
        tensors, blobs = self._collect()
        note = tree.encode(dict(metadata), "metadata") if metadata else b""
        try:
            client.set_tensors(tensors)
            client.set_blobs(blobs)
            op = client.save(step, tags=tags, metrics=metrics, metadata=note, deadline=deadline)
        except CairnError as error:
            if isinstance(error, FencedError):
                self._failures.failed(step, error)
            if isinstance(error, _CALLERS):
                raise
            self._failures.failed(step, error)
            self._failures.check(before_save=False)
            return SaveHandle(step, None, error)
        handle = SaveHandle(step, op)
        self._inflight.append(handle)
        return handle

    def _poll(self) -> None:
        """Takes note of saves that have ended."""
        for handle in [handle for handle in self._inflight if handle.durable.done()]:
            self._inflight.remove(handle)
            try:
                handle.durable.result(0)
                self._failures.succeeded()
            except CairnError as error:
                self._failures.failed(handle.step, error)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for all saves in flight; whether all have ended. Failures go the way of ``on_error``."""
        self._live()
        ended = all([handle.durable.wait(timeout) for handle in list(self._inflight)])
        self._poll()
        self._failures.check(before_save=False)
        return ended

    @property
    def failed_saves(self) -> int:
        """Saves that failed so far, in the background or at once."""
        return self._failures.total

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits for saves in flight (``timeout``: seconds; default: their deadline), then leaves. May be repeated."""
        if self._client is None or os.getpid() != self._pid:
            return
        client, handles = self._client, list(self._inflight)
        error: Optional[CairnError] = None
        try:
            client.close(timeout)
        except CairnError as failure:
            error = failure
        finally:
            self._client = None
            self._group.close()
        self._poll()
        if error is not None and not handles:
            raise error
        self._failures.check(before_save=False)

    # --- restore ------------------------------------------------------------------------------------

    def restore(self, step: Union[str, int] = "latest", strict: bool = True) -> Optional[Restored]:
        """Fills the state from a checkpoint; every rank calls it, all get the same one.

        ``step``: "latest", a number, or "STEP@TERM". When the latest is damaged, all ranks take the newest good one
        before it and ``fell_back`` is true. None only for a run proven to be empty. ``strict``: MissingTensorError
        when state and checkpoint hold different things; else both are listed and what both have is restored.

        Errors before the arrays move (NotFoundError, ShapeMismatchError, UnreachableError ...) leave the state as it
        was; after a later one the state in memory is unusable, and the error says so. Plain values that cannot be
        changed in place are replaced in ``self.state``.
        """
        client = self._live()
        wanted, term = _parse_step(step)
        self._refresh()
        allow = wanted == LATEST
        fell_back = False
        try:
            op = self._fetch(client, [], (wanted, term), allow)
        except NotFoundError:
            if wanted == LATEST:
                return None
            raise
        for _ in range(_ROUNDS_MAX):
            result = op.result(0)
            fell_back = fell_back or result.fell_back
            plan = self._plan_all(client, op, strict)
            try:
                op = self._fetch(client, plan.rows(), (result.step, result.term), allow)
                again = op.result(0)
                if (again.term, again.step) != (result.term, result.step):
                    fell_back = True
                    continue
                self._apply_all(plan)
            except BaseException as error:
                self._unusable = f"the restore of step {result.step} failed"
                if isinstance(error, CairnError) and "unusable" not in error.text:
                    raise with_text(error, f"{error.text}; the state in memory is unusable: restore again, or start "
                                           "anew") from error
                raise
            self._unusable = ""
            for text in plan.warnings:
                warnings.warn(text, CairnWarning, stacklevel=2)
            return Restored(result.term, result.step, fell_back, self._metadata(op), tuple(plan.missing),
                            tuple(plan.unexpected))
        raise InternalError.of(f"the restore fell back {_ROUNDS_MAX} times without coming to an end")

    def _fetch(self, client: Client, rows: list, which: tuple, allow_older: bool,
               coordinates: Sequence[str] = ()) -> Any:
        """One restore of (step, term) into these rows, finished; blobs of this rank or of these coordinates."""
        client.set_tensors(rows)
        # Blobs of a coordinate come when something is registered under it.
        client.set_blobs([(LOCAL_BLOB, TREE, tree.encode(None), LOCAL, coordinate) for coordinate in coordinates or [self._coordinate]])
        op = client.restore(which[0], term=which[1], allow_older=allow_older, strict=True, deadline=self._restore_deadline)
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

    def _root(self, op: Any) -> dict:
        try:
            root = tree.decode(op.blob(STATE_BLOB), deferred=True)
        except NotFoundError:
            raise FormatError.of("this checkpoint was not written by cairn.torch.Checkpointer: restore it with "
                                 "cairn.Client or `cairn restore`") from None
        if type(root) is not dict or root.get("version") != VERSION or type(root.get("parts")) is not dict:
            raise FormatError.of("the stored state is of another version of cairn.torch.Checkpointer")
        return root

    def _plan_all(self, client: Client, op: Any, strict: bool) -> Plan:
        """Nothing of the state is touched here; all ranks agree before anything is."""
        plan, error = Plan(), None
        self._rng_state: Optional[dict] = None
        self._apply_parts: list = []
        try:
            root = self._root(op)
            old_world = root["world_size"]
        except CairnError as failure:
            root, old_world, error = {}, self._group.world_size, failure
        states = self._fetch_all_ranks(client, op, old_world) if error is None else []
        try:
            if error is None:
                self._plan_parts(root, plan)
                self._plan_local(op, old_world, states, plan)
                if strict and (plan.missing or plan.unexpected):
                    raise MissingTensorError.of(
                        "the state and the checkpoint hold different things: "
                        + (f"the checkpoint lacks {_listed(plan.missing)}" if plan.missing else "")
                        + ("; " if plan.missing and plan.unexpected else "")
                        + (f"the state lacks {_listed(plan.unexpected)}" if plan.unexpected else "")
                        + "; strict=False restores what both have")
        except CairnError as failure:
            error = failure
        self._group.agree(error, "planning the restore")
        return plan

    def _plan_parts(self, root: dict, plan: Plan) -> None:
        names = self._names()
        stored = root["parts"]
        for part in self._parts:
            self._plan_part(part, stored, plan, names)
        plan.unexpected.extend(key for key in stored if key not in self.state)

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

    def _fetch_all_ranks(self, client: Client, op: Any, old_world: int) -> list:
        """The local trees of all old ranks, where a callable wants them because the world size has changed."""
        if old_world == self._group.world_size or not any(callable(rule) for rule in self._on_reshape.values()):
            return []
        result = op.result(0)
        coordinates = [f"rank={rank}" for rank in range(old_world)]
        all_op = self._fetch(client, [], (result.step, result.term), False, coordinates)
        return [tree.decode(all_op.blob(LOCAL_BLOB, name), deferred=True) for name in coordinates]

    def _plan_local(self, op: Any, old_world: int, states: list, plan: Plan) -> None:
        """What belongs to the rank: as it was in the same world, by each part's rule in another one."""
        result = op.result(0)
        self._reseed = f"term {result.term} step {result.step} rank {self._group.rank} of {self._group.world_size}"
        self._reshaped: list = []
        if old_world != self._group.world_size:
            plan.warnings.append(f"the checkpoint is of {old_world} ranks, now there are {self._group.world_size}: the RNGs "
                                 "are seeded anew, so training goes on from the same state on another trajectory")
            self._plan_reshape(old_world, states, plan)
            return
        local = tree.decode(op.blob(LOCAL_BLOB, self._coordinate), deferred=True)
        if type(local) is not dict or type(local.get("parts")) is not dict or type(local.get("rng")) is not dict:
            raise FormatError.of("the stored state of this rank is of another version of cairn.torch.Checkpointer")
        self._rng_state = local["rng"]
        for part in self._local_parts:
            self._plan_part(part, local["parts"], plan, None)
        plan.unexpected.extend(key for key in local["parts"] if key not in self._on_reshape)

    def _plan_reshape(self, old_world: int, states: list, plan: Plan) -> None:
        for part in self._local_parts:
            rule = self._on_reshape[part.key]
            if rule == "error":
                raise UnsupportedError.of(f"{part.key}: its state belongs to {old_world} ranks and cannot be given to "
                                          f"{self._group.world_size}; start with {old_world} ranks, or say "
                                          "per_rank(obj, on_reshape=...)")
            if rule == "reseed":
                plan.warnings.append(f"{part.key}: left as it is, because the world size has changed")
                continue
            values = []
            for rank, state in enumerate(states):
                if part.key not in state["parts"]:
                    raise MissingTensorError.of(f"{part.key}: rank {rank} of the checkpoint has no such state")
                value = state["parts"][part.key]["value"]
                for ref in tree.refs(value):
                    plan.want(ref, coordinate=f"rank={rank}")
                values.append(value)
            self._reshaped.append((part, rule, values))

    def _apply_all(self, plan: Plan) -> None:
        plan.finish()
        for part in self._apply_parts:
            part.apply(plan)
        for part, rule, values in self._reshaped:
            self._apply_reshaped(part, rule, values, plan)
        for part in self._apply_parts:
            part.verify(plan)
            if isinstance(part, ValueState) and part.replaced:
                old, part.replaced = self.state[part.key], False
                if isinstance(old, PerRank):
                    old.obj = part.obj
                else:
                    self.state[part.key] = part.obj
        if self._rng_state is not None:
            rng.apply(self._rng_state)
        else:
            rng.reseed(self._reseed)

    def _apply_reshaped(self, part: Part, rule: Callable, values: list, plan: Plan) -> None:
        states = []
        for rank, value in enumerate(values):
            states.append(tree.resolve(value, lambda ref, at=f"rank={rank}": plan.get(ref, at)))
        state = rule(states, self._group.rank, self._group.world_size)
        if isinstance(part, ValueState):
            holder = self.state[part.key]
            part.obj = holder.obj = state
        else:
            part._load(state)
