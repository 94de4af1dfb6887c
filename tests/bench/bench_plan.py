#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what a save costs for each tensor: the processor time of the training's thread in Checkpointer.save, with 20,000 tensors
that are so small that their bytes cost nothing.

A model of 5,000 parameters with Adam's state, in both modes of the snapshot. The first save of a state is apart from the others,
which use what it has found. The time is the thread's own, so that other programs on the machine are not in it; the time by the
clock is beside it, and has in copy mode the copy that the call waits for.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

MODES = ("copy", "lazy")


def worker(url, tensors, rounds):
    """Prints the samples of one mode after the other."""
    import torch

    from cairn.torch import Checkpointer

    torch.set_num_threads(1)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(tensors // 8)])
    optimizer = torch.optim.AdamW(model.parameters())
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    count = len(list(model.parameters())) + sum(len(entry) for entry in optimizer.state.values())
    samples = {}
    for mode in MODES:
        with Checkpointer(f"{url}-{mode}", {"model": model, "optim": optimizer}, on_error="raise", snapshot=mode) as ck:
            for step in range(rounds + 1):
                optimizer.step()
                clock, thread = time.perf_counter(), time.thread_time()
                handle = ck.save(step)
                thread, clock = time.thread_time() - thread, time.perf_counter() - clock
                handle.durable.result(300)
                kind = mode if step > 0 else f"{mode}, first"
                samples.setdefault(f"{kind}, us a tensor", []).append(thread / count * 1e6)
                samples.setdefault(f"{kind}, by the clock", []).append(clock / count * 1e6)
    print(json.dumps({"tensors": count, "samples": samples}))


def main():
    if sys.argv[1:2] == ["--worker"]:
        worker(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]))
        return
    from benchlib import Daemon, Place, common_options, finish_options, install_package, machine, python_env, table, write_json
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser, repeat=11)
    parser.add_argument("--python", required=True, help="an interpreter with torch")
    parser.add_argument("--no-install", action="store_true", help="BUILD/bench-python has the package already")
    parser.add_argument("--tensors", type=int, default=20000)
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.tensors, options.repeat = 80, 2
    if not options.no_install:
        install_package(options.python, options.build)
    place = Place(options.dir)
    daemon = Daemon(place, options.build, "store")
    argv = [options.python, __file__, "--worker", daemon.url("unix", "bench/plan"), str(options.tensors), str(options.repeat)]
    done = subprocess.run(argv, env={**os.environ, **python_env(options.build), "OMP_NUM_THREADS": "1"}, stdout=subprocess.PIPE, check=True)
    daemon.end()
    place.close()
    result = json.loads(done.stdout)
    medians = {name: statistics.median(values) for name, values in result["samples"].items()}
    result.update(date=time.strftime("%Y-%m-%d"), machine=machine(), repeat=options.repeat, medians=medians)
    print(f"{result['date']}, {json.dumps(result['machine'])}, {result['tensors']} tensors, medians of {options.repeat}")
    table("Blocked for each tensor", "us", medians)
    write_json(options.json, result)


if __name__ == "__main__":
    main()
