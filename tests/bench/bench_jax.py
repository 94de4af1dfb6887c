#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a JAX training loses to a save: cairn.jax beside Orbax's asynchronous CheckpointManager.

Both take turns in one process, on the same state and the same disk. Lost is what a number of steps take longer because a save
begins before the first; blocked is the call itself; durable is when the door says that the save has ended, looked at
after each step. Run it with a Python that has jax, orbax-checkpoint and
cairn, such as tests/reach's venv.
"""

import argparse
import json
import shutil
import time

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

import cairn.jax
from benchlib import GIB, MIB, Daemon, Place, common_options, finish_options, machine, median, say, table, write_json

ARRAYS = 16


@jax.jit
def train(state):
    """A step that keeps the processors busy, and changes every element."""
    product = state["work"]
    for _ in range(4):
        product = jnp.tanh(product @ state["work"])
    return {"params": jax.tree.map(lambda leaf: leaf * 0.999 + product[0, 0], state["params"]), "work": state["work"]}


def make(size):
    count = size // ARRAYS // 4
    params = {f"layer{idx}": jax.random.normal(jax.random.key(idx), (count,)) for idx in range(ARRAYS)}
    return {"params": params, "work": jax.random.normal(jax.random.key(99), (512, 512)) * 0.05}


def run_steps(state, steps):
    """Returns (state, seconds)."""
    begin = time.monotonic()
    for _ in range(steps):
        state = jax.block_until_ready(train(state))
    return state, time.monotonic() - begin


class Cairn:
    def __init__(self, url):
        self.checkpointer = cairn.jax.Checkpointer(url, encoding="raw")

    def save(self, step, state):
        self.operation = self.checkpointer.save(step, state)

    def is_done(self):
        return self.operation.done()

    def wait(self):
        self.operation.result()

    def close(self):
        self.checkpointer.close()


class Orbax:
    def __init__(self, folder):
        options = ocp.CheckpointManagerOptions(max_to_keep=2, enable_async_checkpointing=True)
        self.manager = ocp.CheckpointManager(folder, options=options)

    def save(self, step, state):
        self.manager.save(step, args=ocp.args.StandardSave(state))

    def is_done(self):
        return not self.manager.is_saving_in_progress()

    def wait(self):
        self.manager.wait_until_finished()

    def close(self):
        self.manager.close()


def one_save(door, step, state, steps):
    """Returns (state, the seconds of this save)."""
    begin = time.monotonic()
    door.save(step, state)
    blocked, durable = time.monotonic() - begin, None
    for _ in range(steps):
        state = jax.block_until_ready(train(state))
        if durable is None and door.is_done():
            durable = time.monotonic() - begin
    total = time.monotonic() - begin
    if durable is None:
        door.wait()
        durable = time.monotonic() - begin
    return state, {"blocked": blocked, "durable": durable, "total": total}


def measure(options):
    place = Place(options.dir)
    daemon = Daemon(place, options.build, "store")
    doors = {"cairn": Cairn(daemon.url("memfd", "bench/jax")), "orbax": Orbax(place.path / "orbax")}
    state, samples = make(options.bytes), {}
    state, _ = run_steps(state, 3)
    for turn in range(-1, options.repeat):  # the first makes what is kept between saves
        for kind, door in doors.items():
            state, alone = run_steps(state, options.steps)
            state, seconds = one_save(door, turn + 1, state, options.steps)
            seconds["lost"] = seconds.pop("total") - alone
            for key, value in seconds.items():
                if turn >= 0:
                    samples.setdefault(f"{kind} {key}", []).append(value)
        daemon.prune(turn + 1)
        say(f"round {turn + 1} of {options.repeat}")
    for door in doors.values():
        door.close()
    daemon.end()
    shutil.rmtree(place.path / "orbax")
    place.close()
    return samples


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=GIB // 8, help="of the state")
    parser.add_argument("--steps", type=int, default=20, help="of the training, after each save")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.bytes, options.steps = 16 * MIB, 5
    return options


def main():
    options = parse_options()
    samples = measure(options)
    medians = {name: median(values) for name, values in samples.items()}
    ratios = {key: medians[f"cairn {key}"] / medians[f"orbax {key}"] for key in ("blocked", "durable", "lost")}
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": options.bytes, "repeat": options.repeat,
              "jax": jax.__version__, "orbax": ocp.__version__, "seconds": medians, "ratios": ratios}
    print(f"{result['date']}, {json.dumps(result['machine'])}, {options.bytes / GIB:.2f} GiB, medians of {options.repeat}")
    table("Seconds", "s", medians)
    table("Cairn to Orbax", "", ratios)
    write_json(options.json, {**result, "samples": samples})


if __name__ == "__main__":
    main()
