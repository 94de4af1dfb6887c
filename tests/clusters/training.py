# SPDX-License-Identifier: Apache-2.0
"""A small training that launchers start: client/examples/train_torch.py behind the name train.py, a daemon, and the bits that an
undisturbed training ends with.
"""

import os
import re
import socket
import subprocess

from harness import BIN, BUILD, SOURCE, Case, Daemon, Failure, cairn_json, wait_until

STEPS = 60
TRAIN = """import runpy, sys
sys.argv = ["train.py", "--url", "cairn:///lab/{name}", "--steps", "{steps}", "--save-every", "5", "--width", "64", "--layers", "1",
            "--digest", "{name}.digest"]
runpy.run_path({example!r}, run_name="__main__")
"""


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


class Training(Case):
    def setUp(self):
        super().setUp()
        if not (BUILD / "venv" / "ready").exists():
            self.skipTest("needs the venv of tests/python/run --venv")
        self.daemon = Daemon(self.bed).start()
        self.work = self.bed.path / "work"
        self.work.mkdir()

    def env(self, **more):
        return {**os.environ, "PATH": f"{BUILD}/venv/bin:{BIN}:{os.environ['PATH']}", "CAIRN_SERVER": f"unix:{self.daemon.socket}",
                "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "PYTHONUNBUFFERED": "1", **more}

    def program(self, name, steps=STEPS):
        """Puts train.py of this run where the launchers look for it."""
        (self.work / "train.py").write_text(TRAIN.format(name=name, steps=steps, example=str(SOURCE / "client/examples/train_torch.py")))

    def undisturbed(self, steps=STEPS):
        """The digests that two ranks end with when nobody stops them."""
        self.program("undisturbed", steps)
        ranks = [self.bed.start(["python", "train.py"], cwd=self.work, stdout=subprocess.DEVNULL, env=env)
                 for env in [self.env()] for env in ({**env, "RANK": "0", "WORLD_SIZE": "2"}, {**env, "RANK": "1", "WORLD_SIZE": "2"})]
        for rank in ranks:
            self.assertEqual(rank.wait(300), 0)
        return self.digest("undisturbed")

    def digest(self, name):
        return (self.work / f"{name}.digest").read_text()

    def steps(self, name):
        """The steps that are committed."""
        try:
            found = cairn_json("ls", f"lab/{name}", "--server", f"unix:{self.daemon.socket}")["checkpoints"]
        except Failure:
            return []  # there is no such run yet
        return [one["step"] for one in found if one["state"] == "committed"]

    def saved(self, name, timeout_s=120):
        wait_until("a step is durable", lambda: self.steps(name), timeout_s)

    def assert_resumed(self, text, stops=1):
        """The training left in order, and each start after that went on with the step that the one before had left at."""
        left = re.findall(r"^stopped at step (\d+)$", text, re.M)
        resumed = re.findall(r"^starting at step \d+, restored (\d+)@", text, re.M)
        self.assertGreaterEqual(len(left), stops, text)
        self.assertEqual(left, resumed[-len(left):], text)
