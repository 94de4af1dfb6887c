# SPDX-License-Identifier: Apache-2.0
"""Gives saves in flight a little time when the interpreter ends with a run still open, and reports those that fail."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

WAIT_S = 30.0
_owners: weakref.WeakSet = weakref.WeakSet()  # Checkpointers, which know more of a save than their clients do
_clients: weakref.WeakSet = weakref.WeakSet()


def watch(item: Any, is_client: bool = False) -> None:
    """Calls ``item._leave(seconds)`` when the interpreter ends, unless the object is gone. Clients come after their owners, and
    find that they are closed."""
    (_clients if is_client else _owners).add(item)


def clients() -> weakref.WeakSet:
    """Returns the Clients of this process that are still there."""
    return _clients


def _at_exit() -> None:
    for item in [*_owners, *_clients]:
        item._leave(WAIT_S)


atexit.register(_at_exit)
