# SPDX-License-Identifier: Apache-2.0
"""cairn.keras: which checkpoints a ModelCheckpoint keeps, also over restarts and failed saves, and what restore fills.

KERAS_BACKEND names the back end, JAX without it: tests/reach runs this file on all three. Kills are those of tests/reach.
"""

import os
import time

import numpy
import pytest

os.environ.setdefault("KERAS_BACKEND", "jax")
keras = pytest.importorskip("keras")

import cairn  # noqa: E402
import cairn.keras  # noqa: E402

SCORES = [3.0, float("nan"), 5.0, 1.0, 4.0]
BATCHES = 2  # of an epoch


class Scores(keras.callbacks.Callback):
    """Logs SCORES as the metric "score". Stands before the callbacks that read it."""

    def on_epoch_end(self, epoch, logs=None):
        logs["score"] = SCORES[epoch]


class At(keras.callbacks.Callback):
    """Calls something at the beginning of an epoch."""

    def __init__(self, epoch, call):
        super().__init__()
        self.epoch, self.call = epoch, call

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.epoch:
            self.call()


def made(dtype="float32"):
    keras.utils.clear_session()  # or the names of its variables would be numbered on
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, dtype=dtype), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    return model


def fit(model, epochs, *callbacks):
    x = numpy.arange(32, dtype="float32").reshape(8, 4) / 32
    model.fit(x, x[:, :1], batch_size=4, epochs=epochs, verbose=0, callbacks=[Scores(), *callbacks])


def best_of(url, **options):
    return cairn.keras.ModelCheckpoint(url, **{"monitor": "score", "mode": "max", "save_best_only": True, **options})


def kept(url):
    """Returns the epochs whose checkpoints have the tag, of all lineages."""
    with cairn.Client(url, read_only=True) as client:
        return sorted(item.step // BATCHES for item in client.list() if "kept" in item.tags)


def weights(model):
    return [keras.ops.convert_to_numpy(item.value).tobytes() for item in (*model.variables, *model.optimizer.variables)]


def test_the_best_are_kept_and_come_back(daemon):
    url, model, held = daemon.url("best"), made(), []
    callback = best_of(url, keep=2)
    fit(model, 5, callback, At(3, lambda: held.extend(weights(model))))
    assert kept(url) == [3, 5] and callback.best_step == 3 * BATCHES
    other = made()
    assert cairn.keras.restore(url, other, callback.best_step).step == 3 * BATCHES
    assert weights(other) == held


def test_the_newest_are_kept_without_best_only(daemon):
    url = daemon.url("newest")
    fit(made(), 5, best_of(url, save_best_only=False, keep=2))
    assert kept(url) == [4, 5]


def test_all_are_kept(daemon):
    url = daemon.url("all")
    fit(made(), 3, best_of(url, save_best_only=False, keep=None))
    assert kept(url) == [1, 2, 3]


def test_batches(daemon):
    url = daemon.url("batches")
    fit(made(), 2, cairn.keras.ModelCheckpoint(url, monitor="loss", save_best_only=True, save_freq=1, keep=None))
    with cairn.Client(url, read_only=True) as client:
        assert {item.step for item in client.list()} <= {1, 2, 3, 4} and client.list()


def test_a_restart_knows_the_best(daemon):
    run, url = daemon.url("restart"), daemon.url("restart-best")
    fit(made(), 3, cairn.keras.BackupAndRestore(run), best_of(url))
    assert kept(url) == [3]
    model = made()
    fit(model, 5, cairn.keras.BackupAndRestore(run), best_of(url))
    assert kept(url) == [3]
    whole = made()
    fit(whole, 5)
    assert weights(model) == weights(whole)


def test_what_a_restart_does_again_is_kept_once(daemon):
    run, url = daemon.url("again"), daemon.url("again-best")
    fit(made(), 2, cairn.keras.BackupAndRestore(run))
    model = made()
    cairn.keras.restore(run, model)
    fit(made(), 3, best_of(url))  # its third epoch is behind the point of the next attempt
    fit(made(), 4, cairn.keras.BackupAndRestore(run), best_of(url))
    with cairn.Client(url, read_only=True) as client:
        assert [(item.step, item.superseded) for item in client.list() if "kept" in item.tags] == [(3 * BATCHES, False)]


def test_an_interrupted_fit_goes_on_in_the_same_process(daemon):
    """With the same callbacks, which nobody has closed: of the checkpoints, one is ahead of the other."""
    run, url, model = daemon.url("interrupted"), daemon.url("interrupted-best"), made()
    callbacks = cairn.keras.BackupAndRestore(run, every_epochs=2), best_of(url, save_best_only=False, keep=2)

    def interrupt():
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fit(model, 5, *callbacks, At(3, interrupt))
    fit(model, 5, *callbacks)
    whole = made()
    fit(whole, 5)
    assert weights(model) == weights(whole) and kept(url) == [4, 5]


def test_a_skipped_save_takes_nothing_away(own_daemon):
    daemon = own_daemon
    url = daemon.url("skipped")
    callback = best_of(url, cairn={"when_down": "skip", "save_deadline": 5.0})

    def stop():
        until = time.monotonic() + 60
        while kept(url) != [1] and time.monotonic() < until:
            time.sleep(0.05)
        daemon.stop()

    fit(made(), 3, callback, At(2, stop))  # after the third epoch, the best one, no server is there
    daemon.start()
    assert kept(url) == [1] and callback.best_step == BATCHES


def test_elements_of_bfloat16(daemon):
    url, model, other = daemon.url("bf16"), made("bfloat16"), made("bfloat16")
    fit(model, 1, cairn.keras.BackupAndRestore(url))
    cairn.keras.restore(url, other)
    assert weights(other) == weights(model)


def test_errors_have_names(daemon):
    url = daemon.url("errors")
    with pytest.raises(cairn.InvalidError, match="keep is 0"):
        best_of(url, keep=0)
    with pytest.raises(cairn.UnsupportedError, match="save_weights_only"):
        best_of(url, save_weights_only=True)
    with pytest.raises(cairn.InvalidError, match="build and compile"):
        cairn.keras.restore(url, keras.Sequential([keras.layers.Dense(1)]))
    fit(made(), 1, cairn.keras.BackupAndRestore(url))
    other = keras.Sequential([keras.Input((4,)), keras.layers.Dense(7), keras.layers.Dense(1)])
    with pytest.raises(cairn.CairnError, match="variables.0"):
        cairn.keras.restore(url, other)
