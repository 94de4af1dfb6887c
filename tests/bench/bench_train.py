#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures how much a training loop loses that saves at every 10th step: Cairn beside each mode of DCP.

Every way of saving has processes of its own, and all take turns: a save and ten steps. What is lost per save is how
long the call blocked, what the steps that began before the save was durable took beyond the process's other steps, and
what was left of the save after ten steps (overrun: it would hold up the next one). Processes are not compared with
each other: the same loop is up to a fifth faster in one than in another, for where their memory lies. The saved bytes, the
model and the data are the same for all, and so must be the losses, to the bit.
"""

import argparse
import json
import secrets
import time

from benchlib import (GIB, HERE, Daemon, Group, Place, common_options, finish_options, install_package, machine, median,
                      memory_bytes, python_env, say, table, write_json)

WAYS = ("none", "cairn copy", "cairn lazy", "dcp.async_save thread", "dcp.async_save process",
        "dcp.async_save cached stager", "dcp.async_save async staging", "cairn.dcp.Writer",
        "cairn.dcp.async_save", "cairn.dcp.Writer cached stager", "torch.save", "dcp.save")
BEST_OF = [way for way in WAYS if way.startswith("dcp.async_save")]


class Way:
    def __init__(self, bench, name):
        options, place = bench.options, bench.place
        self.name, self.daemon = name, None
        folder = place.path / name.replace(" ", "-")
        folder.mkdir()
        env = {**python_env(options.build), "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1",
               "BENCH_RENDEZVOUS": str(place.path / f"rendezvous-{name.replace(' ', '-')}"),
               "BENCH_ATTEMPT": secrets.token_hex(16), "WORLD_SIZE": str(options.ranks),
               "BENCH_FOLDER": str(folder), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
        target = str(folder)
        if name.startswith("cairn"):
            self.daemon = Daemon(place, options.build, f"store-{name.replace(' ', '-')}")
            target = self.daemon.url("unix", "bench/train")
            env.update(CAIRN_TRANSPORT=options.transport, CAIRN_ENCODING=options.encoding)
        what = {"way": name, "target": target, "width": options.width, "layers": options.layers, "tokens": options.tokens,
                "batch": options.batch, "device": options.device}
        self.group = Group(place, name, [[options.python, HERE / "train_worker.py", json.dumps(what)]] * options.ranks,
                           [{**env, "RANK": str(rank)} for rank in range(options.ranks)])
        self.state_bytes = self.group.ready[0]["state_bytes"]
        self.turns = 0

    def turn(self, steps):
        self.turns += 1
        times = self.group.slowest(f"segment {steps}")
        if self.daemon:
            newest = max((int(folder.name.split("-")[1]) for folder in self.daemon.store.glob("runs/*/*/objects/*")),
                         default=0)
            self.daemon.prune(newest)
        return times

    def close(self):
        self.group.close()
        if self.daemon:
            self.daemon.end()


def run(options):
    bench = argparse.Namespace(options=options, place=Place(options.dir))
    ways, samples = [], {}
    for name in options.ways:
        ways.append(Way(bench, name))
    for way in ways:  # the first save makes arenas and shared memory, starts processes
        first = way.turn(options.steps if not options.smoke else 1)
        samples[way.name] = {"first": first, "turns": []}
    for turn in range(options.repeat):
        begin = time.monotonic()
        for way in ways:
            samples[way.name]["turns"].append(way.turn(options.steps))
        say(f"round {turn + 1} of {options.repeat}: {time.monotonic() - begin:.0f} s")
    for way in ways:
        samples[way.name]["rss_peak"] = max(row["rss_peak"] for row in way.group.tell("usage"))
    losses = {way.name: way.group.tell("loss")[0] for way in ways}
    for way in ways:
        way.close()
    bench.place.close()
    return {"samples": samples, "state_bytes": ways[0].state_bytes, "losses": losses}


def summary(result, steps):
    rows = {}
    for name, samples in result["samples"].items():
        turns = samples["turns"]
        rows[name] = {"lost_s_per_save": median([turn["lost_s"] for turn in turns]),
                      "slowdown": median([1 + turn["lost_s"] / (steps * turn["step_s"]) for turn in turns]),
                      "blocked_s": median([turn["blocked_s"] for turn in turns]),
                      "overrun_s": median([turn["overrun_s"] for turn in turns]),
                      "busy_steps": median([turn["busy_steps"] for turn in turns]),
                      "step_s": median([turn["step_s"] for turn in turns]),
                      "first_blocked_s": samples["first"]["blocked_s"], "rss_peak_gib": samples["rss_peak"] / GIB}
    best = min((rows[name]["lost_s_per_save"] for name in BEST_OF if name in rows), default=None)
    ratios = {f"{name} lost / best dcp.async_save": row["lost_s_per_save"] / best for name, row in rows.items()
              if name.startswith("cairn ") and best and best > 0}
    same = len({loss["loss"] for loss in result["losses"].values()}) == 1
    return {"step_s": rows["none"]["step_s"], "ways": rows, "best_dcp_lost_s": best, "ratios": ratios, "same_loss": same}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--python", required=True, help="an interpreter with torch")
    parser.add_argument("--no-install", action="store_true", help="BUILD/bench-python has the package already")
    parser.add_argument("--ranks", type=int, default=1, help="processes of one thread each; several train with DDP")
    parser.add_argument("--steps", type=int, default=10, help="between two saves")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--layers", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64, help="a step; makes it longer")
    parser.add_argument("--batch", type=int, default=1, help="sequences a step")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model is; one process only on cuda")
    parser.add_argument("--transport", default="auto", help="CAIRN_TRANSPORT: auto, memfd, socket")
    parser.add_argument("--encoding", default="auto", help="CAIRN_ENCODING: auto, raw, dense")
    parser.add_argument("--ways", default=",".join(WAYS[:8]), help="some of " + ", ".join(WAYS))
    options = finish_options(parser.parse_args())
    options.ways = ["none"] + [way for way in options.ways.split(",") if way != "none"]
    unknown = [way for way in options.ways if way not in WAYS]
    if unknown:
        parser.error(f"--ways: {', '.join(unknown)}; there are {', '.join(WAYS)}")
    if options.smoke:
        options.width, options.layers, options.tokens, options.steps = 64, 2, 16, 2
    return options


def main():
    options = parse_options()
    if memory_bytes("MemAvailable") < 16 * GIB and not options.smoke:
        say("all ways at once take 16 GiB of memory: say fewer --ways if this fails")
    if not options.no_install:
        install_package(options.python, options.build)
    result = run(options)
    result.update(summary(result, options.steps), date=time.strftime("%Y-%m-%d"), machine=machine(), ranks=options.ranks,
                  repeat=options.repeat, steps=options.steps)
    print(f"{result['date']}, {json.dumps(result['machine'])}, {result['state_bytes'] / GIB:.2f} GiB, {options.ranks} "
          f"processes, a step of {result['step_s']:.3f} s, a save every {options.steps}, medians of {options.repeat}")
    for key in ("lost_s_per_save", "slowdown", "blocked_s", "overrun_s", "busy_steps", "step_s", "first_blocked_s", "rss_peak_gib"):
        table(key, "", {name: row[key] for name, row in result["ways"].items()})
    table("Ratios", "", result["ratios"])
    if not result["same_loss"]:
        raise SystemExit(f"bench: saving changed the training: {result['losses']}")
    write_json(options.json, result)


if __name__ == "__main__":
    main()
