#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what an import costs: of cairn, and of each adapter beyond its framework.

Each import runs in a process of its own, after the modules that the adapter's framework brings, and cairn. Medians; the limits are
50 ms for cairn and 20 ms for an adapter. Where the machine does other work look at the processor's time. A framework that starts
slowly gets fewer imports, so that all take less than ten minutes. An adapter whose framework the interpreter lacks is skipped, and
named.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

LIMITS_MS = {"cairn": 50.0}
ADAPTER_MS = 20.0
FEWEST = 3
ROW_S = 25.0  # after which a row with the fewest imports ends
# What a program has imported already when it imports the adapter: its framework.
ADAPTERS = {
    "cairn": "",
    "cairn.fs": "cairn fsspec fsspec.asyn",
    "cairn.torch": "cairn torch torch.distributed numpy",
    "cairn.dcp": "cairn torch.distributed.checkpoint",
    "cairn.lightning": "cairn lightning.pytorch",
    "cairn.transformers": "cairn transformers.Trainer",
    "cairn.accelerate": "cairn accelerate",
    "cairn.deepspeed": "cairn deepspeed",
    "cairn.torchtitan": "cairn torchtitan.components.checkpointer.dcp fsspec.asyn",
    "cairn.torch_checkpointing": "cairn torch_checkpointing fsspec.asyn",
    "cairn.megatron": "cairn megatron.core.dist_checkpointing",
    "cairn.ray": "cairn ray.train.torch",
    "cairn.horovod": "cairn horovod.torch.elastic",
    "cairn.jax": "cairn jax jax.experimental.multihost_utils",
    "cairn.orbax": "cairn orbax.checkpoint",
    "cairn.keras": "cairn keras",
    "cairn.trackers": "cairn",
}
WORKER = """
import gc, importlib, sys, time
for name in sys.argv[2].split():
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        head, _, leaf = name.rpartition(".")
        if not head:
            raise
        getattr(importlib.import_module(head), leaf)
gc.collect()  # else a full collection of the framework's objects falls into the adapter's import by chance
begin, busy = time.perf_counter(), time.process_time()
importlib.import_module(sys.argv[1])
print(time.perf_counter() - begin, time.process_time() - busy)
"""


def samples_of(python, environment, module, before, repeat):
    """Returns (milliseconds, those of the processor), or the line that says why there are none."""
    found, begun = [], time.monotonic()
    for number in range(repeat + 1):
        if number > FEWEST and time.monotonic() - begun > ROW_S:
            break
        done = subprocess.run([python, "-c", WORKER, module, before], env=environment, text=True, capture_output=True, check=False)
        if done.returncode != 0:
            words = done.stderr.strip().splitlines()[-1]
            if "ModuleNotFoundError" not in words and "ImportError" not in words and "must be installed" not in words:
                raise SystemExit(f"bench_import: {module} after {before!r}: {done.stderr}")
            return words
        if number > 0:  # the first one fills the disk's cache
            found.append(tuple(float(word) * 1000 for word in done.stdout.strip().splitlines()[-1].split()))
    return found


def main():
    from benchlib import common_options, finish_options, install_package, machine, python_env, write_json
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser, repeat=5)
    parser.add_argument("--python", required=True, help="an interpreter with the frameworks, such as BUILD/reach/bin/python")
    parser.add_argument("--no-install", action="store_true", help="BUILD/bench-python has the package already")
    parser.add_argument("--only", help="modules, separated by commas")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.repeat, options.only = 1, "cairn"
    if not options.no_install:
        install_package(options.python, options.build)
    environment = {**os.environ, **python_env(options.build), "KERAS_BACKEND": "jax", "DS_BUILD_OPS": "0"}
    names = options.only.split(",") if options.only else list(ADAPTERS)
    print(f"{time.strftime('%Y-%m-%d')}, {json.dumps(machine())}, medians of up to {options.repeat}")
    rows, medians = {}, {}
    for name in names:
        rows[name] = samples_of(options.python, environment, name, ADAPTERS[name], options.repeat)
        if not isinstance(rows[name], list):
            print(f"{name:26} skipped: {rows[name]}", flush=True)
            continue
        medians[name] = [statistics.median(column) for column in zip(*rows[name])]
        limit = LIMITS_MS.get(name, ADAPTER_MS)
        print(f"{name:26} {medians[name][0]:8.1f} ms, processor {medians[name][1]:.1f} ms   limit {limit:.0f} ms   of {len(rows[name])}"
              f"{'   OVER' if medians[name][0] > limit else ''}", flush=True)
    write_json(options.json, {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "repeat": options.repeat, "medians_ms": medians,
                              "samples_ms": {name: rows[name] for name in medians},
                              "skipped": {name: row for name, row in rows.items() if name not in medians}})


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    main()
