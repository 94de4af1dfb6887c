# SPDX-License-Identifier: Apache-2.0
"""What the adapters for training frameworks share: the run behind a framework's checkpoints.

An adapter (cairn.lightning, cairn.transformers, cairn.accelerate, cairn.deepspeed, cairn.ray) says what the state is and when it is saved. This
file opens one Checkpointer for it, keeps the random number generators of a restore for the moment when the framework
continues, and takes back the mark of a checkpoint that the framework no longer wants, after its successor is durable.
One thread uses a Run. It imports no framework.
"""

from __future__ import annotations

import operator
from typing import Any, Iterable, Mapping, Optional, Union

from .client import LATEST, numbers
from .errors import InvalidError, UnsupportedError
from .kept import KEPT, let_go
from .names import checkpoint_name, parse_id, run_of, warn_of_local_folder
from .torch import Checkpointer, PerRank, Restored, SaveHandle, per_rank
from .torch import rng


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
        self._unwanted: list = []  # (save that must be durable first, or None for the next one; step)
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
            self._checkpointer = Checkpointer(self.url, state, **self._options)
        elif self._checkpointer.state is not state:
            live = self._checkpointer.state
            live.clear()
            live.update(state)
        return self._checkpointer

    def save(self, step: int, state: Mapping[str, Any], metrics: Optional[Mapping[str, Any]] = None, is_kept: bool = True) -> SaveHandle:
        """Saves the state as a step. Every rank calls it.

        Args:
            step: The step.
            state: As for Checkpointer; it may be another one at each save.
            metrics: Numbers by name, also as tensors. What is no number is left out.
            is_kept: Whether the framework decides how long the checkpoint is kept, and not the server alone.

        Returns:
            The save in flight. The state is copied and may change.
        """
        checkpointer = self._open(state)
        self._settle()
        handle = checkpointer.save(operator.index(step), metrics=numbers(metrics or {}), tags=[KEPT] if is_kept else [])
        self._unwanted = [(successor or handle, unwanted) for successor, unwanted in self._unwanted]
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
        restored = checkpointer.restore(step, only=None if only is None else list(only))
        if restored is not None:
            state.update(checkpointer.state)
            if only is None:
                self._rng = rng.collect()
        return restored

    def resume_rng(self) -> None:
        """Puts the random number generators back where the restored step left them. Frameworks draw from them on the way from
        the restore to the next step (a data loader does so for each iterator). Does nothing a second time."""
        if self._rng is not None:
            rng.apply(self._rng)
            self._rng = None

    def remove(self, step: Union[int, str], successor: SaveHandle) -> None:
        """Notes that the framework no longer wants a checkpoint. Its tag goes when the successor is durable.

        Args:
            step: As ``step_of`` returns it.
            successor: The save that takes its place.
        """
        self._unwanted.append((successor, step))

    def _settle(self) -> None:
        """Takes the tag from unwanted checkpoints whose successor is durable. In place of a failed successor the next save counts."""
        waiting: list = []
        for successor, step in self._unwanted:
            if successor is None or not successor.durable.done():
                waiting.append((successor, step))
            elif not successor.is_good():
                waiting.append((None, step))
            else:
                assert self._checkpointer is not None
                let_go(self._checkpointer.annotate, step)
        self._unwanted = waiting

    def wait(self) -> None:
        """Waits for the saves in flight. Raises their errors as ``on_error`` says."""
        if self._checkpointer is not None:
            self._checkpointer.wait()
            self._settle()

    def close(self) -> None:
        """Waits for the saves in flight and leaves the run. A later save or restore opens it again. May be repeated."""
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        try:
            self.wait()
        finally:
            self._checkpointer = None
            self._unwanted = []
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


def between_epochs(states: list, _: int, world: int) -> dict:
    """Returns where the loaders of a rank begin when the ranks have changed. ``states`` are what Loaders.state_dict has returned."""
    if any(state["is_inside"] for state in states):
        raise UnsupportedError.of(f"the checkpoint is within an epoch of {len(states)} ranks, whose data loaders' states cannot be given to "
                                  f"{world}; start with {len(states)} ranks, or resume from a checkpoint at the end of an epoch")
    return Loaders().state_dict()
