# SPDX-License-Identifier: Apache-2.0
"""Client: one rank of one attempt, over any memory that has an address; what cairn.torch is built on.

Every wait releases the GIL and can be interrupted by Ctrl-C. Times are seconds as float; None waits for
as long as the operation's own deadline. All methods may be called from any thread; ``close`` last.
After ``os.fork`` the child's objects answer ForkedError and cost nothing; the parent's go on.
"""

from __future__ import annotations

import operator
import os
import time
import warnings
import weakref
from dataclasses import dataclass, field
from typing import Any, Iterable, Mapping, Optional, Sequence

from . import _cairn
from .errors import CairnError, InvalidError, NotFoundError

LATEST = (1 << 64) - 1
_SECONDS_MAX = 1_000_000_000  # as good as for ever
STAGED, DONE = 1, 2
REPLICATED, SHARDED, LOCAL = 1, 2, 3
BYTES, TREE = 1, 2
_WHEN_FULL = {None: 0, "wait": 1, "skip": 2, "fail": 3}
_CHECK = {None: 0, "warn": 1, "fail": 2}
_VERIFY = {None: 0, "sampled": 1, "full": 2}

_STATES = ("none", "open", "committed", "aborted", "forgotten")
_HEALTH = ("verified", "suspect", "damaged")
_ENCODINGS = {None: 0, "auto": 1, "raw": 2, "dense": 3}  # enum cairn_encoding


def _dtype_table() -> dict:
    table, number = {}, 1
    while _cairn.dtype_row(number)[1] != 0:
        table[_cairn.dtype_row(number)[0]] = number
        number += 1
    return table


#: Element types by name: "bool", "uint8", "bfloat16", "float8_e4m3fn", ...
DTYPES: dict[str, int] = _dtype_table()


def new_attempt() -> str:
    """A fresh attempt token, 32 hex digits: rank 0 draws it once, all ranks open their clients with it."""
    return _cairn.new_attempt()


def _choice(what: str, table: dict, value: Optional[str]) -> int:
    if value not in table:
        raise InvalidError.of(f"{what} is {value!r}; it may be {', '.join(repr(key) for key in table if key)}")
    return table[value]


def _step(value: Any) -> int:
    try:
        step = operator.index(value)
    except TypeError:
        raise InvalidError.of(f"save: the step must be an integer, it is {value!r}") from None
    if not 0 <= step < LATEST:
        raise InvalidError.of(f"save: the step must be from 0 to {LATEST - 1}, it is {step}")
    return step


def _metrics(what: str, metrics: Optional[Mapping[str, float]]) -> tuple:
    rows = []
    if metrics is not None and not isinstance(metrics, Mapping):
        raise InvalidError.of(f"{what}: metrics is {metrics!r}; it must be a mapping of names to numbers")
    for name, value in (metrics or {}).items():
        try:
            rows.append((str(name), float(value.detach() if hasattr(value, "detach") else value)))
        except (TypeError, ValueError, OverflowError):
            raise InvalidError.of(f"{what}: the metric {name!r} is {value!r}, which is no number") from None
    return tuple(rows)


def _ms(what: str, seconds: Optional[float]) -> int:
    """Milliseconds; 0 for None, which stands for a default. InvalidError."""
    if seconds is None:
        return 0
    try:
        is_possible = seconds >= 0  # which NaN is not
    except TypeError:
        is_possible = False
    if not is_possible:
        raise InvalidError.of(f"{what} is {seconds!r}; it may be seconds, 0 or more, or None")
    return max(1, int(min(seconds, _SECONDS_MAX) * 1000 + 0.999))


@dataclass(frozen=True)
class Result:
    """What became of a save or restore; bytes are this rank's, ``blocked_s`` is how long the call itself took."""

    term: int
    step: int
    fell_back: bool
    new_lineage: bool
    plain_bytes: int
    stored_bytes: int
    blocked_s: float


@dataclass(frozen=True)
class Checkpoint:
    """One checkpoint of the run. ``parent`` is (term, step) or None; ``state`` "committed", "open", "aborted",
    "forgotten" or "none"; ``health`` "verified", "suspect" or "damaged"; ``commit_time`` seconds since 1970 UTC;
    ``tags`` and ``metrics`` those of the save and what was annotated since (None from ``status``)."""

    term: int
    step: int
    sequence: int
    plain_bytes: int
    stored_bytes: int
    parent: Optional[tuple]
    commit_time: float
    world_size: int
    state: str
    health: str
    superseded: bool
    latest: bool
    tags: Optional[tuple] = field(default=None, compare=False)
    metrics: Optional[Mapping[str, float]] = field(default=None, compare=False)


def _checkpoint(row: Sequence, tags: Optional[Sequence] = None, metrics: Optional[Sequence] = None) -> Checkpoint:
    (term, step, sequence, plain, stored, parent_term, parent_step, time_ns, world, state, health, superseded,
     latest) = row
    return Checkpoint(term, step, sequence, plain, stored,
                      (parent_term, parent_step) if parent_term else None, time_ns / 1e9, world,
                      _STATES[state] if 0 <= state < len(_STATES) else "unknown",
                      _HEALTH[health] if 0 <= health < len(_HEALTH) else "unknown", bool(superseded), bool(latest),
                      None if tags is None else tuple(tags), None if metrics is None else dict(metrics))


@dataclass(frozen=True)
class Local:
    """A tensor (``kind`` 0, with dtype and shape) or blob (BYTES, TREE) of a checkpoint, and its coordinate."""

    name: str
    coordinate: str
    kind: int
    dtype: Optional[str]
    shape: tuple
    plain_bytes: int


def _local(row: Sequence) -> Local:
    name, coordinate, kind, dtype, shape, size = row
    return Local(name, coordinate, kind, dtype or None, tuple(shape), size)


class Operation:
    """A save or restore in flight. Dropping a save's object does not end the save; dropping a restore's aborts it."""

    def __init__(self, op: Any) -> None:
        self._op = op

    def wait(self, stage: int = DONE, timeout: Optional[float] = None) -> bool:
        """Whether the stage was reached within ``timeout`` seconds; raises the operation's error. Repeatable."""
        return self._op.wait(stage, timeout)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        try:
            return self._op.wait(DONE, 0)
        except CairnError:
            return True

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits, then gives the result; AgainError when the time passed, else the operation's error."""
        self._op.wait(DONE, timeout)
        term, step, fell_back, lineage, plain, stored, blocked_ns = self._op.result()
        return Result(term, step, bool(fell_back), bool(lineage), plain, stored, blocked_ns / 1e9)

    @property
    def run_is_empty(self) -> bool:
        """Of a restore that ended with NotFoundError: whether the server has proven that the run has no checkpoint and
        never had one. Only then may training begin at step 0."""
        return self._op.run_is_empty()

    @property
    def warning(self) -> Optional[str]:
        """Of a finished save: what was noticed and is no failure, such as replicas that differ."""
        return self._op.warning()

    def blob(self, name: str, coordinate: Optional[str] = None) -> bytes:
        """A restored blob. ``coordinate`` None: "" or this rank's. NotFoundError."""
        data = self._op.blob(name, coordinate)
        if data is None:
            raise NotFoundError.of(f"the checkpoint holds no blob {name!r}"
                                   + (f" of {coordinate}" if coordinate else ""))
        return data

    def locals(self) -> list:
        """Of a finished restore: what belongs to coordinates in the checkpoint, of all of them, as Local."""
        return [_local(row) for row in self._op.locals()]

    def entries(self) -> list:
        """Of a finished restore: every tensor and blob of the checkpoint, registered or not, as Local; ``coordinate`` is
        "" for what belongs to none."""
        return [_local(row) for row in self._op.entries()]

    def metadata(self) -> bytes:
        """The metadata that rank 0 gave with the save."""
        return self._op.metadata()

    def missing(self) -> list:
        """Names that are registered but not stored (restore)."""
        return self._op.missing()

    def unexpected(self) -> list:
        """Names that are stored but not registered (restore)."""
        return self._op.unexpected()

    def progress(self) -> dict:
        """Bytes of this rank: total, staged, sent, durable."""
        return dict(zip(("total", "staged", "sent", "durable"), self._op.progress()))

    def abort(self) -> None:
        """Asks it to end; ``wait`` tells what came of it."""
        self._op.abort()


class Client:
    """A connection of one rank to one run.

    ``url``: ``cairn://host:port/project/run`` or ``cairn+unix:///path?run=project/run``. ``attempt``: the token
    that all ranks share (default: CAIRN_ATTEMPT, or a fresh one for a world of one). ``read_only``: list, status
    and restore, without a rank. ``arena_bytes``: staging memory at most (default: what the rank writes); a larger save
    goes in waves. ``snapshots``: saves in flight that it has room for (default: 1, or 2 where arena_bytes allows it).
    ``when_full``: what a save does that finds no room: "wait", "skip" (SkippedError) or "fail" (BusyError).
    ``threads``: for copies and digests. ``io_deadline``, ``save_deadline``: seconds (30, 600). ``cert_file``,
    ``key_file``, ``ca_file``: PEM; TLS is used when ca_file is given. ``label``: shown in logs. ``encoding``: what is
    stored of a chunk, always without loss: "auto" (where that is no slower than the way to the disk), "raw" or "dense"
    (default: CAIRN_ENCODING, or auto).

    Returns when the server has answered. UnreachableError, AuthError, VersionError, DuplicateRankError,
    WorldMismatchError, InvalidError. A context manager; ``close`` waits for saves in flight.
    """

    def __init__(self, url: str, *, rank: int = 0, world_size: int = 1, attempt: Optional[str] = None,
                 read_only: bool = False, arena_bytes: int = 0, threads: int = 0,
                 io_deadline: Optional[float] = None, save_deadline: Optional[float] = None,
                 cert_file: Optional[str] = None, key_file: Optional[str] = None,
                 ca_file: Optional[str] = None, label: Optional[str] = None, snapshots: int = 0,
                 when_full: Optional[str] = None, encoding: Optional[str] = None) -> None:
        try:
            is_possible = 0 <= operator.index(arena_bytes) < 1 << 63
        except TypeError:
            is_possible = False
        if not is_possible:
            raise InvalidError.of(f"arena_bytes is {arena_bytes!r}; it may be an integer, 0 (what the rank writes) or more")
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
            encoding=_choice("encoding", _ENCODINGS, encoding)))

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        handle = getattr(self, "_handle", None)
        if handle is not None and handle.is_open():
            warnings.warn(f"cairn.Client of {self.url} was not closed: saves in flight are aborted",
                          ResourceWarning, source=self, stacklevel=2)

    def set_tensors(self, tensors: Iterable[tuple]) -> None:
        """What is saved or filled; replaces the set before.

        Each is (name, dtype, shape, address, stride or None, keepalive, placement, coordinate or None, group or
        None, boxes or None[, eager[, device]]): ``dtype`` from ``cairn.client.DTYPES``; ``address`` of the first element,
        an int; ``stride`` in elements (None: row-major); ``keepalive`` any object that owns the memory, referenced
        until the set is replaced; ``placement`` REPLICATED, SHARDED or LOCAL; ``group`` the ranks that hold the
        same, ascending; ``boxes`` tuples (offset, length, stride or None, address) where the rank holds only
        parts; ``eager`` 1: a lazy save copies it before it returns; ``device`` 1 + N: memory of CUDA device N, row-major
        (0: the CPU's). BusyError while an operation borrows the present set; InvalidError names the tensor;
        UnsupportedError: there is no CUDA driver.
        """
        self._handle.set_tensors(list(tensors))

    def set_blobs(self, blobs: Iterable[tuple]) -> None:
        """Named bytes; replaces the set before. Each is (name, kind BYTES or TREE, data, placement, coordinate or
        None). Copied before the call returns."""
        self._handle.set_blobs(list(blobs))

    def save(self, step: int, *, tags: Sequence[str] = (), metrics: Optional[Mapping[str, float]] = None,
             metadata: bytes = b"", deadline: Optional[float] = None, lazy: bool = False,
             verify_staged: Optional[str] = None, when_full: Optional[str] = None,
             check_replicas: Optional[str] = None, full: bool = False, cuda_event: int = 0) -> Operation:
        """Saves the registered state as ``step``; every rank calls it. Returns when all is copied: the
        tensors may change again. ``deadline``: seconds until durable. Tags, metrics and metadata (16 KiB at
        most) count from rank 0.

        ``lazy``: returns when the tensors marked eager are copied; ``wait(STAGED)`` before another one changes.
        ``verify_staged`` ("sampled", "full"; lazy only): a tensor that changed before STAGED all the same fails the save
        with DigestMismatchError and its name; cairn.h says what each of them sees. ``when_full``: as for the client.
        ``check_replicas`` ("warn", "fail"; not lazy; the same on all ranks): ranks compare the bytes that they replicate;
        tensor and ranks are in ``warning`` of the operation, or in ReplicasDifferError.
        ``cuda_event``: ``torch.cuda.Event.cuda_event`` of an event recorded on the training's stream: copies of tensors on
        devices wait for it; keep the event until STAGED. ``full`` (rank 0's counts): shares nothing with older checkpoints. A metric may be NaN: it is kept, and never the
        best one.
        ArenaTooSmallError, TimedOutError, SkippedError, BusyError, FencedError."""
        step = _step(step)
        if isinstance(tags, str):
            raise InvalidError.of("save: tags is a sequence of texts, not one text")
        rows = _metrics("save", metrics)
        op = Operation(self._handle.save(step, tuple(str(tag) for tag in tags), rows, metadata, _ms("deadline", deadline),
                                         2 if lazy else 1, _choice("verify_staged", _VERIFY, verify_staged),
                                         _choice("when_full", _WHEN_FULL, when_full),
                                         _choice("check_replicas", _CHECK, check_replicas), int(bool(full)), int(cuda_event)))
        self._ops.add(op)
        return op

    def restore(self, step: int = LATEST, *, term: int = 0, allow_older: Optional[bool] = None,
                strict: bool = True, deadline: Optional[float] = None, only: Sequence[str] = (),
                all_local: bool = False) -> Operation:
        """Fills the registered tensors; every rank calls it. ``term`` 0: the newest that has the step.
        ``allow_older``: when the checkpoint is damaged, all ranks take an older one (None: for LATEST only).
        ``strict``: a registered tensor that is not stored is MissingTensorError; else it is left as it is.
        ``only``: patterns (``*``, ``?``, ``[a-z]``) of the names to restore, tensors and blobs; all else stays
        as it is; with ``strict`` each must match something. ``all_local``: LOCAL blobs of all coordinates come, not of this
        rank's own alone (``Operation.locals`` says which there are). Until
        the operation is DONE without error the tensors' contents are unusable. NotFoundError: there is
        no such checkpoint; ``Operation.run_is_empty`` says whether the run is proven to be empty."""
        allow = -1 if allow_older is None else int(allow_older)
        if isinstance(only, str):
            raise InvalidError.of("restore: only is a sequence of patterns, not one text")
        op = Operation(self._handle.restore(step, term, allow, int(strict), _ms("deadline", deadline), tuple(only),
                                            int(bool(all_local))))
        self._ops.add(op)
        return op

    def annotate(self, step: int = LATEST, *, term: int = 0, metrics: Optional[Mapping[str, float]] = None,
                 tags: Sequence[str] = (), remove_tags: Sequence[str] = (),
                 timeout: Optional[float] = None) -> None:
        """Metrics (set or replaced by name) and tags of a committed checkpoint, for what is known only after the
        save; one rank calls it. ``term`` 0: the newest that has the step. The same again changes nothing.
        NotFoundError (never committed, or forgotten), InvalidError (NaN, by name), TooLargeError."""
        if isinstance(tags, str) or isinstance(remove_tags, str):
            raise InvalidError.of("annotate: tags is a sequence of texts, not one text")
        rows = _metrics("annotate", metrics)
        self._handle.annotate(step, term, rows, tuple(str(tag) for tag in tags),
                              tuple(str(tag) for tag in remove_tags), _ms("timeout", timeout))

    def list(self, timeout: Optional[float] = None) -> list:
        """Committed checkpoints of the run, newest first."""
        return [_checkpoint(*row) for row in self._handle.list(_ms("timeout", timeout))]

    def status(self, term: int, step: int, timeout: Optional[float] = None) -> Checkpoint:
        """The truth about one checkpoint, also after a lost answer."""
        return _checkpoint(self._handle.status(term, step, _ms("timeout", timeout)))

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits for operations in flight (``timeout`` seconds; default: the save deadline), aborts what is left,
        frees everything. Raises the first error of a save that did not become durable meanwhile. Ctrl-C ends
        the wait, aborts, and is raised. May be repeated; does nothing in a forked child."""
        if not self._handle.is_open():
            return
        until = time.monotonic() + (self._save_deadline if timeout is None else timeout)
        try:
            error = None
            for op in [op for op in self._ops if not op.done()]:
                try:
                    op.wait(DONE, max(0.0, until - time.monotonic()))
                except CairnError as failure:
                    error = error or failure
        except BaseException:
            try:
                self._handle.close(0)
            except CairnError:
                pass  # the interrupt says more
            raise
        self._handle.close(max(0.0, until - time.monotonic()))
        if error is not None:
            raise error
