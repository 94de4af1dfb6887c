# SPDX-License-Identifier: Apache-2.0
"""Session: a rank's connection to one run, shared by all Writers of a process.

A Writer for each save is DCP's habit; a connection, a term and a lineage for each would be Cairn's ruin. So sessions
are kept here, by (run, attempt, rank, world size, options), and the attempt token by ranks, for as long as the process
lives, or until torch.distributed is torn down and initialised anew. Any thread; one save at a time.

The process mode of async_save pickles the Writer into a helper process that saves in this rank's name. Only one
process can hold a (token, rank) at a time: pickling closes the session here, and one that came by pickling closes
after each save; whoever finds the place taken waits for it, for at most _TAKEN_S.
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import threading
import time
from typing import Any, Callable, NamedTuple, Optional

import torch.distributed as dist

from ..client import DONE, Client, Operation, new_attempt
from ..doors import tell_restored
from ..errors import CairnError, DuplicateRankError, ExistsError, InvalidError, TimedOutError
from ..torch.group import Group

_TAKEN_S = 30.0
_SETTLE_S = 10.0
_LEAVE_S = 120.0  # longer than anything holds a session whose saves are given up

_lock = threading.Lock()
_sessions: dict = {}
_attempts: dict = {}  # ranks -> (default group, Group, token)
_worlds: dict = {}  # attempt token -> the default group of its ranks
_left: set = set()  # attempt tokens of default groups that are no more
_loads: dict = {}  # (run URL, ranks) -> the newest Load


class Load(NamedTuple):
    """What ranks have loaded together. ``number`` counts the loads that a save descended from: all ranks have those, while a load
    that failed on some of them is noted by the others alone."""

    number: int
    term: int
    step: int
    is_used: bool = False


def attempt_of(process_group: Any, rank: Optional[int], world_size: Optional[int], given: Optional[str]) -> tuple:
    """(rank, world size, attempt token): drawn by rank 0 and handed out once for each set of ranks of a process.

    The first call for a set of ranks is collective, on a gloo group of Cairn's own; later ones are not. That group is
    kept: PyTorch names a group after its ranks, and a name that comes again finds the dead one's addresses.
    """
    world = _leave_others()
    if rank is not None or world_size is not None or world is None:
        group = Group(process_group, rank, world_size, False)
        token = group.token(given)
        with _lock:
            key = (None, group.rank, group.world_size)
            shared = os.environ.get("CAIRN_ATTEMPT") if group.world_size > 1 else None
            token = token or shared or _attempts.setdefault(key, (None, None, new_attempt()))[2]
            _left.discard(token)
        return group.rank, group.world_size, token
    ranks = tuple(dist.get_process_group_ranks(process_group if process_group is not None else world))
    with _lock:
        known = _attempts.get(ranks)
    if known is None:
        group = Group(process_group, None, None, False)
        token = group.token(given) or new_attempt()
        _agree_on_loads(group)
        with _lock:
            known = _attempts[ranks] = (world, group, token)
    token = given or known[2]
    with _lock:
        _worlds[token] = world
        _left.discard(token)
    return known[1].rank, known[1].world_size, token


def _leave_others() -> Any:
    """Returns the default group of torch.distributed, or None. Closes the sessions of an earlier one, which was torn down."""
    world = dist.group.WORLD if dist.is_available() and dist.is_initialized() else None
    if world is None:
        return None
    with _lock:
        for ranks in [ranks for ranks, known in _attempts.items() if known[0] is not None and known[0] is not world]:
            del _attempts[ranks]
        for token in [token for token, of_token in _worlds.items() if of_token is not world]:
            del _worlds[token]
            _left.add(token)
        old = [_sessions.pop(key) for key in list(_sessions) if key[1] in _left]
    for session in old:
        if session.pid == os.getpid():
            session.close()
    return world


def _agree_on_loads(group: Group) -> None:
    """Forgets what not all ranks have loaded last, where some of them are new: it is no parent of what they save together."""
    with _lock:
        mine = [(url, load) for (url, ranks), load in _loads.items() if ranks == group.world_size]
    told = [json.loads(item) for item in group.gather(json.dumps(mine).encode())]
    shared = set.intersection(*({(url, term, step) for url, (_, term, step, _) in ours} for ours in told))
    number = 1 + max((load[0] for ours in told for _, load in ours), default=0)
    with _lock:
        for url, load in mine:
            key = url, group.world_size
            if (url, load.term, load.step) in shared:
                _loads[key] = Load(number, load.term, load.step)
            else:
                _loads.pop(key, None)


def note_load(run_url: str, ranks: int, term: int, step: int, fell_back: bool = False) -> None:
    """So many ranks have loaded this together: what as many save next descends from it. ``fell_back``: it is not the newest checkpoint."""
    tell_restored(run_url, step, term, dist.get_rank() if dist.is_available() and dist.is_initialized() else 0, fell_back)
    with _lock:
        old = _loads.get((run_url, ranks))
        _loads[run_url, ranks] = Load(1 if old is None else old.number + old.is_used, term, step)


def loads() -> dict:
    """What a Writer takes along to the process that saves for this one."""
    with _lock:
        _loads.update({key: load._replace(is_used=True) for key, load in _loads.items()})
        return dict(_loads)


def adopt_loads(known: dict) -> None:
    """What the process that pickled a Writer had loaded."""
    with _lock:
        _loads.update(known)


class Session:
    """See the top of the file. Made by ``session_of``."""

    def __init__(self, run_url: str, token: str, rank: int, world_size: int, load: Optional[Load], options: dict) -> None:
        self.run_url, self.base_token, self.rank, self.world_size = run_url, token, rank, world_size
        self.load = load
        # An attempt of its own for what descends from each load: any client of it restores once, whichever process it is in.
        self.token = hashlib.sha256(f"{token} {load.number}".encode()).hexdigest()[:32] if load else token
        self.transient = False
        self._options = options
        self._client: Optional[Client] = None
        self._op: Optional[Operation] = None  # the last save, until somebody else ends it
        self._restored = False  # whether the client has taken the parent
        self._term = 0
        self._mutex = threading.RLock()
        self.pid = os.getpid()

    def _connect(self) -> Client:
        until = time.monotonic() + _TAKEN_S
        while self._client is None:
            try:
                self._client = Client(self.run_url, rank=self.rank, world_size=self.world_size, attempt=self.token,
                                      label="dcp", **self._options)
                self._restored = False
            except DuplicateRankError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.1)
        return self._client

    def _take_parent(self, client: Client) -> None:
        """What this process loaded becomes the parent of what it saves: an empty restore, by all ranks."""
        if self.load is not None and not self._restored:
            client.set_tensors([])
            client.set_blobs([])
            client.restore(self.load.step, term=self.load.term, allow_older=False, deadline=_TAKEN_S * 2).result()
            self._restored = True

    def prepare(self) -> None:
        """Connects, and takes the parent where something was loaded: every rank calls it before a save, at the same
        place, since ranks restore together."""
        with self._mutex:
            self.settle()
            self._take_parent(self._connect())

    def save(self, step: int, tensors: list, blobs: list, lazy: bool = False, **options: Any) -> Operation:
        """Starts a save and returns. The tensors may change when this returns, unless it is ``lazy``."""
        with self._mutex:
            client = self._connect()
            self._before = self._known(client, step) if self.rank == 0 else frozenset()
            client.set_tensors(tensors)
            client.set_blobs(blobs)
            self._op = op = Operation()
            client.save(step, lazy=lazy, into=op, **options)
            if self.transient and self.rank != 0:
                threading.Thread(target=self._close_after, args=(op,), name="cairn-dcp-close", daemon=True).start()
            return op

    def save_part(self, step: int, tensors: list, blobs: list, is_guarded: bool, **options: Any) -> Operation:
        """Saves on any rank but 0, before rank 0 opens the step.

        ``is_guarded``: nobody changes the tensors before the save has read them. Else they are copied when this returns,
        since DCP's save may end here, by Ctrl-C, before rank 0's does. An arena smaller than the state needs the opening
        for that: the copy goes on behind then, and fails by name where an optimizer steps (tensors on the CPU)."""
        if is_guarded:
            options["lazy"] = True
        elif self._options.get("arena_bytes"):
            options.update(lazy=True, verify_staged=None if options.get("cuda_event") else "sampled")
        return self.save(step, tensors, blobs, **options)

    def _known(self, client: Client, step: int) -> frozenset:
        """(term, step) of what this attempt may have committed as this step."""
        if self._term:
            there = client.status(self._term, step).state == "committed"
            return frozenset([(self._term, step)] if there else [])
        return frozenset((item.term, item.step) for item in client.list() if item.step == step)

    def save_all(self, step: int, tensors: list, blobs: list, begun: Callable[[Operation], None], **options: Any) -> Any:
        """Saves on rank 0, tells ``begun`` so, and waits until the checkpoint of all ranks is committed. Returns its Result."""
        with self._mutex:
            try:
                op = self.save(step, tensors, blobs, lazy=True, **options)
                begun(op)
                result = op.result()
            except BaseException:  # Ctrl-C: the tensors are the caller's again, on all ranks
                self.give_up()
                raise
            finally:
                if self.transient:
                    self.close()
            self.check(result, self._before)
            return result

    def begin(self, step: int, tensors: list, blobs: list, **options: Any) -> tuple:
        """Any rank: copies the tensors, and returns (the save in flight, what ``check`` wants to know later)."""
        with self._mutex:
            op = self.save(step, tensors, blobs, **options)
            self._op = None  # whoever gets it ends it
            return op, self._before

    def check(self, result: Any, before: frozenset) -> None:
        """Raises ExistsError if the step was committed before this save."""
        self._term = result.term
        if (result.term, result.step) in before:
            raise ExistsError.of(f"step {result.step} was saved before by this attempt (term {result.term}) and is "
                                 "not overwritten: save under another step")

    def _close_after(self, op: Operation) -> None:
        try:
            op.wait(DONE)
        except CairnError:
            pass  # rank 0 hears of it; this is only about leaving
        with self._mutex:
            if self._op is op:
                self.close()

    def settle(self) -> None:
        """Ends what an earlier save left: the last moment of a good one, or one that DCP gave up on."""
        with self._mutex:
            self.give_up(1.0)
            self._op = None

    def give_up(self, seconds: float = 0.0) -> None:
        """Ends the last save, which gets so many seconds to end well."""
        op = self._op
        if op is None or not op.has_begun:
            return
        try:
            if not op.wait(DONE, seconds):
                op.abort()
                op.wait(DONE, _SETTLE_S)
        except CairnError:
            pass  # DCP has raised it, or will find the checkpoint missing

    def close(self) -> None:
        """Leaves the run; the next save connects again. A save that another thread waits for is given up after _SETTLE_S.
        Raises TimedOutError if that thread has not left the save after _LEAVE_S."""
        until = time.monotonic() + _LEAVE_S
        while not self._mutex.acquire(timeout=_SETTLE_S):
            self.give_up()
            if time.monotonic() > until:
                raise TimedOutError.of(f"{self.run_url}: another thread of this process has not left its save for "
                                       f"{_LEAVE_S:.0f} s, though the save was given up; let that thread end before the "
                                       "Writer is closed or torch.distributed torn down")
        try:
            self.settle()
            client, self._client = self._client, None
            if client is not None:
                try:
                    client.close(_SETTLE_S)
                except CairnError:
                    pass  # of a save that settle gave up
        finally:
            self._mutex.release()


def session_of(run_url: str, token: str, rank: int, world_size: int, options: dict) -> Session:
    """Returns the session of the newest load, and closes an older one of the same ranks. Raises InvalidError for ranks that are no more."""
    _leave_others()
    if token in _left:
        raise InvalidError.of(f"{run_url}: the Writer was made before torch.distributed was torn down and initialised anew, for ranks "
                              "that are no more: make a new Writer, on all ranks")
    key = (run_url, token, rank, world_size, tuple(sorted(options.items())))
    old = None
    with _lock:
        load = _loads.get((run_url, world_size))
        if load is not None:
            load = _loads[run_url, world_size] = load._replace(is_used=True)
        session = _sessions.get(key)
        if session is None or session.load != load:
            old, session = session, Session(run_url, token, rank, world_size, load, options)
            _sessions[key] = session
    if old is not None:
        old.close()
    return session


def close_sessions(token: Optional[str] = None) -> None:
    """Closes the sessions of an attempt, or all. In a forked child those of its parent stay as they are: a thread that saves there
    held their locks at the fork."""
    with _lock:
        chosen = [session for session in _sessions.values() if token in (None, session.base_token) and session.pid == os.getpid()]
    for session in chosen:
        session.close()


os.register_at_fork(after_in_child=_lock._at_fork_reinit)
atexit.register(close_sessions)
