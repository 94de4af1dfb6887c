# SPDX-License-Identifier: Apache-2.0
"""What `cairn copy` lists at its target is complete, verified and durable, whatever happens to it: a copy of copies equals
the first store, a second copy sends only what is new, a kill at any moment is made good by the next copy, and what is
damaged, in the way or without room is named and never listed. The copy is a mirror: repairs take from it."""

import json
import os
import shutil
import signal
import subprocess

from harness import BIN, Case, cairn, cairn_json, flip, listed, main, verified

POINTS = [f"{name}=kill@{number}" for name, numbers in {
    "copy.write": (1, 3), "copy.enter": (1, 3), "dir.create": (1, 2), "dir.write": (2,), "dir.seal": (1, 2, 3),
    "dir.publish": (1, 2, 3, 4), "dir.update": (1, 2, 3)}.items() for number in numbers]
FIELDS = ("step", "term", "state", "health", "committed_at", "world_size", "plain_bytes", "stored_bytes", "latest", "on_lineage",
          "pinned", "parent_term", "parent_step", "base_term", "base_step", "manifest_sha256", "tags", "metrics")


def entries(store, run="demo/run"):
    return [{field: one[field] for field in FIELDS} for one in cairn_json("ls", run, "--store", store)["checkpoints"]]


class Copies(Case):
    def store(self, name):
        path = self.bed.path / name
        path.mkdir()
        cairn("store", "create", f"dir:{path}", check=0)
        return f"dir:{path}"

    def saved(self, steps=4):
        """A daemon, and the group that has saved steps that share objects."""
        return self.saving(*range(1, steps + 1), fills=True, name="source")

    def ended(self, steps):
        daemon, group = self.saved(steps)
        group.end()
        return daemon

    def counts(self, source, target, run="demo/run"):
        said = cairn_json("copy", run, "--from", source, "--to", target)
        return said["copied"], said["there"], said["left"]

    def test_a_mirror_of_a_store_that_is_served(self):
        """All fields of the list are the same; a second copy sends nothing but what came meanwhile; a job resumes from it."""
        daemon, group = self.saved()
        source, target = f"dir:{daemon.store}", self.store("mirror")
        at = daemon.online
        cairn("tag", "demo/run", "2", "best", *at, check=0)
        cairn("annotate", "demo/run", "3", "--metric", "loss=0.25", *at, check=0)
        cairn("pin", "demo/run", "1", "--reason", "the figure", *at, check=0)
        self.assertEqual(self.counts(source, target), (4, 0, 0))
        self.assertEqual(entries(target), entries(source))
        self.assertIn("the figure", cairn("status", "demo/run", "1@1", "--store", target, check=0)[1])
        self.assertEqual(verified_at(target), (0, 4))
        first = cairn_json("copy", "demo/run", "--from", source, "--to", target)
        self.assertEqual((first["copied"], first["there"], first["runs"][0]["bytes_read"]), (0, 4, 0), "nothing is sent again")
        group.advance(5)
        cairn("tag", "demo/run", "4", "later", *at, check=0)
        self.assertEqual(self.counts(source, target), (1, 4, 0))
        self.assertEqual(entries(target), entries(source))
        group.end()
        self.assertEqual(daemon.stop(), 0)
        served = self.daemon("mirrored", path=self.bed.path / "mirror", creates=False)
        again = self.group(served, world=2)
        self.assert_restores(again, (5, 1, False), 5)
        again.advance(6)
        self.assertEqual(set(listed(served)), {(step, 1) for step in range(1, 6)} | {(6, 2)})

    def test_marks_that_were_taken_away(self):
        """They stay, beside those that the copy was given; --same-marks takes both away, and is what the source has."""
        daemon = self.ended(3)
        source, target = f"dir:{daemon.store}", self.store("mirror")
        at = daemon.online
        for tag in ("best", "kept"):
            cairn("tag", "demo/run", "2", tag, *at, check=0)
        for step in (1, 2):
            cairn("pin", "demo/run", str(step), "--reason", "the figure", *at, check=0)
        self.assertEqual(self.counts(source, target), (3, 0, 0))
        cairn("tag", "demo/run", "2", "best", "--remove", *at, check=0)
        cairn("tag", "demo/run", "3", "best", *at, check=0)
        cairn("unpin", "demo/run", "2", *at, check=0)
        mirrored = self.daemon("mirrored", path=self.bed.path / "mirror", creates=False)
        cairn("tag", "demo/run", "1", "local", *mirrored.online, check=0)
        self.assertEqual(mirrored.stop(), 0)
        marks = lambda store: {one["step"]: (sorted(one["tags"]), one["pinned"])
                               for one in cairn_json("ls", "demo/run", "--store", store)["checkpoints"]}
        self.assertEqual(self.counts(source, target), (0, 3, 0))
        self.assertEqual(marks(target), {1: (["e2e", "local"], True), 2: (["best", "e2e", "kept"], True), 3: (["best", "e2e"], False)})
        cairn("copy", "demo/run", "--from", source, "--to", target, "--same-marks", check=0)
        self.assertEqual(marks(target), {1: (["e2e"], True), 2: (["e2e", "kept"], False), 3: (["best", "e2e"], False)})
        self.assertEqual(marks(target), marks(source))
        self.assertIn("not pinned in the other", cairn("log", "demo/run", "--store", target, check=0)[1])

    def test_a_copy_of_a_copy_after_forgetting(self):
        """What is forgotten at the source is not copied, though later checkpoints lie in its objects; what the target has
        forgotten stays forgotten."""
        daemon = self.ended(5)
        cairn("forget", "demo/run", "1", "--checkpoint", "3@1", "--keep-least", "1", "--now",
              *daemon.online, check=0)
        source, one, two = f"dir:{daemon.store}", self.store("one"), self.store("two")
        kept = len(entries(source))
        self.assertEqual(kept, 3)
        self.assertEqual(self.counts(source, one), (kept, 0, 0))
        self.assertEqual(self.counts(one, two), (kept, 0, 0))
        self.assertEqual(entries(two), entries(source))
        self.assertEqual(verified_at(two), (0, kept))
        cairn("forget", "demo/run", "2", "--keep-least", "1", "--store", two, check=0)
        self.assertEqual(self.counts(source, two), (0, kept, 0))
        self.assertEqual(len(entries(two)), kept - 1)
        cairn("gc", "--now", "--store", two, check=0)
        self.assertEqual(verified_at(two), (0, kept - 1))
        self.assertEqual(self.counts(source, two), (0, kept, 0))

    def test_killed_anywhere_it_is_made_good_by_the_next(self):
        daemon = self.ended(4)
        source = f"dir:{daemon.store}"
        for number, point in enumerate(POINTS):
            with self.subTest(point=point):
                target = self.store(f"t{number}")
                done = subprocess.run([BIN / "cairn", "copy", "*", "--from", source, "--to", target], capture_output=True,
                                      env={**os.environ, "CAIRN_FAILPOINTS": point}, timeout=120, check=False)
                self.assertIn(done.returncode, (-signal.SIGKILL, 0), done.stderr)
                if cairn("ls", "demo/run", "--store", target)[0] == 0:  # what is listed is whole
                    said = json.loads(cairn("verify", "--store", target, "--json")[1])
                    self.assertEqual([one for one in said["checked"] if "step" in one and not one["good"]], [], said)
                    self.assertLessEqual(said["records_damaged"], 1 if "enter" in point or "update" in point else 0, said)
                cairn("copy", "demo/run", "--from", source, "--to", target, check=0)
                self.assertEqual(entries(target), entries(source))
                self.assertEqual(verified_at(target), (0, 4))
                shutil.rmtree(self.bed.path / f"t{number}")

    def test_a_damaged_checkpoint_is_named_and_the_others_are_copied(self):
        daemon, group = self.saved(1)
        self.run_attempt(daemon, 9, resumes="latest", fills=True)
        group.end()
        source, target = f"dir:{daemon.store}", self.store("mirror")
        path = daemon.files("runs/demo/run/objects/2-9/0-*")[0]
        os.chmod(path, 0o644)
        flip(path, 100)
        before = {(one["step"], one["term"]) for one in entries(source)}
        code, out, err = cairn("copy", "demo/run", "--from", source, "--to", target, check=3)
        self.assertRegex(err, r"cairn: demo/run \d+@\d+: left: DAMAGED: ")
        there = {(one["step"], one["term"]) for one in entries(target)}
        self.assertTrue(there < before and there, (there, before))
        self.assertEqual(verified_at(target), (0, len(there)))
        flip(path, 100)  # the disk is mended: the next copy takes it
        self.assertEqual(self.counts(source, target), (len(before) - len(there), len(there), 0))
        self.assertEqual({(one["step"], one["term"]) for one in entries(target)}, before)
        self.assertEqual(verified_at(target), (0, len(before)))
        path = daemon.files("runs/demo/run/objects/1-1/0-*")[0]
        os.chmod(path, 0o644)
        flip(path, 100)  # an older one: the newer is copied without it, which is told, then and later
        late = self.store("late")
        for outcomes in ({1: "left", 9: "copied"}, {1: "left", 9: "there"}):
            said = json.loads(cairn("copy", "demo/run", "--from", source, "--to", late, "--json", check=3)[1])
            self.assertEqual({one["step"]: one["outcome"] for one in said["runs"][0]["checkpoints"]}, outcomes, said)
            self.assertEqual(verified_at(late), (0, 1))

    def test_what_is_in_the_way_is_named(self):
        daemon, group = self.saved(2)
        source, target = f"dir:{daemon.store}", self.store("mirror")
        _, _, err = cairn("copy", "*", "--from", source, "--to", source, check=11)  # a daemon has it
        self.assertIn("STORE_LOCKED", err)
        for words, error, code in ((("demo/none", "--from", source, "--to", target), "NOT_FOUND", 4),
                                   (("*", "--from", source, "--to", f"dir:{self.bed.path}/none"), "a mirror is made once", 10),
                                   (("*", "--to", target), "INVALID", 2), (("*", "--from", target, "--to", target), "NOT_FOUND", 4)):
            self.assertIn(error, cairn("copy", *words, check=code)[2])
        other = self.daemon("other")
        self.run_attempt(other, 1, world=1)
        other.stop()
        _, out, err = cairn("copy", "demo/run", "--from", source, "--to", f"dir:{other.store}")
        self.assertIn("CONFLICT", err)
        self.assertIn("another run of the name demo/run", err)
        self.assertEqual(verified_at(f"dir:{other.store}"), (0, 1))
        group.end()
        daemon.stop()
        _, _, err = cairn("copy", "*", "--from", source, "--to", source, check=2)
        self.assertIn("one store", err)

    def test_a_full_target_is_named_and_gone_on_with(self):
        daemon = self.ended(3)
        source, target = f"dir:{daemon.store}", self.store("mirror")
        done = subprocess.run([BIN / "cairn", "copy", "*", "--from", source, "--to", target], capture_output=True, text=True,
                              env={**os.environ, "CAIRN_FAILPOINTS": "copy.write=error:NO_SPACE@4"}, timeout=120, check=False)
        self.assertIn("NO_SPACE", done.stderr)
        self.assertEqual(done.returncode, 1, done.stderr)
        some = cairn_json("ls", "demo/run", "--store", target)["checkpoints"]
        self.assertEqual([one["step"] for one in some], [1], "the first was entered, the second has no room")
        self.assertEqual(verified_at(target), (0, len(some)))
        cairn("copy", "*", "--from", source, "--to", target, check=0)
        self.assertEqual(entries(target), entries(source))

    def test_repairs_take_from_a_copy(self):
        daemon = self.ended(2)
        daemon.stop()
        source, target = f"dir:{daemon.store}", self.store("mirror")
        cairn("copy", "*", "--from", source, "--to", target, check=0)
        paths = [daemon.files("runs/**/objects/**/*")[0], next(iter(daemon.files("runs/**/part*")), None)]
        for path in filter(None, paths):
            if path.is_file():
                os.chmod(path, 0o644)
                flip(path, 100)
        self.assertGreater(verified(daemon, check=None)["damaged"], 0)
        cairn("verify", "--repair", "--store", source, "--from", target, check=0)
        self.assertEqual(verified(daemon)["damaged"], 0)


def verified_at(store):
    document = cairn_json("verify", "--store", store, timeout_s=120)
    return document["damaged"], document["checkpoints"]


if __name__ == "__main__":
    main()
