# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes real daemons which fail in ten ways: each alert fires within two scrape intervals, and the dashboard's
queries all return data.

The rules are the shipped ones. Where a rule waits for days, weeks or six hours, the number alone is replaced (SHORTER), since
rules_test.yml proves the shipped numbers on a simulated clock.
"""

import json
import os
import re
import socket
import subprocess
import time
import urllib.parse
import urllib.request

from harness import SOURCE, Case, Daemon, Failure, Group, cairn, flip, main, wait_until

RULES = SOURCE / "deploy" / "prometheus" / "cairn.rules.yml"
DASHBOARD = SOURCE / "deploy" / "grafana" / "cairn.json"
INTERVAL_S = 2.0
SHORTER = {
    "CairnScrubStale": ("> 1209600", "> 45"),
    "CairnRetentionStale": ("> 86400", "> 45"),
    "CairnStraggler": ("oldest_seconds > 60", "oldest_seconds > 5"),
    "CairnStoreFull": ("86400) < 0", "600) < 0"),
}


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def rules():
    """The shipped rules with the shorter numbers; each has to be found."""
    parts = re.split(r"(?m)^(?=      - alert: )", RULES.read_text())
    for number, part in enumerate(parts):
        name = re.match(r"      - alert: (\w+)", part)
        if name and name[1] in SHORTER:
            before, after = SHORTER[name[1]]
            if before not in part:
                raise Failure(f"{name[1]} has no {before}")
            parts[number] = part.replace(before, after)
    return "".join(parts)


class Prometheus:
    def __init__(self, bed, targets):
        self.url = f"http://127.0.0.1:{free_port()}"
        folder = bed.path / "prometheus"
        folder.mkdir()
        (folder / "rules.yml").write_text(rules())
        jobs = "".join(f"      - {{targets: ['127.0.0.1:{port}'], labels: {{instance: {name}}}}}\n" for name, port in targets.items())
        (folder / "prometheus.yml").write_text(
            f"global: {{scrape_interval: {INTERVAL_S:g}s, evaluation_interval: {INTERVAL_S:g}s}}\nrule_files: [rules.yml]\n"
            f"scrape_configs:\n  - job_name: cairn\n    static_configs:\n{jobs}")
        with open(bed.path / "prometheus.log", "ab") as log:
            self.process = bed.start(["prometheus", f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data",
                                      f"--web.listen-address={self.url.removeprefix('http://')}", "--log.level=warn"],
                                     stdout=log, stderr=log)
        wait_until("Prometheus is ready", self.is_ready, 60)

    def is_ready(self):
        try:
            return self.get("/-/ready") is not None
        except OSError:
            return False

    def get(self, path):
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def query(self, expr):
        return json.loads(self.get("/api/v1/query?" + urllib.parse.urlencode({"query": expr})))["data"]["result"]

    def firing(self):
        """{(alert, instance)} of what fires now."""
        alerts = json.loads(self.get("/api/v1/alerts"))["data"]["alerts"]
        return {(one["labels"]["alertname"], one["labels"].get("instance")) for one in alerts if one["state"] == "firing"}


class Alerts(Case):
    def start(self, name, **keys):
        return Daemon(self.bed, name, metrics_listen="127.0.0.1:0", **keys).start()

    def small_disk(self):
        """An ext4 of 400 MiB, mounted for this test."""
        image, point = self.bed.path / "small.img", self.bed.path / "disk"
        with open(image, "wb") as file:
            file.truncate(400 << 20)
        subprocess.run(["mkfs.ext4", "-q", "-m", "0", image], check=True)
        point.mkdir()
        subprocess.run(["mount", "-o", "loop", image, point], check=True, capture_output=True)
        self.addCleanup(self.unmount, point)
        return point

    def unmount(self, point):
        for process in self.bed.processes:
            if process.poll() is None:
                process.kill()
                process.wait()
        subprocess.run(["umount", point], check=True)

    def metrics_port(self, daemon):
        return int(re.search(r"http: listening addr=tcp:127\.0\.0\.1:(\d+)", daemon.log())[1])

    def await_alert(self, name, instance, begin=None):
        """Notes how long an alert took from the moment that its cause was there."""
        begin = begin or time.monotonic()
        try:
            wait_until(f"{name} of {instance} fires", lambda: (name, instance) in self.prometheus.firing(), 60)
        except Failure:
            queries = ("cairn:checkpoint_interval_seconds", "cairn_run_ranks",
                       "time() - cairn_checkpoint_last_commit_timestamp_seconds")
            print({expr: self.prometheus.query(expr) for expr in queries})
            raise
        self.delays[name] = time.monotonic() - begin

    def test_each_failure_is_told(self):
        if os.geteuid() != 0 or subprocess.run(["losetup", "-f"], capture_output=True, check=False).returncode:
            self.skipTest("needs root and a loop device")
        pki = self.bed.path / "pki"
        subprocess.run([SOURCE / "tools" / "make-test-pki", "--days", "3", pki], check=True, capture_output=True)
        daemons = {"busy": self.start("busy", scrub_every="0s"), "dies": self.start("dies"), "broken": self.start("broken"),
                   "idle": self.start("idle", scrub_every="0s", retention_interval="1000h", listen_tcp="127.0.0.1:0",
                                      tls_cert=pki / "server.crt", tls_key=pki / "server.key", tls_ca=pki / "ca.crt")}
        daemons["small"] = self.start("small", path=self.small_disk() / "store")
        begun = time.monotonic()
        busy = Group(self.bed, daemons["busy"].url("lab/busy"))
        damaged = Group(self.bed, daemons["broken"].url("lab/broken"))
        damaged.save(1)
        cairn("gc", "--server", f"unix:{daemons['busy'].socket}", check=0)
        self.delays = {}
        self.prometheus = Prometheus(self.bed, {name: self.metrics_port(one) for name, one in daemons.items()})
        step = 0
        while time.monotonic() - begun < 14:  # a run with an interval of two seconds
            step += 1
            busy.save(step)
            time.sleep(2)
        last = time.monotonic() - 2
        at_rest = {("CairnCertificate", "idle")}
        self.assertEqual(self.prometheus.firing(), at_rest)
        self.delays["CairnCertificate"] = 0.0
        self.check_dashboard()

        with open(daemons["small"].store.parent / "filler", "wb") as filler:
            os.posix_fallocate(filler.fileno(), 0, 330 << 20)
        full = time.monotonic()
        self.await_alert("CairnStoreFull", "small", full)
        self.await_alert("CairnRefusesSaves", "small", full)

        daemons["dies"].kill()
        self.await_alert("CairnDown", "dies")
        self.await_alert("CairnCheckpointStale", "busy", max(last + 4, time.monotonic() - 60))

        victim = max(daemons["broken"].files("objects/**/*") or daemons["broken"].files(), key=lambda path: path.stat().st_size)
        flip(victim, 100)
        cairn("scrub", "--wait", "--server", f"unix:{daemons['broken'].socket}", check=6)
        self.await_alert("CairnDamage", "broken")

        busy[0].do("save", step + 1, 60000)  # the other rank does not come
        straggler = time.monotonic() + 5
        self.await_alert("CairnStraggler", "busy", straggler)
        busy[1].kill()
        busy[0].kill()
        failing = Group(self.bed, daemons["busy"].url("lab/fails"))
        failing[0].do("save", 1, 1500)
        ended = time.monotonic() + 1.5
        self.await_alert("CairnSavesFail", "busy", ended)

        self.await_alert("CairnScrubStale", "idle", begun + 45)
        self.await_alert("CairnRetentionStale", "idle", begun + 45)
        self.report()

    def check_dashboard(self):
        """Every query of every panel returns data."""
        dashboard = json.loads(DASHBOARD.read_text())
        for panel in dashboard["panels"]:
            for target in panel.get("targets", []):
                expr = target["expr"].replace("$__rate_interval", "1m")
                expr = expr.replace("$job", ".*").replace("$instance", ".*").replace("$run", ".*")
                with self.subTest(panel=panel["title"], expr=expr):
                    self.assertTrue(self.prometheus.query(expr), "no data")

    def report(self):
        print(f"\n{'alert':24} {'seconds':>8} {'intervals':>10}")
        for name, delay in self.delays.items():
            print(f"{name:24} {delay:8.1f} {delay / INTERVAL_S:10.1f}")
        print(json.dumps({"scrape_interval_s": INTERVAL_S, "delays_s": {name: round(delay, 2) for name, delay in self.delays.items()}}))


if __name__ == "__main__":
    main()
