# SPDX-License-Identifier: Apache-2.0
"""Gives saves in flight a little time when the interpreter ends with Checkpointers still open, and reports those that fail."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

WAIT_S = 30.0
_open: weakref.WeakSet = weakref.WeakSet()


def watch(checkpointer: Any) -> None:
    """Calls ``checkpointer._leave(seconds)`` when the interpreter ends, unless the object is gone or ``forget`` was called."""
    _open.add(checkpointer)


def forget(checkpointer: Any) -> None:
    _open.discard(checkpointer)


def _at_exit() -> None:
    for checkpointer in list(_open):
        checkpointer._leave(WAIT_S)


atexit.register(_at_exit)
