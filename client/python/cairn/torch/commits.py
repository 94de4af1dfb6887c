# SPDX-License-Identifier: Apache-2.0
"""Tells the caller of each checkpoint that has been committed. One thread uses it."""

from __future__ import annotations

import time
from typing import Any, Callable, NamedTuple, Optional

from ..errors import InvalidError
from ..names import checkpoint_name
from .futures import SaveHandle, log


class Commit(NamedTuple):
    """A checkpoint that is committed, as the first rank saw its save.

    Attributes:
        url: The checkpoint's URL, which names its step and term.
        step: Its step.
        term: Its term.
        plain_bytes: Bytes of the first rank's state.
        stored_bytes: Bytes that were stored for it; less where they were encoded, or stored by an older checkpoint.
        blocked_s: Seconds for which ``save`` held up the first rank.
        durable_s: Seconds from the begin of ``save`` until the checkpoint was durable.
    """

    url: str
    step: int
    term: int
    plain_bytes: int
    stored_bytes: int
    blocked_s: float
    durable_s: float


class Commits:
    """Raises InvalidError if ``on_commit`` cannot be called."""

    def __init__(self, on_commit: Optional[Callable[[Commit], Any]], url: str) -> None:
        if on_commit is not None and not callable(on_commit):
            raise InvalidError.of(f"on_commit is {on_commit!r}; it must be a function of one argument, or None")
        self._on_commit, self._url = on_commit, url.rstrip("/")
        self._times: dict = {}  # handle -> [begin, end]; the end is 0 until it is durable

    def began(self, handle: SaveHandle, begin: float) -> None:
        """Takes note of a save that began at ``begin`` of time.monotonic()."""
        if self._on_commit is None:
            return
        times = self._times[id(handle)] = [begin, 0.0]
        handle.durable.add_done_callback(lambda _: times.__setitem__(1, time.monotonic()))

    def ended(self, handle: SaveHandle) -> None:
        """Tells of the save if it has become a checkpoint. What ``on_commit`` raises is logged: training goes on."""
        begin, end = self._times.pop(id(handle), (0.0, 0.0))
        if self._on_commit is None or begin == 0.0 or not handle.is_good():
            return
        result = handle.durable.result(0)
        assert result is not None
        commit = Commit(f"{self._url}/{checkpoint_name(result.step, result.term)}", result.step, result.term,
                        result.plain_bytes, result.stored_bytes, result.blocked_s, (end or time.monotonic()) - begin)
        try:
            self._on_commit(commit)
        except Exception:  # the caller's own
            log.exception("on_commit raised for step %d", commit.step)
