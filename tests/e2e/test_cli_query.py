# SPDX-License-Identifier: Apache-2.0
"""The commands that ask (wait, flush, top, diff, ls) say what is so, and end with the status that says it."""

import json
import math
import os
import pty
import signal
import subprocess

from harness import BIN, Case, Group, cairn, cairn_json, main, wait_until


def start_cairn(bed, *words):
    return bed.start([BIN / "cairn", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                     stderr=subprocess.PIPE)


class Waiting(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon()
        self.where = self.server.online

    def test_wait_for_a_step(self):
        group = self.group(self.server)
        group.save(1)
        self.assertEqual(cairn_json("wait", "demo/run", "1", *self.where)["checkpoint"]["step"], 1)
        self.assertEqual(cairn_json("wait", "demo/run", *self.where)["checkpoint"]["step"], 1)
        self.assertEqual(cairn("wait", "demo/run", "1@1", *self.where, check=0)[1], "1@1: committed\n")
        _, _, err = cairn("wait", "demo/run", "2", "--for", "300ms", *self.where, check=5)
        self.assertIn("demo/run: waited for the commit of checkpoint 2: it did not happen within 0.300 s, which --for sets", err)
        waiters = [start_cairn(self.bed, "wait", "demo/run", *words, "--json", *self.where)
                   for words in (("2",), ("2@1",))]
        group.save(2)
        for waiter in waiters:
            out, err = waiter.communicate(timeout=120)
            self.assertEqual((waiter.returncode, json.loads(out)["checkpoint"]["step"]), (0, 2), err)

    def test_wait_for_the_next_commit(self):
        group = self.group(self.server)
        group.save(1)
        waiter = start_cairn(self.bed, "wait", "demo/run", "--next", "--json", *self.where)
        step = 1
        while waiter.poll() is None:  # whenever it has looked first, there is one after that
            step += 1
            group.save(step)
        out, err = waiter.communicate(timeout=120)
        self.assertEqual(waiter.returncode, 0, err)
        self.assertTrue(2 <= json.loads(out)["checkpoint"]["step"] <= step)

    def test_wait_for_an_open_save_that_is_aborted(self):
        group = self.group(self.server)
        group.save(1)
        waiter = start_cairn(self.bed, "wait", "demo/run", "--open", "--json", *self.where)
        group[0].do("save", 5, 8000)  # rank 1 never comes; two programs start meanwhile
        out, err = waiter.communicate(timeout=120)
        self.assertEqual((waiter.returncode, json.loads(out)["checkpoint"]["state"]), (0, "open"), err)
        self.assertRegex(cairn("ls", "demo/run", *self.where, check=0)[1], r"5@1 +open .* waits for rank")
        _, out, err = cairn("flush", "demo/run", "--for", "200ms", *self.where, check=5)
        self.assertRegex(err, "5@1 is open: . of 2 ranks have sealed, it waits for rank")
        status, out, err = cairn("flush", "demo/run", *self.where, "--json")
        document = json.loads(out)
        self.assertEqual((status, document["committed"], document["aborted"]), (3, 0, 1), err)
        _, _, err = cairn("wait", "demo/run", "5@1", *self.where, check=1)
        self.assertIn("ABORTED", err)

    def test_flush(self):
        group = self.group(self.server)
        group.save(1)
        document = cairn_json("flush", "demo/run", *self.where)
        self.assertEqual((document["saves"], document["aborted"]), ([], 0))
        started = group.all("save", 2, 60000)
        flusher = start_cairn(self.bed, "flush", "demo/run", *self.where)
        group.finish(started)
        self.assertEqual(flusher.wait(120), 0)
        self.assertEqual(cairn("flush", "demo/run", "--quiet", *self.where, check=0)[1], "")

    def test_refused(self):
        self.group(self.server).save(1)
        store = self.server.offline
        for words in (("wait", "demo/run", "--next", *store), ("flush", "demo/run", *store)):
            _, _, err = cairn(*words, check=2)
            self.assertIn("UNSUPPORTED", err)
        cairn("wait", "demo/run", "1", "--next", *self.where, check=2)
        cairn("wait", *self.where, check=2)
        cairn("wait", "demo/run", "1", "--for", "soon", *self.where, check=2)
        cairn("wait", "demo/run", "1", "--for", "1s", "--server", "127.0.0.1:1", "--timeout", "1", check=5)


class Top(Case):
    """Saves on their way: one that is stuck stays visible until it is aborted."""

    def look(self, *words):
        _, out, _ = cairn("top", "--count", 1, "--json", *words, *self.server.online, check=0)
        return json.loads(out)["saves"]

    def test_ranks_that_save_and_one_that_does_not(self):
        self.server = self.daemon()
        group = Group(self.bed, self.server.url(), 3)
        self.assertEqual(self.look(), [])
        started = [rank.do("save", 1, 60000) for rank in group.ranks[:2]]
        saves = wait_until("two ranks have brought all they have", lambda: [
            save for save in self.look() if len(save["ranks"]) == 2
            and all(rank["durable_bytes"] > 0 and rank["durable_bytes"] == rank["received_bytes"]
                    for rank in save["ranks"])])
        self.assertEqual([(save["run"], save["step"], save["world_size"]) for save in saves], [("demo/run", 1, 3)])
        self.assertEqual([rank["rank"] for rank in saves[0]["ranks"]], [0, 1])
        self.assertTrue(all(rank["connected"] for rank in saves[0]["ranks"]))
        self.assertEqual(self.look("other/run"), [])
        self.assertEqual(self.look("demo/run")[0]["step"], 1)
        group[0].kill()
        gone = wait_until("rank 0 is gone, or was handed over", lambda: [
            rank for save in self.look() for rank in save["ranks"] if rank["rank"] == 0 and not rank["connected"]])
        self.assertEqual(gone[0]["straggles"], not gone[0]["handed_over"])
        self.assertEqual(len(started), 2)

    def test_looks_follow_each_other(self):
        self.server = self.daemon()
        where = self.server.online
        _, out, _ = cairn("top", "--count", 3, "--every", "100ms", "--json", *where, check=0)
        self.assertEqual([json.loads(line)["message_type"] for line in out.splitlines()], ["top"] * 3)
        _, out, _ = cairn("top", "--count", 1, *where, check=0)
        self.assertEqual(out, "0 ranks are saving, 0 hold the others up\n\n")  # a plain table for a pipe
        primary, secondary = pty.openpty()
        done = subprocess.run([BIN / "cairn", "top", "--count", "1", *where], stdout=secondary, timeout=120,
                              stdin=subprocess.DEVNULL, check=False)
        os.close(secondary)
        self.assertIn(b"0 ranks are saving", os.read(primary, 4096))
        os.close(primary)
        self.assertEqual(done.returncode, 0)
        endless = start_cairn(self.bed, "top", "--every", "100ms", *where)
        endless.stdout.readline()
        endless.send_signal(signal.SIGTERM)  # a background job may ignore SIGINT
        endless.communicate(timeout=120)
        self.assertEqual(endless.returncode, 130)
        cairn("top", *self.server.offline, check=2)
        cairn("top", "--every", "1ms", *where, check=2)


class Diff(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon(save_chunk="16KiB")
        self.ways = (self.server.online, self.server.offline)

    def saved(self):
        """Step 2 differs from 1 in three of 64 parts of 512 bytes each of w, and b is new; steps 3 equals 2."""
        group = self.group(self.server, 1, state=None)
        rank = group[0]
        rank.do("tensor", "w", "uint8", "64x32768", "replicated")
        rank.do("tensor", "f", "float32", "1000", "replicated")
        rank.do("tensor", "gone", "int64", "4", "replicated")
        rank.do("blob", "loader", "bytes", "local", "00ff00", "rank=0")
        rank.do("set")
        rank.do("fill", 1)
        group.save(1)
        return group

    def entries(self, document):
        return {entry["name"]: entry for entry in document["entries"]}

    def test_equal(self):
        group = self.saved()
        group.save(2)
        for where in self.ways:
            document = cairn_json("diff", "demo/run", "1", "2", *where)
            self.assertEqual((document["changed"], document["equal"], document["entries"]), (0, 4, []))
            self.assertEqual((document["read_bytes"], document["exact"]), (0, True))
            self.assertEqual(len(cairn_json("diff", "demo/run", "1", "--all", *where)["entries"]), 4)

    def test_changed_bytes_and_what_is_read(self):
        daemon = self.server
        group = self.group(daemon, 1, state=None)
        rank = group[0]
        rank.do("tensor", "w", "uint8", "64x32768", "replicated")
        rank.do("set")
        seeds = list(range(64))
        rank.do("paint", "w", "-", ",".join(map(str, seeds)))
        group.save(1)
        seeds[5] = 1000
        rank.do("paint", "w", "-", ",".join(map(str, seeds)))
        group.save(2)
        for where in self.ways:
            document = cairn_json("diff", "demo/run", "1", "2", *where, check=1)
            entry = self.entries(document)["w"]
            self.assertEqual((entry["change"], entry["changed_chunks"], entry["chunks"]), ("changed", 2, 128))
            self.assertTrue(30000 < entry["changed_bytes"] <= 32768, entry)  # of a row, by chance some are equal
            self.assertEqual(document["read_bytes"], 2 * 32768)  # of 2 MiB: only what changed, from both
            rough = cairn_json("diff", "demo/run", "1", "2", "--no-read-data", *where, check=1)
            self.assertEqual((rough["changed_bytes"], rough["exact"], rough["read_bytes"]), (32768, False, 0))
            self.assertEqual(cairn_json("diff", "demo/run", "2", "1", *where, check=1)["changed_bytes"],
                             document["changed_bytes"])
            self.assertEqual(cairn_json("diff", "demo/run", "1", "2", "--only", "nothing*", *where)["changed"], 0)
            status, out, _ = cairn("diff", "demo/run", "1", *where)
            self.assertEqual(status, 1)
            self.assertIn("1 differ, 0 are equal", out)

    def test_other_world_size_is_equal_bytes(self):
        """Sharded over two ranks, then over three: other boxes, the same tensor; bytes decide, not layouts."""
        for step, world in ((1, 2), (2, 3)):
            group = Group(self.bed, self.server.url(), world, state=None)
            for number, rank in enumerate(group.ranks):
                share = 90 // world
                rank.do("tensor", "w", "float32", "90x512", "sharded", "-", f"{number * share},0", f"{share}x512")
                if world == 3:
                    rank.do("tensor", "fresh", "uint8", "10", "replicated")
            group.all("set")
            group.all("fill", 3)
            group.save(step)
            group.end()
        for where in self.ways:
            document = cairn_json("diff", "demo/run", "1@1", "2@2", *where, check=1)
            self.assertEqual({name: entry["change"] for name, entry in self.entries(document).items()},
                             {"fresh": "added"})
            self.assertGreater(document["read_bytes"], 0)

    def test_types_names_and_norms(self):
        group = self.group(self.server, 1, state=None)
        rank = group[0]
        rank.do("tensor", "f", "float32", "16", "replicated")
        rank.do("tensor", "gone", "int64", "4", "replicated")
        rank.do("tensor", "other", "int64", "4", "replicated")
        rank.do("set")
        group.save(1)  # zeros
        group.end()
        group = self.group(self.server, 1, state=None)
        rank = group[0]
        rank.do("tensor", "f", "float32", "16", "replicated")
        rank.do("tensor", "fresh", "int64", "4", "replicated")
        rank.do("tensor", "other", "int32", "4", "replicated")
        rank.do("set")
        rank.do("fill", 7)
        group.save(2)
        first = cairn_json("ls", "demo/run", *self.ways[0])["checkpoints"]
        names = sorted(f"{c['step']}@{c['term']}" for c in first)
        document = cairn_json("diff", "demo/run", *names, "--norms", *self.ways[0], check=1)
        changes = {name: entry["change"] for name, entry in self.entries(document).items()}
        self.assertEqual(changes, {"f": "changed", "gone": "removed", "fresh": "added", "other": "other type"})
        norms = self.entries(document)["f"]["norms"]
        self.assertEqual(norms["a"], 0)
        if norms["b"] is not None and norms["difference"] is not None:  # what fill writes may be NaN or inf
            self.assertTrue(math.isclose(norms["b"], norms["difference"]))

    def test_statuses(self):
        self.saved()
        where = self.ways[0]
        cairn("diff", "demo/run", "1", "9", *where, check=4)
        cairn("diff", "demo/run", "1", "x", *where, check=2)
        cairn("diff", "demo/run", *where, check=2)
        cairn("diff", "demo/run", "1", "--norms", "--no-read-data", *where, check=2)
        with open("/dev/full", "wb") as full:  # 1 would say that they differ
            done = subprocess.run([BIN / "cairn", "diff", "demo/run", "1", "1", *where], stdin=subprocess.DEVNULL,
                                  timeout=120, stdout=full, stderr=subprocess.DEVNULL, check=False)
        self.assertEqual(done.returncode, 2)


class Long(Case):
    def test_lists_of_whole_pages_and_of_one_more(self):
        """The server answers 500 at a time."""
        for count in (1, 499, 500, 501, 999, 1000, 1001, 2000):
            with self.subTest(count=count):
                store = self.bed.path / f"of-{count}"
                subprocess.run([BIN / "many_checkpoints", f"dir:{store}", "demo/run", str(count)], check=True,
                               capture_output=True, timeout=60)
                for limit, expected in ((0, count), (500, min(count, 500)), (501, min(count, 501))):
                    words = ("--limit", limit) if limit else ()
                    entries = cairn_json("ls", "demo/run", *words, "--store", f"dir:{store}")["checkpoints"]
                    self.assertEqual(len({(entry["step"], entry["term"]) for entry in entries}), expected)
                    self.assertEqual(len(entries), expected)


if __name__ == "__main__":
    main()
