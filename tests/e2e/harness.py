# SPDX-License-Identifier: Apache-2.0
"""What the end-to-end tests share: a place on disk, the daemon, ranks, the command line.

Every test has a directory of its own under the build directory (a real disk, not tmpfs), a Unix socket
in it and a TCP port that the system chose. Every wait is bounded, and a test ends only processes that
it started, by their handle. The random seed is printed and can be given: CAIRN_SEED.
"""

import atexit
import json
import os
import random
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from frames import Relay

SOURCE = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CAIRN_BUILD", SOURCE / "build" / "asan"))
BIN = BUILD / "bin"
JSON_PAGE = SOURCE / "docs" / "command-line.md"
PATIENCE_S = 120.0  # for whatever should take a moment; sanitizers and a slow, busy machine included
WAIT_MS = 60000  # for a save or a restore that must succeed
SEED = int(os.environ.get("CAIRN_SEED", secrets.randbelow(2**32)))
FULL = os.environ.get("CAIRN_FULL") == "1"


def rng():
    print(f"seed {SEED} (CAIRN_SEED={SEED} repeats it)", flush=True)
    return random.Random(SEED)


class Failure(AssertionError):
    """What a program said, when it should have said something else."""


def wait_until(what, condition, timeout_s=PATIENCE_S):
    """What the condition gives in the end. A condition that runs a program leaves the processor to others for twice as long as it
    took itself: these tests spent half of their time on such questions."""
    end = time.monotonic() + timeout_s
    while True:
        asked = time.monotonic()
        value = condition()
        if value:
            return value
        now = time.monotonic()
        if now > end:
            raise Failure(f"not within {timeout_s} s: {what}")
        time.sleep(min(max(0.01, 2 * (now - asked)), 0.5))


class Bed:
    """A directory and the processes that live in it; everything ends with it."""

    def __init__(self, name):
        parent = BUILD / "e2e"
        parent.mkdir(parents=True, exist_ok=True)
        # Socket paths are short by nature (108 bytes), build directories are not.
        self.path = Path(tempfile.mkdtemp(prefix=name[:24] + "-", dir=parent))
        self.sockets = Path(tempfile.mkdtemp(prefix="cairn-"))
        self.processes = []
        self.kept = False
        atexit.register(self.close)

    def start(self, argv, **keywords):
        process = subprocess.Popen([str(word) for word in argv], **keywords)
        self.processes.append(process)
        return process

    def sanitizer_reports(self):
        """The lines in which a sanitizer, or Cairn itself, says that a program is broken."""
        bad = re.compile(r".*(ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|broken check).*")
        return [match.group(0) for log in sorted(self.path.glob("*.log"))
                for match in bad.finditer(log.read_text(errors="replace"))]

    def close(self, keep=False):
        self.kept = self.kept or keep
        for process in self.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
            for pipe in (process.stdin, process.stdout, process.stderr):
                if pipe:
                    try:
                        pipe.close()
                    except BrokenPipeError:
                        pass
        self.processes = []
        shutil.rmtree(self.sockets, ignore_errors=True)
        if not self.kept:
            shutil.rmtree(self.path, ignore_errors=True)


class Daemon:
    """cairnd on bed/store; keys are configuration flags with underscores: listen_tcp="...", which allows TCP without TLS
    on loopback too. The store is made by `cairn store create` where there is none, unless creates is False."""

    def __init__(self, bed, name="store", path=None, creates=True, **keys):
        self.bed = bed
        self.creates = creates
        self.store = Path(path) if path else bed.path / name
        self.socket = bed.sockets / name
        self.log_path = bed.path / f"{name}.log"
        self.keys = {"store_url": f"dir:{self.store}", "listen_unix": self.socket, "save_chunk": "4KiB",
                     "gc_pressure": "0",  # tests of what waits do not hang on how full this disk is
                     "log_level": "debug"}
        self.keys.update(keys)
        self.process = None
        self.starts = 0
        self.env = {}  # more variables of the environment, from the next start on

    def argv(self, **more):
        words = [BIN / "cairnd"]
        keys = {**self.keys, **more}
        if "listen_tcp" in keys and "tls_cert" not in keys:
            keys.setdefault("listen_plain_tcp", "loopback")
        for key, value in keys.items():
            if value is not None:
                words += ["--" + key.replace("_", "-"), value]
        return words

    def has_store(self):
        """Whether there is anything where the store should be; of a cluster: whether this daemon was started before."""
        url = str(self.keys["store_url"])
        if not url.startswith("dir:"):
            return self.starts > 0
        path = Path(url[len("dir:"):])
        return path.is_dir() and any(entry.name != "lost+found" for entry in path.iterdir())

    def create_store(self, log):
        """What goes wrong is said in the log, and the daemon says it again."""
        words = [BIN / "cairn", "store", "create", self.keys["store_url"]]
        if self.keys.get("store_single_writer") == "yes":
            words.append("--single-writer")
        subprocess.run([str(word) for word in words], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=log,
                       check=False, timeout=PATIENCE_S * 2)

    def launch(self, failpoints=None, **more):
        """failpoints: of this start alone, as CAIRN_FAILPOINTS has them."""
        self.log_from = self.log_path.stat().st_size if self.log_path.exists() else 0
        with open(self.log_path, "ab") as log:
            if self.creates and not self.has_store():
                self.create_store(log)
            self.process = self.bed.start(self.argv(**more), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                          env={**os.environ, **self.env, **({"CAIRN_FAILPOINTS": failpoints} if failpoints else {})})
        self.starts += 1

    def start(self, **more):
        self.launch(**more)
        wait_until("the daemon is ready: " + self.tail(), self.is_ready)
        return self

    def is_ready(self):
        if self.process.poll() is not None:
            raise Failure(f"cairnd ended with {self.process.returncode}:\n{self.tail()}")
        text = self.log()
        return "daemon: ready" in text or '"msg":"ready"' in text

    def log(self):
        """Of the present start."""
        with open(self.log_path, "rb") as log:
            log.seek(self.log_from)
            return log.read().decode()

    def tail(self):
        return "\n".join(self.log_path.read_text().splitlines()[-15:]) if self.log_path.exists() else ""

    def port(self):
        return int(re.search(r"tcp:[^ \"]*:(\d+)", self.log()).group(1))

    def kill(self):
        self.process.kill()
        self.process.wait()

    def stop(self, timeout_s=PATIENCE_S):
        """SIGTERM; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout_s)

    def restart(self):
        self.kill()
        self.start()

    @property
    def online(self):
        """The words by which a command asks this server."""
        return ("--server", f"unix:{self.socket}")

    @property
    def offline(self):
        """The words by which a command reads the store itself."""
        return ("--store", f"dir:{self.store}")

    def url(self, run="demo/run"):
        return f"cairn+unix://{self.socket}?run={run}"

    def tcp_url(self, run="demo/run"):
        return f"cairn://127.0.0.1:{self.port()}/{run}"

    def files(self, pattern="**/*"):
        return sorted(path for path in self.store.glob(pattern) if path.is_file())

    def copied(self, run="demo/run"):
        """The second place of a run's record has all of it, which comes up to a second after the last update, or ten after a copy that
        took long."""
        newest = lambda pattern: self.files(f"{pattern}/{run}/record/*")[-1:]
        wait_until("the record is copied", lambda: [path.stem for path in newest("copy/runs")] >= [path.stem for path in newest("runs")])

    def strip(self, run="demo/run", path=None):
        """The snapshots of a run's record are taken away from both places: each of its updates is needed then, and damage of
        one is damage of the only copy. No daemon runs on it, or one that has read it."""
        for place in ("runs", "copy/runs"):
            for file in (Path(path) if path else self.store).glob(f"{place}/{run}/record/*.snapshot"):
                file.unlink()


class Rank:
    """e2e_rank, told what to do line by line."""

    def __init__(self, bed, env=None):
        with open(bed.path / "ranks.log", "ab") as log:
            self.process = bed.start([BIN / "e2e_rank"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=log, env={**os.environ, **(env or {})})
        os.set_blocking(self.process.stdout.fileno(), False)
        self.buffer = b""
        self.events = []

    def send(self, *words):
        self.process.stdin.write((" ".join(str(word) for word in words) + "\n").encode())
        self.process.stdin.flush()

    def poll(self):
        """Takes in what there is; the next whole line as JSON, or None; EOFError at the end."""
        if b"\n" not in self.buffer:
            data = self.process.stdout.read()
            if data == b"":
                raise EOFError
            self.buffer += data or b""
        if b"\n" not in self.buffer:
            return None
        line, self.buffer = self.buffer.split(b"\n", 1)
        return json.loads(line)

    def reply(self, timeout_s=PATIENCE_S):
        """The answer to the oldest command that has none; events on the way are kept."""
        end = time.monotonic() + timeout_s
        while True:
            try:
                said = self.poll()
            except EOFError:
                raise Failure(f"the rank ended: {self.process.wait(PATIENCE_S)}") from None
            if said and "event" in said:
                self.events.append(said)
            elif said:
                return said
            elif time.monotonic() > end:
                raise Failure(f"the rank did not answer within {timeout_s} s")
            else:
                select.select([self.process.stdout], [], [], 0.1)

    def drain(self):
        """Events and answers that are there now, also of a rank that is dead."""
        try:
            while (said := self.poll()) is not None:
                if "event" in said:
                    self.events.append(said)
                else:
                    return said
        except EOFError:
            pass
        return None

    def ask(self, *words, timeout_s=PATIENCE_S):
        self.send(*words)
        return self.reply(timeout_s)

    def do(self, *words, timeout_s=PATIENCE_S):
        answer = self.ask(*words, timeout_s=timeout_s)
        if not answer["ok"]:
            raise Failure(f"{' '.join(str(word) for word in words)}: {answer['error']}: {answer['text']}")
        return answer

    def refused(self, *words, timeout_s=PATIENCE_S):
        """(error, text) of a command that must fail."""
        answer = self.ask(*words, timeout_s=timeout_s)
        if answer["ok"]:
            raise Failure(f"{' '.join(str(word) for word in words)}: should have failed: {answer}")
        return answer["error"], answer["text"]

    def kill(self):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def end(self):
        self.process.stdin.close()
        return self.process.wait(PATIENCE_S)


def token():
    return secrets.token_hex(16)


class Group:
    """All ranks of one attempt, with a small state: a replicated, a sharded and a local tensor. url: of all, or a list
    with one for each."""

    def __init__(self, bed, url, world=2, attempt=None, rows=32, state="small", open_words=(), options=()):
        self.attempt = attempt or token()
        self.world = world
        self.ranks = [Rank(bed) for _ in range(world)]
        for number, rank in enumerate(self.ranks):
            if options:
                rank.do("option", *options)
            if state:
                add_state(rank, number, world, rows)
            rank.send("open", url if isinstance(url, str) else url[number], number, world, self.attempt, "rank",
                      *open_words)
        for rank in self.ranks:
            answer = rank.reply()
            if not answer["ok"]:
                raise Failure(f"open: {answer['error']}: {answer['text']}")
        if state:
            self.all("set")

    def __getitem__(self, number):
        return self.ranks[number]

    def all(self, *words, timeout_s=PATIENCE_S):
        answers = self.try_all(*words, timeout_s=timeout_s)
        for number, answer in enumerate(answers):
            if not answer["ok"]:
                raise Failure(f"rank {number}: {' '.join(str(w) for w in words)}: {answer}")
        return answers

    def try_all(self, *words, timeout_s=PATIENCE_S):
        for rank in self.ranks:
            rank.send(*words)
        return [rank.reply(timeout_s) for rank in self.ranks]

    def save(self, step, deadline_ms=WAIT_MS):
        """One save of all ranks, waited for: the term."""
        return self.finish(self.all("save", step, deadline_ms))[0]["term"]

    def advance(self, step):
        """The state as training has it at a step, in all ranks, and a save of it: the term."""
        self.all("fill", step)
        return self.save(step)

    def save_each(self, steps, fills=False):
        """fills: each save has a state of its own."""
        for step in steps:
            (self.advance if fills else self.save)(step)

    def stage(self, step, deadline_ms=WAIT_MS):
        """One save of all ranks, until it is handed over: they may die."""
        for rank, answer in zip(self.ranks, self.all("save", step, deadline_ms)):
            rank.do("handed", answer["op"], deadline_ms)

    def restore(self, *words):
        """The checkpoint that all ranks came to: (step, term, fell back)."""
        results = self.finish(self.all("restore", *(words or ("latest",))))
        found = {(result["step"], result["term"], result["fell_back"]) for result in results}
        if len(found) != 1:
            raise Failure(f"the ranks are at different checkpoints: {found}")
        return found.pop()

    def finish(self, answers, wait_ms=WAIT_MS):
        results = self.finish_any(answers, wait_ms)
        for number, result in enumerate(results):
            if not result["ok"]:
                raise Failure(f"rank {number}: {result['error']}: {result['text']}")
        return results

    def finish_any(self, answers, wait_ms=WAIT_MS):
        """How each rank's save or restore ended; a call that was refused has ended."""
        started = [(rank, answer) for rank, answer in zip(self.ranks, answers) if answer.get("ok", True)]
        for rank, answer in started:
            rank.send("wait", answer["op"], wait_ms)
        ended = {rank: rank.reply() for rank, _ in started}
        return [ended.get(rank, answer) for rank, answer in zip(self.ranks, answers)]

    def kill(self):
        for rank in self.ranks:
            rank.kill()

    def end(self):
        return [rank.end() for rank in self.ranks]


def add_state(rank, number, world, rows=32):
    """rows x 16 float32 for all, as much again in equal shares, and 100 bytes of each rank's own."""
    share = rows // world
    last = rows - share * (world - 1) if number == world - 1 else share
    rank.do("tensor", "model.w", "float32", f"{rows}x16", "replicated")
    rank.do("tensor", "optim.m", "float32", f"{rows}x16", "sharded", "-", f"{number * share},0",
            f"{last}x16")
    rank.do("tensor", "rng", "uint8", "100", "local", f"rank={number}")


def add_whole_state(rank, world, rows=32):
    """The same checkpoint, seen by one program that holds everything."""
    rank.do("tensor", "model.w", "float32", f"{rows}x16", "replicated")
    rank.do("tensor", "optim.m", "float32", f"{rows}x16", "replicated")
    for number in range(world):
        rank.do("tensor", "rng", "uint8", "100", "local", f"rank={number}")


def cairn(*words, check=None, timeout_s=60, env=None, **keywords):
    """The command line: (exit status, stdout, stderr). check: the exit status that it must have."""
    done = subprocess.run([str(BIN / "cairn"), *(str(word) for word in words)],
                          stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s,
                          env={**os.environ, **(env or {})}, **keywords)
    out, err = done.stdout.decode(), done.stderr.decode()
    if check is not None and done.returncode != check:
        raise Failure(f"cairn {' '.join(str(w) for w in words)}: {done.returncode}, not {check}\n"
                      f"{out[-3000:]}{err[-3000:]}")
    return done.returncode, out, err


def cairn_json(*words, check=0, **keywords):
    _, out, _ = cairn(*words, "--json", check=check, **keywords)
    document = json.loads(out)
    if document.get("schema_version") != 1:
        raise Failure(f"no schema_version 1: {out[:200]}")
    unknown = fields_of(document) - set(re.findall(r"`(\w+)`", JSON_PAGE.read_text().split("## JSON")[1]))
    if unknown:
        raise Failure(f"cairn {words[0]} --json has fields that {JSON_PAGE.name} does not explain: {sorted(unknown)}")
    return document


def fields_of(value):
    """The names of all fields of a JSON document; keys of `metrics` and `metadata` are the user's own."""
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    if not isinstance(value, dict):
        return set()
    return set(value).union(*(fields_of(item) for name, item in value.items() if name not in ("metrics", "metadata")))


def place_of(daemon, how):
    """Where the command line finds the store: by itself, or by its server, which may be slow on a busy machine."""
    return daemon.offline if how == "store" else (*daemon.online, "--timeout", "45s")


def verified(daemon, how="store", check=0, **keywords):
    """A full verify of the store, offline or by the server; the document."""
    return cairn_json("verify", *place_of(daemon, how), check=check, **keywords)


def listed(daemon, run="demo/run", how="store"):
    """{(step, term): entry} of what is committed."""
    entries = cairn_json("ls", run, *(daemon.offline if how == "store" else daemon.online))["checkpoints"]
    return {(e["step"], e["term"]): e for e in entries if e["state"] == "committed"}


def flip(path, offset, mask=0x01):
    """Damages one byte of a stored file in place; stored files are read-only."""
    mode = path.stat().st_mode
    path.chmod(0o600)
    with open(path, "r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ mask]))
    path.chmod(mode)


class Case(unittest.TestCase):
    """A test with a bed of its own; the bed is kept, and its logs shown, when it fails."""

    def setUp(self):
        self.bed = Bed(self.id().split(".")[-1])
        self.addCleanup(self.finish_bed)

    def finish_bed(self):
        reports = self.bed.sanitizer_reports()
        outcome = getattr(self._outcome, "result", None)
        failed = outcome is not None and any(test is self for test, _ in outcome.failures + outcome.errors)
        failed = failed or bool(reports)
        if failed:
            print(f"--- {self.id()}: kept in {self.bed.path}", flush=True)
            for log in sorted(self.bed.path.glob("*.log")):
                print(f"--- {log.name}\n" + "\n".join(log.read_text(errors="replace").splitlines()[-40:]),
                      flush=True)
        self.bed.close(keep=failed)
        self.assertEqual(reports, [], "a sanitizer has something to say")

    def daemon(self, name="store", failpoints=None, **keys):
        return Daemon(self.bed, name, **keys).start(failpoints=failpoints)

    def group(self, daemon, world=2, run="demo/run", **keywords):
        return Group(self.bed, daemon.url(run), world, **keywords)

    def run_attempt(self, daemon, *steps, run="demo/run", world=2, resumes=None, fills=False, **keywords):
        """An attempt that restores what `resumes` names, saves these steps and ends."""
        group = self.group(daemon, world, run, **keywords)
        if resumes:
            group.restore(resumes)
        group.save_each(steps, fills)
        group.end()

    def relay(self, daemon, *words, **keywords):
        relay = Relay(daemon.port(), *words, **keywords)
        self.addCleanup(relay.close)
        return relay

    def saving(self, *steps, run="demo/run", world=2, fills=False, **keys):
        """A daemon with these keys, and the ranks of an attempt that are connected to it and have saved these steps."""
        daemon = self.daemon(**keys)
        group = self.group(daemon, world, run)
        group.save_each(steps, fills)
        return daemon, group

    def with_saves(self, *steps, **keys):
        """A daemon on whose store an attempt has saved these steps and ended."""
        daemon, group = self.saving(*steps, **keys)
        group.end()
        return daemon

    def assert_error(self, refused, name, *fragments):
        """(error, text): the error by name, and a text that says what and what to do."""
        error, text = refused
        self.assertEqual(error, name, text)
        for fragment in fragments:
            self.assertIn(fragment, text)

    def assert_restores(self, group, want, seed, *words):
        """All ranks come to this (step, term, fell back), and hold the state that was filled with the seed."""
        self.assertEqual(group.restore(*words), want)
        group.all("check", seed)

    def assert_whole(self, daemon, checkpoints, how="store", run="demo/run"):
        """Exactly these (step, term) are listed, and all bytes of them are good."""
        self.assertEqual(set(listed(daemon, run, how)), set(checkpoints))
        document = verified(daemon, how)
        self.assertEqual(document["damaged"], 0)


def main():
    print(f"seed {SEED} (CAIRN_SEED={SEED} repeats it)", flush=True)
    unittest.main(verbosity=2, argv=sys.argv)
