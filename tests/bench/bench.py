#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures Cairn beside the disk, memcpy and PyTorch's own checkpointing, all in one run.

Every repetition lets everybody take a turn, so that a machine which slows down slows all of them
down; what is compared are medians. Prints a table (ratios first of all) and writes JSON. No figure
makes it fail: only a program that breaks does. What each figure means is in README.md.
"""

import argparse
import atexit
import json
import os
import secrets
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCE = HERE.parents[1]
GIB = 1 << 30
MIB = 1 << 20
PATIENCE_S = 600
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Place:
    """A directory on the disk that is measured, and the processes that work there."""

    def __init__(self, parent):
        parent.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self.sockets = Path(tempfile.mkdtemp(prefix="cairn-"))
        self.processes = []
        atexit.register(self.close)

    def start(self, argv, **keywords):
        process = subprocess.Popen([str(word) for word in argv], **keywords)
        self.processes.append(process)
        return process

    def close(self):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()
        self.processes = []
        shutil.rmtree(self.path, ignore_errors=True)
        shutil.rmtree(self.sockets, ignore_errors=True)


def evict(path):
    """Takes the files below path out of the page cache: what is read next comes from the disk."""
    for file in [path] if path.is_file() else path.rglob("*"):
        if file.is_file():
            fd = os.open(file, os.O_RDONLY)
            try:
                os.fsync(fd)  # dirty pages stay otherwise
                os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(fd)


class Group:
    """Processes of one kind, one a rank, that answer each line with a line of JSON."""

    def __init__(self, place, name, argvs, env=None):
        self.name = name
        self.logs = [open(place.path / f"{name}-{i}.log", "wb") for i in range(len(argvs))]
        self.ranks = [
            place.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
                        env={**os.environ, **(env[i] if env else {})})
            for i, (argv, log) in enumerate(zip(argvs, self.logs))]
        self.ready = self.answers("start")

    def answers(self, what):
        answers = []
        for rank in self.ranks:
            line = rank.stdout.readline()
            answer = json.loads(line) if line else {"error": f"ended with {rank.wait()}"}
            answers.append(answer)
        bad = [a["error"] for a in answers if "error" in a]
        if bad:
            for log in self.logs:
                log.flush()
                sys.stderr.write(Path(log.name).read_text(errors="replace")[-2000:])
            raise SystemExit(f"bench: {self.name}: {what}: {'; '.join(bad)}")
        return answers

    def tell(self, line):
        for rank in self.ranks:
            rank.stdin.write(line + "\n")
            rank.stdin.flush()
        return self.answers(line)

    def slowest(self, line):
        answers = self.tell(line)
        return {key: max(a[key] for a in answers) for key in answers[0]}

    def usage(self):
        answers = self.tell("usage")
        return (sum(a["cpu_s"] for a in answers), max(a["rss_peak"] for a in answers))

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(PATIENCE_S)
        for log in self.logs:
            log.close()


class Daemon:
    def __init__(self, place, build, name, pki=None):
        self.store = place.path / name
        socket = place.sockets / name
        log_path = place.path / f"{name}.log"
        argv = [build / "bin/cairnd", "--store-url", f"dir:{self.store}", "--store-create", "yes",
                "--listen-unix", socket, "--listen-tcp", "127.0.0.1:0"]
        if pki:
            argv += ["--tls-cert", pki / "server.crt", "--tls-key", pki / "server.key",
                     "--tls-ca", pki / "ca.crt"]
        with open(log_path, "wb") as log:
            self.process = place.start(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        end = time.monotonic() + 60
        while "ready" not in log_path.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit("bench: cairnd did not start:\n" + log_path.read_text())
            time.sleep(0.02)
        self.socket = socket
        self.port = next(word.rsplit(":", 1)[1].rstrip('"') for word in log_path.read_text().split()
                         if "tcp:127.0.0.1:" in word)

    def cpu_s(self):
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def rss_peak(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return 0

    def prune(self, keep):
        """Room for the next repetition; nobody reads an old step any more."""
        for folder in self.store.glob("runs/*/*/objects/*"):
            if int(folder.name.split("-")[1]) < keep:
                shutil.rmtree(folder)

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            print("bench: cairnd did not stop within 10 s of SIGTERM", file=sys.stderr)
            self.process.kill()
            self.process.wait()


class Cairn:
    """Ranks over one transport, with a daemon of their own."""

    def __init__(self, bench, transport):
        pki = bench.pki() if transport == "tls" else None
        self.transport = transport
        self.bench = bench
        self.daemon = Daemon(bench.place, bench.options.build, f"store-{transport}", pki)
        run = f"bench/{transport}"
        url = (f"cairn+unix://{self.daemon.socket}?run={run}" if transport == "unix"
               else f"cairn://localhost:{self.daemon.port}/{run}")
        env = {"BENCH_CA": str(pki / "ca.crt"), "BENCH_CERT": str(pki / "client.crt"),
               "BENCH_KEY": str(pki / "client.key")} if pki else {}
        attempt = secrets.token_hex(16)
        ranks = bench.options.ranks
        argvs = [[bench.options.build / "bin/cairn_bench", url, attempt, rank, ranks,
                  bench.options.bytes] for rank in range(ranks)]
        self.group = Group(bench.place, f"cairn-{transport}", argvs, [env] * ranks)
        self.bytes = sum(a["bytes"] for a in self.group.ready)
        self.step = 0

    def save(self):
        self.step += 1
        self.group.tell(f"change {self.step}")
        client_s, daemon_s = self.group.usage()[0], self.daemon.cpu_s()
        times = self.group.slowest(f"save {self.step}")
        record = self.bench.record
        name = f"cairn {self.transport}"
        first = " first" if self.step == 1 else ""  # the arena is made and prefaulted
        record(f"{name}{first} save blocked_s", times["blocked_s"])
        record(f"{name}{first} save durable_s", times["durable_s"])
        if not first:
            gib = self.bytes / GIB
            record(f"{name} save cpu_s_per_gib client", (self.group.usage()[0] - client_s) / gib)
            record(f"{name} save cpu_s_per_gib daemon", (self.daemon.cpu_s() - daemon_s) / gib)
        self.daemon.prune(self.step)

    def memcpy(self):
        self.bench.record("memcpy s", self.group.slowest("memcpy")["memcpy_s"])

    def restore(self):
        evict(self.daemon.store)
        client_s, daemon_s = self.group.usage()[0], self.daemon.cpu_s()
        times = self.group.slowest("restore")
        name, gib = f"cairn {self.transport}", self.bytes / GIB
        self.bench.record(f"{name} restore_s", times["restore_s"])
        self.bench.record(f"{name} restore cpu_s_per_gib daemon",
                          (self.daemon.cpu_s() - daemon_s) / gib)
        # The client's includes the comparison of the contents, which is not part of the restore.
        self.bench.record(f"{name} restore cpu_s_per_gib client and check",
                          (self.group.usage()[0] - client_s) / gib)

    def close(self):
        self.bench.record(f"cairn {self.transport} rss_peak client", self.group.usage()[1])
        self.group.close()
        self.bench.record(f"cairn {self.transport} rss_peak daemon", self.daemon.rss_peak())
        self.daemon.stop()
        shutil.rmtree(self.daemon.store)


class Peers:
    """torch.save, safetensors and DCP on as many processes with the same tensors."""

    def __init__(self, bench):
        options = bench.options
        self.bench = bench
        self.folder = bench.place.path / "peers"
        self.folder.mkdir()
        argvs = [[options.python, HERE / "peers.py", self.folder, options.bytes]
                 for _ in range(options.ranks)]
        envs = [{"RANK": str(rank), "WORLD_SIZE": str(options.ranks),
                 "PEERS_RENDEZVOUS": str(bench.place.path / "rendezvous")}
                for rank in range(options.ranks)]
        self.group = Group(bench.place, "peers", argvs, envs)
        self.kinds = self.group.ready[0]["kinds"]
        self.bytes = sum(a["bytes"] for a in self.group.ready)

    def turn(self, kind):
        cpu_s = self.group.usage()[0]
        times = self.group.slowest(f"save {kind}")
        self.bench.record(f"{kind} save cpu_s_per_gib",
                          (self.group.usage()[0] - cpu_s) / (self.bytes / GIB))
        for key, value in times.items():
            self.bench.record(f"{kind} save {key}", value)
        evict(self.folder)
        if kind != "dcp.async_save":
            self.bench.record(f"{kind} load_s", self.group.slowest(f"load {kind}")["load_s"])
        self.group.tell("clear")

    def close(self):
        self.bench.record("peers rss_peak", self.group.usage()[1])
        self.group.close()


class Bench:
    def __init__(self, options):
        self.options = options
        self.place = Place(options.dir or options.build / "bench")
        self.samples = {}
        self.has_fio = shutil.which("fio") is not None
        self.made_pki = None

    def record(self, name, value):
        self.samples.setdefault(name, []).append(value)

    def pki(self):
        if not self.made_pki:
            self.made_pki = self.place.path / "pki"
            subprocess.run([SOURCE / "tools/make-test-pki", self.made_pki], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return self.made_pki

    def raw(self):
        file = self.place.path / "raw"
        program = self.options.build / "bin/raw_disk"
        for kind in ("write", "read"):
            out = subprocess.run([program, kind, file, str(self.options.bytes), "4"], check=True,
                                 stdout=subprocess.PIPE, text=True).stdout
            self.record(f"raw {kind} s", json.loads(out)["seconds"])
        file.unlink()

    def fio(self):
        file = self.place.path / "fio"
        for kind in ("write", "read"):
            out = subprocess.run(
                ["fio", "--name=j", f"--rw={kind}", "--bs=4M", f"--size={self.options.bytes}",
                 "--direct=1", "--ioengine=io_uring", "--iodepth=8", f"--filename={file}",
                 "--fallocate=posix", "--end_fsync=1", "--output-format=json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if out.returncode != 0:  # a kernel without io_uring, for instance
                self.has_fio = False
                print("bench: fio failed, going on without:", out.stderr.strip(), file=sys.stderr)
                return
            job = json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]
            self.record(f"fio {kind} s", self.options.bytes / job[kind]["bw_bytes"])
        file.unlink()

    def run(self):
        cairns = [Cairn(self, transport) for transport in self.options.transports]
        peers = Peers(self) if self.options.python else None
        if not self.options.smoke:
            for cairn in cairns:
                cairn.save()  # the first one makes the arena
            for kind in peers.kinds if peers else []:
                peers.turn(kind)  # imports, shared memory
            self.samples = {name: values for name, values in self.samples.items()
                            if " first save" in name}
        for turn in range(self.options.repeat):
            print(f"bench: round {turn + 1} of {self.options.repeat}", file=sys.stderr)
            for cairn in cairns:
                self.raw()
                if self.has_fio and cairn is cairns[0]:
                    self.fio()
                cairn.save()
                if cairn is cairns[0]:
                    cairn.memcpy()
                cairn.restore()
            for kind in peers.kinds if peers else []:
                peers.turn(kind)
        for party in cairns + ([peers] if peers else []):
            party.close()
        self.place.close()
        return cairns[0].bytes


def summary(bench, state_bytes):
    """Medians, rates, and the ratios that the aims speak of."""
    medians = {name: statistics.median(values) for name, values in bench.samples.items()}
    rates = {name: state_bytes / value / 1e9 for name, value in medians.items()
             if name.endswith((" s", "durable_s", "restore_s", "load_s")) and value > 0}
    ratios = {}

    def ratio(name, over, under):
        if over is not None and under:
            ratios[name] = over / under

    def best(kind):
        known = [rates[name] for name in (f"raw {kind} s", f"fio {kind} s") if name in rates]
        return max(known) if known else None

    for transport in bench.options.transports:
        name = f"cairn {transport}"
        durable = rates.get(f"{name} save durable_s")
        ratio(f"{name} save / disk", durable, best("write"))
        ratio(f"{name} save / safetensors", durable, rates.get("safetensors save durable_s"))
        ratio(f"{name} save / cairn tcp save", durable, rates.get("cairn tcp save durable_s"))
        ratio(f"{name} blocked / memcpy", medians.get(f"{name} save blocked_s"),
              medians.get("memcpy s"))
        ratio(f"{name} restore / disk", rates.get(f"{name} restore_s"), best("read"))
        ratio(f"{name} restore / dcp.load", rates.get(f"{name} restore_s"),
              rates.get("dcp.save load_s"))
        ratio(f"{name} blocked / dcp.async_save blocked", medians.get(f"{name} save blocked_s"),
              medians.get("dcp.async_save save blocked_s"))
    return {"medians": medians, "gb_per_s": rates, "ratios": ratios}


def machine():
    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"cores": len(os.sched_getaffinity(0)), "cpu": model[0] if model else "?",
            "kernel": os.uname().release, "load_1min": os.getloadavg()[0]}


def print_table(title, unit, rows):
    print(f"\n{title}")
    for name, value in rows.items():
        print(f"  {name:<52} {value:10.3f} {unit}")


def print_result(result):
    print_table("Ratios (medians, one run)", "", result["ratios"])
    print_table("Rates", "GB/s", result["gb_per_s"])
    medians = result["medians"]
    print_table("Blocked", "s", {n: v for n, v in medians.items() if n.endswith("blocked_s")})
    print_table("CPU per GiB", "s", {n: v for n, v in medians.items() if "cpu_s" in n})
    print_table("Peak memory", "MiB",
                {n: v / MIB for n, v in medians.items() if "rss_peak" in n})


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release",
                        help="the build to measure (use the release preset)")
    parser.add_argument("--dir", type=Path, help="where to write; default: BUILD/bench")
    parser.add_argument("--bytes", type=int, default=2 * GIB, help="of all ranks together")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--transports", default="unix,tcp,tls")
    parser.add_argument("--python", help="an interpreter with torch and safetensors: adds the peers")
    parser.add_argument("--json", type=Path, help="writes samples and results there")
    parser.add_argument("--smoke", action="store_true", help="64 MiB once: does it all work?")
    options = parser.parse_args()
    options.transports = options.transports.split(",")
    options.build = options.build.resolve()
    if options.smoke:
        options.bytes, options.repeat = 64 * MIB, 1
    return options


def main():
    options = parse_options()
    bench = Bench(options)
    state_bytes = bench.run()
    result = {"date": time.strftime("%Y-%m-%d"), "machine": machine(), "state_bytes": state_bytes,
              "ranks": options.ranks, "repeat": options.repeat, **summary(bench, state_bytes)}
    print(f"{result['date']}, {result['machine']}, {state_bytes / GIB:.2f} GiB on "
          f"{options.ranks} ranks, medians of {options.repeat}")
    print_result(result)
    if options.json:
        options.json.write_text(json.dumps({**result, "samples": bench.samples}, indent=1) + "\n")


if __name__ == "__main__":
    main()
