# SPDX-License-Identifier: Apache-2.0
"""The frameworks on JAX that bench_frameworks.py measures, with Orbax' asynchronous checkpoint and with Cairn."""

import jax
import jax.numpy as jnp

from framework_worker import Way

ARRAYS, WIDTH, BATCH = 16, 512, 16


class JaxWay(Way):
    """What is saved in Cairn is an Operation."""

    def is_done(self):
        return self.handle.done()


class Jax(JaxWay):
    name, own = "jax", "Orbax' CheckpointManager, asynchronous"

    def __init__(self, job):
        super().__init__(job)
        count = job["bytes"] // ARRAYS // 4
        params = {f"layer{idx}": jax.random.normal(jax.random.key(idx), (count,)) for idx in range(ARRAYS)}
        self.state = {"params": params, "work": jax.random.normal(jax.random.key(99), (WIDTH, WIDTH)) * 0.05}
        self.train = jax.jit(self.trained)
        if self.is_cairn:
            import cairn.jax

            self.checkpointer = cairn.jax.Checkpointer(self.url)
        else:
            import orbax.checkpoint as ocp

            options = ocp.CheckpointManagerOptions(enable_async_checkpointing=True)  # keeps all, as Cairn does
            self.checkpointer, self.args = ocp.CheckpointManager(self.folder, options=options), ocp.args.StandardSave

    @staticmethod
    def trained(state):
        """A step that keeps the processors busy, and changes every element."""
        product = state["work"]
        for _ in range(4):
            product = jnp.tanh(product @ state["work"])
        return {"params": jax.tree.map(lambda leaf: leaf * 0.999 + product[0, 0], state["params"]), "work": state["work"]}

    def step(self):
        self.state = jax.block_until_ready(self.train(self.state))

    def save(self, number):
        if self.is_cairn:
            self.handle = self.checkpointer.save(number, self.state)
        else:
            self.checkpointer.save(number, args=self.args(self.state))

    def is_done(self):
        return super().is_done() if self.is_cairn else not self.checkpointer.is_saving_in_progress()

    def close(self):
        self.checkpointer.close()


class Keras(JaxWay):
    name, own = "keras", "OrbaxCheckpoint, asynchronous"

    def __init__(self, job):
        super().__init__(job)
        import keras
        import numpy

        layers = max(1, round(job["bytes"] / (12 * WIDTH * (WIDTH + 1))))
        self.model = keras.Sequential([keras.Input((WIDTH,)), *(keras.layers.Dense(WIDTH, "tanh") for _ in range(layers))])
        self.model.compile(keras.optimizers.AdamW(1e-4), "mse")
        self.batch = numpy.random.default_rng(1).standard_normal((2, BATCH, WIDTH), "float32")
        self.model.train_on_batch(*self.batch)  # the optimizer has its state
        if self.is_cairn:
            import cairn.arrays
            import cairn.keras

            put = cairn.arrays.Saver.put

            def noted(*args, **keywords):
                self.handle = put(*args, **keywords)
                return self.handle

            cairn.arrays.Saver.put = noted
            self.callback = cairn.keras.BackupAndRestore(self.url)
        else:
            self.callback = keras.callbacks.OrbaxCheckpoint(str(self.folder), max_to_keep=None)  # keeps all, as Cairn does
        self.callback.set_model(self.model)
        self.callback.on_train_begin()

    def step(self):
        self.model.train_on_batch(*self.batch)

    def save(self, number):  # as fit does at the end of an epoch
        self.callback.on_epoch_end(number, {})

    def is_done(self):
        if self.is_cairn:
            return super().is_done()
        self.callback._async_futures[-1].result()  # in the thread that asks
        return True

    def close(self):
        self.callback.on_train_end()
