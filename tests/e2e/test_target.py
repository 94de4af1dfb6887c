# SPDX-License-Identifier: Apache-2.0
"""Restore, export and import that meet a place which takes nothing, or a disk that becomes full at any moment, end with a
named error, a remedy and the right exit status, and leave nothing behind that could be taken for a checkpoint."""

import json
import os
import resource
import secrets
import shutil
import struct
import subprocess
import unittest

from harness import BIN, BUILD, Case, Rank, cairn, main, token

# A file system in memory of the size that is asked for, seen by this shell alone; then what is left on it.
SCRIPT = """mount -t tmpfs -o "$1" none "$2" || exit 77
where=$2; shift 2; "$@"; status=$?
ls -A "$where" | sed 's/^/left: /'
exit $status"""
SMALL = ("size=256k", "nr_inodes=2", "nr_inodes=1")  # no room for bytes; for a file; for the directory


def as_somebody_who_mounts():
    return ["unshare", "-m"] if os.geteuid() == 0 else ["unshare", "-rm"]


def in_small_memory(options, where, *words, env=None):
    """(status, output, errors) of a cairn for which `where` is such a file system; None: not on this host."""
    argv = [*as_somebody_who_mounts(), "sh", "-c", SCRIPT, "sh", options, where, BIN / "cairn", *words]
    done = subprocess.run([str(word) for word in argv], capture_output=True, timeout=120, stdin=subprocess.DEVNULL,
                          env={**os.environ, **(env or {})})
    if not shutil.which("unshare") or done.returncode == 77 or done.stderr.startswith(b"unshare"):
        return None
    return done.returncode, done.stdout.decode(), done.stderr.decode()


def limited(to):
    return lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (to, to))


class Target(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon()
        rank = Rank(self.bed)
        rank.do("open", self.server.url(), 0, 1, token())
        rank.do("tensor", "w", "float32", "262144", "replicated")  # 1 MiB
        rank.do("blob", "note", "bytes", "replicated", "00ff")
        rank.do("set")
        rank.do("fill", 1)
        rank.do("wait", rank.do("save", 1, 60000)["op"], 60000)
        rank.end()
        self.where = self.server.online
        self.out = self.bed.path / "out"
        self.commands = [("restore", "demo/run"), ("restore", "demo/run", "--ranks", "0"),
                         ("restore", "demo/run", "--as-ranks", "2"),
                         ("export", "demo/run")]

    def test_places_that_take_no_directory(self):
        (self.bed.path / "file").write_text("mine")
        cases = [("/proc/x", 2, "--to /proc/x: no directory can be created there; name one on a disk"),
                 (f"{self.bed.path}/none/x", 2, "/none/x: the directory above it does not exist; create it first"),
                 (f"{self.bed.path}/file", 1, "file is not a directory; restore into"),
                 (self.bed.path / ("x" * 250), 2, "the name is too long")]
        if os.geteuid() != 0:
            (self.bed.path / "locked").mkdir(mode=0o500)
            cases.append((self.bed.path / "locked" / "x", 12, "you have no permission to write there"))
        for command in (self.commands[0], self.commands[3]):
            for place, status, words in cases:
                code, out, err = cairn(*command, "--to", place, *self.where)
                self.assertEqual((code, out), (status, ""), err)
                self.assertIn(words, err)
        self.assertEqual((self.bed.path / "file").read_text(), "mine")

    def test_a_disk_that_becomes_full(self):
        (self.bed.path / "disk").mkdir()
        for options in SMALL:
            for command in self.commands:
                said = in_small_memory(options, self.bed.path / "disk", *command, "--to", self.bed.path / "disk" / "out",
                                       *self.where)
                if said is None:
                    self.skipTest("no file system can be mounted here")
                status, out, err = said
                self.assertEqual((status, out), (1, ""), (options, command, err))
                self.assertTrue(err.startswith("cairn: NO_SPACE: --to "), err)
                self.assertIn("name another place", err)
                self.assertEqual(len(err.splitlines()), 1, err)  # and no older checkpoint was tried

    @unittest.skipIf(BUILD.name == "tsan", "ThreadSanitizer itself writes a file")
    def test_a_limit_on_the_size_of_files(self):
        for limit in (0, 4096, 1 << 20):
            for command in self.commands:
                small = limit == 1 << 20 and "--as-ranks" in command  # halves of it fit
                code, _, err = cairn(*command, "--to", self.out, *self.where, preexec_fn=limited(limit))
                if small:
                    self.assertEqual(code, 0, err)
                    shutil.rmtree(self.out)
                    continue
                self.assertEqual(code, 1, (limit, command, err))
                self.assertIn("TOO_LARGE: cannot write ", err)
                self.assertIn("ulimit -f", err)
                self.assertEqual([path.name for path in self.bed.path.glob("out*")], [])
        cairn(*self.commands[0], "--to", self.out, *self.where, check=0)

    def test_an_import_into_a_full_store(self):
        full = self.daemon("full", store_reserve="1000TiB")
        self.where = full.online
        path, body = self.bed.path / "in.safetensors", secrets.token_bytes(1 << 20)
        header = json.dumps({"w": {"dtype": "U8", "shape": [len(body)], "data_offsets": [0, len(body)]}}).encode()
        path.write_bytes(struct.pack("<Q", len(header)) + header + body)
        code, _, err = cairn("import", "demo/in", path, "--deadline", "5s", *self.where)
        self.assertEqual(code, 1, err)
        self.assertIn("NO_SPACE", err)
        self.assertIn("reserve", err)
        code, out, _ = cairn("ls", "demo/in", "--json", *self.where)
        self.assertTrue(code == 4 or '"state": "committed"' not in out, out)


if __name__ == "__main__":
    main()
