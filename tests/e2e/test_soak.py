# SPDX-License-Identifier: Apache-2.0
"""Descriptors and threads return to base and memory stays flat, save after save, and while ranks come and go.

Goal: I8. Samples are taken when a save is durable and nothing is in flight; the first saves, in which arenas,
pools and caches fill, do not count. (tests/bench/bench_soak.py does the same 200 times and prints the slope.)"""

import os
import statistics
import time
from pathlib import Path

from harness import BUILD, Case, main, wait_until

WARM_SAVES, SAVES, JOBS = 30, 30, 4
# The daemon knows each checkpoint: some 10 KiB per save. A sanitizer keeps freed memory for a while, and thirty times as
# much; there a leaked buffer of data (1 MiB and more) shows, and a leaked struct is what its leak checker at exit is for.
os.environ["ASAN_OPTIONS"] = ":".join(
    filter(None, [os.environ.get("ASAN_OPTIONS"), "quarantine_size_mb=1:thread_local_quarantine_size_kb=16"]))
SANITIZED = "CAIRN_SANITIZE:STRING=\n" not in (BUILD / "CMakeCache.txt").read_text()
RSS_KIB_PER_SAVE_MAX = 900 if SANITIZED else 64


def sample(process):
    proc = Path(f"/proc/{process.pid}")
    rss = next(int(line.split()[1]) for line in (proc / "status").read_text().splitlines()
               if line.startswith("VmRSS:"))
    return {"rss_kib": rss, "fds": len(os.listdir(proc / "fd")), "threads": len(os.listdir(proc / "task"))}


def at_rest(process, before):
    """What is written behind a save, a copy of the record, has its files open for a moment: more descriptors than ever before
    count when they stay."""
    end, most = time.monotonic() + 5, max((row["fds"] for row in before), default=0)
    while (row := sample(process))["fds"] > most and before and time.monotonic() < end:
        time.sleep(0.01)
    return row


def slope(values):
    """Per sample: the median of all pairs, so that a single jump is no slope."""
    return statistics.median((values[j] - values[i]) / (j - i)
                             for i in range(len(values)) for j in range(i + 1, len(values)))


class Soak(Case):
    def test_saves_leave_nothing_behind(self):
        daemon = self.daemon(memory_cache="1MiB", log_level="info")
        idle = sample(daemon.process)
        group = self.group(daemon, rows=4096)  # 256 KiB replicated, as much sharded: many chunks of 4 KiB
        processes = {"daemon": daemon.process, **{f"rank {i}": rank.process for i, rank in enumerate(group.ranks)}}
        samples = {name: [] for name in processes}
        for step in range(1, WARM_SAVES + SAVES + 1):
            group.advance(step)
            if step > WARM_SAVES:
                for name, process in processes.items():
                    samples[name].append(at_rest(process, samples[name]))
        for name, rows in samples.items():
            for what in ("fds", "threads"):
                values = [row[what] for row in rows]
                self.assertLessEqual(max(values[SAVES // 2:]), max(values[:SAVES // 2]), f"{name}: {what} grow: {values}")
            rss = [row["rss_kib"] for row in rows]
            self.assertLessEqual(slope(rss), RSS_KIB_PER_SAVE_MAX, f"{name}: memory grows: {rss} KiB")
        self.assertEqual(group.end(), [0, 0])
        self.assert_returns(daemon, idle)

    def test_jobs_that_come_and_go_leave_nothing_behind(self):
        daemon = self.daemon(log_level="info")
        idle = sample(daemon.process)
        for job in range(1, JOBS + 1):
            group = self.group(daemon)
            if job > 1:
                group.restore()
            group.advance(job)
            if job % 2:
                self.assertEqual(group.end(), [0, 0])
            else:
                group.kill()
            self.assert_returns(daemon, idle)

    def assert_returns(self, daemon, idle):
        """Sessions end when the connection does; the store's own descriptors are all that may be new."""
        wait_until(f"the daemon's descriptors and threads return to {idle['fds']} and {idle['threads']}",
                   lambda: sample(daemon.process)["fds"] <= idle["fds"]
                   and sample(daemon.process)["threads"] <= idle["threads"])


if __name__ == "__main__":
    main()
