# SPDX-License-Identifier: Apache-2.0
"""Runs the program of a guide's page in this process, dies where the harness says, and writes the final state.

Arguments: the framework, and the file for the final state (each rank adds its number). The environment says when to die:
REACH_KILL is "TARGET STEP SECONDS", where TARGET is all, daemon, or the number of a rank. So many seconds after this rank's
optimizer has stepped so often in this process, the target is killed.
"""

import functools
import importlib
import os
import pathlib
import signal
import sys
import threading

import torch

import cairn
from frameworks import FRAMEWORKS, IGNORED, program_of

FOLDER = pathlib.Path(os.environ["TMPDIR"])


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


def arm(framework):
    """Starts the clock of a kill at its step. A rank kills itself; rank 0 kills the whole job or the daemon. An attempt has one kill,
    also where the framework starts the ranks again."""
    plan = os.environ.get("REACH_KILL")
    if not plan or any(FOLDER.glob("killed.*")):
        return
    target, at, seconds = plan.split()
    rank = os.environ.get("RANK", "0")
    if rank != (target if target.isdecimal() else "0"):
        return
    count = 0

    def kill():
        note("killed", plan)
        if target == "all":
            os.killpg(int(os.environ["REACH_GROUP"]), signal.SIGKILL)
        os.kill(int(os.environ["REACH_DAEMON"]) if target == "daemon" else os.getpid(), signal.SIGKILL)

    def stepped():
        nonlocal count
        count += 1
        if count == int(at):
            threading.Timer(float(seconds), kill).start()

    FRAMEWORKS[framework].after_step(stepped)


def begin(framework):
    """Makes this process ready to be a rank."""
    torch.set_num_threads(1)
    FRAMEWORKS[framework].prepare(functools.partial(watch, framework))
    watch_restores(framework)
    arm(framework)


def end(framework, names, result):
    """Writes the final state of this rank."""
    path = f"{result}.{os.environ.get('RANK', '0')}"
    torch.save(FRAMEWORKS[framework].final(names), path + ".tmp")
    os.rename(path + ".tmp", path)


def main():
    framework, result = sys.argv[1:3]
    os.environ["REACH_GROUP"] = str(os.getpgrp())
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
