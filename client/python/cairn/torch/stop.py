# SPDX-License-Identifier: Apache-2.0
"""should_stop: all ranks leave the training loop at the same step when one of them is told to.

Signals reach ranks around a step's boundary, each at its own moment: were each to save when it sees its own, some would
save 500 and some 501, and neither would be complete. So each step starts a max-reduce of "I was told" and "what is my
step", over Cairn's own group, and looks at the one that the step before had started: the answer is there by then, the
same on all ranks, and costs no waiting. A handler sets a flag and nothing else; it never saves.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from typing import Any, Callable, Iterable

from .group import Group, StepMax
from .part import CairnWarning


class Stopper:
    """Lets all ranks stop after the same step. ``signals`` are the numbers that ask to stop; their earlier handlers are called too."""

    def __init__(self, group: Group, signals: Iterable[int]) -> None:
        self._signals = tuple(signals)
        self._asked = False
        self._stopped = False
        self._max = StepMax(group, "should_stop")
        self._before: dict = {}  # signal -> handler that was there
        self._handlers: dict = {}
        self._installed = False

    def request(self) -> None:
        """Asks for the stop of all ranks. It is safe in a signal handler and in any thread."""
        self._asked = True

    def install(self) -> None:
        """Installs the handlers, at the first ``should_stop``, so that a job that never calls it still dies by SIGTERM."""
        if self._installed or not self._signals:
            return
        self._installed = True
        if threading.current_thread() is not threading.main_thread():
            warnings.warn("should_stop was called outside the main thread, where Python allows no signal handlers; call "
                          "Checkpointer.request_stop() from a handler of your own", CairnWarning, stacklevel=4)
            return
        for number in self._signals:
            before = signal.getsignal(number)
            self._before[number] = before
            self._handlers[number] = self._chain(before, os.getpid())
            signal.signal(number, self._handlers[number])

    def _chain(self, before: Any, pid: int) -> Callable:
        def handler(number: int, frame: Any) -> None:
            self.request()
            if callable(before):
                before(number, frame)
            elif os.getpid() != pid and before is signal.SIG_DFL:  # a forked worker, which nobody asks to stop
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)
        return handler

    def remove(self) -> None:
        """Puts the earlier handlers back, unless somebody has replaced ours."""
        if threading.current_thread() is threading.main_thread():
            for number, handler in self._handlers.items():
                if signal.getsignal(number) is handler:
                    signal.signal(number, self._before[number])
        self._handlers = {}

    def should_stop(self, step: int) -> bool:
        """See Checkpointer.should_stop."""
        self.install()
        if self._stopped:
            return True
        self._stopped = self._max.result(step) > 0
        if not self._stopped:
            self._max.begin(int(self._asked), step)
        return self._stopped
