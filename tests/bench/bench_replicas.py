#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures what check_replicas costs: saves of a state that every rank holds whole, as under DDP, with and without.

Both kinds take turns on the same ranks; compared are medians. Every rank digests all that it holds, so the cost grows with the
state and not with what a rank writes; processors that ranks share, as here, pay for all of them.
"""

import argparse
import json
import time

from benchlib import (GIB, MIB, Daemon, Place, cairn_group, common_options, finish_options, machine, median, say, table,
                      write_json)

KINDS = {"without": "", "check_replicas": " check"}


def measure(options):
    place = Place(options.dir)
    daemon = Daemon(place, options.build, "store")
    daemon_env = daemon.env
    daemon.env = lambda transport: {**daemon_env(transport), "BENCH_REPLICATED": "1"}
    group = cairn_group(place, options.build, daemon, options.transport, ranks=options.ranks, bytes=options.bytes,
                        run="bench/replicas", name="replicas", encoding="raw")
    held = sum(answer["bytes"] for answer in group.ready)
    samples, step = {}, 0
    for turn in range(-1, options.repeat):  # the first makes the arena
        for kind, words in KINDS.items():
            step += 1
            group.tell(f"change {step}")
            answers = group.tell(f"save {step}{words}")
            daemon.prune(step)
            for key in ("blocked_s", "durable_s"):
                if turn >= 0:
                    samples.setdefault(f"{kind} {key}", []).append(max(answer[key] for answer in answers))
            if turn >= 0:
                samples.setdefault(f"{kind} cpu_s", []).append(sum(answer["cpu_s"] for answer in answers))
        say(f"round {turn + 1} of {options.repeat}")
    group.close()
    daemon.end()
    place.close()
    return held, samples


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=GIB // 2, help="of the state, which every rank holds")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transport", default="memfd", help="unix, memfd, tcp")
    options = finish_options(parser.parse_args())
    if options.smoke:
        options.bytes = 16 * MIB
    return options


def main():
    options = parse_options()
    held, samples = measure(options)
    medians = {name: median(values) for name, values in samples.items()}
    gib = held / GIB
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": held // options.ranks, "ranks": options.ranks,
              "repeat": options.repeat, "transport": options.transport, "seconds": medians,
              "cost": {"blocked s": medians["check_replicas blocked_s"] - medians["without blocked_s"],
                       "durable, times": medians["check_replicas durable_s"] / medians["without durable_s"],
                       "cpu s per GiB held": (medians["check_replicas cpu_s"] - medians["without cpu_s"]) / gib}}
    print(f"{result['date']}, {json.dumps(result['machine'])}, {options.ranks} ranks hold {held / options.ranks / GIB:.2f} GiB each, "
          f"medians of {options.repeat}")
    table("Seconds", "s", medians)
    table("What check_replicas costs", "", result["cost"])
    write_json(options.json, {**result, "samples": samples})


if __name__ == "__main__":
    main()
