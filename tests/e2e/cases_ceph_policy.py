# SPDX-License-Identifier: Apache-2.0
"""Policies and removals on a cluster are as on a directory (cases of test_ceph.py): a stored policy outlives daemons and is
seen by all of them, its rules forget what they should and no more, an idle run goes with its objects, and a record that
may have lost a policy holds all retention."""

import os
import subprocess
import time

from ceph_bed import OnCeph
from harness import BIN, Group, cairn, cairn_json, wait_until

__all__ = ["Policies"]

DAY_S = 86400


class Policies(OnCeph):
    def saved(self, daemon, wanted, run="demo/run"):
        """By a job that goes on with what is there."""
        group = Group(self.bed, self.url(daemon).replace("demo/run", run), 1)
        group.finish_any(group.try_all("restore", "latest"))
        for step in wanted:
            group.advance(step)
        group.end()

    def steps(self, *where, run="demo/run"):
        entries = cairn_json("ls", run, *where)["checkpoints"]
        return sorted(e["step"] for e in entries if e["state"] == "committed")

    def holds(self, run, *where):
        rows = [p for p in cairn_json("policy", "show", run, *where)["policies"] if p["holds"]]
        return (rows[0]["from"], rows[0]["pattern"], rows[0]["policy"]) if rows else None

    def retention(self, **rules):
        config = self.bed.path / "retention.conf"
        config.write_text("[retention]\n" + "".join(f"{key.replace('_', '-')} = {value}\n" for key, value in rules.items()))
        return config

    def test_one_policy_for_all_daemons(self):
        """Set through one daemon, which is killed; with --store while none runs; shown, and followed, by two others."""
        a, b = self.two()
        self.saved(a, (1, 2, 3, 4))
        self.saved(b, (1, 2, 3, 4), "demo/other")
        cairn("policy", "set", "demo/run", "--keep-last", 3, *a.online, check=0)
        mine = ("stored", "demo/run", "keep-last 3")
        a.kill()
        self.assertEqual(self.holds("demo/run", *b.online), mine)
        bare = ("--store", self.store)  # an update of the record, which needs no lock
        cairn("policy", "set", "demo/*", "--keep-last", 1, *bare, check=0)
        seen = lambda: self.holds("demo/other", *b.online) == ("stored", "demo/*", "keep-last 1")
        wait_until("the daemon sees what was set beside it", seen)
        b.kill()
        self.assertEqual(self.holds("demo/run", *bare), mine)
        cairn("policy", "set", "demo/*", "--keep-last", 2, *bare, check=0)
        self.assertEqual(self.steps(*bare), [1, 2, 3, 4])
        config = self.retention(interval="200ms", keep_last=1)
        for daemon in (a, b):
            daemon.start(config=config)
        for daemon in (a, b):
            self.assertEqual(self.holds("demo/run", *daemon.online), mine)
            self.assertEqual(self.holds("demo/other", *daemon.online), ("stored", "demo/*", "keep-last 2"))
            for run, kept in (("demo/run", [2, 3, 4]), ("demo/other", [3, 4])):
                wait_until("the policies were followed", lambda: self.steps(*daemon.online, run=run) == kept)
        cairn("policy", "remove", "demo/run", *a.online, check=0)
        wait_until("the other daemon sees it", lambda: self.holds("demo/run", *b.online) == ("stored", "demo/*", "keep-last 2"))
        wait_until("it is followed", lambda: self.steps(*b.online) == [3, 4])
        self.assertEqual(cairn_json("verify", "--store", self.store, timeout_s=120)["damaged"], 0)
        reasons = {e["reason"] for e in cairn_json("log", *b.online)["entries"] if e["action"] == "forget"}
        self.assertEqual(reasons, {"stored policy demo/run: keep-last 3", "stored policy demo/*: keep-last 2"})

    def test_days_are_those_of_the_zone(self):
        """Three checkpoints of one day of UTC, of which the last is of the next day in India; the daemon's clock was set so."""
        daemon = self.daemon()
        self.assertEqual(daemon.stop(), 0)
        day = time.time() // DAY_S * DAY_S - 3 * DAY_S
        for step, hour in ((1, 17), (2, 18), (3, 19)):  # 22:30, 23:30, 0:30
            daemon.env = {"LD_PRELOAD": str(BIN / "e2e_clock.so"), "CAIRN_TEST_AHEAD_S": str(int(day + hour * 3600 - time.time())),
                          "ASAN_OPTIONS": ":".join(filter(None, [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]))}
            daemon.start()
            self.saved(daemon, (step,))
            self.assertEqual(daemon.stop(), 0)
        daemon.env = {}
        daemon.start()
        self.saved(daemon, (4,))
        names = len(self.rados("ls").split())
        zone = ("--keep-daily", 3, "--time-zone", "Asia/Kolkata")
        cairn("policy", "set", "*", *zone, *daemon.online, check=0)
        listed = cairn_json("ls", "demo/run", *daemon.online)["checkpoints"]
        self.assertEqual({e["step"]: e["committed_at"][11:13] for e in listed if e["step"] < 4}, {1: "17", 2: "18", 3: "19"})
        cairn("forget", "--all", "--quiet", *daemon.online, check=0)
        self.assertEqual(self.steps(*daemon.online), [2, 3, 4])
        cairn("policy", "set", "*", "--keep-daily", 2, *daemon.online, check=0)
        cairn("forget", "--all", "--quiet", *daemon.online, check=0)
        self.assertEqual(self.steps(*daemon.online), [3, 4])
        cairn("gc", "--now", *daemon.online, check=0)
        self.assertLess(len(self.rados("ls").split()), names)

    def test_an_idle_run_goes_with_its_objects(self):
        daemon = self.daemon(gc_every="1s", gc_keep_cycles="1")
        self.saved(daemon, (1, 2))
        self.saved(daemon, (1,), "demo/other")
        objects = lambda run: [name for name in self.rados("ls").split() if f"/{run}/" in name]
        self.assertGreater(len(objects("run")), 6)
        before = len(objects("other"))
        cairn("policy", "set", "demo/run", "--remove-idle", "1s", *daemon.online, check=0)
        self.assertEqual(daemon.stop(), 0)
        daemon.start(config=self.retention(interval="1s"))
        wait_until("the idle run is removed", lambda: cairn_json("ls", *daemon.online)["runs"] == ["demo/other"], 60)
        entry = next(e for e in cairn_json("log", *daemon.online)["entries"] if e["action"] == "remove")
        self.assertEqual((entry["run"], entry["actor"]), ("demo/run", "cairnd"))
        self.assertIn("stored policy demo/run: remove-idle 1s", entry["reason"])
        wait_until("its objects are gone", lambda: not [name for name in objects("run") if name.startswith(("piece/", "small/"))], 60)
        self.assertEqual(len(objects("other")), before)

    def test_a_run_is_removed_by_name(self):
        a, b = self.two()
        self.saved(a, (1, 2))
        def removed(*words):
            code, out, err = cairn("rm", "demo/run", *words, *b.online)
            return None if "connected" in err else (code, out, err)
        code, out, err = wait_until("the ranks are gone", lambda: removed("--dry-run"))
        self.assertEqual(code, 0, err)
        self.assertIn("would be removed, with 2 checkpoints", out)
        self.assertEqual(removed("--yes")[0], 0)
        for daemon in (a, b):
            wait_until("each knows that it is removed", lambda: cairn_json("ls", *daemon.online)["runs"] == [])
        cairn("undelete", "demo/run", "--all", *a.online, check=0)
        self.assert_good({(1, 1), (2, 1)})
        self.assertEqual((a.stop(), b.stop()), (0, 0))
        bare = ("--store", self.store)
        cairn("rm", "demo/run", "--yes", *bare, check=0)
        self.assertEqual(cairn_json("ls", *bare)["runs"], [])
        a.start()
        cairn("gc", "--now", "demo/run", *a.online, check=0)
        self.assertEqual([name for name in self.rados("ls").split() if name.startswith(("piece/", "small/"))], [])
        self.saved(a, (7,))  # the name begins anew
        self.assertEqual(self.steps(*a.online), [7])

    def test_a_policy_that_may_be_lost_holds_retention(self):
        """The store's record is given up and made again: nothing is forgotten by the configuration, until a person has said
        what holds."""
        config = self.retention(interval="50ms", keep_last=1)
        a = self.daemon()
        self.saved(a, (1, 2, 3))
        cairn("policy", "set", "demo/*", "--keep-last", 9, *a.online, check=0)
        self.assertEqual(a.stop(), 0)
        subprocess.run(["rados", "-c", str(self.ceph.dir / "ceph.conf"), "--id", "admin", "-p", "cairn", "-N", self.space, "rm",
                        "store"], check=True, timeout=60)
        cairn("salvage", "--yes", "--store", self.store, check=0)
        a.start(config=config)
        b = self.daemon("b", config=config)
        for daemon in (a, b):
            code, _, err = cairn("forget", "demo/run", *daemon.online)
            self.assertEqual(code, 6, err)
            self.assertIn("nothing is forgotten in demo/run: changes of the stored policies may be lost", err)
            self.assertEqual(cairn("policy", "show", *daemon.online)[0], 3)
        wait_until("retention was refused, too", lambda: any(one.log().count("nothing is forgotten in demo/run") > 1 for one in (a, b)))
        self.assertEqual(self.steps(*b.online), [1, 2, 3])
        cairn("policy", "set", "demo/*", "--keep-last", 2, *b.online, check=0)  # by which the others are confirmed
        wait_until("it is followed", lambda: self.steps(*a.online) == [2, 3])
        self.assertEqual(self.holds("demo/run", *a.online), ("stored", "demo/*", "keep-last 2"))
