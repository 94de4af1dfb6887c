# SPDX-License-Identifier: Apache-2.0
"""/metrics and /healthz show what a save, a restore, damage, a scrub and a garbage collection change. Both text formats
keep their rules; requests that are none, many connections and a store that hangs stop nobody."""

import math
import os
import re
import signal
import socket
import subprocess
import time

from harness import Case, Daemon, cairn, cairn_json, flip, main, wait_until

FAMILY = re.compile(r"# (HELP|TYPE|UNIT) (\S+) (.*)")
SAMPLE = re.compile(r'([a-z_]+)(\{.*\})? (\S+)')
LABEL = re.compile(r'([a-z_]+)="((?:[^"\\]|\\.)*)"')
SUFFIXES = {"counter": ("_total",), "histogram": ("_bucket", "_count", "_sum"), "gauge": ("",), "info": ("_info",)}


class Scrape:
    """A text, held to the rules: each family once, typed, explained, its samples together."""

    def __init__(self, text, openmetrics):
        self.values, self.types, family = {}, {}, None
        lines = text.split("\n")
        assert lines.pop() == ""
        if openmetrics:
            assert lines.pop() == "# EOF"
        for line in lines:
            said = FAMILY.fullmatch(line)
            if said and said[1] == "HELP":
                family = said[2]
                assert family not in self.types and said[3].endswith("."), line
                self.types[family] = None
            elif said:
                assert said[2] == family, line
                if said[1] == "UNIT":
                    assert openmetrics and family.endswith("_" + said[3]), line
                else:
                    self.types[family] = said[3]
            else:
                self.add(line, family, openmetrics)

    def add(self, line, family, openmetrics):
        match = SAMPLE.fullmatch(line)
        assert match, line
        name, labels, value = match.groups()
        kind = self.types[family]
        ends = SUFFIXES[kind] if openmetrics or kind == "histogram" else ("",)
        assert name in [family + end for end in ends], (line, family)
        assert kind != "counter" or name.endswith("_total"), line
        key = (name, *sorted(LABEL.findall(labels or "")))
        assert key not in self.values, line
        assert math.isfinite(float(value)), line
        self.values[key] = float(value)

    def __getitem__(self, key):
        name, *labels = key if isinstance(key, tuple) else (key,)
        return self.values[("cairn_" + name, *sorted(tuple(label.split("=")) for label in labels))]


class Metrics(Case):
    def setUp(self):
        super().setUp()
        self.server = self.daemon(scrub_every="0s", gc_every="0s", metrics_listen="127.0.0.1:0")
        self.where = self.server.online

    def address(self):
        wait_until("there is an endpoint", lambda: "http: listening" in self.server.log())
        return "127.0.0.1", int(re.search(r"http: listening addr=\S*:(\d+)", self.server.log())[1])

    def talk(self, data, wait_s=30):
        """What comes back until the server closes."""
        with socket.create_connection(self.address(), timeout=wait_s) as peer:
            peer.sendall(data)
            got = b""
            while True:
                try:
                    more = peer.recv(65536)
                except ConnectionResetError:
                    return got
                if not more:
                    return got
                got += more

    def get(self, path, accept="text/plain", method="GET"):
        """(status, headers, body)."""
        raw = self.talk(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nAccept: {accept}\r\nConnection: close\r\n\r\n".encode())
        head, _, body = raw.partition(b"\r\n\r\n")
        first, *rest = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in rest)}
        if method == "GET":
            self.assertEqual(int(headers["content-length"]), len(body))
        return int(first.split()[1]), headers, body.decode()

    def scrape(self, openmetrics=False):
        """What is true now: an answer may be half a second old."""
        time.sleep(0.6)
        return self.scrape_again(openmetrics)

    def scrape_again(self, openmetrics=False):
        status, headers, body = self.get("/metrics", "application/openmetrics-text;version=1.0.0,*/*;q=0.1"
                                         if openmetrics else "*/*")
        self.assertEqual(status, 200)
        self.assertIn("openmetrics-text; version=1.0.0" if openmetrics else "text/plain; version=0.0.4",
                      headers["content-type"])
        return Scrape(body, openmetrics)

    def test_what_happens_is_counted(self):
        wait_until("the store's space is known", lambda: self.scrape()["scrape_success"] == 1)
        empty = self.scrape()
        for name in ("checkpoints_total", "restores_total"):
            self.assertEqual(sum(value for key, value in empty.values.items() if key[0] == "cairn_" + name), 0)
        self.assertEqual((empty["scrape_success"], empty["runs"], empty["scrub_last_completed_timestamp_seconds"]), (1, 0, 0))
        self.assertEqual(empty["log_dropped_lines_total"], 0)
        before = time.time()
        group = self.group(self.server)
        for step in (1, 2, 3):
            group.advance(step)
        self.assertEqual(group.restore()[0], 3)
        group[0].do("save", 9, 4000)  # rank 1 does not come
        wait_until("the save fails", lambda: self.scrape()["checkpoint_failures_total", "error=MISSING_RANKS"] == 1)
        told = self.scrape()
        self.assertEqual(told["checkpoints_total", "result=committed"], 3)
        self.assertEqual(told["checkpoints_total", "result=failed"], 1)
        self.assertEqual(told["checkpoint_failures_total", "error=FENCED"], 0)
        self.assertEqual(told["checkpoints_opened_total"], 4)
        self.assertEqual(told["checkpoint_duration_seconds_count"], 3)
        self.assertEqual(told["restores_total", "result=done"], 1)
        self.assertEqual(told["listed_checkpoints", "health=verified"], 3)
        self.assertEqual(told["checkpoint_last_step", "run=demo/run"], 3)
        self.assertGreater(told["project_stored_bytes", "project=demo"], 0)
        self.assertEqual(told["project_forgotten_bytes", "project=demo"], 0)
        self.assertLessEqual(told["ingest_mapped_bytes_total"], told["ingest_bytes_total"])
        self.assertLessEqual(before - 1, told["checkpoint_last_commit_timestamp_seconds", "run=demo/run"])
        self.assertGreater(told["ingest_bytes_total"], 0)
        self.assertGreater(told["checkpoint_plain_bytes_total"], 0)
        self.assertGreater(told["backend_op_duration_seconds_count", "backend=dir", "op=write"], 0)
        self.assertEqual(told["checkpoint_stage_seconds_count"], 3)  # each is told with the next save
        self.assertEqual(told["checkpoint_stall_seconds_count"], 3)
        self.assertEqual(told["checkpoint_transfer_seconds_count"], 6 + 1)  # by rank; the last one of rank 0 alone
        self.assertEqual(told["checkpoint_commit_seconds_count"], 3)
        self.assertEqual(told["restore_duration_seconds_count"], 1)
        self.assertLessEqual(told["checkpoint_commit_seconds_sum"], told["checkpoint_duration_seconds_sum"])
        self.assertEqual((told["requests_open"], told["buffers_waiting"]), (0, 0))
        self.assertEqual(told["inflight_checkpoints"], 0)
        self.assertEqual(told["clients_connected"], 2)
        group[0].do("save", 10, 60000)
        wait_until("it waits for rank 1", lambda: self.scrape()["requests_open"] > 0)
        group.end()

    def test_a_node_that_fails_is_named(self):
        group = self.group(self.server)
        group.save(1)
        for number in (1, 2):
            cairn("run", "--run", "demo/run", *self.where, "--node", "node07", "--watch-interval", "100ms", "--watch-command",
                  f"echo preempted {number}", "--", "sleep", 60, check=os.EX_TEMPFAIL)
            told = self.scrape(number == 2)
            self.assertEqual((told["node_notices_total", "node=node07"], told["node_notices_total",]), (number, 0))
            self.assertEqual(self.server.log().count("a node has given notice more than once"), number - 1)
        self.assertRegex(self.server.log(), "warn  session: a node has given notice .* node=node07 notices=2 run=demo/run")
        pods = [f"{'training-of-gpt-' * 3}worker-{number:08}" for number in (1, 2)]  # as long as a pod's name may be
        for pod in pods:
            cairn("run", "--run", "demo/run", *self.where, "--node", pod, "--watch-interval", "100ms", "--watch-command",
                  f"echo {'why ' * 40}", "--", "sleep", 60, check=os.EX_TEMPFAIL)
        told = self.scrape()
        self.assertEqual([told["node_notices_total", f"node={pod}"] for pod in pods], [1, 1])
        group.end()

    def test_damage_is_seen(self):
        self.run_attempt(self.server, 1, 2, fills=True)
        flip(self.server.files("runs/demo/run/objects/1-1/0-*")[0], 0)
        cairn("scrub", "--wait", *self.where, check=6)
        cairn("forget", "demo/run", "1", *self.where, check=0)
        cairn("gc", *self.where, check=0)
        told = self.scrape()
        self.assertEqual(told["scrub_findings_total"], 1)
        self.assertEqual(told["scrub_pass_findings"], 1)
        self.assertGreater(told["scrub_bytes_total"], 0)
        self.assertAlmostEqual(told["scrub_last_completed_timestamp_seconds"], time.time(), delta=120)
        self.assertEqual((told["listed_checkpoints", "health=damaged"], told["forgotten_checkpoints"]), (0, 1))
        self.assertEqual(told["retention_forgotten_checkpoints_total"], 1)
        self.assertEqual(told["gc_passes_total"], 1)
        cairn("undelete", "demo/run", "1", *self.where, check=0)
        self.assertEqual(self.scrape()["listed_checkpoints", "health=damaged"], 1)
        self.assertEqual(told["runs_unreadable"], 0)

    def test_both_formats_say_the_same(self):
        plain, openmetrics = self.scrape(), self.scrape(True)
        self.assertEqual(set(plain.values), set(openmetrics.values))
        self.assertEqual(openmetrics.types["cairn_checkpoints"], "counter")
        self.assertEqual(plain.types["cairn_checkpoints_total"], "counter")

    def test_health(self):
        status, _, body = self.get("/healthz")
        self.assertEqual((status, body[:3]), (200, "ok\n"))  # and more where the file system is not one that it is tested on
        status, headers, nothing = self.get("/healthz", method="HEAD")
        self.assertEqual((status, headers["content-length"], nothing), (200, str(len(body)), ""))
        told = self.scrape()
        self.assertEqual(sum(told["health", f"word={word}"] for word in ("green", "yellow", "red")), 1)
        self.assertEqual((told["health", "word=red"], told["store_wait_seconds"]), (0, 0))
        self.assertEqual((self.get("/readyz")[0], self.get("/nothing")[0]), (200, 404))
        self.assertEqual(self.get("/metrics?x=1")[0], 200)

    def test_a_store_that_refuses(self):
        other = self.server = self.daemon("full", store_reserve="1000TiB", metrics_listen="127.0.0.1:0")
        wait_until("it is seen", lambda: self.get("/healthz")[0] == 503)
        body = self.get("/healthz")[2]
        self.assertIn("red: NO_SPACE", body)
        self.assertIn("remedy: no checkpoint is waiting to be reclaimed, and no run has more than the two good checkpoints "
                      "that always stay: add room", body)
        told = self.scrape()
        self.assertEqual((told["health", "word=red"], told["backend_up"]), (1, 1))
        self.assertEqual(other.stop(), 0)

    def test_a_store_that_hangs(self):
        """Its only thread does not come back from a read: the endpoint answers all the same, and says so."""
        self.server = self.daemon("hangs", failpoints="dir.read=delay:60000", scrub_every="0s", metrics_listen="127.0.0.1:0",
                                  store_threads="1")
        self.run_attempt(self.server, 1)
        cairn("scrub", *self.server.online, check=0)
        wait_until("it hangs", lambda: self.get("/healthz")[0] == 503)
        began = time.monotonic()
        self.assertRegex(self.get("/healthz")[2], "red: .*(does not answer|TIMED_OUT).*\nremedy: ")
        told = self.scrape()
        self.assertLess(time.monotonic() - began, 20)
        self.assertEqual((told["backend_up"], told["scrape_success"], told["health", "word=red"]), (0, 0, 1))
        self.assertGreater(told["backend_operations_running"], 0)
        self.end_without_the_store()

    def end_without_the_store(self):
        """It waits for an orderly end, but not for ever, and what was durable stays."""
        self.server.process.send_signal(signal.SIGTERM)
        wait_until("it stops", lambda: "daemon: stopping" in self.server.log())
        self.assertRaises(subprocess.TimeoutExpired, self.server.process.wait, 6)
        began = time.monotonic()
        self.assertEqual(self.server.stop(20), 5, "a second signal")
        self.assertLess(time.monotonic() - began, 12)
        self.assertIn("without waiting for its store", self.server.log())
        self.server.start()
        self.assert_whole(self.server, {(1, 1)})

    def test_an_end_has_a_deadline(self):
        self.server.env = {"CAIRN_FAILPOINTS": "dir.read=delay:90000"}
        self.assertEqual(self.server.stop(), 0)
        self.server.keys.update(daemon_grace="1s", store_threads="1")
        self.server.start()
        self.group(self.server).save(1)
        cairn("scrub", *self.where, check=0)
        wait_until("it hangs", lambda: self.get("/healthz")[0] == 503)
        self.assertEqual(self.server.stop(40), 5)

    def test_before_there_is_a_store(self):
        conf = self.bed.path / "away.conf"
        conf.write_text("[global]\nmon_host = [v2:127.0.0.1:1/0]\nauth_client_required = none\n")
        self.server = Daemon(self.bed, "away", store_url=f"rados:cairn?conf={conf}&timeout=1", metrics_listen="127.0.0.1:0")
        self.server.launch()
        status, _, body = self.get("/healthz")  # before the first try has ended
        self.assertEqual((status, body[:4]), (503, "red:"), body)
        told = self.scrape()
        self.assertEqual((told["health", "word=red"], told["backend_up"], told["scrape_success"]), (1, 0, 0))
        wait_until("the reason is told", lambda: "mon_host" in self.get("/healthz")[2])
        status, _, body = self.get("/healthz")
        self.assertEqual(status, 503)
        self.assertIn("UNREACHABLE", body)
        self.assertIn("remedy:", body)
        wait_until("it counts", lambda: self.scrape()["store_wait_seconds"] > 0.5)
        began = time.monotonic()
        seconds = {self.scrape_again()["store_wait_seconds"] for _ in range(100)}  # it grows each millisecond
        self.assertLessEqual(len(seconds), 2 + (time.monotonic() - began) / 0.5)
        self.assertEqual(set(self.scrape(True).values), set(self.scrape().values))
        self.assertEqual(self.server.stop(), 0)

    def test_what_is_no_request(self):
        close = b"Connection: close\r\n"
        head = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n" + close
        for data, wanted in ((b"POST /metrics HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n", b"405"),
                             (head + b"X: " + b"y" * 20000 + b"\r\n\r\n", b"431"), (b"GET /metrics HTTP/1.1\r\n\r\n", b"400"),
                             (head + b"Content-Length: 70000\r\n\r\n" + b"z" * 70000, b"413"),
                             (b"GET /" + b"a" * 600 + b" HTTP/1.1\r\nHost: localhost\r\n" + close + b"\r\n", b"414"),
                             (head + b"Transfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n", b"413")):
            self.assertEqual(self.talk(data)[:12], b"HTTP/1.1 " + wanted, data[:40])
        self.assertEqual(self.talk(b"\x16\x03\x01\x02\x00\r\n\r\n"), b"")  # another protocol is closed without a word
        self.assertEqual(self.get("/healthz")[0], 200)

    def test_many_that_say_nothing(self):
        idle = [socket.create_connection(self.address(), timeout=120) for _ in range(520)]
        # They make room for each other, the oldest first; saves do not notice, and who asks is answered.
        wait_until("the first ones are closed", lambda: self.is_closed(idle[0]))
        self.assertEqual(self.get("/healthz")[0], 200)
        self.run_attempt(self.server, 1)
        self.assertEqual(self.talk(b"GET /healthz HTTP/1.0\r\n\r\n")[:12], b"HTTP/1.1 200")
        for peer in idle:
            peer.close()
        self.assertEqual(self.server.stop(), 0)

    def is_closed(self, peer):
        peer.settimeout(0.05)
        try:
            return peer.recv(1) == b""
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True

    def test_off_and_refused(self):
        plain = self.daemon("plain")
        self.assertNotIn("http: listening", plain.log())
        for listen, word in (("0.0.0.0:0", "on-network"), ("nonsense:x", "[http] listen"), ("unix:/x", "not a TCP address")):
            other = self.bed.start(self.server.argv(store_url=f"dir:{self.bed.path}/x", metrics_listen=listen),
                                   stdin=-3, stdout=-1, stderr=-2)
            out = other.communicate(timeout=120)[0].decode()
            self.assertEqual(other.returncode, 2, out)
            self.assertIn(word, out)
        self.assertEqual(cairn_json("status", *self.where)["runs"], 0)


if __name__ == "__main__":
    main()
