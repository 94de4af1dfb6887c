# SPDX-License-Identifier: Apache-2.0
"""`cairn salvage` makes checkpoints that no record tells of again from what lies in the store; it says first what it
would do, may be killed at each update, and names what it cannot."""

import hashlib
import shutil
import struct

from frames import crc32c
from harness import Case, Daemon, cairn, cairn_json, flip, listed, main, verified

KEYS = {"scrub_every": "0s", "gc_every": "0s", "save_full_every": "3"}
RUN = "demo/run"


class Salvage(Case):
    def saved(self):
        """10, 20, 25 in term 1; 30, 40 in term 2, which continues 20: 25 is superseded. Stopped, so that nothing is on the way."""
        daemon = self.with_saves(10, 20, 25, fills=True, **KEYS)
        self.run_attempt(daemon, 30, 40, resumes="20")
        self.assertEqual(daemon.stop(), 0)
        return daemon

    def lose_record(self, daemon, keep=0):
        """The record is gone, or as old as `keep` updates, in both places."""
        for folder in (daemon.store / "runs" / RUN / "record", daemon.store / "copy" / "runs" / RUN / "record"):
            for path in sorted(folder.glob("*")):
                if path.suffix != ".update" or int(path.stem, 16) > keep:
                    path.unlink()

    def salvage(self, daemon, *words, check=0):
        document = cairn_json("salvage", *words, *daemon.offline, RUN, check=check)
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
        cairn("gc", *daemon.online, check=0)
        cairn("gc", *daemon.online, check=0)
        self.assertEqual(daemon.stop(), 0)
        self.assertEqual(verified(daemon)["damaged"], 0)

    def test_a_record_that_is_gone(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon)
        said = self.salvage(daemon)
        self.assertEqual({outcome for outcome, _ in said.values()}, {"whole"})
        self.assertEqual(set(said), {(0, 0), *before})
        self.assertEqual(self.salvage(daemon, "--quick"),
                         {key: (outcome, text.replace("every byte of it is good", "manifest, pages and parts are whole"))
                          for key, (outcome, text) in said.items()})
        self.assertEqual(self.salvage(daemon, "--yes"), said)
        self.assertEqual(self.facts(daemon), before)
        self.assertEqual(self.salvage(daemon, "--yes"), {})
        self.assert_training_goes_on(daemon, (40, 2, False))

    def seal(self, path, old, new):
        """Changes a document so that it is whole by its own checksum; returns both hashes."""
        data = bytearray(path.read_bytes())
        was = hashlib.sha256(data).digest()
        self.assertEqual(data.count(old), 1)
        at = data.index(old)
        data[at:at + len(new)] = new
        data[16:20] = struct.pack("<I", crc32c(bytes(data[:16] + data[20:])))
        path.chmod(0o644)
        path.write_bytes(data)
        return was, hashlib.sha256(data).digest()

    def test_an_index_that_does_not_agree_with_the_parts(self):
        """Whole by all hashes, as a faulty server would make it: salvage, verify and scrub name it, and training passes over it."""
        daemon = self.saved()
        folder = daemon.store / "runs" / RUN / "checkpoints" / "2-40"
        entry = struct.pack("<HHI", len("model.w"), 0, 2)  # name, no coordinate, two dimensions
        page, = (path for path in folder.glob("page-*") if b"model.w" in path.read_bytes())
        at = page.read_bytes().index(entry)
        facts = page.read_bytes()[at - 24:at]  # kind, placement, dtype, blob kind, bytes
        other = facts[:4] + struct.pack("<I", 3 - struct.unpack("<I", facts[4:8])[0]) + facts[8:]
        manifest, = folder.glob("manifest-*")
        self.seal(manifest, *self.seal(page, facts + entry, other + entry))
        self.lose_record(daemon)
        outcome, text = self.salvage(daemon)[40, 2]
        self.assertEqual(outcome, "damaged", text)
        self.assertRegex(text, "page 1 of checkpoint 40@2 .*does not agree with the parts: tensor model.w")
        self.salvage(daemon, "--yes")
        _, out, _ = cairn("verify", *daemon.offline, RUN, check=6)
        self.assertRegex(out, r"40@2: DAMAGED\n .*page 1 .*does not agree with the parts: tensor model.w")
        _, out, _ = cairn("verify", "--repair", *daemon.offline, RUN, check=6)
        self.assertIn("no copy can mend it", out)
        daemon.start()
        _, out, _ = cairn("scrub", "--wait", *daemon.online, check=6)
        self.assertIn("does not agree with the parts", out)
        self.assertEqual(self.group(daemon).restore(), (30, 2, True))

    def test_an_older_record(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon, keep=5)
        _, out, err = cairn("verify", *daemon.offline, RUN, check=6)
        self.assertIn("salvage demo/run", out)
        self.assertIn(f"`cairn salvage --yes --store dir:{daemon.store} demo/run` does it", err)
        self.salvage(daemon, "--yes")
        self.assertEqual(self.facts(daemon), before)
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_what_is_damaged_as_well(self):
        daemon = self.saved()
        shutil.copytree(daemon.store, self.bed.path / "mirror")
        self.lose_record(daemon)
        flip(daemon.files(f"runs/{RUN}/checkpoints/2-40/part-0*")[0], 300)
        flip(daemon.files(f"runs/{RUN}/checkpoints/1-25/manifest*")[0], 60)
        daemon.files(f"runs/{RUN}/checkpoints/1-25/part-1*")[0].unlink()
        said = self.salvage(daemon, "--yes", check=3)
        self.assertEqual(said[40, 2][0], "damaged")
        self.assertIn("part of rank 0", said[40, 2][1])
        self.assertEqual(said[25, 1][0], "left")
        self.assertIn("its manifest cannot be read", said[25, 1][1])
        self.assertIn("parts of 1 of 2 ranks are here", said[25, 1][1])
        self.assertEqual({key: entry["health"] for key, entry in listed(daemon).items()},
                         {(10, 1): "verified", (20, 1): "verified", (30, 2): "verified", (40, 2): "damaged"})
        self.assertEqual(set(self.salvage(daemon, "--yes", check=3)), {(25, 1)})
        cairn("verify", "--repair", *daemon.offline, "--from", f"dir:{self.bed.path / 'mirror'}", RUN, "40@2", check=0)
        self.assertEqual(self.salvage(daemon, "--yes", "--discard")[25, 1][0], "given up")
        self.assertEqual(self.salvage(daemon), {})
        self.assert_training_goes_on(daemon, (40, 2, False))

    def lose_manifest(self, daemon, name, how="gone"):
        path, = daemon.files(f"runs/{RUN}/checkpoints/{name}/manifest*")
        if how == "gone":
            path.unlink()
        else:
            flip(path, 60)

    def assert_remade(self, said, key, word="was"):
        outcome, text = said[key]
        self.assertEqual(outcome, "whole", text)
        self.assertIn(f"its manifest {word} made again from 2 parts", text)
        self.assertIn("every byte of it is good", text)

    def test_manifests_that_are_gone_as_well(self):
        """Made again from the parts; their term's token and parent are those of another checkpoint of the term."""
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon)
        for name, how in (("2-40", "gone"), ("1-25", "flipped"), ("1-10", "gone")):
            self.lose_manifest(daemon, name, how)
        page, = daemon.files(f"runs/{RUN}/checkpoints/2-40/page-0*")
        page.unlink()
        files = daemon.files("runs/**/*")
        for words in ((), ("--quick",)):
            said = self.salvage(daemon, *words)
            for key in ((10, 1), (25, 1), (40, 2)):
                self.assert_remade(said, key, "would be")
            self.assertEqual(daemon.files("runs/**/*"), files)
        said = self.salvage(daemon, "--yes", "--quick")
        for key in ((10, 1), (25, 1), (40, 2)):
            self.assert_remade(said, key)
        after = self.facts(daemon)
        for key, facts in before.items():
            again = after[key]
            if key in ((10, 1), (25, 1), (40, 2)):
                self.assertEqual((again.pop("tags"), again.pop("metrics")), (["cairn: manifest made again, metadata lost"], {}))
            self.assertEqual(again, {name: facts[name] for name in again}, key)
        self.assertEqual(self.salvage(daemon, "--yes"), {})
        self.assertEqual(verified(daemon)["damaged"], 0)
        daemon.start()
        for step, metadata in (("latest", "DAMAGED"), ("30", "OK")):  # what is lost is never taken for empty
            group = self.group(daemon)
            results = group.finish(group.all("restore", step))
            self.assertEqual([result["metadata"] for result in results], [metadata] * 2)
            group.end()
        self.assertEqual(daemon.stop(), 0)
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_manifests_that_are_not_made_again(self):
        """A damaged object, a damaged part, parts of another save, a page of other parts: left, each by name."""
        daemon = self.saved()
        parts = {name: daemon.files(f"runs/{RUN}/checkpoints/{name}/part-*") for name in ("1-10", "1-20", "1-25", "2-30", "2-40")}
        other = parts["2-30"][1].read_bytes()
        self.lose_record(daemon)
        for name in parts:
            self.lose_manifest(daemon, name)
        flip(daemon.files(f"runs/{RUN}/objects/1-10/*")[0], 0)
        flip(parts["1-20"][0], 300)
        parts["2-40"][1].chmod(0o600)
        parts["2-40"][1].write_bytes(other)
        page, = daemon.files(f"runs/{RUN}/checkpoints/1-25/page-0*")
        page.chmod(0o600)
        page.write_bytes(daemon.files(f"runs/{RUN}/checkpoints/1-10/page-0*")[0].read_bytes())
        for words in ((), ("--yes",)):
            said = self.salvage(daemon, "--accept-loss", *words, check=3)
            for key, text in (((10, 1), "is not made again: "), ((20, 1), "cannot be made again: the part of rank 0"),
                              ((25, 1), "its page 0 was made from other parts"), ((40, 2), "the part that rank 1 sealed belongs to")):
                self.assertEqual(said[key][0], "left", said)
                self.assertIn(text, said[key][1])
            self.assert_remade(said, (30, 2), "was" if words else "would be")
        self.assertEqual(set(listed(daemon)), {(30, 2)})
        for name in ("1-10", "1-20", "1-25", "2-40"):
            self.assertEqual(daemon.files(f"runs/{RUN}/checkpoints/{name}/manifest*"), [])
        self.salvage(daemon, "--yes", "--discard")
        self.assertEqual(self.salvage(daemon), {})
        daemon.start()
        group = self.group(daemon)
        self.assert_restores(group, (30, 2, False), 20)

    def test_a_term_of_which_no_manifest_is_left(self):
        """What it continues is guessed by the operator's word only; a fragment and a known abort are no checkpoints."""
        daemon = self.saved()
        self.lose_record(daemon)
        for name in ("2-30", "2-40"):
            self.lose_manifest(daemon, name)
        daemon.files(f"runs/{RUN}/checkpoints/2-30/part-1*")[0].unlink()
        said = self.salvage(daemon, "--yes", check=3)
        self.assertEqual(said[40, 2][0], "left")
        self.assertIn("with --accept-loss 25@1 is taken for it", said[40, 2][1])
        self.assertNotIn((30, 2), said)
        self.assertEqual(set(listed(daemon)), {(10, 1), (20, 1), (25, 1)})
        said = self.salvage(daemon, "--yes", "--accept-loss")
        self.assert_remade(said, (40, 2))
        self.assertIn("taken to be 25@1", said[40, 2][1])
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_killed_at_each_file_of_a_manifest(self):
        daemon = self.saved()
        self.lose_record(daemon)
        for how, name in (("gone", "2-40"), ("flipped", "1-25")):
            self.lose_manifest(daemon, name, how)
        daemon.files(f"runs/{RUN}/checkpoints/2-40/page-0*")[0].unlink()
        killed = 0
        for number in range(1, 60):
            status, _, _ = cairn("salvage", "--yes", *daemon.offline, RUN,
                                 env={"CAIRN_FAILPOINTS": f"dir.rename=kill@{number}"})
            killed += status == -9
            if status == 0:
                break
        self.assertGreater(killed, 5)
        self.assertEqual(len(listed(daemon)), 5)
        self.assert_training_goes_on(daemon, (40, 2, False))

    def test_killed_at_each_update(self):
        daemon = self.saved()
        before = self.facts(daemon)
        self.lose_record(daemon)
        killed = 0
        for _ in range(12):
            status, _, _ = cairn("salvage", "--yes", *daemon.offline, RUN,
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
            self.assertEqual(refused.process.wait(120), 6)
            self.assertIn(remedy, refused.tail())
            _, out, err = cairn("salvage", "--store", url, check=0)
            self.assertIn("the store's record: whole: nothing intact of it is left; the store's UUID is a new one "
                          "(--store-uuid keeps the old one): it is made again", out)
            self.assertIn(f"`cairn salvage --yes --store {url}` makes these changes", err)
            self.assertEqual([path for path in sorted(daemon.store.rglob("*")) if path.name != "lock"],
                             [path for path in files if path.name != "lock"])
            pinned = loss == "folders"
            for point in ("dir.remake=kill@1", "dir.record=kill@1"):
                status, _, _ = cairn("salvage", "--yes", "--store", url, *(("--store-uuid", uuid) if pinned else ()),
                                     env={"CAIRN_FAILPOINTS": point})
                self.assertEqual(status, -9, point)
            _, out, _ = cairn("salvage", "--yes", "--store", url, *(("--store-uuid", uuid) if pinned else ()), check=0)
            self.assertIn("it is made again", out)
            self.assertEqual(", a new one: write it to [store] uuid" in out, not pinned)
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
        cairn("salvage", *daemon.offline, "demo/none", check=4)
        cairn("salvage", *daemon.offline, "--server", "unix:/nowhere", check=2)
        status, _, err = cairn("salvage", RUN, "--server", "unix:/nowhere")
        self.assertEqual(status, 2)
        self.assertIn("stop the daemon first", err)
        daemon.start()
        _, _, err = cairn("salvage", "--yes", *daemon.offline, check=11)
        self.assertIn("stop that daemon first", err)


if __name__ == "__main__":
    main()
