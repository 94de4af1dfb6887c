# SPDX-License-Identifier: Apache-2.0
"""Fixtures: one cairnd for the session, a fresh run for each test."""

import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import tempfile
import time

import pytest

import cairn
from ranks import Ranks

ROOT = pathlib.Path(__file__).resolve().parents[2]


class Daemon:
    """A cairnd on a directory store and a Unix socket, both in a folder of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self.socket = self.folder / "cairnd.sock"
        self.store = self.folder / "store"
        self.process = None

    def start(self):
        self.log = open(self.folder / "cairnd.log", "ab")
        if not self.store.exists():
            subprocess.run([pathlib.Path(os.environ["CAIRND"]).with_name("cairn"), "store", "create", f"dir:{self.store}",
                            "--single-writer"], stdout=self.log, stderr=self.log, check=True)
        self.process = subprocess.Popen(
            [os.environ["CAIRND"], "--store-url", f"dir:{self.store}", "--store-single-writer", "yes", "--listen-unix", str(self.socket),
             "--restore-drain", "500ms", "--session-heartbeat", "500ms", "--session-dead-after", "2s"], stdout=self.log, stderr=self.log)
        until = time.monotonic() + 120
        while not self.socket.exists() or b"ready" not in (self.folder / "cairnd.log").read_bytes():
            if self.process.poll() is not None or time.monotonic() > until:
                raise RuntimeError("cairnd did not start:\n" + (self.folder / "cairnd.log").read_text())
            time.sleep(0.02)

    def kill(self):
        self.process.kill()
        self.process.wait()
        self.log.close()
        self.socket.unlink(missing_ok=True)
        (self.folder / "cairnd.log").rename(self.folder / "cairnd.log.killed")

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(120)
        finally:
            self.process.kill()
            self.log.close()

    def url(self, run):
        return f"cairn+unix://{self.socket}?run=py/{run}"


@contextlib.contextmanager
def running_daemon():
    """A cairnd in a folder of its own, until the ``with`` block ends."""
    # Not under pytest's own folder: a Unix socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="cairn-py-", ignore_cleanup_errors=True) as folder:
        server = Daemon(folder)
        server.start()
        try:
            yield server
        finally:
            if server.process.poll() is None:
                server.stop()


@contextlib.contextmanager
def stopped(daemon):
    """A daemon that answers nobody until the ``with`` block ends."""
    os.kill(daemon.process.pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(daemon.process.pid, signal.SIGCONT)


def steps_of(url):
    """The committed steps of a run, newest first."""
    with cairn.Client(url, read_only=True) as client:
        return [item.step for item in client.list()]


def lineage(url, tag=None):
    """The steps of a run that are not superseded, newest first; with ``tag`` those that have it."""
    with cairn.Client(url, read_only=True) as client:
        return [item.step for item in client.list() if not item.superseded and (tag is None or tag in item.tags)]


class Lost:
    """Stands for the library's operation of a save that fails after its state was copied, when ``is_lost`` is set."""

    warning = None

    def __init__(self, is_lost, error=cairn.TimedOutError):
        self.is_lost, self.error = is_lost, error

    def wait(self, stage, timeout):
        if stage == cairn.client.RELEASED:
            return True
        if self.is_lost:
            raise self.error.of("the test lets this save fail")
        assert timeout is not None, "the test would wait without end"
        return False


@pytest.fixture
def lose(monkeypatch):
    """Lets saves of some steps end without a checkpoint (skipped at once, failed, or open until the test says so), or
    with one of which nobody hears, or interrupts the program behind their begin."""
    save = cairn.Client.save

    def call(skipped=(), failed=(), open=(), unheard=(), interrupted=()):
        def lossy(client, step, *, into, **options):
            if step in skipped:
                raise cairn.SkippedError.of("the test lets this save be skipped")
            if step in failed or step in open:
                into._op = Lost(step in failed)
            else:
                save(client, step, into=into, **options)
            if step in unheard:
                into.result(60)
                into._op = Lost(True, cairn.OutcomeUnknownError)
            if step in interrupted:
                raise KeyboardInterrupt
            return into
        monkeypatch.setattr(cairn.Client, "save", lossy)
    return call


@pytest.fixture(scope="session")
def daemon():
    if "CAIRND" not in os.environ:
        pytest.exit("CAIRND must name the cairnd program; start the tests with tests/python/run", 2)
    with running_daemon() as server:
        yield server


@pytest.fixture
def own_daemon():
    """For tests that kill it. Its logs, of the life before a kill too, are shown when the test fails."""
    with running_daemon() as server:
        yield server
        for log in sorted(server.folder.glob("cairnd.log*")):
            print(f"{log.name}:", log.read_text(errors="replace")[-6000:], sep="\n")


_runs = 0


@pytest.fixture
def url(daemon):
    global _runs
    _runs += 1
    return daemon.url(f"t{_runs}")


@pytest.fixture
def run(request):
    """A run of the test's own, by its name."""
    name = f"{request.node.path.stem}-{request.node.name}".replace("test_", "").lower()[:44]
    return f"formats/{''.join(c if c.isalnum() else '-' for c in name)}"


@pytest.fixture
def cli(daemon, tmp_path):
    """Runs the program cairn: its output, or its errors where another exit status than 0 is expected."""
    def call(*words, check=0):
        done = subprocess.run([pathlib.Path(os.environ["CAIRND"]).with_name("cairn"), *map(str, words)], stdin=subprocess.DEVNULL,
                              capture_output=True, timeout=120, cwd=tmp_path, check=False,
                              env={**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}"})
        assert done.returncode == check, (words, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode() if check == 0 else done.stderr.decode()
    return call


@pytest.fixture
def convert(daemon, tmp_path, monkeypatch, capfd):
    """Runs cairn-convert in this process, as ``cli`` runs cairn. ``check`` None: (exit status, errors) of a command that may
    fail in an orderly way."""
    from cairn.convert.command import main
    monkeypatch.setenv("CAIRN_SERVER", f"unix:{daemon.socket}")
    monkeypatch.chdir(tmp_path)

    def call(*words, check=0):
        capfd.readouterr()
        status = main([str(word) for word in words])
        out, err = capfd.readouterr()
        if check is None:
            assert status in (0, 1, 2, 4, 6) and (status == 0) == (err == ""), (words, status, err)
            return status, err
        assert status == check, (words, status, out, err)
        return out if check == 0 else err
    return call


def _pool(world):
    pool = Ranks(world)
    yield pool
    pool.close()


@pytest.fixture(scope="session")
def ranks2():
    """Two processes under gloo; see ranks.py."""
    yield from _pool(2)


@pytest.fixture(scope="session")
def ranks4():
    yield from _pool(4)


@pytest.fixture(autouse=True)
def nothing_is_left_unsealed():
    """Drops the folders that a test left without their marker, since the end of pytest's process would otherwise name them and
    end with status 1. Tests of that end start processes of their own."""
    yield
    process = sys.modules.get("cairn.fs.process")
    if process is not None:
        process.take_trees()
