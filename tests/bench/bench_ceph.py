#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Cairn on Ceph beside `rados bench`, on a throw-away cluster of its own (deploy/ceph/test-cluster) or on the one that
--conf names: durable saves and restores, with the same bytes, object size and depth; what a small commit costs in round
trips; one daemon and two; how long 10,000 checkpoints take to list.

Everybody takes a turn in each round; look at the ratios."""

import argparse
import json
import os
import secrets
import shutil
import subprocess
import time
from pathlib import Path

from benchlib import (GIB, MIB, SOURCE, Daemon, Group, Place, common_options, create_store, finish_options, machine, median,
                      say, table, write_json)

OBJECT_BYTES = 4 * MIB  # of a piece, and of rados bench
DEPTH = 32              # the threads of a store on Ceph
SMALL_BYTES = 64 << 10
SMALL_SAVES = 20
TOOL = SOURCE / "deploy/ceph/test-cluster"


class Ceph:
    def __init__(self, place, conf):
        self.dir = None
        self.conf = conf
        if not conf:
            self.dir = place.path / "ceph"
            subprocess.run([TOOL, "start", self.dir], check=True, stdout=subprocess.DEVNULL)
            self.conf = self.dir / "ceph.conf"

    def close(self):
        if self.dir:
            subprocess.run([TOOL, "destroy", self.dir], check=True)

    def ask(self, *words):
        done = subprocess.run(["ceph", "-c", self.conf, *words, "-f", "json"], check=True, stdout=subprocess.PIPE,
                              stderr=subprocess.DEVNULL, text=True)
        return json.loads(done.stdout)

    def client_ops(self):
        """Operations of clients that the OSDs have carried out so far."""
        return sum(self.ask("tell", f"osd.{osd}", "perf", "dump", "osd")["osd"]["op"] for osd in self.ask("osd", "ls"))

    def bench(self, kind, name, size, **options):
        """One run of rados bench: {seconds, latency, cpu_s}."""
        words = ["rados", "-c", self.conf, "--id", "cairn", "-p", options.get("pool", "cairn"), "-N", "bench", "bench",
                 str(options.get("limit_s", 120)), kind, "-t", str(options.get("depth", DEPTH)), "--run-name", name,
                 "--no-hints", "-f", "json"]
        if kind == "write":
            size_of = options.get("object_bytes", OBJECT_BYTES)
            words += ["-b", str(size_of), "--max-objects", str(size // size_of), "--no-cleanup"]
        process = subprocess.Popen([str(word) for word in words], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        text = process.stdout.read()
        process.stdout.close()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode != 0:
            raise SystemExit(f"bench: rados bench {kind} ended with {process.returncode}: {text[-500:]}")
        found = json.loads(text[text.index("{"):])
        return {"seconds": float(found["total_time_run"]), "latency": float(found["average_latency"]),
                "bytes": float(found["total_writes_made" if kind == "write" else "total_reads_made"])
                * float(found["write_size" if kind == "write" else "read_size"]),
                "cpu_s": usage.ru_utime + usage.ru_stime}

    def clean(self, name):
        subprocess.run(["rados", "-c", self.conf, "--id", "cairn", "-p", "cairn", "-N", "bench", "cleanup", "--run-name", name],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def ranks(place, build, daemons, size, run, count):
    """cairn_bench on so many ranks, spread over the daemons."""
    attempt = secrets.token_hex(16)
    chosen = [daemons[rank * len(daemons) // count] for rank in range(count)]
    argvs = [[build / "bin/cairn_bench", daemon.url("memfd", run), attempt, rank, count, size]
             for rank, daemon in enumerate(chosen)]
    return Group(place, run.replace("/", "-"), argvs, [daemon.env("memfd") for daemon in chosen])


class Forget:
    """Room between rounds: what is not the newest checkpoint of a run is removed with rados itself."""

    def __init__(self, ceph, space):
        self.ceph, self.space = ceph, space

    def pieces(self, run, step):
        project, name = run.split("/")
        words = ["rados", "-c", self.ceph.conf, "--id", "cairn", "-p", "cairn", "-N", f"{self.space}/{project}"]
        listed = subprocess.run([*words, "ls"], check=True, stdout=subprocess.PIPE, text=True).stdout.split()
        old = [piece for piece in listed if piece.startswith(f"piece/{name}/") and piece.split("/")[2].endswith(f"-{step}")]
        for at in range(0, len(old), 200):
            subprocess.run([*words, "rm", *old[at:at + 200]], check=True, stdout=subprocess.DEVNULL)


def measure_rates(options, place, ceph, daemons, forget):
    """Samples of each round: rados bench and two ranks through one daemon."""
    group = ranks(place, options.build, daemons[:1], options.bytes, "bench/one", 2)
    rounds = []
    for step in range(1, options.repeat + 2):
        sample = {"rados write": ceph.bench("write", "b", options.bytes), "rados seq": ceph.bench("seq", "b", options.bytes)}
        ceph.clean("b")
        group.tell(f"change {step}")  # otherwise a save stores what has changed, which is nothing
        for name, line in (("one", f"save {step}"), ("restore", "restore")):
            before = daemons[0].proc.cpu_s()
            sample[name] = group.slowest(line)
            sample[name]["daemon_cpu_s"] = daemons[0].proc.cpu_s() - before
        forget.pieces("bench/one", step)
        if step > 1:  # the first maps the arenas and opens connections
            rounds.append(sample)
            say(f"round {step - 1} of {options.repeat}")
    group.close()
    return rounds


def measure_daemons(options, place, daemons, forget):
    """The same four ranks through one daemon, and through two."""
    groups = {"four": ranks(place, options.build, daemons[:1], options.bytes, "bench/four", 4),
              "spread": ranks(place, options.build, daemons, options.bytes, "bench/spread", 4)}
    rounds = []
    for step in range(1, options.repeat + 2):
        sample = {}
        for name, group in groups.items():
            group.tell(f"change {step}")
            sample[name] = group.slowest(f"save {step}")
            forget.pieces(f"bench/{name}", step)
        if step > 1:
            rounds.append(sample)
    for group in groups.values():
        group.close()
    return rounds


def measure_commit(options, place, ceph, daemons):
    """A small checkpoint of one rank, of which all has changed or nothing: seconds, operations; and the round trip of a
    small write."""
    group = ranks(place, options.build, daemons[:1], SMALL_BYTES, "bench/small", 1)
    group.tell("save 1")
    samples, step, saves = [], 1, 2 if options.smoke else SMALL_SAVES
    for _ in range(options.repeat):
        sample = {"trip": ceph.bench("write", "t", 100 * 4096, object_bytes=4096, depth=1)["latency"]}
        ceph.clean("t")
        for name in ("changed", "same"):
            ops, seconds = ceph.client_ops(), []
            for _ in range(saves):
                step += 1
                if name == "changed":
                    group.tell(f"change {step}")
                seconds.append(group.slowest(f"save {step}")["durable_s"])
            sample[name] = {"seconds": median(seconds), "ops": (ceph.client_ops() - ops) / saves}
        samples.append(sample)
    group.close()
    return samples


def measure_list(options, place, daemon, url, name):
    """Many checkpoints in one run, then `cairn ls` of all of them from the bare store."""
    run = f"bench/{name}"
    group = ranks(place, options.build, [daemon], SMALL_BYTES, run, 1)
    begun = time.monotonic()
    for step in range(1, options.checkpoints + 1):
        group.tell(f"save {step}")
    say(f"{options.checkpoints} checkpoints on {name}: {(time.monotonic() - begun) / options.checkpoints * 1000:.1f} ms each")
    group.close()
    samples = []
    for _ in range(options.repeat):
        begun = time.monotonic()
        done = subprocess.run([options.build / "bin/cairn", "ls", run, "--store", url, "--json", "--all"], check=False,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        samples.append(time.monotonic() - begun)
        if done.returncode != 0:
            raise SystemExit(f"bench: cairn ls: {done.stderr}")
        count = len(json.loads(done.stdout)["checkpoints"])
        if count != options.checkpoints:
            raise SystemExit(f"bench: {count} checkpoints are listed, {options.checkpoints} were saved")
    return samples


def report(result, options):
    gib = options.bytes / GIB

    def rate(key, field):
        return median([sample[key].get("bytes", options.bytes) / MIB / sample[key][field] for sample in result["rounds"]])

    def ratio(key, field, other):
        return median([sample[key].get("bytes", options.bytes) / sample[key][field]
                       / (sample[other]["bytes"] / sample[other]["seconds"]) for sample in result["rounds"]])

    if result.get("rounds"):
        rounds = result["rounds"]
        table("rates", "MiB/s", {"rados bench write": rate("rados write", "seconds"),
                                 "save, 2 ranks, durable": rate("one", "durable_s"),
                                 "rados bench seq": rate("rados seq", "seconds"),
                                 "restore, 2 ranks": rate("restore", "restore_s")})
        table("ratios (aim: 0.90 and more)", "", {
            "durable save / rados bench write": ratio("one", "durable_s", "rados write"),
            "restore / rados bench seq": ratio("restore", "restore_s", "rados seq")})
        table("processor", "s/GiB", {
            "rados bench write": median([s["rados write"]["cpu_s"] / (s["rados write"]["bytes"] / GIB) for s in rounds]),
            "daemon, save": median([s["one"]["daemon_cpu_s"] for s in rounds]) / gib,
            "rados bench seq": median([s["rados seq"]["cpu_s"] / (s["rados seq"]["bytes"] / GIB) for s in rounds]),
            "daemon, restore": median([s["restore"]["daemon_cpu_s"] for s in rounds]) / gib})
    if result.get("daemons"):
        rounds = result["daemons"]
        table("four ranks (aim: two daemons no less than one)", "", {
            "MiB/s, one daemon": median([options.bytes / MIB / s["four"]["durable_s"] for s in rounds]),
            "MiB/s, two daemons": median([options.bytes / MIB / s["spread"]["durable_s"] for s in rounds]),
            "two daemons / one": median([s["four"]["durable_s"] / s["spread"]["durable_s"] for s in rounds])})
    if result.get("commit"):
        samples = result["commit"]
        rows = {"ms of a round trip (4 KiB write)": median([s["trip"] for s in samples]) * 1000}
        for name, what in (("changed", "all has changed"), ("same", "nothing has changed")):
            rows[f"{what}: ms until durable"] = median([s[name]["seconds"] for s in samples]) * 1000
            rows[f"{what}: round trips by time"] = median([s[name]["seconds"] / s["trip"] for s in samples])
            rows[f"{what}: operations of the OSDs"] = median([s[name]["ops"] for s in samples])
        table("a small checkpoint (aim: 10 round trips and less)", "", rows)
    if result.get("list"):
        table(f"`cairn ls` of {options.checkpoints} checkpoints (aim: below 1 s for 10,000)", "s",
              {name: median(samples) for name, samples in result["list"].items()})


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=512 * MIB, help="of a checkpoint; default: 512 MiB")
    parser.add_argument("--checkpoints", type=int, default=10000, help="of the list")
    parser.add_argument("--only", default="rates,daemons,commit,list", help="some of rates,daemons,commit,list")
    parser.add_argument("--conf", type=Path, help="a cluster that runs; its user cairn may use pool cairn")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.bytes, options.checkpoints = 32 * MIB, 20
    if not all(shutil.which(program) for program in ("ceph", "rados", "ceph-osd")):
        raise SystemExit("bench: Ceph is not installed; tools/install-packages --ceph")
    place = Place(options.dir)
    ceph = Ceph(place, options.conf)
    space = f"bench-{secrets.token_hex(4)}"
    url = f"rados:cairn/{space}?conf={ceph.conf}"
    result = {"machine": machine(), "bytes": options.bytes, "depth": DEPTH}
    try:
        create_store(options.build, url)
        daemons = [Daemon(place, options.build, f"d{number}", more=("--store-url", url)) for number in range(2)]
        only = options.only.split(",")
        if "rates" in only:
            result["rounds"] = measure_rates(options, place, ceph, daemons, Forget(ceph, space))
        if "daemons" in only:
            result["daemons"] = measure_daemons(options, place, daemons, Forget(ceph, space))
        if "commit" in only:
            result["commit"] = measure_commit(options, place, ceph, daemons)
        if "list" in only:
            local = Daemon(place, options.build, "local")
            result["list"] = {"dir": measure_list(options, place, local, f"dir:{local.store}", "dir"),
                              "rados": measure_list(options, place, daemons[0], url, "rados")}
            local.stop()
        for daemon in daemons:
            daemon.stop()
    finally:
        ceph.close()
    report(result, options)
    write_json(options.json, result)


if __name__ == "__main__":
    main()
