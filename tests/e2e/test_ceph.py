# SPDX-License-Identifier: Apache-2.0
"""Cairn on a real Ceph cluster (deploy/ceph/test-cluster: one monitor, one manager, three OSDs), with two daemons on
it: what either loses the other goes on with, and what Ceph loses for a while is waited for or named (I1, I2, I5, I7).
Ends with 77 (skipped) where Ceph is not installed."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

from harness import BIN, BUILD, SOURCE, Case, Daemon, Group, cairn, cairn_json, main, wait_until

TOOL = SOURCE / "deploy/ceph/test-cluster"


class Ceph:
    """The cluster of this test run."""

    def __init__(self):
        parent = BUILD / "e2e"
        parent.mkdir(parents=True, exist_ok=True)
        self.dir = Path(tempfile.mkdtemp(prefix="ceph-", dir=parent))
        self.do("start")

    def do(self, command, *words, timeout_s=120):
        done = subprocess.run([str(TOOL), command, str(self.dir), *words], capture_output=True, text=True,
                              timeout=timeout_s, check=False)
        if done.returncode != 0:
            raise AssertionError(f"test-cluster {command} {' '.join(words)}: {done.stderr}")
        return done.stdout

    def ceph(self, *words):
        return self.do("ceph", *words)

    def url(self, space, data="cairn", **more):
        parameters = {"conf": self.dir / "ceph.conf", "data-pool": data, **more}
        return f"rados:cairn/{space}?" + "&".join(f"{key}={value}" for key, value in parameters.items())

    def heal(self):
        """All daemons run, all placement groups are clean."""
        self.do("start")

    def close(self):
        self.do("destroy")


def setUpModule():
    global CLUSTER
    if not all(shutil.which(program) for program in ("ceph", "ceph-mon", "ceph-osd", "ceph-mgr")):
        print("Ceph is not installed; tools/install-packages --ceph", flush=True)
        sys.exit(77)
    CLUSTER = Ceph()
    unittest.addModuleCleanup(CLUSTER.close)


class OnCeph(Case):
    DATA = "cairn"

    def setUp(self):
        super().setUp()
        self.space = f"test-{self.id().rsplit('.', 1)[-1][:40]}-{os.getpid()}"
        self.store = CLUSTER.url(self.space, self.DATA)

    def daemon(self, name="a", **keys):
        keys = {"store_url": self.store, "listen_tcp": "127.0.0.1:0", **keys}
        return Daemon(self.bed, name, **keys).start()

    def two(self):
        return self.daemon("a"), self.daemon("b")

    def url(self, *daemons):
        return "cairn://" + ",".join(f"127.0.0.1:{daemon.port()}" for daemon in daemons) + "/demo/run"

    def assert_good(self, checkpoints):
        """Listed and whole, read from the cluster with no daemon in between."""
        entries = cairn_json("ls", "demo/run", "--store", self.store)["checkpoints"]
        self.assertEqual({(e["step"], e["term"]) for e in entries if e["state"] == "committed"}, set(checkpoints))
        document = cairn_json("verify", "--store", self.store, timeout_s=120)
        self.assertEqual((document["damaged"], document["checkpoints"]), (0, len(checkpoints)))


class Daemons(OnCeph):
    def test_ranks_through_different_daemons(self):
        a, b = self.two()
        one = Group(self.bed, self.url(a), 2)
        one.all("fill", 1)
        one.save(1)
        one.kill()
        # The same run through the other one: it restores what the first one wrote, and goes on.
        other = Group(self.bed, self.url(b), 2)
        self.assertEqual(other.restore(), (1, 1, False))
        other.all("check", 1)
        other.all("fill", 2)
        self.assertEqual(other.save(2), 2)
        self.assert_good({(1, 1), (2, 2)})

    def test_a_daemon_dies_in_a_save(self):
        a, b = self.two()
        group = Group(self.bed, self.url(a, b), 2, rows=4096)
        group.all("fill", 1)
        group.save(1)
        group.all("fill", 2)
        answers = group.all("save", 2, 60000)
        a.kill()
        group.finish(answers, 60000)
        self.assert_good({(1, 1), (2, 1)})
        again = Group(self.bed, self.url(a, b), 2, rows=4096)
        self.assertEqual(again.restore(), (2, 1, False))
        again.all("check", 2)

    def test_a_daemon_that_slept_commits_nothing_of_a_fenced_attempt(self):
        a, b = self.two()
        old = Group(self.bed, self.url(a), 2)
        old.all("fill", 1)
        old.save(1)
        a.process.send_signal(19)  # SIGSTOP
        try:
            new = Group(self.bed, self.url(b), 2)
            self.assertEqual(new.restore(), (1, 1, False))
            new.all("fill", 5)
            self.assertEqual(new.save(5), 2)
        finally:
            a.process.send_signal(18)
        refused = [answer for answer in old.finish_any(old.try_all("save", 6, 10000)) if not answer["ok"]]
        self.assertEqual({answer["error"] for answer in refused}, {"FENCED"}, refused)
        self.assert_good({(1, 1), (5, 2)})


class ErasureCoded(OnCeph):
    DATA = "cairn-ec"

    def test_data_in_an_erasure_coded_pool(self):
        daemon = self.daemon()
        group = Group(self.bed, self.url(daemon), 2, rows=4096)
        for step in (1, 2, 3):
            group.all("fill", step)
            group.save(step)
        self.assertEqual(group.restore(2), (2, 1, False))
        group.all("check", 2)
        self.assert_good({(1, 1), (2, 1), (3, 1)})

    def test_keys_need_a_replicated_pool(self):
        keys = {"store_url": f"rados:cairn-ec/x?conf={CLUSTER.dir}/ceph.conf", "listen_tcp": "127.0.0.1:0"}
        done = subprocess.run([str(word) for word in Daemon(self.bed, "x", **keys).argv()], capture_output=True,
                              text=True, timeout=60, check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertIn("replicated pool", done.stderr)


class Faults(OnCeph):
    def setUp(self):
        super().setUp()
        self.addCleanup(CLUSTER.heal)

    def started_save(self, group, step, deadline_ms=60000):
        group.all("fill", step)
        return group.all("save", step, deadline_ms)

    def test_an_osd_is_killed_in_a_save(self):
        group = Group(self.bed, self.url(self.daemon()), 2, rows=4096)
        answers = self.started_save(group, 1)
        CLUSTER.do("signal", "osd.1", "KILL")
        group.finish(answers, 60000)
        self.assertEqual(group.restore(), (1, 1, False)) # with one OSD down
        group.all("check", 1)
        self.assert_good({(1, 1)})

    def test_an_osd_stands_still(self):
        group = Group(self.bed, self.url(self.daemon()), 2, rows=4096)
        answers = self.started_save(group, 1)
        CLUSTER.do("signal", "osd.2", "STOP")
        group.finish(answers, 60000)
        CLUSTER.do("signal", "osd.2", "CONT")
        self.assert_good({(1, 1)})

    def test_two_of_three_osds_are_down(self):
        group = Group(self.bed, self.url(self.daemon()), 2)
        group.all("fill", 1)
        group.save(1)
        for name in ("osd.0", "osd.1"):
            CLUSTER.do("signal", name, "KILL")
        started = time.monotonic()
        answers = group.finish_any(group.try_all("save", 2, 8000), 40000)
        self.assertLess(time.monotonic() - started, 60) # named, not hanging
        for answer in answers:
            self.assertFalse(answer["ok"], answer)
            self.assertIn(answer["error"], ("TIMED_OUT", "OUTCOME_UNKNOWN", "ABORTED"), answer["text"])
        CLUSTER.heal()
        group.all("fill", 3)
        wait_until("saves work again", lambda: all(a["ok"] for a in group.finish_any(group.try_all("save", 3, 20000))),
                   60)
        self.assertEqual(cairn_json("verify", "--store", self.store)["damaged"], 0)

    def test_the_monitor_stands_still(self):
        group = Group(self.bed, self.url(self.daemon()), 2)
        CLUSTER.do("signal", "mon.a", "STOP")
        try:
            group.all("fill", 1)
            group.save(1)
        finally:
            CLUSTER.do("signal", "mon.a", "CONT")
        self.assert_good({(1, 1)})

    def test_the_quota_is_reached_and_raised(self):
        group = Group(self.bed, self.url(self.daemon()), 2, rows=65536)
        group.all("fill", 1)
        group.save(1)
        self.addCleanup(CLUSTER.ceph, "osd", "pool", "set-quota", "cairn", "max_bytes", "0")
        CLUSTER.ceph("osd", "pool", "set-quota", "cairn", "max_bytes", "1000000")
        wait_until("the quota is in force", lambda: "POOL_FULL" in CLUSTER.ceph("health", "detail"))
        group.all("fill", 2)
        started = time.monotonic()
        for answer in group.finish_any(group.try_all("save", 2, 30000), 40000):
            self.assertFalse(answer["ok"], answer)
            self.assertEqual(answer["error"], "QUOTA", answer["text"])
        self.assertLess(time.monotonic() - started, 15)
        self.assertEqual(group.restore(), (1, 1, False))
        CLUSTER.ceph("osd", "pool", "set-quota", "cairn", "max_bytes", "0")
        wait_until("the quota is gone", lambda: "POOL_FULL" not in CLUSTER.ceph("health", "detail"))
        group.all("fill", 3)
        group.save(3)
        self.assertEqual(cairn_json("verify", "--store", self.store)["damaged"], 0)


class BadInput(OnCeph):
    def refused(self, url, status, *fragments):
        started = time.monotonic()
        _, _, err = cairn("ls", "--store", url, check=status)
        self.assertLess(time.monotonic() - started, 20)
        for fragment in fragments:
            self.assertIn(fragment, err)

    def test_what_is_wrong_is_named(self):
        conf = CLUSTER.dir / "ceph.conf"
        self.refused(f"rados:no-such-pool?conf={conf}", 2, "no-such-pool", "osd pool create")
        self.refused(f"rados:cairn/empty-{os.getpid()}?conf={conf}", 10, "NO_STORE")
        self.refused(f"rados:cairn?conf={conf}&user=nobody", 12, "client.nobody", "keyring")
        self.refused("rados:cairn?conf=/does/not/exist", 2, "/does/not/exist", "conf=")
        self.refused(f"rados:cairn?conf={conf}&pool=x", 2, "unknown parameter")
        wrong = self.bed.path / "wrong.keyring"
        subprocess.run(["ceph-authtool", str(wrong), "--create-keyring", "--gen-key", "-n", "client.cairn"], check=True,
                       capture_output=True)
        self.refused(f"rados:cairn?conf={conf}&keyring={wrong}", 12, "refuses the key of client.cairn")

    def test_no_cluster(self):
        conf = self.bed.path / "away.conf"
        conf.write_text("[global]\nmon_host = [v2:127.0.0.1:1/0]\nauth_client_required = none\n")
        self.refused(f"rados:cairn?conf={conf}&timeout=3", 5, "UNREACHABLE", "mon_host")


class Rights(OnCeph):
    def test_a_user_with_no_more_rights_than_it_needs(self):
        keyring = self.bed.path / "prod.keyring"
        done = subprocess.run([str(SOURCE / "deploy/ceph/make-user"), "--pool", "cairn", "--data-pool", "cairn-ec",
                               "--namespace", self.space, "--user", "prod"], capture_output=True, check=True,
                              env={**os.environ, "CEPH_CONF": str(CLUSTER.dir / "ceph.conf")})
        keyring.write_bytes(done.stdout)
        self.store = CLUSTER.url(self.space, "cairn-ec", user="prod", keyring=keyring)
        group = Group(self.bed, self.url(self.daemon()), 2)
        group.all("fill", 1)
        group.save(1)
        group.restore()
        self.assert_good({(1, 1)})
        other = CLUSTER.url("another", "cairn-ec", user="prod", keyring=keyring)
        _, _, err = cairn("ls", "--store", other, check=12)
        self.assertIn("make-user", err)


class Contract(OnCeph):
    """The conformance suite of all stores, on the cluster."""

    def conformance(self, **environment):
        done = subprocess.run([str(BUILD / "tests/store/test_store_conformance"), "ceph"], capture_output=True, text=True,
                              timeout=150, check=False,
                              env={**os.environ, "CEPH_CONF": str(CLUSTER.dir / "ceph.conf"), **environment})
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        self.assertNotIn("SKIPPED", done.stdout)

    def test_replicated(self):
        self.conformance(CAIRN_CEPH_POOL="cairn")

    def test_erasure_coded(self):
        self.conformance(CAIRN_CEPH_POOL="cairn", CAIRN_CEPH_DATA_POOL="cairn-ec")


if __name__ == "__main__":
    assert BIN.exists()
    main()
