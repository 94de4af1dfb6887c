# SPDX-License-Identifier: Apache-2.0
"""What Ceph refuses or spoils has a name and a remedy within seconds, and the daemon lives on (cases of test_ceph.py)."""

import json
import signal
import subprocess
import time
import unittest

from ceph_bed import OnCeph
from harness import FULL, Daemon, Group, Rank, cairn, cairn_json, token, wait_until

__all__ = ["Refused", "Damage", "Doctor"]

SOON_S = 60.0  # half of the deadline that such a save has


class Refused(OnCeph):
    def assert_saves_fail(self, group, step, names, *fragments):
        """Soon, by name, with the remedy."""
        group.all("fill", step)
        started = time.monotonic()
        for answer in group.finish_any(group.try_all("save", step, 120000), 120000):
            self.assertFalse(answer["ok"], answer)
            self.assertIn(answer["error"], names, answer["text"])
            for fragment in fragments:
                self.assertIn(fragment, answer["text"])
        self.assertLess(time.monotonic() - started, SOON_S)

    def health(self, daemon):
        code, out, err = cairn("status", "--server", f"127.0.0.1:{daemon.port()}", "--json")
        self.assertIn(code, (0, 7), err)
        return json.loads(out)

    def assert_red(self, daemon, error, *fragments):
        """Soon, by name, with the remedy; and the daemon lives."""
        wait_until(f"its health is red with {error}",
                   lambda: (lambda now: now["health"] == "red" and now["health_error"] == error)(self.health(daemon)),
                   SOON_S)
        now = self.health(daemon)
        self.assertTrue(now["health_remedy"], now)
        for fragment in fragments:
            self.assertIn(fragment, now["health_text"])
        self.assertIsNone(daemon.process.poll())

    def clients_of(self, user):
        """Addresses that the monitor knows of this user."""
        sessions = json.loads(self.ceph.ceph("tell", "mon.a", "sessions"))
        return {f"{address['addr']}/{address['nonce']}" for session in sessions if session["entity_name"] == user
                for address in session["addrs"]["addrvec"]}

    def own_user(self, name):
        keyring = self.bed.path / f"{name}.keyring"
        self.ceph.user(name, self.space, keyring)
        self.store = self.ceph.url(self.space, "cairn-ec", user=name, keyring=keyring)

    def test_the_room_is_what_pools_and_quotas_leave(self):
        """Of both kinds of pools, for the user that make-user makes; a quota bounds it, and a full one leaves nothing."""
        def leaves(pool):
            return next(row["stats"] for row in self.ceph.ask("df", "detail")["pools"] if row["name"] == pool)

        for data in ("cairn", "cairn-ec"):
            with self.subTest(data=data):
                keyring, space = self.bed.path / f"{data}.keyring", f"{self.space}-{data}"
                self.ceph.user(f"room-{data}", space, keyring)
                daemon = self.daemon(data, store_url=self.ceph.url(space, data, user=f"room-{data}", keyring=keyring))
                raw = self.ceph.ask("df")["stats"]["total_avail_bytes"]
                now = wait_until("the monitor's figures are the daemon's", lambda: (  # it goes on to write a little
                    lambda said, is_: said if abs(said["free_bytes"] - is_["max_avail"]) <= 64 << 20 and
                    said["total_bytes"] - said["free_bytes"] == is_["stored"] else None)(
                        self.health(daemon), leaves(data)), 3 * SOON_S)
                self.assertLess(now["free_bytes"], raw * 0.75)
                self.assertIsNone(now["detail"])
                self.ceph.ceph("osd", "pool", "set-quota", data, "max_bytes", str(leaves(data)["stored"] + (32 << 20)))
                try:
                    wait_until("the quota is what is left", lambda: self.health(daemon)["free_bytes"] <= 33 << 20, SOON_S)
                finally:
                    self.ceph.ceph("osd", "pool", "set-quota", data, "max_bytes", "0")
                daemon.stop()

    def test_names_that_differ_in_capitals(self):
        """The other daemon of the store knows at once what this one has made."""
        daemon, other = self.two()
        self.run_attempt(daemon, 1, run="demo/Bert", world=1, fills=True)
        for name in ("demo/bert", "DEMO/x"):
            rank = Rank(self.bed)
            self.assert_error(rank.refused("open", other.url(name), 0, 1, token(), "rank"), "INVALID", name,
                              "the store has demo/Bert")
            rank.end()
        group = Group(self.bed, other.url("demo/Bert"), 1)
        self.assertEqual(group.restore(), (1, 1, False))
        group.end()
        # Both are opened before either is made: the first save decides.
        first, second = Group(self.bed, daemon.url("demo/Gpt"), 1), Group(self.bed, other.url("demo/gpt"), 1)
        first.save(1)
        self.assert_saves_fail(second, 1, ("INVALID",), "demo/gpt cannot be made, because the store has demo/Gpt")
        first.save(2)
        self.assertEqual(sorted(cairn_json("ls", "--store", self.store)["runs"]), ["demo/Bert", "demo/Gpt"])

    @unittest.skipUnless(FULL, "CAIRN_FULL=1")
    def test_a_blocklisted_client(self):
        self.own_user("blocked")
        daemon, other = self.two()
        group = Group(self.bed, self.url(daemon), 2)
        group.advance(1)
        other.stop()
        for address in self.clients_of("client.blocked"):
            self.ceph.ceph("osd", "blocklist", "add", address, "600")
            self.addCleanup(self.ceph.ceph, "osd", "blocklist", "rm", address)
        self.assert_saves_fail(group, 2, ("DENIED",), "blocklist", "restart the daemon")
        self.assert_red(daemon, "DENIED", "blocklist")
        other.start()  # a new client is not on the list
        again = Group(self.bed, self.url(other), 2)
        self.assertEqual(again.restore(), (1, 1, False))
        again.all("fill", 3)
        self.assert_good({(1, 1), (3, again.save(3))})

    def test_a_user_that_loses_its_rights(self):
        """Ceph lets a client that is at work go on until its ticket ends (an hour); every new one is refused at once, and
        the blocklist ends the old one too."""
        self.own_user("fired")
        daemon = self.daemon()
        group = Group(self.bed, self.url(daemon), 2)
        group.advance(1)
        old = self.clients_of("client.fired")
        self.ceph.ceph("auth", "caps", "client.fired", "mon", "allow r")
        _, _, err = cairn("ls", "--store", self.store, check=12)
        self.assertIn("make-user", err)
        self.ceph.ceph("auth", "rm", "client.fired")
        _, _, err = cairn("ls", "--store", self.store, check=12)
        self.assertIn("refuses the key of client.fired", err)
        for address in old:
            self.ceph.ceph("osd", "blocklist", "add", address, "600")
            self.addCleanup(self.ceph.ceph, "osd", "blocklist", "rm", address)
        self.assert_red(daemon, "DENIED", "blocklist")  # before anybody saves
        self.assert_saves_fail(group, 2, ("DENIED",), "blocklist")
        self.assertIsNone(daemon.process.poll())
        self.own_user("fired")  # with another key
        daemon.stop()
        daemon.keys["store_url"] = self.store
        daemon.start()
        again = Group(self.bed, self.url(daemon), 2)
        self.assert_restores(again, (1, 1, False), 1)

    def test_another_data_pool(self):
        """Whoever looks for the data in another pool is told so, instead of finding every checkpoint damaged."""
        self.store = self.ceph.url(self.space, "cairn-ec")
        group = Group(self.bed, self.url(self.daemon("first")), 1)
        group.advance(1)
        for store in (self.ceph.url(self.space, "cairn"), f"rados:cairn/{self.space}?conf={self.ceph.dir}/ceph.conf"):
            other = Daemon(self.bed, "other", store_url=store, listen_tcp="127.0.0.1:0")
            other.launch()
            self.assertEqual(other.process.wait(SOON_S), 10)
            for fragment in ("STORE_MISMATCH", "has its data in pool cairn-ec", "data-pool=cairn-ec"):
                self.assertIn(fragment, other.log())
            _, _, err = cairn("verify", "--store", store, check=10)
            self.assertIn("data-pool=cairn-ec", err)
        self.assert_good({(1, 1)})

    def test_a_daemon_that_is_not_let_in(self):
        """It lives, says why, and serves as soon as the cluster lets it in."""
        wrong = self.bed.path / "wrong.keyring"
        subprocess.run(["ceph-authtool", str(wrong), "--create-keyring", "--gen-key", "-n", "client.cairn"], check=True,
                       capture_output=True)
        self.own_user("narrow")
        narrow = {"user": "narrow", "keyring": self.bed.path / "narrow.keyring"}
        away = self.bed.path / "away.conf"
        away.write_text("[global]\nmon_host = [v2:127.0.0.1:1/0]\nauth_client_required = none\n")
        status, _, err = cairn("store", "create", f"rados:cairn-ec/x?conf={self.ceph.dir}/ceph.conf")
        self.assertNotEqual(status, 0)  # where stores are made it is known what a pool is for
        self.assertIn("replicated pool", err)
        absent = f"absent-{self.space}"
        self.addCleanup(self.ceph.ceph, "osd", "pool", "rm", absent, absent, "--yes-i-really-really-mean-it")
        for number, (store, error, *fragments) in enumerate((
                (f"rados:cairn/x?conf={away}&timeout=3", "UNREACHABLE", "mon_host"),
                (self.ceph.url(self.space, user="nobody"), "AUTH", "client.nobody", "?keyring="),
                (self.ceph.url(self.space, keyring=wrong), "AUTH", "refuses the key of client.cairn"),
                (self.ceph.url("elsewhere", data="cairn-ec", **narrow), "DENIED", "make-user"),
                (self.ceph.url(f"{self.space}-2", data=absent, user="admin"), "CONFIG", absent, "osd pool create"))):
            with self.subTest(store=store):
                daemon = Daemon(self.bed, f"x{number}", store_url=store, listen_tcp="127.0.0.1:0")
                daemon.launch()
                wait_until("it listens", lambda daemon=daemon: "cannot be opened yet" in daemon.log())
                self.assert_red(daemon, error, *fragments)
                if error != "CONFIG":
                    daemon.stop()
        _, _, err = cairn("ls", "--server", f"127.0.0.1:{daemon.port()}", "--timeout", "2s", check=5)
        self.assertIn("osd pool create", err)
        # Clients that know another server go on there, and are not put off by one without a store.
        good = self.daemon("good", store_url=self.ceph.url(self.space))
        group = Group(self.bed, self.url(daemon, good), 2)
        group.advance(1)
        port = good.port()
        good.kill()
        group.all("fill", 2)
        answers = group.all("save", 2, 30000)
        good.start(listen_tcp=f"127.0.0.1:{port}")
        group.finish(answers, 30000)
        group.end()
        good.stop()
        daemon.process.send_signal(signal.SIGSTOP)  # a pool without a store would end it
        self.ceph.ceph("osd", "pool", "create", absent, "8")
        cairn("store", "create", daemon.keys["store_url"], check=0)
        daemon.process.send_signal(signal.SIGCONT)
        wait_until("it is let in", daemon.is_ready)
        self.assertNotEqual(self.health(daemon)["health"], "red")  # a pool that is being made may be slow: yellow
        group = Group(self.bed, self.url(daemon), 2)
        group.advance(3)
        daemon.stop()


class Damage(OnCeph):
    def setUp(self):
        super().setUp()
        self.addCleanup(self.ceph.heal)

    def tool(self, osd, *words, data=None):
        """ceph-objectstore-tool on an OSD that is stopped."""
        done = subprocess.run(["ceph-objectstore-tool", "--data-path", str(self.ceph.dir / f"osd.{osd}"),
                               "--no-mon-config", *words], input=data, capture_output=True, timeout=60, check=False)
        self.assertEqual(done.returncode, 0, done.stderr[-500:])
        return done.stdout

    def spoil(self, name, space, copies):
        """One byte in the middle of so many copies of an object, the primary's first."""
        found = self.ceph.ask("osd", "map", "cairn", name, space)
        for osd in sorted(found["acting"], key=lambda osd: osd != found["acting_primary"])[:copies]:
            self.ceph.do("signal", f"osd.{osd}", "TERM")
            held = [line for line in self.tool(osd, "--pgid", found["pgid"], "--op", "list", name).decode().splitlines()
                    if json.loads(line)[1]["namespace"] == space]
            self.assertEqual(len(held), 1)
            data = bytearray(self.tool(osd, held[0], "get-bytes"))
            data[len(data) // 2] ^= 0xFF
            self.tool(osd, held[0], "set-bytes", data=bytes(data))
        self.ceph.heal()
        return found["pgid"]

    def saved(self):
        """Two checkpoints; the pieces of the newer one."""
        group = Group(self.bed, self.url(self.daemon()), 1, rows=4096)
        for step in (1, 2):
            group.advance(step)
        return group, sorted(name for name in self.rados("ls").split() if name.startswith("piece/run/1-2/"))

    def assert_falls_back(self, group):
        document = cairn_json("verify", "--store", self.store, check=6, timeout_s=60)
        self.assertEqual([entry["step"] for entry in document["checked"] if not entry["good"]], [2])
        self.assert_restores(group, (1, 1, True), 1)

    @unittest.skipUnless(FULL, "CAIRN_FULL=1")
    def test_a_copy_holds_other_bytes(self):
        """Even the copy that is read first: Ceph takes another one. Cairn sees what was saved."""
        group, pieces = self.saved()
        placement = self.spoil(pieces[0], f"{self.space}/demo", 1)
        self.assert_good({(1, 1), (2, 1)})
        self.assert_restores(group, (2, 1, False), 2)
        self.ceph.ceph("pg", "repair", placement)

    def test_an_object_is_gone(self):
        group, pieces = self.saved()
        gone = pieces[0].rpartition("/")[0]
        for piece in pieces:  # the first alone may hold no more than the object's header, which no restore reads
            if piece.rpartition("/")[0] == gone:
                self.rados("rm", piece)
        self.assert_falls_back(group)

    @unittest.skipUnless(FULL, "CAIRN_FULL=1")
    def test_no_copy_is_good(self):
        """Ceph lets whoever reads it wait: that is named in time. Once the operator gives the object up, it is damage."""
        group, pieces = self.saved()
        placement = self.spoil(pieces[0], f"{self.space}/demo", 3)
        self.addCleanup(lambda: self.ceph.try_ceph("pg", placement, "mark_unfound_lost", "delete"))
        started = time.monotonic()
        document = cairn_json("verify", "--store", self.store, check=5, timeout_s=120)
        self.assertEqual((document["damaged"], document["unread"], document["checkpoints"]), (0, 1, 2))
        named = [entry for entry in document["checked"] if not entry["good"]]
        self.assertEqual([entry["step"] for entry in named], [2])
        self.assertIn("not read", named[0]["findings"][0])
        self.assertLess(time.monotonic() - started, 60)
        self.ceph.ceph("pg", placement, "mark_unfound_lost", "delete")
        self.assert_falls_back(group)


class Doctor(OnCeph):
    def examine(self, store):
        code, _, err = cairn("doctor", "--store", store)
        self.assertIn(code, (0, 1, 3), err)
        return cairn_json("doctor", "--store", store, check=code)["findings"]

    def found(self, findings, level, word):
        return [one for one in findings if one["level"] == level and word in one["text"]]

    def test_what_is_good_and_what_is_not(self):
        keyring = self.bed.path / "examined.keyring"
        self.ceph.user("examined", self.space, keyring)
        self.store = self.ceph.url(self.space, "cairn-ec", user="examined", keyring=keyring)
        group = Group(self.bed, self.url(self.daemon()), 1)
        group.advance(1)
        findings = self.examine(self.store)
        for word in ("size 3, min_size 2", "may not read the keys of other users", "may use only its own namespaces", "1 of 1 runs",
                     "a round trip takes", "differ by 0.000 s"):
            self.assertTrue(self.found(findings, "good", word), word)
        unsafe = [one for one in findings if one["level"] == "unsafe"]
        self.assertEqual([one["check"] for one in unsafe], ["pool cairn-ec"], unsafe)  # 2+1 may lose what it writes
        # The throw-away cluster's own user may use the whole pool, its administrator everything.
        self.assertTrue(self.found(self.examine(self.ceph.url(self.space)), "warning", "every namespace"))
        self.assertTrue(self.found(self.examine(self.ceph.url(self.space, user="admin")), "unsafe", "keys of all"))
        for undo, do in ((("osd", "unset", "noout"), ("osd", "set", "noout")),
                         (("osd", "pool", "set", "cairn", "min_size", "2"),
                          ("osd", "pool", "set", "cairn", "min_size", "1"))):
            self.ceph.ceph(*do)
            self.addCleanup(self.ceph.ceph, *undo)
        findings = self.examine(self.store)
        self.assertTrue(self.found(findings, "warning", "noout"))
        self.assertTrue(self.found(findings, "unsafe", "min_size 1"))
        cairn("doctor", "--store", self.ceph.url(self.space, "absent", user="examined", keyring=keyring), check=2)
