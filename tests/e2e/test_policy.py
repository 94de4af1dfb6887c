# SPDX-License-Identifier: Apache-2.0
"""A retention policy is stored once and used by all: people, cron's command and the daemon. Everybody can tell which one
holds for a run; a wrong one is refused by name and changes nothing; it outlives the daemon, and a store without one can be
told of it too; the log says who set it."""

import os
import shutil

from harness import Case, cairn, cairn_json, listed, main, wait_until

ALL = [10, 20, 30, 40, 50]


def steps(daemon, run="demo/run", how="server"):
    return sorted(step for step, _ in listed(daemon, run, how))


def holds(run, *where):
    """(where from, pattern, policy) of the policy that holds for a run, or None."""
    rows = [p for p in cairn_json("policy", "show", run, *where)["policies"] if p["holds"]]
    return (rows[0]["from"], rows[0]["pattern"], rows[0]["policy"]) if rows else None


class Policy(Case):
    def saved(self, runs=("demo/run",), daemon=None, **keys):
        daemon = daemon or self.daemon(**keys)
        for run in runs:
            self.run_attempt(daemon, *ALL, run=run, world=1)
        return daemon

    def test_one_policy_for_people_and_cron(self):
        daemon = self.saved(("demo/run", "demo/other", "lab/gpt"))
        where = daemon.online
        code, _, err = cairn("forget", "demo/run", *where)
        self.assertEqual(code, 2, err)
        self.assertIn("no policy is given and none holds", err)
        self.assertIsNone(holds("demo/run", *where))
        cairn("policy", "set", "demo/*", "--keep-last", 3, *where, check=0)
        self.assertEqual(steps(daemon), ALL)  # setting begins nothing
        cairn("policy", "set", "demo/run", "--keep-last", 2, "--keep-every-steps", 50, *where, check=0)
        self.assertEqual(holds("demo/run", *where), ("stored", "demo/run", "keep-last 2, keep-every-steps 50"))
        self.assertEqual(holds("demo/other", *where), ("stored", "demo/*", "keep-last 3"))
        self.assertIn("demo/other: the stored policy demo/* holds: keep-last 3\nset ",
                      cairn("policy", "show", "demo/other", *where, check=0)[1])
        self.assertIn("lab/gpt: no policy holds; everything is kept", cairn("policy", "show", "lab/gpt", *where, check=0)[1])
        plan = cairn_json("forget", "demo/run", "-n", *where)["runs"][0]
        self.assertEqual((plan["policy_from"], plan["pattern"], plan["policy"], plan["forgotten"]),
                         ("stored", "demo/run", "keep-last 2, keep-every-steps 50", 3))
        self.assertEqual(steps(daemon), ALL)
        text = cairn("forget", "--all", "-n", *where, check=0)[1]
        self.assertIn("demo/other: by the stored policy demo/*: keep-last 3\ndemo/other: 2 would forget, 3 kept", text)
        self.assertIn("lab/gpt: no policy holds, so nothing is forgotten", text)
        code, out, err = cairn("forget", "--all", "--quiet", *where)  # what cron runs: a mail is for failures
        self.assertEqual((code, out, err), (0, "", ""))
        self.assertEqual((steps(daemon), steps(daemon, "demo/other"), steps(daemon, "lab/gpt")), ([40, 50], ALL[2:], ALL))
        self.assertRegex(cairn("status", "demo/run", "10@1", *where)[1], r"stored policy demo/run: keep-last 2, keep-every")
        removed = cairn("policy", "remove", "demo/run", *where, check=0)[1]
        self.assertRegex(removed, r"^demo/run: the policy is removed\ndemo/run: the stored policy demo/\* holds: keep-last 3\nset ")
        self.assertNotIn("this cairnd", removed)
        self.assertEqual(holds("demo/run", *where), ("stored", "demo/*", "keep-last 3"))
        cairn("forget", "demo/other", "--keep-last", 1, "--keep-least", 1, *where, check=0)  # rules go before it
        self.assertEqual(steps(daemon, "demo/other"), [50])

    def test_a_wrong_one_changes_nothing(self):
        daemon = self.daemon()
        where = daemon.online
        cairn("policy", "set", "lab/*", "--keep-last", 3, *where, check=0)
        before = cairn_json("policy", "show", *where)
        for words, code, fragment in ((("set", "lab/*", "--keep-last", "x"), 2, 'keep-last "x"'),
                                      (("set", "lab/*", "--keep-lots", "1"), 2, "keep-lots"),
                                      (("set", "lab/*", "--keep-last", "0"), 2, "the policy for 'lab/*' is not stored: no policy"),
                                      (("set", "lab/*"), 2, "`cairn policy set` needs the rules of the policy"),
                                      (("set", "lab/*", "--keep-daily", "1", "--time-zone", "Mars/Olympus"), 2, "Mars/Olympus"),
                                      (("set", "lab/*", "--keep-best", "1"), 2, "needs a metric"),
                                      (("set", "lab", "--keep-last", "1"), 2, 'did you mean "lab/*"'),
                                      (("set", "l b/*", "--keep-last", "1"), 2, "cannot name runs"),
                                      (("set",), 2, "no runs are named"),
                                      (("remove", "lab/gpt"), 4, "no policy is stored for 'lab/gpt'"),
                                      (("remove", "lab/*", "--keep-last", "1"), 2, "no meaning"),
                                      (("show", "lab"), 2, "lab"),
                                      (("mend", "lab/*"), 2, "give set, show or remove")):
            done, _, err = cairn("policy", *words, *where)
            self.assertEqual((words, done), (words, code), err)
            self.assertIn(fragment, err)
        self.assertEqual(cairn_json("policy", "show", *where), before)
        code, _, err = cairn("policy", "set", "lab/*", "--keep-last", 1, *daemon.offline)
        self.assertEqual(code, 11, err)
        self.assertEqual(holds("lab/gpt", *daemon.offline), ("stored", "lab/*", "keep-last 3"))

    def test_it_outlives_the_daemon_and_goes_before_the_configuration(self):
        config = self.bed.path / "retention.conf"
        config.write_text('[retention]\ninterval = 200ms\nkeep-last = 2\n[retention "lab/*"]\nkeep-last = unlimited\n')
        daemon = self.saved(("demo/run", "lab/gpt", "vis/run"))
        cairn("policy", "set", "demo/*", "--keep-last", 4, *daemon.online, check=0)
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        cairn("policy", "set", "lab/*", "--keep-last", 3, "--keep-tag", "a\\,b", *store, check=0)
        daemon.start(config=config)
        where = daemon.online
        wait_until("all policies were applied", lambda: (steps(daemon), steps(daemon, "lab/gpt"), steps(daemon, "vis/run")) ==
                   (ALL[1:], ALL[2:], ALL[3:]))
        self.assertEqual(holds("vis/run", *where), ("configured", None, "keep-last 2"))
        self.assertEqual(holds("lab/gpt", *where), ("stored", "lab/*", "keep-last 3, keep-tag a\\,b"))
        shown = cairn("policy", "show", *where, check=0)[1]
        self.assertRegex(shown, r"(?m)^lab/\* +configured +keep-last unlimited +- +-$")
        self.assertRegex(shown, r"(?m)^\(all other runs\) +configured +keep-last 2 ")
        reasons = {e["reason"] for e in cairn_json("log", *where)["entries"] if e["action"] == "forget"}
        self.assertEqual(reasons, {"stored policy demo/*: keep-last 4", "stored policy lab/*: keep-last 3, keep-tag a\\,b",
                                   "keep-last 2"})
        cairn("policy", "set", "demo/run", "--keep-last", 3, *where, check=0)  # the running daemon takes it
        wait_until("the new policy was applied", lambda: steps(daemon) == ALL[2:])

    def test_a_policy_that_may_be_lost_is_not_followed_by_an_older_one(self):
        """The newest update of the store's record is damaged, and then all of it is gone: an older policy, or the
        configuration, would forget what the lost one keeps."""
        config = self.bed.path / "retention.conf"
        config.write_text("[retention]\ninterval = 50ms\nkeep-last = 2\n")
        daemon = self.saved(("demo/run",))
        where = daemon.online
        cairn("policy", "set", "*", "--keep-last", 3, *where, check=0)
        cairn("policy", "set", "demo/*", "--keep-last", 5, *where, check=0)
        self.assertEqual(daemon.stop(), 0)
        for place in ("store", "copy/store"):
            newest = max(int(path.name[:16], 16) for path in (daemon.store / place).iterdir())
            for path in (daemon.store / place).glob(f"{newest:016x}.*"):
                path.chmod(0o600)
                path.write_bytes(b"garbage")

        def nothing_is_forgotten(kept):
            code, _, err = cairn("forget", "demo/run", *where)
            self.assertEqual(code, 6, err)
            self.assertIn("nothing is forgotten in demo/run: changes of the stored policies may be lost", err)
            self.assertIn("`cairn policy set`", err)
            wait_until("the daemon was refused, too", lambda: daemon.log().count("nothing is forgotten in demo/run") > 1)
            self.assertEqual(steps(daemon), kept)
            code, out, _ = cairn("policy", "show", *where)
            self.assertEqual(code, 3, out)
            self.assertIn("cannot be used: DAMAGED: changes of the stored policies may be lost", out)
            self.assertTrue(all(e["run"] for e in cairn_json("log", *where)["entries"]))
            code, out, _ = cairn("policy", "show", "demo/run", *where)
            self.assertEqual(code, 6, out)
            self.assertIn("demo/run: the stored policies cannot be used", out)

        daemon.start(config=config)
        nothing_is_forgotten(ALL)
        cairn("policy", "set", "demo/*", "--keep-last", 4, *where, check=0)  # by which the others are confirmed
        self.assertEqual(holds("demo/run", *where), ("stored", "demo/*", "keep-last 4"))
        wait_until("it is followed", lambda: steps(daemon) == ALL[1:])
        self.assertEqual(daemon.stop(), 0)
        for place in ("store", "copy/store"):
            shutil.rmtree(daemon.store / place)
        cairn("salvage", "--yes", *daemon.offline, check=0)
        daemon.start(config=config)
        nothing_is_forgotten(ALL[1:])
        cairn("policy", "remove", "*", *where, check=0)  # nothing is stored, and that is right
        wait_until("the configuration is followed", lambda: steps(daemon) == ALL[3:])

    def test_the_log_says_who(self):
        daemon = self.saved()
        where = daemon.online
        cairn("policy", "set", "demo/*", "--keep-last", 3, *where, check=0)
        cairn("policy", "set", "lab/*", "--keep-last", 7, *where, check=0)
        cairn("policy", "set", "demo/*", "--keep-last", 4, *where, check=0)
        removed = cairn("policy", "remove", "demo/*", *where, check=0)[1]
        self.assertEqual(removed, "demo/*: the policy is removed\ndemo/run: no policy holds; everything is kept\n")
        mine = [e for e in cairn_json("log", "demo/run", *where)["entries"] if "policy" in e["action"]]
        self.assertEqual([(e["action"], e["run"], e["reason"]) for e in mine],
                         [("remove policy", "demo/*", None), ("set policy", "demo/*", "keep-last 4"),
                          ("set policy", "demo/*", "keep-last 3")])
        for entry in mine:
            self.assertRegex(entry["actor"], rf"^uid={os.getuid()} claimed=")
        self.assertEqual(sum("policy" in e["action"] for e in cairn_json("log", *where)["entries"]), 4)
        self.assertRegex(cairn("log", "demo/run", *where, check=0)[1], r"(?m)^\S+Z +set policy +demo/\* +uid=.* keep-last 4$")

    def test_the_doctor_looks_at_policies(self):
        config = self.bed.path / "retention.conf"
        config.write_text("[retention]\ninterval = 1h\n")
        daemon = self.daemon(config=config)

        def found():
            done = cairn_json("doctor", *daemon.online, check=None)
            return [(f["level"], f["text"]) for f in done["findings"] if f["check"] == "policies"]
        ((level, text),) = found()
        self.assertEqual((level, "there is no policy" in text), ("warning", True), text)
        cairn("policy", "set", "*", "--keep-last", 3, *daemon.online, check=0)
        self.assertEqual(found(), [("good", "1 retention policy, of the store and the configuration, which the daemon "
                                            "applies by itself")])


if __name__ == "__main__":
    main()
