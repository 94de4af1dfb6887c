# SPDX-License-Identifier: Apache-2.0
"""`cairn verify --repair` puts right from copies what is damaged, byte for byte, with a daemon and without; what has no
copy is named and left alone; a repair that is killed or out of space in the middle leaves nothing worse than before."""

import shutil
from pathlib import Path

from frames import FEATURE_RECORD, REPAIR_RUN
from harness import BIN, Case, cairn, cairn_json, flip, listed, main, wait_until

KEYS = {"scrub_every": "0s", "gc_every": "0s", "save_full_every": "1"}


class Repairing(Case):
    def saved(self, steps=2, same=True, stop=True, **keys):
        """Each save is whole; same: all have the same content, so that each has copies of the others'."""
        daemon, group = self.saving(**{**KEYS, **keys})
        group.all("fill", 1)
        for step in range(1, steps + 1):
            if not same:
                group.all("fill", step)
            group.save(step)
        group.end()
        if stop:
            self.assertEqual(daemon.stop(), 0)
        return daemon

    def objects(self, daemon, step, rank=0):
        return daemon.files(f"runs/demo/run/objects/1-{step}/{rank}-*")

    def small(self, daemon, step, kind):
        return daemon.files(f"runs/demo/run/checkpoints/1-{step}/{kind}*")[0]

    def contents(self, daemon):
        return {path: path.read_bytes() for path in daemon.files("runs/**/*")
                if path.is_file() and "record" not in path.parts}

    def assert_kept(self, daemon, before):
        """Every file that was there has its bytes; there may be more."""
        self.assertEqual({path: data for path, data in self.contents(daemon).items() if path in before}, before)

    def record(self, daemon):
        return b"".join(path.read_bytes() for path in daemon.files("runs/demo/run/record/*"))

    def repair(self, where, *words, check=0):
        return cairn_json("verify", "--repair", *words, *where, check=check)


class Repair(Repairing):
    def test_from_another_object_of_the_run(self):
        daemon = self.saved()
        store, path = daemon.offline, self.objects(daemon, 2)[0]
        before = self.contents(daemon)
        flip(path, 0)
        damaged = path.read_bytes()
        cairn("verify", *store, check=6)
        said = self.repair(store)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        entry = next(entry for entry in said["checked"] if entry["step"] == 2)
        self.assertIn("model.w", entry["found"][0])
        self.assertIn("other objects of the run", entry["repaired"][0])
        self.assert_kept(daemon, before)
        after = self.contents(daemon)
        aside = set(after) - set(before)
        self.assertEqual([after[name] for name in aside], [damaged])
        self.assertIn(f"object 2@1/{path.name}: 1 chunks".encode(), self.record(daemon))
        self.assertEqual(self.repair(store)["repaired"], 0)  # what verifies is not touched
        cairn("gc", *store, check=0)  # both passes
        self.assertEqual(self.contents(daemon), before)
        daemon.start()
        group = self.group(daemon)
        self.assert_restores(group, (2, 1, False), 1)

    def test_footer_and_padding_need_no_copy(self):
        daemon = self.saved(1)
        before = self.contents(daemon)
        first, second = self.objects(daemon, 1)[0], self.objects(daemon, 1, 1)[0]
        flip(first, first.stat().st_size - 100)
        flip(first, first.stat().st_size - 4000)
        flip(second, second.stat().st_size - 4097)
        said = self.repair(daemon.offline)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 2))
        self.assert_kept(daemon, before)

    def test_without_a_copy_it_is_named_and_left_alone(self):
        daemon = self.saved(2, same=False)
        path = self.objects(daemon, 1)[0]
        flip(path, 0)
        flip(self.small(daemon, 2, "part-1"), 300)
        before = self.contents(daemon)
        said = self.repair(daemon.offline, check=6)
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
        left = lines(self.repair(daemon.offline, check=6), "left")
        self.assertEqual([line for line in left if missing.name in line], [line for line in left if "is missing, and" in line])
        self.assertRegex("\n".join(left), rf"object 1@1/{missing.name} is missing, and (\d+) of its \1 chunks have no copy")
        said = self.repair(daemon.offline, *source)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 6))
        done = lines(said, "repaired")
        # What was missing left nothing behind: nobody is sent to look for its damaged bytes.
        self.assertEqual(sorted("the damaged bytes" in line for line in done if "object 1@1/" in line), [False, True])
        self.assertEqual(sorted("was missing" in line for line in done), [False] * 4 + [True] * 2)
        self.assertIn(f"object 1@1/{missing.name}: was missing; ".encode(), self.record(daemon))
        self.assert_kept(daemon, before)
        self.assertEqual({entry["health"] for entry in listed(daemon).values()}, {"verified"})
        cairn("gc", *daemon.offline, check=0)
        self.assertEqual(self.contents(daemon), before)
        # And the other way round, with the same damage in both: nothing can be done.
        for path in (self.objects(daemon, 1)[0], mirror / self.objects(daemon, 1)[0].relative_to(daemon.store)):
            flip(path, 0)
        damaged = self.contents(daemon)
        said = self.repair(daemon.offline, *source, check=6)
        self.assertEqual((said["damaged"], said["repaired"]), (1, 0))
        self.assertEqual(self.contents(daemon), damaged)
        cairn("verify", "--repair", *daemon.offline, "--from", f"dir:{mirror}-typo", check=10)
        cairn("verify", *daemon.offline, *source, check=2)
        cairn("verify", "--repair", "--no-read-data", *daemon.offline, check=2)

    def test_an_object_that_a_younger_checkpoint_refers_to(self):
        daemon = self.saved(4, save_full_every="3")
        self.assertEqual([len(self.objects(daemon, step)) > 0 for step in (1, 2, 3, 4)], [True, False, False, True])
        before = self.contents(daemon)
        flip(self.objects(daemon, 1)[0], 0)
        said = self.repair(daemon.offline, "demo/run", "2@1")
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        self.assert_kept(daemon, before)
        cairn("verify", *daemon.offline, check=0)

    def test_by_the_daemon(self):
        daemon = self.saved(3, stop=False)
        before = self.contents(daemon)
        flip(self.objects(daemon, 3)[0], 0)
        cairn("scrub", "--wait", *daemon.online, check=6)
        self.assertEqual(listed(daemon)[3, 1]["health"], "damaged")
        self.assertEqual(cairn("verify", "--repair", *daemon.offline)[0], 11)
        said = self.repair(daemon.online)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1))
        self.assert_kept(daemon, before)
        self.assertEqual(listed(daemon)[3, 1]["health"], "verified")
        self.assertIn("repair: ended", daemon.log())
        group = self.group(daemon)
        self.assertEqual(group.restore(), (3, 1, False))
        for _ in range(2):  # the running daemon's gc has seen that checkpoint before
            cairn("gc", *daemon.online, check=0)
        wait_until("the damaged bytes are gone", lambda: self.contents(daemon) == before)

    def test_by_the_scrub(self):
        mirror = self.bed.path / "mirror"
        daemon = self.saved(2, same=False)
        shutil.copytree(daemon.store, mirror)
        flip(self.objects(daemon, 2)[0], 0)
        daemon.start(scrub_repair="yes", scrub_repair_from=f"dir:{mirror}")
        _, out, _ = cairn("scrub", "--wait", *daemon.online)
        self.assertIn("model.w", out)
        wait_until("it is repaired", lambda: "verified again" in daemon.log())
        self.assertEqual(listed(daemon)[2, 1]["health"], "verified")
        cairn("verify", *daemon.online, check=0)

    def test_a_mirror_on_a_cluster_that_is_away(self):
        """It keeps the daemon from nothing, not even from repairs that need none of it; health names it until it is read."""
        conf = self.bed.path / "away.conf"
        conf.write_text("[global]\nmon_host = [v2:127.0.0.1:1/0]\nauth_client_required = none\n")
        daemon = self.saved(2)
        objects = [self.objects(daemon, step)[0] for step in (1, 2)]
        where = daemon.online
        flip(objects[0], 0)
        daemon.start(scrub_repair_from=f"rados:cairn?conf={conf}&timeout=1")
        self.assertEqual(self.repair(where)["damaged"], 0)  # from the run itself
        self.assertEqual(cairn_json("status", *where)["health"], "green")
        for path in objects:
            flip(path, 0)
        left = "\n".join(line for entry in self.repair(where, check=6)["checked"] for line in entry.get("left", []))
        self.assertIn("there is no copy in another object of the run; rados:cairn", left)
        self.assertIn("mon_host", left)
        said = cairn_json("status", *where)
        self.assertEqual(said["health"], "yellow")
        for word in ("[scrub] repair-from", "rados:cairn", "mon_host"):
            self.assertIn(word, said["health_text"])
        self.assertIn("for the mirror: ", said["health_remedy"])
        self.assertEqual(daemon.stop(), 0)

    def with_failpoint(self, points, daemon, *words):
        return cairn("verify", "--repair", *words, *daemon.offline, env={"CAIRN_FAILPOINTS": points})

    def test_by_an_older_server(self):
        """One that repairs checkpoints and knows no repair of records: it is not asked for one, and what it can it does."""
        daemon = self.saved(2, stop=False, listen_tcp="127.0.0.1:0")
        self.run_attempt(daemon, 1, run="demo/zzz", world=1)
        older = self.relay(daemon, FEATURE_RECORD)
        where = ("--server", f"127.0.0.1:{older.port}")
        before = self.contents(daemon)
        flip(self.objects(daemon, 2)[0], 0)
        said = self.repair(where)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1), said)
        self.assertGreater(len(older.repairs), 0)
        self.assert_kept(daemon, before)
        record = daemon.files("runs/demo/run/record/*.update")
        self.assertTrue(record[1].name.endswith("2.update"), record)
        daemon.kill()
        daemon.strip()
        flip(record[-1], 40)
        daemon.start()  # the record has lost its end, and none of its checkpoints
        older.port_behind = daemon.port()
        said = self.repair(where, check=6)
        run, *good = (entry for entry in said["checked"] if entry["run"] == "demo/run")
        self.assertIn(record[-1].name, run["found"][0])
        self.assertIn("too old", run["left"][0])
        self.assertEqual([run["good"]] + [entry["good"] for entry in good], [False, True, True])
        daemon.kill()
        daemon.strip()
        flip(record[1], 40)
        daemon.start()  # the record has lost all its checkpoints: there is nothing but its repair
        older.port_behind = daemon.port()
        said = self.repair(where, check=6)
        run, = (entry for entry in said["checked"] if entry["run"] == "demo/run")
        self.assertIn("too old", run["left"][0])
        self.assertIn("upgrade", run["left"][0])
        self.assertEqual([entry["good"] for entry in said["checked"] if entry["run"] == "demo/zzz"], [True])
        _, out, _ = cairn("verify", "--repair", "demo/run", *where, check=6)
        self.assertIn("  left: the server is too old", out)
        self.assertEqual([asked for asked in older.repairs if REPAIR_RUN in asked], [])
        self.assertIsNone(older.failed)

    def test_killed_at_each_step(self):
        daemon = self.saved()
        path = self.objects(daemon, 2)[0]
        before = self.contents(daemon)
        flip(path, 0)
        damaged, killed = path.read_bytes(), 0
        for point, numbers in (("repair.write", (1,)), ("dir.seal", (1,)), ("dir.rename", (2, 3)),
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
        self.assertEqual(self.repair(daemon.offline)["damaged"], 0)
        cairn("gc", *daemon.offline, check=0)
        self.assertEqual(self.contents(daemon), before)
        self.assertEqual(daemon.files("runs/**/.tmp-*"), [])

    def test_no_space_and_no_exchange(self):
        daemon = self.saved()
        flip(self.objects(daemon, 2)[0], 0)
        before = self.contents(daemon)
        for point, word in (("vfs.allocate=error:NO_SPACE", "NO_SPACE"), ("repair.write=error:NO_SPACE", "NO_SPACE"),
                            ("dir.write=error:IO", "IO"), ("dir.seal=error:IO", "IO"), ("vfs.exchange=error:UNSUPPORTED", "UNSUPPORTED")):
            status, out, err = self.with_failpoint(point, daemon, "demo/run", "2@1")
            self.assertEqual(status, 6, out + err)
            self.assertIn("left: object 2@1/0-", out)
            self.assertEqual(self.contents(daemon), before, point)
        self.assertEqual(self.repair(daemon.offline)["damaged"], 0)

    def test_one_at_a_time(self):
        daemon = self.saved(3, stop=False, failpoints="repair.write=delay:100000")  # longer than the second takes to be refused
        for step in (2, 3):
            flip(self.objects(daemon, step)[0], 0)
        before = self.contents(daemon)
        first = self.bed.start([BIN / "cairn", "verify", "--repair", "demo/run", "2@1", "--timeout", "5s",
                                *daemon.online])
        wait_until("the first is at work", lambda: daemon.files("runs/demo/run/objects/1-2/.tmp-*"))
        status, _, err = cairn("verify", "--repair", "demo/run", "3@1", "--timeout", "2s", *daemon.online)
        self.assertIn(status, (5, 11), err)  # asked again until the time was over
        self.assertIn("a repair is at work on checkpoint 2@1", err)
        daemon.kill()
        self.assertNotEqual(first.wait(60), 0)
        daemon.start()
        self.assertEqual(self.contents(daemon), before)
        self.assertEqual(self.repair(daemon.online)["repaired"], 2)


class Record(Repairing):
    """The run's record: only by files that its chain proves, so that no commit is lost and no term comes back."""

    def setUp(self):
        super().setUp()
        self.served = self.saved(3, same=False)
        self.served.strip()  # what its second place has needs no mirror (test_damage)
        self.store, self.mirror = self.served.offline, self.bed.path / "mirror"
        self.source = ("--from", f"dir:{self.mirror}")
        self.copy()

    def copy(self):
        shutil.rmtree(self.mirror, ignore_errors=True)
        shutil.copytree(self.served.store, self.mirror)

    def more(self, daemon, step, **keys):
        """One more save, of the same lineage; the daemon does not run before and after."""
        daemon.start(**keys)
        self.run_attempt(daemon, step, resumes="latest", fills=True)
        self.assertEqual(daemon.stop(), 0)
        daemon.strip(path=keys["store_url"][len("dir:"):] if keys else None)

    def updates(self):
        return self.served.files("runs/demo/run/record/*.update")

    def update_count(self, store):
        return len(list(Path(store).glob("runs/demo/run/record/*.update")))

    def files(self):
        return {path: path.read_bytes() for path in self.served.files("runs/demo/run/record/*")}

    def refused(self, *words):
        """Nothing was changed, and everybody says so."""
        before = self.files()
        said = self.repair(self.store, *self.source, check=6)
        self.assertEqual((said["damaged"], said["repaired"]), (1, 0), said)
        for word in words:
            self.assertIn(word, said["checked"][0]["left"][0])
        self.assertEqual(self.files(), before)
        _, _, err = cairn("verify", *self.store, check=6)
        self.assertIn(f"--repair --store dir:{self.served.store} --from MIRROR", err)

    def mended(self, count, steps):
        said = self.repair(self.store, *self.source)
        self.assertEqual((said["damaged"], said["repaired"]), (0, count), said)
        self.assertEqual(sorted(step for step, _ in listed(self.served)), steps)
        cairn("verify", *self.store, check=0)
        self.assertIn(b"the run's record was damaged and repaired", self.record(self.served))
        return said

    def test_an_update_in_the_middle(self):
        self.more(self.served, 4)  # which the mirror does not have
        before, path = self.files(), self.updates()[4]
        flip(path, 40)
        damaged = path.read_bytes()
        said = self.repair(self.store, check=6)
        self.assertIn("only a mirror", said["checked"][0]["left"][0])
        _, out, _ = cairn("doctor", *self.store, check=1)
        self.assertIn(f"`cairn verify --repair {' '.join(map(str, self.store))}` repairs what has a second copy, "
                      "and with --from MIRROR also", out)
        self.mended(1, [1, 2, 3, 4])
        self.assertNotIn(b"unproven", self.record(self.served))
        self.assertEqual({name: self.files()[name] for name in before}, before)
        self.assertEqual([path.read_bytes() for path in self.served.files("quarantine/*")], [damaged])
        self.more(self.served, 5)
        self.assertEqual(len(listed(self.served)), 5)

    def test_neighbours_and_one_that_is_missing(self):
        before = self.files()
        for number in (3, 4, 5):
            flip(self.updates()[number], 40)
        self.updates()[7].unlink()
        self.mended(4, [1, 2, 3])
        self.assertEqual({name: self.files()[name] for name in before}, before)

    def test_the_last_update(self):
        before = self.files()
        flip(self.updates()[-1], 40)
        flip(self.updates()[-2], 40)
        said = self.mended(2, [1, 2, 3])
        for line in said["checked"][0]["repaired"]:
            self.assertIn("nothing behind it proves", line)
        self.assertIn(f"unproven from update {len(before) - 1} on".encode(), self.record(self.served))
        self.assertEqual({name: self.files()[name] for name in before}, before)

    def test_a_pin_that_the_mirror_did_not_get(self):
        """Nothing proves the last update: that a pin of here may be gone with it is said to the operator and in the chain."""
        self.annotated_to(self.mirror, self.update_count(self.mirror) + 1)
        cairn("pin", "demo/run", "1", *self.store, check=0)
        self.assertEqual(self.update_count(self.served.store), self.update_count(self.mirror))
        self.assertTrue(listed(self.served)[1, 1]["pinned"])
        self.served.strip()
        flip(self.updates()[-1], 40)
        _, out, _ = cairn("verify", "--repair", *self.store, *self.source, check=0)
        self.assertRegex(out, r"repaired: the run's record: update \d+ taken from .*: a pin, a tag, a metric or a forgetting")
        self.assertIn("quarantine/ of the store until somebody removes them", out)
        self.assertFalse(listed(self.served)[1, 1]["pinned"])
        self.assertIn(b"a pin, note or forgetting of here may be lost", self.record(self.served))
        _, out, _ = cairn("doctor", *self.store)
        self.assertIn("quarantine: 1 file (", out)
        self.assertIn(f"{self.served.store}/quarantine", out)

    def test_a_mirror_that_is_behind(self):
        self.more(self.served, 4)
        path = self.updates()[-1]
        flip(path, 40)
        self.refused("the mirror has no update")
        flip(path, 40)  # nothing was lost by that
        self.assertEqual(len(listed(self.served)), 4)

    def test_the_way_on_that_is_advised(self):
        self.more(self.served, 4)
        flip(self.updates()[-1], 40)
        _, _, err = cairn("verify", *self.store, check=6)
        self.assertIn("cairn restore RUN --store MIRROR --to DIR", err)
        copy = self.bed.path / "copy"
        shutil.copytree(self.mirror, copy)
        self.more(self.served, 4, store_url=f"dir:{copy}")
        out = self.bed.path / "out"
        cairn("restore", "demo/run", "--store", f"dir:{self.mirror}", "--to", out, check=0)
        self.served.start()  # with the damaged record, which it leaves alone
        cairn("import", "demo/after", out / "model.safetensors", *self.served.online, check=0)
        cairn("verify", "demo/after", *self.served.online, check=0)

    def test_a_mirror_that_went_its_own_way(self):
        for step in (4, 5):
            self.more(self.served, step)
        for step in (6, 7):
            self.more(self.served, step, store_url=f"dir:{self.mirror}")
        flip(self.updates()[-1], 40)
        self.refused()
        flip(self.updates()[-1], 40)
        flip(self.updates()[-3], 40)
        self.refused("the next update names another one")

    def annotated_to(self, store, count):
        """The record there ends with this update."""
        missing = count - self.update_count(store)
        if missing > 0:
            self.served.start(store_url=f"dir:{store}")
            for number in range(missing):
                cairn("annotate", "demo/run", "latest", "--tag", f"t{number}", *self.served.online, check=0)
            self.assertEqual(self.served.stop(), 0)
            self.served.strip(path=store)
        self.assertEqual(self.update_count(store), count)

    def refused_from(self, first, words):
        for path in self.updates()[first:]:
            flip(path, 40)
        self.refused(words)
        for path in self.updates()[first:]:
            flip(path, 40)

    def test_a_mirror_that_saved_by_itself(self):
        """As many updates as here, all of which are damaged: none of them is taken for those that were here."""
        shared = len(self.updates())
        self.more(self.served, 4, store_url=f"dir:{self.mirror}")
        self.annotated_to(self.served.store, self.update_count(self.mirror))
        self.refused_from(shared, "the mirror's record has checkpoint 4@2")  # and nothing of it is here
        self.copy()
        shared = len(self.updates())
        self.more(self.served, 4)  # the same step in the same term, on both sides
        self.more(self.served, 4, store_url=f"dir:{self.mirror}")
        count = max(self.update_count(self.mirror), self.update_count(self.served.store))
        self.annotated_to(self.served.store, count)
        self.annotated_to(self.mirror, count)
        self.refused_from(shared, "a manifest of checkpoint 4@2 is here")
        self.assertEqual(len(listed(self.served)), 4)

    def test_another_store_is_no_mirror(self):
        other = self.daemon("other", **KEYS)
        self.assertEqual(other.stop(), 0)
        self.mirror = other.store
        self.source = ("--from", f"dir:{self.mirror}")
        flip(self.updates()[4], 40)
        self.refused("another uuid")

    def test_killed_and_refused_on_the_way(self):
        flip(self.updates()[-1], 40)
        before, count, last = self.files(), len(self.updates()), self.updates()[-1]
        for point in ("dir.exchange=kill", "dir.exchange=error:NO_SPACE", "vfs.exchange=kill", "vfs.exchange=error:UNSUPPORTED",
                      "dir.rename=kill@2", "vfs.dirsync=kill@3"):
            status, out, err = cairn("verify", "--repair", *self.source, *self.store, env={"CAIRN_FAILPOINTS": point})
            self.assertIn(status, (-9, 6, 0), point + out + err)
            now = self.files()
            self.assertGreaterEqual(len([path for path in now if path.suffix == ".update"]), count, point)
            self.assertEqual({path: now[path] for path in before if path != last},
                             {path: content for path, content in before.items() if path != last}, point)
            if now[last] != before[last]:  # it was repaired before that
                self.served.strip()
                flip(last, 40)
        self.repair(self.store, *self.source)
        self.assertEqual(sorted(step for step, _ in listed(self.served)), [1, 2, 3])
        self.assertEqual(self.served.files("runs/**/.tmp-*"), [])

    def lose(self, places=("runs", "copy/runs")):
        for place in places:
            shutil.rmtree(self.served.store / place / "demo/run/record", ignore_errors=True)

    def test_neither_place_has_any_of_it(self):
        self.lose()
        self.mended(1, [1, 2, 3])
        self.assertEqual(len(self.served.files("copy/runs/demo/run/record/*.snapshot")), 1)
        self.served.start()  # and saves go on
        self.run_attempt(self.served, 4, resumes="latest", fills=True)
        self.assertEqual(self.served.stop(), 0)
        self.assertEqual(len(listed(self.served)), 4)

    def test_neither_place_has_any_of_it_and_the_mirror_is_behind(self):
        """What the mirror's record does not tell of marks the run: never silently the older one."""
        self.more(self.served, 4)
        self.lose()
        said = self.repair(self.store, *self.source, check=6)
        self.assertEqual((said["damaged"], said["records_damaged"], said["repaired"]), (1, 1, 1), said)
        status, out, _ = cairn("verify", *self.store)
        self.assertEqual(status, 6)
        self.assertIn("(newest: 4@2), which is an older copy", out)
        self.assertIn(" whole: ", cairn("salvage", "--yes", *self.store, check=0)[1])
        cairn("verify", *self.store, check=0)
        self.assertEqual(sorted(step for step, _ in listed(self.served)), [1, 2, 3, 4])

    def test_neither_place_has_any_of_it_and_the_mirror_went_on(self):
        self.more(self.served, 4, store_url=f"dir:{self.mirror}")
        self.lose()
        self.refused("which is missing", "of which there is no manifest here")
        shutil.rmtree(self.mirror / "runs/demo/run/record")
        shutil.rmtree(self.mirror / "copy", ignore_errors=True)
        self.refused("the mirror has no record of the run either")

    def test_neither_place_has_any_of_it_and_a_daemon_is_up(self):
        self.lose()
        self.served.start(scrub_repair_from=f"dir:{self.mirror}")
        where = self.served.online
        cairn("ls", "demo/run", *where, check=6)
        said = self.repair(where)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1), said)
        cairn("ls", "demo/run", *where, check=0)
        cairn("scrub", "--wait", *where, check=0)

    def test_all_second_copies_are_missing(self):
        self.served.start()
        self.assertEqual(self.served.stop(), 0)
        cairn("verify", *self.store, check=0)
        shutil.rmtree(self.served.store / "copy")
        status, out, err = cairn("verify", *self.store)
        self.assertEqual(status, 6, out)
        self.assertIn("copy, which holds the second copy of all records, is missing", out)
        self.assertIn(f"`cairn verify --repair --store dir:{self.served.store}` makes them good", err)
        self.assertIn("the second copy of all records, is missing", cairn("doctor", *self.store, check=1)[1])
        cairn("verify", "--repair", *self.store, check=0)
        cairn("verify", *self.store, check=0)
        self.assertTrue(self.served.files("copy/runs/demo/run/record/*.snapshot"))

    def test_damage_in_both_places_ends_with_none_left(self):
        """Of two damaged updates the mirror gives one file; the rest is made good from what is whole again."""
        self.served.start()
        self.assertEqual(self.served.stop(), 0)  # with a second copy
        self.copy()
        for path in (self.updates()[4], *self.served.files("**/demo/run/record/*.snapshot")):
            flip(path, 40)
        said = self.repair(self.store, *self.source)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 2), said)
        self.assertNotIn("left: ", cairn("verify", "--repair", *self.store, check=0)[1])

    def test_what_is_removed_while_a_daemon_runs_is_written_again(self):
        """Whichever place it was removed from, scrub finds it, and what the daemon knows is on the disk again."""
        self.served.start()
        where = self.served.online
        cairn("pin", "demo/run", "2@1", *where, check=0)
        for places in (("runs", "copy/runs"), ("copy/runs",), ("runs",)):
            self.served.copied()  # it comes by itself: not while the test removes it
            found = self.served.log().count("verified again")
            self.lose(places)
            self.assertIn("run/record", cairn("scrub", "--wait", *where, check=6)[1])
            wait_until("it is repaired", lambda: self.served.log().count("verified again") > found)
            cairn("scrub", "--wait", *where, check=0)
        self.lose()
        self.assertEqual(self.repair(where)["repaired"], 1)
        self.assertEqual(self.served.stop(), 0)
        self.assertIn("pinned", cairn("ls", "demo/run", *self.store, check=0)[1])

    def test_a_daemon_that_has_read_it_needs_no_mirror(self):
        self.served.start()
        where = self.served.online
        cairn("ls", "demo/run", *where, check=0)
        self.served.strip()
        flip(self.updates()[4], 40)
        said = self.repair(where)
        self.assertEqual((said["damaged"], said["repaired"]), (0, 1), said)
        self.assertIn("made good from its second copy", said["checked"][0]["repaired"][0])
        cairn("scrub", "--wait", *where, check=0)
        flip(self.updates()[2], 40)
        self.served.strip()
        cairn("scrub", "--wait", *where, check=6)  # which has it repaired, without being asked to
        wait_until("it is repaired", lambda: "verified again" in self.served.log())
        cairn("scrub", "--wait", *where, check=0)
        self.served.kill()
        self.assertEqual(len(listed(self.served)), 3)
        self.more(self.served, 4)

    def test_by_the_scrub(self):
        flip(self.updates()[4], 40)
        self.served.start(scrub_repair="yes", scrub_repair_from=f"dir:{self.mirror}")
        where = self.served.online
        self.assertIn(self.updates()[4].name, cairn("ls", "demo/run", *where)[2])
        cairn("scrub", "--wait", *where)
        wait_until("it is repaired", lambda: "verified again" in self.served.log())
        cairn("verify", "demo/run", *where, check=0)


if __name__ == "__main__":
    main()
