# SPDX-License-Identifier: Apache-2.0
"""The end of the interpreter with Checkpointers still open: what is in flight gets a little time, and is not lost in
silence."""

from __future__ import annotations

import atexit
import weakref
from typing import Any

WAIT_S = 30.0
_open: weakref.WeakSet = weakref.WeakSet()


def watch(checkpointer: Any) -> None:
    """Calls its ``_leave(seconds)`` when the interpreter ends, unless it is gone or ``forget`` was called."""
    _open.add(checkpointer)


def forget(checkpointer: Any) -> None:
    _open.discard(checkpointer)


def _at_exit() -> None:
    for checkpointer in list(_open):
        checkpointer._leave(WAIT_S)


atexit.register(_at_exit)
