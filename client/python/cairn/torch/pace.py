# SPDX-License-Identifier: Apache-2.0
"""Checkpointer(interval=...): when the next save is due, the same on all ranks.

With "auto" the interval follows what was measured: how long saves hold up the training, how long they take to be durable, how
long a restore took, and how often the run had to begin anew, against a prior (proto/base/interval.h has the rule, which
`cairn advise` uses too). Rank 0 decides; its word goes to the others by a reduction that is begun one step ahead, so that
nobody waits for it.
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Callable, Optional, Union

from .. import _cairn
from ..errors import InvalidError
from .futures import SaveHandle, log
from .group import Group, StepMax

_RETRY_S = 5.0
_KEPT = 5  # saves whose times count: the median of the last ones


@dataclass(frozen=True)
class Advice:
    """The interval that interval="auto" has chosen, and why. Times are seconds.

    Attributes:
        mtbf: The time between failures.
        staged: The training between two saves, if saves became durable at once.
        durable: The training between two saves.
        overhead: The share of the time for saves.
        lost: The training that one failure loses.
        text: Three lines that explain it.
    """

    mtbf: float
    staged: float
    durable: float
    overhead: float
    lost: float
    text: str


def failures_of(checkpoints: list) -> tuple:
    """Returns (failures, seconds observed) from a run's checkpoints. Every term after the first counts as a failure unless it
    followed an orderly end. A term is observed from its first to its last commit."""
    spans: dict = {}
    planned = {item.term for item in checkpoints if item.planned}
    for item in checkpoints:
        first, last = spans.get(item.term, (item.commit_time, item.commit_time))
        spans[item.term] = (min(first, item.commit_time), max(last, item.commit_time))
    return max(0, max(spans, default=1) - 1 - len(planned)), sum(last - first for first, last in spans.values())


class Pacer:
    """Decides when the next save is due. ``interval`` is seconds or "auto"; ``clock`` returns monotonic seconds."""

    def __init__(self, group: Group, interval: Union[str, float], overhead_max: float, mtbf: Optional[float], in_flight: int,
                 clock: Callable[[], float] = time.monotonic) -> None:
        is_number = isinstance(interval, (int, float)) and not isinstance(interval, bool)
        if interval != "auto" and not (is_number and 0 < float(interval) < 1e9):
            raise InvalidError.of(f'interval is {interval!r}; it must be "auto" or seconds above 0')
        if not 0 < overhead_max < 1:
            raise InvalidError.of(f"overhead_max is {overhead_max!r}; it must be a share of the time, between 0 and 1")
        if mtbf is not None and not 0 < mtbf < 1e12:
            raise InvalidError.of(f"mtbf is {mtbf!r}; it must be seconds above 0")
        self._group, self._interval, self._cap, self._prior = group, interval, overhead_max, mtbf or 0.0
        self._in_flight, self._clock = in_flight, clock
        self._began = self._ended = clock()
        self._blocked: deque = deque(maxlen=_KEPT)
        self._persist: deque = deque(maxlen=_KEPT)
        self._watched: list = []  # (handle, when its save began)
        self.restart_s = 0.0
        self._failures, self._observed = 0, 0.0
        self._max = StepMax(group, "should_save")
        self._retry = 0.0  # nothing is due before
        self.advice: Optional[Advice] = None

    def seen(self, checkpoints: list) -> None:
        """Takes the failures of earlier attempts from the run's checkpoints."""
        self._failures, self._observed = failures_of(checkpoints)

    def saved(self, handle: SaveHandle, began: float) -> None:
        """Takes note of a save that has returned, and that began at ``began`` by this clock."""
        self._ended = self._clock()
        self._blocked.append(max(1e-6, self._ended - began))
        self._watched.append((handle, began))
        self._max.forget()  # what was asked before it is answered by it

    def skipped(self) -> None:
        """Takes note of a save that was skipped: another one is due in a few seconds."""
        self._retry = self._clock() + _RETRY_S
        self._max.forget()

    def now(self) -> float:
        return self._clock()

    def _watch(self) -> None:
        for handle, began in [item for item in self._watched if item[0].durable.done()]:
            self._watched.remove((handle, began))
            if handle.is_good():
                self._persist.append(self._clock() - began)

    def _is_due(self) -> bool:
        """Returns whether a save is due. Only rank 0 calls it."""
        self._watch()
        if self._clock() < self._retry:
            return False
        if self._interval != "auto":
            return self._clock() - self._ended >= float(self._interval)
        if not self._blocked:
            return True  # the first save measures
        if not self._persist:
            return False  # it is still on its way; nothing is known of the next
        from statistics import median  # here, since the import of an adapter is to be short

        row = _cairn.interval(median(self._blocked), median(self._persist), self.restart_s, self._observed + self._clock() - self._began,
                              self._failures, self._prior, self._cap, self._group.world_size, self._in_flight)
        advice = Advice(*row)
        if self.advice is None or not 0.8 < advice.durable / self.advice.durable < 1.25:
            log.info("the interval between saves is now %.1f s\n%s", advice.durable, advice.text.rstrip())
        self.advice = advice
        return self._clock() - self._ended >= advice.durable

    def should_save(self, step: int) -> bool:
        """See Checkpointer.should_save."""
        if self._group.world_size == 1:
            return self._is_due()
        due = self._max.result(step) > 0
        self._max.begin(int(self._group.rank == 0 and not due and self._is_due()), step)
        return due
