#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves 200 times and watches memory, descriptors and threads of the ranks and of the daemon.

Samples are taken when a save is durable and nothing is in flight. Flat means: descriptors and threads
never above what they were after the warm-up (the first tenth), and resident memory without a slope.
The daemon's cache of metadata, 64 MiB otherwise, has 1 MiB here, so that its filling is over at once.
The slope is the median of all pairwise slopes (Theil-Sen), so that one stray sample does not count.
"""

import argparse
import itertools
import json
import statistics
import time

from benchlib import MIB, Daemon, Place, cairn_group, common_options, finish_options, machine, say, table, write_json


def slope(values):
    """Per sample, robust against strays."""
    pairs = itertools.combinations(enumerate(values), 2)
    return statistics.median((y2 - y1) / (x2 - x1) for (x1, y1), (x2, y2) in pairs)


def judge(samples, every):
    """What became of one process between the end of the warm-up and the end."""
    rest = samples[max(1, len(samples) // 10):]
    rss = [sample["rss"] for sample in rest]
    return {"rss_kib_per_save": slope(rss) / 1024 / every, "rss_growth_mib": slope(rss) * (len(rss) - 1) / MIB,
            "rss_mib": statistics.median(rss) / MIB,
            "fds_growth": max(sample["fds"] for sample in rest) - rest[0]["fds"],
            "threads_growth": max(sample["threads"] for sample in rest) - rest[0]["threads"],
            "fds": rest[-1]["fds"], "threads": rest[-1]["threads"]}


def run(options):
    place = Place(options.dir)
    daemon = Daemon(place, options.build, "store", more=("--memory-cache", "1MiB"))
    group = cairn_group(place, options.build, daemon, options.transport, ranks=options.ranks, bytes=options.bytes,
                        run="bench/soak", name="soak")
    samples = {f"rank {rank}": [] for rank in range(options.ranks)}
    samples["daemon"] = []
    begin, told = time.monotonic(), time.monotonic()
    for step in range(1, options.saves + 1):
        group.tell(f"change {step}")
        group.tell(f"save {step}")
        daemon.prune(step)
        if step == 1 and daemon.not_taken(options.transport):
            say(f"{options.transport}: {daemon.not_taken(options.transport)}: left out")
            return {}, 0
        if step % options.every == 0:
            for rank, sample in enumerate(group.samples()):
                samples[f"rank {rank}"].append(sample)
            samples["daemon"].append(daemon.proc.sample())
        if time.monotonic() - told > 10:
            told = time.monotonic()
            say(f"save {step} of {options.saves}")
    seconds = time.monotonic() - begin
    group.close()
    daemon.end()
    place.close()
    return samples, seconds


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=16 * MIB, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--saves", type=int, default=200)
    parser.add_argument("--every", type=int, default=2, help="saves between two samples")
    parser.add_argument("--transport", default="unix", help="unix, memfd, tcp")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.saves = 20
    return options


def main():
    options = parse_options()
    samples, seconds = run(options)
    judged = {name: judge(values, options.every) for name, values in samples.items()}
    if not judged:
        write_json(options.json, {"judged": {}})
        return
    print(f"{time.strftime('%Y-%m-%d')}, {json.dumps(machine())}, {options.saves} saves of {options.bytes / MIB:.0f} MiB on "
          f"{options.ranks} ranks in {seconds:.0f} s")
    for key in next(iter(judged.values())):
        table(key, "", {name: values[key] for name, values in judged.items()})
    write_json(options.json, {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "saves": options.saves,
                              "state_bytes": options.bytes, "transport": options.transport, "seconds": seconds,
                              "judged": judged, "samples": samples})


if __name__ == "__main__":
    main()
