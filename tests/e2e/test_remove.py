# SPDX-License-Identifier: Apache-2.0
"""A run is removed as a whole, by name or because nobody uses it: nothing that a job uses or that is pinned goes, a kill at
any moment leaves it whole or removed, it can be brought back until its space is reclaimed, its name can be used again, and
a job of before is told. By the server and without one."""

import os
import pty
import subprocess

from harness import BIN, Case, Failure, Group, cairn, cairn_json, main, rng, wait_until


STEPS = (10, 20, 30)


class Remove(Case):
    def runs(self, *where):
        return cairn_json("ls", *where)["runs"]

    def removed(self, daemon, *words, run="demo/run"):
        """Asks again while the server has not seen the end of the ranks' connections."""
        def ask():
            code, out, err = cairn("rm", run, *words, *daemon.online)
            return None if "connected" in err else (code, out, err)
        code, out, err = wait_until("the ranks are gone", ask)
        self.assertEqual(code, 0, err)
        return out

    def test_a_removed_run_is_gone_and_comes_back(self):
        daemon, group = self.saving(*STEPS)
        self.run_attempt(daemon, 1, run="demo/other")
        where = daemon.online
        code, _, err = cairn("rm", "demo/run", "--yes", *where)
        self.assertEqual(code, 12, err)
        self.assertRegex(err, r"DENIED: rank \d of a job of 2 is connected .* stop the job first")
        group.end()
        self.assertIn("would be removed, with 3 checkpoints", self.removed(daemon, "--dry-run"))
        code, _, err = cairn("rm", "demo/run", *where)
        self.assertEqual(code, 2, err)
        self.assertIn("stdin is no terminal", err)
        self.assertEqual(self.runs(*where), ["demo/other", "demo/run"])
        document = cairn_json("rm", "demo/run", "--yes", "--reason", "a bad idea", *where)
        self.assertEqual((document["removed"], document["forgotten"]), (True, 3))
        self.assertEqual(self.runs(*where), ["demo/other"])
        self.assertEqual(cairn("ls", "demo/run", *where)[0], 4)
        self.assertEqual(len(cairn_json("ls", "--forgotten", *where)["forgotten"]), 3)
        entry = next(e for e in cairn_json("log", *where)["entries"] if e["action"] == "remove")
        self.assertEqual((entry["run"], entry["reason"], entry["checkpoints"]), ("demo/run", "a bad idea", []))
        self.assertRegex(entry["actor"], rf"^uid={os.getuid()} claimed=")
        self.assertTrue(daemon.files("runs/demo/run/checkpoints/1-10/*"))
        cairn("undelete", "demo/run", "--all", *where, check=0)
        self.assertEqual(self.runs(*where), ["demo/other", "demo/run"])
        self.assert_whole(daemon, {(10, 1), (20, 1), (30, 1)}, how="server")
        again = Group(self.bed, daemon.url())
        self.assertEqual(again.restore(), (30, 1, False))
        again.end()
        self.removed(daemon, "--yes")
        self.assertRaisesRegex(Failure, "INVALID.*demo/run, which was removed.*open that one, which begins anew", Group, self.bed,
                               daemon.url("demo/Run"))
        cairn("gc", "--now", "demo/run", *where, check=0)
        self.assertEqual(daemon.files("runs/demo/run/checkpoints/*/*"), [])
        cairn("undelete", "demo/run", "--all", *where, check=0)
        self.assertEqual(self.runs(*where), ["demo/other"])
        self.assertEqual(cairn("undelete", "demo/run", "10@1", *where)[0], 3)

    def test_a_job_of_before_is_told_and_the_name_begins_anew(self):
        daemon, group = self.saving(*STEPS)
        daemon.kill()  # the ranks stay, and come back to a run that was removed meanwhile
        store = daemon.offline
        cairn("rm", "demo/run", "--yes", "--reason", "gone", *store, check=0)
        self.assertEqual(self.runs(*store), [])
        daemon.start()
        for result in group.finish_any(group.try_all("save", 40, 60000)):
            self.assertFalse(result["ok"])
            self.assert_error((result["error"], result["text"]), "FENCED", "the run was removed by", "cairn undelete")
        group.end()
        fresh = Group(self.bed, daemon.url())
        for result in fresh.finish_any(fresh.try_all("restore", "latest")):
            self.assertEqual(result.get("step", 0), 0, result)
        term = fresh.save(10)
        self.assertEqual(self.runs(*daemon.online), ["demo/run"])
        self.assert_whole(daemon, {(10, term)}, how="server")
        cairn("gc", "--now", *daemon.online, check=0)
        self.assertEqual(fresh.restore(), (10, term, False))
        self.assertGreater(term, 1)

    def test_what_is_pinned_stays(self):
        daemon = self.with_saves(*STEPS)
        where = daemon.online
        cairn("pin", "demo/run", "20", *where, check=0)
        def ask():
            code, _, err = cairn("rm", "demo/run", "-y", *where)
            return None if "connected" in err else (code, err)
        code, err = wait_until("the ranks are gone", ask)
        self.assertEqual(code, 12, err)
        self.assertIn("checkpoint 20@1 is pinned, so the run is not removed; `cairn unpin` it first", err)
        self.assert_whole(daemon, {(10, 1), (20, 1), (30, 1)}, how="server")
        self.assertIn("demo/none: the run does not exist", cairn("rm", "demo/none", "--yes", *where, check=4)[2])

    def test_at_a_terminal_the_name_has_to_be_typed(self):
        daemon = self.with_saves(*STEPS)
        self.removed(daemon, "--dry-run")
        for typed, code in (("demo/other", 2), ("demo/run", 0)):
            mine, theirs = pty.openpty()
            process = subprocess.Popen([str(BIN / "cairn"), "rm", "demo/run", *daemon.online], stdin=theirs,
                                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            os.write(mine, f"{typed}\n".encode())
            _, err = process.communicate(timeout=60)
            os.close(mine)
            os.close(theirs)
            self.assertIn("Type the name of the run to remove it", err.decode())
            self.assertEqual(process.returncode, code, err)
            self.assertEqual(self.runs(*daemon.online), [] if code == 0 else ["demo/run"])

    def test_a_kill_leaves_it_whole_or_removed(self):
        draw = rng()
        daemon = self.with_saves(*STEPS)
        for _ in range(6):
            where = daemon.online
            self.removed(daemon, "--dry-run")
            process = subprocess.Popen([str(BIN / "cairn"), "rm", "demo/run", "--yes", "--timeout", "5s", *where],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            try:
                process.wait(draw.random() * 0.4)
            except subprocess.TimeoutExpired:
                pass
            daemon.kill()
            process.wait(60)
            daemon.start()
            if self.runs(*where) == []:
                cairn("undelete", "demo/run", "--all", *where, check=0)
            self.assert_whole(daemon, {(10, 1), (20, 1), (30, 1)}, how="server")

    def test_an_idle_run_expires(self):
        daemon = self.with_saves(*STEPS, retention_interval=None)
        where = daemon.online
        self.removed(daemon, "--dry-run")
        _, out, _ = cairn("forget", "--run", "*", "--remove-idle", "1d", *where, check=0)
        self.assertEqual(self.runs(*where), ["demo/run"])
        self.assertEqual(daemon.stop(), 0)
        config = self.bed.path / "idle.conf"
        config.write_text("[retention]\ninterval = 1s\nremove-idle = 1s\n[gc]\nevery = 1s\nkeep-cycles = 2\n")
        store = daemon.offline
        code, out, err = cairn("forget", "demo/run", "--remove-idle", "1s", "--now", *store)
        self.assertEqual(code, 2, err)
        self.assertIn("--now with --remove-idle would take whole runs for good", err)
        document = cairn_json("forget", "demo/run", "--remove-idle", "1s", "--keep-last", "9", *store)["runs"][0]
        self.assertFalse(document["removed"])  # no daemon has counted that time
        self.assertEqual(self.runs(*store), ["demo/run"])
        daemon.start(config=config)
        wait_until("the idle run is removed", lambda: self.runs(*where) == [])
        entry = next(e for e in cairn_json("log", *where)["entries"] if e["action"] == "remove")
        self.assertEqual(entry["actor"], "cairnd")
        self.assertIn("remove-idle 1s", entry["reason"])

    def test_a_removed_run_is_told_as_removed(self):
        daemon = self.with_saves(10)
        where = daemon.online
        self.removed(daemon, "--yes")
        to = str(self.bed.path / "out")
        for words in (("restore", "demo/run", "latest", "--to", to), ("restore", "demo/run", "10", "--to", to),
                      ("show", "demo/run", "10"), ("pin", "demo/run", "10")):
            code, _, err = cairn(*words, *where)
            self.assertEqual(code, 4, (words, err))
            self.assertRegex(err, r"the run was removed by uid=\d+ .* at 20\d\d-.*`cairn undelete RUN --all`", words)
        self.assertEqual(cairn("wait", "demo/run", "--for", "100ms", *where)[0], 5)  # a new job may come
        for words in (("--yes",), ("--dry-run",)):
            self.assertRegex(cairn("rm", "demo/run", *words, *where, check=0)[1], "was removed already, by uid=")


if __name__ == "__main__":
    main()
