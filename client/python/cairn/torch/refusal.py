# SPDX-License-Identifier: Apache-2.0
"""A rank that cannot save says so, and why: the others would wait for it until the deadline. One thread uses it."""

from __future__ import annotations

import socket
from typing import Optional

from ..client import DONE, Client
from ..errors import (ArenaTooSmallError, BusyError, CairnError, ClosedError, FencedError, ForkedError, InternalError, NoMemoryError,
                      SkippedError, TimedOutError, UnreachableError)
from .futures import log
from .group import Group, text_of

_REFUSED = " cannot save: "  # the text of a rank that refuses
_REASON_BYTES = 250  # of a reason that the server hands on
# After these errors the other ranks hear of the failure from the server, or this rank is no longer one of theirs.
_ENDED = (FencedError, ForkedError, ClosedError, SkippedError, BusyError, TimedOutError, UnreachableError)
# What the library may find on one rank alone when it begins to copy.
_LOCAL = (ArenaTooSmallError, NoMemoryError)


def is_of_this_rank(error: CairnError) -> bool:
    """Returns whether a save that has begun has failed on this rank alone."""
    return isinstance(error, _LOCAL) and _REFUSED not in error.text


class Refusal:
    """The newest refusal of a rank."""

    def __init__(self, group: Group) -> None:
        self._group = group
        self._newest: Optional[tuple] = None  # (step, operation)

    def tell(self, client: Client, step: int, error: BaseException, seconds: float) -> None:
        """Ends the step on all ranks, whose opening is waited for so many seconds."""
        if self._group.world_size == 1 or isinstance(error, _ENDED):
            return
        text, code = text_of(error), error.code if isinstance(error, CairnError) else InternalError.CODE
        reason = f"rank {self._group.rank} on {socket.gethostname()}{_REFUSED}{text}".encode()[:_REASON_BYTES]
        try:
            self._newest = (step, client.refuse(step, reason.decode(errors="ignore"), code, seconds))
        except CairnError as failure:
            log.debug("the other ranks were not told that step %s cannot be saved here: %s", step, failure)

    def end(self, step: int, seconds: float) -> None:
        """Called before a step is saved. If it was refused here, the other ranks have to hear of that first."""
        if self._newest is not None and self._newest[0] == step:
            try:
                self._newest[1].wait(DONE, seconds)
            except CairnError:
                pass  # it is what was refused
        self._newest = None
