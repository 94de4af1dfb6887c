#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What scrub and garbage collection cost: a save alone, beside a scrub without a limit, and beside a collection that has
something to remove (turns in each round, medians compared; aim: at most 5 % more); the rate of a scrub (aim: within a tenth of
what is set); the collection of many forgotten checkpoints: seconds and bytes read (object tables only)."""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from benchlib import MIB, SOURCE, Place, say

QUIET = ("--scrub-every", "0s", "--log-level", "error")


def run(argv, check=True):
    begun = time.monotonic()
    done = subprocess.run([str(word) for word in argv], capture_output=True, check=False)
    if check and done.returncode != 0:
        raise SystemExit(f"bench: {' '.join(str(w) for w in argv)}: {done.returncode}: {done.stderr.decode()[-500:]}")
    return time.monotonic() - begun, done.stdout


class Server:
    def __init__(self, place, bins, name, *words):
        self.cairn, self.path, self.socket = bins / "cairn", place.path / name, place.sockets / name
        if not self.path.exists():
            run([self.cairn, "store", "create", f"dir:{self.path}"])
        self.process = place.start([bins / "cairnd", "--store-url", f"dir:{self.path}", "--listen-unix", self.socket, *QUIET, *words])
        while run([self.cairn, "ls", *self.where()], check=False)[1] == b"" and not self.socket.exists():
            if self.process.poll() is not None:
                raise SystemExit(f"bench: cairnd ended with {self.process.returncode}")
            time.sleep(0.05)

    def where(self):
        return ["--server", f"unix:{self.socket}"]

    def json(self, *words):
        return json.loads(run([self.cairn, *words, "--json", *self.where()])[1])

    def stop(self):
        self.process.terminate()
        self.process.wait(60)


def save_seconds(server, size):
    """`cairn bench` saves random bytes as one rank; the seconds until each save was durable. The first one, which makes the
    staging memory (seconds, where the host must give it), does not count."""
    return server.json("bench", f"bench/run{time.monotonic_ns()}", "--size", size, "--rounds", 6)["durable"]["all_s"][1:]


SMALL = 1 * MIB  # of the checkpoints that become garbage: many things to remove, few bytes to make


def make_garbage(server, count):
    """Many checkpoints of a run of their own are forgotten; gc's next cycle may remove them."""
    run_name = f"bench/garbage{time.monotonic_ns()}"
    server.json("bench", run_name, "--size", SMALL, "--rounds", count)
    server.json("forget", run_name, "--keep-last", 2)
    time.sleep(1.1)  # the next pass begins a cycle: --gc-every


def collect_beside(server):
    """Begins when the saves' first bytes have come: before, it has the disk for itself."""
    before, end = server.json("status")["bytes_in"], time.monotonic() + 60
    while server.json("status")["bytes_in"] == before and time.monotonic() < end:
        time.sleep(0.01)
    run([server.cairn, "gc", *server.where()], check=False)  # another pass may be under way


def beside(place, bins, size, rounds, garbage, smoke):
    """Saves alone, beside a scrub without a limit, and beside a collection, in turns."""
    server = Server(place, bins, "beside", "--scrub-rate", "100GiB", "--memory-buffers", "256MiB", "--gc-every", "1s",
                    "--gc-keep-cycles", "1")
    seconds, removed = {"alone": [], "scrub": [], "gc": []}, []
    make_stock(server, 4 * size)
    for _ in range(rounds):
        for how in seconds:
            before = server.json("gc", "--status")["gc"]
            if how == "scrub":
                run([server.cairn, "scrub", *server.where()])
            elif how == "gc":
                make_garbage(server, garbage)
                collecting = threading.Thread(target=collect_beside, args=(server,))
                collecting.start()
            seconds[how] += save_seconds(server, size)
            say(f"{how}: {', '.join(f'{value:.3f}' for value in seconds[how][-5:])} s")  # a run that is cut short has said something
            if how == "scrub" and not server.json("scrub", "--status")["scrub"]["running"]:
                say("the scrub had ended before the saves: more stock is wanted")
            if how == "gc":
                after = server.json("gc", "--status")["gc"]
                removed.append(sum(after[key] - before[key] for key in ("objects_total", "smalls_total")))
                if not after["running"]:
                    say("the collection had ended before the saves: more garbage is wanted")
                collecting.join()
            run([server.cairn, "scrub", "--wait", *server.where()])
            settle(server)
    server.stop()
    if sum(removed) == 0 and not smoke:  # a collection yields to saves, but does not stand still; so few are collected in no time
        raise SystemExit("bench: nothing was collected beside the saves: this measured nothing")
    return seconds, removed


def settle(server):
    """Until nothing is left to collect, and nothing waits for another pass."""
    for _ in range(100):
        _, out = run([server.cairn, "gc", "--json", *server.where()], check=False)
        gc = json.loads(out)["gc"] if out else None
        if gc and gc["objects"] + gc["smalls"] + gc["kept"] == 0:
            return
        time.sleep(0 if gc else 0.2)  # none: the daemon's own pass is under way
    raise SystemExit("bench: the collection does not end")


def make_stock(server, size):
    """What a scrub reads."""
    server.json("bench", "bench/stock", "--size", size, "--rounds", 2)


def make_stock_alone(place, bins, size):
    server = Server(place, bins, "beside", "--scrub-rate", "100GiB", "--memory-buffers", "256MiB")
    make_stock(server, size)
    run([server.cairn, "scrub", "--wait", *server.where()])
    server.stop()


def scrub_rate(place, bins, rate):
    """Bytes a second over six seconds, in the middle of a pass."""
    server = Server(place, bins, "beside", "--scrub-rate", rate, "--gc-every", "0s")
    run([server.cairn, "scrub", *server.where()])
    time.sleep(1.5)
    first, begun = server.json("scrub", "--status")["scrub"], time.monotonic()
    time.sleep(6)
    last, ended = server.json("scrub", "--status")["scrub"], time.monotonic()
    server.stop()
    if not last["running"] or last["pass"] != first["pass"]:
        raise SystemExit("bench: the pass was too short to measure its rate")
    return (last["bytes_total"] - first["bytes_total"]) / (ended - begun)


def fill_checkpoint(path, number):
    """Files of one checkpoint as gc meets them; what is in them does not matter once it was reclaimed."""
    for folder, names in (("objects", ("0-00000000000000aa-0", "1-00000000000000ab-0")),
                          ("checkpoints", tuple(f"{kind}-00000000000000ac" for kind in ("manifest", "part-0", "part-1",
                                                                                        "page-0", "page-1")))):
        place = path / "runs/demo/run" / folder / f"1-{number}"
        place.mkdir(parents=True, exist_ok=True)
        for name in names:
            (place / name).write_bytes(bytes(8192 if folder == "objects" else 500))


def add_real_ones(place, bins, name, step):
    """Two checkpoints on a line of their own, with the parts that a collection reads to learn what is in use."""
    tensors = place.path / "kept.safetensors"
    header = json.dumps({"w": {"dtype": "U8", "shape": [4096], "data_offsets": [0, 4096]}}).encode()
    tensors.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4096))
    server = Server(place, bins, name, "--gc-every", "0s")
    for more in range(2):
        run([server.cairn, "import", "demo/run", tensors, "--new-lineage", "--step", step + more, *server.where()])
    server.stop()


def collect(place, bins, count):
    """Seconds, and what gc said, for `count` forgotten checkpoints of a run; what stays is real."""
    path, cairn = place.path / "many", bins / "cairn"
    run([bins / "many_checkpoints", f"dir:{path}", "demo/run", count])
    store = ["--store", f"dir:{path}"]
    entries = json.loads(run([cairn, "ls", "demo/run", *store, "--json"])[1])["checkpoints"]
    for entry in entries:
        assert entry["term"] == 1 and (path / "runs/demo/run").exists()
        fill_checkpoint(path, entry["step"])
    add_real_ones(place, bins, "many", max(entry["step"] for entry in entries) + 1)
    run([cairn, "forget", "demo/run", *store, "--keep-last", "2", "--keep-superseded", "0s", "--keep-least", "1", "--json"])
    seconds, out = run([cairn, "gc", "--cycle", "--keep-cycles", "1", *store, "--json"], check=False)
    gc = json.loads(out)["gc"]
    if gc["reclaimed"] < count - 10 or gc["smalls"] < gc["reclaimed"] or gc["objects"] < gc["reclaimed"] or gc["errors"] > 0:
        raise SystemExit(f"bench: not all that was forgotten was collected: {gc}")
    return seconds, gc


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release")
    parser.add_argument("--checkpoints", type=int, default=10000)
    parser.add_argument("--size", type=int, default=1024 * MIB, help="of a save")
    parser.add_argument("--garbage", type=int, default=400, help="checkpoints that a collection beside saves finds")
    parser.add_argument("--rounds", "--repeat", type=int, default=3)
    parser.add_argument("--dir", type=Path, default=Path(tempfile.gettempdir()))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--only", default="gc,beside,rate")
    parser.add_argument("--smoke", action="store_true", help="very small, once: does it work?")
    options = parser.parse_args()
    if options.smoke:
        options.checkpoints, options.size, options.garbage, options.rounds, options.only = 100, 16 * MIB, 40, 1, "gc,beside"
    place, bins, figures = Place(options.dir.absolute()), options.build / "bin", {}
    only = options.only.split(",")
    if "gc" in only:
        seconds, gc = collect(place, bins, options.checkpoints)
        figures["gc"] = {"seconds": seconds, **gc}
        say(f"gc of {gc['reclaimed']} forgotten checkpoints: {seconds:.1f} s, {gc['objects']} objects, {gc['smalls']} small "
            f"things, {gc['bytes_read']} bytes of tables read")
    if "beside" in only:
        seconds, removed = beside(place, bins, options.size, options.rounds, options.garbage, options.smoke)
        medians = {how: statistics.median(values) for how, values in seconds.items()}
        figures["beside"] = {"seconds": seconds, "removed": removed}
        for how, text in (("scrub", "a scrub"), ("gc", "a collection")):
            figures["beside"][how] = medians[how] / medians["alone"]
            say(f"a save alone {medians['alone']:.3f} s, beside {text} {medians[how]:.3f} s: "
                f"{100 * (medians[how] / medians['alone'] - 1):+.1f} % (aim: at most +5 %)")
        say(f"removed beside the saves: {removed}")
    if "rate" in only:
        if "beside" not in only:
            make_stock_alone(place, bins, options.size)
        for rate in (20 * MIB, 100 * MIB):
            got = scrub_rate(place, bins, rate)
            figures[f"rate_{rate // MIB}"] = got / rate
            say(f"a scrub at {rate / MIB:.0f} MiB/s reads {got / MIB:.1f} MiB/s: {100 * (got / rate - 1):+.1f} % (aim: ±10 %)")
    if options.json:
        options.json.write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
