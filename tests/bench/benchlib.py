# SPDX-License-Identifier: Apache-2.0
"""What the benchmarks share: a place on the disk, processes that take turns, the daemon, the disk's rate.

Nothing here judges a number: a benchmark ends badly only when a program breaks. Every wait is bounded, and only
processes that were started here are ended, by their handle.
"""

import atexit
import json
import os
import secrets
import selectors
import shutil
import signal
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
TRANSPORTS = ("unix", "memfd", "tcp", "tls")


def say(text):
    print(f"bench: {text}", file=sys.stderr, flush=True)


class Place:
    """A directory on the disk that is measured, and the processes that work there."""

    def __init__(self, parent):
        parent.mkdir(parents=True, exist_ok=True)
        self.path = Path(tempfile.mkdtemp(prefix="bench-", dir=parent))
        self.sockets = Path(tempfile.mkdtemp(prefix="cairn-"))
        self.processes = []
        self.made_pki = None
        atexit.register(self.close)
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that close() runs then, too

    def start(self, argv, **keywords):
        process = subprocess.Popen([str(word) for word in argv], **keywords)
        self.processes.append(process)
        return process

    def pki(self):
        if not self.made_pki:
            self.made_pki = self.path / "pki"
            subprocess.run([SOURCE / "tools/make-test-pki", self.made_pki], check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        return self.made_pki

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


def bytes_below(path):
    """What the files below path hold, in bytes of content."""
    return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())


class Proc:
    """What /proc says about one process."""

    def __init__(self, pid):
        self.path = Path(f"/proc/{pid}")

    def cpu_s(self):
        fields = (self.path / "stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) * TICK_S

    def status_bytes(self, key):
        for line in (self.path / "status").read_text().splitlines():
            if line.startswith(key + ":"):
                return int(line.split()[1]) * 1024
        return 0

    def sample(self):
        return {"rss": self.status_bytes("VmRSS"), "fds": len(list((self.path / "fd").iterdir())),
                "threads": len(list((self.path / "task").iterdir()))}

    def holds_arena(self):
        """Whether a descriptor or a mapping of it is an arena of a client."""
        for fd in (self.path / "fd").iterdir():
            try:
                if "memfd:cairn-arena" in os.readlink(fd):
                    return True
            except FileNotFoundError:
                pass  # closed meanwhile
        return "memfd:cairn-arena" in (self.path / "maps").read_text()


class Group:
    """Processes of one kind, one a rank, that answer each line with a line of JSON."""

    def __init__(self, place, name, argvs, env=None):
        self.name = name
        self.logs = [open(place.path / f"{name.replace(' ', '-')}-{i}.log", "wb") for i in range(len(argvs))]
        self.ranks = [
            place.start(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, bufsize=1,
                        env={**os.environ, **(env[i] if env else {})})
            for i, (argv, log) in enumerate(zip(argvs, self.logs))]
        self.ready = self.answers("start")

    def line(self, rank, end):
        """One line; the answers are short, so that a readable pipe holds all of one."""
        with selectors.DefaultSelector() as selector:
            selector.register(rank.stdout, selectors.EVENT_READ)
            if not selector.select(max(0, end - time.monotonic())):
                return json.dumps({"error": f"no answer within {PATIENCE_S} s"})
        return rank.stdout.readline() or json.dumps({"error": f"ended with {rank.wait(PATIENCE_S)}"})

    def answers(self, what):
        end = time.monotonic() + PATIENCE_S
        answers = [json.loads(self.line(rank, end)) for rank in self.ranks]
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

    def samples(self):
        return [Proc(rank.pid).sample() for rank in self.ranks]

    def close(self):
        for rank in self.ranks:
            rank.stdin.close()
        for rank in self.ranks:
            rank.wait(PATIENCE_S)
            rank.stdout.close()
        for log in self.logs:
            log.close()


def create_store(build, url):
    subprocess.run([str(build / "bin/cairn"), "store", "create", url], check=True, stdout=subprocess.DEVNULL)


class Daemon:
    """cairnd with a store of its own; over which transport a client comes is said by its URL and environment."""

    def __init__(self, place, build, name, pki=None, more=()):
        self.store = place.path / name
        self.socket = place.sockets / name
        self.pki = pki
        log_path = place.path / f"{name}.log"
        if not self.store.exists():
            create_store(build, f"dir:{self.store}")
        argv = [build / "bin/cairnd", "--store-url", f"dir:{self.store}", "--listen-unix", self.socket, *more]
        argv += ["--listen-tcp", "127.0.0.1:0"]
        if not pki:
            argv += ["--listen-plain-tcp", "loopback"]
        if pki:
            argv += ["--tls-cert", pki / "server.crt", "--tls-key", pki / "server.key",
                     "--tls-ca", pki / "ca.crt"]
        with open(log_path, "wb") as log:
            self.process = place.start(argv, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        self.proc = Proc(self.process.pid)
        end = time.monotonic() + 60
        while "ready" not in log_path.read_text():
            if self.process.poll() is not None or time.monotonic() > end:
                raise SystemExit("bench: cairnd did not start:\n" + log_path.read_text())
            time.sleep(0.02)
        self.port = next(word.rsplit(":", 1)[1].rstrip('"') for word in log_path.read_text().split()
                         if "tcp:127.0.0.1:" in word)

    def not_taken(self, transport):
        """Why the bytes of a client, still connected, did not go the way that it asked for; "" when they did."""
        if transport == "memfd" and not self.proc.holds_arena():
            return "the daemon holds no arena of a client: the memfd was not handed over"
        if transport != "memfd" and self.proc.holds_arena():
            return "the daemon holds a client's arena, although the socket was asked for"
        return ""

    def url(self, transport, run):
        if transport in ("unix", "memfd"):
            return f"cairn+unix://{self.socket}?run={run}"
        return f"cairn://localhost:{self.port}/{run}"

    def env(self, transport):
        """What a client needs in its environment."""
        env = {"CAIRN_TRANSPORT": "memfd" if transport == "memfd" else "socket"}
        if self.pki:
            env.update(BENCH_CA=str(self.pki / "ca.crt"), BENCH_CERT=str(self.pki / "client.crt"),
                       BENCH_KEY=str(self.pki / "client.key"))
        return env

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
            say("cairnd did not stop within 10 s of SIGTERM")
            self.process.kill()
            self.process.wait()

    def end(self):
        self.stop()
        shutil.rmtree(self.store)


def cairn_group(place, build, daemon, transport, **job):
    """cairn_bench on job["ranks"] ranks of an attempt of their own; job: ranks, bytes, run, name, encoding."""
    attempt = secrets.token_hex(16)
    url = daemon.url(transport, job["run"])
    env = {**daemon.env(transport), **({"CAIRN_ENCODING": job["encoding"]} if "encoding" in job else {})}
    argvs = [[build / "bin/cairn_bench", url, attempt, rank, job["ranks"], job["bytes"]]
             for rank in range(job["ranks"])]
    return Group(place, job["name"], argvs, [env] * job["ranks"])


class Disk:
    """What the disk can do with so many bytes; the faster of the two programs is what others are held against."""

    def __init__(self, place, build, size):
        self.place, self.size = place, size
        self.program = build / "bin/raw_disk"
        self.has_fio = shutil.which("fio") is not None
        if not self.has_fio:
            say("fio is not installed: the disk's rate is raw_disk's alone")

    def raw(self, kinds=("write", "read")):
        """{kind: seconds}"""
        file = self.place.path / "raw"
        seconds = {}
        for kind in ("write", "read"):
            if kind == "write" or kind in kinds:
                out = subprocess.run([self.program, kind, file, str(self.size), "4"], check=True,
                                     stdout=subprocess.PIPE, text=True).stdout
                seconds[kind] = json.loads(out)["seconds"]
        file.unlink()
        return seconds

    def fio(self):
        """{kind: seconds}; empty where fio does not work."""
        file = self.place.path / "fio"
        seconds = {}
        for kind in ("write", "read") if self.has_fio else ():
            out = subprocess.run(
                ["fio", "--name=j", f"--rw={kind}", "--bs=4M", f"--size={self.size}",
                 "--direct=1", "--ioengine=io_uring", "--iodepth=8", f"--filename={file}",
                 "--fallocate=posix", "--end_fsync=1", "--output-format=json"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
            if out.returncode != 0:  # a kernel without io_uring, for instance
                self.has_fio = False
                say("fio failed, going on without: " + out.stderr.strip())
                break
            job = json.loads(out.stdout[out.stdout.index("{"):])["jobs"][0]
            seconds[kind] = self.size / job[kind]["bw_bytes"]
        file.unlink(missing_ok=True)
        return seconds


def machine():
    model = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
             if line.startswith("model name")]
    return {"cores": len(os.sched_getaffinity(0)), "cpu": model[0] if model else "?",
            "kernel": os.uname().release, "memory_gib": round(memory_bytes() / GIB, 1),
            "shmem_huge_pages": shmem_pages(), "load_1min": os.getloadavg()[0]}


def memory_bytes(key="MemTotal"):
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    return 0


def shmem_pages():
    try:
        text = Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled").read_text()
        return text.split("[", 1)[1].split("]", 1)[0]
    except (OSError, IndexError):
        return "?"


def median(values):
    return statistics.median(values) if values else None


def table(title, unit, rows):
    print(f"\n{title}")
    for name, value in rows.items():
        print(f"  {name:<60} {value:10.3f} {unit}")


def write_json(path, what):
    """Whole or not at all: a later run takes what is there for done."""
    if path:
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(path.name + ".part")
        part.write_text(json.dumps(what, indent=1) + "\n")
        part.replace(path)


def common_options(parser, repeat=5):
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release",
                        help="the build to measure (use the release preset)")
    parser.add_argument("--dir", type=Path, help="where to write; default: BUILD/bench")
    parser.add_argument("--repeat", type=int, default=repeat, help=f"rounds; default: {repeat}")
    parser.add_argument("--json", type=Path, help="writes samples and results there")
    parser.add_argument("--smoke", action="store_true", help="very small, once: does it all work?")


def finish_options(options):
    options.build = options.build.resolve()
    options.dir = (options.dir or options.build / "bench").resolve()
    if not (options.build / "bin/cairn_bench").exists():
        raise SystemExit(f"bench: {options.build}/bin/cairn_bench is missing: build the release preset, or say --build")
    if options.smoke:
        options.repeat = 1
    return options


def python_env(build):
    """The environment in which what install_package() has put there is found."""
    site = str(build / "bench-python")
    old = os.environ.get("PYTHONPATH")
    return {"PYTHONPATH": site + (os.pathsep + old if old else ""), "PYTHONDONTWRITEBYTECODE": "1"}


def install_package(python, build):
    """Puts the package `cairn` of these sources into BUILD/bench-python, and safetensors where it can be had. Made anew
    each time, which takes seconds when nothing has changed: a stale package would measure something else."""
    site = build / "bench-python"
    say(f"installing the Python package into {site}")
    pip = [python, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target", site]
    done = subprocess.run([*pip, "--no-build-isolation", "--config-settings", f"build-dir={build / 'bench-python-build'}",
                           SOURCE], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode != 0:
        raise SystemExit(f"bench: the package did not build (it needs scikit-build-core in {python}):\n"
                         + done.stdout[-3000:])
    has = subprocess.run([python, "-c", "import safetensors"], env={**os.environ, **python_env(build)}, stderr=subprocess.PIPE)
    if has.returncode != 0 and subprocess.run([*pip, "safetensors"], stdout=subprocess.PIPE,
                                              stderr=subprocess.STDOUT).returncode != 0:
        say("safetensors cannot be installed: its rows will be missing")
