# SPDX-License-Identifier: Apache-2.0
"""Cairn's exceptions: one class for each row of the error table (proto/base/err.def). A class is named for its row,
and takes code, name, summary and retry class from the library's table.

Every exception carries ``code`` (negative int), ``name`` ("FENCED") and ``text`` (what was tried, on
what, and the remedy), passes all its arguments to ``super().__init__`` and so survives pickling.
``retry`` says whether to try again:

=========  ==========================================================================
"never"    the same call fails again
"retry"    try the same call again
"later"    try again after something else changed: space, another operation, an operator
"resolve"  the outcome is unknown: ask ``Client.status`` first
=========  ==========================================================================

tests/python/test_errors.py holds the classes against the C table, row by row.
"""

from __future__ import annotations

from typing import ClassVar, Self

from . import _cairn


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


class NoMemoryError(CairnError):
    """Out of memory."""


class InternalError(CairnError):
    """Internal error: an assertion in Cairn failed."""


class AgainError(CairnError):
    """Not finished yet; the operation is still running."""


class TimedOutError(CairnError):
    """The deadline passed."""


class CancelledError(CairnError):
    """Cancelled by the caller."""


class UnsupportedError(CairnError):
    """Not supported."""


class BusyError(CairnError):
    """In use by another operation."""


class ClosedError(CairnError):
    """The handle is closed."""


class ForkedError(CairnError):
    """The handle belongs to the parent process."""


class NotFoundError(CairnError):
    """Not found."""


class ExistsError(CairnError):
    """Already exists."""


class ConflictError(CairnError):
    """Another process changed it in between."""


class FencedError(CairnError):
    """Fenced: a newer term of this run exists."""


class AbortedError(CairnError):
    """The save was aborted."""


class MissingRanksError(CairnError):
    """Not all ranks came before the deadline."""


class DuplicateRankError(CairnError):
    """Another live process has this rank."""


class WorldMismatchError(CairnError):
    """The world size differs from the attempt's."""


class TokenMismatchError(CairnError):
    """The attempt token differs from the term's."""


class CoverageError(CairnError):
    """The ranks' boxes leave a gap or overlap."""


class ShapeMismatchError(CairnError):
    """The shape differs from the stored tensor's."""


class DtypeMismatchError(CairnError):
    """The dtype differs from the stored tensor's."""


class MissingTensorError(CairnError):
    """The checkpoint does not hold this tensor."""


class DamagedError(CairnError):
    """Damaged: stored bytes do not match their checksum."""


class DigestMismatchError(CairnError):
    """The bytes do not match their digest."""


class FormatError(CairnError):
    """Not in Cairn's format."""


class UnreachableError(CairnError):
    """The server cannot be reached."""


class ConnectionLostError(CairnError):
    """The connection was lost."""


class AuthError(CairnError):
    """Authentication failed."""


class DeniedError(CairnError):
    """Not allowed."""


class VersionError(CairnError):
    """The two ends have no protocol version in common."""


class ProtocolError(CairnError):
    """The peer broke the protocol."""


class TooLargeError(CairnError):
    """Larger than the limit."""


class NoSpaceError(CairnError):
    """No space left in the store."""


class QuotaError(CairnError):
    """The project's quota is used up."""


class IoError(CairnError):
    """Input/output error."""


class ReadOnlyError(CairnError):
    """Read-only."""


class NoStoreError(CairnError):
    """There is no Cairn store here."""


class StoreLockedError(CairnError):
    """Another daemon is using this store."""


class StoreFeaturesError(CairnError):
    """The store uses features that this version lacks."""


class StoreMismatchError(CairnError):
    """This is not the store that was expected."""


class OutcomeUnknownError(CairnError):
    """The outcome is unknown."""


class ArenaTooSmallError(CairnError):
    """The arena is smaller than what the rank writes."""


class ConfigError(CairnError):
    """Error in the configuration."""


class NotEmptyError(CairnError):
    """The target is not empty."""


class EndedError(CairnError):
    """End of stream."""


class ShuttingDownError(CairnError):
    """The server is stopping."""


class ListMismatchError(CairnError):
    """The ranks registered different tensors."""


class SkippedError(CairnError):
    """The save was skipped on all ranks, because a rank had no room for another one in flight (``when_full``) or no way to a
    server (``when_down``). Not a failure: the next save that can go goes."""


class ReplicasDifferError(CairnError):
    """Ranks hold different bytes of a tensor that should be the same on all of them; the text names it and them."""


class UnsupportedValueError(UnsupportedError, TypeError):
    """A value or tensor that cannot be stored; the text begins with its path in the state."""


def _by_code() -> dict[int, type[CairnError]]:
    """Gives each class its row of the library's table."""
    classes = {cls.__name__: cls for cls in CairnError.__subclasses__()}
    table: dict[int, type[CairnError]] = {}
    while True:
        code = -1 - len(table)
        name, summary, retry = _cairn.error_row(code)
        if name == CairnError.NAME:
            return table
        cls = table[code] = classes["".join(map(str.capitalize, name.split("_"))) + "Error"]
        cls.CODE, cls.NAME, cls.SUMMARY = code, name, summary
        cls.retry = ("never", "retry", "later", "resolve")[retry]


#: Every class that has a row in the error table, by code.
BY_CODE: dict[int, type[CairnError]] = _by_code()


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
