# SPDX-License-Identifier: Apache-2.0
"""The Ceph cluster that the tests of test_ceph.py share, and what they do with it."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from harness import BUILD, SOURCE, Case, cairn_json

TOOL = SOURCE / "deploy/ceph/test-cluster"


class Ceph:
    """The cluster of this test run."""

    def __init__(self):
        parent = BUILD / "e2e"
        parent.mkdir(parents=True, exist_ok=True)
        self.dir = Path(tempfile.mkdtemp(prefix="ceph-", dir=parent))
        self.do("start")

    def do(self, command, *words, timeout_s=120):
        done = subprocess.run([str(TOOL), command, str(self.dir), *(str(word) for word in words)], capture_output=True,
                              text=True, timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise AssertionError(f"test-cluster {command} {' '.join(map(str, words))}: {done.stderr}")
        return done.stdout

    def ceph(self, *words):
        return self.do("ceph", *words)

    def try_ceph(self, *words):
        """For what may be done already."""
        subprocess.run([str(TOOL), "ceph", str(self.dir), *words], capture_output=True, timeout=120, check=False)

    def ask(self, *words):
        return json.loads(self.ceph(*words, "-f", "json"))

    def url(self, space, data="cairn", **more):
        parameters = {"conf": self.dir / "ceph.conf", "data-pool": data, **more}
        return f"rados:cairn/{space}?" + "&".join(f"{key}={value}" for key, value in parameters.items())

    def user(self, name, space, keyring):
        """A user with no more rights than a store in this namespace needs; its keyring is written."""
        done = subprocess.run([str(SOURCE / "deploy/ceph/make-user"), "--pool", "cairn", "--data-pool", "cairn-ec",
                               "--namespace", space, "--user", name], capture_output=True, check=True,
                              env={**os.environ, "CEPH_CONF": str(self.dir / "ceph.conf")})
        keyring.write_bytes(done.stdout)

    def heal(self):
        """All daemons run, all placement groups are clean."""
        self.do("start")

    def close(self):
        self.do("destroy")


CLUSTER = None


def cluster():
    """The cluster; the first call starts it. Ends with 77 (skipped) where Ceph is not installed."""
    global CLUSTER
    if CLUSTER is None:
        if not all(shutil.which(program) for program in ("ceph", "ceph-mon", "ceph-osd", "ceph-mgr")):
            print("Ceph is not installed; tools/install-packages --ceph", flush=True)
            sys.exit(77)
        CLUSTER = Ceph()
        unittest.addModuleCleanup(end)
    return CLUSTER


def end():
    global CLUSTER
    CLUSTER.close()
    CLUSTER = None


class OnCeph(Case):
    DATA = "cairn"

    def setUp(self):
        super().setUp()
        self.ceph = cluster()
        self.space = f"test-{self.id().rsplit('.', 1)[-1][:40]}-{os.getpid()}"
        self.store = self.ceph.url(self.space, self.DATA)

    def daemon(self, name="a", **keys):
        return super().daemon(name, **{"store_url": self.store, "listen_tcp": "127.0.0.1:0", **keys})

    def two(self):
        return self.daemon("a"), self.daemon("b")

    def url(self, *daemons):
        return "cairn://" + ",".join(f"127.0.0.1:{daemon.port()}" for daemon in daemons) + "/demo/run"

    def rados(self, *words, pool="cairn"):
        """In the namespace of the project."""
        done = subprocess.run(["rados", "-c", str(self.ceph.dir / "ceph.conf"), "--id", "admin", "-p", pool, "-N",
                               f"{self.space}/demo", *words], capture_output=True, text=True, timeout=60, check=True)
        return done.stdout

    def assert_good(self, checkpoints):
        """Listed and whole, read from the cluster with no daemon in between."""
        entries = cairn_json("ls", "demo/run", "--store", self.store)["checkpoints"]
        self.assertEqual({(e["step"], e["term"]) for e in entries if e["state"] == "committed"}, set(checkpoints))
        document = cairn_json("verify", "--store", self.store, timeout_s=120)
        self.assertEqual((document["damaged"], document["checkpoints"]), (0, len(checkpoints)))
