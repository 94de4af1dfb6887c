#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures all figures that the project aims at, one benchmark after the other: one JSON, one Markdown table.

    tests/bench/figures.py --python VENV/bin/python

Stages that are done are not repeated when it is started again, unless the build has changed since. A stage that
breaks is named, the others go on. No number makes it fail. What each figure means is in README.md.
"""

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

from benchlib import GIB, HERE, MIB, SOURCE, install_package, machine, say, write_json

TORCH, FULL = "torch", "full"
PLAIN = ("bench_soak.py", "bench_forget.py", "bench_upkeep.py")  # they know no PyTorch
SIZES = {"2g": 2 * GIB, "8g": 8 * GIB}


def stages():
    """name: (script and arguments, minutes on two quiet cores, what it needs)"""
    every = {"soak-unix": (["bench_soak.py"], 0.3, ""), "soak-memfd": (["bench_soak.py", "--transport", "memfd"], 0.3, "")}
    for size, ranks, minutes, need in (("2g", 1, 2.5, ""), ("2g", 2, 2.5, ""), ("2g", 4, 3, ""), ("8g", 2, 9, ""),
                                       ("8g", 1, 9, FULL), ("8g", 4, 10, FULL)):
        every[f"save-{size}-{ranks}"] = (
            ["bench.py", "--bytes", str(SIZES[size]), "--ranks", str(ranks), "--transports", "memfd,unix"], minutes, need)
    every["save-network"] = (["bench.py", "--transports", "unix,tcp,tls", "--modes", "copy"], 4, FULL)
    every["reshard"] = (["bench_reshard.py"], 2.5, "")
    every["train"] = (["bench_train.py", "--no-install"], 5, TORCH)
    every["train-2"] = (["bench_train.py", "--no-install", "--ranks", "2"], 6, FULL + TORCH)
    every["plan"] = (["bench_plan.py", "--no-install"], 1, TORCH)
    every["forget"] = (["bench_forget.py"], 0.5, "")
    every["upkeep"] = (["bench_upkeep.py"], 4, "")
    every["stored"] = (["bench_stored.py", "--no-install"], 3, TORCH)
    return every


class Row:
    """One figure: what it is, the aim as (relation, number), what was measured, by which stage."""

    def __init__(self, figure, aim, value, stage, unit=""):
        self.figure, self.aim, self.value, self.stage, self.unit = figure, aim, value, stage, unit

    def aim_text(self):
        return f"{'≥' if self.aim[0] == 'least' else '≤'} {self.aim[1]:g}{self.unit}" if self.aim else ""

    def met(self):
        if self.value is None:
            return "not measured"
        if not self.aim:
            return ""
        return "yes" if (self.value >= self.aim[1] if self.aim[0] == "least" else self.value <= self.aim[1]) else "no"

    def measured(self):
        return "" if self.value is None else f"{self.value:.3g}{self.unit}"


def save_rows(stage, results):
    result = results.get(stage, {})
    ratios, medians = result.get("ratios", {}), result.get("medians", {})
    size, ranks = stage.split("-")[1:]
    where = f"{size.upper().replace('G', ' GiB')}, {ranks} rank{'s' if ranks != '1' else ''}"
    for path, durable, cpu in (("memfd", 0.88, 0.6), ("unix", 0.85, 1.0)):
        name, text = f"cairn {path}", f"{'memfd' if path == 'memfd' else 'Unix socket'}, {where}"
        yield Row(f"durable save / disk, {text}", ("least", durable), ratios.get(f"{name} save / disk"), stage)
        for peer in ("safetensors", "torch.save", "dcp.save"):
            yield Row(f"durable save / {peer}{'' if peer == 'dcp.save' else ' + fsync'}, {text}", ("least", 1.5),
                      ratios.get(f"{name} save / {peer}"), stage)
        yield Row(f"CPU of client and daemon, {text}", ("most", cpu), medians.get(f"{name} save cpu_s_per_gib both"), stage,
                  " s/GiB")
        yield Row(f"blocked, copy / memcpy, {text}", ("most", 1.1), ratios.get(f"{name} blocked / memcpy"), stage)
        yield Row(f"blocked, lazy / memcpy, {text}", ("most", 0.02), ratios.get(f"{name} lazy blocked / memcpy"), stage)
        yield Row(f"restore, same layout / disk, {text}", ("least", 0.85), ratios.get(f"{name} restore / disk"), stage)
        yield Row(f"restore, same layout / dcp.load, {text}", None, ratios.get(f"{name} restore / dcp.load"), stage)
        extra = result.get("samples", {}).get(f"{name} rss_extra client")
        yield Row(f"memory above state and arena, {text}", ("most", 64), max(extra) / MIB if extra else None, stage, " MiB")
    yield Row(f"dcp.async_save, cached stager: blocked / memcpy, {where}", None,
              ratios.get("dcp.async_save blocked / memcpy"), stage)


def other_rows(results):
    train = results.get("train", {})
    for mode in ("copy", "lazy"):
        yield Row(f"training, lost per save: {mode} / the best dcp.async_save", ("most", 0.5),
                  train.get("ratios", {}).get(f"cairn {mode} lost / best dcp.async_save"), "train")
    for name, row in train.get("ways", {}).items():
        if name != "none":
            yield Row(f"training, lost per save: {name}", None, row["lost_s_per_save"], "train", " s")
            yield Row(f"training, slowdown: {name}", None, row["slowdown"], "train")
    plan = results.get("plan", {}).get("medians", {})
    for mode in ("copy", "lazy"):
        yield Row(f"blocked in Python for each of 20,000 tensors, {mode}", ("most", 3), plan.get(f"{mode}, us a tensor"), "plan", " us")
    stored = results.get("stored", {})
    adam = {how: stored.get("ratios", {}).get(f"{how}, bf16 + f32 Adam") for how in ("raw", "auto", "dense")}
    best = min((value for value in adam.values() if value is not None), default=None)
    yield Row("stored / raw, bf16 + f32 Adam of a trained model, best encoding", ("most", 0.8), best, "stored")
    for how, value in adam.items():
        if value is not None:
            yield Row(f"stored / raw, bf16 + f32 Adam of a trained model, {how}", None, value, "stored")
    yield Row("LoRA on a frozen base: stored by a later save / the first", ("most", 0.02),
              stored.get("lora", {}).get("worst_later_of_first"), "stored")
    reshard = results.get("reshard", {}).get("ratios", {})
    for way, aim in (("2 -> 2", 0.85), ("2 -> 4", 0.6), ("4 -> 2", 0.6)):
        yield Row(f"restore {way} / disk", ("least", aim), reshard.get(f"cairn {way} / disk"), "reshard")
        yield Row(f"restore {way} / dcp.load", None, reshard.get(f"cairn {way} / dcp.load"), "reshard")
    yield from care_rows(results)
    for stage in ("soak-memfd", "soak-unix"):
        judged = results.get(stage, {}).get("judged")
        for key, most, unit in (("rss_growth_mib", 4, " MiB"), ("fds_growth", 0, ""), ("threads_growth", 0, "")):
            worst = max(process[key] for process in judged.values()) if judged else None
            yield Row(f"200 saves, {stage.split('-')[1]}: {key.split('_')[0]} growth", ("most", most), worst, stage, unit)


def care_rows(results):
    worst = results.get("forget", {}).get("worst", {})
    for how in ("ls", "forget, store", "forget, server"):
        yield Row(f"10,000 checkpoints: {how}", ("most", 1), worst.get(how), "forget", " s")
    upkeep = results.get("upkeep", {})
    for how, text in (("scrub", "a scrub without a limit"), ("gc", "a collection")):
        yield Row(f"durable save beside {text} / alone", ("most", 1.05), upkeep.get("beside", {}).get(how), "upkeep")
    for rate in (20, 100):
        got = upkeep.get(f"rate_{rate}")
        yield Row(f"scrub at {rate} MiB/s: off by", ("most", 0.1), abs(got - 1) if got is not None else None, "upkeep")
    gc = upkeep.get("gc", {})
    yield Row("collection of 10,000 forgotten checkpoints", None, gc.get("seconds"), "upkeep", " s")
    yield Row("bytes of object tables that it reads", None, gc.get("bytes_read"), "upkeep")


def rows_of(results, names):
    every = []
    for name in names:
        if name.startswith("save-") and name != "save-network":
            every += save_rows(name, results)
    return [row for row in [*every, *other_rows(results)] if row.stage in names]


def command_text(argv, options):
    """As it can be typed from the root of the sources, less where results go."""
    words = [f"tests/bench/{argv[0]}", *argv[1:]]
    return shlex.join(words) + (" --python VENV/bin/python" if options.python and argv[0] not in PLAIN else "")


def markdown(rows, results, options, date):
    host = machine()
    lines = [f"# Figures, {date}", "",
             *(["**A smoke run with tiny states: these numbers mean nothing.**", ""] if options.smoke else []),
             f"{host['cores']} cores ({host['cpu']}), {host['memory_gib']} GiB, Linux {host['kernel']}, huge pages of shared "
             f"memory: {host['shmem_huge_pages']}. Medians of at least five rounds, ratios within one run.", "",
             "| figure | aim | measured | met? | stage |", "|---|---|---|---|---|"]
    lines += [f"| {row.figure} | {row.aim_text()} | {row.measured()} | {row.met()} | {row.stage} |" for row in rows]
    lines += ["", "| stage | command | load at its start | seconds |", "|---|---|---|---|"]
    for name, (argv, _, _) in stages().items():
        if name in results:
            done = results[name]["figures"]
            lines.append(f"| {name} | `{command_text(argv, options)}` | {done['load']:.1f} | {done['seconds']:.0f} |")
    return "\n".join(lines) + "\n"


def build_key(build, argv):
    """What a result is of: these programs, these arguments, these scripts."""
    digest = hashlib.sha256(json.dumps(argv).encode())
    for path in [build / "bin/cairnd", build / "bin/cairn_bench", *sorted(HERE.glob("*.py"))]:
        if path.name != "figures.py":
            digest.update(path.read_bytes())
    return digest.hexdigest()


class Figures:
    def __init__(self, options):
        self.options = options
        self.results, self.broken = {}, []

    def arguments(self, name):
        argv, _, _ = stages()[name]
        argv = [*argv, "--build", str(self.options.build)]
        if self.options.python and argv[0] not in PLAIN:
            argv += ["--python", str(self.options.python)]
        if self.options.dir:
            argv += ["--dir", str(self.options.dir)]
        if self.options.repeat and argv[0] not in ("bench_soak.py", "bench_stored.py"):
            argv += ["--repeat", str(self.options.repeat)]
        return argv + (["--smoke"] if self.options.smoke else [])

    def kept(self, name):
        path = self.options.out / f"{name}.json"
        try:
            result = json.loads(path.read_text())
        except (OSError, ValueError):
            return None
        key = build_key(self.options.build, self.arguments(name))
        return result if result.get("figures", {}).get("key") == key else None

    def watched(self, argv, log):
        """The exit status; the benchmark ends with this program, and takes its own processes along."""
        process = subprocess.Popen(argv, stdout=log)
        try:
            return process.wait()
        finally:
            if process.poll() is None:
                process.terminate()
                process.wait(30)

    def measure(self, name):
        argv, path = self.arguments(name), self.options.out / f"{name}.json"
        begin, load = time.monotonic(), os.getloadavg()[0]
        with open(self.options.out / f"{name}.txt", "w") as log:
            status = self.watched([sys.executable, HERE / argv[0], *argv[1:], "--json", path], log)
        if status != 0:
            self.broken.append(name)
            say(f"{name} broke ({status}); the others go on")
            return
        result = json.loads(path.read_text())
        result["figures"] = {"key": build_key(self.options.build, argv), "load": load, "seconds": time.monotonic() - begin}
        write_json(path, result)
        self.results[name] = result

    def run(self, names):
        left = []
        for name in stages():  # the table also has what was measured by other calls
            kept = None if self.options.again and name in names else self.kept(name)
            if kept:
                self.results[name] = kept
            if kept and name in names:
                say(f"{name}: kept from before")
            elif name in names:
                left.append(name)
        minutes = {name: stages()[name][1] for name in left}
        if left and self.options.python:
            install_package(self.options.python, self.options.build)
        for number, name in enumerate(left):
            rest = sum(minutes[later] for later in left[number:])
            say(f"== {name} ({number + 1} of {len(left)}); some {rest:.0f} minutes left on a quiet machine")
            (self.options.out / f"{name}.json").unlink(missing_ok=True)
            self.measure(name)
            self.write(names)

    def write(self, names):
        names = [name for name in stages() if name in names or name in self.results]
        date = time.strftime("%Y-%m-%d")
        rows = rows_of(self.results, names)
        text = markdown(rows, self.results, self.options, date)
        (self.options.out / "figures.md").write_text(text)
        write_json(self.options.out / "figures.json", {
            "date": date, "machine": machine(), "broken": self.broken,
            "rows": [{"figure": row.figure, "aim": row.aim, "measured": row.value, "unit": row.unit, "met": row.met(),
                      "stage": row.stage, "command": command_text(stages()[row.stage][0], self.options)} for row in rows],
            "stages": {name: {key: value for key, value in result.items() if key != "samples"}
                       for name, result in self.results.items()}})
        return text


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release", help="use the release preset")
    parser.add_argument("--python", type=Path, help="an interpreter with torch, scikit-build-core and safetensors; "
                        "default: the one of tests/python/run in BUILD/venv")
    parser.add_argument("--no-python", action="store_true", help="without PyTorch, whatever there is")
    parser.add_argument("--out", type=Path, help="default: BUILD/bench-figures")
    parser.add_argument("--dir", type=Path, help="the disk to measure; default: BUILD/bench")
    parser.add_argument("--only", help="some of these stages: " + ", ".join(stages()))
    parser.add_argument("--full", action="store_true", help="all stages: an hour")
    parser.add_argument("--again", action="store_true", help="measure also what is kept from before")
    parser.add_argument("--repeat", type=int, help="rounds; default: each benchmark's own, five")
    parser.add_argument("--smoke", action="store_true", help="very small, once: does it all work?")
    options = parser.parse_args()
    options.build = options.build.resolve()
    options.out = (options.out or options.build / ("bench-figures-smoke" if options.smoke else "bench-figures")).resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    own = options.build / "venv/bin/python"
    options.python = options.python.absolute() if options.python else own if own.exists() else None
    options.python = None if options.no_python else options.python
    wanted = options.only.split(",") if options.only else [n for n, (_, _, need) in stages().items() if FULL not in need or options.full]
    unknown = [name for name in wanted if name not in stages()]
    if unknown:
        parser.error(f"--only: {', '.join(unknown)}; there are {', '.join(stages())}")
    if not options.python:
        say("no --python: peers, training loop and stored bytes are left out")
        wanted = [name for name in wanted if TORCH not in stages()[name][2]]
    return options, wanted


def main():
    options, names = parse_options()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    if os.getloadavg()[0] > 0.5:
        say(f"others use this machine (load {os.getloadavg()[0]:.1f}): the figures will be worse than they are")
    figures = Figures(options)
    figures.run(names)
    print(figures.write(names))
    say(f"written: {options.out}/figures.md and figures.json")
    if figures.broken:
        raise SystemExit(f"bench: broke: {', '.join(figures.broken)}")


if __name__ == "__main__":
    main()
