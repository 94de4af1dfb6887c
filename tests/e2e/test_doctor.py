# SPDX-License-Identifier: Apache-2.0
"""`cairn doctor` calls a good directory good, beside a running daemon and without one, and names what is unsafe with its
remedy and its exit status. (On Ceph: test_ceph.py.)"""

import os
import subprocess
import unittest

from harness import SOURCE, Case, Daemon, cairn, cairn_json, flip, main, wait_until

# The host of the tests may have nothing that sets its clock: a warning.
FINE = (0, 3)


class Doctor(Case):
    def examine(self, path, status=FINE):
        code, _, err = cairn("doctor", "--store", f"dir:{path}")
        self.assertIn(code, status if isinstance(status, tuple) else (status,), err)
        document = cairn_json("doctor", "--store", f"dir:{path}", check=code)
        return {finding["check"] + "/" + finding["level"]: finding for finding in document["findings"]}

    def saved(self):
        daemon = self.with_saves(1, fills=True)
        return daemon

    def test_a_configuration(self):
        """What a daemon would not start with, certificates that do not fit, expire or have expired, and duties that nobody
        does are named with the remedy; one that is well is called so."""
        pki, path = self.bed.path / "pki", self.bed.path / "cairnd.conf"
        subprocess.run([SOURCE / "tools" / "make-test-pki", "--days", "29", "--expired", "--other-ca", pki],
                       check=True, capture_output=True)

        def found(text, status):
            path.write_text(text)
            code, _, _ = cairn("doctor", "--config", path)
            document = cairn_json("doctor", "--config", path, check=code)
            self.assertEqual(code, status, document)
            return {finding["check"] + "/" + finding["level"]: finding["text"] for finding in document["findings"]}

        store = f"[store]\nurl = dir:{self.bed.path}/s\n[listen]\nunix = {self.bed.path}/x\n"
        good = found(store + "[retention]\ninterval = 1h\nkeep-last = 3\n", 0)
        self.assertEqual({key for key in good if not key.endswith("/good")}, set())
        self.assertIn("scrub/warning", found(store + "[retention]\ninterval = 1h\nkeep-last = 3\n[scrub]\nevery = 0s\n", 3))
        if not os.path.exists("/etc/cron.d/cairn"):
            self.assertIn("forget/warning", found(store, 3))
        self.assertIn("cairnd.conf:2", found("[store]\nurl dir:/x\n", 1)["configuration/unsafe"])
        tls = lambda cert, key: f"[tls]\ncert = {pki}/{cert}.crt\nkey = {pki}/{key}.key\nca = {pki}/ca.crt\n"
        self.assertIn("expires in", found(store + tls("server", "server"), 3)["certificates/warning"])  # within 30 days
        self.assertIn("expired", found(store + tls("expired", "expired"), 1)["certificates/unsafe"])
        self.assertIn("client.key", found(store + tls("server", "client"), 1)["listeners/unsafe"])

    def test_a_store_that_is_well(self):
        daemon = self.saved()
        found = self.examine(daemon.store)
        self.assertIn(f"cairnd (pid {daemon.process.pid})", found["lock/good"]["text"])
        # No word of space: this machine's disk may be nearly full.
        for check in ("file system", "permissions", "fsync", "O_DIRECT", "store", "records"):
            self.assertIn(f"{check}/good", found)
        self.assertIn("1 of 1 runs", found["records/good"]["text"])
        self.assertEqual([key for key in found if key.endswith("/unsafe")], [])
        # The copies of the records, and their snapshots, are written a while later or at the end.
        first = lambda files: [path for path in files if daemon.store / "copy" not in path.parents and path.suffix != ".snapshot"]
        served = first(daemon.files())
        self.assertEqual(daemon.stop(), 0)
        files = daemon.files()
        self.assertEqual(first(files), served)
        self.assertIn("no daemon is using the store", self.examine(daemon.store)["lock/good"]["text"])
        self.assertEqual(daemon.files(), files)  # nothing stays behind

    def test_what_is_unsafe_is_named(self):
        daemon = self.saved()
        self.assertEqual(daemon.stop(), 0)
        daemon.store.chmod(0o777)
        found = self.examine(daemon.store, 1)
        self.assertIn("chmod", found["permissions/unsafe"]["remedy"])
        daemon.store.chmod(0o700)
        record = daemon.files("runs/demo/run/record/*")[0]
        flip(record, record.stat().st_size // 2)
        found = self.examine(daemon.store, 1)
        self.assertIn("demo/run", found["records/unsafe"]["text"])
        self.assertIn(f"`cairn verify --repair --store dir:{daemon.store}` repairs what has a second copy",
                      found["records/unsafe"]["remedy"])
        _, out, _ = cairn("doctor", *daemon.offline, "--reserve", "1000TiB", "--only-bad", check=1)
        self.assertIn("unsafe   space:", out)
        self.assertIn("remedy:", out)
        self.assertNotIn("\ngood", out)
        cairn("verify", "--repair", *daemon.offline, check=0)
        self.assertIn("1 of 1 runs", self.examine(daemon.store)["records/good"]["text"])

    def ask(self, daemon, status=FINE):
        """As examine(), of the running daemon."""
        where = daemon.online
        code, _, err = cairn("doctor", *where)
        self.assertIn(code, status if isinstance(status, tuple) else (status,), err)
        document = cairn_json("doctor", *where, check=code)
        return {finding["check"] + "/" + finding["level"]: finding for finding in document["findings"]}

    def test_a_servers_reserve_is_told(self):
        daemon = self.daemon(store_reserve="64MiB")
        found = self.ask(daemon)
        space = found.get("space/good") or found["space/warning"]
        self.assertIn("; 64 MiB beyond them are kept in reserve for records and deletion", space["text"])
        where = daemon.online
        status = cairn_json("status", *where)
        self.assertEqual(status["reserve_bytes"], 64 << 20)
        self.assertGreater(status["records_free_bytes"], status["free_bytes"])
        self.assertIn(", reserve 64.00 MiB", cairn("status", *where, check=0)[1])
        self.assertEqual(daemon.stop(), 0)
        daemon.start(store_reserve="1000TiB")
        remedy = self.ask(daemon, 1)["space/unsafe"]["remedy"]
        self.assertIn("no save is accepted", remedy)
        self.assertNotIn("NO_SPACE", remedy)  # there is room for the update that forgets
        self.assertEqual(daemon.stop(), 0)
        daemon.start(store_reserve="0")
        found = self.ask(daemon)
        self.assertNotIn("kept", (found.get("space/good") or found["space/warning"])["text"])

    def test_a_damaged_record_is_as_unsafe_with_a_server(self):
        daemon = self.saved()
        self.assertIn("1 of 1 runs", self.ask(daemon)["records/good"]["text"])
        record = daemon.files("runs/demo/run/record/*.update")[-1]
        flip(record, record.stat().st_size // 2)
        where = daemon.online
        cairn("scrub", "--wait", *where, check=6)  # its copy in memory is good
        seen = [self.ask(daemon, 1)]
        daemon.copied()
        daemon.kill()
        record = daemon.files("runs/demo/run/record/*.update")[-1]
        flip(record, record.stat().st_size // 2)
        daemon.start()  # which puts it right from its copy, and says so
        found = self.ask(daemon)
        self.assertIn("1 of 1 runs", found["records/good"]["text"])
        self.assertRegex(cairn("status", *where, check=0)[1],
                         "(damage that the second copy covers|read from the second copy): the record file ")
        self.run_attempt(daemon, 2, resumes="latest")
        daemon.kill()
        daemon.strip()
        record = daemon.files("runs/demo/run/record/*.update")[-1]
        flip(record, record.stat().st_size // 2)
        daemon.start()  # without a scrub, and without a copy
        seen += [self.ask(daemon, 1), self.examine(daemon.store, 1)]
        for found in seen:
            self.assertTrue(found["records/unsafe"]["text"].startswith("demo/run: DAMAGED: "), found)
            self.assertIn("/record/0000", found["records/unsafe"]["text"])
            self.assertIn("with the daemon stopped: `cairn verify --repair", found["records/unsafe"]["remedy"])
            self.assertIn("0 of 1 runs", found["records/good"]["text"])

    def test_what_is_damaged_stays_so_until_a_pass_finds_it_whole(self):
        daemon = self.daemon(scrub_every="0s", failpoints="dir.heal=error:IO")  # else the scrub has the record repaired
        for run in ("demo/a", "demo/run"):
            self.run_attempt(daemon, 1, run=run, world=1)
        where = daemon.online
        damaged = (daemon.files("runs/demo/run/record/*.update")[-1], daemon.files("runs/demo/run/objects/1-1/0-*")[0])
        for path in damaged:
            flip(path, 70)
        cairn("scrub", "--wait", *where, check=6)
        now = lambda: cairn_json("scrub", "--status", *where)["scrub"]
        cairn("scrub", "--rate", "1", *where, check=0)  # a byte a second: it will not come to the end of demo/a
        wait_until("the next pass is at demo/a", lambda: now()["pass"] == 2 and "demo/a " in (now()["at"] or ""))
        self.assertEqual(now()["findings"], 0)
        found = self.ask(daemon, 1)
        self.assertIn("demo/run: DAMAGED: ", found["records/unsafe"]["text"])
        self.assertIn("damaged: 1 checkpoint, 1 run's record;", found["health/warning"]["text"])
        self.assertIn("health     yellow", cairn("status", *where, check=0)[1])
        for path in damaged:
            flip(path, 70)
        cairn("scrub", "--wait", "--rate", "0", *where, check=0)
        found = self.ask(daemon)
        self.assertIn("2 of 2 runs", found["records/good"]["text"])
        self.assertNotIn("damaged", found.get("health/warning", {"text": ""})["text"])

    def test_where_there_is_no_store(self):
        (self.bed.path / "empty").mkdir(mode=0o700)
        found = self.examine(self.bed.path / "empty", 3)
        self.assertIn("cairn store create", found["store/warning"]["remedy"])
        self.assertEqual(os.listdir(self.bed.path / "empty"), [])
        cairn("doctor", "--store", f"dir:{self.bed.path}/absent", check=10)
        cairn("doctor", "--store", "nfs:/x", check=2)
        cairn("doctor", "--server", f"unix:{self.bed.path}/x", "--timeout", "1s", check=5)

    def test_a_memory_disk(self):
        if not os.access("/dev/shm", os.W_OK):
            self.skipTest("no /dev/shm")
        daemon = Daemon(self.bed, "x", path=f"/dev/shm/cairn-doctor-{os.getpid()}", store_single_writer="yes")
        self.addCleanup(lambda: os.system(f"rm -rf '{daemon.store}'"))
        daemon.start()
        self.assertEqual(daemon.stop(), 0)
        self.assertIn("power cut", self.examine(daemon.store, 1)["file system/unsafe"]["remedy"])


if __name__ == "__main__":
    unittest.TestCase.maxDiff = None
    main()
