# SPDX-License-Identifier: Apache-2.0
"""Arrays and values by name in a run of Cairn: what cairn.jax and cairn.keras share. Needs NumPy and no framework.

A checkpoint has a tensor for each array, and one blob with all values that are no arrays.
"""

from __future__ import annotations

import contextlib
import logging
import os
from dataclasses import dataclass
from typing import Any, Iterable, Mapping, Optional, Sequence

import numpy

from . import exits, tree
from .client import DTYPES, LATEST, REPLICATED, TREE, Client, Operation
from .doors import settle, tell_restored
from .errors import CairnError, ExistsError, InvalidError, NotFoundError, SkippedError, UnsupportedError

log = logging.getLogger("cairn")

_BLOB = "cairn.jax"  # {"values": {path: value}, "keys": {path: implementation of a random key of JAX}}


@dataclass(frozen=True)
class Restored:
    """A restored checkpoint.

    Attributes:
        step: Its step.
        term: Its term.
        state: A state of the structure that ``restore`` was given.
        fell_back: True if newer checkpoints are damaged, and this is an older one.
    """

    step: int
    term: int
    state: Any
    fell_back: bool


def check_type(name: str, array: Any) -> None:
    """Raises UnsupportedError if Cairn does not store elements of the array's type, or the array is more than they are."""
    if isinstance(array, numpy.ndarray) and type(array) not in (numpy.ndarray, numpy.memmap):
        raise UnsupportedError.of(f"{name}: the array is a {type(array).__name__}, and Cairn stores an array's elements alone; "
                                  "give what it holds as arrays of numpy.ndarray")
    if str(array.dtype) not in DTYPES:
        raise UnsupportedError.of(f"{name}: Cairn does not store elements of the type {array.dtype}; convert the array to one of "
                                  f"{', '.join(sorted(DTYPES))}")


def pack(values: Mapping[str, Any], keys: Mapping[str, str]) -> bytes:
    """Returns the blob of a checkpoint. ``keys`` has the implementation of each random key of JAX."""
    return tree.encode({"values": values, "keys": keys})


class Saver:
    """Saves and restores the rows of a Client, and keeps the saves in flight. It is a context manager. One thread uses it."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._saves: list = []  # (step, operation) of those whose end nobody has seen
        self.committed: set = set()  # steps, since the last restore
        self._pid, self._is_open = os.getpid(), True
        exits.watch(self)

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def __del__(self) -> None:
        if getattr(self, "_is_open", False):
            self._leave(exits.WAIT_S, "the Checkpointer was dropped")

    def _leave(self, seconds: float, why: str = "the interpreter ends") -> None:
        """Leaves the run, since nobody has called ``close``. Saves in flight get so many seconds, and what is lost is logged."""
        self._is_open = False
        if os.getpid() == self._pid:
            try:
                self.settle()
            except CairnError as error:
                log.error("%s, and a save has failed: %s", why, error)
            self.client._leave(seconds, why)

    def check_step(self, step: int) -> None:
        """Raises ExistsError if this attempt has committed the step, of which the server would keep what it has."""
        if step in self.committed:
            raise ExistsError.of(f"step {step} was saved before, since the last restore, and is not overwritten; save under another step")

    def put(self, step: int, blob: bytes, **options: Any) -> Operation:
        """Saves the registered tensors with what ``pack`` made. Returns when all is copied. ``options`` are those of Client.save."""
        self.client.set_blobs([(_BLOB, TREE, blob, REPLICATED, None)])
        operation = Operation()
        try:
            self.client.save(step, into=operation, **options)
        finally:
            if operation.has_begun:  # also when Ctrl-C is raised
                self._saves.append((step, operation))
                self.client.set_tensors([])  # so that the arrays can be donated
        return operation

    def release(self, operation: Operation) -> None:
        """Leaves a save to the caller: no method here waits for it any more, or raises its error."""
        self._saves = [item for item in self._saves if item[1] is not operation]

    def get(self, step: Optional[int], term: int = 0) -> Optional[tuple]:
        """Fills the registered tensors. Returns (result, what ``pack`` took, the operation); None for a run proven to be empty.
        Waits for the saves in flight, which a restore would not see."""
        settle(self.client.url)
        self.client.set_blobs([(_BLOB, TREE, tree.encode(None), REPLICATED, None)])
        operation = self.client.restore(LATEST if step is None else step, term=term)
        try:
            result = operation.result()
        except NotFoundError:
            if step is None and operation.run_is_empty:
                return None
            raise
        finally:
            if not operation.done():  # Ctrl-C
                operation.abort()
                with contextlib.suppress(CairnError):
                    operation.wait()
            self.client.set_tensors([])
        try:
            found = result, tree.decode(operation.blob(_BLOB)), operation
        except NotFoundError:
            raise UnsupportedError.of(f"restore: step {result.step} was not saved by cairn.jax or cairn.keras; read it by the door that "
                                      "saved it, or by cairn.Client") from None
        self.committed.clear()
        tell_restored(self.client.url, result.step, result.term, self.client.rank, result.fell_back)
        return found

    @staticmethod
    def check_names(operation: Operation, stored: Iterable[str], arrays: set, values: set) -> None:
        """Raises InvalidError if the checkpoint holds other values or more arrays than the state."""
        missing = sorted(values - set(stored))
        if missing:
            raise InvalidError.of(f"restore: the checkpoint has no value {missing[0]!r}, which the state has ({len(missing)} such)")
        unexpected = sorted((set(operation.unexpected()) - arrays) | (set(stored) - values))
        if unexpected:
            raise InvalidError.of(f"restore: the checkpoint holds {unexpected[0]!r}, which the state has not ({len(unexpected)} such); "
                                  "give a state of the structure that was saved")

    def settle(self, is_waiting: bool = False) -> None:
        """Raises the error of a save that has ended so. Waits for those in flight if it is asked to."""
        first: Optional[CairnError] = None
        saves, self._saves = self._saves, []
        for step, operation in saves:
            if not is_waiting and not operation.done():
                self._saves.append((step, operation))
                continue
            try:
                self.committed.add(operation.result().step)
            except SkippedError as error:
                log.warning("step %s was not saved: %s", step, error)
            except CairnError as error:
                first = first or error
        if first is not None:
            raise first

    def wait(self) -> None:
        """Waits until the saves in flight are durable.

        Raises:
            CairnError: The first error of one of them.
        """
        self.settle(is_waiting=True)

    def close(self) -> None:
        """Waits for the saves in flight and leaves the run. May be repeated; does nothing in a forked child.

        Raises:
            CairnError: The first error of a save.
        """
        self._is_open = False
        if os.getpid() != self._pid:
            return
        try:
            self.settle(is_waiting=True)
        finally:
            self.client.close()


def _row(name: str, array: numpy.ndarray) -> tuple:
    return name, DTYPES[str(array.dtype)], array.shape, array.ctypes.data, None, array, REPLICATED, None, None, None


class Checkpointer(Saver):
    """Saves and restores a mapping from names to numpy.ndarray and values of the typed tree, by one process. Names are those that
    cairn.jax gives to the leaves of such a mapping.

    Args:
        url: The URL of the run.
        **options: As for cairn.Client.
    """

    def __init__(self, url: str, **options: Any) -> None:
        super().__init__(Client(url, **options))

    @staticmethod
    def _split(state: Mapping[str, Any]) -> tuple:
        """Returns (arrays, values)."""
        arrays = {name: value for name, value in state.items() if isinstance(value, numpy.ndarray)}
        for name, array in arrays.items():
            check_type(name, array)
            arrays[name] = numpy.asarray(array, order="C")
        return arrays, {name: value for name, value in state.items() if name not in arrays}

    def save(self, step: int, state: Mapping[str, Any], *, metrics: Optional[Mapping[str, float]] = None,
             tags: Sequence[str] = ()) -> Operation:
        """Saves a state, as ``cairn.jax.Checkpointer.save`` does."""
        self.settle()
        self.check_step(step)
        arrays, values = self._split(state)
        self.client.set_tensors([_row(name, array) for name, array in arrays.items()])
        return self.put(step, pack(values, {}), metrics=metrics, tags=tags)

    def restore(self, state: Mapping[str, Any], step: Optional[int] = None, is_part: bool = False) -> Optional[Restored]:
        """Restores a state, as ``cairn.jax.Checkpointer.restore`` does. Nothing of ``state`` is changed. With ``is_part`` the
        checkpoint may hold more."""
        arrays, values = self._split(state)
        made = {name: numpy.empty(array.shape, array.dtype) for name, array in arrays.items()}
        self.client.set_tensors([_row(name, array) for name, array in made.items()])
        found = self.get(step)
        if found is None:
            return None
        result, stored, operation = found
        if not is_part:
            self.check_names(operation, stored["values"], set(made), set(values))
        return Restored(result.step, result.term, {**made, **stored["values"]}, result.fell_back)
