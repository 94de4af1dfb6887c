# SPDX-License-Identifier: Apache-2.0
"""Trains each framework's program twice: undisturbed, and killed at random moments and started again until it ends. Both
must end with the same bits: weights, optimizer, schedule, generators. Each row of the data is random, so that another order
of the data gives other weights.

    tests/reach/run build/release lightning --kills 20 --seed 7

A kill hits the whole job, one rank, or the daemon, which is then started again. The seed of the moments is printed.
"""

import argparse
import importlib.metadata
import os
import random
import signal
import subprocess
import sys

import torch

from frameworks import FRAMEWORKS, IGNORED, ROOT

sys.path.insert(0, str(ROOT / "tests" / "python"))

from bed import assert_same  # noqa: E402
from conftest import running_daemon  # noqa: E402
from together import free_port, torchrun  # noqa: E402

import cairn  # noqa: E402

STEPS = 48  # of each program
ATTEMPT_S = 300


class Job:
    """One training, in a folder and a run of its own."""

    def __init__(self, daemon, framework, ranks, name):
        self.daemon, self.framework, self.ranks, self.name = daemon, framework, ranks, name
        self.attempts = 0
        self.folder = daemon.folder / name
        self.folder.mkdir()
        self.environment = {**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}", "REACH_RUN": f"cairn:///py/{name}",
                            "TMPDIR": str(self.folder), "RAY_TMPDIR": str(daemon.folder), "RAY_AUTH_MODE": "disabled",
                            "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error", **FRAMEWORKS[framework].environment}

    def attempt(self, kill=""):
        """Starts the program once. Returns its exit status."""
        self.attempts += 1
        words = [sys.executable, str(ROOT / "tests" / "reach" / "drive.py"), self.framework, str(self.folder / "result")]
        if (self.ranks > 1 and FRAMEWORKS[self.framework].in_workers is None) or FRAMEWORKS[self.framework].is_launched:
            words[:1] = torchrun(self.ranks)
        with open(self.folder / "log", "ab") as log:
            process = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                                       env={**self.environment, "REACH_KILL": kill, "REACH_DAEMON": str(self.daemon.process.pid),
                                            "REACH_RANKS": str(self.ranks), "COORDINATOR": f"127.0.0.1:{free_port()}" if self.ranks > 1 else ""})
            try:
                status = self._watch(process)
            finally:
                self._end(process)
        return status

    def _watch(self, process):
        """Waits for the program. The daemon is started again if it goes."""
        waited = 0.0
        while waited < ATTEMPT_S:
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                waited += 0.1
            if self.daemon.process.poll() is not None:
                self.daemon.kill()
                self.daemon.start()
        raise RuntimeError(f"an attempt of {self.framework} did not end within {ATTEMPT_S} s:\n{self.tail()}")

    @staticmethod
    def _end(process):
        """Ends what a killed job has left: an agent does so."""
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.wait()

    def tail(self):
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def finish(self):
        """Lets the program come to its end."""
        if self.attempt() != 0:
            raise RuntimeError(f"{self.framework} on {self.ranks} ranks failed:\n{self.tail()}")

    def was_killed(self):
        """Returns whether the last attempt came to its moment."""
        notes = list(self.folder.glob("killed.*"))
        for path in notes:
            path.unlink()
        return bool(notes)

    def restored(self):
        """Returns what each rank has noted of its restarts: steps as texts, or "nothing". Raises AssertionError if a start has not asked
        for a checkpoint, or if it has begun anew although there was one."""
        found = []
        for rank in range(self.ranks):
            notes = (self.folder / f"restored.{rank}").read_text(encoding="utf-8").splitlines()
            assert len(notes) >= self.attempts, f"{self.framework}: rank {rank} asked for a checkpoint {len(notes)} times in {self.attempts} starts"
            passed = [note for note in notes if IGNORED in note]
            assert not passed, f"{self.framework}: rank {rank} resumed from {', '.join(passed)}"
            found.append(notes)
        return found

    def results(self):
        return [torch.load(self.folder / f"result.{rank}", weights_only=False) for rank in range(self.ranks)]


def undisturbed(daemon, framework, ranks):
    job = Job(daemon, framework, ranks, f"{framework}-{ranks}-whole")
    job.finish()
    with cairn.Client(daemon.url(job.name), read_only=True) as client:
        steps = {item.step: item.tags for item in client.list()}
    kept, wanted = [step for step, tags in steps.items() if "kept" in tags], FRAMEWORKS[framework].kept
    if wanted is not None:
        assert len(kept) == wanted and max(steps) in kept, f"{framework}: of {sorted(steps)} it keeps {sorted(kept)}"
    return job.results()


def disturbed(daemon, framework, ranks, kills, moments):
    """Returns (results, kills that hit, steps that the ranks resumed from)."""
    job = Job(daemon, framework, ranks, f"{framework}-{ranks}-killed")
    hit = 0
    while hit < kills:
        target = moments.choice(["all", "daemon", *map(str, range(ranks))])
        plan = f"{target} {moments.randrange(2, STEPS // 2)} {moments.uniform(0, 0.05):.4f}"
        status = job.attempt(plan)
        if not job.was_killed():
            if status != 0:
                raise RuntimeError(f"{framework} on {ranks} ranks failed before it was killed:\n{job.tail()}")
            break  # it was through before its moment
        hit += 1
        is_survived = target == "daemon" or (target != "all" and FRAMEWORKS[framework].in_workers is not None)
        if (status == 0) != is_survived:
            raise RuntimeError(f"{framework} on {ranks} ranks ended with {status} after the kill {plan!r}:\n{job.tail()}")
        if status == 0:
            break
    else:
        job.finish()
    return job.results(), hit, job.restored()


def prove_refusal(framework):
    """Raises RuntimeError unless one rank refuses, by name, what two ranks have saved within an epoch: it would lose samples."""
    with running_daemon() as daemon:
        job = Job(daemon, framework, 2, f"{framework}-2-1")
        job.attempt("all 7 0.05")
        killed, job.ranks = job.was_killed(), 1
        if not killed or job.attempt() == 0 or "UnsupportedError: UNSUPPORTED" not in job.tail():
            raise RuntimeError(f"{framework}: one rank did not refuse a checkpoint of two within an epoch:\n{job.tail()}")


def prove(framework, ranks, kills, moments):
    """Returns how many kills hit, and the steps that were resumed from. Raises AssertionError if the bits differ, if the ranks
    resumed from different steps, or if one of them began anew although there was a checkpoint."""
    with running_daemon() as daemon:
        whole = undisturbed(daemon, framework, ranks)
        killed, hit, restored = disturbed(daemon, framework, ranks, kills, moments)
    assert all(steps == restored[0] for steps in restored), f"{framework}: the ranks resumed from different steps: {restored}"
    for rank, (left, right) in enumerate(zip(whole, killed)):
        try:
            assert_same(left, right)
        except AssertionError as error:
            raise AssertionError(f"{framework} on {ranks} ranks: rank {rank} ended with other bits after {hit} kills, resumed from "
                                 f"{restored[0]}: {error}") from None
    return hit, restored[0]


def main():
    parser = argparse.ArgumentParser(description="Proves that killed trainings end as undisturbed ones do.")
    parser.add_argument("frameworks", nargs="*", metavar="FRAMEWORK", help=f"of {', '.join(FRAMEWORKS)}; all without one")
    parser.add_argument("--kills", type=int, default=4, help="of each framework and number of ranks")
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(1 << 30), help="of the moments")
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.frameworks) - set(FRAMEWORKS))
    if unknown:
        parser.error(f"{', '.join(unknown)} is not among {', '.join(FRAMEWORKS)}")
    print(f"tests/reach: --seed {arguments.seed}", flush=True)
    wanted, failed = arguments.frameworks or list(FRAMEWORKS), 0
    missing = [name for name in wanted if FRAMEWORKS[name].needs and not any(importlib.metadata.distributions(name=FRAMEWORKS[name].needs))]
    for framework in missing:
        print(f"SKIPPED {framework}: it is not installed", flush=True)
    if wanted == missing:
        return 77
    for framework in (name for name in wanted if name not in missing):
        try:
            if FRAMEWORKS[framework].is_refused:
                prove_refusal(framework)
                print(f"ok      {framework}, 2 ranks to 1 within an epoch: refused by name", flush=True)
        except RuntimeError as error:
            failed += 1
            print(f"FAILED  {error}", flush=True)
        for ranks in FRAMEWORKS[framework].ranks:
            try:
                hit, restored = prove(framework, ranks, arguments.kills, random.Random(f"{arguments.seed} {framework} {ranks}"))
                print(f"ok      {framework}, {ranks} ranks: the same bits after {hit} kills; resumed from {', '.join(restored)}", flush=True)
            except (AssertionError, RuntimeError) as error:
                failed += 1
                print(f"FAILED  {framework}, {ranks} ranks: {error}", flush=True)
        if FRAMEWORKS[framework].matrix:
            failed += subprocess.call([sys.executable, str(ROOT / "tests" / "reach" / FRAMEWORKS[framework].matrix)])
        if FRAMEWORKS[framework].tests:
            failed += subprocess.call([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", FRAMEWORKS[framework].tests],
                                      cwd=ROOT / "tests" / "python", env={**os.environ, **FRAMEWORKS[framework].environment})
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
