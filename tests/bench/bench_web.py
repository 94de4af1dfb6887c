#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the page and its API cost: answers with many runs and checkpoints, and saves while pages are open.

bench_web.py BUILD [--runs 1000] [--checkpoints 10] [--pages 200] [--json FILE]. The records are made by many_checkpoints.
With tests/browser's environment and Chromium (--browser) the first paint is measured as well."""

import argparse
import http.client
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

PAGE_FILES = ("/", "/page.css", "/data.js", "/plot.js", "/page.js", "/icon.svg")


class Daemon:
    def __init__(self, build, folder):
        self.bins, self.folder = build / "bin", folder
        self.log = folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen([self.bins / "cairnd", "--store-url", f"dir:{folder}/store", "--listen-unix", f"{folder}/sock",
                                             "--listen-plain-tcp", "loopback", "--http-listen", "127.0.0.1:0", "--scrub-every", "0s", "--gc-every", "0s"],
                                            stdin=subprocess.DEVNULL, stderr=log)
        while "ready" not in self.log.read_text():
            time.sleep(0.05)
        host, _, port = self.log.read_text().split("http: listening addr=tcp:")[1].split()[0].rpartition(":")
        self.address = host, int(port)

    def get(self, path, peer=None):
        own = peer or http.client.HTTPConnection(*self.address, timeout=60)
        own.request("GET", path)
        answer = own.getresponse()
        body = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{path}: {answer.status}: {body[:200]!r}")
        if not peer:
            own.close()
        return body

    def stop(self):
        self.process.terminate()
        if self.process.wait(60) != 0:
            raise SystemExit("cairnd did not end well")


def milliseconds(call, times):
    spent = []
    for _ in range(times):
        began = time.perf_counter()
        call()
        spent.append(1000 * (time.perf_counter() - began))
    return round(statistics.median(spent), 2)


def fill(bins, url, options):
    """Makes the records; the first run makes the store."""
    for number in range(options.runs):
        subprocess.run([bins / "many_checkpoints", url, f"team{number % 20}/run{number}", str(options.checkpoints)], check=True)


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


def durable_s(bins, folder):
    """The median time until a save of 128 MiB is durable, in seconds; each call makes a run of its own."""
    durable_s.turn += 1
    done = subprocess.run([bins / "cairn", "bench", f"bench/run{durable_s.turn}", "--server", f"unix:{folder}/sock", "--size", "128MiB", "--rounds", "10",
                           "--json"], check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["durable"]["median_s"]


durable_s.turn = 0


def with_pages(daemon, pages, call):
    """call() while so many pages ask as a page does, every 2 s."""
    stop = threading.Event()

    def page():
        peer = http.client.HTTPConnection(*daemon.address, timeout=60)
        while not stop.wait(2):
            daemon.get("/api/v1/live", peer)
        peer.close()
    threads = [threading.Thread(target=page) for _ in range(pages)]
    for one in threads:
        one.start()
    time.sleep(2)
    try:
        return call()
    finally:
        stop.set()
        for one in threads:
            one.join()


def first_paint(address):
    """(ms until the first paint, ms until all runs are shown) in a headless Chromium."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "browser"))
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))
    import test_page

    class Owner:
        ends = []

        def addCleanup(self, call):  # noqa: N802
            self.ends.append(call)
    owner = Owner()
    driver = test_page.browser(owner)
    paints = []
    for _ in range(5):
        driver.get("about:blank")
        driver.get(f"http://{address[0]}:{address[1]}/")
        began = time.perf_counter()
        while "reading more" in driver.find_element("id", "main").text or not driver.find_elements("css selector", "a.run"):
            time.sleep(0.01)
        shown = 1000 * (time.perf_counter() - began)
        paints.append((driver.execute_script("return performance.getEntriesByName('first-contentful-paint')[0].startTime"), shown))
    for end in reversed(owner.ends):
        end()
    return [round(statistics.median(one), 1) for one in zip(*paints)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("build", type=Path)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--checkpoints", type=int, default=10)
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--browser", action="store_true")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        folder, build = Path(name), options.build.resolve()
        fill(build / "bin", f"dir:{folder}/store", options)
        daemon = Daemon(build, folder)
        while all_runs(daemon) < options.runs:
            time.sleep(0.2)
        time.sleep(1)
        rows.append(("page files", sum(len(daemon.get(path)) for path in PAGE_FILES) / 1024, "KiB", 200))
        rows.append(("/metrics", milliseconds(lambda: daemon.get("/metrics"), 20), "ms", 20))
        rows.append(("all runs", milliseconds(lambda: all_runs(daemon), 10), "ms", None))
        if options.browser:
            paint, shown = first_paint(daemon.address)
            rows += [("first paint", paint, "ms", 100), ("all runs shown", shown, "ms", None)]
        alone, watched, one = [], [], []
        for _ in range(options.rounds):
            alone.append(durable_s(build / "bin", folder))
            one.append(with_pages(daemon, 1, lambda: durable_s(build / "bin", folder)))
            watched.append(with_pages(daemon, options.pages, lambda: durable_s(build / "bin", folder)))
        base = min(alone)
        rows.append(("save, nobody looks", 1000 * base, "ms", None))
        rows.append(("save slower by 1 page", 100 * (min(one) / base - 1), "%", 1))
        rows.append((f"save slower by {options.pages} pages", 100 * (min(watched) / base - 1), "%", 2))
        daemon.stop()
    for what, value, unit, limit in rows:
        print(f"{what:32} {value:9.2f} {unit:4} {'' if limit is None else f'(goal: at most {limit} {unit})'}")
    if options.json:
        options.json.write_text(json.dumps([{"what": what, "value": value, "unit": unit, "goal": limit} for what, value, unit, limit in rows]))


if __name__ == "__main__":
    main()
