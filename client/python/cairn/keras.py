# SPDX-License-Identifier: Apache-2.0
"""cairn.keras: Keras' BackupAndRestore and ModelCheckpoint in runs of Cairn, for Keras on JAX, TensorFlow and PyTorch.

    backup = cairn.keras.BackupAndRestore("cairn:///lab/run")
    best = cairn.keras.ModelCheckpoint("cairn:///lab/run-best", monitor="val_loss", save_best_only=True)
    model.fit(x, y, epochs=100, callbacks=[backup, best])

Keras' own callbacks overwrite one file in place; here each save is a checkpoint, with the numbers that fit logs as its metrics.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any, Optional

import keras
import numpy

from . import arrays, tree
from .arrays import Restored, log
from .client import Operation
from .doors import numbers
from .errors import CairnError, InvalidError, SkippedError, UnsupportedError
from .kept import KEPT, remove_kept_tag


def _random_state() -> dict:
    name, key, at, has_gauss, gauss = numpy.random.get_state()
    state = {"random.python": tree.encode(random.getstate()), "random.numpy": tree.encode([name, key.tobytes(), at, has_gauss, gauss])}
    if keras.backend.backend() == "torch":  # from which fit draws the order of arrays
        import torch

        states = [torch.get_rng_state(), *torch.cuda.get_rng_state_all()]
        state["random.torch"] = tree.encode([item.numpy().tobytes() for item in states])
    return state


def _resume_random(state: dict) -> None:
    random.setstate(tree.decode(state["random.python"]))
    name, key, at, has_gauss, gauss = tree.decode(state["random.numpy"])
    numpy.random.set_state((name, numpy.frombuffer(key, numpy.uint32), at, has_gauss, gauss))
    if "random.torch" in state:
        import torch

        cpu, *devices = (torch.frombuffer(bytearray(item), dtype=torch.uint8) for item in tree.decode(state["random.torch"]))
        torch.set_rng_state(cpu)
        torch.cuda.set_rng_state_all(devices[:torch.cuda.device_count()])


def _check_processes(what: str) -> None:
    """Refuses what the callbacks do not save: the parts of several processes."""
    backend, processes = keras.backend.backend(), 1
    if backend == "jax":
        import jax

        processes = jax.process_count()
    elif backend == "torch":
        import torch

        if torch.distributed.is_available() and torch.distributed.is_initialized():
            processes = torch.distributed.get_world_size()
    elif backend != "tensorflow":
        raise UnsupportedError.of(f"{what} works with Keras on jax, tensorflow and torch, and this is Keras on {backend}; "
                                  "set KERAS_BACKEND")
    if processes > 1:
        raise UnsupportedError.of(f"{what}: one process is supported, and this is one of {processes}; "
                                  "use cairn.jax or cairn.torch for several")


def _open(url: str, options: dict) -> Any:
    if keras.backend.backend() == "jax":
        from .jax import Checkpointer  # keeps the shardings
    else:
        from .arrays import Checkpointer  # type: ignore[assignment]
    return Checkpointer(url, **options)


def _array(variable: Any) -> Any:
    """Returns the value of a variable for the Checkpointer, without a copy where the back end allows it."""
    backend = keras.backend.backend()
    if backend == "jax":
        return variable.value
    if backend == "tensorflow":
        return numpy.asarray(variable.value.read_value())
    return keras.ops.convert_to_numpy(variable.value)


def _variables(model: Any) -> dict:
    """Returns the variables of a model and of its optimizer by the names that they are stored under."""
    if not model.built:
        raise InvalidError.of("cairn.keras: build and compile the model before fit, so that there is something to fill")
    found = list(model.variables)
    if getattr(model, "optimizer", None) is not None:
        if not model.optimizer.built:
            model.optimizer.build(model.trainable_variables)
        found += model.optimizer.variables
    return {f"variables.{idx}/{variable.path}": variable for idx, variable in enumerate(found)}


def _check_model(model: Any, what: str) -> None:
    if not model.built or getattr(model, "optimizer", None) is None:
        raise InvalidError.of(f"{what}: build and compile the model before fit, so that there is something to fill")
    replicas = getattr(getattr(model, "distribute_strategy", None), "num_replicas_in_sync", 1)
    if replicas > 1:
        raise UnsupportedError.of(f"{what}: one replica is supported, and the model's tf.distribute strategy has {replicas}")


def _state(model: Any) -> dict:
    return {**{name: _array(variable) for name, variable in _variables(model).items()}, **_random_state()}


def restore(url: str, model: Any, step: Optional[int] = None, **options: Any) -> Optional[Restored]:
    """Fills a model, and its optimizer if it is compiled, with a checkpoint that one of the callbacks has saved.

    Args:
        url: The URL of the run.
        model: A model that is built.
        step: A step of the run; None takes the newest good checkpoint.
        **options: As for cairn.Client.

    Returns:
        What was restored; None only if ``step`` is None and the run is proven to be empty.

    Raises:
        InvalidError: The model is not built.
        MissingTensorError: The model has a variable that the checkpoint has not.
        CairnError: What Client.restore raises.
    """
    variables = _variables(model)
    with arrays.Checkpointer(url, **{"read_only": True, **options}) as checkpointer:
        restored = checkpointer.restore({name: numpy.asarray(_array(variable)) for name, variable in variables.items()}, step, is_part=True)
    if restored is not None:
        for name, variable in variables.items():
            variable.assign(restored.state[name])
    return restored


class BackupAndRestore(keras.callbacks.Callback):
    """Saves a training at the end of epochs, and lets ``fit`` go on with the newest good checkpoint.

    It saves all variables of the model (weights, its seed generators) and of its optimizer, and the generators from which ``fit``
    draws the order of arrays (of Python and NumPy, and of PyTorch). A checkpoint's step is the number of epochs behind it, since
    fit can begin only at the beginning of one.

    Args:
        url: The URL of the run.
        every_epochs: How many epochs lie between two saves. The last one before ``fit`` ends is saved as well.
        **options: As for cairn.Client.

    Raises:
        InvalidError: ``every_epochs`` is no positive integer.
        UnsupportedError: The training runs on several processes.
    """

    def __init__(self, url: str, every_epochs: int = 1, **options: Any) -> None:
        super().__init__()
        if not isinstance(every_epochs, int) or every_epochs < 1:
            raise InvalidError.of(f"every_epochs is {every_epochs!r}; it must be an integer, 1 or more")
        _check_processes("cairn.keras.BackupAndRestore")
        self._url, self._every, self._options = url, every_epochs, options
        self._checkpointer: Any = None
        self._unsaved: Optional[tuple] = None  # (epochs behind it, logs) of the newest epoch

    def on_train_begin(self, logs: Optional[dict] = None) -> None:
        """Restores. Keras calls it."""
        _check_model(self.model, "cairn.keras.BackupAndRestore")
        self.close()  # after a fit that was interrupted
        self._checkpointer = _open(self._url, self._options)
        restored = self._checkpointer.restore(_state(self.model))
        if restored is None:
            return
        for name, variable in _variables(self.model).items():
            variable.assign(restored.state[name])
        _resume_random(restored.state)
        self.model._initial_epoch = restored.step

    def on_epoch_end(self, epoch: int, logs: Optional[dict] = None) -> None:
        """Saves, and returns when all is copied. Keras calls it."""
        self._unsaved = epoch + 1, numbers(logs or {})
        if (epoch + 1) % self._every == 0:
            self._save()

    def _save(self) -> None:
        if self._unsaved is not None:
            step, metrics = self._unsaved
            self._unsaved = None
            try:
                self._checkpointer.save(step, _state(self.model), metrics=metrics)
            except SkippedError as error:  # as when_full and when_down allow it
                log.warning("epoch %s was not saved: %s", step, error)

    def on_train_end(self, logs: Optional[dict] = None) -> None:
        """Saves the last epoch, if it is not, and waits until all is durable. Keras calls it."""
        self._save()
        self.close()
        self.model._initial_epoch = None  # or the model's next fit would begin there, whatever its run

    def close(self) -> None:
        """Waits for the saves in flight and leaves the run. May be repeated.

        Raises:
            CairnError: The first error of a save.
        """
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()


@dataclass(eq=False)
class _Kept:
    """A checkpoint that a ModelCheckpoint wants to keep, and those that its commit makes superfluous."""

    step: int
    term: int
    value: Optional[float]
    save: Optional[Operation] = None
    displaced: list = field(default_factory=list)


class ModelCheckpoint(keras.callbacks.ModelCheckpoint):
    """Keras' ModelCheckpoint over a run of Cairn, which is its own: BackupAndRestore has another.

    Checkpoints that it wants to keep have the tag "kept". When one takes the place of another, that one loses its tag after the newer
    one is durable. A training that starts again knows the best values of the run. A checkpoint's step is the number of
    the optimizer's steps. A NaN is never the best value, and is not saved with ``save_best_only``.

    Args:
        url: The URL of the run.
        keep: How many checkpoints are kept: the best ones with ``save_best_only``, otherwise the newest. None keeps all.
        cairn: Options for cairn.Client, by name.
        **options: As for Keras' ModelCheckpoint, but for ``filepath`` and ``save_weights_only``.

    Raises:
        InvalidError: ``keep`` is no positive integer.
        UnsupportedError: The training runs on several processes, or ``save_weights_only`` is given.
    """

    def __init__(self, url: str, *, keep: Optional[int] = 1, cairn: Optional[dict] = None, **options: Any) -> None:
        if keep is not None and (not isinstance(keep, int) or keep < 1):
            raise InvalidError.of(f"keep is {keep!r}; it must be None or an integer, 1 or more")
        if options.pop("save_weights_only", False) or "filepath" in options:
            raise UnsupportedError.of("cairn.keras.ModelCheckpoint: filepath and save_weights_only have no meaning for a run; "
                                      "leave them out")
        _check_processes("cairn.keras.ModelCheckpoint")
        super().__init__("run.keras", **options)
        self._url, self._keep, self._options = url, keep, cairn or {}
        self._threshold = self.best
        self._checkpointer: Any = None
        self._kept: list = []  # of _Kept
        self._stale: list = []  # of _Kept: saved by an earlier attempt behind the point where this one goes on

    @property
    def best_step(self) -> Optional[int]:
        """The step of the best checkpoint that is kept, for ``cairn.keras.restore``. None if there is none."""
        return max(self._kept, key=self._rank).step if self._kept else None

    def _rank(self, item: _Kept) -> tuple:
        if not self.save_best_only or item.value is None:
            return -math.inf, item.step
        return (-item.value if self.monitor_op(0.0, 1.0) else item.value), item.step

    def on_train_begin(self, logs: Optional[dict] = None) -> None:
        """Leaves the run of a fit that was interrupted. Keras calls it."""
        super().on_train_begin(logs)
        self.close()

    def on_epoch_begin(self, epoch: int, logs: Optional[dict] = None) -> None:
        """Opens the run in the first epoch, when BackupAndRestore has restored. Keras calls it."""
        super().on_epoch_begin(epoch, logs)
        if self._checkpointer is None:
            _check_model(self.model, "cairn.keras.ModelCheckpoint")
            self._checkpointer = _open(self._url, self._options)
            self._resume(self._position())

    def _position(self) -> int:
        _variables(self.model)  # builds the optimizer
        return int(keras.ops.convert_to_numpy(self.model.optimizer.iterations))

    def _resume(self, position: int) -> None:
        """Goes on behind the newest checkpoint that is not newer than the training."""
        self._kept, self._stale = [], []
        found = [item for item in self._checkpointer.client.list() if not item.superseded]
        older = [item for item in found if item.step <= position]
        if older:
            newest = max(older, key=lambda item: (item.term, item.step))
            self._checkpointer.get(newest.step, newest.term)  # of its tensors nothing
        for item in found:
            if KEPT in (item.tags or ()):
                kept = self._kept if item in older else self._stale
                kept.append(_Kept(item.step, item.term, (item.metrics or {}).get(self.monitor)))

    def _save_model(self, epoch: int, batch: Optional[int], logs: Optional[dict]) -> None:
        """Saves, if Keras' own rule says so. Keras calls it."""
        if self.monitor_op is None:
            self._set_monitor_op()
        self._settle()
        value = numbers(logs or {}).get(self.monitor)
        if self.save_best_only and value is not None and math.isnan(value):
            return
        # With room for one more, Keras compares with the threshold; otherwise with the worst one that is kept.
        is_full = self._keep is not None and len(self._kept) >= self._keep
        self.best = min(self._kept, key=self._rank).value if is_full and self.save_best_only else self._threshold
        if self._should_save_model(epoch, batch, logs, self._url):
            self._add(_Kept(self._position(), 0, value), numbers(logs or {}))

    def _add(self, item: _Kept, metrics: dict) -> None:
        try:
            item.save = self._checkpointer.save(item.step, _state(self.model), metrics=metrics, tags=[KEPT])
        except SkippedError as error:  # as when_full and when_down allow it
            log.warning("step %s was not saved: %s", item.step, error)
            return
        item.displaced, self._stale = self._stale, []
        while self._keep is not None and len(self._kept) >= self._keep:
            worst = min(self._kept, key=self._rank)
            self._kept.remove(worst)
            item.displaced += [worst, *worst.displaced]
        self._kept.append(item)

    def _settle(self) -> None:
        """Takes the tag from what durable saves have displaced. What a failed one has displaced is kept again."""
        for item in list(self._kept):
            if item.save is None or not item.save.done():
                continue
            save, displaced, item.save, item.displaced = item.save, item.displaced, None, []
            try:
                save.result()
            except CairnError:  # the Checkpointer tells it
                self._kept.remove(item)
                self._kept += displaced
                continue
            for gone in displaced:
                remove_kept_tag(self._checkpointer.client.annotate, gone.step, term=gone.term)

    def on_train_end(self, logs: Optional[dict] = None) -> None:
        """Waits until all is durable. Keras calls it."""
        self.close()

    def close(self) -> None:
        """Waits for the saves in flight and leaves the run. May be repeated.

        Raises:
            CairnError: The first error of a save.
        """
        checkpointer = self._checkpointer
        if checkpointer is None:
            return
        try:
            checkpointer.wait()
            self._settle()
        finally:
            self._checkpointer = None
            checkpointer.close()
