# SPDX-License-Identifier: Apache-2.0
"""`cairn log` tells who did what to the checkpoints of a run, and when, also of those that are gone. `cairn ls --forgotten`
lists what can be brought back in all runs, and the time that is left. Both work with a server and without one."""

import os
import re

from harness import Case, cairn, cairn_json, main, wait_until


class Log(Case):
    def test_the_log_of_a_run_tells_who_did_what_also_of_what_is_gone(self):
        daemon, group = self.saving(10, 20, 30)
        where = daemon.online
        cairn("forget", "demo/run", "10", "--reason", "a mistake", *where, check=0)
        cairn("pin", "demo/run", "20", "--reason", "figure 3", *where, check=0)
        cairn("unpin", "demo/run", "20", *where, check=0)
        cairn("undelete", "demo/run", "10", *where, check=0)
        cairn("forget", "demo/run", "10", "--now", *where, check=0)
        self.assertEqual(group.restore(), (30, 1, False))
        group.end()
        entries = cairn_json("log", "demo/run", *where)["entries"]
        actions = sorted(e["action"] for e in entries)
        self.assertEqual(actions, sorted(["commit"] * 3 + ["forget", "pin", "unpin", "undelete", "forget", "reclaim", "restore"]))
        chain = sorted((e["sequence"], e["action"]) for e in entries if e["sequence"])
        self.assertEqual([seq for seq, _ in chain], list(range(1, 10)))
        self.assertEqual([what for _, what in chain][3:], ["forget", "pin", "unpin", "undelete", "forget", "reclaim"])
        self.assertEqual([e["at"] for e in entries], sorted((e["at"] for e in entries), reverse=True))
        me = rf"^uid={os.getuid()}( |$)"
        for entry in entries:
            self.assertRegex(entry["actor"], me, entry)
        forget = next(e for e in entries if e["reason"] == "a mistake")
        self.assertEqual((forget["action"], forget["checkpoints"]), ("forget", [{"step": 10, "term": 1}]))
        (restore,) = (e for e in entries if e["action"] == "restore")
        self.assertEqual((restore["checkpoints"], restore["asked_step"], restore["error"], restore["world_size"]),
                         ([{"step": 30, "term": 1}], 30, None, 2))
        _, out, _ = cairn("log", "demo/run", *where, check=0)
        self.assertRegex(out, r"(?m)^TIME +WHAT +CHECKPOINT +WHO +DETAIL$")
        self.assertRegex(out, r"(?m)^\S+Z +pin +20@1 +uid=.*figure 3$")
        self.assertRegex(out, r"(?m)^\S+Z +restore +30@1 +uid=.*on 2 ranks$")
        self.assertRegex(out, r"(?m)^\S+Z +commit +10@1 +uid=.* of 2 ranks$")
        self.assertEqual(len(cairn_json("log", "demo/run", "--limit", 2, *where)["entries"]), 2)
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        self.assertEqual(cairn_json("log", "demo/run", "--limit", 0, *store)["entries"], entries)
        self.assertEqual(cairn("log", "demo/none", *store)[0], 4)

    def test_a_failed_restore_is_told_with_its_reason(self):
        daemon, group = self.saving(10)
        for file in daemon.files("runs/demo/run/objects/1-10/*"):
            file.chmod(0o600)
            data = bytearray(file.read_bytes())
            data[:] = bytes(byte ^ 0x55 for byte in data)
            file.write_bytes(data)
        self.assertFalse(all(r["ok"] for r in group.finish_any(group.try_all("restore", "latest"))))
        (entry,) = (e for e in cairn_json("log", "demo/run", *daemon.online)["entries"] if e["action"] == "restore")
        self.assertIn(entry["error"], ("DAMAGED", "FORMAT", "DIGEST_MISMATCH"))
        self.assertEqual(entry["asked_step"], 10)

    def test_a_trace_is_kept(self):
        """Of rank 0's environment: in the log lines of its saves, in the manifest and the list. A wrong one is ignored."""
        trace = "4bf92f3577b34da6a3ce929d0e0e4736"
        self.addCleanup(os.environ.pop, "TRACEPARENT")
        os.environ["TRACEPARENT"] = f"00-{trace}-00f067aa0ba902b7-01"
        daemon, group = self.saving(10)
        group[0].do("save", 20, 3000)  # rank 1 does not come
        wait_until("the save fails", lambda: "save aborted" in daemon.log())
        for line in ("save opened", "checkpoint committed", "save aborted"):
            self.assertRegex(daemon.log(), rf"(?m)^.*: {line} .*trace={trace}$")
        group.end()
        os.environ["TRACEPARENT"] = f"00-{trace.upper()}-00f067aa0ba902b7-01"
        self.run_attempt(daemon, 30, run="demo/none")
        self.assertEqual(daemon.log().count(trace), 4)
        for run, tags in (("demo/run", ["e2e", f"trace:{trace}"]), ("demo/none", ["e2e"])):
            self.assertEqual(cairn_json("show", run, *daemon.online)["manifest"]["tags"], tags)
            (entry,) = cairn_json("ls", run, *daemon.online)["checkpoints"]
            self.assertEqual(entry["tags"], tags)

    def test_across_runs(self):
        daemon = self.with_saves(10, 20, 30, run="demo/a")
        self.run_attempt(daemon, 1, 2, 3, run="demo/b")
        where = daemon.online
        cairn("forget", "demo/a", "10", *where, check=0)
        cairn("forget", "demo/b", "1", "--reason", "old", *where, check=0)
        runs = {e["run"] for e in cairn_json("log", *where)["entries"]}
        self.assertEqual(runs, {"demo/a", "demo/b"})
        listed = cairn_json("ls", "--forgotten", *where)["forgotten"]
        self.assertEqual([(e["run"], e["step"], e["term"]) for e in listed], [("demo/a", 10, 1), ("demo/b", 1, 1)])
        for entry in listed:
            self.assertGreater(entry["until"], entry["forgotten_at"])
        self.assertIn("old", listed[1]["text"])
        _, out, _ = cairn("ls", "--forgotten", *where, check=0)
        self.assertRegex(out, r"(?m)^demo/b +1@1 +\S+ \S+ +\S+Z +\d+h? ?\d*.*by uid=.*: old$")
        self.assertEqual(len(cairn_json("ls", "demo/a", "--forgotten", *where)["forgotten"]), 1)
        cairn("gc", "--now", *where, check=0)
        self.assertEqual(cairn_json("ls", "--forgotten", *where)["forgotten"], [])
        self.assertIn("no forgotten checkpoint", cairn("ls", "--forgotten", *where, check=0)[2])
        cairn("forget", "demo/a", "20", "--keep-least", 1, *where, check=0)
        self.assertEqual(daemon.stop(), 0)
        store = daemon.offline
        (entry,) = cairn_json("ls", "--forgotten", *store)["forgotten"]
        self.assertEqual((entry["step"], entry["until"]), (20, None))
        self.assertTrue(re.search(r"until garbage collection runs", cairn("ls", "--forgotten", *store, check=0)[1]))


if __name__ == "__main__":
    main()
