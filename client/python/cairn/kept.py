# SPDX-License-Identifier: Apache-2.0
"""The tag of checkpoints that a framework still wants. It is taken from a checkpoint after the successor is durable, and never before."""

from __future__ import annotations

import logging
from typing import Any, Callable, Iterable, Optional, Union

from .errors import CairnError, ConnectionLostError, NotFoundError, TimedOutError, UnreachableError

log = logging.getLogger("cairn")

KEPT = "kept"
_AWAY = (UnreachableError, TimedOutError, ConnectionLostError)
_PATIENCE_S = 5.0  # how long training waits without an answer of the server
_PROBE_S = 1.0  # the same where the server was away when it was asked before


def remove_kept_tag(annotate: Callable[..., Any], step: Union[int, str], **version: Any) -> None:
    """Takes the tag from a checkpoint. If that fails the tag stays, which keeps more than is wanted, and is logged.

    Args:
        annotate: The method ``annotate`` of a Client or Checkpointer.
        step: What it takes for the step.
        **version: What else it takes to find the checkpoint.
    """
    try:
        annotate(step, remove_tags=[KEPT], **version)
    except NotFoundError:
        pass  # it is gone already
    except CairnError as error:
        log.warning("step %s keeps the tag %r, though the framework no longer wants it: %s", step, KEPT, error)


class Decision:
    """What a framework has decided with its newest save, or had decided with the checkpoint that it resumes from.

    A save that decides is *open* from ``begin`` until ``end`` has seen its end: then the tag goes from what it has made unwanted, or, if
    it did not become a checkpoint, ``undo`` takes back what the framework has noted. While a rank cannot reach the server, ``end`` leaves
    it open, so that training goes on. A resumed checkpoint is *due* from ``resumed`` until ``put_right`` has reached the server.
    One thread uses it; all ranks call ``end`` alike.

    Args:
        is_patient: Whether training waits for a server that is away.

    Attributes:
        agree: Returns whether its argument is true on all ranks.
    """

    def __init__(self, is_patient: bool = False) -> None:
        self.agree: Callable[[bool], bool] = bool
        self._is_patient = is_patient
        self._is_away = False  # whether a rank could not reach the server when last asked
        self._open: Optional[tuple] = None  # (save, unwanted, undo)
        self._due: tuple = ((), ())  # the checkpoints to keep, and those whose tag must go

    def begin(self, save: Any, unwanted: Iterable[Union[int, str]], undo: Callable[[], Any]) -> None:
        """Notes a save that decides. There is none open."""
        self._open = save, unwanted, undo

    def end(self, checkpointer: Any, waits: bool = False) -> bool:
        """Waits for the save that is open, and does what it has decided.

        Args:
            checkpointer: The Checkpointer of the save; None if it is closed.
            waits: Whether to wait also while a rank cannot reach the server.

        Returns:
            True if none is open any more.
        """
        if self._open is None:
            return True
        save, unwanted, undo = self._open
        waits = waits or self._is_patient
        while not waits and not self.agree(save.durable.wait(0.0 if self._is_away else _PATIENCE_S)):
            self._is_away = not self.agree(self._is_reached(checkpointer))
            if self._is_away:
                return False
        save.durable.wait()
        self._open = None
        if not self.agree(save.is_good()):
            undo()
            return True
        for step in unwanted if checkpointer is not None else ():
            remove_kept_tag(checkpointer.annotate, step)
        return True

    def _is_reached(self, checkpointer: Any) -> bool:
        try:
            checkpointer.status("0@1", _PROBE_S if self._is_away else _PATIENCE_S)
        except _AWAY:
            return False
        except CairnError:
            pass  # it has answered; an error raised here would leave the other ranks waiting in ``agree``
        return True

    def resumed(self, unwanted: Iterable[Union[int, str]] = ()) -> None:
        """Notes what the resumed checkpoint makes unwanted, which still has the tag if the program ended before ``end``."""
        self._due = (), tuple(unwanted)

    def keep(self, steps: Iterable[int]) -> None:
        """Notes what the framework wants now that it has resumed. What came behind that checkpoint may have taken their tag."""
        self._due = tuple(steps), self._due[1]

    def put_right(self, checkpointer: Any) -> None:
        """Gives and takes the tag as the resumed checkpoint had decided. If the server is away, the next call tries again."""
        wanted, unwanted = self._due
        try:
            for item in checkpointer.list(_PATIENCE_S) if wanted or unwanted else ():
                name, is_kept = f"{item.step}@{item.term}", KEPT in item.tags
                if item.superseded or is_kept == (item.step in wanted):
                    continue
                if not is_kept:
                    checkpointer.annotate(name, tags=[KEPT])
                elif item.step in unwanted or name in unwanted:
                    remove_kept_tag(checkpointer.annotate, name)
        except (*_AWAY, NotFoundError):  # or it was forgotten just now
            return
        self._due = (), ()
