#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures restores from a cold cache: into as many ranks as saved, and into others, beside dcp.load.

A group of N ranks saves once and ends; a group of M ranks, a new attempt, restores again and again.
Before each restore memory is wiped and the store's files are evicted from the page cache (fsync and
posix_fadvise), so that every byte comes from the disk; the disk's own read rate is taken in the same
round. What came back is compared bit for bit, outside the time.
"""

import argparse
import json
import time

from benchlib import (GIB, HERE, MIB, Daemon, Disk, Group, Place, cairn_group, common_options, evict, finish_options,
                      machine, median, python_env, say, table, write_json)

SEED = 11


class Reshard:
    """One way N to M: the checkpoints are made once, the readers stay."""

    def __init__(self, bench, old, new):
        options, place = bench.options, bench.place
        self.bench, self.name = bench, f"{old} -> {new}"
        self.daemon = Daemon(place, options.build, f"store-{old}-{new}")
        job = {"bytes": options.bytes, "run": "bench/reshard"}
        writers = cairn_group(place, options.build, self.daemon, options.transport, ranks=old, name=f"writers {self.name}",
                              **job)
        writers.tell(f"change {SEED}")
        writers.tell("save 1")
        writers.close()
        self.readers = cairn_group(place, options.build, self.daemon, options.transport, ranks=new,
                                   name=f"readers {self.name}", **job)
        self.readers.tell(f"change {SEED}")  # what must come back
        self.bytes = sum(a["bytes"] for a in self.readers.ready)
        self.peers = self.folder = None
        if options.python:
            self.folder = place.path / f"dcp-{old}-{new}"
            self.folder.mkdir()
            writers = self.peer_group(old, "writers")
            writers.tell("save dcp.save")
            writers.close()
            self.peers = self.peer_group(new, "readers")

    def peer_group(self, world, what):
        options, place = self.bench.options, self.bench.place
        argvs = [[options.python, HERE / "peers.py", self.folder, options.bytes] for _ in range(world)]
        envs = [{"RANK": str(rank), "WORLD_SIZE": str(world), **python_env(options.build),
                 "PEERS_RENDEZVOUS": str(place.path / f"rendezvous {what} {self.name}")} for rank in range(world)]
        return Group(place, f"peers {what} {self.name.replace('>', '')}", argvs, envs)

    def turn(self):
        evict(self.daemon.store)
        seconds = self.readers.slowest("restore")["restore_s"]
        self.bench.record(f"cairn {self.name}", self.bytes / seconds / 1e9)
        if self.peers:
            evict(self.folder)
            seconds = self.peers.slowest("load dcp.save")["load_s"]
            self.bench.record(f"dcp.load {self.name}", self.bytes / seconds / 1e9)

    def close(self):
        self.readers.close()
        self.daemon.end()
        if self.peers:
            self.peers.close()


class Bench:
    def __init__(self, options):
        self.options = options
        self.place = Place(options.dir)
        self.disk = Disk(self.place, options.build, options.bytes)
        self.samples = {}

    def record(self, name, value):
        self.samples.setdefault(name, []).append(value)

    def run(self):
        for old, new in self.options.ways:
            way = Reshard(self, old, new)
            for turn in range(self.options.repeat):
                begin = time.monotonic()
                for who, kinds in (("raw", self.disk.raw()), ("fio", self.disk.fio())):
                    if "read" in kinds:
                        self.record(f"{who} read beside {way.name}", self.options.bytes / kinds["read"] / 1e9)
                way.turn()
                say(f"{way.name}: round {turn + 1} of {self.options.repeat}: {time.monotonic() - begin:.0f} s")
            way.close()
        self.place.close()

    def summary(self):
        rates = {name: median(values) for name, values in self.samples.items()}
        ratios = {}
        for old, new in self.options.ways:
            name = f"{old} -> {new}"
            disk = max(rates[f"{who} read beside {name}"] for who in ("raw", "fio")
                       if f"{who} read beside {name}" in rates)
            ratios[f"cairn {name} / disk"] = rates[f"cairn {name}"] / disk
            if f"dcp.load {name}" in rates:
                ratios[f"dcp.load {name} / disk"] = rates[f"dcp.load {name}"] / disk
                ratios[f"cairn {name} / dcp.load"] = rates[f"cairn {name}"] / rates[f"dcp.load {name}"]
        return {"gb_per_s": rates, "ratios": ratios}


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=2 * GIB, help="of all ranks together")
    parser.add_argument("--ways", default="2:2,2:4,4:2", help="ranks that save : ranks that restore, ...")
    parser.add_argument("--transport", default="memfd", help="memfd (what a job on the daemon's host gets by itself), unix, tcp")
    parser.add_argument("--python", help="an interpreter with torch: adds dcp.load")
    options = finish_options(parser.parse_args())
    options.ways = [tuple(int(ranks) for ranks in way.split(":")) for way in options.ways.split(",")]
    if options.smoke:
        options.bytes = 64 * MIB
    return options


def main():
    options = parse_options()
    bench = Bench(options)
    bench.run()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": options.bytes,
              "repeat": options.repeat, "transport": options.transport, **bench.summary()}
    print(f"{result['date']}, {json.dumps(result['machine'])}, {options.bytes / GIB:.2f} GiB, medians of {options.repeat}")
    table("Ratios (medians, one run)", "", result["ratios"])
    table("Rates, cold cache", "GB/s", result["gb_per_s"])
    write_json(options.json, {**result, "samples": bench.samples})


if __name__ == "__main__":
    main()
