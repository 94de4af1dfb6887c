# SPDX-License-Identifier: Apache-2.0
"""Checkpointer: saves and restores a whole training state. state.py and parts.py collect the state, libcairn moves the bytes, and
restore.py plans a restore and puts the state back."""

from __future__ import annotations

import json
import operator
import os
import signal
import time
import warnings
from typing import Any, Callable, Mapping, Optional, Sequence, Union

from .. import exits, tree
from ..client import LATEST, Checkpoint, Client, Operation
from ..doors import settle
from ..errors import (CairnError, ClosedError, FencedError, ForkedError, InternalError, InvalidError, NotFoundError, ReadOnlyError,
                      SkippedError, UnsupportedError, UnsupportedValueError)
from .commits import Commit, Commits
from .futures import Failures, Outage, Restored, SaveHandle, log
from .device import Loan, is_capturing
from .group import Group
from .lazy import Guard
from .own import differences
from .pace import Advice, Pacer
from .part import CairnWarning
from .refusal import Refusal, is_of_this_rank
from .restore import Restore, parse_step
from .sharded import Layouts
from .state import State
from .stop import Stopper

_RANKS_S, _RESTORE_S, _SAVE_S, _IO_S = 600.0, 600.0, 600.0, 30.0
_PATIENCE_S = 5.0  # how long a call may take where training must not wait for the server
# The call raises these errors, because the caller can mend them. All others are handled as if the save had failed later.
_CALLERS = (InvalidError, UnsupportedError, FencedError, ForkedError, ClosedError, InternalError, ReadOnlyError)


def warm_ddp(ddp: Any, fn: Callable[[], Any]) -> None:
    """Lets DDP rebuild its gradient buckets before a restore.

    With three or more ranks a training is bit-identical after a restart only if the buckets are. Call it before
    ``restore``, which puts back buffers and random number generators.

    Args:
        ddp: The DistributedDataParallel module.
        fn: Returns a loss; it is called, and its gradients are dropped, twice.
    """
    for _ in range(2):
        fn().backward()
        ddp.zero_grad(set_to_none=True)


def _seconds(what: str, given: Optional[float], default: float) -> float:
    if given is None:
        return default
    if isinstance(given, bool) or not isinstance(given, (int, float)) or not given >= 0:
        raise InvalidError.of(f"{what} is {given!r}; it must be seconds, 0 or more, or None")
    return float(given)


class Checkpointer:
    """Saves and restores a training state. Every rank makes one, with the same ``state``.

    Making one is a collective call when there is more than one rank, and its errors are raised on all of them. One
    thread saves and restores. In a forked child every call raises ForkedError. A Checkpointer is a context manager.

    Args:
        url: ``cairn://host:port/project/run``, ``cairn+unix:///path?run=project/run``, or ``cairn:///project/run`` for the
            server in CAIRN_SERVER.
        state: Names and objects: modules, optimizers, anything with ``state_dict`` and ``load_state_dict``,
            ``per_rank(...)``, torch.Generator, tensors, or plain values (the typed tree, cairn.tree). The random number
            generators of every rank are saved too.
        on_error: What becomes of saves that fail in the background: "warn", "raise", or a function of (step, error).
        read_only: True restores only, and needs no attempt. Several ranks restore the same checkpoint.
        process_group: The ranks that save together; None is all.
        attempt: The attempt token; None lets rank 0 draw it and hand it out.
        coordinate: What this rank's own state is known by: a mapping (``{"dp": 3, "tp": 0}``) or a DeviceMesh with names.
            None is the rank's number. All ranks give one, or none.
        rank: The number of this rank, where torch.distributed is not used.
        world_size: The number of ranks, where torch.distributed is not used.
        max_failures: With "warn", how many saves in a row may fail before ``save`` raises.
        max_age: With "warn", how many seconds may pass without a good save before ``save`` raises.
        restore_deadline: Seconds for a restore (600).
        ranks_deadline: Seconds that the ranks wait for each other where a call has no deadline of its own: making the
            Checkpointer, ``should_stop``, ``should_save``. None is ``io_deadline`` where that is given, else 600. The error names
            the rank that did not come, its host, and what it was last seen doing.
        when_down: What becomes of a save that would hold up training because a rank cannot reach the server. "skip": it is skipped
            on all ranks (``handle.skipped``, ``skipped_saves``, ``outage``, a warning once a minute), and the next one that can
            go goes. "train": the same, and the Checkpointer can be made while no server answers; it connects later. "wait":
            the save waits for as long as its deadline.
        snapshot: "copy": ``save`` returns when all is copied. "lazy": parameters in the state's torch.optim optimizers, and
            the state of these, are copied later, and the next step of any optimizer waits until they are; so is what the
            state has of the ``state_dict()`` of optimizers that have stepped. All else is copied before ``save`` returns.
            Whoever changes a parameter by other means than an optimizer's step waits for the handle's ``released`` first.
        verify_staged: "sampled" or "full", for lazy saves: fails a save by the tensor's name where that was forgotten. "auto" is
            "sampled" for tensors in the CPU's memory, where it costs less than 1 % of a save, and nothing for devices; None is nothing.
        check_replicas: "warn" or "fail": at every save, ranks compare the bytes of what they replicate, which reads all of
            it once more. The warning, or ReplicasDifferError, names tensor and ranks.
        stop_signals: The signals after which ``should_stop`` becomes true.
        interval: Seconds between two saves, or "auto", for ``should_save``. "auto" follows what is measured, by Young's and
            Daly's rule: the time that saves hold up the training, the time until they are durable, and the restarts of
            this run.
        overhead_max: The share of the time that saves take at most, for "auto".
        mtbf: Seconds between failures to expect before any was seen, for "auto"; None is 50,700 hours / ranks.
        on_commit: A function that the first rank calls with a Commit for each of its saves that is durable, from the next ``save``,
            ``wait`` or ``close``. What it raises is logged. cairn.trackers has some.
        **options: ``arena_bytes``, ``snapshots``, ``when_full``, ``threads``, ``io_deadline``, ``save_deadline``,
            ``cert_file``, ``key_file``, ``ca_file``, ``label`` and ``encoding``, as for cairn.Client.

    Raises:
        CairnError: What opening a Client raises, on all ranks.
        UnsupportedValueError: A plain value in ``state`` cannot be stored; the text has its path. What the objects there hold is looked
            at by ``save``.
    """

    def __init__(self, url: str, state: Mapping[str, Any], on_error: Union[str, Callable] = "warn",
                 read_only: bool = False, process_group: Any = None, attempt: Optional[str] = None, *,
                 coordinate: Any = None, rank: Optional[int] = None, world_size: Optional[int] = None, max_failures: int = 3,
                 max_age: Optional[float] = 1800.0, restore_deadline: Optional[float] = None, ranks_deadline: Optional[float] = None,
                 snapshot: str = "copy", verify_staged: Optional[str] = "auto", check_replicas: Optional[str] = None,
                 stop_signals: Sequence[int] = (signal.SIGTERM,), interval: Union[None, str, float] = None,
                 overhead_max: float = 0.05, mtbf: Optional[float] = None, when_down: str = "skip",
                 on_commit: Optional[Callable[[Commit], Any]] = None, **options: Any) -> None:
        self._pid = os.getpid()
        self._commits = Commits(on_commit, url)
        self._failures = Failures(on_error, max_failures, max_age)
        self._restore_deadline, self._read_only = restore_deadline, read_only
        self._inflight: list = []
        self._unusable = ""
        self._record_due = 0.0
        self._saved: set = set()  # steps, since the last restore
        self._published: Optional[bool] = None  # what this rank holds; False when it was compared with the others'
        if snapshot not in ("copy", "lazy") or (verify_staged not in (None, "auto") and snapshot != "lazy"):
            raise InvalidError.of(f'snapshot is {snapshot!r}; it must be "copy" or "lazy", with verify_staged "lazy" only')
        if verify_staged not in (None, "auto", "sampled", "full"):
            raise InvalidError.of(f'verify_staged is {verify_staged!r}; it must be "auto", "sampled", "full" or None')
        if check_replicas not in (None, "warn", "fail") or (check_replicas and snapshot == "lazy"):
            raise InvalidError.of(f'check_replicas is {check_replicas!r}; it must be "warn" or "fail", with snapshot "copy"')
        if when_down not in ("skip", "train", "wait"):
            raise InvalidError.of(f'when_down is {when_down!r}; it must be "skip", "train" or "wait"')
        self._may_wait = when_down == "wait"
        self._check_replicas = check_replicas
        self._verify_staged = verify_staged
        self._guard: Optional[Guard] = Guard() if snapshot == "lazy" and not read_only else None
        self._client: Optional[Client] = None
        io_deadline = options.get("io_deadline")
        waits = _seconds("ranks_deadline", ranks_deadline if ranks_deadline is not None else io_deadline, _RANKS_S)
        self._restore_s = _seconds("restore_deadline", restore_deadline, _RESTORE_S)
        self._save_s = _seconds("save_deadline", options.get("save_deadline"), _SAVE_S)
        self._group = Group(process_group, rank, world_size, read_only, waits)
        self._refusal = Refusal(self._group)
        self._stopper = Stopper(self._group, stop_signals)
        self._pacer: Optional[Pacer] = None
        if interval is not None:
            self._pacer = Pacer(self._group, interval, overhead_max, mtbf, int(options.get("snapshots") or 1))
        error: Optional[BaseException] = None
        with self._group.within("Checkpointer", waits):
            token = self._group.token(attempt)
            self._group.share_coordinate(coordinate)
        names: dict = {}
        place = {} if read_only else {"rank": self._group.rank, "world_size": self._group.world_size, "attempt": token}
        try:
            self._state = State(state, Layouts(self._group.ranks, self._group.me), self._group.coordinate)
            names = self._state.held_names()
            if not read_only:
                self._state.check_values()
            self._client = Client(url, read_only=read_only, when_down=when_down, **place, **options)
        except Exception as failure:  # whatever it is, the other ranks must not wait for this one
            error = failure
        try:
            with self._group.within("Checkpointer", waits + _seconds("io_deadline", io_deadline, _IO_S)):
                self._group.agree(error, "opening the checkpointer")
                self._state.set_stages(*self._group.share_names(names), names)
        except BaseException:
            self._drop()
            raise
        exits.watch(self)

    def _drop(self) -> None:
        if self._guard is not None:
            self._guard.close()
        if self._client is not None:
            try:
                self._client.close(0)
            except CairnError:
                pass  # the error that led here says more
            self._client = None

    @property
    def state(self) -> dict:
        """What is saved, by name. Objects may be replaced, added and removed here, by all ranks alike; the next ``save`` or
        ``restore`` takes what is here then. Where ranks hold other tensors after that, they meet for it, and a rank that has
        changed nothing is named."""
        return self._state.values

    def __enter__(self) -> "Checkpointer":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            self.close()
        except CairnError as failure:
            if error is None:
                raise
            warnings.warn(f"closing the Checkpointer failed: {failure}", CairnWarning, stacklevel=2)

    def _live(self) -> Client:
        if os.getpid() != self._pid:
            raise ForkedError.of("this Checkpointer belongs to the parent process; only the parent saves")
        if self._client is None:
            raise ClosedError.of("this Checkpointer is closed; create a new one")
        return self._client

    # --- save ---------------------------------------------------------------------------------------

    def save(self, step: int, metadata: Optional[Mapping[str, Any]] = None,
             metrics: Optional[Mapping[str, float]] = None, tags: Sequence[str] = (),
             deadline: Optional[float] = None, full: bool = False) -> SaveHandle:
        """Saves the state as ``step``. Every rank calls it, after the same training step.

        Returns when the state is copied and may change; with ``snapshot="lazy"`` it may change by the next optimizer step. A
        step that this Checkpointer has saved already, with no restore since, is not written again: the save ends well with
        the contents of the first one, and a CairnWarning says so. Earlier saves that failed are raised here as ``on_error``
        says.

        Args:
            step: The step, 0 or more.
            metadata: Plain values, 16 KiB at most once encoded. Metadata, metrics, tags and ``full`` count from rank 0.
            metrics: Numbers by name. NaN is kept, and is never the best one.
            tags: Texts.
            deadline: Seconds until durable; None is the ``save_deadline``.
            full: True shares no stored bytes with older checkpoints, so that damage to them cannot reach it.

        Returns:
            The save in flight, with its two futures.

        Raises:
            UnsupportedValueError: Something cannot be stored; the text has its path. The save has not started.
            FencedError: A newer attempt has taken over: stop, or restore before the next save.
        """
        client, start = self._live(), time.monotonic()
        if self._read_only:
            raise ReadOnlyError.of("this Checkpointer was created with read_only=True, so it cannot save")
        self._group.begin()
        began = self._pacer.now() if self._pacer is not None else 0.0
        try:
            self._refusal.end(step, min(_IO_S if self._may_wait else _PATIENCE_S, self._save_s if deadline is None else deadline))
            self._poll()
            self._failures.check(before_save=True)
            self._tell_differences()
            lazy, loan, rows, note = self._prepare(step, metadata, (self._save_s if deadline is None else deadline) / 2)
        except BaseException as error:  # whatever it is, Ctrl-C too, the other ranks must not wait for this one
            self._refusal.tell(client, step, error, self._save_s)
            raise
        op, begun = Operation(), False
        try:
            if rows[0] is not None:
                self._state.registered = None
                client.set_tensors(rows[0])
                self._state.registered = rows[2]
            client.set_blobs(rows[1])
            begun = True
            client.save(step, tags=tags, metrics=metrics, metadata=note, deadline=deadline,
                        lazy=lazy, verify_staged=self._watch(loan) if lazy else None,
                        check_replicas=self._check_replicas, full=full, cuda_event=loan.event(), into=op)
        except CairnError as error:
            if not begun or is_of_this_rank(error):
                self._refusal.tell(client, step, error, self._save_s)
            if isinstance(error, FencedError):
                self._failures.failed(step, error)
            if isinstance(error, _CALLERS):
                raise
            self._failures.failed(step, error)
            self._failures.check(before_save=False)
            if self._pacer is not None and isinstance(error, SkippedError):
                self._pacer.skipped()
            return SaveHandle(step, None, error)
        except BaseException as error:  # Ctrl-C
            if op.has_begun:
                self._begun(step, op, loan if lazy else None, start, began)
            else:
                self._refusal.tell(client, step, error, self._save_s)
            raise
        if not lazy:
            loan.end()
        return self._begun(step, op, loan if lazy else None, start, began)

    def _begun(self, step: int, op: Operation, loan: Optional[Loan], start: float, began: float) -> SaveHandle:
        """Takes account of a save in flight. ``loan`` is what a lazy one still reads."""
        if loan is not None:
            assert self._guard is not None
            self._guard.add(op, loan)
        handle = SaveHandle(step, op)
        self._inflight.append(handle)
        if self._group.rank == 0:
            self._commits.began(handle, start)
        if operator.index(step) in self._saved:
            warnings.warn(f"step {step} is already saved and stays as it was, without later changes; save the state as another "
                          "step", CairnWarning, stacklevel=3)
        if self._pacer is not None:
            self._pacer.saved(handle, began)
        return handle

    def _prepare(self, step: int, metadata: Optional[Mapping[str, Any]], seconds: float) -> tuple:
        """(is it lazy, what is borrowed, rows of tensors and blobs, encoded metadata). Its errors are this rank's alone."""
        if self._unusable:
            raise InvalidError.of(f"the state in memory is unusable ({self._unusable}); restore again, or start from the beginning")
        self._refresh(f"save of step {step}", seconds)
        if self._guard is not None:
            self._guard.wait()  # for the save before this one
        lazy = self._guard is not None and not is_capturing()
        loan = Loan(lazy)
        rows = self._state.collect(self._group.rank, self._group.coordinates, loan, lazy)
        if self._published is None:
            self._published = True
            self._group.publish(json.dumps(self._state.digests()))
        return lazy, loan, rows, self._note(metadata)

    def _refresh(self, what: str, seconds: float) -> None:
        """Takes what was put into ``state``. Ranks that hold other tensors now meet, because all must know who has what."""
        names = self._state.refresh()
        if names is None:
            self._group.pass_by(what)
        else:
            self._state.set_stages(*self._group.meet_names(names, what, seconds), names)

    def _watch(self, loan: Loan) -> Optional[str]:
        """How a lazy save finds what changes too early. Samples of a device's memory would each be a copy of their own."""
        if self._verify_staged == "auto":
            return None if loan.has_devices else "sampled"
        return self._verify_staged

    def _tell_differences(self) -> None:
        """Warns on rank 0, once, of what the ranks should hold alike and do not. Nobody waits for a rank that has not saved yet."""
        texts = self._group.published() if self._published and self._group.rank == 0 else None
        if texts is None:
            return
        self._published = False
        for text in differences([json.loads(text) for text in texts], self._state.first):
            warnings.warn(text, CairnWarning, stacklevel=3)

    @staticmethod
    def _note(metadata: Optional[Mapping[str, Any]]) -> bytes:
        if metadata is not None and not isinstance(metadata, Mapping):
            raise InvalidError.of(f"save: metadata is a {type(metadata).__qualname__}; it must be a mapping of names to values")
        return tree.encode(dict(metadata), "metadata") if metadata else b""

    def _poll(self) -> None:
        """Takes note of saves that have ended."""
        for handle in [handle for handle in self._inflight if handle.durable.done() or handle.refused()]:
            self._inflight.remove(handle)
            self._commits.ended(handle)
            told = handle.told
            refused = handle.refused()
            try:
                if refused is not None:
                    raise refused
                handle.durable.result(0)
                self._failures.succeeded()
                self._saved.add(operator.index(handle.step))
                if handle.warning:
                    warnings.warn(f"step {handle.step}: {handle.warning}", CairnWarning, stacklevel=3)
            except CairnError as error:
                self._failures.failed(handle.step, error, told)

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for all saves in flight. Failures are told as ``on_error`` says.

        Args:
            timeout: Seconds to wait for each; None waits as long as their deadlines.

        Returns:
            True if all have ended.
        """
        self._live()
        self._poll()
        ended = all([handle.durable.wait(timeout) for handle in list(self._inflight)])
        self._poll()
        self._tell_differences()
        self._failures.check(before_save=False)
        return ended

    # --- when ----------------------------------------------------------------------------------------

    def should_save(self, step: int) -> bool:
        """Returns whether the interval has passed since the last save.

        Every rank calls it once a step, with the same number, and all get the same answer, one step late where there are
        several. With "auto" the first save is due at once, since it measures.

            for step in range(start, n):
                train(step)
                if ck.should_save(step):
                    ck.save(step)

        Args:
            step: The present step.

        Raises:
            InvalidError: The Checkpointer was made without ``interval``, or the ranks are at different steps.
            MissingRanksError: A rank did not come within ``ranks_deadline``; the text names it.
        """
        client = self._live()
        if self._pacer is None:
            raise InvalidError.of('should_save: this Checkpointer was created without an interval; give interval="auto", or seconds')
        if self._group.rank == 0 and time.monotonic() >= self._record_due:
            self._record_due = float("inf")
            try:
                self._pacer.seen(client.list(None if self._may_wait else _PATIENCE_S))
            except CairnError as error:
                log.warning("the interval between saves does not count earlier restarts, because the run could not be listed: %s", error)
        return self._pacer.should_save(step)

    @property
    def advice(self) -> Optional[Advice]:
        """What interval="auto" has come to, on rank 0; None before the first save is durable."""
        return self._pacer.advice if self._pacer is not None else None

    # --- stopping and notes ---------------------------------------------------------------------------

    def should_stop(self, step: int) -> bool:
        """Returns whether to leave the training loop after this step.

        Every rank calls it once a step, with the same number, and all get the same answer at the same step: true one or two
        steps after one of ``stop_signals`` reached any rank, or after ``request_stop`` on any, and ever after. The first call
        installs the signal handlers, in front of those that are there, which are called too. With ranks of its own
        (``rank=``, no torch.distributed) each process answers for itself.

            for step in range(start, n):
                train(step)
                if ck.should_stop(step):
                    ck.save(step)
                    break

        Args:
            step: The present step.

        Raises:
            InvalidError: The ranks are at different steps.
            MissingRanksError: A rank did not come within ``ranks_deadline``; the text names it.
        """
        self._live()
        return self._stopper.should_stop(step)

    def request_stop(self) -> None:
        """Lets ``should_stop`` become true on all ranks. Any thread or signal handler of any rank may call it."""
        self._stopper.request()

    def annotate(self, step: Union[str, int] = "latest", metrics: Optional[Mapping[str, float]] = None,
                 tags: Sequence[str] = (), remove_tags: Sequence[str] = ()) -> None:
        """Adds metrics and tags to a committed checkpoint, for what is known only after the save.

        Those of rank 0 count; the other ranks may call it too. It waits while that step is still being saved.

        Args:
            step: As for ``restore``.
            metrics: Numbers by name, set or replaced.
            tags: Tags to add.
            remove_tags: Tags to take away.

        Raises:
            NotFoundError: The checkpoint was never committed, or is forgotten.
            InvalidError: A metric is NaN; the text names it.
            TooLargeError: There are more than 32 tags or 64 metrics.
        """
        client = self._live()
        number, term = parse_step(step)
        if self._group.rank != 0:
            return
        for handle in list(self._inflight):
            if handle.step == number or number == LATEST:
                handle.durable.wait()
        self._poll()
        client.annotate(number, term=term, metrics=metrics, tags=tags, remove_tags=remove_tags)

    def list(self, timeout: Optional[float] = None) -> list:
        """Returns the committed checkpoints of the run as ``cairn.Checkpoint``, newest first. Any rank may call it alone.

        Args:
            timeout: Seconds to wait for the server; None is the ``io_deadline``.
        """
        return self._live().list(timeout)

    def status(self, step: Union[str, int] = "latest", timeout: Optional[float] = None) -> Checkpoint:
        """Returns what is known of one checkpoint. Any rank may call it alone.

        Args:
            step: As for ``restore``. "STEP@TERM" also tells of a checkpoint that is open, aborted or forgotten.
            timeout: Seconds to wait for the server; None is the ``io_deadline``.

        Raises:
            NotFoundError: There never was such a checkpoint; without a term, no committed one on the lineage has this step.
        """
        client = self._live()
        number, term = parse_step(step)
        if term:
            found = client.status(term, number, timeout)
            if found.state == "none":
                raise NotFoundError.of(f"step {number} of term {term} was asked for, and the run has never had it; "
                                       "Checkpointer.list() has what there is")
            return found
        for item in client.list(timeout):
            if item.latest if number == LATEST else item.step == number and not item.superseded:
                return item
        raise NotFoundError.of("the run has no checkpoint yet" if number == LATEST else
                               f"step {number} is not among the committed checkpoints of the run; \"STEP@TERM\" also tells what became "
                               "of one that was not committed, or was forgotten")

    @property
    def outage(self) -> Optional[Outage]:
        """Since when saves are skipped because a rank cannot reach the server, how many, and why; None while saves go well."""
        self._poll()
        return self._failures.outage

    @property
    def skipped_saves(self) -> int:
        """How many saves were skipped so far, for want of room (``when_full``) or of a server (``when_down``). None has failed."""
        return self._failures.skipped

    @property
    def failed_saves(self) -> int:
        """How many saves have failed so far, in the background or at once."""
        return self._failures.total

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits for saves in flight, then leaves. May be repeated.

        Args:
            timeout: Seconds to wait; None waits as long as their deadlines.
        """
        if self._client is None or os.getpid() != self._pid:
            return
        self._stopper.remove()
        client, handles = self._client, list(self._inflight)
        error: Optional[CairnError] = None
        try:
            client.close(timeout)
        except CairnError as failure:
            error = failure
        finally:
            self._client = None
            try:
                self._tell_differences()
            finally:
                self._group.close()
                if self._guard is not None:
                    self._guard.close()
        self._poll()
        if error is not None and not handles:
            raise error
        self._failures.check(before_save=False)

    def __del__(self) -> None:
        """Nobody has called ``close``: a save in flight is not given up for that."""
        if getattr(self, "_client", None) is None or os.getpid() != self._pid:
            return
        self._leave(exits.WAIT_S, "the Checkpointer was dropped")
        self._stopper.remove()
        if self._guard is not None:
            self._guard.close()

    def _leave(self, seconds: float, why: str = "the interpreter ends") -> None:
        """Nobody has called ``close``: saves in flight get so many seconds."""
        if self._client is None or os.getpid() != self._pid:
            return
        try:
            self._poll()
            self._failures.check(before_save=False)
        except Exception as error:  # of a save that has ended before, or of on_error
            log.error("%s: %s", why, error)
        self._client._leave(seconds, why)
        self._client = None

    def __reduce__(self) -> Any:
        raise UnsupportedValueError.of("a Checkpointer belongs to its process and cannot be sent to another one (a DataLoader "
                                       "worker, a spawned process): keep it out of the dataset")

    # --- restore ------------------------------------------------------------------------------------

    def restore(self, step: Union[str, int] = "latest", strict: bool = True, *,
                only: Optional[Sequence[str]] = None, share: Optional[str] = None, cast: bool = False) -> Optional[Restored]:
        """Fills the state from a checkpoint. Every rank calls it, and all get the same one. Saves of this process into the run
        are waited for.

        Errors before the arrays move (NotFoundError, ShapeMismatchError, UnreachableError and others) leave the state as it
        was. After a later one the state in memory is unusable, and the error says so. Plain values that cannot be changed in
        place are replaced in ``self.state``.

        Args:
            step: "latest", a number, or "STEP@TERM". When the latest is damaged, all ranks take the newest good one before it,
                and ``fell_back`` is true.
            strict: True raises MissingTensorError when state and checkpoint hold different things. False restores what both
                have, and lists the rest.
            only: Patterns (``*``, ``?``, ``[a-z]``) of names, the same on all ranks. All else stays as it is, and is neither
                missing nor unexpected. A name is a key of the state ("model", "optim", and all below it) or what is below
                one: "model.0.weight", "optim.model.0.weight" (its optimizer state), "optim.groups[0]", "extra.epoch".
                Schedulers and the like come as wholes; the random number generators are "cairn.rng". With ``strict`` a
                pattern that meets nothing is MissingTensorError, with names that resemble it.
            share: "broadcast" reads once what several ranks hold alike (all of DDP's state, the replicas of HSDP and of
                pipeline stages): each of them reads a part and sends it to the others over Cairn's gloo group, with its
                digest.
            cast: True lets a live tensor have another type than the stored one, such as bfloat16 for float32: it gets the nearest
                values, and ``Restored.cast`` names it. State of an optimizer that had its parameter's type follows the
                parameter. Without it that is DtypeMismatchError. Floating-point numbers do not become integers.

        Returns:
            What was restored; None only for a run that is proven to be empty.
        """
        client = self._live()
        self._group.begin()
        if self._guard is not None:
            self._guard.wait()
        error: Optional[CairnError] = None
        try:
            settle(client.url, self._restore_s, self._read_only)
            self._poll()
            self._refresh("restore", self._restore_s)
        except CairnError as failure:  # the other ranks wait for this one
            error = failure
        self._state.registered = None  # a restore gives the client rows of its own
        job = Restore(client, self._group, self._state, self._restore_deadline, error)
        began = time.monotonic()
        try:
            with self._group.within("restore", self._restore_s):
                return job.run(step, strict, only, share, cast)
        finally:
            if job.is_done:
                self._saved = set()
                self._failures.restored()
            if job.is_done and self._pacer is not None:
                self._pacer.restart_s = time.monotonic() - began
            # What is unusable in parts that were not selected stays so.
            if job.unusable or (job.is_done and only is None):
                self._unusable = job.unusable
