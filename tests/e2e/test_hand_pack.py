# SPDX-License-Identifier: Apache-2.0
"""The daemon compares, encodes and packs what was handed over, and every checkpoint restores to what was saved.

Goal: what the base has is not stored again, what is to be encoded is, and every checkpoint restores to what was saved; also
after the death of trainer or daemon. Method: the bytes of each step's objects in the store, under CAIRN_TRANSPORT=memfd."""

import time

from harness import Case, Group, Rank, add_state, main, wait_until
from test_hand_over import CHUNK, LARGE, arenas_of


def stored_of(daemon, step, term=1):
    """Bytes of the objects that the step has brought."""
    return sum(path.stat().st_size for path in daemon.files(f"**/objects/{term}-{step}/*") if path.is_file())


def add_flags(group):
    """A tensor whose bytes are zero or one: an eighth of it tells all."""
    group.all("tensor", "flags", "bool", f"{LARGE}x16", "replicated")


class Packed(Case):
    """References and encodings over the hand-over: the daemon compares, encodes and writes the part."""

    def dense(self, daemon, world):
        group = Group(self.bed, daemon.url(), world, state=None, options=("encoding", 3))
        for number, rank in enumerate(group.ranks):
            add_state(rank, number, world, LARGE)
        add_flags(group)
        group.all("set")
        return group

    def paint(self, group, *seeds, word="paint"):
        for name in ("model.w", "optim.m"):
            group.all(word, name, "-", ",".join(str(seed) for seed in seeds))

    def test_what_did_not_change_is_not_stored_again(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.group(daemon, 2, rows=LARGE)
        steps = {1: (1, 2, 3, 4), 2: (1, 2, 3, 4), 3: (1, 2, 9, 4), 4: (1, 2, 9, 5)}
        for step, seeds in steps.items():
            self.paint(group, *seeds)
            group.save(step)
        self.assertGreater(arenas_of(daemon.process), 0)
        full = stored_of(daemon, 1)
        self.assertEqual(stored_of(daemon, 2), 0)
        for step in (3, 4):
            self.assertTrue(full // 8 < stored_of(daemon, step) < full // 3, f"{stored_of(daemon, step)} of {full}")
        self.assert_whole(daemon, {(step, 1) for step in steps})
        for step, seeds in steps.items():
            group = self.group(daemon, 2, rows=LARGE)
            self.assertEqual(group.restore(step), (step, 1, False))
            self.paint(group, *seeds, word="holds")
            group.end()

    def test_dense_chunks_are_stored_encoded_and_restore(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.dense(daemon, 2)
        for step in (1, 2):
            group.advance(step)
        flags = LARGE * 16
        raw = 2 * LARGE * 16 * 4
        for step in (1, 2):
            self.assertLess(stored_of(daemon, step), raw + flags // 3)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        group.end()
        group = self.dense(daemon, 1)
        self.assert_restores(group, (2, 1, False), 2)
        group.end()

    def test_a_killed_trainer_loses_neither_references_nor_encodings(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.dense(daemon, 2)
        self.paint(group, 1, 2, 3, 4)
        group.save(1)
        self.paint(group, 1, 2, 3, 5)
        handed = lambda: daemon.log().count("rank handed over its state")
        before = handed()
        group.stage(2)
        wait_until("all is handed over", lambda: handed() - before == 2)
        group.kill()
        group = self.dense(daemon, 2)
        self.assertEqual(group.restore(), (2, 1, False))
        self.paint(group, 1, 2, 3, 5, word="holds")
        self.assertLess(stored_of(daemon, 2), stored_of(daemon, 1) // 3)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        self.assertEqual(group.end(), [0, 0])

    def test_a_killed_daemon_costs_no_reference(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.dense(daemon, 2)
        self.paint(group, 1, 2, 3, 4)
        group.save(1)
        full = stored_of(daemon, 1)
        for step in range(2, 5):
            self.paint(group, 1, 2, 3, 4 + step)
            answers = group.all("save", step, 60000)
            time.sleep(0.01 * step)
            daemon.restart()
            group.finish(answers, 60000)
            self.assertLess(stored_of(daemon, step), full // 2)
        self.assert_whole(daemon, {(step, 1) for step in range(1, 5)})
        self.assertEqual(group.restore(), (4, 1, False))
        self.paint(group, 1, 2, 3, 8, word="holds")

    def test_auto_encodes_for_a_slow_disk_and_not_before_it_is_measured(self):
        daemon = self.daemon(save_chunk=CHUNK, failpoints="dir.write=delay:60")  # four writes of at most 256 KiB at a time: 17 MiB/s
        group = Group(self.bed, daemon.url(), 1, state=None, options=("encoding", 1))
        add_flags(group)
        group.all("tensor", "noise", "float32", f"{LARGE}x16", "replicated")
        group.all("set")
        sizes = {}
        for step in (1, 2, 3):
            group.advance(step)
            sizes[step] = stored_of(daemon, step)
        flags, noise = LARGE * 16, LARGE * 16 * 4
        self.assertLessEqual(sizes[3], noise + flags // 2, f"{sizes} of {noise} + {flags}")
        self.assertGreaterEqual(sizes[3], noise, "noise was taken to be worth its encoding")
        self.assertGreater(sizes[1], noise + flags // 8, f"{sizes}: nothing was known of the disk yet")
        self.assert_whole(daemon, {(1, 1), (2, 1), (3, 1)})
        self.assert_restores(group, (3, 1, False), 3)

    def test_another_world_size_stores_what_other_ranks_had_once(self):
        """A rank refers to the part of its own number only; what that leaves of older objects may be stored once more."""
        daemon = self.daemon(save_chunk=CHUNK)
        step = 1
        for term, world in enumerate((2, 1), 1):
            group = self.group(daemon, world, rows=LARGE)
            if term > 1:
                self.assertEqual(group.restore(), (step - 1, term - 1, False))
            group.all("fill", 1)
            for more in range(3):
                group.save(step + more)
            stored = [stored_of(daemon, step + more, term) for more in range(3)]
            full = stored_of(daemon, 1)
            self.assertTrue(0 < stored[0] and (term == 1 or stored[0] < full), f"{stored} of {full}")
            self.assertEqual(stored[2], 0, f"{stored} of {full}")
            group.end()
            step += 3
        self.assert_whole(daemon, {(step, (step + 2) // 3) for step in range(1, 7)})

    def test_a_daemon_without_memory_for_it_gets_them_by_the_socket(self):
        daemon = self.daemon(save_chunk=CHUNK, memory_encode="1MiB")
        rank = Rank(self.bed, env={"CAIRN_TRANSPORT": "auto"})
        add_state(rank, 0, 1, LARGE)
        rank.do("open", daemon.url(), 0, 1, "-", "rank")
        rank.do("set")
        for step in (1, 2):
            rank.do("fill", 1)
            rank.do("wait", rank.do("save", step, 60000)["op"], 60000)
        self.assertEqual(stored_of(daemon, 2), 0)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        rank.end()
        dense = Rank(self.bed, env={"CAIRN_TRANSPORT": "memfd"})
        add_state(dense, 0, 1, LARGE)
        dense.do("option", "encoding", 3)
        dense.do("open", daemon.url(), 0, 1, "-", "rank")
        dense.do("set")
        dense.do("fill", 1)
        answer = dense.ask("save", 3, 60000)
        if answer["ok"]:
            answer = dense.ask("wait", answer["op"], 60000)
        self.assert_error((answer["error"], answer["text"]), "UNSUPPORTED", "CAIRN_TRANSPORT=memfd",
                          "or its [memory] encode is too small")
        dense.end()


if __name__ == "__main__":
    main()
