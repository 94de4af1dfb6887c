# SPDX-License-Identifier: Apache-2.0
"""cairn.keras: Keras' BackupAndRestore in a run of Cairn, for Keras on JAX.

    model.fit(x, y, epochs=100, callbacks=[cairn.keras.BackupAndRestore("cairn:///lab/run")])

Keras' own callback overwrites one file in place and deletes it at the end; here each epoch is a checkpoint, with the numbers
that fit logs as its metrics. A checkpoint's step is the number of epochs behind it, since fit can begin only at the beginning of one.
"""

from __future__ import annotations

import atexit
import random
from typing import Any, Optional

import jax
import keras
import numpy

from . import tree
from .client import numbers
from .errors import InvalidError, UnsupportedError
from .jax import Checkpointer


def _random_state() -> dict:
    name, key, at, has_gauss, gauss = numpy.random.get_state()
    return {"python": tree.encode(random.getstate()), "numpy": tree.encode([name, key.tobytes(), at, has_gauss, gauss])}


def _resume_random(state: dict) -> None:
    random.setstate(tree.decode(state["python"]))
    name, key, at, has_gauss, gauss = tree.decode(state["numpy"])
    numpy.random.set_state((name, numpy.frombuffer(key, numpy.uint32), at, has_gauss, gauss))


class BackupAndRestore(keras.callbacks.Callback):
    """Saves a training at the end of epochs, and lets ``fit`` go on with the newest good checkpoint.

    Saved are all variables of the model (weights, its seed generators) and of its optimizer, and the generators of Python and NumPy,
    from which ``fit`` draws the order of arrays.

    Args:
        url: The URL of the run.
        every_epochs: How many epochs lie between two saves. The last one before ``fit`` ends is saved as well.
        **options: As for cairn.Client.

    Raises:
        InvalidError: ``every_epochs`` is no positive integer.
        UnsupportedError: Keras does not run on JAX, or runs on several processes.
    """

    def __init__(self, url: str, every_epochs: int = 1, **options: Any) -> None:
        super().__init__()
        if not isinstance(every_epochs, int) or every_epochs < 1:
            raise InvalidError.of(f"every_epochs is {every_epochs!r}; it must be an integer, 1 or more")
        if keras.backend.backend() != "jax":
            raise UnsupportedError.of(f"cairn.keras works with Keras on JAX, and this is Keras on {keras.backend.backend()}; set KERAS_BACKEND=jax")
        if jax.process_count() > 1:
            raise UnsupportedError.of("cairn.keras: one process is supported, with all of its devices; use cairn.jax for several")
        self._url, self._every, self._options = url, every_epochs, options
        self._checkpointer: Optional[Checkpointer] = None
        self._unsaved: Optional[tuple] = None  # (epochs behind it, logs) of the newest epoch

    def _variables(self) -> dict:
        found = (*self.model.variables, *self.model.optimizer.variables)
        return {f"{idx}/{variable.path}": variable for idx, variable in enumerate(found)}

    def _state(self) -> dict:
        return {"variables": {name: variable.value for name, variable in self._variables().items()}, "random": _random_state()}

    def on_train_begin(self, logs: Optional[dict] = None) -> None:
        """Restores. Keras calls it."""
        if not self.model.built or self.model.optimizer is None:
            raise InvalidError.of("cairn.keras.BackupAndRestore: build and compile the model before fit, so that there is something to fill")
        if not self.model.optimizer.built:
            self.model.optimizer.build(self.model.trainable_variables)
        self._checkpointer = Checkpointer(self._url, **self._options)
        atexit.register(self.close)  # fit says nothing when it ends by an error
        restored = self._checkpointer.restore(self._state())
        if restored is None:
            return
        for name, variable in self._variables().items():
            variable.assign(restored.state["variables"][name])
        _resume_random(restored.state["random"])
        self.model._initial_epoch = restored.step

    def on_epoch_end(self, epoch: int, logs: Optional[dict] = None) -> None:
        """Saves, and returns when all is copied. Keras calls it."""
        self._unsaved = epoch + 1, numbers(logs or {})
        if (epoch + 1) % self._every == 0:
            self._save()

    def _save(self) -> None:
        if self._unsaved is not None:
            assert self._checkpointer is not None
            step, metrics = self._unsaved
            self._checkpointer.save(step, self._state(), metrics=metrics)
            self._unsaved = None

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
        atexit.unregister(self.close)
        if checkpointer is not None:
            checkpointer.close()
