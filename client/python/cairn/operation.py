# SPDX-License-Identifier: Apache-2.0
"""What is under way and what came of it: an Operation of a Client, and the descriptions of checkpoints that the library gives."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Mapping, Optional, Sequence

from . import _cairn
from .errors import CairnError, NotFoundError, SkippedError

LATEST = (1 << 64) - 1
RELEASED, HANDED_OVER, DURABLE = 1, 3, 2
DONE = DURABLE
STAGED = RELEASED  # the old name
REPLICATED, SHARDED, LOCAL = 1, 2, 3
BYTES, TREE = 1, 2

_STATES = ("none", "open", "committed", "aborted", "forgotten")
_HEALTH = ("verified", "suspect", "damaged")


def _dtype_table() -> dict:
    table, number = {}, 1
    while _cairn.dtype_row(number)[1] != 0:
        table[_cairn.dtype_row(number)[0]] = number
        number += 1
    return table


#: Element types by name: "bool", "uint8", "bfloat16", "float8_e4m3fn", ...
DTYPES: dict[str, int] = _dtype_table()


@dataclass(frozen=True)
class Result:
    """Tells what became of a save or a restore.

    Attributes:
        term: The term of the checkpoint.
        step: The step of the checkpoint.
        fell_back: True if a restore took an older checkpoint, because newer ones are damaged or lost.
        new_lineage: True if a save began beside existing checkpoints that were not restored.
        plain_bytes: Bytes of this rank's state.
        stored_bytes: Bytes that a save stored for this rank; less where they were encoded, or stored by an older checkpoint.
        blocked_s: How long the call itself took, in seconds.
    """

    term: int
    step: int
    fell_back: bool
    new_lineage: bool
    plain_bytes: int
    stored_bytes: int
    blocked_s: float


@dataclass(frozen=True)
class Checkpoint:
    """Describes one checkpoint of the run.

    Attributes:
        term: Its term.
        step: Its step.
        sequence: Its place in the order of commits.
        plain_bytes: Bytes of the state.
        stored_bytes: Bytes that it added to the store.
        parent: (term, step) of the checkpoint that its term was restored from, or None.
        commit_time: When it was committed, in seconds since 1970 UTC.
        world_size: The number of ranks that saved it.
        state: "committed", "open", "aborted", "forgotten" or "none".
        health: "verified", "suspect" or "damaged"; None if it is not committed.
        superseded: True if it is not on the lineage.
        latest: True if it is the one that LATEST restores.
        planned: True if its attempt followed one that was closed in order, and not one that failed.
        tags: The tags of the save and those annotated since; None from ``Client.status``.
        metrics: The metrics of the save and those annotated since; None from ``Client.status``.
    """

    term: int
    step: int
    sequence: int
    plain_bytes: int
    stored_bytes: int
    parent: Optional[tuple]
    commit_time: float
    world_size: int
    state: str
    health: Optional[str]
    superseded: bool
    latest: bool
    planned: bool = False
    tags: Optional[tuple] = field(default=None, compare=False)
    metrics: Optional[Mapping[str, float]] = field(default=None, compare=False)


def checkpoint_of(row: Sequence, tags: Optional[Sequence] = None, metrics: Optional[Sequence] = None) -> Checkpoint:
    (term, step, sequence, plain, stored, parent_term, parent_step, time_ns, world, state, health, superseded,
     latest, planned) = row
    known = _STATES[state] if 0 <= state < len(_STATES) else "unknown"
    verdict = _HEALTH[health] if 0 <= health < len(_HEALTH) else "unknown"
    return Checkpoint(term, step, sequence, plain, stored,
                      (parent_term, parent_step) if parent_term else None, time_ns / 1e9, world, known,
                      verdict if known == "committed" else None, bool(superseded), bool(latest), bool(planned),
                      None if tags is None else tuple(tags), None if metrics is None else dict(metrics))


@dataclass(frozen=True)
class Local:
    """Describes a tensor or a blob of a checkpoint.

    Attributes:
        name: Its name.
        coordinate: The coordinate that it belongs to, or "".
        kind: 0 for a tensor, else BYTES or TREE.
        dtype: The element type of a tensor.
        shape: The shape of the whole tensor.
        plain_bytes: Its size.
    """

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
    """A save or restore in flight.

    Dropping the object of a save does not end the save. Dropping the object of a restore aborts it.
    """

    def __init__(self, op: Any = None, step: Optional[int] = None) -> None:
        self._op = op
        self._saved_step = step  # None for a restore

    @property
    def has_begun(self) -> bool:
        """False for an object that ``Client.save`` was given and has put no save into."""
        return self._op is not None

    def wait(self, stage: int = DONE, timeout: Optional[float] = None) -> bool:
        """Waits for a stage of the operation. May be repeated.

        Args:
            stage: RELEASED (everything is copied: the tensors may change), HANDED_OVER (the server finishes this rank's
                part alone: the process may die), DURABLE (committed by all ranks and on stable storage), or DONE, the end of
                any operation. STAGED is the old name of RELEASED.
            timeout: Seconds to wait; None waits for as long as the operation's own deadline.

        Returns:
            True if the stage was reached, False if the time passed first.

        Raises:
            CairnError: The operation's own error, if it has failed.
        """
        return self._op.wait(stage, timeout)

    def done(self) -> bool:
        """Returns whether the operation has ended, well or not."""
        try:
            return self._op.wait(DONE, 0)
        except CairnError:
            return True

    def refused(self) -> Optional[SkippedError]:
        """Returns why a save was skipped, as soon as this rank knows, though it may have to tell the others of it; else None."""
        try:
            self._op.wait(RELEASED, 0)
        except SkippedError as error:
            return error
        except CairnError:
            pass
        return None

    def result(self, timeout: Optional[float] = None) -> Result:
        """Waits for the end of the operation and returns what became of it.

        Args:
            timeout: Seconds to wait; None waits for as long as the operation's own deadline.

        Returns:
            The result of a save that is durable, or of a restore that all ranks have verified.

        Raises:
            AgainError: The time passed, and the operation goes on.
            CairnError: The operation's own error.
        """
        self._op.wait(DONE, timeout)
        term, step, fell_back, lineage, plain, stored, blocked_ns = self._op.result()
        return Result(term, step, bool(fell_back), bool(lineage), plain, stored, blocked_ns / 1e9)

    @property
    def run_is_empty(self) -> bool:
        """True after a restore that ended with NotFoundError if the server has proven that the run never had a checkpoint.

        Only then may training begin at step 0.
        """
        return self._op.run_is_empty()

    @property
    def warning(self) -> Optional[str]:
        """What a finished save noticed that is no failure, such as replicas that differ; else None."""
        return self._op.warning()

    def blob(self, name: str, coordinate: Optional[str] = None) -> bytes:
        """Returns a restored blob.

        Args:
            name: Its name.
            coordinate: Whose it is; None takes the one that belongs to no coordinate, or to this rank's.

        Raises:
            NotFoundError: The checkpoint holds no such blob.
        """
        data = self._op.blob(name, coordinate)
        if data is None:
            raise NotFoundError.of(f"the checkpoint holds no blob {name!r}"
                                   + (f" of {coordinate}" if coordinate else ""))
        return data

    def locals(self) -> list:
        """Returns, after a restore, what belongs to coordinates in the checkpoint, of all coordinates, as a list of Local."""
        return [_local(row) for row in self._op.locals()]

    def entries(self) -> list:
        """Returns, after a restore, every tensor and blob of the checkpoint, registered or not, as a list of Local."""
        return [_local(row) for row in self._op.entries()]

    def metadata(self) -> bytes:
        """Returns the metadata that rank 0 gave with the save."""
        return self._op.metadata()

    def missing(self) -> list:
        """Returns the names that are registered and not stored, after a restore."""
        return self._op.missing()

    def unexpected(self) -> list:
        """Returns the names that are stored and not registered, after a restore."""
        return self._op.unexpected()

    def progress(self) -> dict:
        """Returns bytes of this rank as a dict with the keys total, staged, sent and durable."""
        return dict(zip(("total", "staged", "sent", "durable"), self._op.progress()))

    def abort(self) -> None:
        """Asks the operation to end. ``wait`` tells what came of it."""
        self._op.abort()

    def _end_copy(self) -> None:
        """Waits, for a caller that is interrupted, until a save reads no tensor any more. Gives it up if interrupted too."""
        try:
            self.wait(RELEASED)
        except CairnError:
            pass  # for whoever asks the operation
        except BaseException:
            self.abort()
            raise
