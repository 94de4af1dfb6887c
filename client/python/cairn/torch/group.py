# SPDX-License-Identifier: Apache-2.0
"""Ranks: who am I, the attempt token for all, and agreement before anything is changed.

Everything goes over a gloo group of Cairn's own, so that it cannot meet the trainer's collectives. Errors are
exchanged as codes: no object is ever pickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from contextlib import contextmanager
from typing import Any, Iterator, Mapping, Optional, Sequence

import torch

from ..client import new_attempt
from ..errors import CairnError, InternalError, InvalidError, from_code
from .gloo import Gloo
from .local import check_coordinates, coordinate_text
from .stages import classes

try:
    import torch.distributed as dist
except ImportError:  # a PyTorch built without it
    dist = None  # type: ignore[assignment]


class StepMax:
    """A maximum over all ranks that is begun in the call of one step and read in that of the next, when it is there. ``what`` is
    the name of the call."""

    def __init__(self, group: "Group", what: str) -> None:
        self._group, self._what = group, what
        self._pending: Optional[tuple] = None
        self._times = self._behind = 0

    def forget(self) -> None:
        """Takes what is in flight for nothing."""
        self._pending = None

    def begin(self, value: int, step: int) -> None:
        """Begins the maximum. All ranks call it alike."""
        if self._behind > 0:  # the others have made this call
            self._behind -= 1
            return
        started = self._group.max_start([value, step, -step], f"{self._what} at step {step}")
        self._pending = started, step, self._group.times

    def result(self, step: int) -> int:
        """Returns the maximum that the step before began, or 0. Raises InvalidError if the ranks are at different steps, unless they have
        just found each other again: then those that are behind wait for the others' step."""
        pending, self._pending = self._pending, None
        if pending is None or pending[2] != self._group.times:
            return 0
        value, most, least = self._group.max_result(pending[0], f"{self._what} at step {step}")
        is_first, self._times = self._times != pending[2], pending[2]
        if most != -least and not is_first:
            raise InvalidError.of(f"{self._what}: the ranks are at different steps, {-least} to {most}: every rank must call it once per "
                                  "step, with the same number")
        self._behind = most - pending[1]
        return 0 if most != -least else int(value)


LEFT_MIN_S = 1.0  # how long a rank waits for others at least, though its call's time is nearly over


class Group:
    """The ranks that save together. A world of one needs no torch.distributed. Outside of ``within`` the ranks wait ``seconds``
    for each other."""

    def __init__(self, process_group: Any, rank: Optional[int], world_size: Optional[int], read_only: bool,
                 seconds: float = 600.0) -> None:
        self._group: Optional[Gloo] = None
        self._read_only, self.seconds = read_only, seconds
        self._what, self._until = "Checkpointer", time.monotonic() + seconds
        self._subgroups: dict = {}  # ranks -> Gloo
        self._changes = 0  # how often the ranks have met for a changed state
        self._saves = 0  # and restores, that this rank has begun
        self.rank, self.world_size = 0, 1
        self.me, self.ranks = 0, [0]  # this process's global rank; all ranks' in Cairn's order
        self.coordinate = "rank=0"
        self.coordinates: list = [self.coordinate]
        if rank is not None or world_size is not None:
            self.rank, self.world_size = rank or 0, world_size or 1
            self.me = self.rank
            self.ranks = list(range(self.world_size))
        elif dist is not None and dist.is_available() and dist.is_initialized():
            self._join(process_group)
        elif process_group is not None:
            raise InvalidError.of("process_group is given, but torch.distributed is not initialised")
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and not read_only:
            raise InvalidError.of(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised: "
                                  "call torch.distributed.init_process_group before Checkpointer, or give rank, "
                                  "world_size and attempt")

    def _join(self, process_group: Any) -> None:
        base = process_group if process_group is not None else dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(base), dist.get_world_size(base)
        if self.rank < 0:
            raise InvalidError.of("this process is not in the process_group")
        self.me, self.ranks = dist.get_rank(), dist.get_process_group_ranks(base)
        if self.world_size > 1:
            self._group = Gloo(self.ranks, self.me, self._what, self.seconds)

    @property
    def is_joined(self) -> bool:
        """True if the ranks can speak to each other, through torch.distributed."""
        return self._group is not None

    @contextmanager
    def within(self, what: str, seconds: float) -> Iterator[None]:
        """Gives the collectives inside the ``with`` block this name for messages, and this many seconds together. Ranks that have lost
        each other, and all live, find each other again."""
        before = self._what, self._until
        self._what, self._until = what, time.monotonic() + seconds
        try:
            if self._group is not None:
                self._group.mend(what, seconds)
            yield
        finally:
            self._what, self._until = before

    def _left(self) -> float:
        return max(LEFT_MIN_S, self._until - time.monotonic())

    def begin(self) -> None:
        """Counts a save or restore, which every rank begins."""
        self._saves += 1

    def pass_by(self, what: str) -> None:
        """Leaves a note of what this rank does, and that no change of its state needs the other ranks. They read it where they have
        such a change, or if this rank is missing from a later collective."""
        if self._group is not None:
            self._group.notes.pass_by(self._saves, what)

    def seen(self, rank: int) -> str:
        """Returns where a rank runs and what it was last seen doing, or "" if that cannot be known."""
        return "" if self._group is None else self._group.notes.seen(self.ranks[rank])

    def publish(self, text: str) -> None:
        """Leaves a text for the other ranks, once, without waiting for anybody."""
        if self._group is not None:
            self._group.publish(text)

    def published(self) -> Optional[list]:
        """Returns the texts of all ranks, or None if one is not there yet."""
        return None if self._group is None else self._group.published()

    def token(self, given: Optional[str]) -> Optional[str]:
        """Returns the attempt token: the given one, or one that rank 0 draws. None leaves it to the library."""
        if self._read_only:
            return None  # a reader has no rank, and no attempt
        if self._group is None:
            if given is None and self.world_size > 1 and "CAIRN_ATTEMPT" not in os.environ:
                raise InvalidError.of("attempt is needed with rank and world_size: draw one with cairn.new_attempt() on "
                                      "rank 0 and give it to all ranks")
            return given
        text = given or new_attempt()
        if len(text) != 32 or not text.isascii():
            text = "?" * 32  # the library refuses it on every rank, with its own words
        drawn = self._from(0, text.encode()).decode()
        return drawn if given is None or self.rank == 0 else given

    def share_coordinate(self, coordinate: Any) -> None:
        """Sets ``coordinate`` (this rank's) and ``coordinates`` (those of all ranks). Every rank calls it. Raises InvalidError on all
        ranks if one is malformed or two are the same."""
        error: Optional[CairnError] = None
        try:
            self.coordinate = coordinate_text(coordinate, self.rank)
            if coordinate is not None and self._group is None and self.world_size > 1:
                raise InvalidError.of("coordinate needs torch.distributed, because all ranks must know all coordinates")
        except CairnError as failure:
            error = failure
        self.agree(error, "reading the coordinates")
        self.coordinates = [f"rank={rank}" for rank in range(self.world_size)]
        if self._group is not None:
            self.coordinates = [data.decode() for data in self.gather(self.coordinate.encode())]
        elif self.world_size == 1:
            self.coordinates = [self.coordinate]
        check_coordinates(self.coordinates)

    @property
    def times(self) -> int:
        """How often the ranks have lost each other, and found each other again."""
        return 0 if self._group is None else self._group.times

    def max_start(self, values: list, what: str) -> tuple:
        """Begins to take the maximum of each value over all ranks. Every rank calls it. Returns what ``max_result`` needs."""
        data = torch.tensor(values, dtype=torch.int64, device="cpu")
        if self._group is None:
            return None, data
        self._group.mend(what, self.seconds)
        return self._group.all_reduce(data, dist.ReduceOp.MAX, what, self.seconds, wait=False), data

    def max_result(self, started: tuple, what: str) -> list:
        """Waits for what ``max_start`` began, and returns the maxima. Raises MissingRanksError."""
        work, data = started
        if self._group is not None:
            self._group.finish(work, what, self.seconds)
        found: list = data.tolist()
        return found

    def gather(self, data: bytes, what: str = "") -> list:
        """Returns the bytes of every rank, by rank. Every rank calls it. Raises MissingRanksError."""
        if self._group is None:
            return [data]
        what = what or self._what
        sizes = self._group.all_gather(torch.tensor([len(data)], device="cpu"), what, self._left())
        most = max(1, max(int(size) for size in sizes))
        mine = torch.zeros(most, dtype=torch.uint8, device="cpu")
        mine[:len(data)] = torch.frombuffer(bytearray(data or b"\0"), dtype=torch.uint8)[:len(data)]
        all_data = self._group.all_gather(mine, what, self._left())
        return [item.numpy().tobytes()[:int(size)] for item, size in zip(all_data, sizes)]

    def _from(self, rank: int, data: bytes) -> bytes:
        """Returns the bytes of that rank. Every rank calls it."""
        assert self._group is not None
        size = torch.tensor([len(data)], device="cpu")
        self._group.broadcast(size, rank, self._what, self._left())
        found = torch.frombuffer(bytearray(data), dtype=torch.uint8) if rank == self.rank and data else torch.empty(
            int(size), dtype=torch.uint8, device="cpu")
        if int(size) > 0:
            self._group.broadcast(found, rank, self._what, self._left())
        return found.numpy().tobytes()

    def broadcast(self, data: torch.Tensor, ranks: Sequence[int], root: int) -> None:
        """Copies the memory of ``ranks[root]`` into that of the other ``ranks``. Each of them calls it. Raises MissingRanksError."""
        if data.numel() == 0:
            return
        key = tuple(ranks)
        found = self._group if len(key) == self.world_size else self._subgroups.get(key)
        if found is None:
            found = self._subgroups[key] = Gloo([self.ranks[rank] for rank in key], self.me,
                                                f"{self._what} (meeting the ranks that hold the same)", self._left())
        elif found is not self._group:
            found.mend(self._what, self._left())
        found.broadcast(data, root, f"{self._what} (sharing what was read)", self._left())

    def agree_same(self, what: str, text: str) -> None:
        """Raises InvalidError on all ranks unless all gave the same text. Every rank calls it."""
        texts = self.gather(text.encode())
        odd = next((rank for rank, other in enumerate(texts) if other != texts[0]), None)
        if odd is not None:
            raise InvalidError.of(f"{what}: rank 0 gave {texts[0].decode()}, but rank {odd} gave {texts[odd].decode()}; all ranks must "
                                  "give the same value")

    def share_names(self, names: Mapping[str, str]) -> tuple:
        """Tells all ranks which names each of them holds. Every rank calls it with name -> what it is (shape and type).

        Returns (for each rank the first rank with the same names, name -> ranks that have it, for the names that not all
        ranks have). Raises InvalidError on all ranks if two ranks mean different things by one name."""
        mine = json.dumps(sorted(names.items())).encode()
        first = classes(self.gather(hashlib.sha256(mine).digest()))
        if not any(first):
            return first, {}
        by_first = {rank: json.loads(self._from(rank, mine)) for rank in sorted(set(first))}
        holders: dict = {}
        seen: dict = {}
        for rank, stage in enumerate(first):
            for name, what in by_first[stage]:
                holders.setdefault(name, []).append(rank)
                other, at = seen.setdefault(name, (what, rank))
                if other != what:
                    raise InvalidError.of(f"{name}: it is {other} on rank {at}, but {what} on rank {rank}; a name must stand for one "
                                          "tensor, whichever rank holds it; give pipeline stages and experts names of their own "
                                          "(another key in the state, or modules that keep their names in the whole model)")
        return first, {name: tuple(ranks) for name, ranks in holders.items() if len(ranks) < self.world_size}

    def meet_names(self, names: Mapping[str, str], what: str, seconds: float) -> tuple:
        """Does the same as ``share_names`` for ranks that have each changed what they hold. They meet in a new group, because a rank
        that has changed nothing may be in another collective, whose data must not be taken for its answer. Raises InvalidError, which
        names that rank, as soon as it has passed by."""
        before = self._group
        try:
            if before is not None:
                name = before.meet(f"{before.base}/change/{self._changes}", self._saves, what, seconds)
                self._changes += 1
                self._group = Gloo(self.ranks, self.me, what, seconds, name)
            with self.within(what, seconds):
                return self.share_names(names)
        finally:
            self._group = before

    def agree(self, error: Optional[BaseException], what: str) -> None:
        """Raises on all ranks if one has an error: its own error there, elsewhere one that names that rank. Every rank calls it."""
        if self._group is not None:
            said = b"" if error is None else json.dumps([
                error.code if isinstance(error, CairnError) else InternalError.CODE, text_of(error)[:_SAID_MAX]]).encode()
            texts = self.gather(said, what)
            failed = [rank for rank, text in enumerate(texts) if text]
            if failed and error is None:
                code, text = json.loads(texts[failed[0]])
                ranks = ", ".join(map(str, failed[:8]))
                raise from_code(code, f"{what} failed on rank {ranks}: {text}")
        if error is not None:
            raise error

    def close(self) -> None:
        self._subgroups = {}
        self._group = None


_SAID_MAX = 1500


def text_of(error: BaseException) -> str:
    """Returns the text by which other ranks are told of an error."""
    return error.text if isinstance(error, CairnError) else f"{type(error).__name__}: {error}"
