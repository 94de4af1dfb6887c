# SPDX-License-Identifier: Apache-2.0
"""A rank or a server that is not as it should be gives a named error with a remedy in the text, within a bounded time,
and the checkpoints that were there stay whole (I5, I7, I9)."""

import time

from harness import Case, Group, Rank, add_state, cairn, cairn_json, listed, main, token, verified, wait_until


class Unreachable(Case):
    def test_unreachable_server(self):
        rank = Rank(self.bed)
        started = time.monotonic()
        url = f"cairn+unix://{self.bed.sockets}/nobody?run=demo/run"
        self.assert_error(rank.refused("open", url, 0, 1, "-", "rank", 1000), "UNREACHABLE", "nobody")
        # A port that was free a moment ago: nobody listens.
        self.assert_error(rank.refused("open", "cairn://127.0.0.1:1/demo/run", 0, 1, "-", "rank", 1000),
                          "UNREACHABLE", "127.0.0.1:1")
        self.assertLess(time.monotonic() - started, 20)
        _, _, err = cairn("ls", "--server", "127.0.0.1:1", "--timeout", 1, check=5)
        self.assertIn("UNREACHABLE", err)
        self.assertIn("127.0.0.1:1", err)

    def test_a_refused_connection_is_told_at_once(self):
        started = time.monotonic()
        for server, cause in (("127.0.0.1:1", "Connection refused"), (f"unix:{self.bed.sockets}/nobody", "No such file")):
            for words in (("ls",), ("status",), ("restore", "demo/run", "--to", self.bed.path / "out")):
                _, _, err = cairn(*words, "--server", server, "--timeout", "60s", check=5)
                self.assertIn("UNREACHABLE", err)
                self.assertIn(cause, err)
                self.assertIn("check that cairnd is running there", err)
                self.assertNotIn("TLS", err)
        self.assertLess(time.monotonic() - started, 40)  # six times, and not 60 s each
        error, text = Rank(self.bed).refused("open", "cairn://127.0.0.1:1/demo/run", 0, 1, "-", "rank", 1000)
        self.assertEqual(error, "UNREACHABLE")
        self.assertIn("Connection refused", text)
        self.assertNotIn("TLS", text)

    def test_a_host_without_address(self):
        _, _, err = cairn("ls", "--server", "no-such-host.invalid:7421", "--timeout", 2, check=5)
        self.assertIn("no-such-host.invalid", err)

    def test_server_dies_in_a_save_and_stays_away(self):
        daemon, group = self.saving(1)
        daemon.kill()
        started = time.monotonic()
        answers = group.try_all("save", 2, 1500)
        results = [answer if not answer["ok"] else None for answer in answers]
        if not any(results):
            results = group.finish_any(answers, 15000)
        for result in results:
            self.assertIn(result["error"], ("TIMED_OUT", "UNREACHABLE", "CONNECTION_LOST", "OUTCOME_UNKNOWN"),
                          result["text"])
        self.assertLess(time.monotonic() - started, 30)
        group.kill()
        self.assert_whole(daemon, {(1, 1)})


class ReadOnly(Case):
    """A record whose last update may or may not be durable takes no other: every rank hears so at once."""

    def save_with_a_lost_update(self, number):
        daemon, group = self.saving(1, name=f"store{number}", save_rank_grace="10m")
        daemon.kill()
        daemon.start(failpoints=f"dir.record=error:OUTCOME_UNKNOWN@{number}")
        started = time.monotonic()
        answers = group.try_all("save", 2, 600000)
        results = group.finish_any(answers, 120000)
        self.assertLess(time.monotonic() - started, 100)  # and not the ten minutes of the save or of the grace
        for result in results:
            if not result["ok"]:  # a store that mends its record goes on instead
                self.assertIn(result["error"], ("READ_ONLY", "OUTCOME_UNKNOWN"), result["text"])
                self.assertIn("failed fsync", result["text"])
        group.kill()
        daemon.restart()
        term = self.group(daemon).save(3)
        self.assertLessEqual({(1, 1), (3, term)}, set(listed(daemon)))
        self.assertEqual(verified(daemon, "store")["damaged"], 0)

    def test_the_opening_is_lost(self):
        self.save_with_a_lost_update(2)  # the first is the store's own, at its start

    def test_a_seal_is_lost(self):
        self.save_with_a_lost_update(3)
        self.save_with_a_lost_update(4)

    def test_the_commit_is_lost(self):
        self.save_with_a_lost_update(5)


class Ranks(Case):
    """Ranks of one run that do not go together."""

    def test_two_ranks_with_the_same_number(self):
        daemon, group = self.saving(1)
        twin = Rank(self.bed)
        self.assert_error(twin.refused("open", daemon.url(), 0, 2, group.attempt), "DUPLICATE_RANK", "rank 0")
        group.save(2)  # the first one is not disturbed
        self.assert_whole(daemon, {(1, 1), (2, 1)})

    def test_a_dead_rank_is_replaced(self):
        daemon, group = self.saving()
        group[0].kill()
        # A group whose rank 0 is gone goes on with a new one, once the death has been noticed.
        group.ranks[0] = Rank(self.bed)
        add_state(group[0], 0, 2)

        def joined():
            return group[0].ask("open", daemon.url(), 0, 2, group.attempt)["ok"]

        wait_until("the new rank 0 may join", joined)
        group[0].do("set")
        group.save(1)
        self.assert_whole(daemon, {(1, 1)})

    def test_another_world_size(self):
        daemon, group = self.saving(1)
        odd = Rank(self.bed)
        answer = odd.ask("open", daemon.url(), 2, 3, group.attempt)
        if answer["ok"]:
            add_state(odd, 0, 1)
            odd.do("set")
            answer = odd.ask("save", 2, 30000)
            answer = odd.ask("wait", answer["op"], 60000) if answer["ok"] else answer
        self.assertFalse(answer["ok"])
        self.assert_error((answer["error"], answer["text"]), "WORLD_MISMATCH", "3", "2")
        self.assert_whole(daemon, {(1, 1)})

    def test_a_rank_that_never_comes(self):
        daemon, group = self.saving(1, world=3)
        started = time.monotonic()
        present = [group[0], group[2]]
        ops = [rank.do("save", 2, 5000)["op"] for rank in present]
        for rank, op in zip(present, ops):
            self.assert_error(rank.refused("wait", op, 60000), "MISSING_RANKS", "1")
        self.assertLess(time.monotonic() - started, 60)
        status, out, _ = cairn("status", "demo/run", "2@1", *daemon.online)
        self.assertIn("aborted", out)
        self.assertEqual(status, 0)
        group.save(3)  # and the next save is fine
        self.assert_whole(daemon, {(1, 1), (3, 1)})

    def test_a_rank_that_is_killed_in_a_save(self):
        daemon, group = self.saving(1, world=3, save_rank_grace="1s")
        started = time.monotonic()
        present = [group[0], group[2]]
        ops = [rank.do("save", 2, 600000)["op"] for rank in present]
        group[1].kill()
        for rank, op in zip(present, ops):
            self.assert_error(rank.refused("wait", op, 60000), "MISSING_RANKS", "rank 1 of 3", "has been gone for")
        self.assertLess(time.monotonic() - started, 60)  # and not the ten minutes of the save
        self.assert_whole(daemon, {(1, 1)})

    def test_rank_0_never_comes(self):
        daemon, group = self.saving(1)
        op = group[1].do("save", 2, 4000)["op"]
        error, text = group[1].refused("wait", op, 60000)
        self.assertIn(error, ("MISSING_RANKS", "TIMED_OUT"), text)
        self.assertIn("rank 0", text)
        self.assert_whole(daemon, {(1, 1)})

    def test_different_tensors(self):
        daemon, group = self.saving()
        # 16 cells, of which rank 0, who would write half, knows nothing: they go to who holds them.
        group[1].do("tensor", "only.here", "float32", "16384", "replicated")
        group[1].do("set")
        group.advance(1)
        self.assert_whole(daemon, {(1, 1)})
        names = {entry["name"] for entry in cairn_json("show", "demo/run", *daemon.offline)["entries"]}
        self.assertIn("only.here", names)

    def test_gap_in_the_boxes(self):
        daemon = self.daemon()
        ranks = Group(self.bed, daemon.url(), 2, state=None)
        ranks[0].do("tensor", "m", "float32", "32x16", "sharded", "-", "0,0", "16x16")
        ranks[1].do("tensor", "m", "float32", "32x16", "sharded", "-", "17,0", "15x16")
        ranks.all("set")
        for result in ranks.finish_any(ranks.all("save", 1, 60000), 60000):
            self.assert_error((result["error"], result["text"]), "COVERAGE", "m")
        self.assert_whole(daemon, set())


class Fencing(Case):
    def test_a_stalled_attempt_wakes_up(self):
        daemon, old = self.saving()
        old.advance(1)
        new = self.group(daemon)
        self.assertEqual(new.restore(), (1, 1, False))
        new.all("fill", 2)
        self.assertEqual(new.save(2), 2)
        # The old one wakes up, and would go on with the same step.
        old.all("fill", 3)
        answers = old.try_all("save", 2, 60000)
        for result in old.finish_any(answers, 60000):  # one may be refused at once, another when it is staged
            self.assertFalse(result["ok"])
            self.assert_error((result["error"], result["text"]), "FENCED", "term 2")
        new.all("fill", 4)
        self.assertEqual(new.save(3), 2)
        self.assert_whole(daemon, {(1, 1), (2, 2), (3, 2)})
        self.assert_restores(new, (2, 2, False), 2, 2)

    def test_an_open_save_of_the_old_attempt_is_ended(self):
        daemon, old = self.saving(1)
        op = old[0].do("save", 2, 60000)["op"]  # rank 1 never comes: it stays open
        new = self.group(daemon)
        new.restore()
        self.assertEqual(new.save(2), 2)
        self.assert_error(old[0].refused("wait", op, 60000), "FENCED")
        self.assert_whole(daemon, {(1, 1), (2, 2)})

    def test_an_attempt_that_never_restored(self):
        daemon = self.with_saves(1)
        second = self.group(daemon)
        results = second.finish(second.all("save", 1, 60000))
        self.assertTrue(results[0]["new_lineage"])  # rank 0 made the opening
        self.assertIn("new lineage", daemon.log())
        self.assertEqual({result["term"] for result in results}, {2})
        self.assert_whole(daemon, {(1, 1), (1, 2)})

    def test_a_killed_rank_with_a_living_child(self):
        daemon, group = self.saving(1, session_heartbeat="250ms", session_dead_after="1s")
        group[1].do("fork")
        group[1].kill()
        # Its place is free although its child holds whatever fork() gave it.
        replacement = Rank(self.bed)
        add_state(replacement, 1, 2)
        wait_until("the rank is declared dead",
                   lambda: replacement.ask("open", daemon.url(), 1, 2, group.attempt)["ok"])
        replacement.do("set")
        group.ranks[1] = replacement
        group.save(2)
        self.assert_whole(daemon, {(1, 1), (2, 1)})


class Misuse(Case):
    def test_busy_while_borrowed(self):
        daemon, group = self.saving(1)
        # Rank 1 does not come: rank 0's restore borrows its tensors until the deadline.
        op = group[0].do("restore", "latest", 0, -1, 1, 2000)["op"]
        self.assert_error(group[0].refused("set"), "BUSY")
        self.assert_error(group[0].refused("save", 2, 1000), "BUSY")
        error, text = group[0].refused("wait", op, 60000)
        self.assertIn(error, ("MISSING_RANKS", "TIMED_OUT"), text)
        self.assertIn("1", text)
        group[0].do("set")
        self.assert_whole(daemon, {(1, 1)})

    def test_shape_and_dtype_and_name(self):
        daemon = self.with_saves(1)
        for wish, error, fragments in (
                (("model.w", "float32", "33x16", "replicated"), "SHAPE_MISMATCH", ("model.w", "33")),
                (("model.w", "float16", "32x16", "replicated"), "DTYPE_MISMATCH", ("model.w", "float16")),
                (("model.x", "float32", "32x16", "replicated"), "MISSING_TENSOR", ("model.x",))):
            group = Group(self.bed, daemon.url(), 2, state=None)
            group.all("tensor", *wish)
            group.all("set")
            for result in group.finish_any(group.all("restore", "latest"), 15000):
                self.assertFalse(result["ok"])
                self.assert_error((result["error"], result["text"]), error, *fragments)
            group.kill()
        self.assert_whole(daemon, {(1, 1)})

    def test_a_missing_tensor_may_be_allowed(self):
        daemon = self.with_saves(1)
        group = Group(self.bed, daemon.url(), 2, state=None)
        group.all("tensor", "new.w", "float32", "4", "replicated")
        group.all("tensor", "model.w", "float32", "32x16", "replicated")
        group.all("set")
        for result in group.finish(group.all("restore", "latest", 0, -1, 0)):
            self.assertEqual(result["missing"], ["new.w"])

    def test_unknown_step(self):
        daemon, group = self.saving(1)
        for result in group.finish_any(group.all("restore", 77)):
            self.assert_error((result["error"], result["text"]), "NOT_FOUND", "77")
        _, _, err = cairn("restore", "demo/run", 77, "--to", self.bed.path / "out", "--server",
                          f"unix:{daemon.socket}", check=4)
        self.assertIn("77", err)
        self.assertFalse((self.bed.path / "out").exists())
        self.assertFalse((self.bed.path / "out.partial").exists())

    def test_bad_arguments(self):
        daemon = self.daemon()
        rank = Rank(self.bed)
        self.assert_error(rank.refused("open", "http://x/y", 0, 1, "-"), "INVALID", "http://x/y")
        self.assert_error(rank.refused("open", daemon.url("no-slash"), 0, 1, "-"), "INVALID", "no-slash")
        self.assert_error(rank.refused("open", daemon.url(), 2, 2, token()), "INVALID", "rank")
        self.assert_error(rank.refused("open", daemon.url(), 0, 2, "xyz"), "INVALID", "32 hex digits")
        self.assert_error(rank.refused("open", daemon.url(), 0, 2, "-"), "INVALID", "CAIRN_ATTEMPT")


if __name__ == "__main__":
    main()
