# SPDX-License-Identifier: Apache-2.0
"""Retention keeps what its policies say and tells the reasons, never forgets what must stay, and brings back what was
forgotten, as cron and an operator use it: with pins, without a daemon, with damage, and with a kill at any moment while a
job saves."""

import json
import os
import re
import subprocess
import threading
from unittest import mock

from harness import BIN, Case, cairn, cairn_json, listed, main, rng, wait_until

ALL = [10, 20, 30, 40, 50, 60, 70, 80]


def steps(daemon, how="server", run="demo/run"):
    return sorted(step for step, _ in listed(daemon, run, how))


class Forget(Case):
    def saved(self, wanted=ALL, **keys):
        return self.saving(*wanted, **keys)

    def test_a_policy_says_what_it_does_and_does_it(self):
        daemon, _ = self.saved()
        policy = ("forget", "demo/run", "--keep-last", 3, "--keep-every-steps", 40)
        plan = cairn_json(*policy, "--dry-run", *daemon.online)
        self.assertEqual(steps(daemon), ALL)
        done = cairn_json(*policy, *daemon.online)
        self.assertEqual({**plan, "dry_run": False}, done)
        (run,) = done["runs"]
        self.assertEqual((run["run"], run["error"], run["forgotten"], run["refused"], run["total"]), ("demo/run", None, 4, 0, 8))
        kept = {c["step"]: c["reasons"] for c in run["checkpoints"] if c["action"] == "keep"}
        self.assertEqual(kept, {80: "last, every so many steps", 70: "last", 60: "last", 40: "every so many steps"})
        gone = {c["step"]: c["reasons"] for c in run["checkpoints"] if c["action"] == "forgotten"}
        self.assertEqual(gone, dict.fromkeys([50, 30, 20, 10], "no rule keeps it"))
        self.assert_whole(daemon, {(s, 1) for s in (40, 60, 70, 80)})
        again = cairn_json(*policy, *daemon.online)["runs"][0]
        self.assertEqual((again["forgotten"], again["total"]), (0, 4))
        _, out, _ = cairn(*policy, *daemon.online, check=0)
        self.assertIn("demo/run: 0 forgotten, 4 kept", out)

    def test_who_it_was_is_what_the_connection_proves(self):
        daemon, _ = self.saved(ALL[:4], listen_tcp="127.0.0.1:0")
        cairn("forget", "demo/run", "10", "--reason", "a mistake", *daemon.online, check=0)
        cairn("pin", "demo/run", "20", *daemon.online, check=0)
        cairn("forget", "demo/run", "30", "--server", f"127.0.0.1:{daemon.port()}", check=0)
        said = lambda step: cairn("status", "demo/run", f"{step}@1", *daemon.online, check=0)[1]
        self.assertRegex(said(10), rf"10@1: forgotten: by uid={os.getuid()} claimed=\S+@\S+: a mistake\n$")
        self.assertRegex(said(20), rf"20@1: committed, verified, pinned: pinned by uid={os.getuid()} claimed=")
        self.assertRegex(said(30), r"30@1: forgotten: by unverified claimed=\S+@")
        self.assertEqual(said(40), "40@1: committed, verified\n")

    def test_tags_with_commas_and_days_of_a_zone(self):
        daemon, _ = self.saved(ALL[:5])
        cairn("tag", "demo/run", "10", "lr=0,1", *daemon.online, check=0)
        cairn("annotate", "demo/run", "20", "--tag", "lr=0", *daemon.online, check=0)
        tags = {c["step"]: c["tags"] for c in cairn_json("ls", "demo/run", *daemon.online)["checkpoints"]}
        self.assertEqual((tags[10], tags[20]), (["e2e", "lr=0,1"], ["e2e", "lr=0"]))
        self.assertRegex(cairn("ls", "demo/run", *daemon.online, check=0)[1], r'(?m) 10@1 .* e2e, "lr=0,1"')
        policy = ("--keep-tag", "lr=0\\,1", "--keep-last", 2, "--keep-daily", 1, "--time-zone", "Europe/Berlin")
        cairn("forget", "demo/run", *policy, *daemon.online, check=0)
        self.assertEqual(steps(daemon), [10, 40, 50])
        self.assertRegex(cairn("status", "demo/run", "20@1", *daemon.online)[1],
                         r"keep-tag lr=0\\,1, time-zone Europe/Berlin\n$")
        code, _, err = cairn("forget", "demo/run", "--keep-daily", 1, "--time-zone", "Europe/Nowhere", *daemon.online)
        self.assertEqual(code, 2, err)
        self.assertIn('the time zone "Europe/Nowhere" is not known here', err)
        self.assertEqual(daemon.stop(), 0)
        config = self.bed.path / "zone.conf"
        config.write_text("[retention]\ninterval = 1s\nkeep-tag = lr=0\\,1\nkeep-last = 1\ntime-zone = Asia/Kolkata\nkeep-least = 1\n")
        daemon.start(config=config)
        wait_until("the policy of the configuration holds", lambda: steps(daemon) == [10, 50])

    def test_undelete_brings_back_what_was(self):
        daemon, group = self.saved(ALL[:4])
        cairn("forget", "demo/run", "10", "--checkpoint", "20@1", "--checkpoint", "10@1", "--checkpoint", "20",
              "--reason", "a mistake", *daemon.online, check=0)  # two names of one are one
        self.assertEqual(steps(daemon), [30, 40])
        _, out, _ = cairn("undelete", "demo/run", *daemon.online, check=0)
        self.assertEqual(sorted(line.split()[1] for line in out.splitlines()), ["10@1", "20@1"])
        self.assertEqual(cairn("status", "demo/run", "20@1", *daemon.online)[1].count("forgotten"), 1)
        cairn("undelete", "demo/run", "20", *daemon.online, check=0)
        _, out, _ = cairn("undelete", "demo/run", "10@1", "--dry-run", *daemon.online, check=0)
        self.assertRegex(out, r"^demo/run 10@1 \(.*\): would be undeleted\n$")
        self.assert_whole(daemon, {(20, 1), (30, 1), (40, 1)})
        self.assertEqual(group.restore(20), (20, 1, False))
        self.assertEqual(cairn("undelete", "demo/run", "77", *daemon.online)[0], 4)
        cairn("undelete", "demo/run", "20@1", *daemon.online, check=0)  # is there: nothing to do

    def test_undelete_after_its_time(self):
        daemon, group = self.saved(ALL[:4])
        group.end()
        cairn("forget", "demo/run", "10", *daemon.online, check=0)
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        collect = ("gc", "--cycle", "--keep-cycles", 2, *store)
        cairn(*collect, check=0)
        self.assertIn("10@1", cairn("undelete", "demo/run", *store, check=0)[1])  # one cycle of two
        cairn(*collect, check=0)
        self.assertEqual(cairn("undelete", "demo/run", *store, check=0)[1], "")
        for command in ("undelete", "pin"):
            code, _, err = cairn(command, "demo/run", "10@1", *store)
            self.assertEqual((code, err),
                             (3, "cairn: demo/run 10@1 was forgotten, and its space was reclaimed: it cannot be brought back\n"))
        self.assertRegex(cairn("status", "demo/run", "10@1", *store, check=0)[1],
                         r"^10@1: forgotten: .*; its space was reclaimed, so it cannot be brought back\n$")
        self.assertIn("no forgotten checkpoint of step 10", cairn("undelete", "demo/run", "10", *store, check=4)[2])
        cairn("show", "demo/run", "10", *store, check=4)
        self.assert_whole(daemon, {(20, 1), (30, 1), (40, 1)})

    def test_reclaimed_now(self):
        """gc --now and forget --now: the space comes back with the daemon up, nothing is brought back, the chain says who."""
        daemon, group = self.saved(ALL[:5])
        where = daemon.online
        _, out, _ = cairn("forget", "demo/run", "10", *where, check=0)
        self.assertRegex(out, r"demo/run: [0-9.]+ \w+ of 1 forgotten checkpoint waits to be reclaimed, until \d{4}-\S+Z; until then "
                              r"`cairn undelete demo/run` lists it and with a checkpoint brings it back, "
                              r"and `cairn gc --now demo/run` frees it now, for good")
        status = cairn_json("status", *where)["gc"]
        self.assertEqual(status["forgotten"], 1)
        self.assertGreater(status["forgotten_bytes"], 0)
        self.assertRegex(cairn("status", *where)[1], r"of 1 forgotten checkpoint waits to be reclaimed, until \d{4}-")
        cairn("gc", *where, check=0)
        self.assertTrue(daemon.files("runs/demo/run/checkpoints/1-10/*"))  # an ordinary pass: it waits
        told = cairn_json("gc", "--now", "--dry-run", "demo/run", *where)["gc"]
        self.assertEqual((told["reclaimed"], told["now"], told["dry_run"]), (1, True, True))
        self.assertIn("10@1", cairn("undelete", "demo/run", *where, check=0)[1])
        self.assertEqual(cairn("gc", "--now", "demo/other", *where)[0], 4)
        _, out, _ = cairn("forget", "demo/run", "20", "--now", "--dry-run", *where, check=0)
        self.assertRegex(out, r"demo/run: [0-9.]+ \w+ of 2 forgotten checkpoints, with those above, would be reclaimed at once and be gone "
                              r"for good, unless an open save or a restore uses them\n"
                              r"of what was forgotten before, garbage collection would free:\n")
        self.assertRegex(out, r"\n +1 would be reclaimed; would remove \d+ objects? \(.*\n(.*\n)* +it would be reclaimed without waiting")
        _, out, err = cairn("gc", "--now", "demo/run", *where, check=0)
        self.assertIn("`cairn undelete` cannot bring it back", err)
        self.assertIn("gone for good", out)
        for words, said in ((("--now",), "nothing was reclaimed"), (("--now", "-n"), "nothing would be reclaimed")):
            _, out, _ = cairn("gc", *words, *where, check=0)
            self.assertIn(f"nothing that is forgotten waits: {said}\n", out)
            self.assertNotIn("gone for good", out)
        self.assertEqual(daemon.files("runs/demo/run/checkpoints/1-10/*"), [])
        self.assertEqual(cairn("undelete", "demo/run", "10@1", *where)[::2],
                         (3, "cairn: demo/run 10@1 was forgotten, and its space was reclaimed: it cannot be brought back\n"))
        said = cairn("status", "demo/run", "10@1", *where)[1]
        self.assertRegex(said, rf"reclaimed by uid={os.getuid()} claimed=\S+@\S+: a caller asked to reclaim it now")
        document = cairn_json("forget", "demo/run", "20", "--now", *where)
        self.assertEqual((document["gc"]["reclaimed"], document["gc"]["forgotten"]), (1, 0))
        self.assertEqual(daemon.files("runs/demo/run/checkpoints/1-20/*"), [])
        self.assert_whole(daemon, {(30, 1), (40, 1), (50, 1)}, how="server")
        for words in (("--keep-cycles", 3), ("--cycle",)):  # a daemon counts its own
            self.assertIn("go with --store", cairn("gc", *words, *where, check=2)[2])
        group.end()
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        for words in (("forget", "demo/run", "--now"), ("gc", "demo/run"), ("gc", "--now", "--cycle"),
                      ("gc", "--now", "a/b", "--project", "a")):
            self.assertEqual(cairn(*words, *store)[0], 2)
        cairn("forget", "demo/run", "30", *store, check=0)
        self.assertEqual(cairn_json("gc", "--now", "-n", "--project", "demo", *store)["gc"]["reclaimed"], 1)
        self.assertEqual(cairn_json("gc", "--now", "--project", "demo", *store)["gc"]["reclaimed"], 1)
        self.assertEqual(cairn_json("forget", "demo/run", "40", "--keep-least", 1, "--now", *store)["gc"]["reclaimed"], 1)
        self.assert_whole(daemon, {(50, 1)})

    def test_beside_an_unreadable_part_nothing_is_reclaimed(self):
        """A kept checkpoint's part is truncated: what it may refer to is not reclaimed, loses no file and can be brought
        back; the answer names the part and the remedy, which works. The ordinary pass does the same."""
        daemon, group = self.saving()
        for step in ALL[:5]:
            group.all("fill", step % 30)  # each has objects of its own, and shares some with the one before
            group.save(step)
        where = daemon.online
        (part,) = daemon.files("runs/demo/run/checkpoints/1-30/part-1-*")
        part.chmod(0o600)
        os.truncate(part, 100)
        there = lambda: sorted(path.name for step in (10, 20) for path in daemon.files(f"runs/demo/run/checkpoints/1-{step}/*"))
        cairn("forget", "demo/run", "20", *where, check=0)
        before = there()
        said = r"the part of rank 1 of checkpoint 30@1 cannot be read .*`cairn verify demo/run 30@1 --repair`\), or forget that checkpoint"
        told = cairn_json("gc", "--now", "--dry-run", *where, check=6)["gc"]
        for words in (("gc", "--now"), ("gc", "--now", "demo/run"), ("forget", "demo/run", "--keep-last", 9, "--now")):
            code, out, err = cairn(*words, *where)
            self.assertEqual(code, 6, err)
            self.assertRegex(err, said)
            self.assertNotIn("gone for good", out)
        self.assertEqual((told["reclaimed"], told["objects"]), (0, 0))
        self.assertEqual(there(), before)
        self.assertIn("garbage collection had", cairn("status", *where)[1])
        cairn("undelete", "demo/run", "20@1", *where, check=0)
        self.assertEqual(group.restore(20), (20, 1, False))
        cairn("verify", "demo/run", "30@1", *where, check=6)
        cairn("forget", "demo/run", "20", "--checkpoint", "30@1", *where, check=0)
        self.assertEqual(cairn_json("gc", "--now", *where)["gc"]["reclaimed"], 2)
        self.assertEqual(daemon.files("runs/demo/run/checkpoints/1-30/*"), [])
        self.assert_whole(daemon, {(10, 1), (40, 1), (50, 1)}, how="server")
        group.end()
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        (part,) = daemon.files("runs/demo/run/checkpoints/1-40/part-0-*")
        os.chmod(part, 0o600)
        os.truncate(part, 0)
        cairn("forget", "demo/run", "10", "--keep-least", 1, *store, check=0)
        for words in (("gc", "--now"), ("gc", "--cycle", "--keep-cycles", 1)):
            self.assertRegex(cairn(*words, *store, check=6)[2], "the part of rank 0 of checkpoint 40@1")
        self.assertIn("10@1", cairn("undelete", "demo/run", "10@1", *store, check=0)[1])

    def test_what_is_never_forgotten(self):
        daemon, group = self.saved(ALL[:5])
        code, _, err = cairn("forget", "demo/run", "50", *daemon.online)
        self.assertEqual((code, err), (3, "cairn: demo/run 50@1 is the newest good checkpoint\n"))
        cairn("pin", "demo/run", "10", "--reason", "paper", *daemon.online, check=0)
        self.assertEqual([s for (s, _), entry in listed(daemon, how="server").items() if entry["pinned"]], [10])
        self.assertIn("verified, pinned", cairn("ls", "demo/run", *daemon.online, check=0)[1])
        self.assertIn("verified, pinned", cairn("show", "demo/run", "10", *daemon.online, check=0)[1])
        started = group[0].do("restore", "20")  # the other rank has not come yet
        wait_until("the session is there", lambda: "is being restored" in cairn(
            "forget", "demo/run", "20", "--dry-run", *daemon.online)[2])
        code, _, err = cairn("forget", "demo/run", "20", *daemon.online)
        self.assertEqual((code, err), (3, "cairn: demo/run 20@1 is being restored\n"))
        self.assertEqual(cairn("forget", "demo/run", "--keep-last", 1, "--quiet", "--dry-run", *daemon.online), (0, "", ""))
        document = cairn_json("forget", "demo/run", "--keep-last", 1, *daemon.online)["runs"][0]
        kept = {c["step"]: c["reasons"] for c in document["checkpoints"] if c["action"] != "forgotten"}
        self.assertEqual(kept, {50: "last", 20: "is being restored", 10: "is pinned"})
        group[1].do("restore", "20")
        self.assertTrue(group[0].ask("wait", started["op"], 60000)["ok"])
        code, _, err = cairn("forget", "demo/run", "10", *daemon.online)
        self.assertEqual((code, err), (3, "cairn: demo/run 10@1 is pinned\n"))
        cairn("unpin", "demo/run", "10", *daemon.online, check=0)
        cairn("forget", "demo/run", "10", *daemon.online, check=0)
        self.assertEqual(steps(daemon), [20, 50])
        for words in (("20",), ("20", "--keep-least", 2)):
            self.assertEqual(cairn("forget", "demo/run", *words, *daemon.online)[0], 3)
        cairn("forget", "demo/run", "20", "--keep-least", 1, *daemon.online, check=0)

    def test_tags_and_metrics_decide(self):
        daemon, _ = self.saved(ALL[:6])
        for step, loss in ((10, 0.5), (20, 0.25), (30, 0.75)):
            cairn("annotate", "demo/run", step, "--metric", f"loss={loss}", *daemon.online, check=0)
        note = lambda: cairn_json("status", "demo/run", "40@1", *daemon.online)["checkpoint"]["note_version"]
        before = note()
        for value, said in (("nan", "NaN is not a value"), ("-nan(1)", "NaN is not a value"), ("1e400", "larger than a metric can hold"),
                            ("-1e400", "larger than a metric can hold"), ("1e", "NAME=VALUE"), ("", "NAME=VALUE")):
            code, _, err = cairn("annotate", "demo/run", "40", "--metric", f"loss={value}", *daemon.online)
            self.assertEqual(code, 2, value)
            self.assertIn(f"--metric 'loss={value}': ", err)
            self.assertIn(said, err)
        self.assertEqual(note(), before)
        cairn("annotate", "demo/run", "60", "--metric", "worst=inf", "--metric", "least=1.7e308", *daemon.online, check=0)
        cairn("tag", "demo/run", "40", "paper", *daemon.online, check=0)
        best = ("--keep-best", 1, "--mode", "min", "--keep-tag", "paper")
        code, _, err = cairn("forget", "demo/run", *best, "--metric", "accuracy", *daemon.online)
        self.assertEqual(code, 4)
        self.assertIn('a value of the metric "accuracy", so nothing is forgotten', err)
        self.assertEqual(cairn("forget", "demo/run", *best, *daemon.online)[0], 2)
        cairn("forget", "demo/run", *best, "--metric", "loss", *daemon.online, check=0)
        self.assertEqual(steps(daemon), [20, 40, 60])
        cairn("tag", "demo/run", "40", "paper", "--remove", *daemon.online, check=0)
        code, _, err = cairn("forget", "demo/run", "--keep-tag", "paper", *daemon.online)
        self.assertEqual(code, 2)
        self.assertIn("its rules keep none of the", err)

    def test_mistakes_forget_nothing(self):
        daemon, _ = self.saved(ALL[:3])
        for words, fragment in (((), "no policy is given"),
                                (("--keep-last", 0), "no policy is given"),
                                (("--keep-last", "-3"), "keep-last \"-3\""),
                                (("--keep-within", "3 days"), "keep-within"),
                                (("--metric", "loss", "--keep-last", 1), "without keep-best"),
                                (("--keep-last", 30, "--keep-last", 3), "--keep-last '3' was already given as '30'"),
                                (("--keep-within", "0d"), "no policy is given"),
                                (("10", "--keep-last", 1), "cannot be combined with checkpoints by name"),
                                (("10", "--keep-least", "1x"), "--keep-least is 1x"),
                                (("10", "--keep-least", 0), "at least 1"),
                                (("--project", "demo", "--keep-last", 1), "RUN or a checkpoint cannot")):
            code, _, err = cairn("forget", "demo/run", *words, *daemon.online)
            self.assertEqual((words, code), (words, 2), err)
            self.assertIn(fragment, err)
        cairn("forget", "demo/run", "--keep-last", 2, "--keep-last", 2, "--dry-run", *daemon.online, check=0)  # no contradiction
        self.assertEqual(cairn("forget", *daemon.online)[0], 2)
        self.assertEqual(cairn("forget", "--run", "nothing-*", "--keep-last", 1, *daemon.online)[0], 4)
        self.assertEqual(cairn("forget", "demo/none", "--keep-last", 1, *daemon.online)[0], 4)
        self.assertEqual(cairn("forget", "demo/run", "15", *daemon.online)[0], 4)
        self.assertEqual(steps(daemon), ALL[:3])

    def test_the_store_without_its_daemon(self):
        daemon, group = self.saved(ALL[:5])
        store = daemon.offline
        policy = ("forget", "--project", "demo", "--keep-last", 2)
        code, _, err = cairn(*policy, *store)
        self.assertEqual(code, 11, err)
        plan = cairn_json(*policy, "--dry-run", *store)  # reads beside the daemon
        self.assertEqual(plan["runs"][0]["forgotten"], 3)
        group.end()
        daemon.stop()
        self.assertEqual(cairn(*policy, *daemon.online, "--timeout", "1s")[0], 5)
        self.assertEqual({**plan, "dry_run": False}, cairn_json(*policy, *store))
        cairn("undelete", "demo/run", "20", *store, check=0)
        cairn("pin", "demo/run", "20", *store, check=0)
        cairn("tag", "demo/run", "20", "old", *store, check=0)
        note = cairn_json("annotate", "demo/run", "20", "--metric", "eval=1.5", *store)["checkpoint"]
        self.assertEqual((note["metrics"]["eval"], "old" in note["tags"]), (1.5, True))
        typo = daemon.store.parent / "store-typo"
        for there in (False, True):  # nobody is told to make a store where he mistyped one
            if there:
                typo.mkdir()
            for words in (policy, ("gc",), ("undelete", "demo/run", "20"), ("verify", "--repair"), ("ls",)):
                code, _, err = cairn(*words, "--store", f"dir:{typo}")
                self.assertEqual(code, 10, err)
                self.assertIn("check the path", err)
                self.assertNotIn("create", err)
            self.assertIn("check the path", cairn("store", "upgrade", f"dir:{typo}", check=10)[2])
            self.assertEqual(os.listdir(typo) if there else typo.exists(), [] if there else False)
        self.assert_whole(daemon, {(20, 1), (40, 1), (50, 1)})
        daemon.start()
        self.assertEqual(self.group(daemon).restore(), (50, 1, False))

    def test_a_lost_answer_costs_one_version_of_a_step(self):
        """The request is sent again, and by then its step alone means the version before."""
        daemon, group = self.saved(ALL[:3], listen_tcp="127.0.0.1:0")
        group.end()
        group = self.group(daemon)
        group.restore()
        for step in ALL[1:5]:
            group.save(step)
        relay = self.relay(daemon, loses=(1, 3))
        cairn("forget", "demo/run", "20", "--server", f"127.0.0.1:{relay.port}", check=0)
        self.assertEqual(relay.marked, 4)
        there = {(step, term) for step, term in listed(daemon, how="server")}
        self.assertEqual((there & {(20, 1), (20, 2)}), {(20, 1)})
        cairn("forget", "demo/run", "20", *daemon.online, check=0)
        relay = self.relay(daemon, loses=(1, 3))
        cairn("undelete", "demo/run", "20", "--server", f"127.0.0.1:{relay.port}", check=0)
        there = {(step, term) for step, term in listed(daemon, how="server")}
        self.assertEqual((there & {(20, 1), (20, 2)}), {(20, 2)})

    def test_a_server_that_goes_away_is_waited_for_once(self):
        """Of a thousand runs not each waits out its time."""
        daemon = self.daemon(listen_tcp="127.0.0.1:0")
        for name in ("a", "b", "c", "d"):
            self.run_attempt(daemon, *ALL[:3], run=f"demo/{name}", world=1)
        policy = ("forget", "--run", "*", "--keep-last", 2, "--timeout", "2s")
        relay = self.relay(daemon)
        cairn(*policy, "--dry-run", "--server", f"127.0.0.1:{relay.port}", check=0)
        relay = self.relay(daemon, connections=relay.accepted - 3)
        document = cairn_json(*policy, "--server", f"127.0.0.1:{relay.port}", check=3)
        self.assertEqual([(run["run"], run["error"] is None) for run in document["runs"]], [("demo/a", True), ("demo/b", False)])
        self.assertEqual(document["passed_over"], 2)
        self.assertEqual([steps(daemon, run=f"demo/{name}") for name in "ab"], [ALL[1:3], ALL[:3]])
        relay = self.relay(daemon, connections=relay.accepted)
        code, out, err = cairn(*policy, "--quiet", "--server", f"127.0.0.1:{relay.port}")
        self.assertEqual((code, out), (3, ""))
        self.assertRegex(err, r"^cairn: demo/b: UNREACHABLE: .*\ncairn: 2 runs were not examined\n$")

    def test_damage_is_named_in_one_line_and_loses_nothing(self):
        daemon, _ = self.saved(ALL[:3])
        self.run_attempt(daemon, *ALL[:2], run="demo/bad")
        for path in daemon.files("runs/demo/bad/**/manifest*"):
            path.chmod(0o600)
            path.write_bytes(b"")
        cairn("verify", "demo/bad", *daemon.online)  # the server marks what it sees
        code, out, err = cairn("forget", "--project", "demo", "--keep-last", 2, *daemon.online)
        self.assertEqual(code, 3)
        self.assertEqual(len(err.splitlines()), 1, err)
        self.assertTrue(err.startswith("cairn: demo/bad: DAMAGED: none of the run's 2 checkpoints is both good"), err)
        self.assertIn("demo/run: 1 forgotten, 2 kept", out)
        self.assertEqual(cairn("forget", "demo/bad", "--keep-last", 1, *daemon.online)[0], 6)
        said = json.loads(cairn("forget", "demo/bad", "--keep-last", 1, "--json", *daemon.online)[2])  # one object
        self.assertEqual((said["code"], said["error"]), (6, "DAMAGED"))
        self.assertIn("demo/bad: none of the run's 2", said["message"])
        code, _, err = cairn("forget", "demo/bad", "10", *daemon.online)
        self.assertEqual(code, 3)
        self.assertIn("10@1 stays, because the run has no good checkpoint", err)

    def test_the_daemon_follows_its_configuration(self):
        config = self.bed.path / "retention.conf"
        config.write_text('[retention]\ninterval = 200ms\nkeep-last = 2\n'
                          '[retention "demo/all-*"]\nkeep-last = unlimited\n')
        daemon, _ = self.saved(ALL[:4], config=config)
        self.run_attempt(daemon, *ALL[:4], run="demo/all-of-it", world=1)
        wait_until("two are forgotten", lambda: steps(daemon) == [30, 40])
        self.assertEqual(steps(daemon, run="demo/all-of-it"), ALL[:4])
        _, out, _ = cairn("undelete", "demo/run", *daemon.online, check=0)
        self.assertIn("20@1", out)
        for text, fragment in (("interval = 1h", None),  # for policies of the store
                               ("keep-last = 2", "has a policy but no interval"),
                               ("interval = 0s\nkeep-last = 2", None),
                               ("metric = loss\nkeep-last = 1", "without keep-best")):
            config.write_text(f"[retention]\n{text}\n")
            words = [str(word) for word in daemon.argv()] + ["--check-config"]
            done = subprocess.run(words, capture_output=True, timeout=60)
            self.assertEqual(done.returncode, 2 if fragment else 0, done.stderr)
            self.assertIn(fragment or "", done.stderr.decode())

    def ahead(self, seconds):
        """The environment of a daemon whose wall clock is ahead."""
        options = [os.environ.get("ASAN_OPTIONS"), "verify_asan_link_order=0"]
        wrong = {"LD_PRELOAD": str(BIN / "e2e_clock.so"), "CAIRN_TEST_AHEAD_S": str(seconds),
                 "ASAN_OPTIONS": ":".join(filter(None, options))}
        return mock.patch.dict(os.environ, wrong)

    def test_a_clock_that_was_ahead(self):
        """The newest one is of tomorrow: rules of time say so in one line, with the remedy; rules that count work; with the
        next save by a right clock all is well."""
        daemon, group = self.saved(ALL[:4])
        self.assertEqual(daemon.stop(), 0)
        with self.ahead(86400):
            daemon.start()
        group.save(50)
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        code, out, err = cairn("forget", "--run", "*", "--keep-last", 2, "--keep-within", "1h", "--quiet", *daemon.online)
        self.assertEqual((code, out, len(err.splitlines())), (1, "", 1), err)
        self.assertRegex(err, r"^cairn: demo/run: CONFLICT: the newest checkpoint 50@1 was committed 8[56]\d\d\d s in the future: "
                              r"a clock is wrong; nothing is forgotten\. Set the clock right.*keep-last")
        document = cairn_json("forget", "demo/run", "--keep-daily", 2, *daemon.online, check=1)
        without = lambda text: re.sub(r"\d+ s in", "", text)  # a second may have passed
        self.assertEqual(without(document["runs"][0]["error"] + "\n"), without(err.removeprefix("cairn: demo/run: CONFLICT: ")))
        self.assertEqual(steps(daemon), ALL[:5])
        cairn("forget", "demo/run", "--keep-last", 3, *daemon.online, check=0)
        self.assertEqual(steps(daemon), [30, 40, 50])
        group.save(60)
        cairn("forget", "demo/run", "--keep-within", "1h", *daemon.online, check=0)
        self.assertEqual(steps(daemon), [30, 40, 50, 60])  # one of tomorrow is no older than an hour

    def test_superseded_ends_stay_for_a_while(self):
        daemon, group = self.saved(ALL[:4])
        self.assertEqual(group.restore(20), (20, 1, False))
        for step in (25, 30, 35):
            self.assertEqual(group.save(step), 2)
        policy = ("forget", "demo/run", "--keep-last", 2)
        run = cairn_json(*policy, *daemon.online)["runs"][0]
        reasons = {(c["step"], c["term"]): c["reasons"] for c in run["checkpoints"]}
        self.assertEqual(reasons[(40, 1)], "end of a branch that was superseded recently")
        self.assertEqual(set(listed(daemon, how="server")), {(40, 1), (30, 2), (35, 2)})
        cairn(*policy, "--keep-superseded", "0s", *daemon.online, check=0)
        self.assertEqual(set(listed(daemon, how="server")), {(30, 2), (35, 2)})

    def test_a_kill_at_any_moment_loses_nothing(self):
        """A job saves while a policy runs again and again; the daemon is killed now and then. What is listed is
        whole, the newest two are there, and the job goes on."""
        random = rng()
        daemon, group = self.saved(ALL[:2])
        step, last = 100, 20
        for _ in range(6):
            done = threading.Event()

            def keep_forgetting():
                while not done.is_set():
                    cairn("forget", "demo/run", "--keep-last", 2, "--quiet", "--timeout", "2s", *daemon.online)

            thread = threading.Thread(target=keep_forgetting)
            thread.start()
            try:
                for _ in range(random.randrange(2, 6)):
                    group.save(step)
                    last, step = step, step + 1
                answers = group.all("save", step, 60000)
                daemon.restart()
                ended = group.finish_any(answers, 30000)
            finally:
                done.set()
                thread.join()
            if all(answer["ok"] for answer in ended):
                last = step
            step += 1
            there = listed(daemon, how="server")
            self.assertIn(last, {s for s, _ in there})
            self.assertGreaterEqual(len(there), 2)
            self.assert_whole(daemon, set(there), how="server")
        self.assertEqual(group.restore()[0], last)


if __name__ == "__main__":
    main()
