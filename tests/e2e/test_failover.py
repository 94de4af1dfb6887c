# SPDX-License-Identifier: Apache-2.0
"""When the first of several servers in a URL is dead, or dies in the middle of a save or a restore, another one takes the
store over. What was durable is not sent again; what fails says which host, rank and step."""

import socket

from harness import Case, Daemon, Group, Rank, cairn, cairn_json, main, token


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Failover(Case):
    def pair(self, **keys):
        """Two daemons on one store, one after the other, and the URL that names both."""
        ports = free_port(), free_port()
        daemons = [Daemon(self.bed, f"d{n}", path=self.bed.path / "store", listen_tcp=f"127.0.0.1:{port}", **keys)
                   for n, port in enumerate(ports)]
        return daemons, "cairn://" + ",".join(f"127.0.0.1:{port}" for port in ports) + "/demo/run"

    def test_one_server_is_dead(self):
        for alive in (0, 1):
            with self.subTest(alive=alive):
                daemons, url = self.pair()
                daemons[alive].start()
                for step in range(1, 4):  # each rank begins with either
                    group = Group(self.bed, url, 2)
                    group.all("fill", step)
                    group.save(10 * alive + step)
                    self.assertEqual(group.end(), [0, 0])
                self.assertEqual(daemons[alive].stop(), 0)

    def test_names_are_the_same_whatever_their_capitals(self):
        """What one server has made is not made again in other letters, by this server or by the next one."""
        daemons, _ = self.pair()
        daemons[0].start()
        group = Group(self.bed, daemons[0].url("demo/Bert"), 2)
        group.advance(1)
        self.assertEqual(group.end(), [0, 0])
        for daemon in daemons:
            if daemon is daemons[1]:
                self.assertEqual(daemons[0].stop(), 0)
                daemon.start()
            for name in ("demo/bert", "Demo/x"):
                rank = Rank(self.bed)
                self.assert_error(rank.refused("open", daemon.url(name), 0, 1, token(), "rank"), "INVALID", name,
                                  "the store has demo/Bert")
                rank.end()
        group = Group(self.bed, daemons[1].url("demo/Bert"), 2)
        self.assertEqual(group.restore(), (1, 1, False))
        self.assertEqual(group.end(), [0, 0])
        self.assertEqual(daemons[1].stop(), 0)
        self.assertEqual(cairn_json("ls", *daemons[0].offline)["runs"], ["demo/Bert"])
        self.assertIn("the store has demo/Bert", cairn("ls", "demo/bert", *daemons[0].offline, check=2)[2])

    def test_a_server_dies_in_a_save(self):
        daemons, url = self.pair()
        daemons[0].start()
        group = Group(self.bed, url, 2, rows=20000)
        group.advance(1)
        for step, old in ((2, 0), (3, 1)):
            group.all("fill", step)
            answers = group.all("save", step, 60000)
            daemons[old].kill()
            daemons[1 - old].start()
            group.finish(answers, 60000)
        group.all("fill", 99)
        self.assert_restores(group, (3, 1, False), 3)
        self.assert_whole(daemons[0], {(1, 1), (2, 1), (3, 1)})

    def test_a_server_dies_in_a_restore(self):
        daemons, url = self.pair()
        daemons[0].start()
        group = Group(self.bed, url, 2, rows=20000)
        group.advance(1)
        group.all("fill", 99)
        answers = group.all("restore", "latest")
        daemons[0].kill()
        daemons[1].start()
        group.finish(answers, 60000)
        group.all("check", 1)

    def test_a_server_stops_in_order(self):
        """SIGTERM in the middle of a save: it ends within the grace, or with the other server."""
        daemons, url = self.pair(daemon_grace="5s")
        daemons[0].start()
        group = Group(self.bed, url, 2, rows=20000)
        group.save(1)
        group.all("fill", 2)
        answers = group.all("save", 2, 60000)
        self.assertEqual(daemons[0].stop(), 0)
        daemons[1].start()
        group.finish(answers, 60000)
        group.all("fill", 99)
        self.assertEqual(group.restore()[0], 2)
        group.all("check", 2)

    def test_errors_say_where_and_what(self):
        daemons, url = self.pair()
        rank = Rank(self.bed)
        error, text = rank.refused("open", url, 0, 1, "-", "rank", 1500)
        self.assertEqual(error, "UNREACHABLE")
        self.assertIn("127.0.0.1:", text)
        daemons[0].start()
        group = Group(self.bed, url, 2, rows=20000)
        group.save(1)
        answers = group.all("save", 7, 4000)
        daemons[0].kill()
        for number, result in enumerate(group.finish_any(answers, 30000)):
            self.assertFalse(result["ok"])
            self.assertIn(result["error"], ("UNREACHABLE", "TIMED_OUT", "CONNECTION_LOST", "OUTCOME_UNKNOWN"))
            for said in ("127.0.0.1:", f"rank {number}", "step 7"):
                self.assertIn(said, result["text"])
        group.kill()


if __name__ == "__main__":
    main()
