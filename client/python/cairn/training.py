# SPDX-License-Identifier: Apache-2.0
"""What the adapters for training frameworks share: the run behind a framework's checkpoints.

An adapter (cairn.lightning, cairn.transformers, cairn.accelerate, cairn.deepspeed, cairn.ray) says what the
state is and when it is saved. This file opens one Checkpointer for it, and keeps the random number generators
of a restore for the moment when the framework continues. lineage.py lets a training that goes back begin a
branch, and kept.py lets go what the framework no longer wants. One thread uses a Run. It imports no framework.
"""

from __future__ import annotations

import collections
import hashlib
import operator
import os
from typing import Any, Callable, Iterable, Mapping, Optional, Sequence, Union

import torch
import torch.distributed as dist

from .client import LATEST
from .doors import numbers
from .errors import DamagedError, InvalidError, NotFoundError, UnsupportedError
from .kept import KEPT, Decision
from .lineage import Lineage
from .names import checkpoint_name, is_url, parse_id, run_of, warn_of_local_folder
from .torch import Checkpointer, PerRank, Restored, SaveHandle, per_rank
from .torch import rng

_UNWANTED = "cairn.unwanted"  # in a checkpoint's metadata: what it makes unwanted
_UNWANTED_MAX = 256  # of them, since metadata has 16 KiB
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
        self._is_torn = False  # whether Ctrl-C has ended a save, which may become a checkpoint nevertheless
        self._rng: Optional[dict] = None
        self.lineage = Lineage()
        self.decision = Decision(options.get("when_down") == "wait")

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
            inherited = os.environ.get("CAIRN_ATTEMPT") if (self._options.get("world_size") or 1) > 1 else None
            given = self._options.get("attempt") or inherited
            count = _openings[self.url, given]
            attempt = self._options.get("attempt") if count == 0 else self._next_attempt(given, count)
            self._checkpointer = Checkpointer(self.url, state, **{**self._options, "attempt": attempt})
            _openings[self.url, given] = count + 1
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

    def begin(self) -> None:
        """Notes that a training begins anew, behind none of what was saved or restored before: its first save begins a
        lineage, which supersedes the one before."""
        if self.lineage.newest >= 0:
            self.close()
        self.lineage = Lineage()
        self.decision.resumed()

    def _branch(self, step: int, checkpointer: Checkpointer) -> None:
        """Lets the next save, of this step, begin a term that follows the newest checkpoint before it. The present term
        cannot hold it, if it has this step or a later one: a step is written once, and the newest is the latest."""
        self.wait()
        if not self.lineage.is_left_by(step):
            return  # the save in the way has failed
        if self.lineage.is_unsure():
            self.lineage.learn_from(checkpointer.list())
        line = self.lineage.before(step)
        while line:
            try:
                checkpointer.restore("{}@{}".format(*line[-1]), strict=False, only=["cairn.nothing"])
                break
            except (NotFoundError, DamagedError):  # forgotten meanwhile, or damaged: it is no parent
                line.pop()
        if not line and self.lineage.has_own():
            self.close()
        self.lineage.follow(line)

    def save(self, step: int, state: Mapping[str, Any], metrics: Optional[Mapping[str, Any]] = None,
             is_kept: bool = True, unwanted: Sequence[Union[int, str]] = (),
             undo: Optional[Callable[[], Any]] = None) -> SaveHandle:
        """Saves the state as a step. Every rank calls it.

        A step that the training has saved already, or one before it, begins a branch of the run, behind the newest
        checkpoint before it, and supersedes what came there. That waits for the saves in flight.

        Args:
            step: The step.
            state: As for Checkpointer; it may be another one at each save.
            metrics: Numbers by name, also as tensors. What is no number is left out.
            is_kept: Whether the framework decides how long the checkpoint is kept, and not the server alone.
            unwanted: Checkpoints that the framework no longer wants when this one is durable, as ``step_of`` returns them.
            undo: Is called if the save does not become a checkpoint, at once or in ``decided``: takes back what the
                framework has noted of it.

        Returns:
            The save in flight. The state is copied and may change.
        """
        is_decided = self.decided()
        options = {"metrics": numbers(metrics or {}), "tags": [KEPT] if is_kept else [],
                   "metadata": {_UNWANTED: [*unwanted][-_UNWANTED_MAX:]} if unwanted else None}
        try:
            handle = self._save(operator.index(step), state, options)
        except BaseException:
            if undo is not None:
                undo()
            raise
        if undo is not None and is_decided:
            self.decision.begin(handle, unwanted, undo)
        elif undo is not None:  # skipped, as the server is away; if it has come back, one more checkpoint is kept
            undo()
        return handle

    def _save(self, step: int, state: Mapping[str, Any], options: Mapping[str, Any]) -> SaveHandle:
        if self._is_torn:
            self.close()
        checkpointer = self._open(state)
        self.decision.put_right(checkpointer)
        if self.lineage.is_left_by(step):
            self._branch(step, checkpointer)
            checkpointer = self._open(state)
        self.lineage.settle()
        self._is_torn = True
        try:
            handle = checkpointer.save(step, **options)
        except Exception:
            self._is_torn = False
            raise
        self._is_torn = False
        self.lineage.began(handle)
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
        self.lineage.restored(restored, only is None)
        if restored is not None:
            state.update(checkpointer.state)
            if only is None:
                self._rng = rng.collect()
                self.decision.resumed((restored.metadata or {}).get(_UNWANTED, ()))
        return restored

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
        return self.decision.end(self._checkpointer, waits)

    def wait(self) -> None:
        """Waits for the saves in flight. Raises their errors as ``on_error`` says."""
        if self._checkpointer is not None:
            self.decided(waits=True)
            self.lineage.settle(waits=True)
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
            self.lineage.left()
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


def check_folders(adapter: str, framework: str, options: Any, names: Iterable[str]) -> None:
    """Raises UnsupportedError if one of these options of a framework, which knows folders only, is a URL."""
    for name in names:
        folder = getattr(options, name, None)
        if is_url(str(folder)):
            raise UnsupportedError.of(f"{adapter}: {name}={folder!r} is a URL, and {framework} knows folders only: it would write to a "
                                      f"local folder `cairn:`; give {name} a local folder, and the URL to attach")


def all_agree(accelerator: Any, answer: bool) -> bool:
    """Returns whether the answer of every process of an ``accelerate.Accelerator`` is true. All call it; no object is pickled."""
    return bool(accelerator.gather(torch.tensor([int(answer)], device=accelerator.device)).all())


def between_epochs(states: list, _: int, world: int) -> dict:
    """Returns where the loaders of a rank begin when the ranks have changed. ``states`` are what Loaders.state_dict has returned."""
    if any(state["is_inside"] for state in states):
        raise UnsupportedError.of(f"the checkpoint is within an epoch of {len(states)} ranks, whose data loaders' states cannot be given "
                                  f"to {world}; start with {len(states)} ranks, or resume from a checkpoint at the end of an epoch")
    return Loaders().state_dict()
