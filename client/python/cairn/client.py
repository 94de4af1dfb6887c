# SPDX-License-Identifier: Apache-2.0
"""Client: one rank of one attempt, over any memory that has an address; what cairn.torch is built on.

Every wait releases the GIL and can be interrupted by Ctrl-C. Times are seconds as float; None waits for
as long as the operation's own deadline. All methods may be called from any thread; ``close`` last.
After ``os.fork`` the child's objects answer ForkedError and cost nothing; the parent's go on.
"""

from __future__ import annotations

import itertools
import operator
import os
import sys
import time
import warnings
import weakref
from typing import Any, Iterable, Mapping, Optional, Sequence

from . import _cairn, exits
from .errors import CairnError, InvalidError
from .operation import (BYTES, DONE, DTYPES, DURABLE, HANDED_OVER, LATEST, LOCAL, RELEASED, REPLICATED, SHARDED, STAGED, TREE,
                        Checkpoint, Local, Operation, Result, checkpoint_of)

__all__ = ["BYTES", "DONE", "DTYPES", "DURABLE", "HANDED_OVER", "LATEST", "LOCAL", "RELEASED", "REPLICATED", "SHARDED", "STAGED", "TREE",
           "Checkpoint", "Client", "Local", "Operation", "Result", "new_attempt"]

_SECONDS_MAX = 1_000_000_000  # as good as for ever
_WHEN_FULL = {None: 0, "wait": 1, "skip": 2, "fail": 3}
_WHEN_DOWN = {None: 0, "wait": 1, "skip": 2, "train": 3}
_CHECK = {None: 0, "warn": 1, "fail": 2}
_VERIFY = {None: 0, "sampled": 1, "full": 2}
_ENCODINGS = {None: 0, "auto": 1, "raw": 2, "dense": 3}  # enum cairn_encoding


def new_attempt() -> str:
    """Draws a fresh attempt token, 32 hex digits. Rank 0 draws it once, and all ranks open their clients with it."""
    return _cairn.new_attempt()


def _choice(what: str, table: dict, value: Optional[str]) -> int:
    if value not in table:
        raise InvalidError.of(f"{what} is {value!r}; it must be {', '.join(repr(key) for key in table if key)}")
    return table[value]


def _step(what: str, value: Any) -> int:
    try:
        step = operator.index(value)
    except TypeError:
        raise InvalidError.of(f"{what}: the step must be an integer, but it is {value!r}") from None
    if not 0 <= step < LATEST:
        raise InvalidError.of(f"{what}: the step must be 0 to {LATEST - 1}, but it is {step}")
    return step


def _step_or_latest(what: str, value: Any) -> int:
    """The extension would take -1 for LATEST."""
    return LATEST if value == LATEST else _step(what, value)


def _metrics(what: str, metrics: Optional[Mapping[str, float]]) -> tuple:
    rows = []
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InvalidError.of(f"{what}: metrics is {metrics!r}; it must be a mapping of names to numbers")
    for name, value in (metrics or {}).items():
        try:
            rows.append((str(name), float(value.detach() if hasattr(value, "detach") else value)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidError.of(f"{what}: the metric {name!r} is {value!r}, which is not a number") from None
    return tuple(rows)


def _ms(what: str, seconds: Optional[float]) -> int:
    """Returns seconds as milliseconds, and 0 for None, which stands for a default. Raises InvalidError for a time that is none."""
    if seconds is None:
        return 0
    try:
        is_possible = seconds >= 0  # which NaN is not
    except TypeError:
        is_possible = False
    if not is_possible:
        raise InvalidError.of(f"{what} is {seconds!r}; it must be seconds, 0 or more, or None")
    return max(1, int(min(seconds, _SECONDS_MAX) * 1000 + 0.999))


def _is_failing() -> bool:
    """Whether the program is ending by an error: one that is being handled, or one that nobody has caught."""
    return isinstance(sys.exc_info()[1] or getattr(sys, "last_value", None), Exception)


class Client:
    """A connection of one rank to one run.

    Making a Client returns when the server has answered. A Client is a context manager; ``close`` waits for saves in
    flight.

    Args:
        url: ``cairn://host:port/project/run`` or ``cairn+unix:///path?run=project/run``. Without a host,
            ``cairn:///project/run``, the variable CAIRN_SERVER names the server.
        rank: The number of this rank.
        world_size: How many ranks save together.
        attempt: The token that all ranks of one start share; None takes CAIRN_ATTEMPT or, in a world of one, a fresh token.
        read_only: True for a client that lists, asks for status and restores, and has no rank.
        arena_bytes: The most staging memory; 0 is what the rank writes. A larger save goes in waves.
        threads: Threads for copies and digests; 0 is one for each core, at most 4.
        io_deadline: Seconds for opening and small requests (30).
        save_deadline: Seconds for a save (600).
        cert_file: This client's certificate (PEM).
        key_file: Its private key (PEM).
        ca_file: The authority of the server's certificate (PEM). TLS is used when it is given.
        label: A text that is shown in logs.
        snapshots: Saves in flight that the arena has room for; 0 is 1, or 2 where arena_bytes allows it.
        when_full: What a save without room does: "wait", "skip" (SkippedError) or "fail" (BusyError).
        encoding: What is stored of a chunk, always without loss: "auto" (encoded where that is no slower than the way to
            the disk), "raw" or "dense". None takes CAIRN_ENCODING, or "auto".
        when_down: What a save does that would wait for a server which cannot be reached: "wait", or "skip" (SkippedError, on all
            ranks). "train" skips as well, and a Client can be made while no server answers.

    Raises:
        UnreachableError: No server answered in time.
        AuthError: The two ends do not trust each other.
        VersionError: They have no protocol version in common.
        DuplicateRankError: Another live process has this rank.
        WorldMismatchError: The world size differs from the attempt's.
        InvalidError: An argument is wrong; the text names it.
    """

    def __init__(self, url: str, *, rank: int = 0, world_size: int = 1, attempt: Optional[str] = None,
                 read_only: bool = False, arena_bytes: int = 0, threads: int = 0,
                 io_deadline: Optional[float] = None, save_deadline: Optional[float] = None,
                 cert_file: Optional[str] = None, key_file: Optional[str] = None,
                 ca_file: Optional[str] = None, label: Optional[str] = None, snapshots: int = 0,
                 when_full: Optional[str] = None, encoding: Optional[str] = None, when_down: Optional[str] = None) -> None:
        try:
            is_possible = 0 <= operator.index(arena_bytes) < 1 << 63
        except TypeError:
            is_possible = False
        if not is_possible:
            raise InvalidError.of(f"arena_bytes is {arena_bytes!r}; it must be an integer, 0 (what the rank writes) or more")
        self.url, self.rank, self.world_size, self.read_only = url, rank, world_size, read_only
        self._save_deadline = 600.0 if save_deadline is None else save_deadline
        self._ops: weakref.WeakSet = weakref.WeakSet()
        self._pid = os.getpid()
        self._handle = _cairn.Handle(url, dict(
            rank=rank, world_size=world_size, attempt=attempt, read_only=int(read_only), arena_bytes=arena_bytes,
            threads=threads, io_deadline_ms=_ms("io_deadline", io_deadline),
            save_deadline_ms=_ms("save_deadline", save_deadline),
            cert_file=cert_file, key_file=key_file, ca_file=ca_file, label=label, snapshots=snapshots,
            when_full=_choice("when_full", _WHEN_FULL, when_full),
            encoding=_choice("encoding", _ENCODINGS, encoding), when_down=_choice("when_down", _WHEN_DOWN, when_down)))
        exits.watch(self, is_client=True)

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.is_open():
            warnings.warn(f"cairn.Client of {self.url} was not closed, so its saves in flight are aborted; call close()",
                          ResourceWarning, source=self, stacklevel=2)

    def _leave(self, seconds: float, why: str = "the interpreter ends") -> None:
        """Closes the client, which nobody has closed. Saves in flight get so many seconds, and what is lost is logged."""
        if os.getpid() != self._pid or not self._handle.is_open():
            return
        from logging import getLogger  # here, since the import of cairn is to be short

        log = getLogger("cairn")
        steps = ", ".join(map(str, sorted(op._saved_step for op in self._ops if op._saved_step is not None and not op.done())))
        if steps:
            log.warning("%s while the save of step %s is in flight: waiting for up to %.0f s; call close() before the end",
                        why, steps, seconds)
        try:
            self.close(seconds)
        except CairnError as error:
            log.error("%s was not saved (%s): %s", f"step {steps}" if steps else "a step", why, error)

    def set_tensors(self, tensors: Iterable[tuple]) -> None:
        """Registers the tensors that are saved or filled, in place of the set before.

        Args:
            tensors: Tuples (name, dtype, shape, address, stride or None, keepalive, placement, coordinate or None, group or
                None, boxes or None[, eager[, device]]). ``dtype`` is a value of ``cairn.client.DTYPES``. ``address`` is the
                address of the first element. ``stride`` counts elements; None is row-major. ``keepalive`` is any object that
                owns the memory, and is referenced until the set is replaced. ``placement`` is REPLICATED, SHARDED or LOCAL.
                ``group`` lists the ranks that hold the same, ascending. ``boxes`` are tuples (offset, length, stride or None,
                address), where the rank holds only parts. ``eager`` 1 lets a lazy save copy it before it returns. ``device``
                1 + N is memory of CUDA device N, row-major; 0 is the CPU's.

        Raises:
            BusyError: An operation borrows the present set.
            InvalidError: A tensor is wrong; the text names it.
            UnsupportedError: There is no CUDA driver.
        """
        self._handle.set_tensors(list(tensors))

    def set_blobs(self, blobs: Iterable[tuple]) -> None:
        """Registers named bytes, in place of the set before. They are copied before the call returns.

        Args:
            blobs: Tuples (name, BYTES or TREE, data, placement, coordinate or None).
        """
        self._handle.set_blobs(list(blobs))

    def save(self, step: int, *, tags: Sequence[str] = (), metrics: Optional[Mapping[str, float]] = None,
             metadata: bytes = b"", deadline: Optional[float] = None, lazy: bool = False,
             verify_staged: Optional[str] = None, when_full: Optional[str] = None,
             check_replicas: Optional[str] = None, full: bool = False, cuda_event: int = 0,
             into: Optional[Operation] = None) -> Operation:
        """Saves the registered state as ``step``. Every rank calls it.

        Returns when all is copied; the tensors may then change again. Ctrl-C is raised when all is copied, in a lazy
        save too, and the save goes on; a second Ctrl-C gives a lazy save up.

        Args:
            step: The step, 0 or more.
            tags: Texts to keep with the checkpoint. Tags, metrics and metadata count from rank 0.
            metrics: Numbers by name. NaN is kept, and is never the best one.
            metadata: Opaque bytes, 16 KiB at most.
            deadline: Seconds until durable; None is the client's save_deadline.
            lazy: True returns when the eager tensors are copied; ``wait(RELEASED)`` before another one changes.
            verify_staged: "sampled" or "full", for lazy saves: a tensor that changed before RELEASED fails the save with
                DigestMismatchError and its name. cairn.h says what each of them sees.
            when_full: As for the client.
            check_replicas: "warn" or "fail", the same on all ranks, not for lazy saves: ranks compare the bytes that they
                replicate. Tensor and ranks are in ``Operation.warning``, or in ReplicasDifferError.
            full: True on rank 0 shares no stored bytes with older checkpoints.
            cuda_event: ``torch.cuda.Event.cuda_event`` of an event on the training's stream, which copies from devices wait
                for. Keep the event until RELEASED.
            into: An ``Operation()`` that becomes the save in flight, for a caller that goes on after Ctrl-C.

        Returns:
            The save in flight.

        Raises:
            ArenaTooSmallError: Not even two chunks fit into the arena.
            TimedOutError: The deadline passed before all was copied.
            SkippedError: There was no room, and ``when_full`` is "skip"; or no server could be reached, and ``when_down`` is not
                "wait". A lazy save may find this out later, when its operation ends so.
            BusyError: There was no room, and ``when_full`` is "fail"; or a restore or a save of this step runs.
            FencedError: A newer attempt has taken over the run.
        """
        step = _step("save", step)
        if isinstance(tags, str):
            raise InvalidError.of("save: tags must be a sequence of texts, not one text")
        rows = _metrics("save", metrics)
        args = (step, tuple(str(tag) for tag in tags), rows, metadata, _ms("deadline", deadline), 2 if lazy else 1,
                _choice("verify_staged", _VERIFY, verify_staged), _choice("when_full", _WHEN_FULL, when_full),
                _choice("check_replicas", _CHECK, check_replicas), int(bool(full)), int(cuda_event))
        op = into if into is not None else Operation()
        found: list = []
        try:
            found.extend(itertools.starmap(self._handle.save, [args]))  # in C alone, so that Ctrl-C loses no save
            op._op, op._saved_step = found[0], step
            self._ops.add(op)
        except BaseException:
            if found:
                op._op, op._saved_step = found[0], step
                self._ops.add(op)
                op._end_copy()
            raise
        return op

    def refuse(self, step: int, reason: str, code: int = 0, deadline: Optional[float] = None) -> Operation:
        """Says that this rank cannot save ``step``, which so fails on all ranks at once, with this reason.

        Args:
            step: The step that the other ranks save.
            reason: Why; the other ranks' errors have this text.
            code: The error's code (``CairnError.code``); 0 is AbortedError's.
            deadline: Seconds to wait for the other ranks' opening; None is the client's save_deadline.

        Returns:
            The refusal in flight, which ends with the error. Nobody has to wait for it.
        """
        return Operation(self._handle.save(_step("refuse", step), (), (), b"", _ms("deadline", deadline), 1, 0, 0, 0, 0, 0, reason, code))

    def restore(self, step: int = LATEST, *, term: int = 0, allow_older: Optional[bool] = None,
                strict: bool = True, deadline: Optional[float] = None, only: Sequence[str] = (),
                all_local: bool = False) -> Operation:
        """Fills the registered tensors. Every rank calls it.

        Until the operation is DONE without error the tensors' contents are unusable. When it ends with NotFoundError,
        ``Operation.run_is_empty`` says whether the run is proven to be empty.

        Args:
            step: A step, or LATEST.
            term: The term of the step; 0 is the newest on the lineage that has it.
            allow_older: Whether all ranks take an older checkpoint when this one is damaged; None does so for LATEST only.
            strict: True makes a registered tensor that is not stored a MissingTensorError; False leaves it as it is.
            deadline: Seconds for the restore; None is 600.
            only: Patterns (``*``, ``?``, ``[a-z]``) of the names to restore, tensors and blobs. All else stays as it is. With
                ``strict`` each pattern must match something.
            all_local: True brings LOCAL blobs of all coordinates; ``Operation.locals`` says which there are.

        Returns:
            The restore in flight.
        """
        allow = -1 if allow_older is None else int(allow_older)
        if isinstance(only, str):
            raise InvalidError.of("restore: only must be a sequence of patterns, not one text")
        op = Operation(self._handle.restore(_step_or_latest("restore", step), term, allow, int(strict), _ms("deadline", deadline),
                                            tuple(only), int(bool(all_local))))
        self._ops.add(op)
        return op

    def annotate(self, step: int = LATEST, *, term: int = 0, metrics: Optional[Mapping[str, float]] = None,
                 tags: Sequence[str] = (), remove_tags: Sequence[str] = (),
                 timeout: Optional[float] = None) -> None:
        """Adds metrics and tags to a committed checkpoint, for what is known only after the save.

        One rank calls it. The same call again changes nothing.

        Args:
            step: A step, or LATEST.
            term: The term of the step; 0 is the newest on the lineage that has it.
            metrics: Numbers by name, set or replaced.
            tags: Tags to add.
            remove_tags: Tags to take away.
            timeout: Seconds to wait; None is the client's io_deadline.

        Raises:
            NotFoundError: The checkpoint was never committed, or is forgotten.
            InvalidError: A metric is NaN; the text names it.
            TooLargeError: There are more than 32 tags or 64 metrics.
        """
        if isinstance(tags, str) or isinstance(remove_tags, str):
            raise InvalidError.of("annotate: tags must be a sequence of texts, not one text")
        rows = _metrics("annotate", metrics)
        self._handle.annotate(_step_or_latest("annotate", step), term, rows, tuple(str(tag) for tag in tags),
                              tuple(str(tag) for tag in remove_tags), _ms("timeout", timeout))

    def forget(self, step: int, *, term: int = 0, reason: str = "") -> None:
        """Forgets a committed checkpoint, as ``cairn forget RUN STEP`` does; ``cairn undelete`` brings it back for a while.

        Any client may, a read-only one too. With a term, the same call again changes nothing; without one, it forgets the
        version before.

        Args:
            step: Its step.
            term: The term of the step; 0 is the newest on the lineage that has it.
            reason: A text for the audit record.

        Raises:
            NotFoundError: No checkpoint of the lineage has the step.
            DeniedError: Retention's guard keeps it: it is pinned, in use, the newest, or one of the last two good ones.
        """
        self._handle.forget(_step("forget", step), term, reason)

    def list(self, timeout: Optional[float] = None) -> list:
        """Returns the committed checkpoints of the run, newest first.

        Args:
            timeout: Seconds to wait; None is the client's io_deadline.
        """
        return [checkpoint_of(*row) for row in self._handle.list(_ms("timeout", timeout))]

    def status(self, term: int, step: int, timeout: Optional[float] = None) -> Checkpoint:
        """Returns the truth about one checkpoint, also after a lost answer.

        Args:
            term: Its term.
            step: Its step.
            timeout: Seconds to wait; None is the client's io_deadline.
        """
        return checkpoint_of(self._handle.status(term, _step("status", step), _ms("timeout", timeout)))

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits for operations in flight, aborts what is left, and frees everything.

        May be repeated; does nothing in a forked child. Ctrl-C ends the wait, aborts, and is raised. While an exception is
        handled, or after one that nobody has caught, the job counts as failed: its restart is no planned one for
        ``cairn advise`` and ``interval="auto"``.

        Args:
            timeout: Seconds to wait; None is the save deadline.

        Raises:
            CairnError: The first error of a save that did not become durable meanwhile.
        """
        if not self._handle.is_open():
            return
        until = time.monotonic() + (self._save_deadline if timeout is None else timeout)
        try:
            error = None
            for op in [op for op in self._ops if not op.done() and op.refused() is None]:
                try:
                    op.wait(DONE, max(0.0, until - time.monotonic()))
                except CairnError as failure:
                    error = error or failure
        except BaseException:
            try:
                self._handle.close(0, _is_failing())
            except CairnError:
                pass  # the interrupt says more
            raise
        self._handle.close(max(0.0, until - time.monotonic()), _is_failing())
        if error is not None:
            raise error
