# SPDX-License-Identifier: Apache-2.0
"""Writer: DCP's StorageWriter over Cairn.

Every rank gives its boxes to libcairn in ``write_data``, where their copy begins; rank 0 keeps its own until
``finish``, where DCP has heard that no rank failed, adds the metadata, and opens the checkpoint on the server. So a
rank that fails leaves nothing behind, and the server commits when the parts of all ranks are durable, which
``finish`` waits for. ``prepare_*`` keep no state and plans carry none: the identity of a save is the Writer's.
"""

from __future__ import annotations

import os
import threading
import uuid
from typing import Any, Mapping, Optional, Sequence

import torch
from torch.distributed.checkpoint.metadata import Metadata, StorageMeta
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.storage import StorageWriter

from .. import tree
from ..client import DURABLE, SHARDED, TREE, Operation, Result
from ..errors import InvalidError, UnsupportedValueError
from ..torch.futures import Future
from ..torch.special import BITS_TYPES
from . import metadata as codec
from . import session as sessions
from .items import METADATA_BLOB, Collected
from .stager import Handed, Staging
from ..names import is_checkpoint, parse_id, split_url


class Saving(Future):
    """A save that ``async_save`` has begun: a Future of ``cairn.torch``, whose result is a ``cairn.Result``."""

    def __init__(self, op: Operation, session: sessions.Session, before: frozenset) -> None:
        super().__init__(op, DURABLE, None)
        self._session, self._before = session, before

    def result(self, timeout: Optional[float] = None) -> Optional[Result]:
        """Returns what ``Future.result`` does. Raises ExistsError if the step was saved before."""
        found = super().result(timeout)
        self._session.check(found, self._before)
        return found


class Writer(StorageWriter):
    """Saves to a run of Cairn: ``dcp.save(sd, checkpoint_id="step-100", storage_writer=Writer(run_url))``.

    Making the first Writer is a collective call, on a gloo group of Cairn's own. A step is saved once: a second save of
    it is ExistsError. Errors reach every rank inside DCP's CheckpointException, which is a BaseException and no Exception.
    Writers of one process share their connection. Pickling one (async_save in process mode) hands the connection over.

    Args:
        path: The URL of the run, or of a checkpoint in it.
        step: The step, for ids that hold none.
        process_group: The ranks that save together, the one that is given to dcp.save; None is all.
        attempt: The attempt token; None lets rank 0 draw it.
        rank: The number of this rank, where torch.distributed is not used.
        world_size: The number of ranks, where torch.distributed is not used.
        allow_opaque: True stores values that the typed tree cannot hold as pickles, marked as such, instead of failing the
            save by name.
        tags: Tags of each save, from rank 0.
        metrics: Metrics of each save, from rank 0.
        **options: Other options, as for cairn.Client.
    """

    def __init__(self, path: Any, *, step: Optional[int] = None, process_group: Any = None,
                 attempt: Optional[str] = None, rank: Optional[int] = None, world_size: Optional[int] = None,
                 allow_opaque: bool = False, tags: Sequence[str] = (), metrics: Optional[Mapping[str, float]] = None,
                 **options: Any) -> None:
        super().__init__()
        self._run_url, name = split_url(os.fspath(path))
        self._step, self._allow_opaque = step, allow_opaque
        self._tags, self._metrics, self._options = tuple(tags), dict(metrics or {}), options
        self._given_id: Optional[str] = os.fspath(path) if name else None
        self.last: Optional[Result] = None  # of the last save, on rank 0
        self._transient = False
        self._pending: Optional[Saving] = None  # of async_save
        self._mine = threading.local()  # of the save that runs in a thread: id, target, what rank 0 holds, the Handed
        self._handed: dict = {}  # what DCP's async_save has staged and may still read, by id()
        self.rank, self.world_size, self._attempt = sessions.attempt_of(process_group, rank, world_size, attempt)
        if self._given_id is not None and self._step is None:
            self._target()

    # --- identity ------------------------------------------------------------------------------------

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: Any) -> bool:
        return is_checkpoint(checkpoint_id)

    @property
    def checkpoint_id(self) -> Any:
        """The id that this thread's save was given, or None."""
        return getattr(self._mine, "given_id", self._given_id)

    def _target(self) -> tuple:
        """(URL of the run, step) of the save at hand."""
        given = self.checkpoint_id
        if given is None:
            if self._step is None:
                raise InvalidError.of("no checkpoint_id was given: dcp.save(..., checkpoint_id=\"step-100\"), or "
                                      "Writer(..., step=100)")
            return self._run_url, self._step
        parsed = parse_id(given, self._run_url)
        if parsed.step is None and self._step is None:
            raise InvalidError.of(f"the checkpoint id {given!r} holds no step: use \"step-100\", "
                                  "\"iter_0000100\" or \"epoch=3-step=500.ckpt\", or give Writer(step=...)")
        if parsed.step is not None and self._step is not None and parsed.step != self._step:
            raise InvalidError.of(f"the checkpoint id {given!r} names step {parsed.step}, but the Writer was made "
                                  f"with step={self._step}")
        return parsed.run_url, parsed.step if parsed.step is not None else self._step

    def reset(self, checkpoint_id: Any = None) -> None:
        """The id of this thread's next saves. async_save calls it in a thread of its own, where another save's id must not
        be seen; whoever calls it before, means the threads that come."""
        if checkpoint_id is not None:
            given = str(checkpoint_id) if isinstance(checkpoint_id, int) else os.fspath(checkpoint_id)
            self._mine.given_id = self._given_id = given
        self._mine.held = self._mine.handed = None

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def _session(self, run_url: str) -> sessions.Session:
        session = sessions.session_of(run_url, self._attempt, self.rank, self.world_size, self._options)
        session.transient = self._transient
        return session

    # --- DCP's road ----------------------------------------------------------------------------------

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        self._mine.held = None
        rank = kwargs.get("rank", 0 if is_coordinator else self.rank)
        if not kwargs.get("use_collectives", True) and self.world_size > 1:
            raise InvalidError.of("use_collectives=False makes a checkpoint for each rank; Cairn saves all ranks as one: "
                                  "leave it out")
        if rank != self.rank or is_coordinator != (self.rank == 0):
            raise self._other_world(f"DCP calls this process rank {rank}, but the Writer calls it rank {self.rank} of "
                                    f"{self.world_size}")
        run_url, step = self._target()
        self._session(run_url).prepare()
        self._mine.save = (run_url, step, uuid.uuid4().hex)

    def _other_world(self, what: str) -> InvalidError:
        return InvalidError.of(f"{what}: with no_dist=True, or another process_group than the Writer's, every process would "
                               "write the same checkpoint alone. Give both the same process_group; or, where each process "
                               "shall save for itself, a run of its own with Writer(..., rank=0, world_size=1)")

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Refuses by name what DCP's global plan, which comes next, cannot size."""
        for item in plan.items:
            if item.tensor_data is not None and item.tensor_data.properties.dtype in BITS_TYPES:
                raise UnsupportedValueError.of(
                    f"{item.index.fqn}: the tensor has the element type {item.tensor_data.properties.dtype}, of which "
                    "torch.distributed.checkpoint does not know the size: save its bytes, view(torch.uint8) or "
                    "view(torch.int16), and view them back after the load, or save it by cairn.torch.Checkpointer")
        return plan

    def prepare_global_plan(self, plans: list) -> list:
        if len(plans) != self.world_size:
            raise self._other_world(f"DCP plans for {len(plans)} ranks, but the Writer was made for {self.world_size}")
        return plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> torch.futures.Future:
        run_url, step, _ = self._mine.save
        collected = Collected(self._attempt, step, self._allow_opaque)
        collected.collect(plan, planner)
        if self.rank == 0:
            self._mine.held = collected
        else:
            is_guarded = self._transient or getattr(self._mine, "handed", None) is not None
            session = self._session(run_url)
            self._begun(session.save_part(step, collected.rows(), collected.blobs, is_guarded, cuda_event=collected.event()))
        future: torch.futures.Future = torch.futures.Future()
        future.set_result(collected.results)
        return future

    def finish(self, metadata: Metadata, results: list) -> None:
        run_url, step, save = self._mine.save
        held, self._mine.held = self._mine.held, None
        if held is None:
            raise InvalidError.of("finish was called without write_data in this thread; make all calls of one save in one thread")
        blobs = held.blobs + [self._entry(metadata, results)]
        self.last = self._session(run_url).save_all(step, held.rows(), blobs, self._begun, cuda_event=held.event(), **self._notes())

    def _begun(self, op: Operation) -> None:
        """The copy of this thread's save has begun: tells who waits for it in ``synchronize_staging``."""
        if getattr(self._mine, "handed", None) is not None:
            self._mine.handed.begun(op)

    def _entry(self, metadata: Metadata, results: list) -> tuple:
        _, step, save = self._mine.save
        return METADATA_BLOB, TREE, codec.encode(metadata, results, self._attempt, step, save), SHARDED, None

    def _notes(self) -> dict:
        note = tree.encode({"framework": "dcp", "checkpoint_id": str(self.checkpoint_id or "")[:1024]})
        return {"tags": self._tags, "metrics": self._metrics, "metadata": note}

    def begin(self, meet: Any, state_dict: dict, planner: SavePlanner) -> "Saving":
        """What ``async_save`` does: the plan of all ranks, and the copy into the arena. ``meet(mine, of_all)`` is a round of all ranks."""
        if self._pending is not None:
            self._pending.wait()  # two saves of a run at a time would share a place
        metadata: list = []
        entry: list = []

        def plan() -> SavePlan:
            self.set_up_storage_writer(self.rank == 0, rank=self.rank)
            planner.set_up_planner(state_dict, self.storage_meta(), self.rank == 0)
            return self.prepare_local_plan(planner.create_local_plan())

        def plan_all(plans: list) -> list:
            plans, found = planner.create_global_plan(plans)
            metadata.append(found)
            return self.prepare_global_plan(plans)

        final = planner.finish_plan(meet(plan, plan_all))
        run_url, step, _ = self._mine.save
        collected = Collected(self._attempt, step, self._allow_opaque)

        def collect() -> list:
            collected.collect(final, planner)
            return collected.results

        def write_entry(results: list) -> list:
            entry.append(self._entry(metadata[0], results))
            return [None] * len(results)

        meet(collect, write_entry)
        session = self._session(run_url)
        op, before = session.begin(step, collected.rows(), collected.blobs + entry, cuda_event=collected.event(),
                                   **(self._notes() if self.rank == 0 else {}))
        self._pending = Saving(op, session, before if self.rank == 0 else frozenset())
        return self._pending

    # --- AsyncStager: async_save takes a writer that has these as its stager -------------------------

    _synchronize_after_execute = True  # the protocol is checked by its members' names, this one among them

    #: False lets async_save return at once. Call ``synchronize_staging`` then before the state changes.
    should_synchronize_after_execute = True

    def stage(self, state_dict: Any) -> Any:
        """What async_save may read of the state: the state itself, which must stay as it is until ``synchronize_staging`` returns; a
        copy, where another save of this Writer is in flight that it would have to wait for."""
        for key, handed in list(self._handed.items()):
            if handed.is_over():
                self._handed.pop(key, None)
        if self._handed and self.world_size == 1:
            return Staging(state_dict).state
        handed = Handed(state_dict, self._take)
        self._handed[id(handed)] = handed
        return handed

    def _take(self, handed: Handed) -> None:
        self._mine.handed = handed

    def synchronize_staging(self) -> None:
        """Returns when the state that was staged is copied and may change. Where the save has failed before, its future tells."""
        for key, handed in list(self._handed.items()):
            handed.wait()
            self._handed.pop(key, None)

    # --- the end -------------------------------------------------------------------------------------

    def close(self) -> None:
        """Leaves the server; a later save connects again. For all Writers of this process and these ranks."""
        if self._pending is not None:
            self._pending.wait()
        sessions.close_sessions(self._attempt)

    def __getstate__(self) -> dict:
        sessions.close_sessions(self._attempt)  # the process that gets this Writer takes the rank's place
        state = {key: value for key, value in self.__dict__.items() if key not in ("_mine", "_pending", "_handed")}
        return {**state, "_given_id": self.checkpoint_id, "_loads": sessions.loads()}

    def __setstate__(self, state: dict) -> None:
        sessions.adopt_loads(state.pop("_loads"))
        self.__dict__.update(state)
        self._transient = True
        self._pending = None
        self._mine = threading.local()
        self._handed = {}
