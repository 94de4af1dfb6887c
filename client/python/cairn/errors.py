# SPDX-License-Identifier: Apache-2.0
"""Cairn's exceptions: one class for each row of the error table (proto/base/err.def).

Every exception carries ``code`` (negative int), ``name`` ("FENCED") and ``text`` (what was tried, on
what, and the remedy), passes all its arguments to ``super().__init__`` and so survives pickling.
``retry`` says whether to try again:

=========  ==========================================================================
"never"    the same call fails again
"retry"    try the same call again
"later"    try again after something else changed: space, another operation, an operator
"resolve"  the outcome is unknown: ask ``Client.status`` first
=========  ==========================================================================

tests/python/test_errors.py holds this file against the C table, row by row.
"""

from __future__ import annotations

from typing import ClassVar, Self


class CairnError(Exception):
    """Base of all errors of Cairn. It is raised itself only for codes that this version does not know.

    Attributes:
        code: The negative number of the error.
        name: Its name, such as "FENCED".
        text: What was tried, on what, what happened, and what to do next.
        retry: Whether to try again: "never", "retry" (the same call), "later" (after something else has changed), or
            "resolve" (the outcome is unknown: ask ``Client.status`` first).
    """

    CODE: ClassVar[int] = 0
    NAME: ClassVar[str] = "UNKNOWN"
    SUMMARY: ClassVar[str] = "unknown error"
    retry: ClassVar[str] = "never"

    def __init__(self, code: int, name: str, text: str) -> None:
        super().__init__(code, name, text)
        self.code = code
        self.name = name
        self.text = text

    def __str__(self) -> str:
        return f"{self.name}: {self.text}"

    @classmethod
    def of(cls, text: str) -> Self:
        """Makes an exception of this class with its own code and name.

        Args:
            text: What was tried, on what, what happened, and what to do next.
        """
        return cls(cls.CODE, cls.NAME, text or cls.SUMMARY)


class InvalidError(CairnError):
    """Invalid argument."""

    CODE = -1
    NAME = "INVALID"
    SUMMARY = "invalid argument"
    retry = "never"


class NoMemoryError(CairnError):
    """Out of memory."""

    CODE = -2
    NAME = "NO_MEMORY"
    SUMMARY = "out of memory"
    retry = "later"


class InternalError(CairnError):
    """Internal error: an assertion in Cairn failed."""

    CODE = -3
    NAME = "INTERNAL"
    SUMMARY = "internal error: an assertion in Cairn failed"
    retry = "never"


class AgainError(CairnError):
    """Not finished yet; the operation is still running."""

    CODE = -4
    NAME = "AGAIN"
    SUMMARY = "not finished yet; the operation is still running"
    retry = "retry"


class TimedOutError(CairnError):
    """The deadline passed."""

    CODE = -5
    NAME = "TIMED_OUT"
    SUMMARY = "the deadline passed"
    retry = "retry"


class CancelledError(CairnError):
    """Cancelled by the caller."""

    CODE = -6
    NAME = "CANCELLED"
    SUMMARY = "cancelled by the caller"
    retry = "never"


class UnsupportedError(CairnError):
    """Not supported."""

    CODE = -7
    NAME = "UNSUPPORTED"
    SUMMARY = "not supported"
    retry = "never"


class BusyError(CairnError):
    """In use by another operation."""

    CODE = -8
    NAME = "BUSY"
    SUMMARY = "in use by another operation"
    retry = "later"


class ClosedError(CairnError):
    """The handle is closed."""

    CODE = -9
    NAME = "CLOSED"
    SUMMARY = "the handle is closed"
    retry = "never"


class ForkedError(CairnError):
    """The handle belongs to the parent process."""

    CODE = -10
    NAME = "FORKED"
    SUMMARY = "the handle belongs to the parent process"
    retry = "never"


class NotFoundError(CairnError):
    """Not found."""

    CODE = -11
    NAME = "NOT_FOUND"
    SUMMARY = "not found"
    retry = "never"


class ExistsError(CairnError):
    """Already exists."""

    CODE = -12
    NAME = "EXISTS"
    SUMMARY = "already exists"
    retry = "never"


class ConflictError(CairnError):
    """Another process changed it in between."""

    CODE = -13
    NAME = "CONFLICT"
    SUMMARY = "another process changed it in between"
    retry = "retry"


class FencedError(CairnError):
    """Fenced: a newer term of this run exists."""

    CODE = -14
    NAME = "FENCED"
    SUMMARY = "fenced: a newer term of this run exists"
    retry = "never"


class AbortedError(CairnError):
    """The save was aborted."""

    CODE = -15
    NAME = "ABORTED"
    SUMMARY = "the save was aborted"
    retry = "retry"


class MissingRanksError(CairnError):
    """Not all ranks came before the deadline."""

    CODE = -16
    NAME = "MISSING_RANKS"
    SUMMARY = "not all ranks came before the deadline"
    retry = "retry"


class DuplicateRankError(CairnError):
    """Another live process has this rank."""

    CODE = -17
    NAME = "DUPLICATE_RANK"
    SUMMARY = "another live process has this rank"
    retry = "later"


class WorldMismatchError(CairnError):
    """The world size differs from the attempt's."""

    CODE = -18
    NAME = "WORLD_MISMATCH"
    SUMMARY = "the world size differs from the attempt's"
    retry = "never"


class TokenMismatchError(CairnError):
    """The attempt token differs from the term's."""

    CODE = -19
    NAME = "TOKEN_MISMATCH"
    SUMMARY = "the attempt token differs from the term's"
    retry = "never"


class CoverageError(CairnError):
    """The ranks' boxes leave a gap or overlap."""

    CODE = -20
    NAME = "COVERAGE"
    SUMMARY = "the ranks' boxes leave a gap or overlap"
    retry = "never"


class ShapeMismatchError(CairnError):
    """The shape differs from the stored tensor's."""

    CODE = -21
    NAME = "SHAPE_MISMATCH"
    SUMMARY = "the shape differs from the stored tensor's"
    retry = "never"


class DtypeMismatchError(CairnError):
    """The dtype differs from the stored tensor's."""

    CODE = -22
    NAME = "DTYPE_MISMATCH"
    SUMMARY = "the dtype differs from the stored tensor's"
    retry = "never"


class MissingTensorError(CairnError):
    """The checkpoint does not hold this tensor."""

    CODE = -23
    NAME = "MISSING_TENSOR"
    SUMMARY = "the checkpoint does not hold this tensor"
    retry = "never"


class DamagedError(CairnError):
    """Damaged: stored bytes do not match their checksum."""

    CODE = -24
    NAME = "DAMAGED"
    SUMMARY = "damaged: stored bytes do not match their checksum"
    retry = "never"


class DigestMismatchError(CairnError):
    """The bytes do not match their digest."""

    CODE = -25
    NAME = "DIGEST_MISMATCH"
    SUMMARY = "the bytes do not match their digest"
    retry = "retry"


class FormatError(CairnError):
    """Not in Cairn's format."""

    CODE = -26
    NAME = "FORMAT"
    SUMMARY = "not in Cairn's format"
    retry = "never"


class UnreachableError(CairnError):
    """The server cannot be reached."""

    CODE = -27
    NAME = "UNREACHABLE"
    SUMMARY = "the server cannot be reached"
    retry = "retry"


class ConnectionLostError(CairnError):
    """The connection was lost."""

    CODE = -28
    NAME = "CONNECTION_LOST"
    SUMMARY = "the connection was lost"
    retry = "retry"


class AuthError(CairnError):
    """Authentication failed."""

    CODE = -29
    NAME = "AUTH"
    SUMMARY = "authentication failed"
    retry = "never"


class DeniedError(CairnError):
    """Not allowed."""

    CODE = -30
    NAME = "DENIED"
    SUMMARY = "not allowed"
    retry = "never"


class VersionError(CairnError):
    """The two ends have no protocol version in common."""

    CODE = -31
    NAME = "VERSION"
    SUMMARY = "the two ends have no protocol version in common"
    retry = "never"


class ProtocolError(CairnError):
    """The peer broke the protocol."""

    CODE = -32
    NAME = "PROTOCOL"
    SUMMARY = "the peer broke the protocol"
    retry = "never"


class TooLargeError(CairnError):
    """Larger than the limit."""

    CODE = -33
    NAME = "TOO_LARGE"
    SUMMARY = "larger than the limit"
    retry = "never"


class NoSpaceError(CairnError):
    """No space left in the store."""

    CODE = -34
    NAME = "NO_SPACE"
    SUMMARY = "no space left in the store"
    retry = "later"


class QuotaError(CairnError):
    """The project's quota is used up."""

    CODE = -35
    NAME = "QUOTA"
    SUMMARY = "the project's quota is used up"
    retry = "later"


class IoError(CairnError):
    """Input/output error."""

    CODE = -36
    NAME = "IO"
    SUMMARY = "input/output error"
    retry = "later"


class ReadOnlyError(CairnError):
    """Read-only."""

    CODE = -37
    NAME = "READ_ONLY"
    SUMMARY = "read-only"
    retry = "later"


class NoStoreError(CairnError):
    """There is no Cairn store here."""

    CODE = -38
    NAME = "NO_STORE"
    SUMMARY = "there is no Cairn store here"
    retry = "never"


class StoreLockedError(CairnError):
    """Another daemon is using this store."""

    CODE = -39
    NAME = "STORE_LOCKED"
    SUMMARY = "another daemon is using this store"
    retry = "later"


class StoreFeaturesError(CairnError):
    """The store uses features that this version lacks."""

    CODE = -40
    NAME = "STORE_FEATURES"
    SUMMARY = "the store uses features that this version lacks"
    retry = "never"


class StoreMismatchError(CairnError):
    """This is not the store that was expected."""

    CODE = -41
    NAME = "STORE_MISMATCH"
    SUMMARY = "this is not the store that was expected"
    retry = "never"


class OutcomeUnknownError(CairnError):
    """The outcome is unknown."""

    CODE = -42
    NAME = "OUTCOME_UNKNOWN"
    SUMMARY = "the outcome is unknown"
    retry = "resolve"


class ArenaTooSmallError(CairnError):
    """The arena is smaller than what the rank writes."""

    CODE = -43
    NAME = "ARENA_TOO_SMALL"
    SUMMARY = "the arena is smaller than what the rank writes"
    retry = "never"


class ConfigError(CairnError):
    """Error in the configuration."""

    CODE = -44
    NAME = "CONFIG"
    SUMMARY = "error in the configuration"
    retry = "never"


class NotEmptyError(CairnError):
    """The target is not empty."""

    CODE = -45
    NAME = "NOT_EMPTY"
    SUMMARY = "the target is not empty"
    retry = "never"


class EndedError(CairnError):
    """End of stream."""

    CODE = -46
    NAME = "ENDED"
    SUMMARY = "end of stream"
    retry = "never"


class ShuttingDownError(CairnError):
    """The server is stopping."""

    CODE = -47
    NAME = "SHUTTING_DOWN"
    SUMMARY = "the server is stopping"
    retry = "retry"


class ListMismatchError(CairnError):
    """The ranks registered different tensors."""

    CODE = -48
    NAME = "LIST_MISMATCH"
    SUMMARY = "the ranks registered different tensors"
    retry = "never"


class SkippedError(CairnError):
    """The save was skipped on all ranks, because a rank had no room for another one in flight (``when_full``) or no way to a
    server (``when_down``). Not a failure: the next save that can go goes."""

    CODE = -49
    NAME = "SKIPPED"
    SUMMARY = "the save was skipped, because a rank had no room for it, or no way to a server"
    retry = "later"


class ReplicasDifferError(CairnError):
    """Ranks hold different bytes of a tensor that should be the same on all of them; the text names it and them."""

    CODE = -50
    NAME = "REPLICAS_DIFFER"
    SUMMARY = "ranks hold different bytes of a tensor that should be equal"
    retry = "never"


class UnsupportedValueError(UnsupportedError, TypeError):
    """A value or tensor that cannot be stored; the text begins with its path in the state."""


#: Every class that has a row in the error table, by code.
BY_CODE: dict[int, type[CairnError]] = {
    cls.CODE: cls
    for cls in CairnError.__subclasses__()
}


def from_code(code: int, text: str) -> CairnError:
    """The exception for an error code of libcairn."""
    cls = BY_CODE.get(code, CairnError)
    return cls(code, cls.NAME, text or cls.SUMMARY)


def with_text(error: CairnError, text: str) -> CairnError:
    """The same error with another text."""
    return type(error)(error.code, error.name, text)


__all__ = [
    "CairnError",
    "UnsupportedValueError",
    "from_code",
    "InvalidError",
    "NoMemoryError",
    "InternalError",
    "AgainError",
    "TimedOutError",
    "CancelledError",
    "UnsupportedError",
    "BusyError",
    "ClosedError",
    "ForkedError",
    "NotFoundError",
    "ExistsError",
    "ConflictError",
    "FencedError",
    "AbortedError",
    "MissingRanksError",
    "DuplicateRankError",
    "WorldMismatchError",
    "TokenMismatchError",
    "CoverageError",
    "ShapeMismatchError",
    "DtypeMismatchError",
    "MissingTensorError",
    "DamagedError",
    "DigestMismatchError",
    "FormatError",
    "UnreachableError",
    "ConnectionLostError",
    "AuthError",
    "DeniedError",
    "VersionError",
    "ProtocolError",
    "TooLargeError",
    "NoSpaceError",
    "QuotaError",
    "IoError",
    "ReadOnlyError",
    "NoStoreError",
    "StoreLockedError",
    "StoreFeaturesError",
    "StoreMismatchError",
    "OutcomeUnknownError",
    "ArenaTooSmallError",
    "ConfigError",
    "NotEmptyError",
    "EndedError",
    "ShuttingDownError",
    "ListMismatchError",
    "SkippedError",
    "ReplicasDifferError",
]
