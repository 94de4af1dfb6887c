# SPDX-License-Identifier: Apache-2.0
"""`cairn run --watch` asks the command to save and leave when hardware fails, and no source, however broken, stops a healthy job.

The kernel's files, smartctl, nvidia-smi and the DCGM exporter are stand-ins here, but for the kernel's own files where the
machine has them and for the shell, awk and curl that read them.
"""

import contextlib
import glob
import http.server
import json
import os
import re
import signal
import threading
import time
from pathlib import Path

from harness import SOURCE, Case, cairn, cairn_json, main, wait_until
from test_cli_run import Running, alive

FAST = ("--watch-interval", "300ms", "--node", "node07", "--backoff", "1s")
INTERRUPTS = """            CPU0       CPU1
  0:         12          0   IO-APIC   2-edge      timer
MCE:          {}          4   Machine check exceptions
MCP:        900        901   Machine check polls
"""
METRICS = """# HELP DCGM_FI_DEV_XID_ERRORS Value of the last XID error encountered.
# TYPE DCGM_FI_DEV_XID_ERRORS gauge
DCGM_FI_DEV_XID_ERRORS{{gpu="3",UUID="GPU-6a",pci_bus_id="0:1",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",Hostname="n"}} {}
DCGM_FI_DEV_GPU_TEMP{{gpu="3",UUID="GPU-6a",device="nvidia3",modelName="NVIDIA H100 80GB HBM3",Hostname="n"}} 41
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL{{gpu="3",GPU_I_ID="7",UUID="GPU-6a",modelName="NVIDIA H100 80GB HBM3"}} {}
"""


class Watch(Case):
    def setUp(self):
        super().setUp()
        self.root, self.bin = self.bed.path / "root", self.bed.path / "bin"
        self.bin.mkdir()
        self.env = {"PATH": f"{self.bin}:{os.environ['PATH']}"}

    def write(self, name, text, mode=0o644):
        """In one step: a probe reads the old text or the new one."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_name(path.name + ".new")
        new.write_text(str(text))
        new.chmod(mode)
        new.replace(path)

    def program(self, name, text):
        (self.bin / name).write_text("#!/bin/sh\n" + text)
        (self.bin / name).chmod(0o755)

    def errors(self, count, controller=0):
        self.write(f"sys/devices/system/edac/mc/mc{controller}/ue_count", f"{count}\n")

    def start(self, *words, options=()):
        running = Running(self.bed, *words, options=(*FAST, "--watch-root", self.root, *options), env=self.env)
        os.set_blocking(running.process.stderr.fileno(), False)
        running.said = b""
        if words[0] != "exit":
            running.until("ready")
        return running

    def events(self, running, event, count=1):
        """Waits for so many events of a kind; the texts of all of them."""
        def look():
            running.said += running.process.stderr.read() or b""
            found = [line for line in running.said.splitlines() if f'"event":"{event}"'.encode() in line]
            return [line.decode() for line in found] if len(found) >= count else None
        return wait_until(f"{count} events {event}", look)

    def end(self, running):
        os.set_blocking(running.process.stderr.fileno(), True)
        status, lines, events = running.end()
        early = [line for line in running.said.splitlines() if line]
        return status, lines, [json.loads(line) for line in early] + events

    def terminate(self, running):
        running.process.send_signal(signal.SIGTERM)
        return self.end(running)

    def rises(self, running, change, values=range(1, 10000), pause_s=0.0):
        """Changes a source until the command was told: the first probe takes what is there for what was before the job. Where one
        notice too many is an error, ``pause_s`` is longer than a notice takes on a busy machine."""
        values = iter(values)

        def is_told():
            change(next(values))
            until = time.monotonic() + pause_s
            while b"signal 15" not in self.read(running):
                if time.monotonic() >= until:
                    return False
            return True

        wait_until("the command was told", is_told)

    def read(self, running):
        time.sleep(0.1)
        running.text += running.process.stdout.read() or b""
        return running.text

    def assert_notice(self, running, source, said):
        running.until("signal")
        status, lines, events = self.end(running)
        self.assertEqual(status, os.EX_TEMPFAIL, events)
        notices = [event for event in events if event["event"] == "notice"]
        self.assertEqual((notices[0]["source"], notices[0]["node"]), (source, "node07"))
        self.assertIn(said, notices[0]["message"])
        self.assertIn("signal 15", lines)
        self.assertEqual(events[-1]["event"], "noticed")

    def announced(self):
        """A command as that of a cloud: it says something from announce() on."""
        return ("--watch-command", f"cat {self.bed.path}/notice 2>/dev/null || true")

    def announce(self, text="soon"):
        (self.bed.path / "notice").write_text(text)

    def exporter(self, text, status=200):
        exporter = Exporter(text, status)
        self.addCleanup(exporter.close)
        return exporter

    def test_memory_errors(self):
        self.errors(0)
        self.errors(3, 1)  # of an earlier job: no notice
        running = self.start("wait", "0", options=("--watch", "edac"))
        self.rises(running, self.errors)
        self.assert_notice(running, "edac", "edac: mc0/ue_count was ")

    def test_machine_checks(self):
        self.write("proc/interrupts", INTERRUPTS.format(0))
        running = self.start("wait", options=("--watch", "mce"))
        self.rises(running, lambda count: self.write("proc/interrupts", INTERRUPTS.format(count)))
        self.assert_notice(running, "mce", "machine check exceptions was ")

    def test_disk(self):
        """One disk cannot be asked, which is said once; the other begins to fail."""
        self.write("status", 4)  # a command that failed: no answer, so no reading
        self.program("smartctl", f"""[ "$1" = --scan ] && echo "/dev/sda -d sat # /dev/sda [SAT], ATA device" &&
            echo "/dev/sdb -d scsi # /dev/sdb, SCSI device" && exit 0
            [ "$*" = "-H /dev/sda -d sat" ] && exit 2
            [ "$*" = "-H /dev/sdb -d scsi" ] && exit $(cat {self.root}/status)
            exit 1""")
        running = self.start("wait", options=("--watch", "smart", "--watch-interval", "100ms"))
        self.assertIn("/dev/sda -d sat", self.events(running, "watch")[0])
        self.write("status", 0)
        values = (0 if i % 40 < 20 else 8 for i in range(10000))  # the disk is well for a probe, then it fails
        self.rises(running, lambda value: self.write("status", value), values)
        self.assert_notice(running, "smart", "failure of /dev/sdb -d scsi was 0, now 1")

    def test_disks_behind_one_name(self):
        """Disks of a controller share a device; one that had failed before the job is no notice. Neither are GPUs of one name."""
        asked = self.bed.path / "asked"
        self.program("smartctl", f"""[ "$1" = --scan ] && echo "/dev/bus/0 -d megaraid,0 # a disk" &&
            echo "/dev/bus/0 -d megaraid,1 # another" && exit 0
            echo >>{asked}
            [ "$*" = "-H /dev/bus/0 -d megaraid,1" ] && exit 8
            exit 0""")
        exporter = self.exporter('DCGM_FI_DEV_XID_ERRORS{UUID="a"} 0\nDCGM_FI_DEV_XID_ERRORS{UUID="b"} 79\n')
        running = self.start("wait", options=("--watch", "smart,dcgm", "--watch-interval", "100ms", "--dcgm-url", exporter.url))
        wait_until("both were probed", lambda: asked.exists() and len(asked.read_text()) >= 6)
        exporter.asked(3)
        self.assertNotIn(b"signal", self.read(running))
        exporter.text = exporter.text.replace("} 0", "} 48")
        self.assert_notice(running, "dcgm", "now 48")

    def test_exporter(self):
        """An XID that a program's mistake causes is no notice, nor is a counter that falls; one of a GPU that fell off the bus is."""
        exporter = self.exporter(METRICS.format(0, 0))
        running = self.start("wait", options=("--watch", "dcgm", "--dcgm-url", exporter.url))
        exporter.asked(1)
        exporter.text = METRICS.format(43, 0)
        exporter.asked(2)
        self.assertNotIn(b"signal", self.read(running))
        exporter.text = METRICS.format(79, 0)
        self.assert_notice(running, "dcgm", "DCGM_FI_DEV_XID_ERRORS of GPU 3 was 0, now 79")
        exporter.text = METRICS.format(79, 0)
        running = self.start("wait", options=("--watch", "dcgm", "--dcgm-url", exporter.url))
        exporter.asked(1)
        exporter.text = METRICS.format(48, 5)
        self.assert_notice(running, "dcgm", "DCGM_FI_DEV_XID_ERRORS of GPU 3 was 79, now 48")
        running = self.start("wait", options=("--watch", "dcgm", "--dcgm-url", exporter.url))
        exporter.asked(1)
        exporter.text = METRICS.format(48, 3)
        exporter.asked(2)
        self.assertNotIn(b"signal", self.read(running))
        exporter.text = METRICS.format(48, 4)
        self.assert_notice(running, "dcgm", "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL of GPU 3/7 was 3, now 4")

    def test_nvidia_smi(self):
        self.write("errors", 0)
        self.program("nvidia-smi", f"""[ "$1" = --query-gpu=index,ecc.errors.uncorrected.volatile.total ] || exit 2
            echo "0, [N/A]"; echo "1, $(cat {self.root}/errors)" """)
        running = self.start("wait", options=("--watch", "nvidia"))
        self.rises(running, lambda count: self.write("errors", count))
        self.assert_notice(running, "nvidia", "uncorrected ECC errors of GPU 1 was ")

    def test_operators_command(self):
        for shell, said in ((self.announced()[1], 'exit status 0: {"action":"terminate"}'),
                            (f"! grep -l terminate {self.bed.path}/notice", "exit status 1: ")):
            self.announce("")
            running = self.start("wait", options=("--watch-command", "true", "--watch-command", shell))
            self.announce('{"action":"terminate"}')
            self.assert_notice(running, "command 2", said)

    def test_commands_of_the_guide(self):
        """What the guide gives for three clouds, on a stand-in of their metadata: silent at first, then a notice."""
        text = (SOURCE / "docs" / "operator-day.md").read_text(encoding="utf-8")
        shells = [shell for shell in re.findall(r"--watch-command '([^']*)'", text) if "http" in shell]
        self.assertEqual(len(shells), 3)
        answers = {"169.254.169.254/latest": (None, '{"action":"terminate","time":"2026-01-01T00:00:00Z"}'),
                   "google": ("FALSE", "TRUE"),
                   "scheduledevents": ('{"DocumentIncarnation":1,"Events":[]}', '{"Events":[{"EventType":"Preempt"}]}')}
        for shell in shells:
            [(before, after)] = [pair for word, pair in answers.items() if word in shell]
            cloud = self.exporter(before or "", 200 if before else 404)
            shell = re.sub(r"http://(169.254.169.254|metadata.google.internal)", cloud.url.rsplit("/", 1)[0], shell)
            running = self.start("wait", options=("--watch-command", shell, "--watch-interval", "1s"))
            cloud.asked(4)
            self.assertNotIn(b"signal", self.read(running))
            cloud.text, cloud.status = after, 200
            self.assert_notice(running, "command 1", "exit status 0: ")

    def test_a_node_that_fails_twice_is_given_up(self):
        self.errors(0)
        running = self.start("wait", "75", options=("--watch", "edac", "--max-restarts", "9"))
        self.rises(running, self.errors)
        self.events(running, "restart")
        wait_until("it is given up", lambda: self.errors(int.from_bytes(os.urandom(3), "big") + 1) or self.read(running)
                   and running.process.poll() is not None, 60)
        status, _, events = self.end(running)
        self.assertEqual((status, events[-1]["event"], events[-1]["restarts"]), (os.EX_TEMPFAIL, "node_failed", 1))
        self.assertIn("edac gave notice on node07", events[-1]["message"])
        self.assertIn("not started again on this node", events[-1]["message"])

    def test_one_fault_of_two_sources_costs_one_notice(self):
        """What a probe read before the fault is not compared with what the next one reads after it."""
        exporter = self.exporter(METRICS.format(0, 0))
        exporter.open.clear()
        self.errors(0)
        running = self.start("wait", "75", options=("--watch", "edac,dcgm", "--dcgm-url", exporter.url, "--max-restarts", "9",
                                                    "--watch-interval", "2s"))
        wait_until("a probe has read", lambda: exporter.count == 1)
        exporter.text = METRICS.format(48, 0)
        self.rises(running, self.errors, pause_s=15)
        wait_until("it runs again", lambda: self.read(running).count(b"ready") == 2)
        exporter.open.set()
        wait_until("it was probed twice more", lambda: exporter.count >= 3)
        status, _, events = self.terminate(running)
        self.assertEqual((status, [event["event"] for event in events]), (143, ["notice", "restart", "stopped"]))

    def test_a_source_that_answers_again_is_no_notice(self):
        """Its line comes in the same turn as another source's notice."""
        hold, good = self.bed.path / "hold", self.bed.path / "good"
        wait = f"echo $$ >{self.bed.path}/pid.%d; while [ -e {hold} ]; do sleep 0.05; done; "
        shells = wait % 1 + self.announced()[1], wait % 2 + f"[ -e {good} ] || echo broken >&2"
        running = self.start("wait", options=("--watch-command", shells[0], "--watch-command", shells[1], "--watch-interval", "3s"))
        self.events(running, "watch")
        before = [(self.bed.path / f"pid.{number}").read_text() for number in (1, 2)]
        hold.touch()
        files = [self.bed.path / f"pid.{number}" for number in (1, 2)]
        wait_until("both probes wait", lambda: all(file.read_text().strip() and file.read_text() != old
                                                   for file, old in zip(files, before)))
        running.process.send_signal(signal.SIGSTOP)
        self.announce()
        good.touch()
        hold.unlink()
        wait_until("both have ended", lambda: not any(alive(int(file.read_text())) for file in files))
        running.process.send_signal(signal.SIGCONT)
        _, _, events = self.end(running)
        said = [(event["event"], event["source"], event["message"].split(":")[0]) for event in events]
        self.assertEqual(said[:3], [("watch", None, "watching command 2"), ("notice", "command 1", "notice on node07, command 1"),
                                    ("watch", None, "watching command 2")])

    def test_an_end_that_stays_announced_starts_nothing(self):
        """The cloud's notice is still there in the wait before the restart, and counts again."""
        running = self.start("wait", "75", options=(*self.announced(), "--max-restarts", "9", "--backoff", "30s"))
        self.announce()
        status, lines, events = self.end(running)
        self.assertEqual((status, events[-1]["event"]), (os.EX_TEMPFAIL, "node_failed"))
        self.assertEqual(lines.count("ready"), 1)

    def test_goes_on_after_one_notice(self):
        self.errors(0)
        running = self.start("wait", "75", options=("--watch", "edac", "--max-restarts", "2"))
        self.rises(running, self.errors, pause_s=15)
        self.events(running, "restart")
        wait_until("it runs again", lambda: self.read(running).count(b"ready") == 2)
        status, _, events = self.terminate(running)
        self.assertEqual((status, [event["event"] for event in events]), (143, ["notice", "restart", "stopped"]))

    def test_a_stubborn_command_is_killed_and_sigterm_is_not_sent_twice(self):
        running = self.start("stubborn", options=(*self.announced(), "--grace", "3s"))
        self.announce()
        running.until("signal 15")
        status, lines, events = self.terminate(running)
        self.assertEqual((status, lines.count("signal 15")), (os.EX_TEMPFAIL, 1))
        self.assertIn("killed", events[-1]["message"])

    def test_a_killed_command_is_no_orderly_end(self):
        """SIGTERM comes in the flush after a notice, for which the command had to be killed."""
        daemon = self.with_saves(1)
        running = self.start("stubborn", options=(*self.announced(), "--grace", "9s", "--max-restarts", "3", "--run", "demo/run",
                                                  *daemon.online))
        daemon.process.send_signal(signal.SIGSTOP)  # the flush has to wait
        self.announce()
        wait_until("it is killed", lambda: self.flushes(running))
        running.process.send_signal(signal.SIGTERM)
        daemon.process.send_signal(signal.SIGCONT)
        status, _, events = self.end(running)
        self.assertEqual((status, events[-1]["event"]), (os.EX_TEMPFAIL, "stopped"))

    def flushes(self, running):
        children = Path(f"/proc/{running.process.pid}/task/{running.process.pid}/children").read_text(encoding="ascii").split()
        for pid in children:
            with contextlib.suppress(OSError):  # it has ended since
                if b"flush" in Path(f"/proc/{pid}/cmdline").read_bytes():
                    return True
        return False

    def test_reason_is_written(self):
        daemon = self.with_saves(1)
        where = daemon.online
        running = self.start("wait", "75", options=(*self.announced(), "--run", "demo/run", *where))
        self.announce("spot \x1b[31mend")
        status, _, events = self.end(running)
        self.assertEqual(status, os.EX_TEMPFAIL)
        self.assertIn("everything that was staged is durable", events[-1]["message"])
        [checkpoint] = cairn_json("ls", "demo/run", *where)["checkpoints"]
        self.assertEqual(checkpoint["tags"], ["e2e", "notice on node07, command 1: exit status 0: spot ?[31mend"])

    def test_no_run_to_tag(self):
        daemon = self.daemon()
        running = self.start("wait", "75", options=(*self.announced(), "--run", "demo/none", *daemon.online))
        self.announce()
        self.assertEqual(running.process.wait(60), os.EX_TEMPFAIL)
        text = self.events(running, "watch")[0]
        self.assertIn("could not be written as a tag", text)

    def test_broken_sources_stop_nothing(self):
        """Each source is missing, prints nonsense, hangs, floods or dies: it is said once, and the job goes on."""
        self.errors("banana")
        self.write("proc/interrupts", "nothing of that kind\n")
        for name in ("smartctl", "nvidia-smi"):
            self.program(name, "exec /nowhere/program")
        hung = self.bed.path / "hung"
        commands = (f"echo $$ >{hung}; exec sleep 1000", "/nowhere/notice", "kill -KILL $$", "yes", "head -c 100 /dev/zero",
                    "echo warning >&2")
        options = [word for command in commands for word in ("--watch-command", command)]
        running = self.start("wait", options=("--watch", "all", "--dcgm-url", "http://127.0.0.1:1/", "--watch-interval", "1s",
                                              *options))
        texts = self.events(running, "watch", 5 + len(commands))
        pid = int(hung.read_text())
        for words in ("edac: \\\"mc0/ue_count banana\\\" is no reading", "mce: there is nothing to read here", "smart: ", "nvidia: ",
                      "dcgm: curl: (7)", "command 1: it did not answer within 1 s", "command 2: ", "command 3: ",
                      "command 4: ", "command 5: it printed a zero byte", "command 6: warning"):
            self.assertEqual(sum(words in text for text in texts), 1, (words, texts))
        self.assertTrue(alive(running.process.pid))
        status, lines, events = self.terminate(running)
        self.assertEqual((status, lines.count("ready")), (143, 1))
        self.assertNotIn("notice", [event["event"] for event in events])
        self.assertEqual(len([event for event in events if event["event"] == "watch"]), 5 + len(commands))
        wait_until("no probe is left", lambda: not alive(pid) or int(hung.read_text()) != pid)
        wait_until("no probe is left", lambda: not alive(int(hung.read_text())))

    def test_a_source_that_was_broken_is_watched_again(self):
        self.errors("banana")
        running = self.start("wait", options=("--watch", "edac"))
        self.assertIn("is no reading", self.events(running, "watch")[0])
        self.errors(0)
        self.assertIn("answers again", self.events(running, "watch", 2)[1])
        self.rises(running, self.errors)
        self.assert_notice(running, "edac", "mc0/ue_count was ")

    def test_an_exporter_that_hangs_or_floods(self):
        exporter = self.exporter("DCGM_FI_DEV_XID_ERRORS{gpu=\"0\"} banana\n" * 100000)
        running = self.start("wait", options=("--watch", "dcgm", "--dcgm-url", exporter.url))
        self.assertIn("dcgm: ", self.events(running, "watch")[0])
        exporter.text = None  # accepts, and does not answer
        exporter.asked(2)
        self.assertNotIn(b"signal", self.read(running))
        self.assertEqual(self.terminate(running)[0], 143)

    def test_the_machines_own_files(self):
        """The kernel's files of this machine, whatever it has, are read, and a healthy machine gives no notice."""
        running = Running(self.bed, "wait", options=(*FAST, "--watch", "edac,mce"), env=self.env)
        os.set_blocking(running.process.stderr.fileno(), False)
        running.said = b""
        running.until("ready")
        missing = [name for name, there in (
            ("edac", glob.glob("/sys/devices/system/edac/mc/mc*/ue_count")),
            ("mce", "MCE:" in Path("/proc/interrupts").read_text(encoding="utf-8"))) if not there]
        texts = self.events(running, "watch", len(missing))
        for name in missing:
            self.assertEqual(sum(f"{name}: " in text for text in texts), 1)
        status, _, events = self.terminate(running)
        self.assertEqual((status, len(events)), (143, len(missing) + 1))

    def test_usage(self):
        _, out, _ = cairn("run", "--dry-run", "--json", "--watch", "smart,edac", "--watch-command", "true", "--", "false", check=0)
        self.assertIn('"watch":["smart","edac","command 1"]', out)
        self.assertIn("no source 'edca'", cairn("run", "--watch", "mce,edca", "--", "true", check=2)[2])
        cairn("run", "--watch-interval", "1ms", "--", "true", check=2)


class Exporter:
    """Answers as the DCGM exporter does: with text, or, where that is None, not at all."""

    def __init__(self, text, status):
        self.text, self.status, self.count, self.closed = text, status, 0, threading.Event()
        self.open = threading.Event()  # until then an answer is held back, with the text of when it was asked
        self.open.set()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                text = outer.text
                outer.count += 1
                if text is None:
                    outer.closed.wait()
                    return
                outer.open.wait()
                self.send_response(outer.status)
                self.end_headers()
                try:
                    self.wfile.write(text.encode())
                except OSError:
                    pass  # curl was killed

            do_PUT = do_GET

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def asked(self, more):
        """Waits until so many more probes have begun after this one, so that the text was read by whole probes."""
        before = self.count
        wait_until("the exporter is asked", lambda: self.count > before + more)

    def close(self):
        self.closed.set()
        self.open.set()
        self.server.shutdown()
        self.server.server_close()


if __name__ == "__main__":
    main()
