#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a save costs a training in each framework: with Cairn beside the framework's own best asynchronous checkpoint.

Both are the same program, with other lines for the checkpoint, in two processes that take turns on one disk: the same steps, one
thread each, and Cairn with its defaults. A turn is some steps without a save, a save, and as many steps again. Neither side removes
a checkpoint. A framework that the interpreter lacks is named, and left out.

Lost is the wall time that the save adds to the loop: how long the call blocked, what the steps that began while it was in flight
took beyond the steps without one, and how long the save went on after the last step, where the next one would wait for it. The
fsync of what the framework has written is not in it, since the framework leaves that out: it is in durable alone. The samples have
the plain difference of the two halves of a turn as well (extra), which is noisier, and the processor time of the training's thread
in the call (blocked_cpu), which other work on the machine does not change.

Memory is the greatest resident size beyond that of the training alone, with what helper processes have for themselves. Of Cairn
the arena is in it, so what is above state and arena is memory less the arena.
"""

import argparse
import json
import os
import shutil
import subprocess
import time

from benchlib import (GIB, HERE, MIB, Daemon, Group, Place, common_options, finish_options, install_package, machine, median,
                      python_env, say, write_json)

# framework: (what is imported, module of its way, variables of its processes)
FRAMEWORKS = {
    "dcp": ("torch", "torch", {}),
    "lightning": ("lightning", "torch", {}),
    "transformers": ("transformers", "torch", {}),
    "accelerate": ("accelerate", "torch", {}),
    "deepspeed": ("deepspeed", "torch", {"LOCAL_RANK": "0", "CROSS_RANK": "0", "CROSS_SIZE": "1"}),
    "torchtitan": ("torchtitan", "torch", {}),
    "torch-checkpointing": ("torch_checkpointing", "torch", {}),
    "ray": ("ray", "ray", {"RAY_USAGE_STATS_ENABLED": "0", "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}),
    "megatron": ("megatron.core", "megatron", {}),
    "jax": ("orbax.checkpoint", "jax", {}),
    "keras": ("keras", "jax", {"KERAS_BACKEND": "jax"}),
}
KEYS = ("lost", "blocked", "durable")
AIMS = {"lost": 0.5, "durable": 1.0}  # of the framework's own
MEMORY_AIM = 0.1  # above state and arena, as a share of both


def is_there(python, module, env):
    done = subprocess.run([python, "-c", f"import importlib.util, sys; sys.exit(importlib.util.find_spec({module!r}) is None)"],
                          env={**os.environ, **env}, check=False)
    return done.returncode == 0


class Side:
    """A training in one framework that saves in one way."""

    def __init__(self, bench, framework, side):
        options, place = bench.options, bench.place
        _, module, more = FRAMEWORKS[framework]
        self.folder = place.path / f"{framework}-{side}"
        self.folder.mkdir()
        self.daemon = Daemon(place, options.build, f"store-{framework}") if side == "cairn" else None
        env = {**python_env(options.build), "OMP_NUM_THREADS": "1", "DS_BUILD_OPS": "0", "HF_HUB_OFFLINE": "1",
               "TORCH_EXTENSIONS_DIR": str(options.build / "torch-extensions"), "TMPDIR": str(place.sockets), **more}
        if self.daemon:
            env["CAIRN_SERVER"] = f"unix:{self.daemon.socket}"
        job = {"framework": framework, "module": module, "side": side, "folder": str(self.folder), "url": "cairn:///bench/run",
               "bytes": options.bytes}
        self.group = Group(place, f"{framework} {side}", [[options.python, HERE / "framework_worker.py", json.dumps(job)]], [env])

    def turn(self, steps):
        return self.group.tell(f"segment {steps}")[0]

    def close(self):
        self.group.close()
        if self.daemon:
            self.daemon.end()
        shutil.rmtree(self.folder)


def measure(bench, framework):
    options = bench.options
    sides = {side: Side(bench, framework, side) for side in ("own", "cairn")}
    samples = {side: [] for side in sides}
    for turn in range(-1, options.repeat):  # the first makes arenas, and starts helper processes
        for name, side in sides.items():
            samples[name].append(side.turn(options.steps))
        say(f"{framework}: round {turn + 1} of {options.repeat}")
    own_way = sides["own"].group.ready[0]["own"]
    for side in sides.values():
        side.close()
    return samples, own_way


def summary(samples, state_bytes):
    """Medians of each side, Cairn's in those of the framework's own way, and the aims that are missed."""
    row = {side: {**{key: median([turn[key] for turn in turns[1:]]) for key in (*KEYS, "blocked_cpu", "extra", "step")},
                  "memory_mib": max(turn["memory"] for turn in turns) / MIB} for side, turns in samples.items()}
    arena = max(turn["arena"] for turn in samples["cairn"])
    row["arena_mib"] = arena / MIB
    row["ratios"] = {key: row["cairn"][key] / row["own"][key] for key in KEYS}
    row["memory_above"] = (row["cairn"]["memory_mib"] * MIB - arena) / (state_bytes + arena)
    row["missed"] = [key for key, aim in AIMS.items() if row["ratios"][key] > aim] + ["memory"] * (row["memory_above"] > MEMORY_AIM)
    return row


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--python", help="an interpreter with the frameworks; default: BUILD/reach/bin/python, which tests/reach/run makes")
    parser.add_argument("--no-install", action="store_true", help="BUILD/bench-python has the package already")
    parser.add_argument("--bytes", type=int, default=GIB // 8, help="of the state: weights and Adam's moments")
    parser.add_argument("--steps", type=int, default=10, help="before each save, and after it")
    parser.add_argument("--only", help="some of " + ", ".join(FRAMEWORKS))
    options = finish_options(parser.parse_args())
    options.python = options.python or str(options.build / "reach/bin/python")
    options.only = options.only.split(",") if options.only else list(FRAMEWORKS)
    unknown = [name for name in options.only if name not in FRAMEWORKS]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}; there are {', '.join(FRAMEWORKS)}")
    if options.smoke:
        options.bytes, options.steps = 16 * MIB, 2
    return options


def print_row(name, row):
    cells = [f"{row['cairn'][key]:.3f} / {row['own'][key]:.3f} = {row['ratios'][key]:.2f}" for key in KEYS]
    memory = f"{row['cairn']['memory_mib']:.0f} ({row['arena_mib']:.0f}) / {row['own']['memory_mib']:.0f} | {row['memory_above']:+.0%}"
    print(f"| {name} | {' | '.join(cells)} | {memory} | {', '.join(row['missed']) or '-'} | {row['own_way']} |", flush=True)


def main():
    options = parse_options()
    if not options.no_install:
        install_package(options.python, options.build)
    bench = argparse.Namespace(options=options, place=Place(options.dir))
    rows, samples, left_out = {}, {}, []
    print(f"{time.strftime('%Y-%m-%d')}, {json.dumps(machine())}, {options.bytes / GIB:.3f} GiB, a save in {2 * options.steps} steps, "
          f"medians of {options.repeat}; Cairn / the framework's own\n")
    print("| framework | lost per save, s | blocked, s | durable, s | memory (arena) / own, MiB | above state and arena | aims missed | "
          "its own way |\n|---|---|---|---|---|---|---|---|", flush=True)
    for name in options.only:
        if not is_there(options.python, FRAMEWORKS[name][0], python_env(options.build)):
            left_out.append(name)
            say(f"{name} is left out: {options.python} has no {FRAMEWORKS[name][0]}")
            continue
        samples[name], own_way = measure(bench, name)
        rows[name] = {**summary(samples[name], options.bytes), "own_way": own_way}
        print_row(name, rows[name])
    bench.place.close()
    write_json(options.json, {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": options.bytes, "steps": options.steps,
                              "repeat": options.repeat, "rows": rows, "left_out": left_out, "samples": samples})


if __name__ == "__main__":
    main()
