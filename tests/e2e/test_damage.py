# SPDX-License-Identifier: Apache-2.0
"""When a store is damaged all ranks fall back together to the newest good checkpoint and say so; the command line exits
with 3 or 6; a run that was rewound has the right `latest` (I4)."""

from harness import Case, Group, add_state, cairn, cairn_json, flip, listed, main, verified


class Damage(Case):
    def saved(self, steps=2, **keys):
        return self.with_saves(*range(1, steps + 1), fills=True, **keys)

    def object_of(self, daemon, step, rank):
        return daemon.files(f"runs/demo/run/objects/1-{step}/{rank}-*")[0]

    def refuses(self, *words):
        """Damage is no NOT_FOUND, after which a script may begin at step 0."""
        _, _, err = cairn(*words, check=6)
        self.assertRegex(err, r"(?m)^cairn: DAMAGED: .*`cairn verify --repair` repairs what has a copy$")
        return err

    def test_all_ranks_fall_back_together(self):
        daemon = self.saved(3)
        # Only rank 1 reads this object's end: its own share of optim.m.
        for path in daemon.files("runs/demo/run/objects/1-3/1-*"):
            flip(path, 0)
        group = Group(self.bed, daemon.url(), 2, state=None)
        for number, rank in enumerate(group.ranks):
            add_state(rank, number, 2)
        group.all("set")
        self.assert_restores(group, (2, 1, True), 2)
        # Going on from there works, and the new branch is latest.
        group.all("fill", 33)
        self.assertEqual(group.save(3), 2)
        self.assertTrue(listed(daemon)[(3, 2)]["latest"])
        self.assert_restores(group, (3, 2, False), 33)

    def test_only_one_rank_meets_the_damage(self):
        daemon = self.saved(2)
        for path in daemon.files("runs/demo/run/objects/1-2/1-*"):
            flip(path, 0)
        group = Group(self.bed, daemon.url(), 2, state=None)
        group[0].do("tensor", "rng", "uint8", "100", "local", "rank=0")  # in rank 0's object
        group[1].do("tensor", "optim.m", "float32", "32x16", "sharded", "-", "16,0", "16x16")
        group[1].do("tensor", "rng", "uint8", "100", "local", "rank=1")
        group.all("set")
        self.assert_restores(group, (1, 1, True), 1)

    def test_a_finding_names_its_checkpoint_once(self):
        daemon = self.saved(2)
        (manifest,) = daemon.files("runs/demo/run/checkpoints/1-2/manifest*")
        manifest.unlink()
        for where in (daemon.online, daemon.offline):
            for words in ((), ("2@1",)):
                document = cairn_json("verify", "demo/run", *words, *where, check=6)
                found = [text for checkpoint in document["checked"] for text in checkpoint["findings"]]
                self.assertEqual(len(found), 1, document)
                self.assertRegex(found[0], "^checkpoint 2@1")
                self.assertNotIn("checkpoint 2@1: checkpoint 2@1", found[0])

    def test_no_fallback_for_a_named_step(self):
        daemon = self.saved(2)
        flip(self.object_of(daemon, 2, 0), 0)
        group = self.group(daemon)
        for result in group.finish_any(group.all("restore", 2)):
            self.assertFalse(result["ok"])
            self.assert_error((result["error"], result["text"]), "DAMAGED", "2@1")
        self.assert_restores(group, (1, 1, False), 1, 1)

    def test_nothing_good_is_left(self):
        daemon = self.saved(1)
        flip(self.object_of(daemon, 1, 0), 0)
        group = self.group(daemon)
        for result in group.finish_any(group.all("restore", "latest")):
            self.assertFalse(result["ok"])
            self.assert_error((result["error"], result["text"]), "DAMAGED")
        _, _, err = cairn("restore", "demo/run", "--to", self.bed.path / "out", *daemon.offline,
                          check=6)
        self.assertIn("DAMAGED", err)
        self.assertFalse((self.bed.path / "out").exists())
        self.assertFalse((self.bed.path / "out.partial").exists())

    def test_the_command_line(self):
        daemon = self.saved(2)
        flip(self.object_of(daemon, 2, 1), 5)
        for number, where in enumerate((daemon.online, daemon.offline)):
            target = self.bed.path / f"out{number}"
            _, out, err = cairn("restore", "demo/run", "--to", target, *where, check=3)
            self.assertIn("FELL BACK", out)
            self.assertIn("1@1", out)
            self.assertIn("2@1", err)
            self.assertTrue((target / "model.safetensors").exists())
            document = cairn_json("restore", "demo/run", "--to", f"{target}j", *where, check=3)
            self.assertTrue(document["fell_back"])
            _, _, err = cairn("restore", "demo/run", "--to", f"{target}n", "--no-fallback", *where, check=6)
            self.assertIn("2@1", err)
            self.refuses("restore", "demo/run", 2, "--to", f"{target}s", *where)
            self.assertFalse((self.bed.path / f"out{number}s").exists())
            status, out, _ = cairn("verify", *where)
            self.assertEqual(status, 6)
            self.assertIn("2@1: DAMAGED", out)
            self.assertIn("1@1: good", out)
        found = [entry for entry in verified(daemon, check=6)["checked"] if not entry["good"]]
        self.assertEqual([(entry["step"], entry["term"]) for entry in found], [(2, 1)])
        self.assertIn("rank 1", found[0]["findings"][0])

    def test_a_missing_object_and_a_missing_part(self):
        daemon = self.saved(3)
        self.object_of(daemon, 3, 0).unlink()
        server, out = daemon.online, self.bed.path / "out"
        for where in (server, daemon.offline):
            for words in (("3",), ("--no-fallback",)):
                self.assertIn("checkpoint 3@1: object ", self.refuses("restore", "demo/run", *words, "--to", out, *where))
            self.refuses("export", "demo/run", "3", "--to", out, *where)
            self.refuses("diff", "demo/run", "1", "3", *where)
            self.assertFalse(out.exists())
            _, _, err = cairn("restore", "demo/run", "--to", f"{out}{where[0]}", *where, check=3)
            self.assertIn("checkpoint 3@1 cannot be restored: object ", err)
        daemon.files("runs/demo/run/checkpoints/1-2/part-1-*")[0].unlink()
        document = verified(daemon, check=6)
        good = {entry["step"]: entry["good"] for entry in document["checked"]}
        self.assertEqual(good, {1: True, 2: False, 3: False})
        # The daemon has the part in its cache; who looks for damage is shown the disk.
        document = verified(daemon, "server", check=6)
        self.assertEqual({entry["step"]: entry["good"] for entry in document["checked"]}, good)
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        group = self.group(daemon)
        self.assert_restores(group, (1, 1, True), 1)
        self.refuses("restore", "demo/run", "3", "--to", out, *server)  # the job has marked it

    def test_bytes_behind_an_object(self):
        daemon = self.saved(2)
        path = self.object_of(daemon, 2, 0)
        path.chmod(0o600)
        with open(path, "ab") as file:
            file.write(b"more")
        for how in ("store", "server"):
            document = verified(daemon, how, check=6)
            found = [entry for entry in document["checked"] if not entry["good"]]
            self.assertEqual([entry["step"] for entry in found], [2])
            self.assertIn("were requested", found[0]["findings"][0])
        group = self.group(daemon)
        self.assertEqual(group.restore(), (2, 1, False))  # no restore reads them
        group.all("check", 2)

    def test_damaged_record(self):
        """In one place it costs nothing, and is named; in both it is read as far as it goes, and whoever asks is told."""
        daemon = self.saved(2)
        self.assertEqual(daemon.stop(), 0)
        commits = [path for path in daemon.files("runs/demo/run/record/*.update") if b"chain/" in path.read_bytes()]
        last, store = commits[-1], daemon.offline  # the job's end may be noted behind it
        flip(last, 40)
        status, out, err = cairn("verify", *store)
        self.assertEqual(status, 6, out + err)
        self.assertIn(last.name, out + err)
        self.assertEqual(set(listed(daemon)), {(1, 1), (2, 1)})
        self.assertEqual(cairn("ls", "demo/run", *store, check=0)[2], "")
        daemon.strip()
        for where in (store, daemon.online):
            if where != store:
                daemon.start()
            status, out, err = cairn("verify", *where)
            self.assertEqual(status, 6, out + err)
            self.assertIn(last.name, out + err)
            self.assertIn("demo/run 1@1: good", out)
            _, out, err = cairn("ls", "demo/run", *where, check=0)
            self.assertIn("*  1@1", out)
            self.assertIn("cairn: the list of demo/run may lack checkpoints: the run's record: ", err)
            self.assertIn(last.name, err)
            self.assertRegex(err, r"`cairn salvage demo/run (--store \S+ )?--accept-loss")
            target = self.bed.path / f"out{where[0]}"
            _, out, err = cairn("restore", "demo/run", "--to", target, *where, check=3)
            self.assertIn("1@1", out)
            self.assertIn("FELL BACK", out)
            self.assertIn(last.name, err)
            cairn("restore", "demo/run", "--to", f"{target}n", "--no-fallback", *where, check=6)
            cairn("restore", "demo/run", 1, "--to", f"{target}s", *where, check=0)
            if where != store:  # the ranks of a job are told as well, unless they name what they want
                group = self.group(daemon)
                self.assert_restores(group, (1, 1, True), 1)
                self.assertEqual(group.restore("1"), (1, 1, False))
                group.end()
            code, out, _ = cairn("doctor", *where)
            self.assertEqual(code, 1, out)
            self.assertIn(last.name, out)
            self.assertIn("0 of 1 runs", out)
        self.assertEqual(daemon.stop(), 0)
        flip(last, 40)  # as it was
        self.assert_whole(daemon, {(1, 1), (2, 1)})


class Rewind(Case):
    def test_older_step_and_the_same_numbers_again(self):
        daemon = self.with_saves(1, 2, 3, fills=True)
        second = self.group(daemon)
        self.assert_restores(second, (1, 1, False), 1, 1)
        for step in (2, 3):
            second.all("fill", step + 20)
            self.assertEqual(second.save(step), 2)
        everything = listed(daemon)
        self.assertEqual(set(everything), {(1, 1), (2, 1), (3, 1), (2, 2), (3, 2)})
        self.assertEqual([key for key, entry in everything.items() if entry["latest"]], [(3, 2)])
        lineage = {key for key, entry in everything.items() if entry["on_lineage"]}
        self.assertEqual(lineage, {(1, 1), (2, 2), (3, 2)})
        _, out, _ = cairn("ls", "demo/run", "--superseded", *daemon.offline, check=0)
        rows = {row.split()[0] if row[0] != "*" else row.split()[1]: row for row in out.splitlines()[1:]}
        self.assertIn("superseded", rows["3@1"])
        self.assertNotIn("superseded", rows["1@1"])
        self.assertTrue(rows["3@2"].startswith("*"))
        _, out, err = cairn("ls", "demo/run", *daemon.offline, check=0)
        self.assertNotIn("3@1", out)
        for where in (daemon.online, daemon.offline):
            for words, rows, hint in (((), 3, "cairn: 2 superseded, which --all shows\n"), (("--superseded",), 5, ""),
                                      (("--all",), 5, ""), (("-a", "--limit", 4), 4, "")):
                _, out, err = cairn("ls", "demo/run", *words, *where, check=0)
                self.assertEqual((len(out.splitlines()) - 1, err), (rows, hint), out)
        third = self.group(daemon)
        self.assert_restores(third, (3, 2, False), 23)
        self.assertEqual(third.restore(3, 1), (3, 1, False))  # the old branch can still be had by name
        third.all("check", 3)
        self.assertEqual(verified(daemon)["checkpoints"], 5)

    def test_rewind_within_one_attempt(self):
        daemon, group = self.saving()
        for step in (1, 2):
            group.all("fill", step)
            self.assertEqual(group.save(step), 1)
        self.assertEqual(group.restore(1), (1, 1, False))
        group.all("fill", 22)
        self.assertEqual(group.save(2), 2)  # a restore begins a new term
        self.assert_restores(group, (2, 2, False), 22)


if __name__ == "__main__":
    main()
