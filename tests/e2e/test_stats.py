# SPDX-License-Identifier: Apache-2.0
"""What a run costs is counted from real saves and restores, and a quota refuses before bytes move."""

import csv
import io
import re

from harness import SOURCE, Case, Group, cairn, cairn_json, listed, main


class Stats(Case):
    def test_bytes_saves_and_restores(self):
        daemon = self.with_saves(10, 20)
        self.run_attempt(daemon, resumes="latest")
        self.run_attempt(daemon, 1, run="other/run")
        found = cairn_json("stats", *daemon.online)
        self.assertIsNone(found["since"])
        by_name = {row["project"]: row for row in found["rows"]}
        self.assertEqual(set(by_name), {"demo", "other"})
        demo = by_name["demo"]
        self.assertEqual((demo["saves"], demo["checkpoints"], demo["restores"]), (2, 2, 1))
        self.assertEqual((demo["saves_aborted"], demo["restores_failed"], demo["forgotten"]), (0, 0, 0))
        self.assertEqual(demo["written_bytes"], demo["stored_bytes"])
        self.assertGreater(demo["stored_bytes"], 0)
        self.assertGreaterEqual(demo["byte_hours"], 0)
        listed = cairn_json("ls", *daemon.online, "demo/run")["checkpoints"]
        self.assertEqual(demo["stored_bytes"], sum(one["stored_bytes"] for one in listed))
        self.assertEqual(demo["plain_bytes"], sum(one["plain_bytes"] for one in listed))
        self.assertEqual(demo["shared_bytes"], demo["plain_bytes"] - demo["stored_bytes"])

        _, text, _ = cairn("stats", *daemon.online, "--by", "run", "--csv", check=0)
        lines = list(csv.DictReader(io.StringIO(text)))
        self.assertEqual([line["name"] for line in lines], ["demo/run", "other/run"])
        self.assertEqual(int(lines[0]["stored_bytes"]), demo["stored_bytes"])
        one = cairn_json("stats", *daemon.online, "--project", "other", "--since", "1h")
        self.assertEqual([(row["project"], row["saves"]) for row in one["rows"]], [("other", 1)])
        self.assertIn("GIB-HOURS", cairn("stats", *daemon.online, check=0)[1])

        daemon.stop()
        offline = cairn_json("stats", *daemon.offline)["rows"]
        self.assertEqual({row["project"]: row["restores"] for row in offline}, {"demo": 1, "other": 0})

    def test_a_damaged_run_is_named_and_the_rest_counted(self):
        daemon = self.daemon()
        self.run_attempt(daemon, 1)
        self.run_attempt(daemon, 1, run="other/run")
        daemon.stop()
        for record in daemon.files("runs/other/run/record/*"):
            record.write_bytes(b"damaged")
        store = daemon.offline
        whole = cairn("stats", *store, "--json", check=0)[1]  # from the record's second place
        self.assertIn('"other"', whole)
        for record in daemon.files("copy/runs/other/run/record/*"):
            record.write_bytes(b"damaged")
        _, out, err = cairn("stats", *store, "--json", check=3)
        self.assertIn("other/run is counted as far as its record tells: DAMAGED: ", err)
        self.assertIn("0001.update", err)
        self.assertIn('"demo"', out)


class Advice(Case):
    def test_from_what_was_measured(self):
        daemon = self.daemon()
        server = daemon.online
        group = self.group(daemon, world=2)
        group.save(1)
        _, _, err = cairn("advise", "demo/run", *server, check=4)  # nothing was told yet
        self.assertIn("--blocked", err)
        for step in (2, 3, 4):
            group.save(step)
        group.end()
        self.run_attempt(daemon, resumes="latest")
        found = cairn_json("advise", "demo/run", *server)
        self.assertEqual((found["timed_saves"], found["failures"], found["ranks"]), (3, 1, 2))
        self.assertGreater(found["persist_s"], 0)
        self.assertGreaterEqual(found["interval_s"], found["staged_interval_s"])
        _, text, _ = cairn("advise", "demo/run", *server, "--blocked", "2", "--persist", "30", "--mtbf", "10",
                           check=0)
        self.assertEqual(len(text.splitlines()), 3, text)
        self.assertIn("so save every", text)
        # The MTBF is between what was expected and the moment that was seen: Young's sqrt(2 * 2 s * MTBF) is near.
        said = cairn_json("advise", "demo/run", *server, "--blocked", "2", "--persist", "3", "--mtbf", "100000",
                          "--overhead-max", "90")
        self.assertAlmostEqual(said["optimum_s"] / (2 * 2 * said["mtbf_s"]) ** 0.5, 1, delta=0.1)
        cairn("advise", "demo/none", *server, check=4)
        cairn("advise", "demo/run", *server, "--overhead-max", "100", check=2)

    def test_a_planned_restart_is_no_failure(self):
        """What is counted as a failure: a job that is killed, and not one whose rank 0 closes its run."""
        daemon = self.daemon()
        server = daemon.online
        counted = lambda: tuple(cairn_json("advise", "demo/run", *server, "--persist", "3")[what] for what in ("failures", "planned"))
        group = self.group(daemon)
        group.save(1)
        for step, ends in enumerate(("end", "kill", "end", "kill"), 2):
            getattr(group, ends)()
            group = self.group(daemon)
            group.restore()
            group.save(step)
        self.assertEqual(counted(), (2, 2))
        again = self.group(daemon)  # its predecessor has not ended
        again.restore()
        self.assertEqual(counted(), (3, 2))
        again.end()  # it has no term, so it says nothing of the others
        self.assertEqual(counted(), (3, 2))
        _, text, _ = cairn("advise", "demo/run", *server, "--persist", "3", check=0)
        self.assertRegex(text, r"3 seen in .* of training, 2 planned restarts")


class Plans(Case):
    """`cairn plan` needs no server: numbers by hand, and bad values that are refused by name."""

    def test_numbers_by_hand(self):
        found = cairn_json("plan", "--params", "70e9", "--ranks", 512, "--interval", "5m", "--price-per-tib", 20)
        for name, value in {"checkpoint_bytes": 980 * 10**9, "weights_bytes": 140 * 10**9, "optimizer_bytes": 840 * 10**9,
                            "rank_bytes": 1914062500, "arena_node_bytes": 8 * 1914062500, "server_memory_bytes": 576 << 20,
                            "not_forgotten": 12, "waiting": 72, "interval_s": 300, "mtbf_s": 50700 * 3600 / 512, "lost_s": 450}.items():
            self.assertEqual(found[name], value, name)
        self.assertAlmostEqual(found["disk_bytes"], (88 * 980e9 + 2**28) / 0.95, delta=2)
        self.assertAlmostEqual(found["price_per_month"], 20 * found["disk_bytes"] / 2**40, places=6)
        text = cairn("plan", "--params", "70e9", "--ranks", 512, "--interval", "5m", check=0)[1]
        self.assertRegex(text, r"checkpoint +912.70 GiB +70000000000 parameters, 14 bytes each")
        self.assertNotIn("price", text)
        self.assertIn("so save every", text)

    def test_the_table_of_the_deployment_guide(self):
        """Each row says what the command says."""
        guide = (SOURCE / "deploy/README.md").read_text()
        rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*\|$", guide, re.M) if row[2].isdigit()]
        self.assertGreaterEqual(len(rows), 4)
        for params, ranks, interval, *cells in rows:
            text = cairn("plan", "--params", params, "--ranks", ranks, "--interval", interval, check=0)[1]
            said = [re.search(rf"^{what}\s+(\S+ \S+)  ", text, re.M)[1] for what in ("checkpoint", "arena", "store writes", "disk")]
            said.append(re.search(r"^a save every .* a failure costs (\S+ \S+) of", text, re.M)[1])
            self.assertEqual(cells, said, (params, ranks, interval))

    def test_what_is_saved_of_a_parameter(self):
        of = lambda *words: cairn_json("plan", "--params", "1e9", *words)["checkpoint_bytes"] / 10**9
        self.assertEqual([of("--state", state) for state in ("mixed", "fp32", "bf16", "weights")], [14, 12, 6, 2])
        self.assertEqual(of("--bytes-per-param", "18.5"), 18.5)

    def test_a_configuration_and_a_slow_store(self):
        config = self.bed.path / "plan.conf"
        config.write_text("[gc]\nevery = 15m\nkeep-cycles = 4\npressure = 0\n[session]\nmax = 8\n[memory]\ncache = 128MiB\n")
        words = ("plan", "--params", "1e9", "--ranks", 16, "--interval", "30m", "--config", config)
        found = cairn_json(*words)
        self.assertEqual((found["waiting"], found["sessions_max"], found["server_memory_bytes"]), (2, 8, 640 << 20))
        self.assertEqual((found["not_forgotten"], found["disk_bytes"]), (2, 8 * 14 * 10**9 + 2**28))
        self.assertEqual(cairn_json(*words, "--wait", "3h")["waiting"], 6)
        self.assertIn("16 ranks need a larger [session] max than 8", cairn(*words, check=0)[1])
        slow = (*words, "--write-rate", "4MiB")
        self.assertIs(cairn_json(*slow)["durable_in_time"], False)
        self.assertIn("too slow: ", cairn(*slow, check=0)[1])
        config.write_text("[retention]\ninterval = 3h\n")
        self.assertEqual(cairn_json(*words)["not_forgotten"], 6)
        config.write_text("[gc]\nevery = 0s\n")
        self.assertIn("give --wait", cairn(*words, check=2)[2])
        cairn(*words, "--wait", "1h", check=0)
        config.write_text("[gc]\nevrey = 1s\n")
        self.assertIn("plan.conf:2", cairn(*words, check=2)[2])

    def test_bad_values(self):
        good = {"--params": "1e9"}
        for name, *values in (("--params", "0", "-1", "nan", "inf", "1e999", "1e300", "70B", ""), ("--ranks", "0", "-1", "65537", "8x"),
                              ("--interval", "0", "-5m", "5x", "999ms"), ("--keep", "0", "99999999999999999999"),
                              ("--stored-ratio", "0", "1.1"), ("--bytes-per-param", "0", "-2"), ("--price-per-tib", "-1", "free"),
                              ("--write-rate", "0", "1", "2GB/s"), ("--mtbf", "-1"), ("--overhead-max", "0", "100"), ("--state", "fp8")):
            for value in values:
                words = [f"{option}={said}" for option, said in {**good, name: value}.items()]
                self.assertIn(name, cairn("plan", *words, check=2)[2], (name, value))
        self.assertIn("1 EiB", cairn("plan", "--params", "1e12", "--keep", "999999999999", check=2)[2])
        self.assertIn("--params", cairn("plan", check=2)[2])


class Quotas(Case):
    def limited(self, text):
        config = self.bed.path / "quota.conf"
        config.write_text(f"[quota]\n{text}\n")
        return config

    def refused(self, group, step):
        for ended in group.finish_any(group.try_all("save", step, 60000)):
            self.assert_error((ended["error"], ended["text"]), "QUOTA", "demo", "quota", "cairn forget")

    def test_the_save_that_is_too_much_is_refused_on_every_rank(self):
        daemon, group = self.saving(1, 2, config=self.limited("demo = 1000TiB, 2 checkpoints"))
        before = sum(path.stat().st_size for path in daemon.files("**/objects/**/*"))
        self.refused(group, 3)
        after = sum(path.stat().st_size for path in daemon.files("**/objects/**/*"))
        self.assertEqual(before, after)
        self.run_attempt(daemon, 1, run="free/run", world=1)  # no quota of its own, no *
        group.end()
        self.assertEqual([row["quota_checkpoints"] for row in
                          cairn_json("stats", *daemon.online)["rows"]
                          if row["project"] == "demo"], [2])


    def test_what_the_refusal_advises_makes_room(self):
        daemon, group = self.saving(1, 2, 3, config=self.limited("demo = 1000TiB, 3 checkpoints"))
        self.refused(group, 4)
        cairn("forget", "demo/run", "1", *daemon.online, check=0)
        group.save(5)
        self.assertEqual(sorted(step for step, _ in listed(daemon)), [2, 3, 5])
        group.end()

    def test_a_save_that_alone_would_go_over_is_refused(self):
        daemon = self.daemon(config=self.limited("demo = 64KiB"))
        self.run_attempt(daemon, 1, rows=64)  # 2 x 4 KiB and 200 bytes
        large = Group(self.bed, daemon.url("demo/large"), 2, rows=1024)  # 2 x 64 KiB: no base to refer to
        self.refused(large, 1)
        self.assertEqual(daemon.files("runs/demo/large/objects/**/*"), [])
        large.end()
        self.run_attempt(daemon, 2, resumes="latest", rows=64)  # what is left is more than it takes

    def test_a_save_with_a_base_is_not_taken_at_its_size(self):
        daemon = self.daemon(config=self.limited("demo = 48KiB"))
        group = self.group(daemon, rows=256)  # 2 x 16 KiB
        group.save(1)
        group.save(2)  # nothing has changed: with its size it would not fit
        self.assertEqual(sorted(step for step, _ in listed(daemon)), [1, 2])
        group.end()


if __name__ == "__main__":
    main()
