# SPDX-License-Identifier: Apache-2.0
"""The shipped configuration lets in whom it should and nobody else, SIGHUP changes it while people are in, and no text of
others makes a terminal obey."""

import json
import os
import re
import secrets
import signal
import socket
import subprocess
import unittest

from harness import BIN, SOURCE, Case, Daemon, cairn, cairn_json, flip, listed, main, wait_until

NOBODY = 65534


def may_connect(path, uid, gid):
    """Whether a process of that user and group alone may connect to the socket."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
            with socket.socket(socket.AF_UNIX) as sock:
                sock.connect(str(path))
            os._exit(0)
        except PermissionError:
            os._exit(1)
        except BaseException:
            os._exit(2)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, 1):
        raise AssertionError(f"the process of user {uid} could not try: {code}")
    return code == 0


class Admission(Case):
    def shipped(self):
        """A daemon with the shipped file; only the two directories are others. The socket's has the unit's mode."""
        unit = (SOURCE / "deploy/cairnd.service").read_text()
        run = self.bed.sockets / "run"
        run.mkdir()
        self.bed.sockets.chmod(0o755)
        run.chmod(int(re.search(r"^RuntimeDirectoryMode=(\d+)$", unit, re.M)[1], 8))
        text = (SOURCE / "deploy/cairnd.conf").read_text()
        for old, new in (("/var/lib/cairn/store", self.bed.path / "store"), ("/run/cairn/", f"{run}/")):
            self.assertIn(old, text)
            text = text.replace(old, str(new))
        path = self.bed.path / "cairnd.conf"
        path.write_text(text)
        daemon = Daemon(self.bed, creates=False)
        daemon.keys = {"config": path}
        daemon.socket = run / "cairnd.sock"
        return daemon

    def test_no_store_is_made(self):
        daemon = self.shipped()
        daemon.launch()
        self.assertEqual(daemon.process.wait(120), 10, daemon.tail())
        self.assertIn("cairn store create", daemon.log())
        self.assertFalse(daemon.store.exists())

    @unittest.skipUnless(os.geteuid() == 0, "only root can be somebody else")
    def test_another_user_is_refused(self):
        """Twice: by the directory, and by the socket's own mode where the directory lets him through."""
        if not os.stat("/").st_mode & 0o001:
            self.skipTest("no other user may pass / on this machine")
        daemon = self.shipped()
        cairn("store", "create", f"dir:{daemon.store}", check=0)
        daemon.start()
        self.assertEqual(re.findall(r'"addr":"(\w+):', daemon.log()), ["unix"])
        cairn("ls", *daemon.online, check=0)
        self.assertFalse(may_connect(daemon.socket, NOBODY, NOBODY))
        daemon.socket.parent.chmod(0o755)
        self.assertFalse(may_connect(daemon.socket, NOBODY, NOBODY))
        self.assertTrue(may_connect(daemon.socket, NOBODY, os.getegid()))  # a member of the daemon's group


class Reload(Case):
    """The daemon of these tests has a file of its own, [store] and [listen] apart."""

    def with_file(self, text, **keywords):
        self.path = self.bed.path / "cairnd.conf"
        self.path.write_text(text)
        return self.daemon(config=self.path, log_level=None, gc_pressure=None, **keywords)

    def reload(self, daemon, text, expected="the daemon has read its configuration again"):
        """What the log says from here on."""
        before = len(daemon.log())
        self.path.write_text(text)
        daemon.process.send_signal(signal.SIGHUP)
        wait_until(f"the log says '{expected}'", lambda: expected in daemon.log()[before:])
        return daemon.log()[before:]

    def status(self, daemon):
        return cairn_json("status", *daemon.online)

    def test_retention_begins_and_ends(self):
        daemon = self.with_file("[log]\nlevel = debug\n")
        group = self.group(daemon)
        for step in range(1, 6):
            group.save(step)
        said = self.reload(daemon, "[log]\nlevel = debug\n[retention]\ninterval = 1s\nkeep-last = 3\n")
        self.assertIn("a changed setting is in effect section=retention", said)
        wait_until("the old ones are forgotten", lambda: {step for step, _ in listed(daemon, how="server")} == {3, 4, 5})
        self.reload(daemon, "[log]\nlevel = debug\n")
        for step in range(6, 9):
            group.save(step)
        self.assertEqual({step for step, _ in listed(daemon, how="server")}, {3, 4, 5, 6, 7, 8})

    def test_what_a_reload_could_not_start_is_named(self):
        """The file is taken, and the one part that failed is told of; another SIGHUP starts it."""
        daemon = self.with_file("[gc]\nkeep-cycles = 5\n", failpoints="daemon.retention=error:NO_MEMORY@1")
        text = "[gc]\nkeep-cycles = 6\n[retention]\ninterval = 1s\nkeep-last = 3\n"
        said = self.reload(daemon, text, "[retention] could not be started")
        self.assertIn("a changed setting is in effect section=gc key=keep-cycles", said)
        self.assertNotIn("keeps its old configuration", said)
        self.assertEqual(self.status(daemon)["gc"]["keep_cycles"], 6)
        group = self.group(daemon)
        for step in range(1, 6):
            group.save(step)
        self.reload(daemon, text)
        wait_until("the old ones are forgotten", lambda: {step for step, _ in listed(daemon, how="server")} == {3, 4, 5})

    def test_quotas(self):
        daemon = self.with_file("")
        group = self.group(daemon)
        group.save(1)
        self.reload(daemon, "[quota]\ndemo = 1 checkpoints\n")
        answers = group.finish_any(group.try_all("save", 2, 60000))
        self.assertEqual({answer["error"] for answer in answers}, {"QUOTA"})
        self.reload(daemon, "[quota]\ndemo = 100 checkpoints\n")
        group.save(3)
        self.reload(daemon, "")
        group.save(4)
        self.assert_whole(daemon, {(1, 1), (3, 1), (4, 1)})

    def test_rates_and_times(self):
        daemon = self.with_file("")
        self.reload(daemon, "[scrub]\nevery = 5h\nrate = 1MiB\n[gc]\nevery = 7m\nkeep-cycles = 9\npressure = 11\n")
        status = self.status(daemon)
        self.assertEqual((status["scrub"]["every_ms"], status["scrub"]["rate"]), (5 * 3600 * 1000, 1 << 20))
        self.assertEqual((status["gc"]["every_ms"], status["gc"]["keep_cycles"], status["gc"]["pressure"]), (7 * 60 * 1000, 9, 11))

    def test_a_cycle_comes_by_the_new_time(self):
        daemon = self.with_file("[gc]\nevery = 100h\n")
        before = self.status(daemon)["gc"]["pass"]
        self.reload(daemon, "[gc]\nevery = 100ms\n")
        wait_until("passes go by the new time", lambda: self.status(daemon)["gc"]["pass"] > before)

    def test_levels(self):
        """What a viewer does is told at debug alone."""
        daemon = self.with_file("[log]\nlevel = info\n")
        for level, told in (("info", False), ("debug", True), ("error", False), ("debug", True)):
            self.reload(daemon, f"[log]\nlevel = {level}\n")
            before = len(daemon.log())
            self.status(daemon)
            if told:
                wait_until("the viewer is told", lambda before=before: "debug session" in daemon.log()[before:])
            else:
                self.assertNotIn("debug session", daemon.log()[before:])

    def test_what_needs_a_restart_is_named(self):
        daemon = self.with_file("[memory]\nbuffers = 64MiB\n")
        said = self.reload(daemon, "[memory]\nbuffers = 128MiB\n[session]\nmax = 10\n[log]\nlevel = warn\n")
        self.assertIn("a changed setting takes effect only after a restart section=memory key=buffers", said)
        self.assertIn("a changed setting takes effect only after a restart section=session key=max", said)
        self.assertIn("a changed setting is in effect section=log key=level", said)
        self.assertIn("need_restart=2", said)

    def test_a_broken_file_changes_nothing(self):
        daemon = self.with_file("[gc]\nkeep-cycles = 5\n")
        group = self.group(daemon)
        for text, why in (("[gc]\nkeep-cycles = 6\nevery = often\n", "cairnd.conf:3"),
                          ("[gc]\nkeep-cycles = 6\n[quota]\ndemo = 1 checkpoints\n[tls]\ncert = /nowhere\n", "[tls]"),
                          ("[gc]\nkeep-cycles = 6\n[retention]\nkeep-last = 2\n", "interval")):
            said = self.reload(daemon, text, "keeps its old configuration")
            self.assertIn(why, said)
            self.assertNotIn("a changed setting", said)
            status = self.status(daemon)
            self.assertEqual(status["gc"]["keep_cycles"], 5)
            self.assertEqual(status["health"], "yellow")
            self.assertIn(why, status["health_text"])
            done = subprocess.run([str(word) for word in [*daemon.argv(), "--check-config"]], capture_output=True, timeout=120,
                                  check=False)
            self.assertEqual(done.returncode, 2)
        self.path.unlink()
        daemon.process.send_signal(signal.SIGHUP)
        wait_until("it says that there is no file", lambda: "cannot be opened" in daemon.log())
        group.save(1)
        group.save(2)
        self.assertIn("cannot be opened", self.status(daemon)["health_text"])
        self.reload(daemon, "[gc]\nkeep-cycles = 5\n")
        self.assertEqual(self.status(daemon)["health"], "green")
        self.assert_whole(daemon, {(1, 1), (2, 1)})

    def test_no_signal_but_two_ends_it(self):
        """In the middle of a save, and with no file to read again."""
        daemon, group = self.saving()
        op = group[0].do("save", 1, 60000)["op"]
        for signum in (signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGPIPE, signal.SIGXFSZ):
            daemon.process.send_signal(signum)
        wait_until("it was asked to read its configuration again", lambda: "has read its configuration again" in daemon.log())
        other = group[1].do("save", 1, 60000)["op"]
        group[0].do("wait", op, 60000)
        group[1].do("wait", other, 60000)
        self.assertEqual(daemon.stop(), 0)
        self.assert_whole(daemon, {(1, 1)})


class Commands(Case):
    def waits(self, daemon, at_hangup):
        """A command that waits for the next checkpoint, and has been sent SIGHUP meanwhile."""
        waits = self.bed.start([BIN / "cairn", "wait", "demo/run", "--next", *daemon.online],
                               stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
                               preexec_fn=lambda: signal.signal(signal.SIGHUP, at_hangup))
        wait_until("it asks", lambda: "viewer joined run=demo/run" in daemon.log())
        waits.send_signal(signal.SIGHUP)
        return waits

    def test_a_terminal_that_hangs_up(self):
        daemon = self.with_saves(1)
        self.assertEqual(self.waits(daemon, signal.SIG_DFL).wait(120), 130)

    def test_nohup_holds(self):
        daemon, group = self.saving(1)
        waits = self.waits(daemon, signal.SIG_IGN)
        for step in range(2, 100):  # the command counts from its first look, which may come after any of these
            group.save(step)
            if waits.poll() is not None:
                break
        self.assertEqual(waits.wait(120), 0)


HOSTILE = "a\x1b[2J\x9b31m\u202e\u2066\u2028\r\nFAKE  line\x07\x7f"


class Terminal(Case):
    """What others wrote is shown by a terminal and not obeyed; JSON has it to the byte."""

    def assert_plain(self, text):
        self.assertEqual([c for c in text if c in "\x1b\x9b\u202e\u2066\u2028\r\x07\x7f"], [], repr(text))
        self.assertEqual([line for line in text.split("\n") if line.startswith("FAKE")], [], text)

    def show(self, *words, status=0):
        """A command as a person runs it: what it prints is plain, and has the hostile text in some form."""
        code, out, err = cairn(*words, *self.where)
        self.assertEqual(code, status, out + err)
        self.assert_plain(out)
        self.assert_plain(err)
        return out + err

    def import_file(self, name, step):
        """A checkpoint from a file that somebody sent: the tensor's name and the file's own are his."""
        path = self.bed.path / name
        header = json.dumps({"__metadata__": {"note": HOSTILE}, HOSTILE: {"dtype": "F32", "shape": [4096],
                                                                          "data_offsets": [0, 16384]}}).encode()
        path.write_bytes(len(header).to_bytes(8, "little") + header + secrets.token_bytes(16384))
        return self.show("import", "demo/run", path, "--step", step, *(("--new-lineage",) if step > 1 else ()))

    def test_hostile_texts(self):
        daemon = self.daemon()
        self.where = daemon.online
        for step in (1, 2, 3, 4):
            self.import_file("x.safetensors", step)
        self.show("tag", "demo/run", "1@1", HOSTILE)
        self.show("annotate", "demo/run", "1@1", "--metric", f"{HOSTILE}=1.5")
        self.show("pin", "demo/run", "1@1", "--reason", HOSTILE)
        self.show("forget", "demo/run", "2@2", "--reason", HOSTILE)
        tagged = cairn_json("status", "demo/run", "1@1", *self.where)["checkpoint"]
        self.assertEqual((tagged["tags"], list(tagged["metrics"])), ([HOSTILE], [HOSTILE]))
        self.assertIn(HOSTILE, tagged["text"])
        self.assertEqual(cairn_json("show", "demo/run", "3@3", *self.where)["entries"][0]["name"], HOSTILE)
        for words in (("ls", "demo/run", "--all"), ("show", "demo/run", "1@1"), ("status", "demo/run", "1@1"),
                      ("status", "demo/run", "2@2")):
            self.assertIn("\\u001b[2J", self.show(*words), words)
        for words in (("diff", "demo/run", "3@3", "4@4"), ("verify",), ("undelete", "demo/run"),
                      ("forget", "demo/run", "--keep-tag", HOSTILE, "--keep-last", 2, "--dry-run")):
            self.show(*words, status=1 if words[0] == "diff" else 0)
        self.assertIn("\\u001b[2J", self.show("ls", HOSTILE, status=2))
        # Damage is told with the tensor's name, by the command, the scrub and the log.
        for path in daemon.files("runs/demo/run/objects/**/*"):
            flip(path, 5000)
        self.assertIn("\\u001b[2J", self.show("verify", status=6))
        self.show("scrub", "--wait", status=6)
        self.show("status")
        self.show("restore", "demo/run", "3@3", "--to", self.bed.path / "out", status=6)
        self.assert_plain(daemon.log())
        self.assert_plain(cairn("ls", *self.where, "--json", check=0)[1])


if __name__ == "__main__":
    main()
