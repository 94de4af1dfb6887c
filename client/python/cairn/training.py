# SPDX-License-Identifier: Apache-2.0
"""What the adapters for training frameworks share: the run behind a framework's checkpoints.

An adapter (cairn.lightning, cairn.transformers, cairn.accelerate, cairn.deepspeed, cairn.ray) says what the state is and when it is saved. This
file opens one Checkpointer for it, keeps the random number generators of a restore for the moment when the framework
continues, lets a training that goes back begin a branch, and lets go what the framework no longer wants when the save
that takes its place is durable, and never before. One thread uses a Run. It imports no framework.
"""

from __future__ import annotations

import collections
import hashlib
import operator
import os
from typing import Any, Callable, Iterable, Mapping, Optional, Union

import torch
import torch.distributed as dist

from .client import LATEST, numbers
from .errors import (CairnError, ConnectionLostError, DamagedError, InvalidError, NotFoundError, TimedOutError,
                     UnreachableError, UnsupportedError)
from .kept import KEPT, let_go
from .names import checkpoint_name, parse_id, run_of, warn_of_local_folder
from .torch import Checkpointer, PerRank, Restored, SaveHandle, per_rank
from .torch import rng

_AWAY = (UnreachableError, TimedOutError, ConnectionLostError)
_PATIENCE_S = 5.0  # how long training waits without an answer of the server
_PROBE_S = 1.0  # the same where the server was away when it was asked before
_openings: collections.Counter = collections.Counter()  # in this process, by URL of the run and given attempt token


class Run:
    """The checkpoints of one training, as a framework sees them.

    Args:
        url: The URL of the run, without a checkpoint in it.
        **options: As for cairn.torch.Checkpointer.

    Raises:
        InvalidError: The URL names no run, or something in a run.
    """

    def __init__(self, url: str, **options: Any) -> None:
        warn_of_local_folder()
        self.url = run_of(url)
        self._options = options
        self._checkpointer: Optional[Checkpointer] = None
        self._behind: list = []  # (step, term) of the checkpoints that led to the present term, as far as is known here
        self._own: list = []  # (step, term) of the checkpoints of the present term
        self._flying: list = []  # saves that were in flight when last seen
        self._is_apart = False  # whether the next save has to restore the newest of _behind first, to follow it
        self._is_away = False  # whether a rank could not reach the server when last asked
        self._is_torn = False  # whether Ctrl-C has ended a save, which may become a checkpoint nevertheless
        self._wanted: set = set()  # the steps that keep() was given
        self._joins: Optional[int] = None  # the step that join() was given
        self._decision: Optional[tuple] = None  # (save, unwanted, undo), as save() was given them
        self.agree: Callable[[bool], bool] = bool  # returns whether the argument is true on all ranks
        self._rng: Optional[dict] = None

    def path(self, step: int) -> str:
        """Returns the name under which a framework knows the checkpoint of a step."""
        return f"{self.url}/{checkpoint_name(step)}"

    def step_of(self, path: Any) -> Union[int, str]:
        """Returns what ``restore`` takes for a path: a step, "STEP@TERM", or "latest" for the run itself.

        Args:
            path: What ``path`` returned, the URL of the run, or a name with a step in it.

        Raises:
            InvalidError: The path names another run, or no step.
        """
        if str(path).rstrip("/") == self.url:
            return "latest"
        found = parse_id(path, self.url, latest=True)
        if found.run_url != self.url or found.step is None:
            raise InvalidError.of(f"{str(path)!r} names no checkpoint of the run {self.url}; write {self.path(100)}, or {self.url}/latest")
        if found.step == LATEST:
            return "latest"
        return f"{found.step}@{found.term}" if found.term else found.step

    def _open(self, state: Mapping[str, Any]) -> Checkpointer:
        """Returns the Checkpointer, for this state."""
        if self._checkpointer is None:
            given = self._options.get("attempt") or os.environ.get("CAIRN_ATTEMPT")
            count = _openings[self.url, given]
            attempt = self._options.get("attempt") if count == 0 else self._next_attempt(given, count)
            self._checkpointer = Checkpointer(self.url, state, **{**self._options, "attempt": attempt})
            _openings[self.url, given] = count + 1
            self._is_apart = bool(self._behind)
        elif self._checkpointer.state is not state:
            live = self._checkpointer.state
            live.clear()
            live.update(state)
        return self._checkpointer

    def _next_attempt(self, given: Optional[str], count: int) -> Optional[str]:
        """Returns the attempt token for one more opening in this process; None lets the ranks draw one, which they do
        where they can speak to each other. A token that was given is that of the first opening alone: under the same
        one the saves of the next would count as repeated."""
        is_joined = (not {"rank", "world_size"} & self._options.keys() and dist.is_available() and dist.is_initialized()
                     and dist.get_world_size(self._options.get("process_group")) > 1)
        return None if given is None or is_joined else hashlib.sha256(f"{given} {count}".encode()).hexdigest()[:32]

    @property
    def newest(self) -> int:
        """The newest step that the training has saved in this process, or has resumed from; -1 if there is none."""
        return max([self._newest_own(), *(step for step, _ in self._behind)])

    def _newest_own(self) -> int:
        return max([-1, *(step for step, _ in self._own), *(handle.step for handle in self._flying)])

    def begin(self) -> None:
        """Notes that a training begins anew, behind none of what was saved or restored before: its first save begins a
        lineage, which supersedes the one before."""
        if self.newest >= 0:
            self.close()
        self._behind, self._joins, self._wanted = [], None, set()

    def join(self, step: int) -> None:
        """Notes that the training goes on at a step that it has restored from elsewhere: the next save follows the
        newest checkpoint of this run that is not newer."""
        self._joins = step

    def keep(self, steps: Iterable[int]) -> None:
        """Notes which checkpoints the framework wants now that it has restored one. What came behind that one may have
        taken their tag, which they get again before the next save."""
        self._wanted = set(steps)

    def _keep_again(self, checkpointer: Checkpointer) -> None:
        try:
            for item in checkpointer.list(_PATIENCE_S) if self._wanted else ():
                if item.step in self._wanted and not item.superseded and KEPT not in item.tags:
                    checkpointer.annotate(f"{item.step}@{item.term}", tags=[KEPT])
        except (*_AWAY, NotFoundError):  # or it was forgotten just now
            return  # the next save tries again
        self._wanted = set()

    def _branch(self, step: int) -> None:
        """Lets the next save, of this step, begin a term that follows the newest checkpoint before it. The present term
        cannot hold it, if it has this step or a later one: a step is written once, and the newest is the latest."""
        self.wait()
        if not self._is_apart and step > self._newest_own():
            return  # the save in the way has failed
        assert self._checkpointer is not None
        line = [item for item in self._behind + self._own if item[0] < step]
        while line:
            try:
                self._checkpointer.restore("{}@{}".format(*line[-1]), strict=False, only=["cairn.nothing"])
                break
            except (NotFoundError, DamagedError):  # forgotten meanwhile, or damaged: it is no parent
                line.pop()
        if not line and self._own:
            self.close()
        self._behind, self._own, self._is_apart = line, [], False

    def save(self, step: int, state: Mapping[str, Any], metrics: Optional[Mapping[str, Any]] = None,
             is_kept: bool = True, unwanted: Optional[list] = None,
             undo: Optional[Callable[[], Any]] = None) -> SaveHandle:
        """Saves the state as a step. Every rank calls it.

        A step that the training has saved already, or one before it, begins a branch of the run, behind the newest
        checkpoint before it, and supersedes what came there. That waits for the saves in flight.

        Args:
            step: The step.
            state: As for Checkpointer; it may be another one at each save.
            metrics: Numbers by name, also as tensors. What is no number is left out.
            is_kept: Whether the framework decides how long the checkpoint is kept, and not the server alone.
            unwanted: Checkpoints that the framework no longer wants when this one is durable, as ``step_of`` returns
                them. More may be added to the list until ``decided``.
            undo: Is called if the save does not become a checkpoint, at once or in ``decided``: takes back what the
                framework has noted of it.

        Returns:
            The save in flight. The state is copied and may change.
        """
        is_decided = self.decided()
        try:
            handle = self._save(operator.index(step), state, numbers(metrics or {}), [KEPT] if is_kept else [])
        except BaseException:
            if undo is not None:
                undo()
            raise
        if undo is not None and is_decided:
            self._decision = (handle, [] if unwanted is None else unwanted, undo)
        elif undo is not None:  # skipped, as the server is away; if it has come back, one more checkpoint is kept
            undo()
        return handle

    def _save(self, step: int, state: Mapping[str, Any], metrics: Mapping[str, float], tags: list) -> SaveHandle:
        if self._is_torn:
            self.close()
        checkpointer = self._open(state)
        if self._joins is not None:
            self.wait()
            older = [item for item in checkpointer.list() if not item.superseded and item.step <= self._joins]
            self._behind, self._own = [(item.step, item.term) for item in reversed(older)], []
            self._is_apart, self._joins = True, None
        self._keep_again(checkpointer)
        if self._is_apart or step <= self._newest_own():
            self._branch(step)
            checkpointer = self._open(state)
        self._settle()
        self._is_torn = True
        try:
            handle = checkpointer.save(step, metrics=metrics, tags=tags)
        except Exception:
            self._is_torn = False
            raise
        self._is_torn = False
        self._flying.append(handle)
        return handle

    def restore(self, state: dict, step: Union[int, str] = "latest", only: Optional[Iterable[str]] = None) -> Optional[Restored]:
        """Fills the state, as ``Checkpointer.restore`` does. Every rank calls it.

        Args:
            state: As for Checkpointer. Values that cannot be changed in place are replaced in it.
            step: As ``step_of`` returns it.
            only: As for Checkpointer.restore.

        Returns:
            What was restored; None only for a run that is proven to be empty.
        """
        checkpointer = self._open(state)
        self.decided(waits=True)
        restored = checkpointer.restore(step, only=None if only is None else list(only))
        self._passed(restored, only is None)
        if restored is not None:
            state.update(checkpointer.state)
            if only is None:
                self._rng = rng.collect()
        return restored

    def _passed(self, restored: Optional[Restored], is_whole: bool) -> None:
        """Takes note of a restore. A part of a state, such as the best model at the end, is not where a training goes
        on that has saved or restored before."""
        self._settle()
        if not is_whole and self.newest >= 0:
            self._behind, self._own, self._is_apart = self._behind + self._own, [], True
            return
        self._behind, self._own, self._flying, self._is_apart, self._joins = [], [], [], False, None
        if restored is not None:
            self._behind = [(restored.step, restored.term)]

    def resume_rng(self) -> None:
        """Puts the random number generators back where the restored step left them. Frameworks draw from them on the way from
        the restore to the next step (a data loader does so for each iterator). Does nothing a second time."""
        if self._rng is not None:
            rng.apply(self._rng)
            self._rng = None

    def decided(self, waits: bool = False) -> bool:
        """Waits for the newest save with ``undo``. If it is durable, the tag goes from what it has made unwanted; else
        all stays as it was before. An adapter calls it before the framework decides what depends on that save.

        Args:
            waits: True waits until the save has ended. Else that ends when a rank cannot reach the server, since then
                the training must not wait, unless ``when_down`` says so.

        Returns:
            True if no save with ``undo`` is open any more.
        """
        if self._decision is None:
            return True
        save, unwanted, undo = self._decision
        waits = waits or self._options.get("when_down") == "wait"
        while not waits and not self.agree(save.durable.wait(0.0 if self._is_away else _PATIENCE_S)):
            self._is_away = not self.agree(self._is_reached())
            if self._is_away:
                return False
        save.durable.wait()
        self._decision = None
        if not self.agree(save.is_good()):
            undo()
            return True
        for step in unwanted if self._checkpointer is not None else ():
            let_go(self._checkpointer.annotate, step)
        return True

    def _is_reached(self) -> bool:
        assert self._checkpointer is not None
        try:
            self._checkpointer.status("0@1", _PROBE_S if self._is_away else _PATIENCE_S)
        except _AWAY:
            return False
        except CairnError:
            pass  # it has answered; an error raised here would leave the other ranks waiting in ``agree``
        return True

    def _settle(self) -> None:
        """Takes note of the saves that have become checkpoints."""
        ended = [handle for handle in self._flying if handle.durable.done()]
        self._flying = [handle for handle in self._flying if handle not in ended]
        results = [handle.durable.result(0) for handle in ended if handle.is_good()]
        self._own += [(result.step, result.term) for result in results]

    def wait(self) -> None:
        """Waits for the saves in flight. Raises their errors as ``on_error`` says."""
        if self._checkpointer is not None:
            self.decided(waits=True)
            for handle in self._flying:
                handle.durable.wait()
            self._settle()
            self._checkpointer.wait()

    def close(self) -> None:
        """Waits for the saves in flight and leaves the run. A later save or restore opens it again. May be repeated."""
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        try:
            self.wait()
        finally:
            self._checkpointer, self._is_torn = None, False
            self._behind, self._own, self._flying = self._behind + self._own, [], []
            checkpointer.close()


class Loaders:
    """Where the data loaders of one rank stand. Between two epochs other ranks may go on from there, with their loaders as they are
    made; within an epoch that is an error, since samples would be lost or come twice.

    Attributes:
        states: What the loaders' ``state_dict`` returned; empty where the loaders begin as they are made.
        is_inside: Whether a loader has more to give in this epoch.
    """

    def __init__(self, states: Iterable[Any] = (), is_inside: bool = False) -> None:
        self.states, self.is_inside = list(states), is_inside

    def state_dict(self) -> dict:
        return {"states": self.states, "is_inside": self.is_inside}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.states, self.is_inside = list(state["states"]), state["is_inside"]

    def for_state(self) -> PerRank:
        """Returns this object as a value of a state."""
        return per_rank(self, between_epochs)


def all_agree(accelerator: Any, answer: bool) -> bool:
    """Returns whether the answer of every process of an ``accelerate.Accelerator`` is true. All call it; no object is pickled."""
    return bool(accelerator.gather(torch.tensor([int(answer)], device=accelerator.device)).all())


def between_epochs(states: list, _: int, world: int) -> dict:
    """Returns where the loaders of a rank begin when the ranks have changed. ``states`` are what Loaders.state_dict has returned."""
    if any(state["is_inside"] for state in states):
        raise UnsupportedError.of(f"the checkpoint is within an epoch of {len(states)} ranks, whose data loaders' states cannot be given to "
                                  f"{world}; start with {len(states)} ranks, or resume from a checkpoint at the end of an epoch")
    return Loaders().state_dict()
