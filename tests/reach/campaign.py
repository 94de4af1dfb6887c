# SPDX-License-Identifier: Apache-2.0
"""Rounds of kills over rows of frameworks and ranks, and what became of them."""

import collections
import dataclasses
import json
import os
import pathlib
import random
import shutil
import stat
import time

import cairn
from bed import assert_same
from conftest import running_daemon

from frameworks import FRAMEWORKS
from jobs import Job
from kills import draw

BUILD = pathlib.Path(os.environ["CAIRND"]).parents[1]
KINDS = ("job", "rank", "daemon")
MOST_FAILURES = 3  # of a row, which is then left out


class OtherBits(AssertionError):
    """A killed training has ended otherwise than the undisturbed one."""


@dataclasses.dataclass
class Tally:
    """What became of the kills of a row, or of all.

    Attributes:
        kills: How many have hit, by kind.
        rounds: Trainings that were killed.
        resumed: Restarts from a checkpoint.
        from_nothing: Restarts from nothing, when none was committed.
        other_bits: Trainings that ended with other bits.
        failed: Trainings that failed otherwise.
    """

    kills: collections.Counter = dataclasses.field(default_factory=collections.Counter)
    rounds: int = 0
    resumed: int = 0
    from_nothing: int = 0
    other_bits: int = 0
    failed: int = 0

    def add(self, other):
        for field in dataclasses.fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))

    def document(self):
        return {**dataclasses.asdict(self), "kills": {kind: self.kills[kind] for kind in KINDS}}

    def __str__(self):
        kinds = ", ".join(f"{self.kills[kind]} of {name}" for kind, name in zip(KINDS, ("the job", "a rank", "the daemon")))
        return (f"{self.kills.total()} kills ({kinds}) in {self.rounds} trainings; {self.resumed} restarts from a checkpoint, "
                f"{self.from_nothing} from nothing with none committed; {self.other_bits} with other bits, {self.failed} failed")


def undisturbed(framework, ranks):
    """Trains without a kill. Returns (what each rank ended with, steps of the training)."""
    with running_daemon() as daemon:
        job = Job(daemon, framework, ranks, f"{framework}-{ranks}-whole")
        job.finish()
        with cairn.Client(daemon.url(job.name), read_only=True) as client:
            steps = {item.step: item.tags for item in client.list()}
        results = job.results(), job.steps()
    kept, wanted = [step for step, tags in steps.items() if "kept" in tags], FRAMEWORKS[framework].kept
    if wanted is not None:
        assert len(kept) == wanted and max(steps) in kept, f"{framework}: of {sorted(steps)} it keeps {sorted(kept)}"
    return results


def disturbed(job, starts, tally):
    """Trains, killed as ``starts`` says and started again until it ends. Adds the kills that have hit to the tally. Raises RuntimeError
    if a start fails without a kill, or outlives one that must end it."""
    for kills in starts:
        status = job.attempt(kills)
        hit = [kill for kill in kills if kill.number in job.killed()]
        tally.kills.update(kill.kind for kill in hit)
        if (status != 0) != any(kill.is_last for kill in hit):
            raise RuntimeError(f"start {job.attempts} ended with {status} after the kills {hit}:\n{job.tail()}")
        if status == 0:
            return  # it may be through before a moment


def compare(whole, job):
    """Raises OtherBits unless each rank of a job has ended with the bits of the undisturbed training."""
    for rank, (left, right) in enumerate(zip(whole, job.results(), strict=True)):
        try:
            assert_same(left, right)
        except AssertionError as error:
            raise OtherBits(f"rank {rank} ended with other bits, resumed from {', '.join(job.restored())}: {error}") from None


def keep(daemon, name):
    """Moves what a failed round has left to a folder of the build, without sockets. Returns the folder."""
    def sockets(folder, names):
        return [name for name in names if stat.S_ISSOCK(os.lstat(os.path.join(folder, name)).st_mode)]

    if daemon.process.poll() is None:
        daemon.kill()  # no file may go while it is copied
    kept = BUILD / "reach-failed" / name
    shutil.rmtree(kept, ignore_errors=True)
    shutil.copytree(daemon.folder, kept, symlinks=True, ignore=sockets)
    return kept


class Campaign:
    """Rounds, and their sums.

    Args:
        kills: How many moments a round has.
    """

    def __init__(self, kills):
        self.kills = kills
        self.tallies = {}  # by (framework, ranks)
        self._whole = {}  # what the undisturbed training of a row has ended with, and its steps

    def round(self, framework, ranks, seed):
        """Trains a row once, killed as the seed says, and prints what became of it. A failed one leaves its logs, and is not raised."""
        row, tally, begun = (framework, ranks), Tally(rounds=1), time.monotonic()
        try:
            if row not in self._whole:
                self._whole[row] = undisturbed(*row)
            with running_daemon() as daemon:
                try:
                    said = f"the same bits after {self._disturb(row, seed, daemon, tally)}"
                except (AssertionError, RuntimeError) as error:
                    raise type(error)(f"{error}\n  logs:  {keep(daemon, f'{framework}-{ranks}-{seed}')}") from None
        except (AssertionError, RuntimeError) as error:
            tally.other_bits, tally.failed = int(isinstance(error, OtherBits)), int(not isinstance(error, OtherBits))
            said = (f"{error}\n  again: tests/reach/run {os.path.relpath(BUILD)} {framework} --ranks {ranks} --kills {self.kills} "
                    f"--total 1 --seed {seed}")
        self.tallies.setdefault(row, Tally()).add(tally)
        print(f"{'FAILED' if tally.failed or tally.other_bits else 'ok':7} {framework}, {ranks} ranks, seed {seed}, "
              f"{time.monotonic() - begun:.0f} s: {said}", flush=True)

    def _disturb(self, row, seed, daemon, tally):
        """Trains a row once with a daemon. Returns a text of what has hit. Raises OtherBits, or AssertionError or RuntimeError for another
        failure; the tally has what happened before."""
        framework, ranks = row
        whole, steps = self._whole[row]
        job = Job(daemon, framework, ranks, f"{framework}-{ranks}-killed")
        moments = random.Random(f"{seed} {framework} {ranks}")
        disturbed(job, draw(moments, self.kills, steps, ranks, FRAMEWORKS[framework].restarts(ranks)), tally)
        restored = job.restored()
        tally.from_nothing = restored[1:].count("nothing")
        tally.resumed = len(restored) - 1 - tally.from_nothing
        compare(whole, job)
        if not tally.kills:
            raise RuntimeError(f"no kill has hit:\n{job.tail()}")
        return f"{tally.kills.total()} kills; resumed from {', '.join(restored)}"

    def run(self, rows, seed, total, seconds):
        """Repeats the rows with one seed after the other until so many kills have hit, until the time is over, or until all rows fail."""
        until = time.monotonic() + seconds
        while rows:
            for row in rows:
                if self.sum().kills.total() >= total or time.monotonic() > until:
                    return
                self.round(*row, seed)
            rows = [row for row in rows if self.tallies[row].failed + self.tallies[row].other_bits < MOST_FAILURES]
            seed += 1

    def sum(self):
        total = Tally()
        for tally in self.tallies.values():
            total.add(tally)
        return total

    def print(self, path):
        """Prints the sum by row and of all, and writes them to a file of JSON, if it has a path."""
        for (framework, ranks), tally in self.tallies.items():
            print(f"sum     {framework}, {ranks} ranks: {tally}")
        print(f"sum     all: {self.sum()}", flush=True)
        if path:
            rows = [{"framework": framework, "ranks": ranks, **tally.document()} for (framework, ranks), tally in self.tallies.items()]
            path.write_text(json.dumps({"rows": rows, "sum": self.sum().document()}, indent=1) + "\n", encoding="utf-8")
