# SPDX-License-Identifier: Apache-2.0
"""The daemon keeps its store in order: a scrub finds real damage, names it, and `latest` stays good; what failed saves
left is collected; killed in the middle of either, nothing is lost and the next one goes on; `cairn status` says it all."""

import json
import shutil
import subprocess
import threading
import time

from harness import BIN, Case, Group, cairn, cairn_json, flip, listed, main, wait_until


class Care(Case):
    KEYS = {"scrub_every": "0s", "gc_every": "0s"}

    def saved(self, steps=3, **keys):
        return self.with_saves(*range(1, steps + 1), fills=True, **{**self.KEYS, **keys})

    def scrub(self, daemon, check=0, *words):
        return cairn_json("scrub", "--wait", *words, *daemon.online, check=check)["scrub"]

    def gc(self, daemon, *words, check=0):
        return cairn_json("gc", *words, *daemon.online, check=check)["gc"]

    def small(self, daemon, step, kind):
        return daemon.files(f"runs/demo/run/checkpoints/1-{step}/{kind}*")[0]

    def test_a_good_store(self):
        daemon = self.saved()
        stored = sum(path.stat().st_size for path in daemon.files("runs/demo/run/objects/**/*"))
        status = self.scrub(daemon)
        self.assertEqual((status["ckpts"], status["findings"], status["errors_total"]), (3, 0, 0))
        self.assertGreater(status["bytes"], stored)
        self.assertEqual(self.gc(daemon)["objects"], 0)
        _, out, _ = cairn("status", *daemon.online, check=0)
        for word in ("server     cairnd", "writable", "scrub      pass 1 ended", "3 checkpoints", "gc         pass 1"):
            self.assertIn(word, out)
        document = cairn_json("status", *daemon.online)
        self.assertEqual((document["runs"], document["scrub"]["ckpts"]), (1, 3))

    def test_damage_of_each_kind_is_named(self):
        daemon = self.saved(7)
        objects = lambda step: daemon.files(f"runs/demo/run/objects/1-{step}/1-*")[0]
        flip(objects(1), 0)
        flip(objects(2), objects(2).stat().st_size - 100)
        flip(self.small(daemon, 3, "part-1"), 300)
        flip(self.small(daemon, 4, "manifest"), 60)
        flip(self.small(daemon, 5, "page-0"), 40)
        objects(6).unlink()
        _, out, err = cairn("scrub", "--wait", *daemon.online, check=6)
        self.assertRegex(err, r"^cairn: scrub has found \d+ damaged items, last in demo/run 6@1: .*; `cairn scrub --status` names.*\n$")
        for step in range(1, 7):
            self.assertIn(f"demo/run {step}@1: {'suspect' if step == 2 else 'damaged'}", out)
        health = {step: entry["health"] for (step, _), entry in listed(daemon).items()}
        self.assertEqual(health, {1: "damaged", 2: "suspect", 3: "damaged", 4: "damaged", 5: "damaged",
                                  6: "damaged", 7: "verified"})
        for step, word in {1: "damaged", 2: "suspect", 7: "verified"}.items():  # the same word by every command
            for how in (daemon.online, daemon.offline):
                said = cairn("status", "demo/run", f"{step}@1", *how, check=0)[1]
                self.assertEqual(said, f"{step}@1: committed, {word}\n")
                self.assertRegex(cairn("ls", "demo/run", *how, check=0)[1], rf" {step}@1 +{word} ")
                self.assertIn(f"health      {word}\n", cairn("show", "demo/run", f"{step}@1", *how, check=0)[1])
        self.assertIn("(rank 1, object 1@1/1-", out)
        self.assertIn("scrub: damage run=demo/run ckpt=1@1", daemon.log())
        # `latest` passes damaged ones over; what is good can be restored; nothing was deleted.
        flip(objects(7), 0)
        self.scrub(daemon, 6)
        group = self.group(daemon)
        self.assertEqual(group.restore()[0], 2)  # the footer of 2 is bad, its bytes are not
        group.end()
        for how in (daemon.online, daemon.offline):
            out = self.bed.path / f"out{how[0]}"
            self.assertIn("2@1", cairn("restore", "demo/run", "--to", out, *how, check=3)[1])  # known damage is said, too
            cairn("restore", "demo/run", "--to", out / "none", "--no-fallback", *how, check=6)
            self.assertIn("the newest good one, name 2@1", cairn("export", "demo/run", "--to", out / "none", *how, check=6)[2])

    def test_what_is_whole_again_is_good_again(self):
        daemon = self.saved(2)
        path = daemon.files("runs/demo/run/objects/1-2/0-*")[0]
        flip(path, 10)
        self.assertEqual(self.scrub(daemon, 6)["findings"], 1)
        flip(path, 10)
        status = self.scrub(daemon)
        self.assertEqual((status["findings"], status["healed_total"]), (0, 1))
        self.assertEqual(listed(daemon)[(2, 1)]["health"], "verified")

    def test_a_damaged_record_is_said(self):
        daemon = self.saved(2)
        flip(daemon.files("runs/demo/run/record/*.update")[-1], 70)
        _, out, _ = cairn("scrub", "--wait", *daemon.online, check=6)
        self.assertIn("the run's record", out)
        # The copy in memory is good: saves go on, and make a snapshot in time.
        self.run_attempt(daemon, resumes="latest")

    def test_killed_in_the_middle_of_a_scrub(self):
        daemon = self.saved(6, scrub_rate="2KiB")  # none of the three comes to its end
        flip(daemon.files("runs/demo/run/objects/1-6/1-*")[0], 0)
        for _ in range(3):
            cairn("scrub", *daemon.online, check=0)
            time.sleep(0.3)  # wherever it is by now
            daemon.restart()
        status = self.scrub(daemon, 6, "--rate", "100MiB")
        self.assertEqual((status["pass"], status["findings"]), (1, 1))
        self.assertEqual(listed(daemon)[(6, 1)]["health"], "damaged")

    def test_a_new_rate_counts_from_now(self):
        daemon = self.saved(6, scrub_rate="1")  # a byte a second
        now = lambda: cairn_json("scrub", "--status", *daemon.online)["scrub"]
        for number, rate in enumerate(("0", "100MiB"), 1):
            cairn("scrub", "--rate", "1", *daemon.online, check=0)
            wait_until("it has read something, and waits", lambda: now()["running"] and now()["bytes"] > 0)
            status = self.scrub(daemon, 0, "--rate", rate)
            self.assertEqual((status["pass"], status["ckpts"]), (number, 6))
        _, _, err = cairn("scrub", "--rate", "fast", *daemon.online, check=2)
        self.assertIn("--rate", err)

    def left(self, daemon, step):
        """Objects of a save that never ends: rank 0 only, then killed; a later attempt fences it."""
        group = self.group(daemon)
        group.all("fill", step)
        group[0].do("save", step, 60000)
        wait_until("an object is sealed", lambda: daemon.files(f"runs/demo/run/objects/*-{step}/[0-9]*-*-*"))
        group.kill()

    def test_what_failed_saves_left_goes(self):
        daemon = self.saved(1)
        self.left(daemon, 50)
        self.left(daemon, 60)
        group = self.group(daemon)
        group.restore()
        group.all("fill", 3)
        group.save(70)
        group.end()
        garbage = lambda: daemon.files("runs/demo/run/objects/*-50/*") + daemon.files("runs/demo/run/objects/*-60/*")
        before = len(garbage())
        self.assertGreater(before, 0)
        first = self.gc(daemon)
        self.assertEqual(len(garbage()), before)  # found dead, waits for the next pass
        self.assertGreaterEqual(first["kept"], before)
        self.assertEqual(self.gc(daemon, "--dry-run")["objects"], before)
        self.assertEqual(len(garbage()), before)
        second = self.gc(daemon)
        self.assertEqual((len(garbage()), second["objects"]), (0, before))
        self.assertGreater(second["bytes"], 0)
        self.assert_whole(daemon, listed(daemon))

    def test_saves_go_on_beside_gc(self):
        """Garbage of both kinds is removed while a run saves, also what its newest saves' bases have left: no save fails, none
        waits for gc, and all that is listed is whole."""
        daemon = self.saved(1, gc_every="1s", gc_keep_cycles="1", save_full_every="6")
        for step in range(900, 905):
            self.left(daemon, step)
        counters = lambda: cairn_json("status", *daemon.online)["gc"]
        stop, ended = threading.Event(), []

        def collect():
            while not stop.is_set():
                ended.append(cairn("gc", *daemon.online)[0])
                ended.append(cairn("forget", "demo/run", "--keep-last", 3, "--keep-superseded", "0s", *daemon.online)[0])

        group = self.group(daemon)
        group.restore(1)
        collector = threading.Thread(target=collect)
        collector.start()
        took, step = [], 1000
        try:
            while step < 1040 or (counters()["objects_total"] < 30 and step < 1400):
                if step % 40 == 39:
                    group.end()
                    group = self.group(daemon)
                    self.assertEqual(group.restore()[0], step - 1)
                group.all("fill", step // 3)  # two of three saves refer to the one before
                began = time.monotonic()
                group.save(step)
                took.append(time.monotonic() - began)
                step += 1
            told = counters()
        finally:
            stop.set()
            collector.join()
        self.assertGreaterEqual(told["objects_total"], 30)
        self.assertEqual(told["errors_total"], 0)
        self.assertLess(max(took), 30, took)  # the deadline is 60 s
        self.assertEqual(set(ended) - {0, 5, 11}, set())  # 5, 11: a pass was at work
        group.all("fill", step)
        self.assertEqual(group.restore()[0], step - 1)
        group.all("check", (step - 1) // 3)
        group.end()
        self.gc(daemon)
        self.gc(daemon)
        self.assertEqual(daemon.files("runs/demo/run/objects/*-90[0-4]/*"), [])
        self.assert_whole(daemon, listed(daemon))

    def test_killed_in_the_middle_of_gc(self):
        daemon = self.saved(2)
        for step in range(100, 106):
            self.left(daemon, step)
        self.run_attempt(daemon, 200, resumes="latest")
        for number in range(4):
            self.gc(daemon, "--status")
            self.gc(daemon)
            self.bed.start([BIN / "cairn", "gc", *daemon.online], stdout=subprocess.DEVNULL)
            time.sleep(0.008 * number)
            daemon.restart()
        self.gc(daemon)
        self.gc(daemon)
        self.assertEqual(daemon.files("runs/demo/run/objects/*-1[01][0-9]/*"), [])
        self.assert_whole(daemon, listed(daemon))

    def test_damage_is_damage_and_told_once(self):
        """A run whose record is damaged: its own exit status, its whole text, once; the other runs are collected."""
        daemon = self.saved(1)
        self.run_attempt(daemon, 1, run="demo/other", world=1)
        daemon.stop()
        for record in daemon.files("runs/demo/run/record/*") + daemon.files("copy/runs/demo/run/record/*"):
            flip(record, record.stat().st_size // 2)
        daemon.start()
        for where in (daemon.online, daemon.offline):
            if where[0] == "--store":
                daemon.stop()
            code, out, err = cairn("gc", *where)
            self.assertEqual(code, 6, out + err)
            self.assertIn("of 2 runs", out)
            self.assertTrue(err.startswith("cairn: DAMAGED: demo/run: nothing of the run is removed: the run's record: "), err)
            self.assertIn("record/0000", err)
            self.assertEqual(err.count("\n"), 1, err)
            self.assertNotIn("the run's record", out)
            code, out, err = cairn("gc", "--json", *where)
            gc, said = json.loads(out)["gc"], json.loads(err)
            self.assertEqual((code, said["code"], said["error"], gc["error"]), (6, 6, "DAMAGED", "DAMAGED"))
            self.assertEqual(said["message"], gc["text"])

    def test_another_runs_part_in_its_place_takes_nothing(self):
        """Whole, of the same step and rank: what it names is not what is referred to, which has to stay."""
        daemon = self.saved(2)
        other = Group(self.bed, daemon.url("demo/other"), 2)
        for step in (1, 2):
            other.all("fill", step + 10)
            other.save(step)
        other.end()
        self.assertEqual(daemon.stop(), 0)
        part, wrong = (daemon.files(f"runs/demo/{run}/checkpoints/1-1/part-0-*")[0] for run in ("run", "other"))
        right, objects = part.read_bytes(), daemon.files("runs/demo/run/objects/*/*")
        part.chmod(0o600)
        part.write_bytes(wrong.read_bytes())
        for _ in range(2):
            _, _, err = cairn("gc", *daemon.offline, check=6)
            self.assertIn("demo/run: reading an object table: the part of rank 0 of checkpoint 1@1 cannot be read "
                          "(the part belongs to another checkpoint or rank)", err)
        self.assertEqual(daemon.files("runs/demo/run/objects/*/*"), objects)
        part.write_bytes(right)
        self.assert_whole(daemon, {(1, 1), (2, 1)})

    def test_an_older_copy_of_the_record_takes_nothing(self):
        """Somebody puts yesterday's record back: what was committed since is unknown to it, and stays until the right one is
        there again."""
        daemon = self.daemon(**self.KEYS)
        record, old, new = (daemon.store / "runs/demo/run/record", self.bed.path / "old", self.bed.path / "new")
        group = self.group(daemon)
        for step in (1, 2, 3):
            group.advance(step)
            if step == 2:
                shutil.copytree(record, old)
        group.end()
        group = self.group(daemon)
        group.restore()
        group.all("fill", 4)
        group.save(4)  # of a term that the old copy does not know either
        group.end()
        self.assertEqual(daemon.stop(), 0)
        files = daemon.files("runs/demo/run/[co]*/**/*")
        record.rename(new)
        shutil.copytree(old, record)
        (daemon.store / "copy").rename(self.bed.path / "copy")  # which would bring it forward
        for _ in range(2):
            _, _, err = cairn("gc", *daemon.offline, "--cycle", "--keep-cycles", "1", check=6)
            self.assertIn("2 stored checkpoints are not in the run's record (newest: 4@2), which is an older copy", err)
        self.assertEqual(daemon.files("runs/demo/run/[co]*/**/*"), files)
        shutil.rmtree(record)
        new.rename(record)
        shutil.rmtree(daemon.store / "copy")  # of the older one, which went on by itself
        (self.bed.path / "copy").rename(daemon.store / "copy")
        self.assert_whole(daemon, {(1, 1), (2, 1), (3, 1), (4, 2)})

    def test_another_runs_record_takes_nothing(self):
        daemon = self.saved(2)
        for step in (1, 12):  # in two terms; the first has the same name in both
            other = Group(self.bed, daemon.url("demo/other"), 2)
            if step > 1:
                other.restore()
            other.all("fill", step + 20)
            other.save(step)
            other.end()
        self.assertEqual(daemon.stop(), 0)
        one, two, aside = (daemon.store / "runs/demo/run/record", daemon.store / "runs/demo/other/record", self.bed.path / "aside")
        files = daemon.files("runs/demo/*/[co]*/**/*")
        for _ in range(2):  # there, and back
            one.rename(aside)
            two.rename(one)
            aside.rename(two)
            status = cairn("gc", *daemon.offline, "--cycle", "--keep-cycles", "1")[0]
            self.assertEqual(daemon.files("runs/demo/*/[co]*/**/*"), files)
        self.assertEqual(status, 0)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        self.assert_whole(daemon, {(1, 1), (12, 2)}, run="demo/other")

    def test_of_a_long_error_nothing_is_cut(self):
        """Cron mails stderr alone."""
        daemon = self.daemon("s" * 60, **self.KEYS)
        name = "p" * 64 + "/" + "r" * 64
        self.run_attempt(daemon, 1, run=name, world=1)
        daemon.stop()
        for record in daemon.files("runs/**/record/*") + daemon.files("copy/runs/**/record/*"):
            flip(record, record.stat().st_size // 2)
        daemon.start()
        for where in (daemon.online, daemon.offline):
            if where[0] == "--store":
                daemon.stop()
            _, out, err = cairn("gc", "--json", *where, check=6)
            text, said = json.loads(out)["gc"]["text"], json.loads(err)
            self.assertGreater(len(text), 480)
            self.assertEqual(said["message"], text)
            _, _, err = cairn("gc", *where, check=6)
            self.assertEqual(err, f"cairn: DAMAGED: {text}\n")

    def test_without_a_daemon(self):
        daemon = self.saved(1)
        self.left(daemon, 50)
        self.run_attempt(daemon, 70, resumes="latest")
        store = daemon.offline
        status, _, err = cairn("gc", *store)
        self.assertEqual(status, 11, err)  # a daemon has it
        daemon.stop()
        cairn("forget", "demo/run", "1", "--keep-least", 1, *store, check=0)
        files = daemon.files()
        dry = cairn_json("gc", "--cycle", "--keep-cycles", 1, "--dry-run", *store)["gc"]
        self.assertEqual(daemon.files(), files)
        done = cairn_json("gc", "--cycle", "--keep-cycles", 1, *store)["gc"]
        told = ("reclaimed", "objects", "smalls", "bytes", "kept", "runs")
        self.assertEqual({name: dry[name] for name in told}, {name: done[name] for name in told})
        self.assertGreater(done["objects"], 0)
        self.assertGreater(done["smalls"], 2)
        self.assertEqual((done["reclaimed"], dry["dry_run"], done["dry_run"]), (1, True, False))
        self.assertEqual(daemon.files("runs/demo/run/objects/*-50/*"), [])
        self.assert_whole(daemon, listed(daemon))


if __name__ == "__main__":
    main()
