# SPDX-License-Identifier: Apache-2.0
"""Two daemons on one cluster agree on one truth (cases of test_ceph.py): a daemon is killed at every step of the commit
and the other goes on; both race to commit the same steps; ranks move from a dead daemon to the living one in time; lists
grow while ranks are apart."""

import time

from ceph_bed import OnCeph
from harness import FULL, Group

__all__ = ["Apart", "Killed", "Race"]

RACES, RACES_A_TERM = (1000, 50) if FULL else (50, 25)
FAILOVERS = 10 if FULL else 3
FAILOVER_S = 5.0 if FULL else 15.0  # otherwise the machine may be any, and do other things beside
SAVES_UNTIL_KILLED = 12
SAVES_UNTIL_SPREAD = 10  # the first agrees, eight more are calm

# Where a daemon dies: before and after each kind of operation of a save, at the nth of its kind.
POINTS = [f"{name}@{number}" for name, numbers in {
    "rados.enter": (1, 2), "rados.enter.done": (1, 2),
    "rados.create": (1,), "rados.write": (1, 2), "rados.write.done": (1,), "rados.seal": (1,), "rados.seal.done": (1,),
    "rados.publish": (1, 2, 3), "rados.publish.done": (1, 2, 3, 4),
    "rados.update": (1, 2, 3), "rados.update.done": (1, 2, 3)}.items() for number in numbers]
# What CI has time for: around the entry that is the commit, and one of each kind.
POINTS_CI = ["rados.seal.done@1", "rados.publish.done@4", "rados.update.done@1", "rados.update@2", "rados.update.done@2"]


class Killed(OnCeph):
    def save_until_dead(self, doomed, other, step):
        """Saves through both until the one is dead; every save must succeed. The checkpoints."""
        made = set()
        for _ in range(SAVES_UNTIL_KILLED):  # ranks choose a daemon: perhaps both the other one
            group = Group(self.bed, self.url(doomed, other), 2)
            if step > 1:
                group.restore()
            step += 1
            group.all("fill", step)
            results = group.finish(group.all("save", step, 60000), 60000)
            made.add((step, results[0]["term"]))
            group.end()
            if doomed.process.poll() is not None:
                return step, made
        self.fail("the daemon came to no end")

    def test_at_every_step_of_the_commit(self):
        other = self.daemon("other")
        step, committed = 1, set()
        for point in POINTS if FULL else POINTS_CI:
            with self.subTest(point=point):
                doomed = self.daemon("doomed", failpoints=point.replace("@", "=kill@"))
                step, made = self.save_until_dead(doomed, other, step)
                committed |= made
                reader = Group(self.bed, self.url(other), 2)
                found = reader.restore()
                self.assertEqual(found[:2], max(committed, key=lambda entry: (entry[1], entry[0])))
                reader.all("check", step)
                reader.end()
                self.assert_good(committed)

    def test_ranks_move_in_time(self):
        daemons = list(self.two())
        group = Group(self.bed, self.url(*daemons), 2)
        ports = [daemon.port() for daemon in daemons]
        group.advance(1)
        worst = 0.0
        for number in range(FAILOVERS):
            step, dying = number + 2, daemons[number % 2]
            group.all("fill", step)
            answers = group.all("save", step, 30000)
            dying.kill()
            killed = time.monotonic()
            group.finish(answers, 30000)
            worst = max(worst, time.monotonic() - killed)
            dying.start(listen_tcp=f"127.0.0.1:{ports[number % 2]}")
        print(f"from the death of a daemon to a durable save through the other: at most {worst:.2f} s", flush=True)
        self.assertLess(worst, FAILOVER_S)
        self.assert_good({(step, 1) for step in range(1, FAILOVERS + 2)})


class Race(OnCeph):
    def test_two_daemons_commit_the_same_steps(self):
        """Each rank's seal goes through its own daemon, and both daemons see the last one: one commit each. The daemon of
        rank 0 is mostly the faster one, so they change places."""
        daemons = self.two()
        committed, begun = [], time.monotonic()
        for term in range(1, RACES // RACES_A_TERM + 1):
            group = Group(self.bed, [self.url(daemon) for daemon in (daemons if term % 2 else daemons[::-1])], 2)
            if committed:
                self.assertEqual(group.restore()[:2], committed[-1])
                group.all("check", committed[-1][0])
            for step in range(len(committed) + 1, len(committed) + RACES_A_TERM + 1):
                group.all("fill", step)
                results = group.finish(group.all("save", step, 60000))
                self.assertEqual({result["term"] for result in results}, {term})
                committed.append((step, term))
                # Each daemon for itself: this step is committed, and nothing beside it.
                self.assertEqual({answer["state"] for answer in group.all("status", step, term)}, {"committed"})
                if step % RACES_A_TERM == 0:
                    for answer in group.all("list"):
                        self.assertEqual([tuple(entry) for entry in answer["checkpoints"]], committed[::-1])
            group.end()
        won = [daemon.log().count("checkpoint committed") for daemon in daemons]
        print(f"{RACES} steps, {(time.monotonic() - begun) / RACES * 1000:.0f} ms each; won by each: {won}", flush=True)
        self.assertEqual(sum(won), RACES)  # nothing was committed twice
        self.assertGreater(min(won), 0)
        reader = Group(self.bed, self.url(*daemons), 2)
        self.assert_restores(reader, (*committed[-1], False), RACES)
        self.assert_good(committed)  # a list of exactly two pages, too

    def test_two_attempts_commit_the_same_steps(self):
        """Two attempts that saw the same newest term save the same step at once, through different daemons: one is
        granted the next term, the other is fenced, and nothing is committed twice."""
        a, b = self.two()
        committed = set()
        for step in range(1, (21 if FULL else 5)):
            groups = [Group(self.bed, self.url(daemon), 2) for daemon in (a, b)]
            for group in groups:
                if committed:
                    group.restore()
                group.all("fill", step)
            for group in groups:
                for rank in group.ranks:
                    rank.send("save", step, 60000)
            started = [[rank.reply() for rank in group.ranks] for group in groups]
            ended = [group.finish_any(answers) for group, answers in zip(groups, started)]
            won = [results for results in ended if all(result["ok"] for result in results)]
            self.assertEqual(len(won), 1, ended)
            for results in ended:
                self.assertEqual(len({result["ok"] for result in results}), 1, ended)  # of one mind
                for result in results:
                    if not result["ok"]:
                        # The other ranks may see the winner's term before they hear that rank 0 was fenced.
                        self.assertIn(result["error"], ("FENCED", "TOKEN_MISMATCH"), result["text"])
            committed.add((step, won[0][0]["term"]))
            self.assert_good(committed)
            for group in groups:
                group.end()


class Apart(OnCeph):
    def test_a_list_grows_on_one_rank(self):
        """Each rank is at a daemon of its own by then, and the other one copies without asking."""
        a, b = self.two()
        group = Group(self.bed, self.url(a, b), 2)
        for step in range(1, SAVES_UNTIL_SPREAD + 1):
            group.advance(step)
        step = SAVES_UNTIL_SPREAD + 1
        group[1].do("tensor", "late", "float32", "40x16", "replicated")
        group[1].do("set")
        group.all("fill", step)
        group.save(step, 60000)
        group[0].do("tensor", "late", "float32", "40x16", "replicated")
        group[0].do("set")
        group.all("fill", step + 1)
        self.assert_restores(group, (step, 1, False), step)
