# SPDX-License-Identifier: Apache-2.0
"""cairn.orbax: a handler for Orbax's CheckpointManager, which stores the pytree in a run of Cairn.

    manager = ocp.CheckpointManager(folder, item_handlers=cairn.orbax.CheckpointHandler("cairn:///lab/run"))
    manager.save(step, args=cairn.orbax.Save(state))
    state = manager.restore(step, args=cairn.orbax.Restore(state))

Orbax keeps its folder, its list of steps and its retention. In the folder of a step lies one small
file, the pointer: it names the checkpoint in the run. It is written when that checkpoint is
committed, and Orbax lists the step after that: a step that Orbax lists is one that Cairn has.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
from typing import Any, Optional

import jax
import orbax.checkpoint as ocp
from etils import epath

from .client import Operation
from .errors import CairnError, DeniedError, FormatError, InvalidError, NotFoundError
from .jax import Checkpointer
from .names import parse_step, run_of

log = logging.getLogger("cairn")

POINTER = "cairn.json"
_TEMPORARY = ".orbax-checkpoint-tmp"  # follows the step in the name of a folder that Orbax has not renamed yet


def _step_of(directory: epath.Path) -> int:
    """Returns the step of the folder that Orbax gives for an item, which lies in the folder of the step."""
    step = parse_step(directory.parent.name.split(_TEMPORARY)[0])
    if step is None:
        raise InvalidError.of(f"{directory.parent.name!r}: the folder of the step holds no step that Cairn can read; use a name_format "
                              "that ends in the step, as ocp.step.standard_name_format(step_prefix='step') does")
    return step


def _run_name(url: str) -> list:
    return re.split("[/=]", url)[-2:]


def _read(pointer: epath.Path, url: str) -> tuple:
    """Returns (step, term) of a pointer in the run of the URL. Servers have many names, so the names of project and run are compared."""
    try:
        said = json.loads(pointer.read_text())
        if _run_name(said["run"]) != _run_name(url):
            raise InvalidError.of(f"{pointer} names a checkpoint of the run {said['run']}, and the handler has {url}; "
                                  "give it the other URL, or the CheckpointManager another folder")
        return int(said["step"]), int(said["term"])
    except FileNotFoundError:
        raise NotFoundError.of(f"{pointer.parent} holds no {POINTER}: the step was not saved by cairn.orbax, or its folder is damaged; "
                               "`cairn ls` shows what the run has, and cairn.jax restores it") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError.of(f"{pointer} is damaged ({error}); the checkpoint itself is in the run: `cairn ls` shows it, and cairn.jax "
                             "restores it") from None


def _write(pointer: epath.Path, said: dict) -> None:
    """Writes a pointer. On a disk of this machine it is durable on return: Orbax's rename of the folder may be so before its files are."""
    pointer.write_text(json.dumps(said))
    for path in (pointer, pointer.parent) if os.path.isabs(pointer) else ():
        fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)


class CheckpointHandler(ocp.AsyncCheckpointHandler):
    """Stores one item of a CheckpointManager, a pytree, in a run. Each process of a job makes one.

    Args:
        url: The URL of the run. A run belongs to one CheckpointManager and one item.
        **options: As for cairn.jax.Checkpointer.

    Raises:
        CairnError: The URL names no run, or what opening a Client raises.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._url = run_of(url)
        self._checkpointer = Checkpointer(url, **options)
        self._folder: Optional[tuple] = None  # (Orbax's folder, the item's name in the folder of a step)
        self._seen: dict = {}  # pointer of a step that Orbax has listed -> (step, term)
        self._written: dict = {}  # the same of what was written since Orbax's folder was last looked at

    async def async_save(self, directory: epath.Path, args: "Save") -> list:
        """Begins a save, and returns when all is copied. Orbax calls it. With several processes the future raises what is wrong with
        the state.

        Args:
            directory: The item's folder.
            args: The state.

        Returns:
            A future that ends when the checkpoint is committed and the pointer is written.
        """
        begun: Any = None
        try:
            begun = self._begin(directory, args)
        except Exception as error:
            if jax.process_count() == 1:
                raise
            begun = error  # the other processes would wait for this one in Orbax's barriers, which come before the future's end

        async def commit() -> None:
            if isinstance(begun, Exception):
                raise begun
            self._finish(begun, directory)

        return [ocp.future.CommitFutureAwaitingContractedSignals(commit(), name="cairn_save")]

    def _begin(self, directory: epath.Path, args: "Save") -> Operation:
        self._folder = directory.parent.parent, directory.name.split(_TEMPORARY)[0]
        self._forget_removed()
        operation = self._checkpointer.save(_step_of(directory), args.item, metrics=args.metrics)
        self._checkpointer.release(operation)  # _finish raises its error
        return operation

    def _finish(self, operation: Operation, directory: epath.Path) -> None:
        result = operation.result()
        self._checkpointer.committed.add(result.step)
        if jax.process_index() == 0:
            _write(directory / POINTER, {"run": self._url, "step": result.step, "term": result.term})
            final = self._pointer(directory.parent)
            self._seen.pop(final, None)  # of an older version of the step
            self._written[final] = result.step, result.term

    def save(self, directory: epath.Path, args: "Save") -> None:
        """Saves, and returns when it is committed. Orbax calls it where it saves synchronously."""
        self._finish(self._begin(directory, args), directory)

    def restore(self, directory: epath.Path, args: "Restore") -> Any:
        """Restores the checkpoint that the pointer names. Orbax calls it.

        Args:
            directory: The item's folder.
            args: A pytree of the stored structure.

        Returns:
            A pytree of the structure that ``args`` has.

        Raises:
            NotFoundError: There is no pointer, or the run has not got that checkpoint.
            FormatError: The pointer is damaged.
            InvalidError: The pointer names another run.
            CairnError: What cairn.jax.Checkpointer.restore raises.
        """
        step, term = _read(directory / POINTER, self._url)
        restored = self._checkpointer.restore(args.item, step, term=term)
        assert restored is not None  # a step was given
        return restored.state

    def _pointer(self, folder: epath.Path) -> epath.Path:
        """Returns the pointer of a step, from the folder that Orbax gives the step at first, or at last."""
        assert self._folder is not None
        root, item = self._folder
        return root / folder.name.split(_TEMPORARY)[0] / item / POINTER

    def _forget_removed(self) -> None:
        """Forgets the checkpoints of steps that Orbax has listed and removed since. The guard of retention keeps the last two good
        ones, which come up again at the next save, as does what cannot be forgotten. Nothing is forgotten if the folder holds no step
        any more that it should hold: then it was unmounted, moved or emptied, and Orbax has removed nothing."""
        if jax.process_index() != 0 or self._folder is None:
            return
        try:
            listed = self._listed()
            gone = {pointer: said for pointer, said in self._seen.items() if pointer not in listed}
            known, self._seen, self._written = {**self._seen, **self._written}, listed, {}
            if any(pointer in listed and _read(pointer, self._url) == said for pointer, said in known.items()):
                self._seen = {**listed, **gone}
                for pointer in gone:
                    self._forget(pointer)
            elif gone:
                log.warning("%s holds none of the steps that Orbax has put there; what was there stays in %s", self._folder[0], self._url)
        except (CairnError, OSError) as error:
            log.warning("%s: checkpoints that Orbax has removed are still there: %s", self._url, error)

    def _listed(self) -> dict:
        """Returns what ``_seen`` has, of the steps that Orbax lists now."""
        assert self._folder is not None
        found = {}
        for folder in self._folder[0].iterdir():
            pointer = self._pointer(folder)
            if _TEMPORARY not in folder.name and (pointer in self._seen or pointer.exists()):
                found[pointer] = self._seen.get(pointer) or _read(pointer, self._url)
        return found

    def _forget(self, pointer: epath.Path) -> None:
        step, term = self._seen[pointer]
        try:
            self._checkpointer.client.forget(step, term=term, reason="removed by Orbax")
        except DeniedError:
            return
        except NotFoundError:
            pass  # somebody else has forgotten it
        del self._seen[pointer]

    def close(self) -> None:
        """Leaves the run. Orbax calls it, after its saves have ended."""
        try:
            self._forget_removed()
        finally:
            self._checkpointer.close()


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclasses.dataclass
class Save(ocp.args.CheckpointArgs):
    """What to save.

    Attributes:
        item: A pytree, as for cairn.jax.Checkpointer.save.
        metrics: Numbers by name, for Cairn's lists.
    """

    item: Any
    metrics: Optional[dict] = None


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclasses.dataclass
class Restore(ocp.args.CheckpointArgs):
    """What to restore into.

    Attributes:
        item: A pytree of the stored structure, as for cairn.jax.Checkpointer.restore; nothing of it is changed.
    """

    item: Any
