# SPDX-License-Identifier: Apache-2.0
"""The daemon says how it is, in one word that programs can act on: red, with the error, for how long, and the remedy,
when saves are refused; and green again by itself. Also when it cannot reach its cluster from the start. On real Ceph:
cases_ceph_refused.py."""

import json
import os
import shutil
import time
import unittest

from harness import Case, Daemon, cairn, main, wait_until

HEALTHY = ("green", "yellow")  # yellow: a file system that Cairn is not tested on


class Asked(Case):
    def status(self, daemon):
        """The document; red is said by the exit status too."""
        code, out, err = cairn("status", *daemon.online, "--json")
        self.assertIn(code, (0, 7), err)
        document = json.loads(out)
        self.assertEqual(code == 7, document["health"] == "red", document)
        return document

    def until(self, daemon, words):
        wait_until(f"its health is {words}", lambda: self.status(daemon)["health"] in words)
        return self.status(daemon)


class Directory(Asked):
    def test_a_good_store(self):
        daemon = self.daemon()
        document = self.status(daemon)
        self.assertIn(document["health"], HEALTHY, document)
        self.assertIsNone(document["health_error"])
        self.assertLess(abs(document["wall_ns"] / 1e9 - time.time()), 60)
        code, out, err = cairn("doctor", *daemon.online)
        self.assertIn(code, (0, 3), err)
        for word in ("health:", "store: dir, epoch 2", "clock: this host's clock and the server's"):
            self.assertIn(word, out)

    def test_a_store_that_is_gone(self):
        daemon = self.daemon()
        def remove():  # against a daemon that still makes files there
            shutil.rmtree(daemon.store, ignore_errors=True)
            return not daemon.store.exists()

        wait_until("it is removed", remove)
        document = self.until(daemon, ("red",))
        self.assertEqual(document["health_error"], "NO_STORE")
        self.assertIn(str(daemon.store), document["health_text"])
        self.assertIn("put the store back", document["health_remedy"])
        _, out, _ = cairn("status", *daemon.online, check=7)
        self.assertIn("health     red (", out)
        self.assertIn("remedy: put the store back", out)
        _, out, _ = cairn("doctor", *daemon.online, check=1)
        self.assertIn("unsafe   health: NO_STORE", out)
        self.assertIn("the store refuses", daemon.log())
        self.assertIsNone(daemon.process.poll())

    @unittest.skipIf(os.geteuid() == 0, "root writes wherever it likes")
    def test_a_store_that_may_not_be_written(self):
        daemon = self.daemon()
        (daemon.store / "store").chmod(0o500)
        try:
            self.assertEqual(self.until(daemon, ("red",))["health_error"], "DENIED")
        finally:
            (daemon.store / "store").chmod(0o700)
        self.until(daemon, HEALTHY)

    def test_a_store_that_is_full(self):
        daemon = self.daemon(store_reserve="1000TiB")
        document = self.until(daemon, ("red",))
        self.assertEqual(document["health_error"], "NO_SPACE")
        self.assertIn("cairn forget", document["health_remedy"])


class Cluster(Asked):
    """No cluster is needed for what is said of one that is not there."""

    def conf(self):
        path = self.bed.path / "away.conf"
        path.write_text("[global]\nmon_host = [v2:127.0.0.1:1/0]\nauth_client_required = none\n")
        return path

    def test_a_cluster_that_is_not_there(self):
        daemon = Daemon(self.bed, "a", store_url=f"rados:cairn?conf={self.conf()}&timeout=1")
        daemon.launch()
        wait_until("it listens", lambda: "cannot be opened yet" in daemon.log() or daemon.process.poll() is not None)
        document = self.until(daemon, ("red",))
        self.assertEqual(document["health_error"], "UNREACHABLE")
        self.assertIn("mon_host", document["health_text"])
        self.assertEqual(document["store"], "none yet")
        _, _, err = cairn("ls", *daemon.online, "--timeout", "10s", check=5)
        self.assertIn("no store yet", err)
        self.assertIn("mon_host", err)
        self.assertIsNone(daemon.process.poll())
        self.assertEqual(daemon.stop(), 0)

    def test_mistakes_in_the_configuration_end_it(self):
        daemon = Daemon(self.bed, "a", store_url="rados:cairn?colour=red")
        daemon.launch()
        self.assertEqual(daemon.process.wait(60), 2)
        self.assertIn("unknown parameter", daemon.log())


if __name__ == "__main__":
    main()
