# SPDX-License-Identifier: Apache-2.0
"""An arena that is handed to a daemon of the same host is saved without its bytes passing through the socket.

Goal: what is restored is what was saved; a trainer that dies after "handed over" loses nothing, one that dies before leaves
nothing; a daemon that dies in the middle costs no save; nothing is left behind. Method: CAIRN_TRANSPORT=memfd, under which a
save that would need the socket fails."""

import os
import time
from pathlib import Path

from harness import Case, Group, Rank, add_state, listed, main, wait_until

os.environ["CAIRN_TRANSPORT"] = "memfd"
LARGE = 1 << 18  # rows: 16 MiB replicated and as much sharded
CHUNK = "256KiB"


def arenas_of(process):
    """Mappings of arenas in the process."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return sum("memfd:cairn-arena" in line for line in maps.splitlines())


def fds_of(process):
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def settled(count):
    """What count() says while nothing is in flight: a duty that is renewed opens a file for a moment."""
    seen = []
    while len(seen) < 20 or any(one != seen[-1] for one in seen[-20:]):
        seen.append(count())
        time.sleep(0.05)
    return seen[-1]


class HandOver(Case):
    def large(self, daemon, world):
        return self.group(daemon, world, rows=LARGE)

    def test_what_is_restored_is_what_was_saved(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.large(daemon, 2)
        for step in (1, 2, 3):
            group.advance(step)
        self.assertGreater(arenas_of(daemon.process), 0)
        self.assert_whole(daemon, {(1, 1), (2, 1), (3, 1)})
        self.assertEqual(group.end(), [0, 0])
        group = self.large(daemon, 2)
        self.assert_restores(group, (3, 1, False), 3)
        self.assert_restores(group, (1, 1, False), 1, 1)

    def killed_after_hand_over(self, world):
        """"Handed over" is told when the daemon has everything, and not before."""
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.large(daemon, world)
        group.advance(1)
        group.all("fill", 2)
        handed = lambda: daemon.log().count("rank handed over its state")
        before = handed()
        group.stage(2)
        self.assertEqual(handed() - before, world)
        group.kill()
        group = self.large(daemon, world)
        self.assertEqual(group.restore(), (2, 1, False))  # waits for it
        group.all("check", 2)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        self.assertEqual(group.end(), [0] * world)
        wait_until("the arenas of the dead are let go", lambda: arenas_of(daemon.process) == 0)

    def test_a_trainer_killed_after_the_hand_over_loses_nothing(self):
        self.killed_after_hand_over(1)

    def test_two_ranks_killed_after_the_hand_over_lose_nothing(self):
        self.killed_after_hand_over(2)

    def test_the_daemon_finishes_alone(self):
        """Left with what it was handed, long before its slow disk has all of it."""
        daemon = self.daemon(save_chunk=CHUNK, failpoints="dir.write=delay:100")  # 128 of them, four at a time
        group = self.large(daemon, 1)
        group.all("fill", 7)
        group.stage(1)
        self.assertIn("rank handed over its state", daemon.log())
        group.kill()
        wait_until("the save is committed", lambda: "checkpoint committed" in daemon.log())
        self.assertIn("the daemon finished the save of a client that is gone", daemon.log())

    def test_a_rank_that_had_not_handed_over_leaves_nothing(self):
        daemon = self.daemon(save_chunk=CHUNK, restore_drain="10m")
        group = self.large(daemon, 2)
        group.advance(1)
        group.all("fill", 2)
        group[0].do("save", 2, 600000)
        group.kill()  # rank 1 never began
        group = self.large(daemon, 2)
        self.assertEqual(group.restore(), (1, 1, False))  # it does not wait for a save that cannot end
        group.all("check", 1)
        self.assert_whole(daemon, {(1, 1)})
        group.advance(3)
        self.assertEqual(set(listed(daemon)), {(1, 1), (3, 2)})

    def test_a_rank_killed_while_it_copies_leaves_all_or_nothing(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.large(daemon, 1)
        group.advance(1)
        group.end()
        for moment in range(4):
            group = self.large(daemon, 1)
            step = group.restore()[0]
            group.all("check", step)  # handed over a moment before it could say so, or not there
            group.all("fill", 2 + moment)
            group[0].send("save", 2 + moment, 60000)
            time.sleep(0.002 * moment)
            group.kill()
        group = self.large(daemon, 1)
        group.all("check", group.restore()[0])
        group.advance(6)  # until then the daemon may still commit what the last one handed over
        self.assert_whole(daemon, set(listed(daemon)))

    def test_a_killed_daemon_costs_nothing(self):
        daemon = self.daemon(save_chunk=CHUNK)
        group = self.large(daemon, 2)
        for step in range(1, 5):
            group.all("fill", step)
            answers = group.all("save", step, 60000)
            time.sleep(0.01 * step)
            daemon.restart()
            group.finish(answers, 60000)
        self.assert_whole(daemon, {(step, 1) for step in range(1, 5)})
        self.assert_restores(group, (4, 1, False), 4)

    def test_saves_leave_no_descriptor_or_mapping(self):
        daemon = self.daemon(log_level="info")
        idle = settled(lambda: fds_of(daemon.process))
        group = self.group(daemon, 2)

        def held():
            return fds_of(daemon.process), arenas_of(daemon.process), [fds_of(r.process) for r in group.ranks]

        for step in range(1, 51):
            group.advance(step)
            if step == 10:
                base = settled(held)
            elif step > 10:
                wait_until(f"save {step} holds no more than {base}", lambda: held() == base)
        self.assertEqual(group.end(), [0, 0])
        wait_until("the daemon lets go", lambda: (fds_of(daemon.process), arenas_of(daemon.process)) == (idle, 0))


class Forced(Case):
    def test_one_way_can_be_forced(self):
        daemon = self.daemon(listen_tcp="127.0.0.1:0")
        group = Group(self.bed, daemon.tcp_url(), 1)
        results = group.finish_any(group.try_all("save", 1, 60000))
        self.assertEqual(results[0]["error"], "UNSUPPORTED")
        self.assertIn("CAIRN_TRANSPORT=memfd", results[0]["text"])
        group.end()
        rank = Rank(self.bed, env={"CAIRN_TRANSPORT": "socket"})
        add_state(rank, 0, 1)
        rank.do("open", daemon.url("demo/other"), 0, 1, "-", "rank")
        rank.do("set")
        rank.do("wait", rank.do("save", 1, 60000)["op"], 60000)
        self.assertEqual(arenas_of(daemon.process), 0)
        rank.end()
        rank = Rank(self.bed, env={"CAIRN_TRANSPORT": "pigeon"})
        self.assert_error(rank.refused("open", daemon.url(), 0, 1, "-", "rank"), "INVALID", "CAIRN_TRANSPORT", "pigeon")


if __name__ == "__main__":
    main()
