# SPDX-License-Identifier: Apache-2.0
"""A run whose record is gone, or of yesterday, beside whole checkpoints on a directory is never taken for an empty one.

Nobody says "no checkpoint", no save makes a new record, no term is granted twice, and gc removes nothing."""

import json
import os
import re
import shlex
import shutil
import subprocess
import unittest

from harness import BIN, Case, Group, cairn, flip, main

CARE = {"gc_every": "10ms", "gc_keep_cycles": "1", "scrub_every": "0s"}
LIKE_OTHERS = ("setpriv", "--bounding-set=-dac_override,-dac_read_search")  # root, for whom modes count
PLACES = ("runs", "copy/runs")


class RecordLost(Case):
    def save(self, daemon, steps):
        group = Group(self.bed, daemon.url(), 1)
        group.finish_any(group.all("restore", "latest"))
        for step in steps:
            group.save(step)
        group.kill()

    def files(self, daemon):
        return {path for name in ("objects", "checkpoints")
                for path in (daemon.store / "runs/demo/run" / name).rglob("*") if path.is_file()}

    def records(self, daemon):
        return [path for place in PLACES if (path := daemon.store / place / "demo/run/record").exists()]

    def remedy(self, daemon):
        return f"cairn salvage demo/run --store {shlex.quote(f'dir:{daemon.store}')}"

    def says_what_is_lost(self, daemon, why):
        """With the daemon stopped: once, with a remedy that can be pasted, and by the exit status; a repair as well as a look."""
        place = daemon.offline
        for words in (("verify",), ("verify", "--repair"), ("verify", "demo/run"), ("verify", "--repair", "demo/run")):
            status, out, err = cairn(*words, *place)
            self.assertEqual(status, 6, (words, out, err))
            self.assertEqual(out.count(why), 1, out)
            self.assertIn(self.remedy(daemon), out)
            self.assertIn(" 0 damaged; 1 record damaged; ", out)  # a record is no checkpoint
            said = json.loads(cairn(*words, "--json", *place, check=6)[1])
            self.assertEqual((said["damaged"], said["records_damaged"], said["records_read"]), (1, 1, True))
        status, out, _ = cairn("doctor", *place)
        self.assertEqual(status, 1, out)
        self.assertRegex(out, "unsafe   records: demo/run: DAMAGED")
        self.assertIn(f"cairn salvage --store {shlex.quote(f'dir:{daemon.store}')}", out)
        command = re.search(f"`({re.escape(self.remedy(daemon))})`", cairn("verify", *place, check=6)[1]).group(1)
        self.assertIn(" whole: ", cairn(*shlex.split(command)[1:], check=0)[1])

    def test_a_folder_is_removed_under_a_running_daemon(self):
        daemon = self.with_saves(1, fills=True)
        daemon.copied()
        shutil.rmtree(daemon.store / "runs/demo/run/record")
        group = self.group(daemon)
        self.assertEqual(group.restore(), (1, 1, False))  # never "the run is empty"
        group.all("check", 1)
        for answer in group.finish_any(group.try_all("save", 2, 5000)):
            self.assertFalse(answer["ok"])
            self.assertNotEqual(answer["error"], "NOT_FOUND", answer)
        group.end()
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        group = self.group(daemon)
        self.assertEqual(group.restore(), (1, 1, False))
        group.advance(2)
        group.end()

    def test_gone(self):
        daemon = self.daemon(path=self.bed.path / "a store", **CARE)  # a remedy with this name can be pasted
        self.save(daemon, range(1, 4))
        daemon.stop()
        for path in self.records(daemon):
            shutil.rmtree(path)
        before = self.files(daemon)
        self.assertTrue(before)
        daemon.start()
        group = Group(self.bed, daemon.url(), 1)
        answer = group.finish_any(group.all("restore", "latest"))[0]
        self.assertFalse(answer["ok"], answer)
        self.assertIn("cairn salvage demo/run", str(answer))
        for words in (("ls", "demo/run"), ("restore", "demo/run", "--to", str(self.bed.path / "to"))):
            status, out, err = cairn(*words, *daemon.online)
            self.assertNotEqual(status, 0, out)
            self.assertIn("cairn salvage demo/run", err)
        for words in (("forget", "demo/run", "1@1"), ("pin", "demo/run", "1@1"), ("undelete", "demo/run", "1@1"),
                      ("undelete", "demo/run"), ("verify",), ("verify", "--repair"), ("scrub", "--wait")):
            status, out, err = cairn(*words, *daemon.online)
            self.assertEqual(status, 6, (words, out, err))
            self.assertIn(self.remedy(daemon), out + err, words)
        cairn("gc", *daemon.online)
        self.assertEqual(before, self.files(daemon) & before)
        self.assertEqual(daemon.stop(), 0)
        self.says_what_is_lost(daemon, "the run's record is missing")

    def test_of_yesterday(self):
        daemon = self.daemon(**CARE)
        self.save(daemon, (1, 2))
        daemon.stop()
        kept = self.bed.path / "yesterday"
        for place in self.records(daemon):
            shutil.copytree(place, kept / place.relative_to(daemon.store))
        daemon.start()
        self.save(daemon, (3, 4))
        self.save(daemon, (5,))
        daemon.stop()
        before = self.files(daemon)
        for place in self.records(daemon):
            shutil.rmtree(place)
        for place in PLACES:
            if (kept / place).exists():
                shutil.copytree(kept / place / "demo/run/record", daemon.store / place / "demo/run/record")
        daemon.start()
        self.save(daemon, (6, 7))
        self.save(daemon, (8,))
        for _ in range(4):
            cairn("gc", *daemon.online)
        self.assertEqual(before, self.files(daemon) & before)
        _, out, _ = cairn("status", *daemon.online)
        self.assertIn("cairn salvage demo/run", out)
        terms = sorted({path.parent.name.split("-")[0] for path in self.files(daemon)})
        self.assertEqual(len(terms), 5, terms)
        for words in (("verify",), ("verify", "--repair"), ("scrub", "--wait")):
            status, out, err = cairn(*words, *daemon.online)
            self.assertEqual(status, 6, (words, out, err))
            self.assertIn(self.remedy(daemon), out)
        self.assertEqual("were not read" in cairn("verify", *daemon.online, check=6)[1], True)
        self.assertIn("pass 2 begins", cairn("scrub", *daemon.online, check=0)[1])
        self.assertEqual(daemon.stop(), 0)
        self.says_what_is_lost(daemon, "are not in the run's record")

    @unittest.skipUnless(os.geteuid() == 0 and shutil.which("setpriv"), "only root can be root without its rights")
    def test_rights_that_are_gone(self):
        """The remedy is to give them back, and a record that cannot be written costs no restore."""
        daemon = self.daemon()
        self.save(daemon, (1, 2))
        self.assertEqual(daemon.stop(), 0)
        record = daemon.store / "runs/demo/run/record"
        self.addCleanup(record.chmod, 0o700)
        record.chmod(0)
        said = subprocess.run([*LIKE_OTHERS, BIN / "cairn", "verify", *daemon.offline], capture_output=True,
                              text=True, timeout=60)
        self.assertEqual(said.returncode, 6, said)
        self.assertIn("chmod -R u+rwX", said.stdout)
        self.assertNotIn("salvage", said.stdout + said.stderr)
        record.chmod(0o500)
        argv = daemon.argv
        daemon.argv = lambda **more: [*LIKE_OTHERS, *argv(**more)]
        daemon.start()
        group = self.group(daemon, world=1)
        self.assertEqual(group.restore(), (2, 1, False))
        for result in group.finish_any(group.try_all("save", 3, 5000)):
            self.assertFalse(result["ok"], result)
        group.end()

    def test_a_lost_end(self):
        """Both places lost the end: ranks restore what the rest tells of, and saves are refused with the remedy."""
        daemon, group = self.saving(**CARE)
        for step in (1, 2, 3):
            group.advance(step)
            if step == 2:
                kept = max(int(path.stem, 16) for path in daemon.files("runs/demo/run/record/*.update"))
        group.end()
        self.assertEqual(daemon.stop(), 0)
        for place in self.records(daemon):
            for path in place.iterdir():
                if int(path.stem, 16) > kept:
                    flip(path, path.stat().st_size // 2)
        before = daemon.files("runs/**/*")
        for _ in range(2):
            daemon.start()
            group = self.group(daemon)
            group.all("fill", 99)
            self.assertEqual(group.restore(), (2, 1, True))  # 3 is stored, and newer
            group.all("check", 2)
            for result in group.finish_any(group.try_all("save", 4, 8000)):
                self.assertFalse(result["ok"], result)
                self.assertIn("cairn salvage demo/run", result["text"])
            group.end()
            self.assertIn("a restore uses a record that is not whole", daemon.log())
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(before, daemon.files("runs/**/*"))


if __name__ == "__main__":
    main()
