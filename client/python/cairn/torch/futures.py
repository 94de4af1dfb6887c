# SPDX-License-Identifier: Apache-2.0
"""What ``Checkpointer.save`` and ``restore`` give back, and what becomes of saves that fail behind the scenes."""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import threading
import time
import warnings
from dataclasses import dataclass, field
from typing import Any, Callable, Generator, Optional, Union

from ..client import DURABLE, HANDED_OVER, RELEASED, Operation, Result
from ..errors import AgainError, CairnError, FencedError, InvalidError, OutcomeUnknownError, SkippedError, with_text

log = logging.getLogger("cairn")
_AWAY = ("the server is away", "cannot reach the server")  # in what the library says of a skipped save
_WARN_S = 60.0


@dataclass(frozen=True)
class Restored:
    """Tells what a restore brought.

    Attributes:
        term: The term of the checkpoint.
        step: Its step.
        fell_back: True if it is an older one, because newer ones are damaged or lost.
        metadata: The save's metadata; None, with a warning, where it is lost.
        missing: With strict=False, what the checkpoint lacked.
        unexpected: With strict=False, what the state lacks.
        read_bytes: How many bytes of arrays this rank read from the store.
        cast: With cast=True, the names of the stored tensors that came back in another type.
    """

    term: int
    step: int
    fell_back: bool
    metadata: Any
    missing: tuple = field(default=())
    unexpected: tuple = field(default=())
    read_bytes: int = field(default=0, compare=False)
    cast: tuple = field(default=())


@dataclass(frozen=True)
class Outage:
    """Tells of saves that are skipped because a rank cannot reach the server. It ends with the next save that is durable.

    Attributes:
        since: When the first of them was skipped, in seconds since 1970 UTC.
        skipped: How many were skipped since then.
        error: The SkippedError of the last one, which names the rank and the cause.
    """

    since: float
    skipped: int
    error: SkippedError


class Future:
    """One stage of a save. Any thread may wait for it, and so may a coroutine: ``await handle.durable`` is ``result()`` without
    blocking the event loop."""

    def __init__(self, op: Optional[Operation], stage: int, error: Optional[CairnError]) -> None:
        self._op, self._stage, self._error = op, stage, error
        self.told = False  # whether result() has raised the save's error to somebody
        self._mutex = threading.Lock()
        self._callbacks: Optional[list] = None  # None: no thread waits for them

    def wait(self, timeout: Optional[float] = None) -> bool:
        """Waits for the end of the stage.

        Args:
            timeout: Seconds to wait; None waits as long as the save's deadline.

        Returns:
            True if it ended, well or not.
        """
        try:
            return self._op is None or self._op.wait(self._stage, timeout)
        except CairnError:
            return True

    def done(self) -> bool:
        """Returns whether it ended, well or not."""
        return self.wait(0)

    def result(self, timeout: Optional[float] = None) -> Optional[Result]:
        """Waits for the end of the stage, and returns what came of it.

        Args:
            timeout: Seconds to wait; None waits as long as the save's deadline.

        Returns:
            A Result for ``durable``, None for the others.

        Raises:
            AgainError: The time passed, and the save goes on.
            CairnError: The save's error.
        """
        if self._op is None:
            assert self._error is not None
            self.told = True
            raise self._error
        try:
            ended = self._op.wait(self._stage, timeout)
        except CairnError:
            self.told = True
            raise
        if not ended:
            raise AgainError.of(f"the save is not finished after {timeout} s; it is still running")
        return self._op.result(0) if self._stage == DURABLE else None

    def exception(self, timeout: Optional[float] = None) -> Optional[CairnError]:
        """Waits as ``result`` does, and returns the save's error, or None if there is none.

        Args:
            timeout: Seconds to wait; None waits as long as the save's deadline.

        Raises:
            AgainError: The time passed, and the save goes on.
        """
        try:
            self.result(timeout)
        except AgainError:
            raise
        except CairnError as error:
            return error
        return None

    def add_done_callback(self, fn: Callable[["Future"], Any]) -> None:
        """Calls ``fn(future)`` once, when the stage has ended, well or not.

        Callbacks are called in the order in which they were added, in a thread of Cairn's; at once, in this thread, if the
        stage has ended before. What one of them raises is logged and does not reach anybody. When the interpreter ends first,
        they are not called.

        Args:
            fn: The function. It may call everything of the future and of the Checkpointer but ``save`` and ``restore``.
        """
        if not callable(fn):
            raise InvalidError.of(f"add_done_callback: {fn!r} is not callable; give a function of one argument, the future")
        with self._mutex:
            if self._callbacks is not None:
                self._callbacks.append(fn)
                return
            if not self.done():
                self._callbacks = [fn]
                threading.Thread(target=self._call_back, name="cairn-callbacks", daemon=True).start()
                return
        self._call(fn)

    def _call_back(self) -> None:
        self.wait()
        while True:
            with self._mutex:
                assert self._callbacks is not None
                if not self._callbacks:
                    self._callbacks = None
                    return
                fn = self._callbacks.pop(0)
            self._call(fn)

    def _call(self, fn: Callable[["Future"], Any]) -> None:
        try:
            fn(self)
        except Exception:  # the caller's own, with nobody else to hear of it
            log.exception("the callback %r of a save's future raised", fn)

    def __await__(self) -> Generator:
        """Yields until the stage has ended; the value and the errors are those of ``result``."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()

        def tell(_: "Future") -> None:
            try:
                loop.call_soon_threadsafe(lambda: ended.done() or ended.set_result(None))
            except RuntimeError:
                pass  # the loop was closed meanwhile, so nobody waits

        self.add_done_callback(tell)
        yield from ended
        return self.result(0)


def standard(saving: Future, then: Optional[Callable[[], Any]] = None) -> concurrent.futures.Future:
    """Returns the same as a future of concurrent.futures, which some frameworks insist on. It cannot be cancelled.

    Args:
        saving: The stage of a save.
        then: Is called when that has ended well, before the future ends.
    """
    future: concurrent.futures.Future = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def end(_: Future) -> None:
        try:
            found = saving.result(0)
            if then is not None:
                then()
        except Exception as error:
            saving.told = False  # that is for whoever asks the future
            future.set_exception(error)
        else:
            future.set_result(found)

    saving.add_done_callback(end)
    return future


class SaveHandle:
    """A save in flight.

    Attributes:
        step: The step that is saved.
        released: A Future: the state is copied and may change.
        handed_over: A Future: the server finishes this rank's part alone, so the process may die. On the server's own host
            that is soon after ``released``; over a network, when all bytes have been sent and are stored.
        durable: A Future: the checkpoint is committed by all ranks and on stable storage.
    """

    def __init__(self, step: int, op: Optional[Operation], error: Optional[CairnError] = None) -> None:
        self.step = step
        self._op = op
        self.released = Future(op, RELEASED, error)
        self.handed_over = Future(op, HANDED_OVER, error)
        self.durable = Future(op, DURABLE, error)

    @property
    def staged(self) -> Future:
        """The old name of ``released``. That the process may die is said by ``handed_over``."""
        warnings.warn("SaveHandle.staged is deprecated: released says that the state may change, and handed_over that the process may "
                      "die", DeprecationWarning, stacklevel=2)
        return self.released

    @property
    def told(self) -> bool:
        """Whether a future has raised the save's error to somebody."""
        return self.released.told or self.handed_over.told or self.durable.told

    def refused(self) -> Optional[SkippedError]:
        """Returns why this rank has skipped the save, though the others may not know yet; else None."""
        return self._op.refused() if self._op is not None else None

    @property
    def skipped(self) -> bool:
        """True if it ended without a checkpoint because a rank had no room (``when_full="skip"``), or could not reach the server
        (``when_down``): no failure."""
        if self.refused() is not None:
            return True
        if not self.durable.done():
            return False
        try:
            self.durable.result(0)
        except SkippedError:
            return True
        except CairnError:
            return False
        return False

    def is_good(self) -> bool:
        """Returns whether it is durable; False as long as that is open."""
        try:
            return self._op is not None and self._op.wait(DURABLE, 0)
        except CairnError:
            return False

    def is_lost(self) -> bool:
        """Returns whether it has ended for this rank without the server's word on what has become of it: it may be committed."""
        try:
            if self._op is not None:
                self._op.wait(DURABLE, 0)
        except OutcomeUnknownError:
            return True
        except CairnError:
            pass
        return False

    @property
    def warning(self) -> Optional[str]:
        """What was noticed of a save that is durable, such as replicas that differ; else None."""
        return self._op.warning if self._op is not None and self.durable.done() else None

    def progress(self) -> dict:
        """Returns bytes of this rank as a dict with the keys total, staged, sent and durable."""
        return self._op.progress() if self._op is not None else dict(total=0, staged=0, sent=0, durable=0)

    def abort(self) -> None:
        """Asks the save to end. ``durable`` tells what came of it."""
        if self._op is not None:
            self._op.abort()


def _were(count: int) -> str:
    return "1 save was" if count == 1 else f"{count} saves were"


class Failures:
    """What happens when saves fail in the background, by ``on_error``. A skipped save has not failed, and is counted apart.

    With "warn" failures are logged and counted. The next save raises after ``max_failures`` in a row, or if the last good
    save is more than ``max_age`` seconds ago. With "raise" the next save, wait or close raises an error that no future has
    raised yet. A callable is called with (step, error) from save, wait or close. FencedError is raised at once, and ever after but for a
    restore.
    """

    def __init__(self, on_error: Union[str, Callable[[int, CairnError], None]], max_failures: int,
                 max_age: Optional[float]) -> None:
        if on_error not in ("warn", "raise") and not callable(on_error):
            raise InvalidError.of(f'on_error is {on_error!r}; it must be "warn", "raise" or a callable')
        if isinstance(max_failures, bool) or not isinstance(max_failures, int) or max_failures < 1:
            raise InvalidError.of(f"max_failures is {max_failures!r}; it must be an integer, 1 or more")
        if max_age is not None and (not isinstance(max_age, (int, float)) or not max_age > 0):
            raise InvalidError.of(f"max_age is {max_age!r}; it must be in seconds, above 0, or None")
        self._on_error, self._max_failures, self._max_age = on_error, max_failures, max_age
        self._last_good = time.monotonic()
        self.count = 0  # in a row
        self.total = 0
        self._last: Optional[CairnError] = None
        self._pending: Optional[CairnError] = None
        self.skipped = 0
        self.outage: Optional[Outage] = None
        self._warned: Optional[float] = None  # when, by the monotonic clock; short outages share one warning a minute
        self._warned_of = 0.0  # the outage that the last warning was about
        self._fenced: Optional[CairnError] = None

    def succeeded(self) -> None:
        self.count, self._last_good = 0, time.monotonic()
        if self.outage is not None:
            level = logging.WARNING if self._warned_of == self.outage.since else logging.INFO
            log.log(level, "a save is durable again, after %s skipped in %.0f s because the server was away", _were(self.outage.skipped),
                    time.time() - self.outage.since)
            self.outage = None

    def restored(self) -> None:
        """Called after a restore, by which this attempt goes on from the newest term: a save is not refused for an older one."""
        self._fenced = None

    def _skip(self, step: int, error: SkippedError) -> None:
        self.skipped += 1
        if not any(words in error.text for words in _AWAY):
            log.info("the save of step %d was skipped: %s", step, error)
            return
        if self.outage is None:
            self.outage = Outage(time.time(), 0, error)
        self.outage = Outage(self.outage.since, self.outage.skipped + 1, error)
        if self._warned is None or time.monotonic() - self._warned >= _WARN_S:
            self._warned, self._warned_of = time.monotonic(), self.outage.since
            log.warning("%s skipped since %s; training goes on, and the next save that can go goes: %s", _were(self.outage.skipped),
                        time.strftime("%H:%M:%S", time.localtime(self.outage.since)), error)

    def failed(self, step: int, error: CairnError, told: bool = False) -> None:
        """Takes note of a failed save. ``told`` says that the save's future has raised the error to the caller already."""
        if isinstance(error, SkippedError):
            self._skip(step, error)
            return
        self.count += 1
        self.total += 1
        self._last = error
        if isinstance(error, FencedError):
            self._fenced = error
        elif self._on_error == "raise":
            self._pending = self._pending or (None if told else error)
        elif callable(self._on_error):
            self._on_error(step, error)
        else:
            log.warning("the save of step %d failed (%d in a row): %s", step, self.count, error)

    def check(self, before_save: bool) -> None:
        """Raises an error that is due. The limits of "warn" count only with ``before_save``."""
        if self._fenced is not None:
            raise self._fenced
        if self._pending is not None:
            error, self._pending = self._pending, None
            raise error
        if not before_save or self._on_error != "warn" or self.count == 0 or self._last is None:
            return
        age = time.monotonic() - self._last_good
        if self.count >= self._max_failures or (self._max_age is not None and age > self._max_age):
            count, self.count = self.count, 0
            raise with_text(self._last, f"{count} saves failed in a row, and the last good one was {age:.0f} s ago; the last "
                                        f"error: {self._last.text}")
