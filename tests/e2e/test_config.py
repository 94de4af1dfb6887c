# SPDX-License-Identifier: Apache-2.0
"""The daemon starts with a configuration that it can keep, refuses stores that it must refuse, and stops in order."""

import re
import signal
import subprocess
import time

from harness import BIN, SOURCE, Case, Daemon, Rank, cairn, cairn_json, listed, main, wait_until


class Configuration(Case):
    def run_cairnd(self, *words, status):
        done = subprocess.run([str(BIN / "cairnd"), *(str(word) for word in words)], timeout=120,
                              stdin=subprocess.DEVNULL, capture_output=True)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        return done.stderr.decode() + done.stdout.decode()

    def check(self, text, status=2):
        path = self.bed.path / "cairnd.conf"
        path.write_text(text)
        return self.run_cairnd("--config", path, "--check-config", status=status)

    def test_good(self):
        self.check(f"[store]\nurl = dir:{self.bed.path}\n[listen]\nunix = /tmp/x\n[memory]\nbuffers = 64MiB\n", 0)

    def test_mistakes_name_line_and_key(self):
        for text, line, fragments in (
                ("[store]\nurl = dir:/x\nurll = dir:/y\n", 3, ("urll",)),
                ("[store]\nurl = dir:/x\n\n[memory]\nbuffers = lots\n", 5, ("buffers", "lots")),
                ("[stores]\nurl = dir:/x\n", 2, ("stores",)),
                ("[store]\nurl = dir:/x\n[session]\nlogin = 10\n", 4, ("login", "10")),
                ("[store]\nurl = dir:/x\nsingle-writer = perhaps\n", 3, ("single-writer", "perhaps")),
                ("[store]\nurl = dir:/x\ncreate = yes\n", 3, ("cairn store create",)),
                ("[listen]\nplaintext-on-network = yes\n", 2, ("plain-tcp = network",)),
                ("[store]\nurl = dir:/x\nwhat is this\n", 3, ())):
            said = self.check(text)
            self.assertRegex(said, rf"cairnd\.conf:{line}\b|line {line}\b", text)
            for fragment in fragments:
                self.assertIn(fragment, said)

    def test_missing_and_contradicting_values(self):
        self.assertIn("url", self.check("[listen]\nunix = /tmp/x\n"))
        self.assertIn("listen", self.check("[store]\nurl = dir:/x\n"))
        self.assertIn("dir:", self.check("[store]\nurl = s3:/x\n[listen]\nunix = /tmp/x\n"))
        said = self.check("[store]\nurl = dir:/x\n[listen]\ntcp = 127.0.0.1:1\n[tls]\ncert = /x\n")
        self.assertIn("tls", said)
        said = self.check("[store]\nurl = dir:/x\n[listen]\ntcp = 127.0.0.1:1\n[save]\nchunk = 5000\n")
        self.assertIn("chunk", said)
        self.run_cairnd("--config", self.bed.path / "nothing.conf", "--check-config", status=2)
        self.assertIn("--nonsense", self.run_cairnd("--nonsense", "1", status=2))
        self.assertIn("needs a value", self.run_cairnd("--store-url", status=2))

    def test_tcp_without_tls_has_to_be_allowed(self):
        """Also on loopback; the remedies are named. What allows loopback does not allow the network."""
        for address, allowed, fragments in (
                ("127.0.0.1:0", "no", ("every user on this host", "[listen] unix", "plain-tcp = loopback")),
                ("[::1]:0", "no", ("--listen-plain-tcp loopback",)),
                ("0.0.0.0:0", "no", ("anyone who can reach the port", "[tls]", "plain-tcp = network")),
                ("0.0.0.0:0", "loopback", ("plain-tcp = network",)),
                ("127.0.0.1:0", "yes", ("plain-tcp is 'yes'", "no, loopback or network"))):
            daemon = Daemon(self.bed, creates=False, listen_tcp=address, listen_plain_tcp=allowed)
            said = self.run_cairnd(*daemon.argv()[1:], status=2)
            for fragment in fragments:
                self.assertIn(fragment, said)
        self.assertIn("cairn store create", self.run_cairnd("--store-create", "yes", status=2))

    def test_print_config_can_be_read_back(self):
        said = self.run_cairnd("--store-url", "dir:/x", "--listen-unix", "/tmp/x", "--print-config", status=0)
        self.check(said, 0)

    def test_the_shipped_file_has_every_key(self):
        """Commented ones with their default: what it says must be what --print-config says."""
        examples = {("store", "uuid"), ("listen", "unix"), ("listen", "tcp"), ("tls", "cert"), ("tls", "key"),
                    ("tls", "ca"), ("store", "url"), ("listen", "unix-mode"), ("log", "format"), ("retention", "interval"),
                    ("scrub", "repair-from"), ("http", "listen"), ("http", "token-file"), ("listen", "advertise")}
        shipped, section = {}, None
        for line in (SOURCE / "deploy" / "cairnd.conf").read_text().splitlines():
            if heading := re.fullmatch(r"(?:# )?\[([a-z]+)\]", line):
                section = heading[1]
            elif pair := re.fullmatch(r"(?:# )?([a-z-]+) = (.*)", line):
                shipped.setdefault((section, pair[1]), pair[2])
        printed = self.run_cairnd("--store-url", "dir:/x", "--listen-unix", "/tmp/x", "--print-config", status=0)
        known, words = 0, ["--store-url", "dir:/x", "--listen-unix", "/tmp/x", "--print-config"]
        for line in printed.splitlines():
            if heading := re.fullmatch(r"\[([a-z]+)\]", line):
                section = heading[1]
            elif pair := re.fullmatch(r"([a-z-]+) = ?(.*)", line):
                known += 1
                self.assertIn((section, pair[1]), shipped)
                if (section, pair[1]) not in examples:
                    words += [f"--{section}-{pair[1]}", shipped[section, pair[1]]]
        self.assertGreater(known, 35, printed)
        self.assertEqual(self.run_cairnd(*words, status=0), printed)  # all of them are the defaults

    def test_the_unit_leaves_room_for_the_budgets(self):
        """MemoryMax follows from the sum of [memory], as the unit says."""
        units = {"KiB": 10, "MiB": 20, "GiB": 30, "M": 20, "G": 30}
        printed = self.run_cairnd("--store-url", "dir:/x", "--listen-unix", "/tmp/x", "--print-config", status=0)
        section = re.search(r"^\[memory\]\n(.*?)(?:^\[|\Z)", printed, re.M | re.S)[1]
        budgets = [int(n) << units[unit] for n, unit in re.findall(r"^[a-z-]+ = (\d+)([A-Z]iB)$", section, re.M)]
        self.assertGreaterEqual(len(budgets), 5)
        n, unit = re.search(r"^MemoryMax=(\d+)([MG])$", (SOURCE / "deploy/cairnd.service").read_text(), re.M).groups()
        self.assertGreaterEqual(int(n) << units[unit], 2 * sum(budgets) + (512 << 20))
        self.assertIn(f"({sum(budgets) >> 20} MiB unless", (SOURCE / "deploy/cairnd.service").read_text())

    def test_version_and_help(self):
        self.assertIn("cairnd 0.", self.run_cairnd("--version", status=0))
        self.assertIn("--store-url", self.run_cairnd("--help", status=0))


class Stores(Case):
    def refused(self, daemon, status, *fragments):
        daemon.launch()
        self.assertEqual(daemon.process.wait(120), status, daemon.tail())
        for fragment in fragments:
            self.assertIn(fragment, daemon.log())

    def test_a_second_daemon(self):
        daemon = self.with_saves(1)
        other = Daemon(self.bed, "other", store_url=f"dir:{daemon.store}")
        self.refused(other, 11, "STORE_LOCKED", str(daemon.store))
        self.assert_whole(daemon, {(1, 1)})

    def test_the_lock_dies_with_its_holder(self):
        daemon = self.with_saves(1)
        daemon.restart()
        self.assert_whole(daemon, {(1, 1)})

    def test_no_store_here(self):
        (self.bed.path / "empty").mkdir()
        for name in ("empty", "absent"):
            self.refused(Daemon(self.bed, name, creates=False), 10, "NO_STORE", "check that its disk is mounted",
                         f"cairn store create 'dir:{self.bed.path / name}'")
        self.assertEqual(list((self.bed.path / "empty").iterdir()), [])
        self.assertFalse((self.bed.path / "absent").exists())

    def test_a_store_is_made_once(self):
        """By its own command, which changes nothing where there is one already; and the daemon starts on it."""
        daemon = Daemon(self.bed, creates=False)
        create = ("store", "create", f"dir:{daemon.store}")
        self.assertEqual(cairn_json(*create, "--dry-run"), {"schema_version": 1, "store": f"dir:{daemon.store}",
                                                            "store_uuid": None, "changed": False})
        self.assertFalse(daemon.store.exists())
        _, said, _ = cairn(*create, check=0)
        uuid = re.search(r"uuid = ([0-9a-f]{32})", said)[1]
        daemon.keys["store_uuid"] = uuid
        daemon.start()
        self.group(daemon).save(1)
        for words in (create, (*create, "--dry-run")):
            _, _, err = cairn(*words, check=1)
            self.assertIn("EXISTS", err)
            self.assertIn(uuid, err)
        for words in ((*create, "--if-missing"), (*create, "--if-missing", "--dry-run")):
            self.assertEqual(cairn_json(*words), {"schema_version": 1, "store": f"dir:{daemon.store}", "store_uuid": uuid,
                                                  "changed": False})
            self.assertIn(f"already holds the store {uuid}", cairn(*words, check=0)[1])
        self.assert_whole(daemon, {(1, 1)})
        self.assertEqual(cairn_json("store", "upgrade", f"dir:{daemon.store}")["store_uuid"], uuid)
        theirs = self.bed.path / "theirs"
        theirs.mkdir()
        (theirs / "thesis.txt").write_text("mine")
        self.assertIn("NOT_EMPTY", cairn("store", "create", f"dir:{theirs}", check=1)[2])
        self.assertIn("create it first", cairn("store", "create", f"dir:{theirs}/a/b", check=4)[2])
        self.assertIn("must be absolute", cairn("store", "create", "dir:relative", check=2)[2])
        self.assertIn("create or upgrade", cairn("store", "erase", f"dir:{theirs}", check=2)[2])
        self.assertEqual([path.name for path in theirs.iterdir()], ["thesis.txt"])

    def test_somebody_elses_directory(self):
        theirs = self.bed.path / "theirs"
        theirs.mkdir()
        (theirs / "thesis.txt").write_text("mine")
        daemon = Daemon(self.bed, "theirs")
        daemon.launch()
        self.assertIn(daemon.process.wait(120), (1, 10))
        self.assertEqual((theirs / "thesis.txt").read_text(), "mine")
        self.assertEqual([path.name for path in theirs.iterdir()], ["thesis.txt"])

    def test_wrong_uuid(self):
        daemon = self.daemon()
        self.assertEqual(daemon.stop(), 0)
        daemon.keys["store_uuid"] = "0123456789abcdef0123456789abcdef"
        self.refused(daemon, 10, "STORE_MISMATCH", "0123456789abcdef0123456789abcdef")

    def test_unknown_feature_bit(self):
        daemon = self.with_saves(1)
        self.assertEqual(daemon.stop(), 0)
        maker = BIN / "e2e_feature"
        done = subprocess.run([str(maker), str(daemon.store), "incompat", "4096"], timeout=120, capture_output=True)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        before = {path: path.stat().st_mtime_ns for path in daemon.files()}
        self.refused(daemon, 10, "STORE_FEATURES")
        cairn("ls", *daemon.offline, check=10)
        self.assertEqual({path: path.stat().st_mtime_ns for path in daemon.files()}, before)

    def test_unwritable_store(self):
        import os
        if os.geteuid() == 0:
            # Permissions do not stop root; a directory that takes no new files does.
            done = subprocess.run(["chattr", "+i", str(self.bed.path)], capture_output=True)
            if done.returncode != 0:
                self.skipTest("chattr +i does not work here")
            self.addCleanup(subprocess.run, ["chattr", "-i", str(self.bed.path)], check=True)
            daemon = Daemon(self.bed, path=self.bed.path / "new")
            daemon.log_path = self.bed.sockets / "log"
        else:
            self.bed.path.chmod(0o500)
            self.addCleanup(self.bed.path.chmod, 0o700)
            daemon = Daemon(self.bed, path=self.bed.path / "new")
            daemon.log_path = self.bed.sockets / "log"
        daemon.launch()
        self.assertNotEqual(daemon.process.wait(120), 0)
        self.assertIn(str(self.bed.path / "new"), daemon.log())

    def test_the_socket_is_in_use(self):
        daemon = self.daemon()
        other = Daemon(self.bed, "other", listen_unix=daemon.socket)
        other.launch()
        self.assertNotEqual(other.process.wait(120), 0)
        self.assertIn(str(daemon.socket), other.log())
        self.assertEqual(cairn("ls", *daemon.online)[0], 0)


class Stop(Case):
    def test_idle(self):
        daemon = self.daemon()
        started = time.monotonic()
        self.assertEqual(daemon.stop(), 0)
        self.assertLess(time.monotonic() - started, 20)
        self.assertFalse(daemon.socket.exists())

    def test_with_a_save_in_flight(self):
        daemon, group = self.saving(1, daemon_grace="1s")
        op = group[0].do("save", 2, 4000)["op"]  # rank 1 never comes
        started = time.monotonic()
        self.assertEqual(daemon.stop(), 0)
        self.assertLess(time.monotonic() - started, 20)
        error, text = group[0].refused("wait", op, 60000)
        self.assertIn(error, ("MISSING_RANKS", "ABORTED", "TIMED_OUT", "UNREACHABLE", "CONNECTION_LOST",
                              "SHUTTING_DOWN", "OUTCOME_UNKNOWN"), text)
        self.assert_whole(daemon, {(1, 1)})

    def test_in_the_middle_of_training(self):
        daemon, group = self.saving(daemon_grace="5s")
        for rank in group.ranks:
            rank.send("train", 1, 100000, 1)
        wait_until("some saves", lambda: [rank.drain() for rank in group.ranks] and len(group[0].events) > 3)
        daemon.process.send_signal(signal.SIGTERM)
        self.assertEqual(daemon.process.wait(120), 0)
        for rank in group.ranks:
            rank.drain()
        acknowledged = {(event["step"], event["term"]) for rank in group.ranks for event in rank.events
                        if event["event"] == "durable"}
        present = set(listed(daemon))
        self.assertLessEqual(acknowledged, present)
        self.assert_whole(daemon, present)
        # The next daemon has it, and the ranks, which are still there, go on.
        daemon.start()
        before = len(group[0].events)
        wait_until("saves go on", lambda: [rank.drain() for rank in group.ranks] and
                   len([e for e in group[0].events[before:] if e["event"] == "durable"]) > 3)

    def test_new_saves_are_refused_while_stopping(self):
        daemon, group = self.saving(1, daemon_grace="3s")
        group[0].do("save", 2, 600000)  # keeps the daemon in its grace
        daemon.process.send_signal(signal.SIGTERM)
        wait_until("it stops", lambda: "stopping" in daemon.log())
        self.assertEqual(daemon.process.wait(120), 0)
        self.assert_whole(daemon, {(1, 1)})


class Restart(Case):
    def test_the_same_catalogue(self):
        daemon = self.daemon()
        for run in ("a/one", "a/two", "b/one"):
            self.run_attempt(daemon, 1, 2, run=run)
        before = {run: listed(daemon, run, "server") for run in ("a/one", "a/two", "b/one")}
        daemon.restart()
        self.assertEqual({run: listed(daemon, run, "server") for run in before}, before)
        self.assertEqual({run: listed(daemon, run) for run in before}, before)

    def test_descriptors_and_temporaries_return_to_base(self):
        from pathlib import Path
        daemon = self.daemon()
        self.group(daemon).save(1)

        def descriptors():
            return len(list(Path(f"/proc/{daemon.process.pid}/fd").iterdir()))

        cairn("ls", *daemon.online, check=0)
        for process in self.bed.processes[1:]:
            process.kill()
        wait_until("sessions are gone", lambda: daemon.log().count("connection closed") >= 3)
        base = descriptors()
        for step in range(2, 8):
            group = self.group(daemon)
            group.restore()
            group.save(step)
            group.kill()
        rank = Rank(self.bed)
        rank.do("open", daemon.url(), 0, 1, "-", "viewer")
        rank.kill()
        wait_until(f"descriptors return to {base}", lambda: descriptors() <= base)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(daemon.files("runs/**/.tmp-*"), [])


if __name__ == "__main__":
    main()
