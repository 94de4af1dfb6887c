# SPDX-License-Identifier: Apache-2.0
"""`cairn run` passes on how a command ended: commands that end well, fail, are killed, ignore signals, or are stopped."""

import json
import os
import select
import signal
import subprocess
import sys
import time

from harness import BIN, PATIENCE_S, Case, Failure, cairn, main, wait_until

# Says on stdout what it is, then does what its words say.
CHILD = """
import os, signal, sys, time
def say(*words):  # in one write: of a family two speak at once
    os.write(1, (" ".join(str(word) for word in words) + os.linesep).encode())
say(os.environ.get("CAIRN_RUN"), os.environ["CAIRN_ATTEMPT"], os.environ["CAIRN_RESTARTS"], os.getpid())
what = sys.argv[1]
if what == "exit":
    sys.exit(int(sys.argv[2]))
if what == "die":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.kill(os.getpid(), int(sys.argv[2]))
if what == "nth":  # fails but for the nth start
    sys.exit(0 if os.environ["CAIRN_RESTARTS"] == sys.argv[2] else 3)
def told(number, frame):
    say("signal", number)
    if number in (signal.SIGTERM, signal.SIGINT) and what != "stubborn":
        sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGHUP):
    signal.signal(number, told)
if what == "family":
    child = os.fork()
    say("family", child or os.getpid())
say("ready")
while True:
    signal.pause()
"""


class Running:
    def __init__(self, bed, *words, options=(), env=None):
        self.process = bed.start(
            [BIN / "cairn", "run", "--json", *options, "--", sys.executable, "-c", CHILD, *words],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, **(env or {})})
        os.set_blocking(self.process.stdout.fileno(), False)
        self.text = b""

    def until(self, word):
        """Reads the command's lines up to the one that begins with word; that one's words."""
        end = time.monotonic() + PATIENCE_S
        while time.monotonic() < end:
            *lines, _ = self.text.split(b"\n")
            for line in lines:
                if line.startswith(word.encode()):
                    return line.decode().split()
            select.select([self.process.stdout], [], [], 0.1)
            self.text += self.process.stdout.read() or b""
        raise Failure(f"no line '{word}': {self.text}")

    def end(self):
        """(exit status, lines of stdout, events of stderr)."""
        os.set_blocking(self.process.stdout.fileno(), True)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        lines = (self.text + out).decode().splitlines()
        return self.process.returncode, lines, [json.loads(line) for line in err.splitlines()]


class Run(Case):
    fast = ("--backoff", "1ms", "--max-restarts", "3")

    def run_it(self, *words, options=(), env=None):
        return Running(self.bed, *words, options=options, env=env).end()

    def test_a_launcher_that_ignores_sigchld(self):
        """An ignored SIGCHLD survives exec. The ends of the command and of a source are seen, and the command does not get it."""
        inherit = {"preexec_fn": lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN)}
        said = cairn("run", *self.fast, "--", "sh", "-c", "grep SigIgn /proc/self/status; exit 9", check=9, **inherit)[1]
        masks = [int(line.split()[1], 16) for line in said.splitlines()]
        self.assertEqual([mask >> (signal.SIGCHLD - 1) & 1 for mask in masks], [0] * 4)
        said = cairn("run", "--watch-command", "echo soon", "--", "sleep", "600", check=os.EX_TEMPFAIL, **inherit)[2]
        self.assertIn("command 1: exit status 0: soon", said)

    def test_ends_well(self):
        status, lines, events = self.run_it("exit", "0", options=("--run", "demo/run"))
        self.assertEqual(status, 0)
        run, attempt, restarts, _ = lines[0].split()
        self.assertEqual((run, len(attempt), restarts), ("demo/run", 32, "0"))
        self.assertEqual([event["event"] for event in events], ["ended"])
        self.assertEqual(self.run_it("exit", "0", env={"CAIRN_RUN": "a/b"})[1][0].split()[0], "a/b")

    def test_restarts_after_failures(self):
        status, lines, events = self.run_it("nth", "2", options=self.fast)
        self.assertEqual((status, len(lines)), (0, 3))
        attempts = [line.split()[1] for line in lines]
        self.assertEqual(len(set(attempts)), 3)  # a new one each time
        self.assertEqual([line.split()[2] for line in lines], ["0", "1", "2"])
        self.assertEqual([event["event"] for event in events], ["restart", "restart", "ended"])
        self.assertEqual([event["status"] for event in events], [3, 3, 0])

    def test_gives_up(self):
        for words, expected in ((("exit", "3"), 3), (("die", str(int(signal.SIGKILL))), 137)):
            status, lines, _ = self.run_it(*words, options=self.fast)
            self.assertEqual((status, len(lines)), (expected, 4))
        status, lines, _ = self.run_it("exit", "3")  # without restarts
        self.assertEqual((status, len(lines)), (3, 1))
        status, lines, _ = self.run_it("die", str(int(signal.SIGINT)), options=self.fast)
        self.assertEqual((status, len(lines)), (130, 1))  # whoever interrupts a command wants no other

    def test_back_off_grows_and_is_bounded(self):
        began = time.monotonic()
        status, _, events = self.run_it("exit", "1", options=(
            "--max-restarts", "4", "--backoff", "50ms", "--backoff-max", "100ms"))
        self.assertEqual(status, 1)
        self.assertGreaterEqual(time.monotonic() - began, 0.05 + 3 * 0.1)
        pauses = [event["message"].split(" in ")[1] for event in events if event["event"] == "restart"]
        self.assertEqual(pauses, ["0.050 s", "0.100 s", "0.100 s", "0.100 s"])

    def test_command_that_cannot_be_run(self):
        text = self.bed.path / "text"
        text.write_text("no program")
        text.chmod(0o644)
        for command, expected in (("/nowhere/train", 127), (str(text), 126)):
            status, _, err = cairn("run", "--max-restarts", "3", "--backoff", "1ms", "--", command, check=expected)
            self.assertIn(command, err)
            self.assertNotIn("restart 1", err)

    def test_signals_are_passed_on(self):
        running = Running(self.bed, "wait")
        running.until("ready")
        for number in (signal.SIGUSR1, signal.SIGHUP):
            running.process.send_signal(number)
            running.until(f"signal {int(number)}")
        running.process.send_signal(signal.SIGTERM)
        status, _, events = running.end()
        self.assertEqual(status, 143)
        self.assertEqual(events[-1]["event"], "stopped")

    def test_stopped_by_interrupt(self):
        running = Running(self.bed, "wait", "5", options=self.fast)
        running.until("ready")
        running.process.send_signal(signal.SIGINT)
        self.assertEqual(running.end()[0], 130)

    def test_the_grace_ends(self):
        running = Running(self.bed, "stubborn", options=("--grace", "2s"))  # time to say what it was sent
        running.until("ready")
        running.process.send_signal(signal.SIGTERM)
        status, lines, events = running.end()
        self.assertEqual(status, 75)
        self.assertIn("signal 15", lines)
        self.assertIn("killed", events[-1]["message"])

    def test_a_second_signal_kills(self):
        running = Running(self.bed, "stubborn", options=("--grace", "1h"))
        running.until("ready")
        running.process.send_signal(signal.SIGTERM)
        running.until("signal 15")
        running.process.send_signal(signal.SIGTERM)
        self.assertEqual(running.end()[0], 75)

    def test_children_of_the_command_end_with_it(self):
        running = Running(self.bed, "family", options=("--grace", "200ms"))
        pid = int(running.until("family")[1])
        running.until("ready")
        running.process.send_signal(signal.SIGTERM)
        running.end()
        wait_until("the child is gone", lambda: not alive(pid))

    def test_stopped_in_a_pause(self):
        running = Running(self.bed, "exit", "1", options=("--max-restarts", "5", "--backoff", "1h"))
        line = running.process.stderr.readline()
        self.assertEqual(json.loads(line)["event"], "restart")
        running.process.send_signal(signal.SIGTERM)
        self.assertEqual(running.end()[0], 143)

    def test_the_command_hears_that_its_supervisor_died(self):
        running = Running(self.bed, "stubborn")
        pid = int(running.until("None")[3])
        running.until("ready")
        running.process.kill()
        running.until("signal 15")
        os.kill(pid, signal.SIGKILL)

    def test_flush_inside_the_grace(self):
        """A save that is open when SIGTERM comes, and one that a rank never joins: 143 and 75."""
        daemon, group = self.saving(1)
        where = (*daemon.online, "--run", "demo/run")
        running = Running(self.bed, "wait", "0", options=where)
        running.until("ready")
        started = group.all("save", 2, 60000)
        running.process.send_signal(signal.SIGTERM)
        group.finish(started)
        status, _, events = running.end()
        self.assertEqual((status, events[-1]["message"]), (
            143, "SIGTERM stopped the job; the command ended with 0; everything that was staged is durable"))
        running = Running(self.bed, "wait", "0", options=("--grace", "6s", *where))
        running.until("ready")
        group[0].do("save", 3, 60000)
        running.process.send_signal(signal.SIGTERM)
        lines = running.process.stderr.read().decode()
        self.assertEqual(running.process.wait(120), 75)
        self.assertIn("3@1 is open: ", lines)

    def test_no_server_to_flush(self):
        running = Running(self.bed, "wait", options=("--run", "demo/run", "--server", "127.0.0.1:1", "--grace", "2s"))
        running.until("ready")
        running.process.send_signal(signal.SIGTERM)
        running.process.communicate(timeout=PATIENCE_S)
        self.assertEqual(running.process.returncode, 75)

    def test_dry_run_and_usage(self):
        _, out, _ = cairn("run", "--dry-run", "--json", "--run", "demo/run", "--", "false", "--x", check=0)
        self.assertEqual(json.loads(out)["command"], ["false", "--x"])
        self.assertIn("false --x", cairn("run", "-n", "false", "--x", check=0)[1])
        cairn("run", check=2)
        cairn("run", "--max-restarts", "many", "--", "true", check=2)
        cairn("run", "--run", "not a run", "--", "true", check=2)


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8") as stat:
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    main()
