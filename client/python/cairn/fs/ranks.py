# SPDX-License-Identifier: Apache-2.0
"""Several processes write one tree: who takes part, and when it is sealed.

A path call is no collective, so ranks meet in torch.distributed's key-value store, one Meeting for each tree that is
being written. Whoever creates a file says ``here``. Who closes the marker is the sealer: it asks all who are here for
their lists of files, refuses the checkpoint when one has a file open or two have the same name, and else hands out a
token and ranks (itself rank 0), with which all commit. Others hear of it from a thread that looks every _LOOK_S. Texts
are JSON, nothing is pickled. Without torch.distributed, or in a world of one, there is no Meeting.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import threading
import time
import weakref
from datetime import timedelta
from typing import Any, Callable, Optional

from ..client import new_attempt
from ..errors import CairnError, InternalError, InvalidError, MissingRanksError, UnsupportedError, from_code

_LOOK_S = 0.05
_ANSWER_S = 60.0
_tokens: dict = {}  # (run URL, ranks) -> token: the same ranks stay one attempt
_watches: weakref.WeakSet = weakref.WeakSet()  # threads
_ending = threading.Event()  # the process ends
_given: Optional[tuple] = None  # (store, rank, world size) in a process without a process group, after meet_at


def meeting_point() -> Optional[tuple]:
    """Returns where the ranks meet, in values that can be pickled, for ``meet_at`` in a process that one of them starts. Returns None for
    a process by itself.

    Raises:
        UnsupportedError: No other process can get at the group's store.
    """
    store, rank, world = store_of_ranks()
    if store is None:
        return None
    import torch.distributed as dist

    while isinstance(store, dist.PrefixStore):
        store = store.underlying_store
    if isinstance(store, dist.TCPStore):
        return "tcp", (store.host, store.port), rank, world
    if isinstance(store, dist.FileStore):
        return "file", (store.path,), rank, world
    raise UnsupportedError.of(f"rank {rank}: processes of the ranks cannot meet in torch.distributed's {type(store).__name__}; call "
                              "init_process_group with a TCPStore or a FileStore, as torchrun does")


def meet_at(point: tuple) -> None:
    """Lets this process take a rank's place where the ranks meet."""
    global _given
    import torch.distributed as dist

    kind, address, rank, world = point
    store = dist.FileStore(*address) if kind == "file" else dist.TCPStore(
        *address, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=_ANSWER_S))
    # torchrun's agent keeps one store, where the keys of workers lie that it has started before.
    _given = dist.PrefixStore(f"cairn.fs/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store), rank, world


def store_of_ranks() -> tuple:
    """Returns (store, rank, world size), which is (None, 0, 1) for a process by itself."""
    if _given is not None:
        return _connection(_given[0]), *_given[1:]
    torch = sys.modules.get("torch")
    dist = getattr(torch, "distributed", None) if torch is not None else None
    if dist is None or not dist.is_available() or not dist.is_initialized():
        if int(os.environ.get("RANK", "0")) > 0 and int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise InvalidError.of(f"rank {os.environ['RANK']} of {os.environ['WORLD_SIZE']} writes files of a checkpoint, but "
                                  "torch.distributed is not initialised, so the ranks cannot commit together: call "
                                  "init_process_group first, or let rank 0 write alone")
        return None, 0, 1
    if dist.get_world_size() == 1:
        return None, 0, 1
    return _connection(dist.distributed_c10d._get_default_store()), dist.get_rank(), dist.get_world_size()


def ask_first(key: str, ask: Callable[[], Any]) -> Any:
    """Returns on all ranks what ``ask``, called on the first one, returns: a value of JSON. Every rank calls it. The wait for the
    first rank ends with the store's own deadline.

    Args:
        key: A text that no call before had, the same on all ranks.
        ask: Called on the first rank.

    Raises:
        CairnError: What ``ask`` raised; on all ranks.
    """
    store, rank, _ = store_of_ranks()
    if store is None:
        return ask()
    if rank > 0:
        value, code, text = json.loads(store.get(key))
        if code is not None:
            raise from_code(code, f"{text} (rank 0)")
        return value
    try:
        value = ask()
        store.set(key, json.dumps([value, None, ""]))
        return value
    except Exception as error:  # whatever it is, the other ranks wait for an answer
        known = error if isinstance(error, CairnError) else InternalError.of(f"{type(error).__name__}: {error}")
        store.set(key, json.dumps([None, known.code, known.text]))
        raise


def _connection(store: Any) -> Any:
    """Returns a connection of our own, so that a wait of the trainer's does not hold ours up."""
    try:
        return store.clone()
    except (AttributeError, RuntimeError, NotImplementedError):
        return store


class Deal:
    """What the sealer hands out: the attempt, this process's rank in it, and the files of all (rank 0 only)."""

    def __init__(self, token: str, rank: int, world_size: int, index: Optional[dict]) -> None:
        self.token, self.rank, self.world_size, self.index = token, rank, world_size, index


class Meeting:
    """See the top of the file."""

    def __init__(self, store: Any, rank: int, world: int, run_url: str, step: int) -> None:
        self._store, self._rank, self._world, self._run_url, self._step = store, rank, world, run_url, step
        base = "cairn.fs/" + hashlib.sha256(f"{run_url} {step}".encode()).hexdigest()[:24]
        self._round = base + "/round"
        self._base = f"{base}/{store.add(self._round, 0)}"
        self._over = threading.Event()
        self._is_sealer = False
        self._order: list = []
        store.set(self._key("here", rank), "1")

    def _key(self, *parts: Any) -> str:
        return "/".join((self._base, *map(str, parts)))

    def _put(self, value: Any, *parts: Any) -> None:
        self._store.set(self._key(*parts), json.dumps(value))

    def _get(self, *parts: Any) -> Any:
        """Returns what was put there, or None."""
        key = self._key(*parts)
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def _await(self, who: str, what: str, *parts: Any) -> Any:
        until = time.monotonic() + _ANSWER_S
        while (value := self._get(*parts)) is None:
            if time.monotonic() > until:
                raise MissingRanksError.of(f"step {self._step}: {who} {what} within {_ANSWER_S:.0f} s; check that it is alive")
            time.sleep(_LOOK_S)
        return value

    def leave(self) -> None:
        """Called when this process has nothing in the tree any more."""
        self._over.set()
        self._store.delete_key(self._key("here", self._rank))

    @property
    def rank(self) -> int:
        return self._rank

    def await_seal(self) -> None:
        """Waits until another rank has begun to commit. Raises MissingRanksError if none does."""
        if not self._over.is_set():
            self._await("no rank", "has begun to commit", "seal")

    # --- the sealer -----------------------------------------------------------------------------------

    def seal(self, files: dict) -> Optional[Deal]:
        """Called by the process that closes the marker. Returns None if no other process has written.

        Raises:
            CairnError: A rank has a file open or does not answer, or two wrote one name; all ranks drop the tree.
        """
        self._is_sealer = True
        self._over.set()
        others = [rank for rank in range(self._world)
                  if rank != self._rank and self._store.check([self._key("here", rank)])]
        if not others:
            self._finish()
            return None
        self._order = [self._rank, *others]
        self._put({"by": self._rank}, "seal")
        try:
            index = dict(files)
            # All have been heard before one is judged: whoever has answered writes nothing more into this tree.
            answers = {rank: self._await(f"rank {rank}", "did not send its list of files", "files", rank) for rank in others}
            for rank, answer in answers.items():
                if "error" in answer:
                    raise InvalidError.of(f"rank {rank}: {answer['error']}")
                both = sorted(set(index) & set(answer["files"]))
                if both:
                    raise InvalidError.of(f"{both[0]!r} was written by rank {rank} and by another rank")
                index.update(answer["files"])
        except CairnError as error:
            self._put({"error": str(error)}, "go")
            self._next_round()
            raise
        token = _tokens.setdefault((self._run_url, tuple(self._order)), new_attempt())
        self._put({"token": token, "order": self._order}, "go")
        return Deal(token, 0, len(self._order), index)

    def wait(self, op: Any) -> None:
        """The sealer's wait for its save, which ends when another rank says that it failed."""
        try:
            while not op.wait(timeout=0.2):
                for rank in self._order[1:]:
                    answer = self._get("end", rank)
                    if answer is not None and "error" in answer:
                        op.abort()
                        op.wait(timeout=10.0)
                        raise InvalidError.of(f"rank {rank}: {answer['error']}")
        except CairnError as error:
            for rank in self._order[1:]:
                answer = self._get("end", rank)
                if answer is not None and "error" in answer and answer["error"] not in str(error):
                    raise type(error)(error.code, error.name, f"{error.text} (rank {rank}: {answer['error']})") from None
            raise
        finally:
            self._next_round()

    def _next_round(self) -> None:
        self._store.add(self._round, 1)

    def _finish(self) -> None:
        self._store.delete_key(self._key("here", self._rank))

    # --- the others -----------------------------------------------------------------------------------

    def watch(self, on_seal: Callable[[], dict], on_go: Callable[..., None]) -> None:
        """Starts the thread. ``on_seal`` returns this process's files, or raises CairnError if it cannot. ``on_go(deal)`` commits them,
        and ``on_go(None, why)`` drops them."""
        thread = threading.Thread(target=self._watch, args=(on_seal, on_go), name="cairn-fs-ranks", daemon=True)
        _watches.add(thread)
        thread.start()

    def _watch(self, on_seal: Callable[[], dict], on_go: Callable[..., None]) -> None:
        try:
            while not self._store.check([self._key("seal")]):
                if self._over.wait(_LOOK_S) or _ending.is_set():
                    return
            if self._is_sealer:
                return  # it has seen its own word
            try:
                self._put({"files": on_seal()}, "files", self._rank)
            except CairnError as error:
                self._put({"error": str(error)}, "files", self._rank)
            try:
                go = self._await("the rank that seals", "did not decide", "go")
                if "error" in go:
                    on_go(None, f"the rank that commits it failed: {go['error']}")
                else:
                    on_go(Deal(go["token"], go["order"].index(self._rank), len(go["order"]), None))
                self._put({}, "end", self._rank)
            except CairnError as error:
                on_go(None, str(error))
                self._put({"error": str(error)}, "end", self._rank)
        except RuntimeError:  # the store is gone: so is the group, and whoever would seal
            on_go(None, "torch.distributed's process group ended before any rank closed the folder's marker", False)
        except BaseException as error:
            on_go(None, f"{type(error).__name__}: {error}")  # whatever it was, nobody waits for this tree
            raise


def end_watches() -> None:
    """Called when the process ends. Waits for threads that are committing, for a bounded time: Python unwinds the stack of a thread
    that returns from PyTorch's store later, and C++ then aborts the process."""
    _ending.set()
    until = time.monotonic() + _ANSWER_S
    for thread in list(_watches):
        thread.join(max(0.0, until - time.monotonic()))


def meeting_of(run_url: str, step: int) -> Optional[Meeting]:
    """Returns the Meeting of the ranks that write this tree, or None for a process by itself."""
    store, rank, world = store_of_ranks()
    return None if store is None else Meeting(store, rank, world, run_url, step)


def forget_tokens(run_url: str) -> None:
    """Lets the next commit of a run be a new attempt."""
    for key in [key for key in _tokens if key[0] == run_url]:
        del _tokens[key]
