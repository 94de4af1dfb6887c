# SPDX-License-Identifier: Apache-2.0
"""Collectives over the CPU for some ranks, apart from all groups that torch.distributed knows.

PyTorch's new_group(use_local_synchronization=True) names a group after the number of groups that the process has made. Ranks
that have made different numbers of groups would wait for each other for ever. And destroy_process_group ends every group that
PyTorch knows, Cairn's as well. So Cairn's groups meet in the default store under names of their own, and nobody else ends them.

Every collective has a deadline. When one fails, gloo says only that a connection was closed. That does not show which rank is
missing, because a healthy rank closes its connections too once its neighbour is gone. So the ranks hold a roll call in the
store: each rank that is alive answers, and those that do not are missing. With every call a rank leaves a note in the store,
which says what the rank was last seen doing.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import struct
import time
from datetime import timedelta
from typing import Any, Callable, Optional, Sequence

import torch

from ..errors import CairnError, InternalError, MissingRanksError, with_text

try:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
except ImportError:  # a PyTorch built without it
    dist = None  # type: ignore[assignment]

_ROLL_S = 2.0  # how long a roll call waits for answers
_NOTE_S = 1.0  # between two notes of calls that come with every training step
_NAMED_MAX = 8
_HOST = socket.gethostname()


class Notes:
    """Notes in the store of torch.distributed that say what each rank was last seen doing, by global rank."""

    def __init__(self, me: int) -> None:
        self._store, self._me, self._last = distributed_c10d._get_default_store(), me, 0.0

    def leave(self, what: str, group: str = "", call: int = 0, is_step: bool = False) -> None:
        """Leaves a note of what this rank does. If ``is_step`` is set (the call comes with every training step), a fresh note is
        kept instead."""
        now = time.time()
        if is_step and now - self._last < _NOTE_S:
            return
        self._last = now
        note = {"host": _HOST, "pid": os.getpid(), "what": what, "at": now, "group": group, "call": call}
        try:
            self._store.set(f"cairn/note/{self._me}", json.dumps(note))
        except RuntimeError:
            pass  # the store has gone: the call itself says so, if it needs the store

    def read(self, rank: int) -> dict:
        try:
            if self._store.check([f"cairn/note/{rank}"]):
                return dict(json.loads(self._store.get(f"cairn/note/{rank}")))
        except (RuntimeError, ValueError):
            pass
        return {}

    def seen(self, rank: int) -> str:
        """Returns where the rank runs and what it was last seen doing, for people."""
        note = self.read(rank)
        if not note:
            host = self._host_of_gloo(rank)
            return f"on {host or 'a host that is not known'}, and has called nothing of Cairn's yet"
        return (f"on {note['host']}, process {note['pid']}, last seen {max(0.0, time.time() - note['at']):.0f} s ago "
                f"in {note['what']}")

    def _host_of_gloo(self, rank: int) -> str:
        """Returns the host of a rank that has left no note, from what PyTorch's own gloo group keeps in the store, or ""."""
        try:
            key = f"cpu//0/{rank}"
            data = self._store.get(key) if self._store.check([key]) else b""
            length = struct.unpack_from("<Q", data)[0] if len(data) > 8 else 0
            return data[8:8 + length].decode("ascii") if 0 < length < 256 else ""
        except (RuntimeError, UnicodeDecodeError):
            return ""


class Gloo:
    """A group of global ranks. Each of its ranks makes it with the same list ``ranks``. Ranks that make several groups make
    them in the same order, or give each its own ``name``. A collective that fails raises MissingRanksError, which names ranks,
    and so does each one after it."""

    def __init__(self, ranks: Sequence[int], me: int, what: str, seconds: float, name: str = "") -> None:
        self.ranks, self.rank, self.size = list(ranks), list(ranks).index(me), len(ranks)
        self.notes = Notes(me)
        self._calls, self._lost, self._pg = 0, None, None  # type: int, Optional[CairnError], Any
        self._store = distributed_c10d._get_default_store()
        self.name = name or self._next_name()
        self._pg = self._call(what, seconds, lambda timeout: distributed_c10d.ProcessGroupGloo(
            dist.PrefixStore(self.name, self._store), self.rank, self.size, timeout=timeout))

    def _next_name(self) -> str:
        """Returns the name of the next group of these ranks. The store counts for each rank, so that a process that was started again
        agrees with the others."""
        name = "cairn/" + hashlib.sha256(",".join(map(str, self.ranks)).encode()).hexdigest()[:24]
        return f"{name}/{self._store.add(f'{name}/made-by-{self.rank}', 1)}"

    def broadcast(self, data: torch.Tensor, root: int, what: str, seconds: float) -> None:
        def call(timeout: timedelta) -> None:
            options = distributed_c10d.BroadcastOptions()
            options.rootRank, options.rootTensor, options.timeout = root, 0, timeout
            self._pg.broadcast([data], options).wait()
        self._call(what, seconds, call)

    def all_reduce(self, data: torch.Tensor, op: Any, what: str, seconds: float, wait: bool = True) -> Any:
        """Reduces ``data`` over all ranks, in place. If ``wait`` is False, returns the work in flight, for ``finish``."""
        def call(timeout: timedelta) -> Any:
            options = distributed_c10d.AllreduceOptions()
            options.reduceOp, options.timeout = op, timeout
            work = self._pg.allreduce([data], options)
            return work.wait() if wait else work
        return self._call(what, seconds, call, is_step=not wait)

    def finish(self, work: Any, what: str, seconds: float) -> None:
        """Waits for the work that ``all_reduce`` returned."""
        try:
            if self._lost is None:
                work.wait()
        except RuntimeError as error:
            self._lose(what, seconds, error)
        self._check(what)

    def all_gather(self, data: torch.Tensor, what: str, seconds: float) -> list:
        """Returns a list with the tensor of each rank. All have the same shape."""
        def call(timeout: timedelta) -> list:
            options = distributed_c10d.AllgatherOptions()
            options.timeout = timeout
            found = [torch.zeros_like(data) for _ in range(self.size)]
            self._pg.allgather([found], [data], options).wait()
            return found
        return self._call(what, seconds, call)

    # --- who is missing ---------------------------------------------------------------------------------------

    def _call(self, what: str, seconds: float, call: Callable[[timedelta], Any], is_step: bool = False) -> Any:
        self._check(what)
        self._calls += 1
        self.notes.leave(what, self.name, self._calls, is_step)
        try:
            return call(timedelta(seconds=max(0.01, seconds)))
        except Exception as error:  # gloo: the connection is closed, or the time is over; or this rank's own
            self._lose(what, seconds, error)
            self._check(what)

    def _check(self, what: str) -> None:
        if self._lost is not None:
            raise self._lost if what in self._lost.text else with_text(
                self._lost, f"{what}: the ranks have lost each other before: {self._lost.text}")

    def _lose(self, what: str, seconds: float, error: Exception) -> None:
        """Ends the group, so that ranks that wait in it fail at once, and finds out which ranks are missing."""
        self._pg = None
        said = self._roll_call(str(error))
        silent = [rank for rank, text in enumerate(said) if text is None]
        notes = {rank: self.notes.read(self.ranks[rank]) for rank in silent}
        late = [rank for rank in silent if (notes[rank].get("group"), notes[rank].get("call", 0) >= self._calls)
                != (self.name, True)]
        if not silent:
            rank = next((rank for rank, text in enumerate(said) if not _is_network(str(text))), self.rank)
            self._lost = InternalError.of(f"{what}: all ranks have come, but their exchange failed on rank {rank}: {said[rank]}; start "
                                          "the job again, and report this")
            return
        missing = late or silent
        named = "; ".join(f"rank {rank} {self.notes.seen(self.ranks[rank])}" for rank in missing[:_NAMED_MAX])
        more = f"; and {len(missing) - _NAMED_MAX} ranks more" if len(missing) > _NAMED_MAX else ""
        verb = f"did not come within {seconds:.3g} s" if late else "came, and does not answer any more"
        self._lost = MissingRanksError.of(
            f"{what}: {_listed(missing)} {verb} ({named}{more}); look at {'its' if len(missing) == 1 else 'their'} log, and start the "
            "job again")

    def _roll_call(self, why: str) -> list:
        """Returns for each rank what it says of the failure, or None if it does not answer."""
        keys = [f"{self.name}/roll/{rank}" for rank in range(self.size)]
        said: list = [None] * self.size
        said[self.rank] = why
        until, pause = time.monotonic() + _ROLL_S, 0.01
        try:
            self._store.set(keys[self.rank], why)
            while None in said and time.monotonic() < until:
                for rank in [rank for rank, text in enumerate(said) if text is None]:
                    if self._store.check([keys[rank]]):
                        said[rank] = self._store.get(keys[rank]).decode(errors="replace")
                time.sleep(pause)
                pause = min(0.2, 2 * pause)  # one store answers all ranks
        except RuntimeError:
            pass  # the store is gone with the process that had it: rank 0, or the agent
        return said


def _is_network(text: str) -> bool:
    """Returns whether gloo's error text speaks of another rank."""
    return any(word in text for word in ("onnection", "imed out", "imeout", "roken pipe", "peer"))


def _listed(ranks: list) -> str:
    shown = ", ".join(map(str, ranks[:_NAMED_MAX])) + (", …" if len(ranks) > _NAMED_MAX else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
