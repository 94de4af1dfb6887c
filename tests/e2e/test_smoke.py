# SPDX-License-Identifier: Apache-2.0
"""The road from end to end is open: save, restart, restore, list, verify."""

import subprocess

from harness import BIN, Case, cairn, listed, main, token, verified


class Smoke(Case):
    def test_save_and_restore(self):
        daemon, group = self.saving()
        group.all("fill", 7)
        self.assertEqual(group.save(1), 1)
        group.all("fill", 8)
        self.assertEqual(group.save(2), 1)
        self.assert_whole(daemon, {(1, 1), (2, 1)})
        self.assertEqual(group.end(), [0, 0])
        self.assertEqual(daemon.stop(), 0)
        daemon.start()
        group = self.group(daemon)
        self.assert_restores(group, (2, 1, False), 8)
        self.assert_restores(group, (1, 1, False), 7, 1)
        self.assertEqual(verified(daemon, "server")["checkpoints"], 2)

    def test_only_a_proof_begins_at_step_0(self):
        """The server answers `latest` with NOT_FOUND and no proof that the run is empty: both examples and a rank of our own
        end with its reason, and train nothing. A run that is proven to be empty begins."""
        daemon = self.with_saves(5, run="demo/full", world=1, listen_tcp="127.0.0.1:0")
        relay = self.relay(daemon, step=99)
        trainer = ["--rank", "0", "--world", "1", "--hidden", "16", "--steps", "4", "--save-every", "2", "--resume", "--url"]

        def run(*words):
            done = subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=60)
            return done.returncode, done.stdout, done.stderr

        bad = f"cairn://127.0.0.1:{relay.port}/demo/full"
        code, out, err = run(BIN / "cairn-trainer", *trainer, bad, "--attempt", token())
        self.assertEqual(code, 6, err)
        self.assertIn("the restore failed: NOT_FOUND: ", err)
        self.assertIn("step 99 was not saved; the nearest saved steps: 5", err)
        self.assertNotIn("the run has no checkpoint", out)
        code, out, err = run(BIN / "cairn-minimal", bad)
        self.assertEqual((code, out), (1, ""))
        self.assertIn("NOT_FOUND: step 99 was not saved", err)
        self.assertEqual(list(listed(daemon, "demo/full")), [(5, 1)])
        self.assertIsNone(relay.failed)
        code, out, err = run(BIN / "cairn-trainer", *trainer, daemon.url("demo/new"), "--attempt", token())
        self.assertEqual(code, 0, err)
        self.assertIn("the run has no checkpoint, so training starts from the beginning", out)
        for step in (1, 2):
            code, out, err = run(BIN / "cairn-minimal", daemon.url("demo/minimal"))
            self.assertEqual((code, out), (0, f"step {step} is durable, weights[0] is {step}\n"), err)

    def test_an_empty_run_is_not_found(self):
        daemon, group = self.saving(world=1)
        self.assert_error(group[0].refused("wait", group.all("restore", "latest")[0]["op"], 5000), "NOT_FOUND")
        cairn("ls", *daemon.online, check=0)


if __name__ == "__main__":
    main()
