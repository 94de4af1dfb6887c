# SPDX-License-Identifier: Apache-2.0
"""`cairn verify` notices every byte of every stored file of a small checkpoint that is flipped, and
every length of manifests and record updates (I4; L23 of server/store/dir). The work is e2e_flip's.
The short form takes every tenth place, beginning at a random one; CAIRN_FULL=1 takes all."""

import os
import shutil
import subprocess

from harness import BIN, FULL, Case, Rank, main, rng


class Flip(Case):
    def test_every_place(self):
        daemon = self.daemon()
        rank = Rank(self.bed)
        rank.do("open", daemon.url(), 0, 1, "-")
        rank.do("tensor", "w", "float32", "4x4", "replicated")
        rank.do("tensor", "rng", "uint8", "5", "local")
        rank.do("blob", "config", "bytes", "replicated", "616263")
        rank.do("set")
        rank.do("fill", 1)
        rank.do("wait", rank.do("save", 1)["op"], 60000)
        rank.end()
        self.assertEqual(daemon.stop(), 0)
        total = sum(path.stat().st_size for path in daemon.files())
        self.assertLess(total, 200_000)
        cpus = os.cpu_count() or 1
        shares = cpus if FULL else 10 * cpus
        first = 0 if FULL else rng().randrange(10)
        mine = [share * shares // cpus + first for share in range(cpus)]
        workers = []
        for share in mine:
            copy = self.bed.path / f"copy-{share}"
            shutil.copytree(daemon.store, copy)
            with open(self.bed.path / f"flip-{share}.log", "wb") as log:
                workers.append(self.bed.start([BIN / "e2e_flip", copy, share, shares],
                                              stdin=subprocess.DEVNULL, stderr=log))
        status = [worker.wait(1100) for worker in workers]
        for share in mine:
            print((self.bed.path / f"flip-{share}.log").read_text()[-6000:], flush=True)
        self.assertEqual(status, [0] * cpus)


if __name__ == "__main__":
    main()
