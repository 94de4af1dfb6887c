# SPDX-License-Identifier: Apache-2.0
"""Where a training stands among the checkpoints of its run, and which of them its next save follows. Needs no framework."""

from __future__ import annotations

from typing import Any, Iterable, Optional


class Lineage:
    """The checkpoints that led a training to where it is, oldest first, as (step, term).

    A term of the run holds saves that follow each other, each of a later step. The training is in one of these states:

    - *following*: its term follows the last checkpoint of ``_behind``, or nothing. A save goes on in the term, beyond ``_own``.
    - *apart*: it is to go on behind the last one of ``_behind``, which its term does not follow: the run was left meanwhile, or a part
      of another checkpoint was restored. The next save begins a term.
    - *joining*: it was restored from elsewhere at the step ``_joins``, so only a list of the run says what is behind it. The next save
      begins a term.

    A save of a step that its term may hold begins a term, too: ``is_left_by`` tells, ``before`` says what may be its parent, and
    ``follow`` notes what has become it. One thread uses it.
    """

    def __init__(self) -> None:
        self._behind: list = []  # the checkpoints that led to the present term, as far as is known here
        self._own: list = []  # the checkpoints of the present term
        self._open: list = []  # saves in flight when last seen, and those of which this rank knows no end
        self._is_apart = False
        self._joins: Optional[int] = None

    def _newest_own(self) -> int:
        return max([-1, *(step for step, _ in self._own), *(handle.step for handle in self._open)])

    @property
    def newest(self) -> int:
        """The newest step that the training has saved in this process, or has resumed from; -1 if there is none."""
        return max([self._newest_own(), *(step for step, _ in self._behind)])

    def join(self, step: int) -> None:
        """Notes that the training goes on at a step that it has restored from elsewhere."""
        self._joins = step

    def began(self, handle: Any) -> None:
        """Takes note of a save in flight."""
        self._open.append(handle)

    def settle(self, waits: bool = False) -> None:
        """Takes note of the saves that have become checkpoints."""
        ended = [handle for handle in self._open if (waits and handle.durable.wait()) or handle.durable.done()]
        self._open = [handle for handle in self._open if handle not in ended or handle.is_lost()]
        results = [handle.durable.result(0) for handle in ended if handle.is_good()]
        self._own += [(result.step, result.term) for result in results]

    def restored(self, found: Any, is_whole: bool) -> None:
        """Takes note of a restore, or of a run without a checkpoint (None). A part of a state, such as the best model at the end, is not
        where a training goes on that has saved or restored before."""
        self.settle()
        if not is_whole and self.newest >= 0:
            self._behind, self._own, self._is_apart = self._behind + self._own, [], True
        else:
            self.follow([] if found is None else [(found.step, found.term)])

    def left(self) -> None:
        """Takes note that the term has ended. What has become of a save of which this rank has not heard, the next one learns."""
        self._behind, self._own = self._behind + self._own, []
        self._is_apart = bool(self._behind or self._open)

    def is_left_by(self, step: int) -> bool:
        """Returns whether a save of the step begins a term."""
        return self._is_apart or self._joins is not None or step <= self._newest_own()

    def is_unsure(self) -> bool:
        """Returns whether ``learn_from`` must come before ``before``."""
        return self._joins is not None or bool(self._open)

    def learn_from(self, listed: Iterable[Any]) -> None:
        """Takes from a list of the run, newest first, what is not known here."""
        found = [(item.step, item.term) for item in listed if not item.superseded][::-1]
        if self._joins is not None:
            self._behind, self._own = [item for item in found if item[0] <= self._joins], []
        else:
            lost = {handle.step for handle in self._open}
            self._own = sorted({*self._own, *(item for item in found if item[0] in lost and item not in self._behind)})

    def before(self, step: int) -> list:
        """Returns the checkpoints that a save of the step may follow, the best one last."""
        return [item for item in self._behind + self._own if item[0] < step]

    def has_own(self) -> bool:
        """Returns whether the present term may hold checkpoints."""
        return self._newest_own() >= 0

    def follow(self, line: list) -> None:
        """Notes that the present term follows the last checkpoint of the line."""
        self._behind, self._own, self._open, self._is_apart, self._joins = line, [], [], False, None
