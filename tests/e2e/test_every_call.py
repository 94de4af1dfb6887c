# SPDX-License-Identifier: Apache-2.0
"""A failed system call of the daemon, or its death there, never costs an acknowledged checkpoint, whichever call it is.

Method: e2e_call.so is preloaded into cairnd (a release build: a sanitizer has wrappers of its own) and makes one call fail
(an errno, half of the bytes) or kills the daemon before or after it. In each case a daemon starts with that fault on a copy
of a store of two checkpoints; two ranks restore, save two more; `cairn forget` and `cairn gc --now` follow; the daemon stops.
One that died is started again without the fault while the ranks wait. Then: every save that a rank was told to be durable
is listed, nothing is listed that was refused or never saved, every listed checkpoint has its bytes, the daemon named the
error or went on, nobody waited past a deadline, `cairn verify` is clean, and the next restore and save work.

The short form takes each name, then numbers that lie ever closer together, until its time is over. The long forms:

    CAIRN_BUILD=$PWD/build/release CAIRN_FULL=1 python3 tests/e2e/test_every_call.py      every number, every fault
    CAIRN_BUILD=$PWD/build/release python3 tests/e2e/test_every_call.py --minutes 30     in a random order, so long
    CAIRN_BUILD=$PWD/build/release CAIRN_CASE='fsync:17:EIO' python3 tests/e2e/test_every_call.py   those that match"""

import errno
import os
import re
import select
import shutil
import subprocess
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

from harness import (BIN, BUILD, FULL, Bed, Case, Daemon, Failure, Group, Rank, add_state, add_whole_state, cairn, listed, main,
                     rng, token, verified)

SHORT_S = 40.0
SECONDS = None if FULL else SHORT_S
CHOSEN = os.environ.get("CAIRN_CASE")
HANG_S = 30.0  # nothing below has a deadline beyond 12 s
SAVE_MS = 8000
RUN = "demo/run"
KEYS = {"log_level": "info", "gc_every": "0s", "scrub_every": "0s", "save_rank_grace": "3s"}
DISK, FILES, MEMORY = ("EIO", "ENOSPC"), ("EIO", "EMFILE", "ENOSPC", "ENOMEM"), ("ENOMEM",)
# What of each call can go wrong in this world. Others are counted by the library, and their faults are not tried.
FAULTS = {"open": FILES, "openat": FILES, "openat2": FILES, "read": ("EIO", "short"), "pread": ("EIO", "short"),
          "pwrite": (*DISK, "short"), "write": (*DISK, "short"), "sendfile": ("EIO", "short"), "fsync": DISK, "fdatasync": DISK,
          "fallocate": DISK, "ftruncate": DISK, "renameat": DISK, "renameat2": DISK, "linkat": DISK, "unlink": ("EIO",),
          "unlinkat": ("EIO",), "mkdirat": DISK, "fstat": ("EIO",), "fstatat": ("EIO",), "fstatfs": ("EIO",), "fchmod": ("EIO",),
          "lseek": ("EIO",), "readdir": ("EIO",), "mmap": MEMORY, "socket": ("EMFILE",), "accept4": ("EMFILE", "ECONNABORTED"),
          "sendmsg": ("ECONNRESET", "ENOBUFS", "short"), "recvmsg": ("ECONNRESET", "ENOMEM", "short")}
KILLS = ("before", "after")
MUST_BE_CALLED = ("openat", "pwrite", "pread", "fsync", "unlinkat", "mmap", "sendmsg", "recvmsg")
# How a save may end that may be durable nevertheless. Any other error says that it is not.
UNDECIDED = {"OUTCOME_UNKNOWN", "TIMED_OUT", "CONNECTION_LOST", "UNREACHABLE", "AGAIN", "SHUTTING_DOWN"}
UNNAMED = {"INTERNAL", "INVALID", "PROTOCOL", "FORMAT"}  # none of these is a name for a fault of the system


class Base:
    """The store that all cases begin with."""

    def __init__(self, bed):
        daemon = Daemon(bed, "base", **KEYS).start()
        group = Group(bed, daemon.url(RUN), rows=64)
        self.checkpoints = set()
        for step in (10, 20):
            group.all("fill", step)
            self.checkpoints.add((step, group.save(step)))
        group.end()
        if daemon.stop() != 0:
            raise Failure("the daemon did not end well")
        self.path = daemon.store


class Trial:
    """The scenario with one fault."""

    def __init__(self, base, number, fault):
        """fault: CALL:NUMBER:HOW, or None."""
        self.bed, self.fault, self.wrong = Bed(f"call-{number}"), fault, []
        shutil.copytree(base.path, self.bed.path / "store")
        self.daemon = Daemon(self.bed, "store", creates=False, **KEYS)
        call, _, how = (fault or "-").rpartition(":")
        self.daemon.env = {"LD_PRELOAD": str(BIN / "e2e_call.so"),
                           "CAIRN_TEST_CALL": f"{call}:{getattr(errno, how, how)}"}
        self.acknowledged = set(base.checkpoints)
        self.refused, self.tried = set(), {step for step, _ in base.checkpoints}
        self.forgotten, self.deaths = set(), 0


    # --- the daemon

    def is_killed(self):
        return self.fault is not None and self.fault.endswith(KILLS)

    def begin(self):
        """The start under the fault; where it refuses, the next one is without."""
        self.daemon.launch()
        begin = time.monotonic()
        while self.daemon.process.poll() is None and "daemon: ready" not in self.daemon.log():
            if "listening" in self.daemon.log() and time.monotonic() > begin + 5:
                break  # it may be the line in the log that the fault has hit; the ranks wait for the rest
            if time.monotonic() > begin + HANG_S:
                raise Failure("the daemon is neither ready nor ended")
            time.sleep(0.005)
        self.look_after()

    def look_after(self):
        """A daemon that ended is started again without the fault. It was killed, or says why it ended."""
        status = self.daemon.process.poll()
        if status is None:
            return
        self.deaths += 1
        if not (status == -9 and self.is_killed()) and not (status > 0 and re.search(r"^cairnd: .+", self.daemon.log(), re.M)):
            self.wrong.append(f"the daemon ended with {status}:\n{self.daemon.tail()}")
        if self.deaths > 1:
            raise Failure("the daemon ends again without a fault")
        self.daemon.env = {}
        self.daemon.start()

    def answers(self, ranks, *words):
        """What each says to the command, while the daemon is looked after."""
        for rank in ranks:
            rank.send(*words)
        return self.replies(ranks)

    def replies(self, ranks):
        found, end = {}, time.monotonic() + HANG_S
        while len(found) < len(ranks):
            for rank in ranks:
                if rank not in found and (answer := rank.poll()) is not None:
                    found[rank] = answer
            self.look_after()
            if time.monotonic() > end:
                raise Failure("a rank waits past its deadline")
            waiting = [rank.process.stdout for rank in ranks if rank not in found]
            if waiting:
                select.select(waiting, [], [], 0.02)
        for answer in found.values():
            if not answer["ok"] and answer["error"] in UNNAMED:
                self.wrong.append(f"no name for a fault: {answer}")
        return [found[rank] for rank in ranks]

    def ended(self, ranks, *words):
        """How a save or restore ended for each."""
        started = self.answers(ranks, *words)
        waiting = [(rank, answer) for rank, answer in zip(ranks, started) if answer["ok"]]
        for rank, answer in waiting:
            rank.send("wait", answer["op"], SAVE_MS + 4000)
        ended = dict(zip([rank for rank, _ in waiting], self.replies([rank for rank, _ in waiting])))
        return [ended.get(rank, answer) for rank, answer in zip(ranks, started)]

    # --- the scenario

    def crew(self):
        """Two ranks that are in the run, or None."""
        ranks, attempt = [Rank(self.bed), Rank(self.bed)], token()
        for number, rank in enumerate(ranks):
            add_state(rank, number, 2, 64)
            rank.send("open", self.daemon.url(RUN), number, 2, attempt, "rank", 4000)
        if not all(answer["ok"] for answer in self.replies(ranks)):
            for rank in ranks:
                rank.kill()
            return None
        self.answers(ranks, "set")
        return ranks

    def restore(self, ranks):
        """What they came to has its bytes; of all ranks the same."""
        ends = self.ended(ranks, "restore", "latest", 0, -1, 1, SAVE_MS)
        good = {(end["step"], end["term"]) for end in ends if end["ok"]}
        if len(good) > 1:
            self.wrong.append(f"ranks are at different steps: {ends}")
        if any(end.get("error") == "NOT_FOUND" for end in ends):
            self.wrong.append(f"the run is said to be empty: {ends}")
        for rank, end in zip(ranks, ends):
            if end["ok"] and not self.answers([rank], "check", end["step"])[0]["ok"]:
                self.wrong.append(f"wrong bytes after the restore: {end}")
        return all(end["ok"] for end in ends)

    def save(self, ranks, step):
        self.answers(ranks, "fill", step)
        self.tried.add(step)
        ends = self.ended(ranks, "save", step, SAVE_MS)
        self.acknowledged |= {(step, end["term"]) for end in ends if end["ok"]}
        if all(not end["ok"] and end["error"] not in UNDECIDED for end in ends):
            self.refused.add((step, str([end["error"] for end in ends])))
        return all(end["ok"] for end in ends)

    def command(self, *words):
        """Of the command line, to the daemon: whether it did what it was told."""
        status, out, err = cairn(*words, *self.daemon.online, timeout_s=HANG_S)
        self.look_after()
        if status != 0 and not err.strip():
            self.wrong.append(f"cairn {words}: {status}, and not a word: {out}")
        if status < 0:
            self.wrong.append(f"cairn {words}: killed by signal {-status}")
        return status == 0

    def scenario(self):
        self.begin()
        ranks = self.crew() or self.crew()
        if ranks:
            self.restore(ranks)
            for step in (30, 40):
                self.save(ranks, step)
            for rank in ranks:
                rank.send("close", 4000)
            self.replies(ranks)
            for rank in ranks:
                rank.end()
        oldest = min(self.acknowledged)
        if self.command("forget", RUN, f"{oldest[0]}@{oldest[1]}"):
            self.forgotten.add(oldest)
        self.maybe_forgotten = oldest
        self.command("gc", "--now")
        try:
            if self.daemon.stop(HANG_S) != 0 and not self.is_killed():
                self.wrong.append(f"the daemon stopped with {self.daemon.process.returncode}:\n{self.daemon.tail()}")
        except subprocess.TimeoutExpired:
            raise Failure("the daemon does not stop") from None
        if not ranks and self.deaths == 0:
            self.wrong.append("one fault, and no rank could come in twice")

    # --- what must be true afterwards

    def check_lists(self, present):
        lost = self.acknowledged - set(present) - {self.maybe_forgotten}
        if lost:
            self.wrong.append(f"acknowledged, but not listed: {lost}")
        for step, term in present:
            if (step, term) in self.forgotten:
                self.wrong.append(f"forgotten, but listed: {step}@{term}")
            if step not in self.tried:
                self.wrong.append(f"listed, but never saved: {step}@{term}")
            for refused, errors in self.refused:
                if refused == step:
                    self.wrong.append(f"listed, but refused with {errors}: {step}@{term}")

    def check_bytes(self, present):
        reader = Rank(self.bed)
        add_whole_state(reader, 2, 64)
        reader.do("open", self.daemon.url(RUN), 0, 1, "-", "viewer")
        reader.do("set")
        for step, term in sorted(present):
            reader.do("wait", reader.do("restore", step, term, 0)["op"], SAVE_MS)
            if not reader.ask("check", step)["ok"]:
                self.wrong.append(f"{step}@{term} does not hold what was saved")
        reader.end()

    def go(self):
        self.scenario()
        self.check_lists(listed(self.daemon, RUN))
        self.daemon.env = {}
        self.daemon.start()
        present = listed(self.daemon, RUN, "server")
        self.check_lists(present)
        self.check_bytes(present)
        group = Group(self.bed, self.daemon.url(RUN), rows=64)
        step, term, fell_back = group.restore()
        if fell_back or (term, step) != max((term, step) for step, term in present):
            self.wrong.append(f"the next attempt resumed from {step}@{term}, of {sorted(present)}")
        group.all("fill", 1000)
        self.acknowledged.add((1000, group.save(1000)))
        self.tried.add(1000)
        group.end()
        if self.daemon.stop() != 0:
            self.wrong.append("the daemon did not stop in order after the fault")
        self.check_lists(listed(self.daemon, RUN))
        if verified(self.daemon)["damaged"] != 0:
            self.wrong.append("verify finds damage")

    def end(self):
        said = self.daemon.log_path.read_text(errors="replace")  # in all its starts
        calls = re.search(r"^e2e_call: calls (.*)$", said, re.M)
        self.struck = "e2e_call: fault at" in said
        self.counts = {name: int(count) for name, count in re.findall(r"(\w+)=(\d+)", calls.group(1) if calls else "")}
        if self.wrong:
            print(f"\n=== {self.fault}   (CAIRN_CASE='^{self.fault}$' repeats it; kept in {self.bed.path})", flush=True)
            for what in self.wrong:
                print(f"  {what}", flush=True)
        self.bed.close(keep=bool(self.wrong))


class EveryCall(Case):
    def spread(self, counts):
        """Each number of each call with a fault by lot: for each call the middle one first, then the middles of the halves."""
        found = []
        for call in FAULTS:
            for number in range(1, counts[call] + 1):
                depth, low, high = 0, 1, counts[call]
                while number != (middle := (low + high) // 2):
                    low, high = (middle + 1, high) if number > middle else (low, middle - 1)
                    depth += 1
                found.append((depth, self.random.random(), f"{call}:{number}:{self.random.choice((*FAULTS[call], *KILLS))}"))
        return [fault for _, _, fault in sorted(found)]

    def cases(self, counts):
        every = [f"{call}:{number}:{how}" for call in FAULTS for number in range(1, counts[call] + 1) for how in (*FAULTS[call], *KILLS)]
        if CHOSEN:
            return [fault for fault in every if re.search(CHOSEN, fault)]
        if SECONDS is None:
            return every
        if SECONDS == SHORT_S:
            return self.spread(counts)
        self.random.shuffle(every)
        return every

    def run_case(self, base, number, fault):
        trial = Trial(base, number, fault)
        try:
            trial.go()
        except (Failure, EOFError, OSError, subprocess.SubprocessError, ValueError) as error:
            trial.wrong.append(f"the trial broke off: {type(error).__name__}: {error}")
        finally:
            trial.end()
        return trial

    def test_no_call_that_fails_costs_a_checkpoint(self):
        if "CAIRN_SANITIZE:STRING=\n" not in (BUILD / "CMakeCache.txt").read_text():
            self.skipTest("preloads go with a build without sanitizers")
        self.random = rng()
        base = Base(self.bed)
        dry = self.run_case(base, "dry", None)
        self.assertEqual(dry.wrong, [])
        for call in MUST_BE_CALLED:
            self.assertGreater(dry.counts[call], 0, f"{call} is not seen by e2e_call.so: {dry.counts}")
        end, tally, wrong, cases = time.monotonic() + (SECONDS or float("inf")), Counter(), [], self.cases(dry.counts)

        def take(numbered):
            if not CHOSEN and time.monotonic() > end:
                return
            trial = self.run_case(base, *numbered)
            with lock:
                tally.update(cases=1, struck=trial.struck, ends=trial.deaths, saves=len(trial.acknowledged))
                wrong.extend([trial.fault] * bool(trial.wrong))

        lock = threading.Lock()
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # a trial waits more than it works
            list(pool.map(take, enumerate(cases)))
        print(f"{tally['cases']} of {len(cases)} cases over {sum(dry.counts.values())} calls, {tally['struck']} of them struck, "
              f"{tally['ends']} ends of the daemon, {tally['saves']} acknowledged checkpoints; {len(wrong)} cases wrong: {wrong}",
              flush=True)
        self.assertEqual(wrong, [])
        self.assertGreater(tally["struck"], 0, "no fault was met: nothing was tried")


if __name__ == "__main__":
    if "--minutes" in sys.argv:
        at = sys.argv.index("--minutes")
        SECONDS = 60 * float(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    main()
