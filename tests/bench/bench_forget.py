#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""How long `cairn forget` takes over a run of many checkpoints, on the bare store and through a server, beside `cairn ls`
of the same run. The run's record is made by many_checkpoints; the figure includes the start of the process.
Aim: 10,000 checkpoints in at most 1 s."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from benchlib import SOURCE, Place, say

POLICY = ("--keep-last", "10", "--keep-hourly", "24", "--keep-daily", "14", "--keep-monthly", "12",
          "--keep-every-steps", "100000")


def timed(argv):
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in argv], capture_output=True, check=False)
    took = time.monotonic() - begun
    if done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(str(w) for w in argv)}: {done.returncode}: {done.stderr.decode()[-500:]}")
    return took, done.stdout


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release")
    parser.add_argument("--checkpoints", type=int, default=10000)
    parser.add_argument("--rounds", "--repeat", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--smoke", action="store_true", help="few, once: does it work?")
    parser.add_argument("--place", "--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--check", action="store_true", help="end with 1 when forget takes more than 1 s")
    options = parser.parse_args()
    if options.smoke:
        options.checkpoints, options.rounds = 200, 1
    place = Place(options.place)
    bins, cairn = options.build / "bin", options.build / "bin/cairn"
    times = {"ls": [], "dry run, store": [], "dry run, server": [], "forget, store": [], "forget, server": []}
    for number in range(options.rounds):
        for how in ("store", "server"):
            path = place.path / f"{how}-{number}"
            timed([bins / "many_checkpoints", f"dir:{path}", "demo/run", options.checkpoints])
            where, daemon = ["--store", f"dir:{path}"], None
            if how == "server":
                socket = place.sockets / f"s{number}"
                daemon = place.start([bins / "cairnd", "--store-url", f"dir:{path}", "--listen-unix", socket,
                                      "--log-level", "error"])
                where = ["--server", f"unix:{socket}"]
                while subprocess.run([cairn, "ls", *where], capture_output=True, check=False).returncode != 0:
                    time.sleep(0.05)
            else:
                times["ls"].append(timed([cairn, "ls", "demo/run", *where, "--json"])[0])
            took, out = timed([cairn, "forget", "demo/run", *where, *POLICY, "--json", "--dry-run"])
            times[f"dry run, {how}"].append(took)
            plan = json.loads(out)["runs"][0]
            took, out = timed([cairn, "forget", "demo/run", *where, *POLICY, "--json"])
            times[f"forget, {how}"].append(took)
            done = json.loads(out)["runs"][0]
            if plan != done or done["total"] != options.checkpoints or done["forgotten"] < options.checkpoints // 2:
                raise SystemExit("bench: the run did not do what the dry run said")
            if daemon:
                daemon.terminate()
                daemon.wait(60)
    say(f"{done['forgotten']} of {options.checkpoints} forgotten")
    for name, values in times.items():
        print(f"{name:16} median {statistics.median(values):.3f} s, worst {max(values):.3f} s of {len(values)}")
    if options.json:
        options.json.write_text(json.dumps({"seconds": times, "worst": {name: max(values) for name, values in times.items()}}))
    slow = max(max(times["forget, store"]), max(times["forget, server"])) > 1
    return 1 if options.check and slow else 0


if __name__ == "__main__":
    sys.exit(main())
