# SPDX-License-Identifier: Apache-2.0
"""Scripts can rely on the command line: on its JSON, its exit statuses, the shares of a verify, and the files of a
restore, which a strict parser reads that knows nothing of Cairn."""

import fcntl
import importlib.util
import json
import os
import pty
import re
import select
import shutil
import struct
import subprocess
import termios
import unittest

from harness import BIN, SOURCE, Case, Group, add_state, cairn, cairn_json, flip, main, verified, wait_until

WIDTHS = {"BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2,
          "U32": 4, "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8}
MASK = 2**64 - 1
# A typed tree: FORMAT.md 10; made once by hand, its bytes are checked by the library.


def no_duplicates(pairs):
    keys = [key for key, _ in pairs]
    if len(keys) != len(set(keys)):
        raise ValueError(f"duplicate keys: {keys}")
    return dict(pairs)


def read_safetensors(path):
    """{name: (dtype, shape, bytes)}, or ValueError: the rules are checked, not assumed."""
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = data[8:8 + length]
    if length > 100_000_000 or len(header) != length or not header.startswith(b"{"):
        raise ValueError("no header")
    if (8 + length) % 8 != 0:
        raise ValueError("the data is not aligned to 8")
    table = json.loads(header.decode("utf-8"), object_pairs_hook=no_duplicates)
    metadata = table.pop("__metadata__", {})
    if not all(isinstance(value, str) for value in metadata.values()):
        raise ValueError("metadata is not all strings")
    data = data[8 + length:]
    at, tensors = 0, {}
    for name, entry in sorted(table.items(), key=lambda item: item[1]["data_offsets"]):
        if set(entry) != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"{name}: {sorted(entry)}")
        begin, end = entry["data_offsets"]
        elements = 1
        for size in entry["shape"]:
            elements *= size
        if begin != at or end - begin != elements * WIDTHS[entry["dtype"]]:
            raise ValueError(f"{name}: a hole, an overlap or a wrong size at {begin}..{end}")
        tensors[name] = (entry["dtype"], entry["shape"], data[begin:end])
        at = end
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind the last tensor")
    return tensors


def mix(x):
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ x >> 30) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ x >> 27) * 0x94D049BB133111EB) & MASK
    return x ^ x >> 31


def expected(name, seed, elements, width, coordinate=""):
    """What e2e_rank's `fill` writes (state.c), computed again here."""
    key = 0xCBF29CE484222325
    for byte in (name + coordinate).encode():
        key = ((key ^ byte) * 0x100000001B3) & MASK
    return b"".join((mix(key ^ mix(seed) ^ at) & (256**width - 1)).to_bytes(width, "little")
                    for at in range(elements))


class Files(Case):
    def test_restored_files(self):
        daemon = self.daemon()
        group = Group(self.bed, daemon.url(), 2, state=None)
        for number, rank in enumerate(group.ranks):
            add_state(rank, number, 2, 96)
            rank.do("tensor", "scalar", "int64", "-", "replicated")
            rank.do("tensor", "empty", "float16", "0x3", "replicated")
            rank.do("tensor", "flags", "bool", "7", "replicated")
            rank.do("tensor", "head/β.bf", "bfloat16", "3x5", "replicated")
            rank.do("blob", "loader", "bytes", "local", f"0{number}ff00", f"rank={number}")
        group.all("set")
        group.all("fill", 3)
        group.save(1)
        for number, where in enumerate((daemon.online, daemon.offline)):
            target = self.bed.path / f"out{number}"
            document = cairn_json("restore", "demo/run", "--to", target, *where)
            self.assertFalse(document["fell_back"])
            self.check_files(target)

    def check_files(self, target):
        model = read_safetensors(target / "model.safetensors")
        self.assertEqual(set(model), {"model.w", "optim.m", "scalar", "empty", "flags", "head/β.bf"})
        for name in ("model.w", "optim.m"):
            self.assertEqual(model[name], ("F32", [96, 16], expected(name, 3, 96 * 16, 4)))
        self.assertEqual(model["scalar"], ("I64", [], expected("scalar", 3, 1, 8)))
        self.assertEqual(model["empty"], ("F16", [0, 3], b""))
        self.assertEqual(model["head/β.bf"], ("BF16", [3, 5], expected("head/β.bf", 3, 15, 2)))
        flags = bytes(byte & 1 for byte in expected("flags", 3, 7, 1))
        self.assertEqual(model["flags"], ("BOOL", [7], flags))
        for rank in range(2):
            local = read_safetensors(target / f"local-rank={rank}.safetensors")
            self.assertEqual(local["rng"], ("U8", [100], expected("rng", 3, 100, 1, f"rank={rank}")))
            self.assertEqual((target / f"loader-rank={rank}.bin").read_bytes(), bytes([rank, 255, 0]))
        summary = json.loads((target / "checkpoint.json").read_text(), object_pairs_hook=no_duplicates)
        self.assertEqual((summary["run"], summary["checkpoint"]["step"]), ("demo/run", 1))
        for entry in summary["entries"]:
            self.assertTrue((target / entry["file"]).exists(), entry)
        self.assertFalse(target.with_name(target.name + ".partial").exists())

    def test_only(self):
        daemon = self.with_saves(1)
        where, target = daemon.online, self.bed.path / "part"
        cairn("restore", "demo/run", "--to", target, "--only", "model.*", "--only", "rng", *where, check=0)
        self.assertEqual(set(read_safetensors(target / "model.safetensors")), {"model.w"})
        self.assertEqual(set(read_safetensors(target / "local-rank=0.safetensors")), {"rng"})
        summary = json.loads((target / "checkpoint.json").read_text())
        self.assertEqual({entry["name"] for entry in summary["entries"]}, {"model.w", "rng"})
        _, _, err = cairn("restore", "demo/run", "--to", self.bed.path / "none", "--only", "modle.*", *where)
        self.assertIn("MISSING_TENSOR", err)
        self.assertIn("'modle.*'", err)
        self.assertFalse((self.bed.path / "none").exists())

    def test_ranks(self):
        """What single ranks held: their rows of what is sharded, all of what is replicated, their own."""
        daemon = self.daemon()
        group = Group(self.bed, daemon.url(), 3, rows=96)
        group.all("fill", 3)
        group.save(1)
        for number, where in enumerate((daemon.online, daemon.offline)):
            target = self.bed.path / f"ranks{number}"
            cairn("restore", "demo/run", "--to", target, "--ranks", "0,2", *where, check=0)
            self.assertEqual(sorted(os.listdir(target)), ["rank-0.safetensors", "rank-2.safetensors", "ranks.json"])
            summary = json.loads((target / "ranks.json").read_text(), object_pairs_hook=no_duplicates)
            whole = expected("optim.m", 3, 96 * 16, 4)
            for rank, first in ((0, 0), (2, 64)):
                held = read_safetensors(target / f"rank-{rank}.safetensors")
                self.assertEqual(held["model.w"], ("F32", [96, 16], expected("model.w", 3, 96 * 16, 4)))
                self.assertEqual(held["optim.m"], ("F32", [32, 16], whole[first * 64:(first + 32) * 64]))
                self.assertEqual(held["rng"], ("U8", [100], expected("rng", 3, 100, 1, f"rank={rank}")))
                entry = next(e for e in summary["ranks"] if e["rank"] == rank)
                placed = {tensor["name"]: (tensor["shape"], tensor["offset"]) for tensor in entry["tensors"]}
                self.assertEqual(placed["optim.m"], ([96, 16], [first, 0]))
            cairn("restore", "demo/run", "--to", self.bed.path / f"one{number}", "--ranks", "1", "--only", "optim.*",
                  *where, check=0)
            self.assertEqual(set(read_safetensors(self.bed.path / f"one{number}" / "rank-1.safetensors")), {"optim.m"})
            for wrong in ("3", "0-3", "a", "", "2-1", "0,"):
                cairn("restore", "demo/run", "--to", self.bed.path / "none", "--ranks", wrong, *where, check=2)
            self.assertFalse((self.bed.path / "none").exists())

    def test_as_ranks(self):
        """Any number of ranks, whatever number saved: put together again the files are the whole, once."""
        daemon = self.daemon()
        group = Group(self.bed, daemon.url(), 3, rows=96)
        group.all("fill", 3)
        group.save(1)
        where = daemon.offline
        for count in (1, 5, 200):
            target = self.bed.path / f"as{count}"
            cairn("restore", "demo/run", "--to", target, "--as-ranks", count, *where, check=0)
            self.assertEqual(len(os.listdir(target)), count + 1)
            summary = json.loads((target / "ranks.json").read_text(), object_pairs_hook=no_duplicates)
            self.assertEqual((summary["world_size"], len(summary["ranks"])), (count, count))
            rows, counts = {"model.w": b"", "optim.m": b""}, []
            for entry in summary["ranks"]:
                held = read_safetensors(target / entry["file"])
                self.assertEqual(set(held), {tensor["stored_as"] for tensor in entry["tensors"]})
                counts.append(held["model.w"][1][0] if "model.w" in held else 0)
                for tensor in entry["tensors"]:
                    if tensor["name"] in rows:
                        self.assertEqual(tensor["offset"], [len(rows[tensor["name"]]) // 64, 0])
                        rows[tensor["name"]] += held[tensor["stored_as"]][2]
            for name, data in rows.items():
                self.assertEqual(data, expected(name, 3, 96 * 16, 4))
            self.assertLessEqual(max(counts) - min(counts), 1)
            first = read_safetensors(target / "rank-0.safetensors")
            for rank in range(3):
                self.assertEqual(first[f"rng@rank={rank}"],
                                 ("U8", [100], expected("rng", 3, 100, 1, f"rank={rank}")))
        target = self.bed.path / "some"
        cairn("restore", "demo/run", "--to", target, "--as-ranks", 4, "--ranks", "1,3", *where, check=0)
        self.assertEqual(sorted(os.listdir(target)), ["rank-1.safetensors", "rank-3.safetensors", "ranks.json"])
        for words in (("--as-ranks", "0"), ("--as-ranks", "x"), ("--as-ranks", "2", "--ranks", "2")):
            cairn("restore", "demo/run", "--to", self.bed.path / "none", *words, *where, check=2)

    def test_a_file_that_shrinks_while_it_is_imported(self):
        """It is mapped: what is gone is a signal, which has to be an error in words, and no checkpoint."""
        path, size = self.bed.path / "w.safetensors", 64 << 20
        header = json.dumps({"w": {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(header)) + header)
            file.truncate(8 + len(header) + size)
        daemon = self.daemon(save_chunk="1MiB", failpoints="dir.write=delay:200")  # the arena holds a quarter: the rest has to wait
        where = daemon.online
        process = self.bed.start([BIN / "cairn", "import", "demo/in", path, "--arena", "16MiB", *where],
                                 stderr=subprocess.PIPE)
        self.addCleanup(process.stderr.close)
        wait_until("bytes arrive", lambda: daemon.files("runs/**/objects/**/.tmp-*") or process.poll() is not None)
        os.truncate(path, 4096)
        self.assertEqual(process.wait(60), 1)
        self.assertIn(b"became shorter while it was read", process.stderr.read())
        listed = cairn("ls", "demo/in", "--json", *where)
        self.assertTrue(listed[0] == 4 or all(entry["state"] != "committed"
                                              for entry in json.loads(listed[1])["checkpoints"]), listed)

    def test_metadata_of_safetensors_comes_back(self):
        """What a file says in __metadata__ is the checkpoint's metadata, in every file that is written of it; too much of
        it is refused, and left out if asked."""
        def write(name, metadata):
            header = json.dumps({"__metadata__": metadata, "w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]}}).encode()
            (self.bed.path / name).write_bytes(struct.pack("<Q", len(header)) + header + b"abcd")
            return self.bed.path / name

        def metadata_of(path):
            data = path.read_bytes()
            return json.loads(data[8:8 + struct.unpack("<Q", data[:8])[0]])["__metadata__"]

        daemon = self.daemon()
        server, said = daemon.online, {"format": "tf", "ss_tags": '{"a": "b\\n"}', "ü": "", "n": "x" * 9000}
        cairn("import", "demo/in", write("a.safetensors", {**said, "cairn.checkpoint": "old"}), *server, check=0)
        self.assertEqual(cairn_json("show", "demo/in", "latest", *server)["manifest"]["metadata"], {"safetensors": said})
        cairn("export", "demo/in", "--to", self.bed.path / "out", *server, check=0)
        cairn("restore", "demo/in", "--to", self.bed.path / "back", *server, check=0)
        cairn("restore", "demo/in", "--to", self.bed.path / "ranks", "--as-ranks", "1", *server, check=0)
        for file in ("out/model", "back/model", "ranks/rank-0"):
            self.assertEqual(metadata_of(self.bed.path / f"{file}.safetensors"), {**said, "cairn.checkpoint": "0@1"}, file)
        cairn("import", "demo/again", self.bed.path / "out" / "model.safetensors", *server, check=0)
        self.assertEqual(cairn_json("show", "demo/again", "latest", *server)["manifest"]["metadata"], {"safetensors": said})
        for much in ({"n": "x" * 17000}, {f"{i}": "" for i in range(2000)}):
            path = write("much.safetensors", much)
            _, _, err = cairn("import", "demo/much", path, *server)
            self.assertIn("TOO_LARGE", err)
            self.assertIn("--drop-metadata", err)
        cairn("import", "demo/much", path, "--drop-metadata", *server, check=0)
        self.assertEqual(cairn_json("show", "demo/much", "latest", *server)["manifest"]["metadata_bytes"], 0)

    def test_target_not_empty(self):
        daemon = self.with_saves(1)
        target = self.bed.path / "out"
        target.mkdir()
        (target / "mine").write_text("mine")
        _, _, err = cairn("restore", "demo/run", "--to", target, *daemon.offline, check=1)
        self.assertIn("NOT_EMPTY", err)
        self.assertEqual(sorted(os.listdir(target)), ["mine"])
        (target / "mine").unlink()
        (self.bed.path / "afile").write_text("mine")
        _, _, err = cairn("restore", "demo/run", "--to", self.bed.path / "afile", *daemon.offline,
                          check=1)
        self.assertIn("is not a directory; restore into", err)
        cairn("restore", "demo/run", "--to", target, *daemon.offline, check=0)

    def test_leftovers_of_another_restore(self):
        daemon = self.with_saves(1)
        (self.bed.path / "out.partial").mkdir()
        _, _, err = cairn("restore", "demo/run", "--to", self.bed.path / "out", *daemon.offline,
                          check=1)
        self.assertIn("out.partial", err)


class Commands(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon()
        for run, steps in (("demo/one", 3), ("demo/two", 1)):
            self.run_attempt(self.server, *range(1, steps + 1), run=run)
        self.ways = (self.server.online, self.server.offline)

    def test_ls(self):
        for where in self.ways:
            self.assertEqual(cairn_json("ls", *where)["runs"], ["demo/one", "demo/two"])
            self.assertEqual([c["step"] for c in cairn_json("ls", "demo/one", *where)["checkpoints"]], [3, 2, 1])
            _, out, _ = cairn("ls", *where, check=0)
            self.assertEqual(out, "demo/one\ndemo/two\n")
            _, out, _ = cairn("ls", "demo/one", "--limit", 1, *where, check=0)
            self.assertIn("3@1", out)
            self.assertNotIn("2@1", out)
        self.assertEqual(cairn("ls", env={"CAIRN_STORE": f"dir:{self.server.store}"}, check=0)[1],
                         "demo/one\ndemo/two\n")
        self.assertEqual(cairn("ls", env={"CAIRN_SERVER": f"unix:{self.server.socket}"}, check=0)[1],
                         "demo/one\ndemo/two\n")

    def test_show_and_status(self):
        for where in self.ways:
            document = cairn_json("show", "demo/one", "2@1", *where)
            self.assertEqual(document["checkpoint"]["step"], 2)
            self.assertEqual(document["manifest"]["tags"], ["e2e"])
            self.assertEqual(document["manifest"]["metrics"], {"loss": 0.5})
            names = {(entry["name"], entry["coordinate"]) for entry in document["entries"]}
            self.assertEqual(names, {("model.w", None), ("optim.m", None), ("rng", "rank=0"), ("rng", "rank=1")})
            self.assertEqual(cairn_json("show", "demo/one", *where)["checkpoint"]["step"], 3)
            _, out, _ = cairn("show", "demo/one", 2, *where, check=0)
            self.assertIn("model.w", out)
            self.assertEqual(cairn_json("status", "demo/one", "2@1", *where)["checkpoint"]["state"], "committed")
            self.assertIn("give the term, 2@TERM, as `cairn ls`", cairn("status", "demo/one", "2", *where, check=2)[2])
            self.assertIn("STEP@TERM is missing", cairn("status", "demo/one", *where, check=2)[2])
            status, out, _ = cairn("status", "demo/one", "9@1", "--json", *where)
            self.assertEqual((status, json.loads(out)["checkpoint"]["state"]), (4, "none"))

    def test_show_says_what_is_shared(self):
        """The saves of setUp are of one state: what the first stored is all that the others have."""
        for where in self.ways:
            first, last = (cairn_json("show", "demo/one", step, *where) for step in (1, 3))
            self.assertEqual((first["checkpoint"]["base_term"], first["checkpoint"]["base_sequence"]), (0, 0))
            self.assertEqual((first["shared_bytes"], first["shared_with"]), (0, []))
            self.assertGreater(first["own_bytes"], 0)
            self.assertEqual(first["own_bytes"], first["checkpoint"]["stored_bytes"])
            base = tuple(last["checkpoint"][name] for name in ("base_step", "base_term", "base_sequence"))
            self.assertEqual(base, (2, 1, 2))
            self.assertEqual(last["own_bytes"], last["checkpoint"]["stored_bytes"])
            self.assertEqual(last["own_bytes"] + last["shared_bytes"], first["own_bytes"])
            self.assertEqual(last["shared_with"], [{"step": 1, "term": 1, "stored_bytes": last["shared_bytes"]}])
            self.assertIn("base        none\nown         ", cairn("show", "demo/one", 1, *where, check=0)[1])
            said = cairn("show", "demo/one", 3, *where, check=0)[1]
            self.assertIn("base        2@1 (sequence 2)\nown         ", said)
            self.assertRegex(said, r"\nshared      .* in objects of 1@1\n")

    def test_show_describes_a_checkpoint_with_a_lost_part(self):
        """What is shared stands in the parts: without one of them everything else is shown, and what has no base needs
        none."""
        where = self.server.offline
        full, before = (cairn_json("show", "demo/one", step, *where) for step in (1, 3))
        for part in self.server.files("runs/demo/one/checkpoints/**/part*"):
            part.unlink()
        self.assertEqual(cairn_json("show", "demo/one", 1, *where), full)
        document = cairn_json("show", "demo/one", 3, *where)
        self.assertEqual(document["own_bytes"], before["own_bytes"])
        self.assertEqual((document["shared_bytes"], document["shared_with"]), (None,) * 2)
        self.assertIn("part", document["shares_error"])
        self.assertEqual(len(document["entries"]), 4)
        self.assertRegex(cairn("show", "demo/one", 3, *where, check=0)[1], r"\nshared      not known: .*part")

    def test_annotate(self):
        server = self.server.online
        document = cairn_json("annotate", "demo/one", 1, "--metric", "eval=1.25", "--metric", "loss=0.125",
                              "--tag", "best", "--remove-tag", "e2e", *server)["checkpoint"]
        self.assertEqual((document["step"], document["tags"], document["metrics"], document["note_version"]),
                         (1, ["best"], {"eval": 1.25, "loss": 0.125}, 2))
        again = cairn_json("annotate", "demo/one", 1, "--tag", "best", *server)["checkpoint"]
        self.assertEqual(again["note_version"], 2)
        for where in self.ways:
            listed = {c["step"]: c for c in cairn_json("ls", "demo/one", *where)["checkpoints"]}
            self.assertEqual((listed[1]["tags"], listed[1]["metrics"]), (["best"], {"eval": 1.25, "loss": 0.125}))
            self.assertEqual((listed[2]["tags"], listed[2]["metrics"]), (["e2e"], {"loss": 0.5}))
            self.assertIn("best; eval=1.25, loss=0.125", cairn("ls", "demo/one", *where, check=0)[1])
            _, out, _ = cairn("show", "demo/one", 1, *where, check=0)
            self.assertIn("tag         best\nmetric      eval = 1.25\n", out)
            self.assertNotIn("tag         e2e", out)  # the manifest's hash may hold these letters
            shown = cairn_json("show", "demo/one", 1, *where)  # the manifest never changes
            self.assertEqual((shown["checkpoint"]["tags"], shown["manifest"]["tags"]), (["best"], ["e2e"]))
        _, _, err = cairn("annotate", "demo/one", 9, "--tag", "x", *server, check=4)
        self.assertIn("nearest saved steps: 3", err)
        for words in (("demo/one",), ("demo/one", 1), ("demo/one", 1, "--metric", "loss=nan")):
            cairn("annotate", *words, *server, check=2)
        long = "x" * 200
        for words in (("tag", "demo/one", 1, ""), ("tag", "demo/one", 1, "", "--remove"), ("annotate", "demo/one", 1, "--tag", ""),
                      ("annotate", "demo/one", 1, "--remove-tag", "")):
            self.assertIn('INVALID: the tag "" is not valid: it must be 1 to ', cairn(*words, *server, check=2)[2])
        for words in (("tag", "demo/one", 1, long), ("annotate", "demo/one", 1, "--tag", "y", "--tag", long)):
            self.assertIn('INVALID: the tag "xxxx', cairn(*words, *server, check=2)[2])
        self.assertRegex(cairn("annotate", "demo/one", 1, "--metric", "\udcff=1", *server, check=2)[2],
                         "INVALID: .*the name .* is not valid")
        _, _, err = cairn("annotate", "demo/one", 1, "--tag", "x", *self.server.offline, check=11)
        self.assertIn("STORE_LOCKED", err)

    def test_scrub_needs_a_daemon(self):
        store = f"dir:{self.server.store}"
        for words in ((), ("--status",), ("--wait",)):
            self.assertIn(f"INVALID: scrub needs a daemon; `cairn verify --store {store}` reads everything",
                          cairn("scrub", *words, "--store", store, check=2)[2])

    def test_shares_of_a_verify(self):
        for where in self.ways:
            whole = cairn_json("verify", *where)
            self.assertEqual(whole["checkpoints"], 4)
            shares = [cairn_json("verify", "--read-data-subset", f"{n}/3", *where) for n in (1, 2, 3)]
            self.assertEqual(sum(share["chunks"] for share in shares), whole["chunks"])
            self.assertEqual(sum(share["bytes"] for share in shares), whole["bytes"])
            self.assertTrue(all(share["checkpoints"] == 4 for share in shares))
            none = cairn_json("verify", "--no-read-data", *where)
            self.assertEqual((none["checkpoints"], none["chunks"], none["bytes"]), (4, 0, 0))
            self.assertEqual(cairn_json("verify", "demo/one", "2", *where)["checkpoints"], 1)

    def test_what_a_checkpoint_shares_with_an_older_one_is_verified(self):
        """Scattered chunks of an object, 12 MiB apart: good where they are, and damage only where it lies."""
        daemon = self.daemon("shared", save_chunk="16KiB")
        group = self.group(daemon, 1, state=None)
        group[0].do("tensor", "w", "uint8", "64x524288", "replicated")
        group[0].do("set")
        seeds = list(range(64))
        for step in (1, 2):
            group[0].do("paint", "w", "-", ",".join(map(str, seeds)))
            group.save(step)
            seeds = [seed if part % 24 == 1 else seed + 100 for part, seed in enumerate(seeds)]
        old, new = (max(daemon.files(f"**/objects/1-{step}/*"), key=lambda file: file.stat().st_size)
                    for step in (1, 2))
        self.assertLess(new.stat().st_size, old.stat().st_size)
        for how in ("store", "server"):
            self.assert_whole(daemon, {(1, 1), (2, 1)}, how)
        flip(old, 0)  # of the first part, which step 2 does not share
        self.assertEqual([c["good"] for c in verified(daemon, check=6)["checked"]], [True, False])
        flip(old, 0)
        flip(old, 524288 + 100)
        self.assertEqual([c["good"] for c in verified(daemon, check=6)["checked"]], [False, False])

    def test_packed_chunks_where_a_read_ends(self):
        """Small chunks lie where the one before ends: a read that stops between two of them holds no half one."""
        daemon = self.daemon("packed", save_chunk="1MiB", save_full_every=1)
        group = self.group(daemon, 1, state=None)
        group[0].do("tensor", "large", "uint8", 1 << 20, "replicated")
        for tensor in range(60):
            group[0].do("tensor", f"t{tensor}", "uint8", 60001 + 7 * tensor, "replicated")
        group[0].do("set")
        group[0].do("fill", 1)
        group.save(1)
        self.assert_whole(daemon, {(1, 1)})
        group.end()

    def test_the_build_names_its_sources(self):
        build = cairn_json("version")["build"]
        self.assertRegex(build, r"^([0-9a-f]{40}(-dirty)?|content-[0-9a-f]{40})$")
        said = subprocess.run([BIN / "cairnd", "--version"], stdout=subprocess.PIPE, text=True, check=True).stdout
        self.assertIn(f"(build {build})", said)

    def test_exit_statuses(self):
        store = self.server.offline
        for status, words in (
                (0, ("version",)), (0, ("--help",)), (0, ("ls", "--help")),
                (0, ("--version",)), (2, ()),
                (2, ("fly",)), (2, ("ls", "--fly")), (2, ("ls", "a/b", "c", "d")), (2, ("ls", "not a run", *store)),
                (2, ("verify", "--read-data-subset", "4/3", *store)), (2, ("restore", "demo/one", *store)),
                (2, ("ls",)), (2, ("show", *store)), (2, ("ls", "--timeout", "soon", *store)),
                (2, ("ls", "--timeout", "0", *store)),
                (2, ("verify", "--no-read-data", "--read-data-subset", "1/2", *store)),
                (2, ("show", "demo/one", "two", *store)), (2, ("status", "demo/one", "2", *store)),
                (4, ("show", "demo/one", "77", *store)), (4, ("show", "demo/nothing", *store)),
                (4, ("ls", "demo/none", *store)), (4, ("verify", "demo/none", *store)),
                (2, ("restore", "demo/one", "--to", self.bed.path / "none/out", *store)),
                (5, ("ls", "--server", "127.0.0.1:1", "--timeout", "1")),
                (10, ("ls", "--store", f"dir:{self.bed.path}/nowhere")),
                (10, ("ls", "--store", f"dir:{self.bed.path}/pki"))):
            clean = {"CAIRN_SERVER": "", "CAIRN_STORE": ""}
            environment = {key: value for key, value in os.environ.items() if key not in clean}
            done = subprocess.run([str(BIN / "cairn"), *(str(word) for word in words)], capture_output=True,
                                  timeout=120, env=environment, stdin=subprocess.DEVNULL)
            self.assertEqual(done.returncode, status, f"{words}: {done.stderr.decode()}")
            if status != 0:
                done = subprocess.run([str(BIN / "cairn"), *(str(word) for word in words), "--json"],
                                      capture_output=True, timeout=120, env=environment, stdin=subprocess.DEVNULL)
                error = json.loads(done.stderr)
                self.assertEqual((error["message_type"], error["code"], error["schema_version"]),
                                 ("exit_error", status, 1))

    def test_a_url_without_a_server_takes_the_one_that_is_named(self):
        for way in self.ways:
            self.assertEqual(cairn("ls", "cairn:///demo/one", *way, env={"CAIRN_SERVER": "127.0.0.1:1"}, check=0),
                             cairn("ls", "demo/one", *way, check=0))
            self.assertEqual(cairn("ls", "cairn:///", *way, check=0), cairn("ls", *way, check=0))
        _, _, err = cairn("ls", "cairn:///demo/one", check=2)
        self.assertIn("give --server", err)
        _, _, err = cairn("ls", "--server", self.server.socket, check=2)
        self.assertIn(f"is a path; write unix:{self.server.socket}", err)

    def test_terminal_and_pipe(self):
        words = [str(BIN / "cairn"), "verify", *self.ways[1]]
        primary, secondary = pty.openpty()
        done = subprocess.run(words, stdout=secondary, stderr=subprocess.PIPE, timeout=120,
                              stdin=subprocess.DEVNULL, env={**os.environ, "TERM": "xterm"})
        os.close(secondary)
        os.close(primary)
        self.assertEqual((done.returncode, done.stderr), (0, b""))
        for command in (("ls", "demo/one"), ("verify",), ("show", "demo/one")):
            _, out, err = cairn(*command, *self.ways[0], check=0, env={"TERM": "xterm"})
            self.assertNotIn("\x1b", out + err)  # no colours, no bars where nobody looks
            self.assertNotIn("\r", out + err)

    def test_a_reader_that_goes_away(self):
        for words in (("verify",), ("ls", "demo/one"), ("show", "demo/one"), ("show", "demo/one", "--json")):
            reading, writing = os.pipe()
            os.close(reading)
            done = subprocess.run([str(BIN / "cairn"), *words, *self.server.offline], timeout=120,
                                  stdin=subprocess.DEVNULL, stdout=writing, stderr=subprocess.PIPE)
            os.close(writing)
            self.assertEqual((done.returncode, done.stderr), (0, b""), words)

    def test_output_that_cannot_be_written(self):
        with open("/dev/full", "wb") as full:
            done = subprocess.run([str(BIN / "cairn"), "ls", "demo/one", *self.server.offline],
                                  timeout=120, stdin=subprocess.DEVNULL, stdout=full, stderr=subprocess.PIPE)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"No space left on device", done.stderr)


class Bench(Case):
    def test_bench(self):
        daemon = self.daemon(save_chunk="1MiB")
        where = daemon.online
        document = cairn_json("bench", "try/bench", "--size", "8MiB", "--rounds", "3", *where)
        self.assertEqual((document["bytes"], document["rounds"]), (8 << 20, 3))
        for figure in ("blocked", "durable", "restore"):
            times = document[figure]["all_s"]
            self.assertEqual(document[figure]["median_s"], sorted(times)[1])
            self.assertTrue(all(time > 0 for time in times))
        self.assertTrue(all(b <= d for b, d in zip(document["blocked"]["all_s"], document["durable"]["all_s"])))
        self.assert_whole(daemon, {(1, 1), (2, 2), (3, 3)}, run="try/bench")
        _, _, err = cairn("bench", "try/bench", *where, check=1)
        self.assertIn("EXISTS", err)
        self.assertIn("8.00 MiB", cairn("bench", "try/two", "--size", "8MiB", "--rounds", "1", *where, check=0)[1])
        cairn("bench", "try/three", "--dry-run", *where, check=0)
        cairn("ls", "try/three", *where, check=4)
        cairn("bench", "try/three", "--size", "1KiB", *where, check=2)
        cairn("bench", "try/three", *daemon.offline, check=1)


class Help(Case):
    """What is printed from the tables agrees with what is written by hand."""

    def test_exit_statuses_are_those_of_the_guide(self):
        """The guide's table is made from exit_status.c; it says what the program says."""
        spec = importlib.util.spec_from_file_location("reference", SOURCE / "docs" / "reference.py")
        reference = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(reference)
        rows = re.findall(r"^\| (\d+) \| ([^|]+) \| ([^|]+) \|", reference.exit_statuses(), re.M)
        table = [(str(row["status"]), row["word"], reference.sentence(row["meaning"]))
                 for row in cairn_json("help")["exit_statuses"]]
        self.assertEqual(rows, table)

    def test_every_command_has_its_document_in_the_guide(self):
        text = (SOURCE / "docs" / "command-line.md").read_text().split("## JSON")[1]
        for command in cairn_json("help")["commands"]:
            if command["name"] not in ("completion",):
                self.assertRegex(text, rf"(?m)^- \*\*[^*]*`{command['name']}[ `]")

    def test_what_the_tables_say_is_said_once(self):
        document = cairn_json("help")
        for options in [document["options"], *(command["options"] for command in document["commands"])]:
            for option in options:
                for word in ("repeated", "needed"):  # --help and the manual add these by themselves
                    self.assertNotIn(word, option["help"], option["name"])
        said = " ".join(cairn("forget", "--help", check=0)[1].split())
        self.assertIn("keep checkpoints that have all of these tags ('': those without tags; a comma within a tag has a backslash "
                      "in front); may be repeated --checkpoint", said)

    def test_manual_pages_and_completions(self):
        names = [command["name"] for command in cairn_json("help")["commands"]]
        for words in ([], *([name] for name in names)):
            _, page, _ = cairn("help", "--man", *words, check=0)
            self.assertTrue(page.startswith(".\\\" SPDX"), page[:40])
            self.assertIn(".SH NAME\n", page)
            if shutil.which("groff"):
                done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z"], input=page.encode(), timeout=120,
                                      capture_output=True, check=True)
                self.assertEqual(done.stderr, b"", words)
        for shell in ("bash", "zsh", "fish"):
            _, script, _ = cairn("completion", shell, check=0)
            for name in names:
                self.assertIn(name, script)
            if shutil.which(shell):
                subprocess.run([shell, "-n"], input=script.encode(), timeout=120, check=True)
        cairn("completion", "tcsh", check=2)
        cairn("help", "nothing", check=2)

    def test_bash_completes(self):
        daemon = self.with_saves(1)
        environment = {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "CAIRN_SERVER": f"unix:{daemon.socket}"}
        for words, expected in ((["cairn", "res"], ["restore"]), (["cairn", "restore", "--no-f"], ["--no-fallback"]),
                                (["cairn", "restore", "--ca"], ["--ca-file"]), (["cairn", "show", "de"], ["demo/run"]),
                                (["cairn", "ls", "--limit", ""], [])):
            script = ('source <(cairn completion bash); COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=(); _cairn; '
                      'printf "%s\\n" "${COMPREPLY[@]}"')
            done = subprocess.run(["bash", "-c", script, "bash", *words], env=environment, timeout=120,
                                  capture_output=True, check=True)
            self.assertEqual(done.stdout.decode().split(), expected, done.stderr)

    # What a word becomes when the tabulator key is pressed behind it; the same for zsh and fish.
    WORDS = (("cairn resto", "restore"), ("cairn restore --no-f", "--no-fallback"), ("cairn show de", "demo/run"),
             ("cairn export --format saf", "safetensors"), ("cairn verify --no-re", "--no-read-data"))

    def with_cairn(self):
        daemon = self.with_saves(1)
        return {**os.environ, "PATH": f"{BIN}:{os.environ['PATH']}", "CAIRN_SERVER": f"unix:{daemon.socket}"}

    @unittest.skipUnless(shutil.which("fish"), "there is no fish")
    def test_fish_completes(self):
        environment = {**self.with_cairn(), "HOME": str(self.bed.path), "TERM": "dumb"}
        for words, expected in self.WORDS:
            script = "cairn completion fish | source; complete -C $argv[1]"
            done = subprocess.run(["fish", "-N", "-c", script, words], env=environment, timeout=60, capture_output=True,
                                  check=True)
            offered = [line.split("\t")[0] for line in done.stdout.decode().splitlines()]
            self.assertIn(expected, offered, done.stderr)

    @unittest.skipUnless(shutil.which("zsh"), "there is no zsh")
    def test_zsh_completes(self):
        environment = {**self.with_cairn(), "ZDOTDIR": str(self.bed.path), "TERM": "dumb", "PS1": ""}
        master, slave = os.openpty()
        shell = self.bed.start(["zsh", "-f", "-i"], env=environment, stdin=slave, stdout=slave, stderr=slave,
                               start_new_session=True, preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))
        os.close(slave)
        self.addCleanup(os.close, master)
        said = bytearray()

        def heard(pattern):
            while select.select([master], [], [], 0)[0]:
                said.extend(os.read(master, 65536))
            return re.search(pattern, said)

        # The quotes keep what is typed, and shown, from looking like the answer.
        os.write(master, b"unsetopt zle_bracketed_paste; bindkey -e; autoload -Uz compinit && compinit -D -u; "
                         b"source <(cairn completion zsh); print RE''ADY\n")
        wait_until("zsh is there", lambda: heard(rb"READY"))
        for words, expected in self.WORDS:
            said.clear()
            os.write(master, words.encode() + b"\t\x01print -r -- G''OT:\x05;\n")  # to the begin, and to the end
            found = wait_until(f"zsh completes {words}", lambda: heard(rb"GOT:([^\r\n]*)[\r\n]"))
            self.assertEqual(found[1].decode().split()[-1], expected, bytes(said))
        shell.kill()


if __name__ == "__main__":
    main()
