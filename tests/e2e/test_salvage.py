# SPDX-License-Identifier: Apache-2.0
"""`cairn salvage`: checkpoints that no record tells of are made again from what lies in the store; it says first what it would
do, may be killed at each update, and names what it cannot."""

import shutil

from harness import Case, Group, cairn, cairn_json, flip, listed, main, verified

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
