#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the page and its API cost: answers with many runs and checkpoints, and saves while pages are open.

A pair of saves lasts a second and a machine's speed moves by a tenth within minutes, so that saves with nobody, one page and
many pages take turns for --minutes, and each is compared with the save of nobody in its own turn. Told is the median of these
differences with its interval of 95 %; a goal is met if the interval's upper end meets it. The store is in memory (--dir), where
a save is shortest and the pages' part of it is largest. With tests/browser's environment and Chromium (--browser) the first
paint is measured as well. The records are made by many_checkpoints."""

import argparse
import heapq
import http.client
import json
import math
import multiprocessing
import os
import re
import selectors
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

from benchlib import MIB, SOURCE, Daemon, Place, cairn_group, say

PAGE_FILES = ("/", "/page.css", "/page.js", "/icon.svg")
POLL_S = 2  # as in data.js


class Web(Daemon):
    """A daemon with its address for HTTP."""

    def __init__(self, place, build):
        super().__init__(place, build, "store", more=("--http-listen", "127.0.0.1:0", "--scrub-every", "0s", "--gc-every", "0s",
                                                    "--store-single-writer", "yes"))  # a store in memory is for tests
        host, _, port = (place.path / "store.log").read_text().split("http: listening addr=tcp:")[1].split()[0].rpartition(":")
        self.address = host, int(port)

    def get(self, path):
        peer = http.client.HTTPConnection(*self.address, timeout=60)
        peer.request("GET", path)
        answer = peer.getresponse()
        body = answer.read()
        peer.close()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}: {body[:200]!r}")
        return body


def milliseconds(call, times):
    spent = []
    for _ in range(times):
        time.sleep(1.1)  # until the daemon keeps no answer of the call before
        began = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(spent), 2)


def fill(build, url, options):
    """Makes the records; the first run makes the store."""
    for number in range(options.runs):
        subprocess.run([build / "bin/many_checkpoints", url, f"team{number % 20}/run{number}", str(options.checkpoints)], check=True)


def all_runs(daemon):
    """The whole list, page by page, as the page asks for it; an argument that nobody asked before avoids a kept answer."""
    after, count = "", 0
    while after is not None:
        page = json.loads(daemon.get(f"/api/v1/runs?limit=100&checkpoints={60 + all_runs.turn}{after and '&after=' + after}"))
        count += len(page["runs"])
        after = page["next"]
    all_runs.turn += 1
    return count


all_runs.turn = 0


class Page:
    """One open page: what data.js asks, over one connection."""

    def __init__(self, address, number, count):
        self.peer, self.since, self.turn, self.path = socket.create_connection(address), None, 0, None
        self.number, self.due, self.answer, self.later = number, time.monotonic() + POLL_S * number / count, b"", []

    def ask(self, path):
        self.path, self.answer = path, b""
        self.peer.sendall(f"GET /api/v1/{path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())

    def take(self):
        """Reads what has come. Returns True when the turn is over."""
        got = self.peer.recv(1 << 16)
        self.answer += got
        head, found, body = self.answer.partition(b"\r\n\r\n")
        if not got or (found and not head.startswith(b"HTTP/1.1 200")):
            raise SystemExit(f"{self.path}: {head[:200]!r}")
        if not found or len(body) < int(re.search(rb"content-length: *(\d+)", head, re.IGNORECASE)[1]):
            return False
        changes = int(found[1]) if (found := re.search(rb'"changes":(\d+)', body)) else None
        if self.path == "live":
            self.turn += 1
            self.later = ["status"] if self.turn % 10 == 1 else []
            self.later += [f"runs?limit=100&checkpoints=60&since={self.since}"] if self.since not in (None, changes) else []
        self.since = self.since if changes is None else changes
        if self.later:
            self.ask(self.later.pop(0))
            return False
        return True


def be_pages(address, count, active, polls):
    """The process of the pages. It gives way to saves, as viewers on other machines would."""
    os.nice(19)
    selector, pages = selectors.DefaultSelector(), [Page(address, number, count) for number in range(count)]
    for page in pages:
        selector.register(page.peer, selectors.EVENT_READ, page)
    due = [(page.due, page.number) for page in pages]
    heapq.heapify(due)
    while True:
        now = time.monotonic()
        while due and due[0][0] <= now:
            page = pages[heapq.heappop(due)[1]]
            if page.number < active.value:
                page.ask("live")
            else:
                page.due += POLL_S
                heapq.heappush(due, (page.due, page.number))
        for key, _ in selector.select(max(0, due[0][0] - now) if due else None):
            page = key.data
            if page.take():
                polls.value += 1
                page.due = max(page.due + POLL_S, now)
                heapq.heappush(due, (page.due, page.number))


class Pages:
    """Open pages in a process of their own, of which so many ask as are told to."""

    def __init__(self, address, count):
        self.count, self.active, self.polls = count, multiprocessing.Value("i", 0, lock=False), multiprocessing.Value("q", 0, lock=False)
        self.process = multiprocessing.Process(target=be_pages, args=(address, count, self.active, self.polls), daemon=True)
        self.process.start()

    def look(self, active):
        if not self.process.is_alive():
            raise SystemExit("bench: the pages have ended")
        self.active.value = active

    def close(self):
        self.process.terminate()
        self.process.join()


def processor_share(daemon, pages, seconds):
    """The part of one processor, in percent, that the daemon takes for all pages and for none, while nothing is saved."""
    shares = []
    for active in (0, pages.count):
        pages.look(active)
        time.sleep(POLL_S)
        polls, cpu, began = pages.polls.value, daemon.proc.cpu_s(), time.monotonic()
        time.sleep(seconds)
        wall = time.monotonic() - began
        shares.append(100 * (daemon.proc.cpu_s() - cpu) / wall)
        if active and pages.polls.value - polls < 0.8 * active * wall / POLL_S:
            raise SystemExit(f"bench: {pages.polls.value - polls} polls in {wall:.0f} s are fewer than {active} pages make")
    return shares[1] - shares[0]


def interval(values):
    """The median and its interval of 95 %, by the order of the values alone."""
    values, half = sorted(values), 0.98 * math.sqrt(len(values))
    low, high = int(len(values) / 2 - half), math.ceil(len(values) / 2 + half)
    return statistics.median(values), values[max(0, low)], values[min(len(values) - 1, high)]


def saves(place, daemon, pages, options):
    """Saves while nobody, one page and all pages look, in turns. Returns the seconds of each."""
    group = cairn_group(place, options.build, daemon, "memfd", ranks=1, bytes=options.size * MIB, run="bench/run", name="saves")
    looks = (0, 1, pages.count)
    seconds, step, end = {active: [] for active in looks}, 0, time.monotonic() + 60 * options.minutes
    while time.monotonic() < end or len(seconds[0]) < 10:
        turn = len(seconds[0]) % len(looks)
        for active in looks[turn:] + looks[:turn]:
            pages.look(active)
            step += 1
            group.slowest(f"change {step}")
            took = group.slowest(f"save {step}")["durable_s"]
            if step > 2 * len(looks):  # the first ones make the staging memory
                seconds[active].append(took)
            daemon.prune(step)
    group.close()
    least = min(len(one) for one in seconds.values())
    return {active: one[-least:] for active, one in seconds.items()}


PAUSES = ("new PerformanceObserver((list) => list.getEntries().forEach("
          "(one) => { window.pause = Math.max(window.pause ?? 0, one.duration); })).observe({type: 'longtask'})")
KNOWN = ("return performance.now() * Boolean(document.querySelector('a.run') && "
         "!document.getElementById('main').textContent.includes('reading more'))")


def first_paint(address):
    """(ms until the first paint, ms until all runs are known, ms of the longest pause in which the page answers nobody)
    in a headless Chromium."""
    sys.path[:0] = [str(Path(__file__).resolve().parents[1] / folder) for folder in ("browser", "e2e")]
    import test_page

    class Owner:
        ends = []

        def addCleanup(self, call):  # noqa: N802
            self.ends.append(call)
    owner = Owner()
    driver = test_page.browser(owner)
    driver.execute_cdp_cmd("Page.addScriptToEvaluateOnNewDocument", {"source": PAUSES})
    figures = []
    for _ in range(5):
        driver.get("about:blank")
        driver.get(f"http://{address[0]}:{address[1]}/")
        while not (shown := driver.execute_script(KNOWN)):
            time.sleep(0.02)
        paint, pause = driver.execute_script(
            "return [performance.getEntriesByName('first-contentful-paint')[0].startTime, window.pause ?? 0]")
        figures.append((paint, shown, pause))
    for end in reversed(owner.ends):
        end()
    return [round(statistics.median(one), 1) for one in zip(*figures)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release")
    parser.add_argument("--dir", type=Path, default=Path("/dev/shm"), help="where the store is; default: memory")
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--minutes", type=float, default=6, help="how long saves take turns")
    parser.add_argument("--size", type=int, default=256, help="MiB of a save")
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.build = options.build.resolve()
    place = Place(options.dir)
    fill(options.build, f"dir:{place.path}/store", options)
    daemon = Web(place, options.build)
    while all_runs(daemon) < options.runs:
        time.sleep(0.2)
    time.sleep(1)
    rows = [("page files", sum(len(daemon.get(path)) for path in PAGE_FILES) / 1024, "KiB", 200, None),
            ("/metrics", milliseconds(lambda: daemon.get("/metrics"), 20), "ms", 20, None),
            ("all runs", milliseconds(lambda: all_runs(daemon), 10), "ms", None, None)]
    if options.browser:
        times = zip(("first paint", "all runs known", "longest pause"), first_paint(daemon.address), (100, None, None))
        rows += [(what, value, "ms", limit, None) for what, value, limit in times]
    pages = Pages(daemon.address, options.pages)
    rows.append((f"processor for {options.pages} pages", processor_share(daemon, pages, 10), "%", None, None))
    say(f"saves take turns for {options.minutes:g} minutes")
    seconds = saves(place, daemon, pages, options)
    rows.append((f"save of {options.size} MiB, nobody looks", 1000 * statistics.median(seconds[0]), "ms", None, None))
    for active, goal in ((1, 1), (options.pages, 2)):
        middle, low, high = interval([100 * (one / base - 1) for one, base in zip(seconds[active], seconds[0])])
        rows.append((f"save slower by {active} page{'s' if active > 1 else ''}", middle, "%", goal, (low, high)))
    pages.close()
    daemon.end()
    for what, value, unit, limit, between in rows:
        goal = "" if limit is None else f"(goal: at most {limit} {unit}) {verdict(value, limit, between)}"
        print(f"{what:32} {value:9.2f} {unit:4} {goal}")
    if options.json:
        keys = ("what", "value", "unit", "goal", "interval")
        options.json.write_text(json.dumps({"figures": [dict(zip(keys, row)) for row in rows], "seconds": seconds}))


def verdict(value, limit, between):
    """Whether a goal is met, in words; an interval that holds it decides nothing."""
    if between is None:
        return "met" if value <= limit else "MISSED"
    low, high = between
    return f"{low:+.2f} to {high:+.2f}: {'met' if high <= limit else 'MISSED' if low > limit else 'not decided, take more --minutes'}"


if __name__ == "__main__":
    main()
