# SPDX-License-Identifier: Apache-2.0
"""No mapping, allocation, stack, descriptor or tensor of a trainer's threads is ever touched by clients beside them.

Goal: libcairn lives in the training process, and what it maps and unmaps is its own. Method: e2e_trainer_memory runs
threads that map, allocate, start threads and fork, and check what they hold, beside clients that open, register,
grow, retire and free arenas, while the daemon dies and is stopped. With "delay" each munmap of libcairn lasts until
all those threads have mapped something before it and after it; every other round goes without.

    CAIRN_BUILD=$PWD/build/release python3 tests/e2e/test_trainer_memory.py --minutes 30
    CAIRN_BUILD=$PWD/build/tsan setarch -R python3 tests/e2e/test_trainer_memory.py --minutes 30

ends with one line of figures. Without --minutes it takes CAIRN_SECONDS, or 10 s."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

from harness import BIN, FULL, Case, Daemon, Failure, main, rng

ROUND_S = 20.0
# ThreadSanitizer keeps a book of descriptors that tells of races where there are none: libuv closes by syscall(), and
# memfd_create() is not known, so that two files with one number, one after the other, are the same to it.
TSAN_SUPPRESSIONS = "".join(f"race_top:^{prefix}{call}$\n" for prefix in ("", "__interceptor_") for call in (
    "accept", "accept4", "close", "dup", "epoll_create", "epoll_create1", "eventfd", "open", "pipe", "pipe2", "socket", "socketpair"))
END_S = 120.0  # for a process that is to end: its saves' deadline, under a sanitizer on a busy machine
SECONDS = float(os.environ.get("CAIRN_SECONDS", "600" if FULL else "10"))
MORE_S = 120.0  # what a busy machine gets in addition, until each of these was done at least once
DONE = ("opens", "saves", "restores", "unmaps")


class TrainerMemory(Case):
    def test_nothing_of_another_thread_is_touched(self):
        self.random = rng()
        sums, rounds, began = Counter(), 0, time.monotonic()
        round_s = min(ROUND_S, SECONDS / 2)
        while (left := began + SECONDS - time.monotonic()) > 0 or (left > -MORE_S and not all(sums[name] for name in DONE)):
            sums.update(self.round(rounds, min(round_s, left) if left > 0 else round_s))
            rounds += 1
        print(f"{rounds} rounds in {time.monotonic() - began:.0f} s: " +
              ", ".join(f"{count} {name}" for name, count in sums.items()) + "; 0 crashes, 0 changed bytes", flush=True)
        for name in DONE:
            self.assertGreater(sums[name], 0, f"no {name}: nothing was tried")

    def round(self, number, seconds):
        """A fresh store, and one process beside a daemon that dies now and then: what the process says it did."""
        how = "plain" if number % 2 else "delay"
        suppressions = self.bed.path / "tsan.supp"
        suppressions.write_text(TSAN_SUPPRESSIONS)
        environment = {**os.environ, "CAIRN_TRANSPORT": self.random.choice(("auto", "auto", "memfd", "socket")),
                       "TSAN_OPTIONS": os.environ.get("TSAN_OPTIONS", "halt_on_error=1") + f":suppressions={suppressions}"}
        daemon = Daemon(self.bed, f"store{number}", log_level="info", save_rank_grace="2s").start()
        with open(self.bed.path / "trainer.log", "ab") as log:
            trainer = self.bed.start([BIN / "e2e_trainer_memory", daemon.url(f"trainer/{how}"),
                                      self.random.randrange(2**32), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                     stderr=log, env=environment)
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and self.lives(trainer, min(left, self.random.uniform(0.3, 4))):
            self.strike(daemon, trainer)
        trainer.stdin.close()
        if trainer.wait(END_S) != 0:
            text = (self.bed.path / "trainer.log").read_text(errors="replace")
            raise Failure(f"round {number} ({how}): the process ended with {trainer.returncode}:\n{text[-3000:]}")
        did = json.loads(trainer.stdout.read())
        self.assertEqual(daemon.stop(), 0, daemon.tail())
        shutil.rmtree(daemon.store)
        return did

    def lives(self, trainer, seconds):
        """Waits so long; whether the process is there still."""
        try:
            trainer.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            return True

    def strike(self, daemon, trainer):
        fault = self.random.choice(("kill", "kill", "pause", "none"))
        if fault == "kill":
            daemon.kill()
            self.lives(trainer, self.random.choice((0, 0.2)))
            daemon.start()
        elif fault == "pause":
            daemon.process.send_signal(signal.SIGSTOP)
            self.lives(trainer, 0.3)
            daemon.process.send_signal(signal.SIGCONT)


if __name__ == "__main__":
    if "--minutes" in sys.argv:
        at = sys.argv.index("--minutes")
        SECONDS = 60 * float(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    main()
