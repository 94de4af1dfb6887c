# SPDX-License-Identifier: Apache-2.0
"""The kills of one training: their moments, how a rank is told of them, and the end of a whole job."""

import contextlib
import dataclasses
import json
import os
import pathlib
import random
import signal
import time


@dataclasses.dataclass(frozen=True)
class Kill:
    """A SIGKILL, so many seconds after the training's optimizer has stepped so often.

    Attributes:
        number: Which of the training's kills this is.
        target: "all", "daemon", or the number of a rank.
        step: The steps behind the training at that moment, those before a restart included.
        seconds: How long after that step.
        is_last: Whether the program must not go on after it.
    """

    number: int
    target: str
    step: int
    seconds: float
    is_last: bool

    @property
    def kind(self) -> str:
        return {"all": "job", "daemon": "daemon"}.get(self.target, "rank")


def draw(moments: random.Random, count: int, steps: int, ranks: int, restarts: int) -> list:
    """Returns the kills for each start of a training: those of the daemon come between, and one that ends the program is the last of its
    start. The last start has none such. All three kinds are as likely, and the moments are spread over the whole training.

    Args:
        moments: Gives the moments.
        count: How many kills.
        steps: The steps of the whole training.
        ranks: The ranks of the training.
        restarts: How many dead ranks the framework starts again by itself.
    """
    starts: list = [[]]
    survived = 0
    for number, step in enumerate(sorted(moments.randint(1, steps) for _ in range(count))):
        target = moments.choice(["all", "daemon", str(moments.randrange(ranks))])
        if target.isdecimal() and survived == restarts > 0:
            target = "all"
        is_last = target == "all" or (target.isdecimal() and not restarts)
        starts[-1].append(Kill(number, target, step, moments.uniform(0, 0.05), is_last))
        survived = 0 if is_last else survived + target.isdecimal()
        if is_last:
            starts.append([])
    return starts


def to_text(kills: list) -> str:
    """Returns the kills of a start for the variable REACH_KILLS."""
    return json.dumps([dataclasses.astuple(kill) for kill in kills])


def from_text(text: str) -> list:
    return [Kill(*fields) for fields in json.loads(text or "[]")]


def _members(job: str) -> list:
    word, pids = f"REACH_JOB={job}".encode(), []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdecimal() and word in (folder / "environ").read_bytes().split(b"\0"):
                pids.append(int(folder.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return pids


def end_job(job: str) -> None:
    """Kills all processes of a job at once, this one last. They are known by their variable REACH_JOB, because torchrun and Ray give the
    ranks process groups of their own. The daemon is none of them. One that was just forked, or is in exec, where it shows no variables
    for a moment, is found by another round. Raises TimeoutError if one does not die within a minute."""
    quiet, until = 0, time.monotonic() + 60
    while quiet < 2:
        if time.monotonic() > until:
            raise TimeoutError(f"processes of {job} do not die: {others}")
        members = _members(job)
        others = [pid for pid in members if pid != os.getpid()]
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        quiet = 0 if others else quiet + 1
        time.sleep(0.01)
    if os.getpid() in members:
        os.kill(os.getpid(), signal.SIGKILL)
