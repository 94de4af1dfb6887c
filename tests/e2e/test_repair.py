# SPDX-License-Identifier: Apache-2.0
"""`cairn verify --repair`: what is damaged is put right from copies, byte for byte, with a daemon and without;
what has none is named and left alone; killed or out of space in the middle, nothing is worse than before."""

import os
import shutil

from harness import BIN, Case, cairn, cairn_json, flip, listed, main, wait_until

KEYS = {"scrub_every": "0s", "gc_every": "0s", "save_full_every": "1"}


class Repair(Case):
    def saved(self, steps=2, same=True, stop=True, **keys):
        """Each save is whole; same: all have the same content, so that each has copies of the others'."""
        daemon = self.daemon(**{**KEYS, **keys})
        group = self.group(daemon)
        group.all("fill", 1)
        for step in range(1, steps + 1):
            if not same:
                group.all("fill", step)
            group.save(step)
        group.end()
        if stop:
            self.assertEqual(daemon.stop(), 0)
        return daemon

    def offline(self, daemon):
        return ("--store", f"dir:{daemon.store}")

    def online(self, daemon):
        return ("--server", f"unix:{daemon.socket}")

    def objects(self, daemon, step, rank=0):
        return daemon.files(f"runs/demo/run/objects/1-{step}/{rank}-*")

    def small(self, daemon, step, kind):
        return daemon.files(f"runs/demo/run/checkpoints/1-{step}/{kind}*")[0]

    def contents(self, daemon):
        return {path: path.read_bytes() for path in daemon.files("runs/**/*")
                if path.is_file() and "record" not in path.parts}

    def record(self, daemon):
        return b"".join(path.read_bytes() for path in daemon.files("runs/demo/run/record/*"))

    def repair(self, where, *words, check=0):
        return cairn_json("verify", "--repair", *words, *where, check=check)

    def test_from_another_object_of_the_run(self):
        daemon = self.saved()
        store, path = self.offline(daemon), self.objects(daemon, 2)[0]
        before = self.contents(daemon)
        flip(path, 0)
        damaged = path.read_bytes()
        cairn("verify", *store, check=6)
        said = self.repair(store)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        entry = next(entry for entry in said["checked"] if entry["step"] == 2)
        self.assertIn("model.w", entry["found"][0])
        self.assertIn("other objects of the run", entry["repaired"][0])
        after = self.contents(daemon)
        self.assertEqual({name: after[name] for name in before}, before)
        aside = set(after) - set(before)
        self.assertEqual([after[name] for name in aside], [damaged])
        self.assertIn(f"object 2@1/{path.name}: 1 chunks".encode(), self.record(daemon))
        self.assertEqual(self.repair(store)["repaired"], 0)  # what verifies is not touched
        cairn("gc", *store, check=0)  # both passes
        self.assertEqual(self.contents(daemon), before)
        daemon.start()
        group = self.group(daemon)
        self.assertEqual(group.restore(), (2, 1, False))
        group.all("check", 1)

    def test_footer_and_padding_need_no_copy(self):
        daemon = self.saved(1)
        before = self.contents(daemon)
        first, second = self.objects(daemon, 1)[0], self.objects(daemon, 1, 1)[0]
        flip(first, first.stat().st_size - 100)
        flip(first, first.stat().st_size - 4000)
        flip(second, second.stat().st_size - 4097)
        said = self.repair(self.offline(daemon))
        self.assertEqual((said["damaged"], said["repaired"]), (0, 2))
        after = self.contents(daemon)
        self.assertEqual({name: after[name] for name in before}, before)

    def test_without_a_copy_it_is_named_and_left_alone(self):
        daemon = self.saved(2, same=False)
        path = self.objects(daemon, 1)[0]
        flip(path, 0)
        flip(self.small(daemon, 2, "part-1"), 300)
        before = self.contents(daemon)
        said = self.repair(self.offline(daemon), check=6)
        self.assertEqual((said["damaged"], said["repaired"]), (2, 0))
        left = {entry["step"]: entry["left"] for entry in said["checked"]}
        self.assertIn("model.w (rank 0, object 1@1/0-", left[1][0])
        self.assertIn("no copy", left[1][0])
        self.assertIn("part of rank 1", left[2][0])
        self.assertEqual(self.contents(daemon), before)
        self.assertEqual({step: entry["health"] for (step, _), entry in listed(daemon).items()},
                         {1: "damaged", 2: "damaged"})

    def test_from_a_mirror(self):
        daemon = self.saved(4, same=False)
        mirror, before = self.bed.path / "mirror", self.contents(daemon)
        shutil.copytree(daemon.store, mirror)
        flip(self.objects(daemon, 1)[0], 0)
        missing = self.objects(daemon, 1, 1)[0]
        missing.unlink()
        self.small(daemon, 2, "part-0").unlink()
        for step, kind in ((2, "part-1"), (3, "manifest"), (4, "page-0")):
            flip(self.small(daemon, step, kind), 60)
        source = ("--from", f"dir:{mirror}")
        lines = lambda said, word: [line for entry in said["checked"] for line in entry.get(word, [])]
        left = lines(self.repair(self.offline(daemon), check=6), "left")
        self.assertEqual([line for line in left if missing.name in line], [line for line in left if "is missing, and" in line])
        self.assertRegex("\n".join(left), rf"object 1@1/{missing.name} is missing, and (\d+) of its \1 chunks have no copy")
        said = self.repair(self.offline(daemon), *source)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 6))
        done = lines(said, "repaired")
        # What was missing left nothing behind: nobody is sent to look for its damaged bytes.
        self.assertEqual(sorted("the damaged bytes" in line for line in done if "object 1@1/" in line), [False, True])
        self.assertEqual(sorted("was missing" in line for line in done), [False] * 4 + [True] * 2)
        self.assertIn(f"object 1@1/{missing.name}: was missing; ".encode(), self.record(daemon))
        after = self.contents(daemon)
        self.assertEqual({name: after[name] for name in before}, before)
        self.assertEqual({entry["health"] for entry in listed(daemon).values()}, {"verified"})
        cairn("gc", *self.offline(daemon), check=0)
        self.assertEqual(self.contents(daemon), before)
        # And the other way round, with the same damage in both: nothing can be done.
        for path in (self.objects(daemon, 1)[0], mirror / self.objects(daemon, 1)[0].relative_to(daemon.store)):
            flip(path, 0)
        damaged = self.contents(daemon)
        said = self.repair(self.offline(daemon), *source, check=6)
        self.assertEqual((said["damaged"], said["repaired"]), (1, 0))
        self.assertEqual(self.contents(daemon), damaged)
        cairn("verify", "--repair", *self.offline(daemon), "--from", f"dir:{mirror}-typo", check=10)
        cairn("verify", *self.offline(daemon), *source, check=2)
        cairn("verify", "--repair", "--no-read-data", *self.offline(daemon), check=2)

    def test_an_object_that_a_younger_checkpoint_refers_to(self):
        daemon = self.saved(4, save_full_every="3")
        self.assertEqual([len(self.objects(daemon, step)) > 0 for step in (1, 2, 3, 4)], [True, False, False, True])
        before = self.contents(daemon)
        flip(self.objects(daemon, 1)[0], 0)
        said = self.repair(self.offline(daemon), "demo/run", "2@1")
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        after = self.contents(daemon)
        self.assertEqual({name: after[name] for name in before}, before)
        cairn("verify", *self.offline(daemon), check=0)

    def test_by_the_daemon(self):
        daemon = self.saved(3, stop=False)
        before = self.contents(daemon)
        flip(self.objects(daemon, 3)[0], 0)
        cairn("scrub", "--wait", *self.online(daemon), check=6)
        self.assertEqual(listed(daemon)[3, 1]["health"], "damaged")
        self.assertEqual(cairn("verify", "--repair", *self.offline(daemon))[0], 11)
        said = self.repair(self.online(daemon))
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        after = self.contents(daemon)
        self.assertEqual({name: after[name] for name in before}, before)
        self.assertEqual(listed(daemon)[3, 1]["health"], "verified")
        self.assertIn("repair: ended", daemon.log())
        group = self.group(daemon)
        self.assertEqual(group.restore(), (3, 1, False))
        for _ in range(2):  # the running daemon's gc has seen that checkpoint before
            cairn("gc", *self.online(daemon), check=0)
        wait_until("the damaged bytes are gone", lambda: self.contents(daemon) == before)

    def test_by_the_scrub(self):
        mirror = self.bed.path / "mirror"
        daemon = self.saved(2, same=False)
        shutil.copytree(daemon.store, mirror)
        flip(self.objects(daemon, 2)[0], 0)
        daemon.start(scrub_repair="yes", scrub_repair_from=f"dir:{mirror}")
        _, out, _ = cairn("scrub", "--wait", *self.online(daemon))
        self.assertIn("model.w", out)
        wait_until("it is repaired", lambda: "verified again" in daemon.log())
        self.assertEqual(listed(daemon)[2, 1]["health"], "verified")
        cairn("verify", *self.online(daemon), check=0)

    def with_failpoint(self, points, daemon, *words):
        return cairn("verify", "--repair", *words, *self.offline(daemon), env={"CAIRN_FAILPOINTS": points})

    def test_killed_at_each_step(self):
        daemon = self.saved()
        path = self.objects(daemon, 2)[0]
        before = self.contents(daemon)
        flip(path, 0)
        damaged, killed = path.read_bytes(), 0
        for point, numbers in (("repair.write", (1,)), ("dir.fsync", (2,)), ("dir.rename", (2, 3)),
                               ("dir.exchange", (1,)), ("vfs.exchange", (1,)), ("vfs.dirsync", (3, 4, 5))):
            for number in numbers:
                status, _, _ = self.with_failpoint(f"{point}=kill@{number}", daemon, "demo/run", "2@1")
                killed += status == -9
                now = path.read_bytes()
                self.assertIn(now, (damaged, before[path]), (point, number))
                if now == before[path]:
                    flip(path, 0)
                for name, content in before.items():
                    self.assertTrue(name == path or name.read_bytes() == content, name)
        self.assertGreater(killed, 6)
        self.assertEqual(self.repair(self.offline(daemon))["damaged"], 0)
        cairn("gc", *self.offline(daemon), check=0)
        self.assertEqual(self.contents(daemon), before)
        self.assertEqual(daemon.files("runs/**/.tmp-*"), [])

    def test_no_space_and_no_exchange(self):
        daemon = self.saved()
        flip(self.objects(daemon, 2)[0], 0)
        before = self.contents(daemon)
        for point, word in (("vfs.allocate=error:NO_SPACE", "NO_SPACE"), ("repair.write=error:NO_SPACE", "NO_SPACE"),
                            ("dir.write=error:IO", "IO"), ("dir.fsync=error:IO@2", "IO"), ("vfs.exchange=error:UNSUPPORTED", "UNSUPPORTED")):
            status, out, err = self.with_failpoint(point, daemon, "demo/run", "2@1")
            self.assertEqual(status, 6, out + err)
            self.assertIn("left: object 2@1/0-", out)
            self.assertEqual(self.contents(daemon), before, point)
        self.assertEqual(self.repair(self.offline(daemon))["damaged"], 0)

    def test_one_at_a_time(self):
        os.environ["CAIRN_FAILPOINTS"] = "repair.write=delay:100000"  # longer than the second takes to be refused
        try:
            daemon = self.saved(3, stop=False)
        finally:
            del os.environ["CAIRN_FAILPOINTS"]
        for step in (2, 3):
            flip(self.objects(daemon, step)[0], 0)
        before = self.contents(daemon)
        first = self.bed.start([BIN / "cairn", "verify", "--repair", "demo/run", "2@1", "--timeout", "5s",
                                *self.online(daemon)])
        wait_until("the first is at work", lambda: daemon.files("runs/demo/run/objects/1-2/.tmp-*"))
        status, _, err = cairn("verify", "--repair", "demo/run", "3@1", "--timeout", "2s", *self.online(daemon))
        self.assertIn(status, (5, 11), err)  # asked again until the time was over
        self.assertIn("a repair is at work on checkpoint 2@1", err)
        daemon.kill()
        self.assertNotEqual(first.wait(60), 0)
        daemon.start()
        self.assertEqual(self.contents(daemon), before)
        self.assertEqual(self.repair(self.online(daemon))["repaired"], 2)


if __name__ == "__main__":
    main()
