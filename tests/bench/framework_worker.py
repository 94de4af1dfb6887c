#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One training in one framework, which saves in one way; told what to do by bench_frameworks.py.

`segment N` is N steps without a save, a save, and N steps more. A thread waits until the save is durable, also while the training
goes on. What the framework's own way has written is then fsynced by that thread, since most frameworks leave this out.
"""

import importlib
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path

from benchlib import Proc

POLL_S = 0.005


class Way:
    """One framework, saving in its own way or in Cairn. ``job`` says which one, and where. What the framework trains is made by
    ``__init__`` or ``run``; ``handle`` is a save in Cairn."""

    own = "asynchronous"  # what the framework's own way is called

    def __init__(self, job):
        self.job, self.is_cairn, self.url = job, job["side"] == "cairn", job["url"]
        self.folder, self.synced, self.handle = Path(job["folder"]), set(), None

    def serve(self, lines, answer):
        self.run(requests(self, lines, answer))

    def run(self, wanted):
        """Trains: a step for each item of ``wanted``."""
        for _ in wanted:
            self.step()

    def step(self):
        raise NotImplementedError

    def save(self, number):
        raise NotImplementedError

    def is_done(self):
        """Whether the save has ended. A thread of its own asks. A way that is not asynchronous has ended when it returned."""
        return self.handle is None or self.handle.durable.done()

    def finish(self):
        """After the last step of a segment: what the training's thread must do for the save to end."""

    def sync(self):
        """Files and folders of the framework's own way, to the disk."""
        for path in [self.folder, *self.folder.rglob("*")] if not self.is_cairn else []:
            if path not in self.synced or path.is_dir():
                try:
                    fd = os.open(path, os.O_RDONLY)
                except FileNotFoundError:
                    continue  # renamed meanwhile by a later save
                os.fsync(fd)
                os.close(fd)
                self.synced.add(path)

    def close(self):
        pass


def memory_of(pid):
    """Returns bytes that a process has for itself or in memory files of Cairn, and those of them that are an arena."""
    own, arena, name = 0, 0, ""
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if "-" in words[0]:
            name = words[5] if len(words) > 5 else ""
        elif words[0] == "Rss:" and "memfd:cairn" in name:
            own += int(words[1]) * 1024
            arena += int(words[1]) * 1024 if "arena" in name else 0
        elif words[0].startswith("Private_") and "memfd:cairn" not in name:
            own += int(words[1]) * 1024
    return own, arena


def helpers_memory(pid="self"):
    """Returns what memory_of says of all processes below this one."""
    own = arena = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        try:
            for child in (task / "children").read_text().split():
                for found in (memory_of(child), helpers_memory(child)):
                    own, arena = own + found[0], arena + found[1]
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
    return own, arena


class Watch(threading.Thread):
    """Waits until a save has ended, and then until it is durable. ``is_weighing``: looks at the memory of helper processes, too, which
    takes time."""

    def __init__(self, way, is_weighing):
        super().__init__(daemon=True)
        self.way, self.is_weighing = way, is_weighing
        self.ended = self.durable = self.error = None  # moments; the error
        self.helpers = (0, 0)
        self.start()

    def run(self):
        try:
            while not self.way.is_done():
                self.helpers = max(self.helpers, helpers_memory() if self.is_weighing else (0, 0))
                time.sleep(POLL_S)
            self.ended = time.monotonic()
            self.way.sync()
            self.durable = time.monotonic()
        except BaseException as error:  # told by end()
            self.error = error

    def end(self):
        self.join()
        if self.error is not None:
            raise self.error


def segment(way, number, steps):
    """Yields for each step that is wanted; returns the seconds of the save."""
    free, busy, synced = [], [], []  # steps without a save, with one in flight, and while the benchmark calls fsync
    before = time.monotonic()
    for _ in range(steps):
        now = time.monotonic()
        yield
        free.append(time.monotonic() - now)
    peak = Proc("self").status_bytes("VmHWM")
    begin, busy_s = time.monotonic(), time.thread_time()
    way.save(number)
    blocked, busy_s = time.monotonic() - begin, time.thread_time() - busy_s
    watch = Watch(way, number == 1)
    for _ in range(steps):
        now, kind = time.monotonic(), free if watch.durable else synced if watch.ended else busy
        yield
        kind.append(time.monotonic() - now)
    end = time.monotonic()
    way.finish()
    over = time.monotonic() - end
    watch.end()
    over = max(over, watch.ended - end)
    usual = statistics.median(free)
    return {"blocked": blocked, "blocked_cpu": busy_s, "durable": watch.durable - begin,
            "lost": blocked + sum(busy) - len(busy) * usual + over, "extra": end - begin + over - (begin - before),
            "step": usual, "peak": peak, "helpers": watch.helpers}


def requests(way, lines, answer):
    """Yields whenever a step of the training is wanted, as the driver's lines say."""
    for _ in range(5):
        yield
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    for _ in range(45):  # until the training alone has had its peak, which DeepSpeed's has only now and then
        yield
    answer({"own": way.own})
    number, before = 0, None
    for line in lines:
        number += 1
        seconds = yield from segment(way, number, int(line.split()[1]))
        before = before or seconds["peak"]  # of the training alone
        helpers, arena = seconds.pop("helpers")
        seconds["memory"] = Proc("self").status_bytes("VmHWM") - before + helpers
        seconds["arena"] = memory_of("self")[1] + arena
        answer(seconds)


def way_of(job):
    name = job["framework"]
    module = importlib.import_module(f"framework_{job['module']}")
    return {cls.name: cls for cls in vars(module).values() if hasattr(cls, "name")}[name](job)


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not meet the answers

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    way = way_of(json.loads(sys.argv[1]))
    way.serve(sys.stdin, answer)
    way.close()


if __name__ == "__main__":
    main()
