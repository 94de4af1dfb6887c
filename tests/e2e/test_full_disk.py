# SPDX-License-Identifier: Apache-2.0
"""A disk that becomes full in the middle of a save, and a target without room, give a named error and leave everything
else whole. Method: small ext4 images, mounted by root; skipped (77) where that is not possible."""

import errno
import json
import os
import re
import resource
import shlex
import subprocess
import sys
from pathlib import Path

from harness import Case, Daemon, Rank, cairn, flip, listed, main, token, wait_until


SHIPPED = Path(__file__).resolve().parents[2] / "deploy/cairnd.conf"


def mountable():
    if os.geteuid() != 0:
        return "only root can mount"
    probe = subprocess.run(["losetup", "-f"], capture_output=True)
    return None if probe.returncode == 0 else "there is no free loop device: " + probe.stderr.decode()


class FullDisk(Case):
    def mount(self, name, megabytes):
        image, point = self.bed.path / f"{name}.img", self.bed.path / name
        with open(image, "wb") as file:
            file.truncate(megabytes << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", str(image)], check=True, timeout=60)
        point.mkdir()
        done = subprocess.run(["mount", "-o", "loop", str(image), str(point)], capture_output=True, timeout=60)
        if done.returncode != 0:
            self.skipTest(f"mount: {done.stderr.decode()}")
        self.addCleanup(self.unmount, point)
        return point

    def unmount(self, point):
        for process in self.bed.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        subprocess.run(["umount", str(point)], check=True, timeout=60)

    def alone(self, daemon, mebibytes):
        """The one rank of a job, with a state of this size."""
        rank = Rank(self.bed)
        rank.do("open", daemon.url(), 0, 1, token())
        rank.do("tensor", "w", "float32", mebibytes << 18, "replicated")
        rank.do("set")
        return rank

    def try_save(self, rank, step):
        """(None, term), or the error."""
        rank.do("fill", step)  # what stays the same would be referred to, and take no space
        answer = rank.ask("save", step, 60000)  # may hear of it before it is staged
        if answer["ok"]:
            answer = rank.ask("wait", answer["op"], 60000)
        return (None, answer["term"]) if answer["ok"] else (answer["error"], answer["text"])

    def fill_disk(self, rank, step=0):
        """Saves until one is refused; (the steps that were saved, the refusal)."""
        saved = []
        while True:
            step += 1
            error, text = self.try_save(rank, step)
            if error:
                return saved, (error, text)
            saved.append(step)
            self.assertLess(step, 40, "the disk holds no more than that")

    def save(self, rank, step):
        error, text = self.try_save(rank, step)
        self.assertIsNone(error, text)

    def fill_up(self, path, mode="wb", units=(1 << 16,)):
        """Another program takes what is left of the file system, in writes of these sizes."""
        with open(path, mode, buffering=0) as other:
            for unit in units:
                try:
                    while True:
                        other.write(bytes(unit))
                except OSError as error:
                    self.assertEqual(error.errno, errno.ENOSPC)

    def test_a_limit_on_file_sizes(self):
        """The daemon lives, the save fails by name; with a higher limit the next one is good."""
        daemon = self.daemon(save_chunk="1MiB")
        rank = self.alone(daemon, mebibytes=16)
        unlimited = resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
        self.assert_error(self.try_save(rank, 1), "NO_SPACE", "File too large")
        self.assertIsNone(daemon.process.poll())
        resource.prlimit(daemon.process.pid, resource.RLIMIT_FSIZE, unlimited)
        self.save(rank, 2)
        self.assert_whole(daemon, {(2, 1)}, how="server")
        self.assertEqual(rank.end(), 0)

    def test_a_file_system_that_is_read_only(self):
        """Ranks restore as a group, and fall back together; saves are refused by name; also after a restart."""
        point = self.mount("frozen", 64)
        daemon = self.with_saves(1, 2, 3, fills=True, path=point / "store", store_reserve="2MiB")
        self.assertEqual(daemon.stop(), 0)
        for path in daemon.files("runs/demo/run/objects/1-3/1-*"):
            flip(path, 0)
        subprocess.run(["mount", "-o", "remount,ro", str(point)], check=True, timeout=60)
        before = daemon.files()
        for _ in range(2):
            daemon.start()
            self.assertIn("read-only", cairn("status", *daemon.online)[1])
            for words in (("gc", "--now"), ("gc",), ("scrub",), ("verify", "--repair")):
                _, _, err = cairn(*words, *daemon.online, check=1)
                self.assertRegex(err, "READ_ONLY: .*mount it for writing, and restart the daemon")
            group = self.group(daemon)
            group.all("fill", 99)
            self.assert_restores(group, (2, 1, True), 2)
            for result in group.finish_any(group.try_all("save", 4, 60000)):
                self.assert_error((result["error"], result["text"]), "READ_ONLY")
            self.assert_restores(group, (1, 1, False), 1, "1")
            group.end()
            self.assertEqual(daemon.stop(), 0)
        self.assertEqual(before, daemon.files())

    def test_in_the_middle_of_a_save(self):
        point = self.mount("small", 64)
        daemon = self.daemon(path=point / "store", store_reserve="2MiB", save_chunk="1MiB")
        rank = self.alone(daemon, mebibytes=16)
        steps, refusal = self.fill_disk(rank)
        saved = {(step, 1) for step in steps}
        self.assertGreaterEqual(len(saved), 1)
        self.assertLess(len(saved), 6, "64 MiB hold no more than that")
        self.assert_error(refusal, "NO_SPACE")
        self.assert_whole(daemon, saved)
        # Forgetting, and bringing back, need no room that a save may take.
        if len(saved) > 2:
            oldest = "{}@{}".format(*min(saved))
            cairn("forget", "demo/run", oldest, *daemon.online, check=0)
            self.assertEqual(set(listed(daemon, how="server")), saved - {min(saved)})
            cairn("undelete", "demo/run", oldest, *daemon.online, check=0)
            self.assert_whole(daemon, saved, how="server")
        # The older ones are whole, and can be restored from the full disk.
        rank.do("fill", 99)
        restored = rank.do("wait", rank.do("restore", "latest")["op"], 20000)
        self.assertEqual((restored["step"], restored["term"]), max(saved))
        rank.do("check", max(saved)[0])
        # A restart on a full disk gives the same catalogue; with room again, saving goes on.
        rank.kill()
        daemon.restart()
        self.assertEqual(set(listed(daemon, how="server")), saved)
        small = self.alone(daemon, mebibytes=16)
        small.do("wait", small.do("restore", "latest")["op"], 20000)
        small.do("check", max(saved)[0])

    def test_forget_and_gc_work_while_full(self):
        point = self.mount("small", 64)
        daemon = self.daemon(path=point / "store", store_reserve="2MiB", save_chunk="1MiB", gc_every="10ms", gc_keep_cycles="1",
                             scrub_every="0s")
        where = daemon.online
        rank = self.alone(daemon, mebibytes=12)
        for step in (1, 2, 3):
            self.save(rank, step)
        self.fill_up(point / "other")  # the reserve too: not a byte is free
        code, _, err = cairn("forget", "demo/run", "1", *where)
        if code != 0:  # the record has no room for the entry, and the error says so
            self.assertIn("NO_SPACE", err)
            self.assertEqual({step for step, _ in listed(daemon, how="server")}, {1, 2, 3})
            (point / "other").unlink()
            cairn("forget", "demo/run", "1", *where, check=0)
        # Again nothing but the few blocks that gc's own entries in the record take: it gives back what is forgotten.
        self.fill_up(point / "other", "ab")
        os.truncate(point / "other", (point / "other").stat().st_size - (8 << 10))
        wait_until("gc has given the space back",
                   lambda: cairn("gc", *where) and not daemon.files("runs/demo/run/objects/1-1/*"))
        room = os.statvfs(point)
        self.assertGreaterEqual(room.f_bavail * room.f_frsize, 12 << 20)
        (point / "other").unlink()
        self.save(rank, 4)
        self.assertEqual({step for step, _ in listed(daemon, how="server")}, {2, 3, 4})
        self.assert_whole(daemon, {(2, 1), (3, 1), (4, 1)})

    def test_not_a_byte_is_free(self):
        """Other files take all: status, the refusal and the doctor say to remove them first. A daemon starts, red, and restores;
        with room again it forgets and saves."""
        point = self.mount("small", 64)
        daemon = self.daemon(path=point / "store", store_reserve="2MiB", gc_pressure="0", scrub_every="0s")
        rank = self.alone(daemon, mebibytes=4)
        for step in (1, 2, 3):
            self.save(rank, step)
        self.assertEqual(rank.end(), 0)
        daemon.copied()
        self.fill_up(point / "other", units=(1 << 16, 512))
        first = "first remove other files from the store's file system"
        status = self.status(daemon)
        self.assertEqual((status["health"], status["health_error"], status["free_bytes"]), ("red", "NO_SPACE", 0))
        self.assertRegex(status["health_remedy"], f"{first}.*then `cairn forget demo/run --keep-last 2 --now`")
        _, out, _ = cairn("doctor", *daemon.online, check=1)
        self.assertRegex(out, f"remedy: no save is accepted.*: forgetting needs room as well: {first}")
        self.assertRegex(out, r"space: +0.0 MiB of [1-9][0-9.]* MiB are free")
        forget = ("forget", "demo/run", "--keep-last", 2, "--keep-least", 1, "--now")
        _, _, err = cairn(*forget, *daemon.online, check=1)
        self.assertRegex(err, f"NO_SPACE: .*{first}")
        daemon.restart()
        self.assertEqual(self.status(daemon)["epoch"], status["epoch"])  # the record that counts the starts has no room
        red = wait_until("it has looked", lambda: (now := self.status(daemon))["health"] == "red" and now)
        self.assertEqual(red["health_error"], "NO_SPACE")
        cairn("restore", "demo/run", "latest", "--to", self.bed.path / "served", *daemon.online, check=0)
        _, _, err = cairn(*forget, *daemon.online, check=1)
        self.assertRegex(err, f"NO_SPACE: .*{first}")
        daemon.kill()
        where = daemon.offline
        _, _, err = cairn(*forget, *where, check=1)
        self.assertRegex(err, f"NO_SPACE: .*{first}")
        _, out, _ = cairn("doctor", *where, check=1)
        self.assertRegex(out, f"space: .*\n.*remedy: no save is accepted.*{first}.*then `cairn gc --now`")
        self.assertRegex(out, "fsync: .*\n.*remedy: remove other files from this file system")
        cairn("restore", "demo/run", "latest", "--to", self.bed.path / "out", *where, check=0)
        daemon.start()
        (point / "other").unlink()
        cairn(*forget, *daemon.online, check=0)
        self.assertEqual({step for step, _ in listed(daemon)}, {2, 3})
        again = self.group(daemon, world=1)
        again.advance(4)

    # --- by the shipped configuration -------------------------------------------------------------------------------

    def shipped(self, megabytes=640):
        """A daemon by deploy/cairnd.conf on a small disk of its own, and a rank with a state of 32 MiB."""
        point = self.mount("shipped", megabytes)
        daemon = Daemon(self.bed, "shipped", path=point / "store", config=SHIPPED, log_level="info",
                        save_chunk=None, gc_pressure=None).start()
        rank = self.alone(daemon, mebibytes=32)
        return daemon, rank

    def status(self, daemon):
        _, out, _ = cairn("status", "--json", env={"CAIRN_SERVER": f"unix:{daemon.socket}"})
        return json.loads(out)

    def type_remedy(self, daemon, text):
        """The first command that the text names, as it stands."""
        command = re.search(r"`(cairn [^`]*)`", text).group(1)
        return command, cairn(*shlex.split(command)[1:], check=0, env={"CAIRN_SERVER": f"unix:{daemon.socket}"})

    def test_the_printed_remedy(self):
        """Full by the defaults: the remedy of `status`, typed as it stands, lets saves go on, and health is green again."""
        daemon, rank = self.shipped()
        saved, refusal = self.fill_disk(rank)
        self.assertGreater(len(saved), 5)
        self.assert_error(refusal, "NO_SPACE", "`cairn gc --now`", "--now")
        status = self.status(daemon)
        self.assertEqual((status["health"], status["health_error"]), ("red", "NO_SPACE"))
        command, (_, _, err) = self.type_remedy(daemon, status["health_remedy"])
        self.assertEqual(command, "cairn forget demo/run --keep-last 2 --now")
        self.assertIn("for good", err)
        self.save(rank, 100)
        wait_until("health is green", lambda: self.status(daemon)["health"] == "green", timeout_s=120)
        self.assertEqual({step for step, _ in listed(daemon, how="server")}, {*saved[-2:], 100})
        # Two are kept anyway. Another program takes the room: nothing is left to forget, and the remedy says what else helps.
        cairn("forget", "demo/run", "--keep-last", 2, "--now", *daemon.online, check=0)
        with open(daemon.store.parent / "other", "wb", buffering=0) as other:
            room = os.statvfs(daemon.store.parent)
            os.posix_fallocate(other.fileno(), 0, room.f_bavail * room.f_frsize - (272 << 20))
        self.assertEqual(self.try_save(rank, 101)[0], "NO_SPACE")
        remedy = self.status(daemon)["health_remedy"]
        for words in ("no run has more than the two good checkpoints", "add room to the disk", "--keep-least 1"):
            self.assertIn(words, remedy)
        (daemon.store.parent / "other").unlink()
        self.save(rank, 102)
        self.assertIsNone(daemon.process.poll())
        self.assert_whole(daemon, {(step, 1) for step in (saved[-1], 100, 102)}, how="server")

    def test_pressure(self):
        """What is forgotten, without --now, goes by itself when room is wanted: the oldest first, no more than needed, and it is told."""
        daemon, rank = self.shipped()
        saved, _ = self.fill_disk(rank)
        where = daemon.online
        cairn("forget", "demo/run", "--keep-last", 2, *where, check=0)
        wait_until("what is forgotten goes", lambda: self.status(daemon)["gc"]["pressed_total"] > 0, timeout_s=60)
        self.save(rank, 100)
        status = wait_until("room for more", lambda: (
            lambda s: s if s["health"] != "red" and s["free_bytes"] * 20 >= s["total_bytes"] else None)(self.status(daemon)),
            timeout_s=60)
        self.assertGreater(status["gc"]["forgotten"], 0)  # not all
        self.assertIn("for lack of room", cairn("status", *where)[1])
        left = [int(line.split()[1].split("@")[0]) for line in cairn("undelete", "demo/run", *where, check=0)[1].splitlines()]
        gone = set(saved[:-2]) - set(left)
        self.assertTrue(gone and max(gone) < min(left), (gone, left))
        for step in gone:
            self.assertRegex(cairn("status", "demo/run", f"{step}@1", *where)[1], "reclaimed by cairnd: pressure: ")
            self.assertRegex(daemon.log(), rf'"reclaimed".*"{step}@1".*pressure: ')
        # All that waits, by the command that `status` names.
        document = json.loads(cairn("gc", "--now", "--json", *where, check=0)[1])["gc"]
        self.assertEqual((document["reclaimed"], document["forgotten"]), (len(left), 0))
        self.assert_whole(daemon, {(step, 1) for step in (*saved[-2:], 100)}, how="server")
        self.assertIsNone(daemon.process.poll())

    def test_target_disk_full(self):
        daemon = self.daemon()
        rank = self.alone(daemon, mebibytes=16)
        self.save(rank, 1)
        point = self.mount("target", 8)
        status, _, err = cairn("restore", "demo/run", "--to", point / "out", *daemon.offline)
        self.assertEqual(status, 1, err)
        self.assertIn("NO_SPACE", err)
        self.assertEqual([path.name for path in point.iterdir()], ["lost+found"])
        self.assert_whole(daemon, {(1, 1)})


if __name__ == "__main__":
    reason = mountable()
    if reason:
        print(f"skipped: {reason}")
        sys.exit(77)
    main()
