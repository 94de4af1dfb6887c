# SPDX-License-Identifier: Apache-2.0
"""Somebody who wants to lose data cannot: forget, undelete, pins, gc, kills and new openings in orders that nobody
planned leave everything that must be there.

A model knows what every checkpoint holds. After each round every checkpoint that must be there is listed, what is listed is
restored by a reader that holds everything, byte for byte, and a verify finds no damage (I1, I4, I6). What was forgotten
may come back or be gone, and nothing else. Some 30 s; with CAIRN_FULL=1 longer stories and a hundred kills."""

import subprocess
import threading

from harness import BIN, FULL, Case, Group, Rank, add_whole_state, cairn, cairn_json, flip, listed, main, rng
from harness import verified, wait_until

ROWS = 512  # 32 KiB in 8 chunks, of each tensor
PARTS = 8   # of a tensor that are changed by themselves
CARE = {"gc_every": "10ms", "gc_keep_cycles": "1", "scrub_every": "0s", "log_level": "info"}  # each `cairn gc` begins a cycle


class Story:
    """A run, its trainer, and what each checkpoint must hold."""

    def __init__(self, case, daemon, random, world=2):
        self.case, self.daemon, self.random, self.world = case, daemon, random, world
        self.seeds = [[1] * PARTS, [2] * PARTS]
        self.holds = {}        # (step, term) -> seeds
        self.kept = set()      # must be listed
        self.forgotten = set() # may come back until gc has taken it
        self.step = 0
        self.group = None
        self.begin()

    def begin(self):
        """A new attempt from the newest."""
        if self.group:
            self.group.kill()
        self.group = Group(self.case.bed, self.daemon.url(), self.world, rows=ROWS)
        answers = self.group.finish_any(self.group.all("restore", "latest"))
        if self.kept:
            self.case.assertTrue(all(answer["ok"] for answer in answers), answers)
            key = (answers[0]["step"], answers[0]["term"])
            self.seeds = [list(seeds) for seeds in self.holds[key]]

    def paint(self, word="paint", who=None, seeds=None):
        for name, of in zip(("model.w", "optim.m"), seeds or self.seeds):
            for rank in who or self.group.ranks:
                rank.do(word, name, "-", ",".join(map(str, of)))

    def change(self):
        """A few parts change, the rest is shared with the base."""
        for seeds in self.seeds:
            for _ in range(self.random.randrange(1, 3)):
                seeds[self.random.randrange(PARTS)] = self.random.randrange(1, 2**31)
        self.paint()
        self.step += 1

    def committed(self, term, step=None):
        key = (step or self.step, term)
        self.holds[key] = [list(seeds) for seeds in self.seeds]
        self.kept.add(key)

    def save(self):
        self.change()
        self.committed(self.group.save(self.step))

    def at(self):
        return self.daemon.online

    def forget(self, *words, codes=(0,)):
        """What is gone afterwards is what it says."""
        code, out, err = cairn("forget", "demo/run", *words, *self.at())
        self.case.assertIn(code, codes, out + err)
        now = set(listed(self.daemon, how="server"))
        self.forgotten |= self.kept - now
        self.kept &= now
        self.case.assertTrue(self.kept, "nothing is left")
        return out + err

    def undelete(self, *words):
        cairn("undelete", "demo/run", *words, *self.at())
        back = set(listed(self.daemon, how="server")) - self.kept
        self.case.assertLessEqual(back, self.forgotten)
        self.kept |= back
        self.forgotten -= back

    def gc(self, *words):
        return cairn_json("gc", *words, *self.at())["gc"]

    def check(self, how="server"):
        there = set(listed(self.daemon, how=how))
        self.case.assertEqual(self.kept - there, set(), "lost")
        self.case.assertLessEqual(there, self.kept | self.forgotten)
        self.case.assertEqual(verified(self.daemon, how)["damaged"], 0)
        if how == "server":
            self.compare(there)

    def compare(self, keys):
        reader = Rank(self.case.bed)
        add_whole_state(reader, self.world, ROWS)
        reader.do("open", self.daemon.url(), 0, 1, "-", "viewer")
        reader.do("set")
        for step, term in sorted(keys):
            reader.do("fill", 99)
            reader.do("wait", reader.do("restore", step, term, 0)["op"], 20000)
            self.paint("holds", [reader], self.holds[(step, term)])
        reader.end()


class Busy:
    """A function again and again, beside what happens in the block."""

    def __init__(self, function):
        self.over, self.error = threading.Event(), None
        self.thread = threading.Thread(target=self.loop, args=(function,))

    def loop(self, function):
        try:
            while not self.over.is_set():
                function()
        except BaseException as error:  # the test's own thread raises it
            self.error = error

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, kind, *_):
        self.over.set()
        self.thread.join()
        if self.error and not kind:
            raise self.error


class Lose(Case):
    def story(self, world=2, **keys):
        return Story(self, self.daemon(**{**CARE, **keys}), rng(), world)

    def chain(self, length, **keys):
        story = self.story(**keys)
        for number in range(length):
            story.save()
            story.forget("--keep-last", 2)
            if FULL or number % 5 == 4:  # asking costs half a second
                story.gc()
                story.check()
        story.gc()
        story.gc()
        story.check()
        newest = {story.step - 1, story.step}
        self.assertLessEqual(newest, {step for step, _ in story.kept})
        self.assertLessEqual(len(story.kept - {(step, 1) for step in newest}), 1)  # of another set that shares nothing
        stored = {path.parent.name for path in story.daemon.files("runs/demo/run/checkpoints/*/part*")}
        self.assertLessEqual(len(stored), 4, "what was reclaimed is still there")
        story.group.kill()
        self.assertEqual(story.daemon.stop(), 0)
        story.check("store")

    def test_a_chain_of_which_two_are_kept(self):
        self.chain(30 if FULL else 15)

    def test_sets_end_with_a_full_one(self):
        story = self.story(save_full_every="4")
        for number in range(12):
            story.save()
            story.forget("--keep-last", 1, "--keep-least", 1)
            if FULL or number % 4 == 3:
                story.gc()
        story.check()

    def test_the_base_of_an_open_save(self):
        story = self.story()
        for _ in range(3):
            story.save()
        story.change()
        op = story.group[0].do("save", story.step, 60000)["op"]
        wait_until("it is open", lambda: f"{story.step - 1}@1 is the base of a save that is open" in
                   cairn("forget", "demo/run", f"{story.step - 1}@1", "--dry-run", *story.at())[2]
                   or "newest" in cairn("forget", "demo/run", f"{story.step - 1}@1", *story.at())[2])
        story.forget("--keep-last", 1, "--keep-least", 1)
        for _ in range(2):
            story.gc()
        other = story.group[1].do("save", story.step, 60000)["op"]
        for rank, of in zip(story.group.ranks, (op, other)):
            rank.do("wait", of, 60000)
        story.committed(1)
        story.check()

    def test_a_step_that_is_opened_again_while_its_leftovers_go(self):
        story = self.story()
        story.save()
        for _ in range(6 if FULL else 1):
            story.change()
            story.group[0].do("save", story.step, 4000)  # it is open before that
            wait_until("it has ended", lambda: story.group[0].do("status", story.step, 1)["state"] == "aborted")
            story.gc()
            with Busy(story.gc):
                op = story.group[0].do("save", story.step, 60000)["op"]
                wait_until("it is open again", lambda: story.group[0].do("status", story.step, 1)["state"] == "open")
                ops = [op, story.group[1].do("save", story.step, 60000)["op"]]
                for rank, of in zip(story.group.ranks, ops):
                    rank.do("wait", of, 60000)
            story.committed(1)
            story.check()

    def test_a_trainer_dies_after_staged_while_gc_runs(self):
        story = self.story()
        for _ in range(6 if FULL else 1):
            story.save()
            story.change()
            with Busy(story.gc):
                story.group.all("save", story.step, 60000)
                story.group.kill()
                term = max(term for _, term in story.holds)
                story.holds[(story.step, term)] = [list(seeds) for seeds in story.seeds]
                story.forgotten.add((story.step, term))  # may be there or not
                story.begin()
                story.save()
            story.forget("--keep-last", 2, "--keep-superseded", "0s")
            story.gc()
            story.check()

    def test_undelete_races_with_reclaim(self):
        story = self.story()
        for _ in range(20 if FULL else 3):
            for _ in range(2):
                story.save()
            story.forget("--keep-last", 2)
            with Busy(story.gc):
                story.undelete()
            story.check()

    def test_readers_of_what_goes(self):
        story = self.story()
        for _ in range(6):
            story.save()
        outcomes = []
        keys = sorted(story.holds)

        def read():
            reader = Rank(self.bed)
            add_whole_state(reader, 2, ROWS)
            reader.do("open", story.daemon.url(), 0, 1, "-", "viewer")
            reader.do("set")
            for step, term in keys:
                answer = reader.ask("restore", step, term, 0)
                answer = reader.ask("wait", answer["op"], 60000) if answer["ok"] else answer
                outcomes.append(answer["ok"] or answer["error"])
                if answer["ok"]:
                    story.paint("holds", [reader], story.holds[(step, term)])
            reader.end()

        with Busy(read):
            for keep in (4, 2):
                story.forget("--keep-last", keep)
                for _ in range(2):
                    story.gc()
        self.assertIn(True, outcomes)
        self.assertLessEqual(set(outcomes), {True, "NOT_FOUND"})
        story.check()

    def test_a_damaged_newest_is_no_base_and_goes(self):
        story = self.story()
        for _ in range(3):
            story.save()
        flip(story.daemon.files("runs/demo/run/objects/1-3/*")[0], 0)  # of either rank: the seed decides which changed
        cairn("scrub", "--wait", *story.at(), check=6)
        story.forget("3@1")
        for _ in range(2):
            story.gc()
        self.assertNotIn((3, 1), story.kept)
        story.save()
        story.forget("--keep-last", 2)
        for _ in range(2):
            story.gc()
        story.check()

    def test_two_collectors_without_a_daemon(self):
        story = self.story()
        for _ in range(5):
            story.save()
        story.forget("--keep-last", 2)
        story.group.kill()
        story.daemon.kill()
        words = [BIN / "cairn", "gc", *story.daemon.offline, "--cycle", "--keep-cycles", "1"]
        for _ in range(3):
            both = [self.bed.start(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(2)]
            said = [(process.communicate(timeout=60)[1].decode(), process.returncode) for process in both]
            self.assertIn(0, [code for _, code in said], said)
            self.assertTrue(all(code in (0, 11) for _, code in said), said)
        self.assertEqual(cairn("gc", *story.daemon.offline, "--keep-cycles", 0)[0], 2)
        self.assertEqual(cairn("gc", *story.daemon.offline, "--status")[0], 2)  # it would collect
        self.assertLessEqual(len(story.daemon.files("runs/demo/run/checkpoints/*/part-0*")), 2)
        story.check("store")
        story.daemon.start()
        story.check()

    def test_kills_at_any_moment(self):
        """Of the daemon, of gc and forget without one, and of the trainer."""
        story = self.story()
        random = story.random
        for number in range(100 if FULL else 4):
            for _ in range(random.randrange(1, 4)):
                story.save()
            kind = random.choice(["daemon", "offline gc", "offline forget"])
            story.forget("--keep-last", random.randrange(2, 4), "--keep-superseded", "0s")
            if random.random() < 0.3:
                story.undelete()
            if kind == "daemon":
                asked = self.bed.start([BIN / "cairn", "gc", *map(str, story.at())], stdout=subprocess.DEVNULL,
                                       stderr=subprocess.DEVNULL)
                threading.Event().wait(random.uniform(0, 0.06))
                story.daemon.kill()
                asked.wait(60)
            else:
                story.group.kill()
                story.daemon.kill()
                words = (["gc", "--cycle", "--keep-cycles", "1"] if kind == "offline gc"
                         else ["forget", "demo/run", "--keep-last", "2", "--keep-superseded", "0s"])
                victim = self.bed.start([BIN / "cairn", *words, *story.daemon.offline],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
                threading.Event().wait(random.uniform(0, 0.05))
                victim.kill()
                victim.wait()
                there = set(listed(story.daemon))
                gone = story.kept - there
                self.assertTrue(not gone or kind == "offline forget", f"round {number}: {gone} lost")
                self.assertLessEqual(gone, set(sorted(story.kept, key=lambda key: key[::-1])[:-2]))
                story.kept -= gone
                story.forgotten |= gone
            story.daemon.start()
            story.begin()
            if number % 3 == 0 or FULL:
                story.check()
        story.check()


if __name__ == "__main__":
    main()
