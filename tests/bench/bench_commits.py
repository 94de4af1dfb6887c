#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commit latency and the rate of small saves on a directory store, of two builds that take turns within one run.

    tests/bench/bench_commits.py --before BUILD --after BUILD [--dir DISK] [--json FILE]

One rank saves a small state (--bytes, 1 MiB) back to back, new contents each time. Latency is the time of one save until
it is durable (its median in a round), the rate counts all that passes; both are compared by medians of --repeat rounds."""

import argparse
import os
import statistics
import subprocess
import time
from pathlib import Path

from benchlib import MIB, Place, cairn_group, machine, write_json


class Party:
    """A build with a daemon, a store and a rank of its own."""

    def __init__(self, place, build, name, options):
        self.name, self.latency_s, self.rate = name, [], []
        self.socket = place.sockets / name
        store, log_path = place.path / name, place.path / f"{name}.log"
        argv = [build / "bin/cairnd", "--store-url", f"dir:{store}", "--listen-unix", self.socket]
        made = subprocess.run([build / "bin/cairn", "store", "create", f"dir:{store}"], capture_output=True)
        if made.returncode != 0:  # an older build: its daemon makes stores
            argv += ["--store-create", "yes"]
        with open(log_path, "wb") as log:
            place.start(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while "ready" not in log_path.read_text():
            if time.monotonic() > end:
                raise SystemExit("bench: cairnd did not start:\n" + log_path.read_text())
            time.sleep(0.02)
        self.group = cairn_group(place, build, self, "memfd", ranks=1, bytes=options.bytes, run="bench/commits",
                                 name=name, encoding="raw")
        self.step = 0

    def url(self, _, run):
        return f"cairn+unix://{self.socket}?run={run}"

    def env(self, _):
        return {"CAIRN_TRANSPORT": "memfd"}

    def round(self, saves, counts):
        durable = []
        for _ in range(saves):
            self.step += 1
            self.group.tell(f"change {self.step}")
            durable.append(self.group.slowest(f"save {self.step}")["durable_s"])
        if counts:
            self.latency_s.append(statistics.median(durable))
            self.rate.append(saves / sum(durable))


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--before", type=Path, required=True, help="build folder of the older code")
    parser.add_argument("--after", type=Path, required=True, help="build folder of the newer code")
    parser.add_argument("--dir", type=Path, help="a folder on the disk that is measured; default: the newer build's")
    parser.add_argument("--bytes", type=int, default=MIB)
    parser.add_argument("--saves", type=int, default=40, help="in a round")
    parser.add_argument("--repeat", type=int, default=9, help="rounds")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="one short round: does it run?")
    options = parser.parse_args()
    if options.smoke:
        options.saves, options.repeat = 2, 1
    return options


def main():
    options = parse_options()
    place = Place((options.dir or options.after).resolve())
    parties = [Party(place, build, name, options)
               for name, build in (("before", options.before), ("after", options.after))]
    for party in parties:
        party.round(2, counts=False)  # arena, folders
    for number in range(options.repeat):
        for party in parties if number % 2 == 0 else reversed(parties):
            party.round(options.saves, counts=True)
    ratio = {key: statistics.median(a / b for a, b in zip(getattr(parties[1], key), getattr(parties[0], key)))
             for key in ("latency_s", "rate")}
    rows = {party.name: {"latency_ms": statistics.median(party.latency_s) * 1000, "saves_per_s": statistics.median(party.rate),
                         "samples": {"latency_s": party.latency_s, "saves_per_s": party.rate}} for party in parties}
    print(f"{time.strftime('%Y-%m-%d')}, {machine()}, {options.bytes} bytes, medians of {options.repeat} rounds of "
          f"{options.saves} saves, load {os.getloadavg()[0]:.1f}")
    print(f"{'':8}{'commit latency':>16}{'saves per second':>20}")
    for name, row in rows.items():
        print(f"{name:8}{row['latency_ms']:13.2f} ms{row['saves_per_s']:20.1f}")
    print(f"{'ratio':8}{ratio['latency_s']:16.3f}{ratio['rate']:20.3f}")
    write_json(options.json, {"machine": machine(), "bytes": options.bytes, "repeat": options.repeat, "saves": options.saves,
                              "ratio": {"latency": ratio["latency_s"], "saves_per_s": ratio["rate"]}, **rows})
    for party in parties:
        party.group.close()
    place.close()


if __name__ == "__main__":
    main()
