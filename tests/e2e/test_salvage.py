# SPDX-License-Identifier: Apache-2.0
"""`cairn salvage`: checkpoints that no record tells of are made again from what lies in the store; it says first what it would
do, may be killed at each update, and names what it cannot."""

import shutil

from harness import Case, Daemon, Group, cairn, cairn_json, flip, listed, main, verified

KEYS = {"scrub_every": "0s", "gc_every": "0s", "save_full_every": "3"}
RUN = "demo/run"


class Salvage(Case):
    def saved(self):
        """10, 20, 25 in term 1; 30, 40 in term 2, which continues 20: 25 is superseded. Stopped, so that nothing is on the way."""
        daemon = self.daemon(**KEYS)
        first = self.group(daemon)
        for step in (10, 20, 25):
            first.all("fill", step)
            first.save(step)
        first.end()
        second = self.group(daemon)
        second.restore("20")
        for step in (30, 40):
            second.save(step)
        second.end()
        self.assertEqual(daemon.stop(), 0)
        return daemon

    def lose_record(self, daemon, keep=0):
        """The record is gone, or as old as `keep` updates, in both places."""
        for folder in (daemon.store / "runs" / RUN / "record", daemon.store / "copy" / "runs" / RUN / "record"):
            for path in sorted(folder.glob("*")):
                if path.suffix != ".update" or int(path.stem, 16) > keep:
                    path.unlink()

    def salvage(self, daemon, *words, check=0):
        document = cairn_json("salvage", *words, "--store", f"dir:{daemon.store}", RUN, check=check)
        run, = document["runs"]
        self.assertIsNone(run["error"])
        return {(item["step"], item["term"]): (item["outcome"], item["text"]) for item in run["items"]}

    def facts(self, daemon):
        """What `ls` says of each checkpoint, but for its place in the chain."""
        left_out = ("sequence", "base_term", "base_step", "base_sequence", "committed_at", "manifest_sha256")
        return {key: {name: value for name, value in entry.items() if name not in left_out}
                for key, entry in listed(daemon).items()}

    def assert_training_goes_on(self, daemon, want):
        daemon.start()
        group = self.group(daemon)
        self.assertEqual(group.restore(), want)
        group.all("check", 20)
        group.all("fill", 50)
        self.assertEqual(group.save(50), 3)
        group.end()
        cairn("gc", "--server", f"unix:{daemon.socket}", check=0)
        cairn("gc", "--server", f"unix:{daemon.socket}", check=0)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(verified(daemon)["damaged"], 0)

    def test_a_record_that_is_gone(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon)
        said = self.salvage(daemon)
        self.assertEqual({outcome for outcome, _ in said.values()}, {"whole"})
        self.assertEqual(set(said), {(0, 0), *before})
        self.assertEqual(self.salvage(daemon, "--quick"), {key: (outcome, text.replace("every byte of it is good", "manifest, pages and parts are whole"))
                                                          for key, (outcome, text) in said.items()})
        self.assertEqual(self.salvage(daemon, "--yes"), said)
        self.assertEqual(self.facts(daemon), before)
        self.assertEqual(self.salvage(daemon, "--yes"), {})
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_an_older_record(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon, keep=5)
        _, out, err = cairn("verify", "--store", f"dir:{daemon.store}", RUN, check=6)
        self.assertIn("salvage demo/run", out)
        self.assertIn(f"`cairn salvage --yes --accept-loss --store dir:{daemon.store}` does it", err)
        self.salvage(daemon, "--yes")
        self.assertEqual(self.facts(daemon), before)
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_what_is_damaged_as_well(self):
        daemon = self.saved()
        shutil.copytree(daemon.store, self.bed.path / "mirror")
        self.lose_record(daemon)
        flip(daemon.files(f"runs/{RUN}/checkpoints/2-40/part-0*")[0], 300)
        flip(daemon.files(f"runs/{RUN}/checkpoints/1-25/manifest*")[0], 60)
        said = self.salvage(daemon, "--yes", check=3)
        self.assertEqual(said[40, 2][0], "damaged")
        self.assertIn("part of rank 0", said[40, 2][1])
        self.assertEqual(said[25, 1][0], "left")
        self.assertIn("manifest", said[25, 1][1])
        self.assertEqual({key: entry["health"] for key, entry in listed(daemon).items()},
                         {(10, 1): "verified", (20, 1): "verified", (30, 2): "verified", (40, 2): "damaged"})
        self.assertEqual(set(self.salvage(daemon, "--yes", check=3)), {(25, 1)})
        cairn("verify", "--repair", "--store", f"dir:{daemon.store}", "--from", f"dir:{self.bed.path / 'mirror'}", RUN, "40@2", check=0)
        self.assertEqual(self.salvage(daemon, "--yes", "--discard")[25, 1][0], "given up")
        self.assertEqual(self.salvage(daemon), {})
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_killed_at_each_update(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon)
        killed = 0
        for _ in range(12):
            status, _, _ = cairn("salvage", "--yes", "--store", f"dir:{daemon.store}", RUN,
                                 env={"CAIRN_FAILPOINTS": "dir.record=kill@3"})
            killed += status == -9
            if status == 0:
                break
        self.assertGreater(killed, 2)
        self.assertEqual(self.facts(daemon), before)
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_the_record_of_the_store(self):
        """Nothing whole of it is left in either place: neither a daemon nor a making gives the runs another identity by itself."""
        daemon = self.saved()
        before = self.facts(daemon)
        url = f"dir:{daemon.store}"
        remedy = f"`cairn salvage --store {url}`"
        uuid = cairn_json("store", "upgrade", url)["store_uuid"]
        for loss in ("gone", "cut", "folders"):
            for folder in (daemon.store / "store", daemon.store / "copy" / "store"):
                for path in folder.iterdir():
                    if loss == "cut":
                        path.chmod(0o600)
                        path.write_bytes(path.read_bytes()[:9])
                    else:
                        path.unlink()
                if loss == "folders":
                    folder.rmdir()
            files = sorted(daemon.store.rglob("*"))
            for words in (("store", "create", url, "--dry-run"), ("store", "create", url)):
                _, _, err = cairn(*words, check=6 if loss == "cut" else 1)
                self.assertIn("DAMAGED" if loss == "cut" else "NOT_EMPTY", err)
                self.assertIn(remedy, err)
            for words in (("ls",), ("verify",), ("store", "upgrade")):
                where = ("--store", url) if words[0] != "store" else (url,)
                self.assertIn(remedy, cairn(*words, *where, check=6)[2])
            refused = Daemon(self.bed, "refused", path=daemon.store, creates=False)
            refused.launch()
            self.assertEqual(refused.process.wait(30), 6)
            self.assertIn(remedy, refused.tail())
            _, out, err = cairn("salvage", "--store", url, check=0)
            self.assertIn("the store's record: whole: nothing whole of it is left; the store's UUID is then a new one: it is made anew", out)
            self.assertIn(f"`cairn salvage --yes --store {url}` does it", err)
            self.assertEqual([path for path in sorted(daemon.store.rglob("*")) if path.name != "lock"],
                             [path for path in files if path.name != "lock"])
            pinned = loss == "folders"
            for point in ("dir.remake=kill@1", "dir.record=kill@1"):
                status, _, _ = cairn("salvage", "--yes", "--store", url, *(("--store-uuid", uuid) if pinned else ()),
                                     env={"CAIRN_FAILPOINTS": point})
                self.assertEqual(status, -9, point)
            _, out, _ = cairn("salvage", "--yes", "--store", url, *(("--store-uuid", uuid) if pinned else ()), check=0)
            self.assertIn("it is made anew", out)
            made = cairn_json("store", "upgrade", url)["store_uuid"]
            self.assertEqual(made == uuid, pinned)
            self.assertIn(made, out)
            self.assertEqual(self.facts(daemon), before)
            self.assertIsNone(cairn_json("salvage", "--store", url)["store_record"])
        self.assertIn("STORE_MISMATCH", cairn("salvage", "--store", url, "--store-uuid", "0" * 32)[2])
        self.assertIn("32 hex", cairn("salvage", "--store", url, "--store-uuid", "x", check=2)[2])
        self.assert_training_goes_on(daemon, (40, 2, False))
        epochs = {int(path.name.split("-")[1], 16) for path in daemon.store.glob("runs/demo/run/objects/3-50/*")}
        self.assertGreater(min(epochs), 1 << 30)

    def test_what_it_does_not_do(self):
        daemon = self.saved()
        self.assertEqual(self.salvage(daemon), {})
        cairn("salvage", "--store", f"dir:{daemon.store}", "demo/none", check=4)
        cairn("salvage", "--store", f"dir:{daemon.store}", "--server", "unix:/nowhere", check=2)
        status, _, err = cairn("salvage", RUN, "--server", "unix:/nowhere")
        self.assertEqual(status, 2)
        self.assertIn("with the daemon stopped", err)
        daemon.start()
        _, _, err = cairn("salvage", "--yes", "--store", f"dir:{daemon.store}", check=11)
        self.assertIn("stop it", err)


if __name__ == "__main__":
    main()
