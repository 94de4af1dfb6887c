# SPDX-License-Identifier: Apache-2.0
"""What all doors to Cairn share: a restore that finds what this process has saved, the log of a restore, metrics of a framework."""

from __future__ import annotations

import logging
import time
from typing import Any, Iterable, Mapping, Optional

from . import exits
from .errors import CairnError, TimedOutError
from .names import split_url
from .operation import DONE

_log = logging.getLogger("cairn")


def tell_restored(url: str, step: int, term: int, rank: int, fell_back: bool = False) -> None:
    """Logs, on the first rank, which checkpoint was restored: as information, or as a warning if it is not the newest one. ``term`` is 0
    where the caller does not know it."""
    text = f"{url}: restored step {step}" + (f" of term {term}" if term else "")
    if rank == 0 and fell_back:
        _log.warning("%s, which is not the newest checkpoint: what is newer is damaged or lost; `cairn ls RUN --all` shows it", text)
    elif rank == 0:
        _log.info("%s", text)


def _now(items: Iterable) -> list:
    """Returns the items of a set that other threads may add to."""
    while True:
        try:
            return list(items)
        except RuntimeError:  # it has just grown
            pass


def settle(url: str, seconds: Optional[float] = None, is_reader: bool = False) -> None:
    """Waits until the saves of this process into a run have ended, well or not, so that whoever restores its newest
    checkpoint finds what this process has saved before.

    Args:
        url: The URL of the run.
        seconds: How long to wait; None is 600 s.
        is_reader: True leaves out the saves of several ranks. A reader is none of these, and they may be long in coming.

    Raises:
        TimedOutError: A save has not ended by then; the text names it.
    """
    until = time.monotonic() + (600.0 if seconds is None else seconds)
    run = split_url(url)[0]
    mine = [client for client in _now(exits.clients()) if not (is_reader and client.world_size > 1)]
    ops = [op for client in mine if split_url(client.url)[0] == run for op in _now(client._ops)]
    for op in [op for op in ops if op._saved_step is not None and not op.done() and op.refused() is None]:
        try:
            ended = op.wait(DONE, max(0.0, until - time.monotonic()))
        except CairnError:
            continue  # whoever saved is told
        if not ended:
            raise TimedOutError.of(f"{url}: the save of step {op._saved_step} by this process has not ended, so that the "
                                   "newest checkpoint is not known yet; wait for that save, or abort it, and restore then")


def numbers(metrics: Mapping[str, Any]) -> dict:
    """Returns those of a framework's metrics that are one number, also as a tensor or an array."""
    found = {}
    for name, value in metrics.items():
        try:
            found[str(name)] = float(value)
        except (TypeError, ValueError, RuntimeError):
            continue
    return found
