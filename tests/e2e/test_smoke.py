# SPDX-License-Identifier: Apache-2.0
"""The road from end to end: save, restart, restore, list, verify."""

from harness import Case, cairn, main, verified


class Smoke(Case):
    def test_save_and_restore(self):
        daemon = self.daemon()
        group = self.group(daemon)
        group.all("fill", 7)
        self.assertEqual(group.save(1), 1)
        group.all("fill", 8)
        self.assertEqual(group.save(2), 1)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        self.assertEqual(group.end(), [0, 0])
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        group = self.group(daemon)
        self.assertEqual(group.restore(), (2, 1, False))
        group.all("check", 8)
        self.assertEqual(group.restore(1), (1, 1, False))
        group.all("check", 7)
        self.assertEqual(verified(daemon, "server")["checkpoints"], 2)

    def test_an_empty_run_is_not_found(self):
        daemon = self.daemon()
        group = self.group(daemon, 1)
        self.assert_error(group[0].refused("wait", group.all("restore", "latest")[0]["op"], 5000), "NOT_FOUND")
        cairn("ls", "--server", f"unix:{daemon.socket}", check=0)


if __name__ == "__main__":
    main()
