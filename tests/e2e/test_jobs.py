# SPDX-License-Identifier: Apache-2.0
"""Training jobs under random kills and pauses end with the bits of an undisturbed run (I1, I2, I4, I5, I7).

Method: many jobs of cairn-trainer share one daemon. At random moments ranks and the daemon are killed (SIGKILL), paused
(SIGSTOP, SIGCONT) or, the daemon, stopped in order; a job that lost a rank is started again as a launcher would, and resumes
from `latest`. Sometimes a rank that was given up lives on, paused, beside the attempt that replaced it. Each attempt must
resume from what is acknowledged or newer; an attempt that nobody disturbed must succeed; at the end each rank's state is that
of a job of the same seed on a daemon that nobody disturbs, also when it is restored once more; everything that a rank was told
to be durable is listed; `cairn verify` is clean by the server and without it. The long form:

    CAIRN_BUILD=$PWD/build/release python3 tests/e2e/test_jobs.py --jobs 24 --minutes 30

goes on with new jobs, round after round, and ends with one line of figures. A seed repeats all decisions, not their timing."""

import json
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter

from harness import BIN, FULL, Case, Daemon, Failure, listed, main, rng, token, verified

JOBS, SECONDS = 6, 600.0 if FULL else 0.0  # at least one round
JOB_STRIKES_S = 2.5   # of strikes, for each job of a round
STEPS, SAVE_EVERY, STEP_MS = 240, 6, 12
JOB_STRIKE_S = 1.2    # mean time between strikes at one job, and
DAEMON_STRIKE_S = 1.5  # at the daemon
END_S = 240.0         # for all jobs to end once nobody disturbs them, under a sanitizer on a busy machine
DONE, UNSAVED, FENCED, UNOPENED, UNRESTORED = 0, 3, 4, 5, 6  # exit statuses of cairn-trainer
BEGINNINGS = (("empty", "OK"), ("restored", "OK"))
NAMED = (UNSAVED, FENCED, UNOPENED, UNRESTORED)


class Job:
    """One run, trained attempt after attempt. `daemon` changes from the calm one to the one under fire."""

    def __init__(self, bed, random, number, name):
        self.bed, self.random, self.name = bed, random, f"{name}-{number}"
        self.run = f"jobs/{name}-{number}"
        self.world = random.choice((1, 2, 2, 3))
        self.hidden = random.choice((16, 48, 96))
        self.seed = random.randrange(2**32)
        self.ranks, self.orphans, self.reports = [], [], []
        self.attempts = self.resumed = self.first_report = 0
        self.acknowledged = set()  # (step, term)
        self.known = 0  # acknowledged checkpoints when the attempt began
        self.is_disturbed = self.is_through = self.may_be_fenced = False
        self.due = None  # when the launcher notices that a rank is gone

    def path(self, what):
        return self.bed.path / f"{self.name}.{what}"

    def trainer(self, daemon, rank, attempt, *more):
        report = self.path(f"report-{len(self.reports)}")
        self.reports.append([report, 0])
        with open(self.path("log"), "ab") as log:
            return self.bed.start([BIN / "cairn-trainer", "--url", daemon.url(self.run), "--rank", rank, "--world", self.world,
                                   "--attempt", attempt, "--hidden", self.hidden, "--seed", self.seed, "--steps", STEPS,
                                   "--save-every", SAVE_EVERY, "--report", report, "--save-deadline-ms", 20000, *more],
                                  stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def begin(self, daemon, step_ms, *more):
        self.read_reports()
        self.floor = max(((term, step) for step, term in self.acknowledged), default=(0, 0))
        # The one before may have asked for its term and died: where that comes after this one's restore, this one is fenced.
        self.may_be_fenced = self.attempts > 0 and self.known == len(self.acknowledged)
        self.known = len(self.acknowledged)
        self.attempts += 1
        self.is_disturbed, self.due, attempt = False, None, token()
        self.path("digest").unlink(missing_ok=True)
        self.ranks = [self.trainer(daemon, rank, attempt, "--step-ms", step_ms, "--resume", "--digest", self.path("digest"), *more)
                      for rank in range(self.world)]
        self.first_report = len(self.reports) - self.world

    def read_reports(self):
        """Takes in the new lines of all reports, also of ranks that were given up; checks what was resumed from."""
        for number, entry in enumerate(self.reports):
            path, seen = entry
            text = path.read_text() if path.exists() else ""
            whole = text[seen:text.rfind("\n") + 1]
            entry[1] += len(whole)
            for line in whole.splitlines():
                said = json.loads(line)
                key = said["step"], said["term"]
                if said["event"] == "durable":
                    self.acknowledged.add(key)
                elif number >= self.first_report and (said["event"], said["code"]) in BEGINNINGS:
                    self.resumed += said["event"] == "restored"
                    if (said["term"], said["step"]) < self.floor:
                        raise Failure(f"{self.run}: attempt {self.attempts} began at {key}, but {self.floor} (term, step) is durable")

    def look(self, launch):
        """Ended ranks; a job of which one is gone is started again. Returns whether it is through."""
        if self.is_through:
            return True
        codes = [rank.poll() for rank in self.ranks]
        for code in codes:
            if code is not None and code not in (DONE, -signal.SIGKILL, *NAMED):
                raise Failure(f"{self.run}: a rank ended with {code}")
            if code is not None and code != DONE and not self.is_disturbed and not (code == FENCED and self.may_be_fenced):
                raise Failure(f"{self.run}: a rank ended with {code} in attempt {self.attempts}, which nobody disturbed")
        if all(code == DONE for code in codes):
            self.read_reports()
            self.is_through = True
        elif any(code not in (None, DONE) for code in codes) or all(code is not None for code in codes):
            self.due = self.due or time.monotonic() + self.random.choice((0, 0, 0.1, 0.6))
            if time.monotonic() >= self.due:
                self.end_ranks()
                launch(self)
        return self.is_through

    def end_ranks(self):
        """What a launcher does with the others of a failed attempt; one may escape it for a while."""
        for rank in self.ranks:
            if rank.poll() is None and self.random.random() < 0.25:
                rank.send_signal(signal.SIGSTOP)
                self.orphans.append((rank, time.monotonic() + self.random.uniform(0.2, 2)))
            elif rank.poll() is None:
                rank.kill()
        for rank in self.ranks:
            if not any(rank is orphan for orphan, _ in self.orphans):
                rank.wait()

    def free_orphans(self, now):
        for orphan, until in self.orphans[:]:
            if now >= until:
                orphan.send_signal(signal.SIGCONT)
                self.orphans.remove((orphan, until))

    def digests(self):
        return self.path("digest").read_text()


class Jobs(Case):
    def note(self, text):
        print(f"{time.monotonic() - self.began:7.2f} {text}", flush=True)

    def test_jobs_under_kills_end_bit_identical(self):
        self.random, self.began, self.tally = rng(), time.monotonic(), Counter()
        rounds, wanted = 0, ("kills of ranks", "kills of daemon", "ranks that resumed")
        while rounds < 4 and not all(self.tally[what] for what in wanted) or time.monotonic() - self.began < SECONDS:
            self.round(rounds)
            rounds += 1
        print(f"{rounds} rounds in {time.monotonic() - self.began:.0f} s: " +
              ", ".join(f"{count} {name}" for name, count in sorted(self.tally.items())) + "; all bit-identical, nothing lost", flush=True)
        for what in wanted:
            self.assertGreater(self.tally[what], 0, f"no {what}: nothing was tried")

    def round(self, number):
        keys = {"log_level": "info", "save_rank_grace": "2s", "restore_drain": "3s"}
        calm = Daemon(self.bed, f"calm{number}", **keys).start()
        daemon = Daemon(self.bed, f"store{number}", **keys).start()
        jobs = [Job(self.bed, self.random, one, f"r{number}") for one in range(JOBS)]
        wanted = self.undisturbed(jobs, calm)
        self.down = []  # [(when, what is done then)]
        for job in jobs:
            job.begin(daemon, STEP_MS)
        self.fire(jobs, daemon)
        self.until_through(jobs, daemon)
        self.compare(jobs, daemon, wanted)
        self.assertEqual((calm.stop(), daemon.stop()), (0, 0), daemon.tail())
        verified(daemon, timeout_s=END_S)
        shutil.rmtree(calm.store)
        shutil.rmtree(daemon.store)
        self.tally["jobs"] += JOBS
        self.tally["attempts"] += sum(job.attempts for job in jobs)
        self.tally["ranks that resumed"] += sum(job.resumed for job in jobs)
        self.tally["acknowledged"] += sum(len(job.acknowledged) for job in jobs)
        self.note(f"round {number}: {dict(self.tally)}")

    def undisturbed(self, jobs, calm):
        """The digests of each job when nothing happens to it."""
        found = {}
        for job in jobs:
            job.begin(calm, 0)
            for rank in job.ranks:
                if rank.wait(END_S) != DONE:
                    raise Failure(f"{job.run}: nobody disturbed it, and it ended with {rank.returncode}")
            found[job.run] = job.digests()
            if len(found[job.run].splitlines()) != job.world:
                raise Failure(f"{job.run}: no digest of each rank: {found[job.run]}")
            for report, _ in job.reports:
                report.unlink()
            job.reports, job.attempts, job.acknowledged = [], 0, set()
        return found

    # --- strikes

    def fire(self, jobs, daemon):
        """Until the time of strikes is over or all jobs are through."""
        end = time.monotonic() + JOB_STRIKES_S * len(jobs)
        at_jobs = at_daemon = time.monotonic()
        while (now := time.monotonic()) < end:
            if all([job.look(lambda job: job.begin(daemon, STEP_MS)) for job in jobs]):
                return
            self.tend(jobs, daemon, now)
            if now >= at_jobs:
                self.strike_job(self.random.choice(jobs), now)
                at_jobs = now + self.random.expovariate(len(jobs) / JOB_STRIKE_S)
            if now >= at_daemon and not self.down:
                self.strike_daemon(jobs, daemon, now)
                at_daemon = now + self.random.expovariate(1 / DAEMON_STRIKE_S)
            time.sleep(0.002)

    def tend(self, jobs, daemon, now):
        """Ends the pauses that are over."""
        for entry in [entry for entry in self.down if now >= entry[0]]:
            self.down.remove(entry)
            entry[1]()
        if not self.down and daemon.process.poll() is not None:
            raise Failure(f"cairnd ended by itself, with {daemon.process.returncode}:\n{daemon.tail()}")
        for job in jobs:
            job.free_orphans(now)

    def strike_job(self, job, now):
        living = [rank for rank in job.ranks if rank.poll() is None]
        if job.is_through or len(living) < job.world:
            return
        job.is_disturbed = True
        fault = self.random.choice(("kill", "kill", "kill all", "pause"))
        victims = living if fault == "kill all" else [self.random.choice(living)]
        if fault == "pause":
            victims[0].send_signal(signal.SIGSTOP)
            job.orphans.append((victims[0], now + self.random.uniform(0, 0.6)))
            self.tally["pauses of ranks"] += 1
            return
        for victim in victims:
            victim.kill()
            self.tally["kills of ranks"] += 1

    def strike_daemon(self, jobs, daemon, now):
        for job in jobs:
            job.is_disturbed = True
        fault = self.random.choice(("kill", "kill", "pause", "stop"))
        if self.tally["strikes at the daemon"] == 1 and self.tally["kills of daemon"] == 0:
            fault = "kill"  # a slow machine may come to few strikes
        self.tally["strikes at the daemon"] += 1
        self.tally[f"{fault}s of daemon"] += 1
        later = now + self.random.choice((0, 0.05, 0.4))
        if fault == "pause":
            daemon.process.send_signal(signal.SIGSTOP)
            self.down.append((later, lambda: daemon.process.send_signal(signal.SIGCONT)))
            return
        if fault == "kill":
            daemon.kill()
        elif daemon.stop() != 0:
            raise Failure(f"cairnd did not stop in order:\n{daemon.tail()}")
        self.down.append((later, daemon.start))

    # --- the end

    def until_through(self, jobs, daemon):
        """Nobody strikes any more: each job comes to its end."""
        end = time.monotonic() + END_S
        while not all([job.look(lambda job: job.begin(daemon, 0)) for job in jobs]):
            self.tend(jobs, daemon, time.monotonic())
            if time.monotonic() > end:
                raise Failure(f"not at their end: {[job.run for job in jobs if not job.is_through]}")
            time.sleep(0.005)
        for _, then in self.down:
            then()
        self.down = []
        for job in jobs:
            job.free_orphans(float("inf"))

    def compare(self, jobs, daemon, wanted):
        verified(daemon, "server", timeout_s=END_S)
        for job in jobs:
            if job.digests() != wanted[job.run]:
                raise Failure(f"{job.run}: THE RUNS DIFFER\n{job.digests()}{wanted[job.run]}")
            job.read_reports()
            lost = job.acknowledged - set(listed(daemon, job.run, "server"))
            if lost:
                raise Failure(f"{job.run}: acknowledged, but not listed: {lost}")
            job.begin(daemon, 0, "--restore-only")
            if [rank.wait(END_S) for rank in job.ranks] != [DONE] * job.world or job.digests() != wanted[job.run]:
                raise Failure(f"{job.run}: a restore of the end gives something else")


def flag(name, value):
    if name in sys.argv:
        at = sys.argv.index(name)
        value = type(value)(sys.argv[at + 1])
        del sys.argv[at:at + 2]
    return value


if __name__ == "__main__":
    JOBS, SECONDS = flag("--jobs", JOBS), 60 * flag("--minutes", SECONDS / 60)
    main()
