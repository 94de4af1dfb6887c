# SPDX-License-Identifier: Apache-2.0
"""Runs the program of a guide's page in this process, dies where the harness says, and writes the final state.

Arguments: the framework, and the file for the final state (each rank adds its number). The environment says when to die:
REACH_KILLS has the kills of this start, as kills.py writes them.
"""

import functools
import importlib
import logging
import os
import pathlib
import signal
import sys
import threading
import time

import torch

import cairn
from frameworks import FRAMEWORKS, IGNORED, program_of
from kills import end_job, from_text

FOLDER = pathlib.Path(os.environ["REACH_JOB"])
PACE_S = 0.02  # how much longer a step takes where a kill comes, so that saves are committed between the steps as in a training of any size

struck = set()  # the daemons that this rank has killed
done = 0  # steps behind the training


def note(name, text):
    """Adds a line to a file of this rank in the job's folder, for the harness."""
    with open(FOLDER / f"{name}.{os.environ.get('RANK', '0')}", "a", encoding="utf-8") as file:
        print(text, file=file)


def committed(framework):
    """Returns the newest committed step of the run that the framework's restart reads, or None."""
    with cairn.Client(os.environ["REACH_RUN"] + FRAMEWORKS[framework].beside, read_only=True) as client:
        return max((item.step for item in client.list()), default=None)


def watch(framework, owner, name, is_restart=lambda result: True):
    """Notes of each call that is a restart the step that it returns, or that it resumes from nothing. The daemon is asked before the
    call: a commit of the attempt before may still come after it."""
    call = getattr(owner, name)

    def noted(*args, **kwargs):
        there = committed(framework)
        result = call(*args, **kwargs)
        if is_restart(result):
            has_found = result is not None and result is not False and result != -1
            nothing = "nothing" if there is None else f"nothing{IGNORED}{there}"
            note("restored", os.path.basename(str(getattr(result, "step", result))) if has_found else nothing)
        return result

    setattr(owner, name, noted)


def watch_restores(framework):
    """Notes the step of each restore that the framework's restart makes."""
    module, name, method = FRAMEWORKS[framework].restores
    watch(framework, getattr(importlib.import_module(module), name), method)


class LogNotes(logging.Handler):
    """Notes what Cairn logs."""

    def emit(self, record):
        note("logged", record.getMessage())


def strike(kill):
    """Kills the target. A rank kills itself; rank 0 kills the whole job or the daemon."""
    if kill.target == "daemon":
        pid = (FOLDER / "daemon").read_text(encoding="utf-8")
        if pid in struck:
            return  # its successor has not started yet
        struck.add(pid)
        note("killed", kill.number)
        os.kill(int(pid), signal.SIGKILL)
        return
    note("killed", kill.number)
    if kill.target == "all":
        end_job(os.environ["REACH_JOB"])
    os.kill(os.getpid(), signal.SIGKILL)


def hits():
    """Returns the numbers of the kills that have hit."""
    return {int(number) for path in FOLDER.glob("killed.*") for number in path.read_text(encoding="utf-8").split()}


def arm(framework):
    """Counts the steps, and starts the clocks of this rank's kills at theirs. Those of a start that have hit before do not come again,
    also where the framework starts the ranks again, or gives this process another rank."""
    kills = from_text(os.environ.get("REACH_KILLS"))
    waiting = list(kills)

    def stepped(steps):
        global done
        done = steps
        rank = os.environ.get("RANK", "0")
        for kill in [kill for kill in waiting if kill.step <= steps and rank == (kill.target if kill.kind == "rank" else "0")]:
            waiting.remove(kill)
            if kill.number not in hits():
                threading.Timer(kill.seconds, strike, [kill]).start()
        if kills:
            time.sleep(PACE_S)

    FRAMEWORKS[framework].after_step(stepped)


def begin(framework):
    """Makes this process ready to be a rank."""
    torch.set_num_threads(1)
    logging.getLogger("cairn").setLevel(logging.INFO)
    logging.getLogger("cairn").addHandler(LogNotes())
    FRAMEWORKS[framework].prepare(functools.partial(watch, framework))
    watch_restores(framework)
    arm(framework)


def end(framework, names, result):
    """Writes the final state of this rank."""
    path = f"{result}.{os.environ.get('RANK', '0')}"
    torch.save(FRAMEWORKS[framework].final(names), path + ".tmp")
    os.rename(path + ".tmp", path)
    note("steps", done)


def main():
    framework, result = sys.argv[1:3]
    in_workers, names = FRAMEWORKS[framework].in_workers, {"__name__": "__main__"}
    if in_workers is None:
        begin(framework)
    else:
        in_workers(lambda: begin(framework), lambda names: end(framework, names, result))
    sys.argv = sys.argv[:1]
    exec(compile(program_of(framework), f"docs/{framework}.md", "exec"), names)  # the page's own program
    if in_workers is None:
        end(framework, names, result)


if __name__ == "__main__":
    main()
