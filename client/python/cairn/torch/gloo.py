# SPDX-License-Identifier: Apache-2.0
"""Collectives over the CPU for some ranks, apart from all groups that torch.distributed knows.

PyTorch's new_group(use_local_synchronization=True) names a group after the number of groups that the process has made. Ranks
that have made different numbers of groups would wait for each other for ever. And destroy_process_group ends every group that
PyTorch knows, Cairn's as well. So Cairn's groups meet in the default store under names of their own, and nobody else ends them.

Every collective has a deadline. When one fails, gloo says only that a connection was closed. That does not show which rank is
missing, because a healthy rank closes its connections too once its neighbour is gone. So the ranks hold a roll call in the
store: each rank that is alive answers, and those that do not are missing. With every call a rank leaves a note in the store,
which says what the rank was last seen doing. When all have answered, a rank that was only late among them, their next call
makes the group anew.
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

from ..errors import CairnError, InternalError, InvalidError, MissingRanksError, with_text
from .similar import ranks_text

try:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
except ImportError:  # a PyTorch built without it
    dist = None  # type: ignore[assignment]

_ROLL_S = 4.0  # how long a roll call waits for answers: a live rank on a busy machine must not be called missing
_NOTE_S = 1.0  # between two notes of calls that come with every training step
_NAMED_MAX = 8
_HOST = socket.gethostname()


class Notes:
    """Notes in the store of torch.distributed that say what each rank was last seen doing, by global rank."""

    def __init__(self, me: int) -> None:
        self._store, self._me, self._last = distributed_c10d._get_default_store(), me, 0.0
        self._passed: list = []

    def pass_by(self, call: int, what: str) -> None:
        """Leaves a note of a save or restore, the ``call``-th of this rank, that finds nothing changed which the ranks would meet for."""
        self._passed = [call, what]
        self.leave(what)

    def has_passed(self, rank: int, call: int, what: str) -> bool:
        """Returns whether the rank has left such a note of this call, or of a later one."""
        passed = self.read(rank).get("passed") or [-1, ""]
        return passed == [call, what] or passed[0] > call

    def leave(self, what: str, group: str = "", call: int = 0, is_step: bool = False) -> None:
        """Leaves a note of what this rank does. If ``is_step`` is set (the call comes with every training step), a fresh note is
        kept instead."""
        now = time.time()
        if is_step and now - self._last < _NOTE_S:
            return
        self._last = now
        note = {"host": _HOST, "pid": os.getpid(), "what": what, "at": now, "group": group, "call": call,
                "passed": self._passed}
        try:
            self._store.set(f"cairn/note/{self._me}", json.dumps(note))
        except RuntimeError:
            pass  # the store has gone: the call itself says so, if it needs the store

    def read(self, rank: int) -> dict:
        try:
            if self._store.check([f"cairn/note/{rank}"]):
                return dict(json.loads(self._store.get(f"cairn/note/{rank}")))
        except RuntimeError:
            return {"store": "gone"}
        except ValueError:
            pass
        return {}

    def seen(self, rank: int) -> str:
        """Returns where the rank runs and what it was last seen doing, for people."""
        note = self.read(rank)
        if "store" in note:
            return "of which nothing can be known, because the store of torch.distributed has gone with the process that had it"
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
    and so does each one after it, until ``mend`` finds that all ranks have heard of it."""

    def __init__(self, ranks: Sequence[int], me: int, what: str, seconds: float, name: str = "") -> None:
        self.ranks, self.rank, self.size = list(ranks), list(ranks).index(me), len(ranks)
        self.notes = Notes(me)
        self._calls, self._lost, self._pg = 0, None, None  # type: int, Optional[CairnError], Any
        self._store = distributed_c10d._get_default_store()
        self.base = self.name = name or self._next_name()
        self.times = 0  # how often it was made anew
        self._make(what, seconds)

    def _make(self, what: str, seconds: float) -> None:
        def call(timeout: timedelta) -> Any:
            if self._is_given_up():
                raise RuntimeError("the other ranks have given this group up")
            return distributed_c10d.ProcessGroupGloo(dist.PrefixStore(self.name, self._store), self.rank, self.size, timeout=timeout)
        self._pg = self._call(what, seconds, call)

    def mend(self, what: str, seconds: float) -> None:
        """Makes the group anew if it was lost and all ranks know that: a rank that was late has come since. The ranks meet in the
        call that this begins, which must be a new one of the caller's."""
        while self._lost is not None and self._is_there([f"{self.name}/roll/{rank}" for rank in range(self.size)]):
            self.times += 1
            self.name, self._calls = f"{self.base}/again/{self.times}", 0
            if self._is_given_up():  # by others, who were here before
                self._set(f"roll/{self.rank}", json.dumps([str(self._lost.text), 0.0, seconds]))
                continue
            self._lost = None
            self._make(what, seconds)

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
        began = time.monotonic()
        try:
            if self._lost is None:
                if not work.is_completed():  # the note of its begin may be an older one
                    self.notes.leave(what, self.name, self._calls)
                work.wait()
        except RuntimeError as error:
            self._lose(what, seconds, error, began)
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

    def meet(self, place: str, call: int, what: str, seconds: float) -> str:
        """Waits until all ranks have come to a place in the store, and returns a name for the group that they make there. Raises
        InvalidError as soon as a rank has passed by, and MissingRanksError when the time is over; then it was as if never called."""
        keys = [f"{place}/{rank}" for rank in range(self.size)]
        self.notes.leave(what)
        self._store.set(keys[self.rank], os.urandom(8).hex())
        until, pause = time.monotonic() + seconds, 0.01
        try:
            while not self._store.check(keys):
                away = [rank for rank, key in enumerate(keys) if not self._store.check([key])]
                passed = [rank for rank in away if self.notes.has_passed(self.ranks[rank], call, what)]
                if passed:
                    raise InvalidError.of(f"{what}: the tensors that ck.state holds were changed here, on rank {self.rank}, but not on "
                                          f"{ranks_text(passed)}; change ck.state on all ranks alike, before the same save or restore")
                if time.monotonic() > until:
                    raise self._missing(away, what, f"did not come within {seconds:.3g} s")
                time.sleep(pause)
                pause = min(0.5, 2 * pause)  # one store answers all ranks
            tries = [self._store.get(key) for key in keys]  # of a rank that has come twice, one try is no other
        except BaseException:
            self._store.delete_key(keys[self.rank])
            raise
        return f"{place}/{hashlib.sha256(b''.join(tries)).hexdigest()[:16]}"

    def publish(self, text: str) -> None:
        """Leaves a text in the store, once. It is lost if the store is."""
        try:
            self._store.set(f"{self.base}/text/{self.rank}", text)
        except RuntimeError:
            pass

    def published(self) -> Optional[list]:
        """Returns the texts of all ranks, or None if one is not there (yet)."""
        keys = [f"{self.base}/text/{rank}" for rank in range(self.size)]
        return [self._store.get(key).decode() for key in keys] if self._is_there(keys) else None

    # --- who is missing ---------------------------------------------------------------------------------------

    def _call(self, what: str, seconds: float, call: Callable[[timedelta], Any], is_step: bool = False) -> Any:
        self._check(what)
        self._calls += 1
        self.notes.leave(what, self.name, self._calls, is_step)
        began = time.monotonic()
        try:
            return call(timedelta(seconds=max(0.01, seconds)))
        except Exception as error:  # gloo: the connection is closed, or the time is over; or this rank's own
            self._lose(what, seconds, error, began)
            self._check(what)

    def _check(self, what: str) -> None:
        if self._lost is not None:
            raise self._lost if what in self._lost.text else with_text(
                self._lost, f"{what}: the ranks have lost each other before: {self._lost.text}")

    def _lose(self, what: str, seconds: float, error: Exception, began: float) -> None:
        """Ends the group, so that ranks that wait in it fail at once, and finds out which ranks are missing, or were late."""
        self._pg = None
        said = self._roll_call(str(error), time.monotonic() - began, seconds)
        silent = [rank for rank, answer in enumerate(said) if answer is None]
        notes = {rank: self.notes.read(self.ranks[rank]) for rank in silent}
        absent = [rank for rank in silent if (notes[rank].get("group"), notes[rank].get("call", 0) >= self._calls)
                  != (self.name, True)]
        if silent:
            self._lost = self._missing(absent or silent, what, f"did not come within {seconds:.3g} s" if absent else
                                       "came, and does not answer any more")
            self._set("verdict", self._lost.text)
            return
        verdict = self._get("verdict")
        waited = max(answer[1] for answer in said)
        late = [rank for rank, answer in enumerate(said) if answer[1] < waited / 2]
        if verdict:
            self._lost = MissingRanksError.of(f"{what}: the ranks have given this call up, for {verdict}")
        elif late and waited >= 0.9 * min(answer[2] for answer in said):
            self._lost = self._missing(late, what, f"came when the other ranks had waited for {waited:.3g} s")
        else:
            rank = next((rank for rank, answer in enumerate(said) if not _is_network(answer[0])), self.rank)
            self._lost = InternalError.of(f"{what}: all ranks have come, but their exchange failed on rank {rank}: {said[rank][0]}; "
                                          "call it again on all ranks, or start the job again, and report this")

    def _missing(self, ranks: list, what: str, how: str) -> CairnError:
        named = "; ".join(f"rank {rank} {self.notes.seen(self.ranks[rank])}" for rank in ranks[:_NAMED_MAX])
        more = f"; and {len(ranks) - _NAMED_MAX} ranks more" if len(ranks) > _NAMED_MAX else ""
        its = "its" if len(ranks) == 1 else "their"
        return MissingRanksError.of(f"{what}: {ranks_text(ranks)} {how} ({named}{more}); look at {its} log: where the process lives, "
                                    "the next call of all ranks goes on, else start the job again")

    def _roll_call(self, why: str, waited: float, seconds: float) -> list:
        """Returns for each rank [what it says of the failure, how long it had waited, how long it would have], or None if it does not
        answer."""
        keys = [f"{self.name}/roll/{rank}" for rank in range(self.size)]
        said: list = [None] * self.size
        said[self.rank] = [why, waited, seconds]
        until, pause = time.monotonic() + _ROLL_S, 0.01
        try:
            self._store.set(keys[self.rank], json.dumps(said[self.rank]))
            self._store.set(f"{self.name}/given-up", "")
            while None in said and time.monotonic() < until:
                for rank in [rank for rank, answer in enumerate(said) if answer is None]:
                    if self._store.check([keys[rank]]):
                        said[rank] = json.loads(self._store.get(keys[rank]))
                time.sleep(pause)
                pause = min(0.2, 2 * pause)  # one store answers all ranks
        except RuntimeError:
            pass  # the store is gone with the process that had it: rank 0, or the agent
        return said

    # --- the store, which may be gone with the process that had it ---------------------------------------------

    def _set(self, key: str, text: str) -> None:
        try:
            self._store.set(f"{self.name}/{key}", text)
        except RuntimeError:
            pass  # nobody can read it then

    def _get(self, key: str) -> str:
        return self._store.get(f"{self.name}/{key}").decode(errors="replace") if self._is_there([f"{self.name}/{key}"]) else ""

    def _is_there(self, keys: list) -> bool:
        try:
            return bool(self._store.check(keys))
        except RuntimeError:
            return False

    def _is_given_up(self) -> bool:
        return self._is_there([f"{self.name}/given-up"])


def _is_network(text: str) -> bool:
    """Returns whether gloo's error text speaks of another rank."""
    return any(word in text for word in ("onnection", "imed out", "imeout", "roken pipe", "peer"))
