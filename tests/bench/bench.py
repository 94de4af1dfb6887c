#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Cairn beside the disk, memcpy and PyTorch's own checkpointing, all in one run.

Every repetition lets everybody take a turn, so that a machine which slows down slows all of them
down; what is compared are medians. Where memory does not hold everybody at once, they come one
after the other, each with the disk beside it. Prints a table (ratios first of all) and writes JSON.
No figure makes it fail: only a program that breaks does. What each figure means is in README.md.
"""

import argparse
import json
import time

from benchlib import (GIB, HERE, MIB, TRANSPORTS, Daemon, Disk, Group, Place, bytes_below, cairn_group, common_options,
                      evict, finish_options, machine, median, memory_bytes, python_env, say, table, write_json)

PEERS = ("torch.save", "safetensors", "dcp.save", "dcp.async_save")
STEP_MS_MIN = 200


class Cairn:
    """Ranks over one transport, with a daemon of their own."""

    def __init__(self, bench, transport):
        options = bench.options
        self.bench, self.transport, self.name = bench, transport, f"cairn {transport}"
        self.daemon = Daemon(bench.place, options.build, f"store-{transport}",
                             bench.place.pki() if transport == "tls" else None)
        self.group = cairn_group(bench.place, options.build, self.daemon, transport, ranks=options.ranks,
                                 bytes=options.bytes, run=f"bench/{transport}", name=self.name,
                                 encoding=options.encoding)
        self.gib = sum(a["bytes"] for a in self.group.ready) / GIB
        self.step = 0
        self.step_ms = STEP_MS_MIN
        self.modes = list(options.modes)
        self.absent = ""  # why it cannot be measured

    def save(self, mode):
        self.step += 1
        self.group.tell(f"change {self.step}")
        daemon_s = self.daemon.proc.cpu_s()
        answers = self.group.tell(f"save {self.step}" + (f" lazy {self.step_ms}" if mode == "lazy" else ""))
        daemon_s = self.daemon.proc.cpu_s() - daemon_s
        blocked, durable = (max(a[key] for a in answers) for key in ("blocked_s", "durable_s"))
        first = " first" if self.step == 1 else ""  # the arena is made and prefaulted
        name = f"{self.name}{first} save" if mode == "copy" else f"{self.name}{first} {mode} save"
        self.bench.record(f"{name} blocked_s", blocked)
        if mode == "copy":  # the other one's has the step in it
            self.bench.record(f"{name} durable_s", durable)
        if not first:
            client_s = sum(a["cpu_s"] for a in answers)
            self.bench.record(f"{name} cpu_s_per_gib client", client_s / self.gib)
            self.bench.record(f"{name} cpu_s_per_gib daemon", daemon_s / self.gib)
            self.bench.record(f"{name} cpu_s_per_gib both", (client_s + daemon_s) / self.gib)
            if mode == "copy":  # a step that is longer than the copy
                self.step_ms = max(STEP_MS_MIN, int(3000 * blocked))
        else:
            self.absent = self.daemon.not_taken(self.transport)
        self.daemon.prune(self.step)

    def memcpy(self):
        usage = self.group.tell("usage")  # before the copy, which has memory of its own
        self.bench.record(f"{self.name} rss_extra client", max(a["extra"] for a in usage))
        self.bench.record(f"{self.name} rss_peak client", max(a["rss_peak"] for a in usage))
        self.bench.record("memcpy s", self.group.slowest("memcpy")["memcpy_s"])

    def restore(self):
        evict(self.daemon.store)
        daemon_s = self.daemon.proc.cpu_s()
        answers = self.group.tell("restore")
        self.bench.record(f"{self.name} restore_s", max(a["restore_s"] for a in answers))
        self.bench.record(f"{self.name} restore cpu_s_per_gib daemon", (self.daemon.proc.cpu_s() - daemon_s) / self.gib)
        self.bench.record(f"{self.name} restore cpu_s_per_gib client", sum(a["cpu_s"] for a in answers) / self.gib)

    def warm(self):
        self.save("copy")
        if self.absent:
            say(f"{self.name}: {self.absent}: left out")
        return not self.absent

    def turn(self, party):
        self.bench.disk_turn(party)
        self.save("copy")
        self.memcpy()
        self.restore()
        for mode in [m for m in self.modes if m != "copy"]:
            self.save(mode)

    def close(self):
        self.group.close()
        self.bench.record(f"{self.name} rss_peak daemon", self.daemon.proc.status_bytes("VmHWM"))
        self.bench.state_bytes = int(self.gib * GIB)
        self.daemon.end()


class Peers:
    """torch.save, safetensors and DCP on as many processes with tensors of the same shapes."""

    def __init__(self, bench):
        options = bench.options
        self.bench, self.name = bench, "peers"
        self.folder = bench.place.path / "peers"
        self.folder.mkdir()
        argvs = [[options.python, HERE / "peers.py", self.folder, options.bytes] for _ in range(options.ranks)]
        envs = [{"RANK": str(rank), "WORLD_SIZE": str(options.ranks), **python_env(options.build),
                 "PEERS_RENDEZVOUS": str(bench.place.path / "rendezvous")} for rank in range(options.ranks)]
        self.group = Group(bench.place, "peers", argvs, envs)
        self.kinds = [kind for kind in PEERS if kind in self.group.ready[0]["kinds"]]
        if "safetensors" not in self.kinds:
            say("safetensors is not installed there: left out")
        if "dcp.async_save" in self.kinds and 3.5 * options.bytes > memory_bytes():
            self.kinds.remove("dcp.async_save")
            say("dcp.async_save needs a second copy of the state: not enough memory, left out")
        self.gib = sum(a["bytes"] for a in self.group.ready) / GIB

    def peer(self, kind):
        cpu_s = sum(a["cpu_s"] for a in self.group.tell("usage"))
        times = self.group.slowest(f"save {kind}")
        cpu_s = sum(a["cpu_s"] for a in self.group.tell("usage")) - cpu_s
        self.bench.record(f"{kind} save cpu_s_per_gib", cpu_s / self.gib)
        for key, value in times.items():
            self.bench.record(f"{kind} save {key}", value)
        self.bench.record(f"{kind} stored / state", bytes_below(self.folder) / (self.gib * GIB))
        evict(self.folder)
        if kind != "dcp.async_save":
            self.bench.record(f"{kind} load_s", self.group.slowest(f"load {kind}")["load_s"])
        self.group.tell("clear")

    def warm(self):
        for kind in self.kinds:
            self.peer(kind)  # imports, shared memory
        return True

    def turn(self, party):
        if self.bench.blocks:
            self.bench.disk_turn(party)
        for kind in self.kinds:
            self.peer(kind)

    def close(self):
        self.bench.record("peers rss_peak", max(a["rss_peak"] for a in self.group.tell("usage")))
        self.group.close()


class Bench:
    def __init__(self, options):
        self.options = options
        self.place = Place(options.dir)
        self.disk = Disk(self.place, options.build, options.bytes)
        self.samples = {}
        self.party = None  # whose block it is
        self.blocks = self.warming = False
        self.measured = []
        self.state_bytes = options.bytes

    def record(self, name, value):
        if self.warming and " first " not in name:
            return
        self.samples.setdefault(name, []).append(value)
        if self.blocks and self.party and name.startswith(("raw ", "fio ", "memcpy ")):
            self.samples.setdefault(f"{name} beside {self.party}", []).append(value)

    def disk_turn(self, party):
        for kind, value in self.disk.raw().items():
            self.record(f"raw {kind} s", value)
        if party == 0:
            for kind, value in self.disk.fio().items():
                self.record(f"fio {kind} s", value)

    def parties(self):
        """Makers, so that each can be made when there is room for it."""
        makers = [(f"cairn {transport}", lambda transport=transport: Cairn(self, transport))
                  for transport in self.options.transports]
        return makers + ([("peers", lambda: Peers(self))] if self.options.python else [])

    def warmed(self, made):
        """Those that work, after a turn of which only the first save, which makes the arena, counts."""
        self.warming = True
        made = [party for party in made if self.options.smoke and isinstance(party, Peers) or party.warm()]
        self.warming = False
        self.measured += [party.name for party in made]
        return made

    def rounds(self, parties):
        for turn in range(self.options.repeat):
            begin = time.monotonic()
            for idx, party in enumerate(parties):
                party.turn(idx)
            say(f"round {turn + 1} of {self.options.repeat}" + (f" of {self.party}" if self.party else "")
                + f": {time.monotonic() - begin:.0f} s")

    def run(self):
        makers = self.parties()
        # State and arena of each transport; state, shared memory and what is loaded of the peers.
        self.blocks = self.options.blocks or len(makers) > 1 and 2.1 * len(makers) * self.options.bytes > 0.8 * memory_bytes("MemAvailable")
        if not self.blocks:
            made = [make() for _, make in makers]
            working = self.warmed(made)
            self.rounds(working)
            for party in made:
                party.close()
        for idx, (name, make) in enumerate(makers if self.blocks else []):
            self.party = name
            made = make()
            working = self.warmed([made])
            for turn in range(self.options.repeat if working else 0):
                begin = time.monotonic()
                made.turn(idx)
                say(f"{name}: round {turn + 1} of {self.options.repeat}: {time.monotonic() - begin:.0f} s")
            made.close()
        self.place.close()


def summary(bench):
    """Medians, rates, and the ratios that the aims speak of."""
    medians = {name: median(values) for name, values in bench.samples.items()}
    rates = {name: bench.state_bytes / value / 1e9 for name, value in medians.items()
             if name.endswith((" s", "durable_s", "restore_s", "load_s")) and value > 0}
    ratios = {}

    def ratio(name, over, under):
        if over is not None and under:
            ratios[name] = over / under

    def beside(values, name, party):
        return values.get(f"{name} beside {party}", values.get(name))

    def best(kind, party):
        known = [beside(rates, f"{who} {kind} s", party) for who in ("raw", "fio")]
        return max([rate for rate in known if rate], default=None)

    for name in [party for party in bench.measured if party != "peers"]:
        durable, blocked = rates.get(f"{name} save durable_s"), medians.get(f"{name} save blocked_s")
        copied = beside(medians, "memcpy s", name)
        ratio(f"{name} save / disk", durable, best("write", name))
        for peer in ("safetensors", "torch.save", "dcp.save"):
            ratio(f"{name} save / {peer}", durable, rates.get(f"{peer} save durable_s"))
        ratio(f"{name} save / cairn tcp save", durable, rates.get("cairn tcp save durable_s"))
        ratio(f"{name} blocked / memcpy", blocked, copied)
        ratio(f"{name} lazy blocked / memcpy", medians.get(f"{name} lazy save blocked_s"), copied)
        ratio(f"{name} restore / disk", rates.get(f"{name} restore_s"), best("read", name))
        for peer, load in (("dcp.load", "dcp.save"), ("torch.load", "torch.save"), ("safetensors load", "safetensors")):
            ratio(f"{name} restore / {peer}", rates.get(f"{name} restore_s"), rates.get(f"{load} load_s"))
        ratio(f"{name} blocked / dcp.async_save blocked", blocked, medians.get("dcp.async_save save blocked_s"))
    for peer in PEERS:
        ratio(f"{peer} / disk", rates.get(f"{peer} save durable_s"), best("write", "peers"))
    ratio("dcp.async_save blocked / memcpy", medians.get("dcp.async_save save blocked_s"), medians.get("memcpy s"))
    return {"medians": medians, "gb_per_s": rates, "ratios": ratios}


def print_result(result):
    medians = result["medians"]
    table("Ratios (medians, one run)", "", result["ratios"])
    table("Rates", "GB/s", result["gb_per_s"])
    table("Blocked", "s", {n: v for n, v in medians.items() if n.endswith("blocked_s")})
    table("CPU per GiB", "s", {n: v for n, v in medians.items() if "cpu_s" in n})
    table("Peak memory", "MiB", {n: v / MIB for n, v in medians.items() if "rss_" in n})


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common_options(parser)
    parser.add_argument("--bytes", type=int, default=2 * GIB, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--transports", default="unix,memfd,tcp,tls", help="some of " + ", ".join(TRANSPORTS))
    parser.add_argument("--blocks", action="store_true", help="one party after the other; default: where memory is short")
    parser.add_argument("--encoding", default="raw", help="CAIRN_ENCODING: raw, auto, dense")
    parser.add_argument("--modes", default="copy,lazy", help="of the snapshot; copy is always measured")
    parser.add_argument("--python", help="an interpreter with torch and safetensors: adds the peers")
    options = finish_options(parser.parse_args())
    options.transports, options.modes = options.transports.split(","), options.modes.split(",")
    unknown = [word for word in options.transports if word not in TRANSPORTS]
    if unknown:
        parser.error(f"--transports: {', '.join(unknown)}; there are {', '.join(TRANSPORTS)}")
    if options.smoke:
        options.bytes = 64 * MIB
    return options


def main():
    options = parse_options()
    bench = Bench(options)
    bench.run()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": bench.state_bytes,
              "ranks": options.ranks, "repeat": options.repeat, "blocks": bench.blocks, **summary(bench)}
    print(f"{result['date']}, {json.dumps(result['machine'])}, {bench.state_bytes / GIB:.2f} GiB on "
          f"{options.ranks} ranks, medians of {options.repeat}" + (", one party after the other" if bench.blocks else ""))
    print_result(result)
    write_json(options.json, {**result, "samples": bench.samples})


if __name__ == "__main__":
    main()
