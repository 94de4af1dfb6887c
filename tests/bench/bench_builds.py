#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Two builds that take turns within one run: has a change made Cairn slower?

    tests/bench/bench_builds.py --before BUILD --after BUILD [--ceph] [--dir DISK] [--json FILE]

Each build has a daemon, a store and ranks of its own. In a round both do the same, the first one alternates: saves and a
restore of --bytes on two ranks over each way that bytes go, --saves small saves (1 MiB on one rank) back to back, and a list
of --checkpoints checkpoints; with --ceph also small saves on a throw-away cluster that both share. What is compared is the
median of the rounds' ratios, so that a machine which slows down slows both."""

import argparse
import os
import statistics
import subprocess
import time
from pathlib import Path

from bench_ceph import Ceph
from benchlib import MIB, Daemon, Place, cairn_group, evict, machine, write_json

WAYS = ("memfd", "unix")


class Party:
    """A build with its daemons and ranks; ``samples`` holds seconds by the name of what was measured."""

    def __init__(self, place, build, name, options, ceph):
        self.build, self.options, self.step, self.samples = build, options, 0, {}
        self.daemons = {way: Daemon(place, build, f"{name}-{way}") for way in (*WAYS, "small")}
        if ceph:
            url = f"rados:cairn/{name}?conf={ceph.conf}"
            subprocess.run([build / "bin/cairn", "store", "create", url], check=True, stdout=subprocess.DEVNULL)
            self.daemons["ceph"] = Daemon(place, build, f"{name}-ceph", more=("--store-url", url))
        self.groups = {what: self.ranks(place, f"{name}-{what}", what) for what in self.daemons}
        self.listed = f"dir:{place.path / name}-listed"
        subprocess.run([build / "bin/many_checkpoints", self.listed, "demo/run", str(options.checkpoints)], check=True,
                       stdout=subprocess.DEVNULL)

    def ranks(self, place, name, what):
        large = what in WAYS
        return cairn_group(place, self.build, self.daemons[what], what if large else "memfd", ranks=2 if large else 1,
                           bytes=self.options.bytes if large else MIB, run="bench/builds", name=name, encoding="raw")

    def record(self, name, seconds):
        self.samples.setdefault(name, []).append(seconds)

    def save(self, what):
        self.step += 1
        self.groups[what].tell(f"change {self.step}")
        return self.groups[what].slowest(f"save {self.step}")

    def large(self, way):
        times = self.save(way)
        self.record(f"{way} durable", times["durable_s"])
        self.record(f"{way} blocked", times["blocked_s"])
        evict(self.daemons[way].store)
        self.record(f"{way} restore", self.groups[way].slowest("restore")["restore_s"])
        self.daemons[way].prune(self.step)

    def small(self, what):
        name = "commit on Ceph" if what == "ceph" else "commit"
        self.record(name, statistics.median(self.save(what)["durable_s"] for _ in range(self.options.saves)))

    def list(self):
        begun = time.monotonic()
        subprocess.run([self.build / "bin/cairn", "ls", "demo/run", "--store", self.listed, "--json", "--all"], check=True,
                       stdout=subprocess.DEVNULL)
        self.record(f"ls of {self.options.checkpoints}", time.monotonic() - begun)

    def turns(self):
        """What a round does, each step by both builds before the next one."""
        return ([lambda party, way=way: party.large(way) for way in WAYS]
                + [lambda party, what=what: party.small(what) for what in self.daemons if what not in WAYS]
                + [Party.list])

    def close(self):
        for what, group in self.groups.items():
            group.close()
            self.daemons[what].stop()


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="build folder of the older code")
    parser.add_argument("--after", type=Path, required=True, help="build folder of the newer code")
    parser.add_argument("--dir", type=Path, help="a folder on the disk that is measured; default: the newer build's")
    parser.add_argument("--bytes", type=int, default=512 * MIB, help="of both ranks together")
    parser.add_argument("--saves", type=int, default=40, help="small ones in a round")
    parser.add_argument("--checkpoints", type=int, default=10000, help="of the list")
    parser.add_argument("--repeat", type=int, default=7, help="rounds")
    parser.add_argument("--ceph", action="store_true", help="also small saves on a cluster of deploy/ceph/test-cluster")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    options = parser.parse_args()
    options.before, options.after = options.before.resolve(), options.after.resolve()
    if options.smoke:
        options.saves, options.repeat, options.bytes, options.checkpoints = 2, 1, 8 * MIB, 20
    return options


def measure(options, place, ceph):
    parties = [Party(place, build, name, options, ceph)
               for name, build in (("before", options.before), ("after", options.after))]
    for number in range(options.repeat + 1):
        if number == 1:  # the first one made arenas, folders, connections
            for party in parties:
                party.samples.clear()
        for turn in parties[0].turns():
            for party in parties if number % 2 == 0 else reversed(parties):
                turn(party)
    for party in parties:
        party.close()
    return [party.samples for party in parties]


def main():
    options = parse_options()
    place = Place((options.dir or options.after / "bench").resolve())
    ceph = Ceph(place, None) if options.ceph else None
    try:
        before, after = measure(options, place, ceph)
    finally:
        if ceph:
            ceph.close()
    ratios = {name: statistics.median(a / b for a, b in zip(after[name], before[name])) for name in before}
    print(f"{time.strftime('%Y-%m-%d')}, {machine()}, {options.bytes // MIB} MiB on 2 ranks, medians of {options.repeat} "
          f"rounds, load {os.getloadavg()[0]:.1f}")
    print(f"{'':20}{'before':>12}{'after':>12}{'after / before':>18}")
    for name, ratio in ratios.items():
        print(f"{name:20}{statistics.median(before[name]) * 1000:9.2f} ms{statistics.median(after[name]) * 1000:9.2f} ms{ratio:18.3f}")
    write_json(options.json, {"machine": machine(), "bytes": options.bytes, "repeat": options.repeat, "saves": options.saves,
                              "ratio": ratios, "before": before, "after": after})
    place.close()


if __name__ == "__main__":
    main()
