# SPDX-License-Identifier: Apache-2.0
"""/api/v1/ tells what the record holds, in bounded pages, to those who are trusted; and neither slow nor many readers
hurt a save."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import threading
import time

from harness import SOURCE, Case, cairn, cairn_json, flip, main, wait_until

TOKEN = "0123456789abcdef" * 2


class Web(Case):
    def start(self, name="store", **keys):
        keys = {"listen_plain_tcp": "loopback", "http_listen": "127.0.0.1:0", "scrub_every": "0s", "gc_every": "0s", **keys}
        self.server = self.daemon(name, **keys)
        self.where = self.server.online
        self.find_address()

    def find_address(self):
        host, _, port = self.server.log().split("http: listening addr=tcp:")[1].split()[0].rpartition(":")
        self.address = host, int(port)

    def get(self, path, method="GET", tls=None, **headers):
        """(status, headers, body)."""
        peer = (http.client.HTTPSConnection(*self.address, timeout=120, context=tls) if tls
                else http.client.HTTPConnection(*self.address, timeout=120))
        with_closing = {name.replace("_", "-"): value for name, value in headers.items()}
        peer.request(method, path, headers=with_closing)
        answer = peer.getresponse()
        body = answer.read()
        peer.close()
        return answer.status, dict(answer.getheaders()), body

    def api(self, path, status=200, **headers):
        got, sent, body = self.get(f"/api/v1/{path}", **headers)
        self.assertEqual((got, sent["Content-Type"]), (status, "application/json"), body)
        document = json.loads(body)
        self.assertEqual(document["schema_version"], 1)
        return document

    def fill(self, run="demo/run", steps=(1, 2, 3)):
        group = self.group(self.server) if run == "demo/run" else None
        for step in steps:
            group.all("fill", step)
            group.save(step)
        return group

    def test_it_says_what_the_record_holds(self):
        self.start()
        self.fill(steps=range(1, 6)).end()
        cairn("pin", "demo/run", "2", *self.where, check=0)
        cairn("forget", "demo/run", "1", *self.where, check=0)
        flip(self.server.files("runs/demo/run/objects/1-3/0-*")[0], 0)
        cairn("scrub", "--wait", *self.where, check=6)
        listed = cairn_json("ls", "demo/run", *self.where)["checkpoints"]
        self.assertEqual(self.api("runs/demo/run/checkpoints")["checkpoints"], listed)
        wait_until("the answer is new", lambda: self.api("runs?checkpoints=9")["runs"][0]["damaged"] == 1)
        run = self.api("runs?checkpoints=9")["runs"][0]
        self.assertEqual((run["run"], run["verified"], run["forgotten"], run["latest"]["step"]), ("demo/run", 3, 1, 5))
        marks = {point[0]: point[4].replace("b", "") for point in run["points"]}
        self.assertEqual(marks, {1: "f", 2: "p", 3: "d", 4: "", 5: ""})
        entries = cairn_json("log", "demo/run", *self.where)["entries"]
        self.assertEqual(self.api("runs/demo/run/log")["log"], entries)
        one = self.api("runs/demo/run")
        self.assertEqual([term["term"] for term in one["terms"]], [1])
        self.assertEqual([save["step"] for save in one["saves"]], [1, 2, 3, 4, 5])
        self.assertTrue(all(save["blocked_ms"] is not None for save in one["saves"][:-1]))
        status = self.api("status")
        self.assertEqual((status["totals"]["damaged"], status["scrub"]["findings"], status["health"]["word"]), (1, 1, "yellow"))
        self.assertEqual(status["store"]["url"], f"dir:{self.server.store}")
        project = self.api("projects")["projects"][0]
        self.assertEqual((project["project"], project["runs"], project["checkpoints"]), ("demo", 1, 4))
        self.assertEqual(project["stored_bytes"], run["stored_bytes"])

    def test_pages_and_changes(self):
        self.start()
        maker = os.path.join(os.environ["CAIRN_BUILD"], "bin", "many_checkpoints")
        self.assertEqual(self.server.stop(), 0)
        subprocess.run([maker, f"dir:{self.server.store}", "demo/long", "700"], check=True)
        for name in "abcde":
            subprocess.run([maker, f"dir:{self.server.store}", f"p{name}/r", "3"], check=True)
        self.server.start()
        self.find_address()
        wait_until("all records are read", lambda: all(run["record"] == "read" for run in self.api("runs")["runs"]))
        names, after = [], ""
        while after is not None:
            page = self.api(f"runs?limit=2{after and '&after=' + after.replace('/', '%2F')}")
            names += [run["run"] for run in page["runs"]]
            after = page["next"]
        self.assertEqual(names, ["demo/long"] + [f"p{name}/r" for name in "abcde"])
        seqs, before = [], 0
        while before is not None:
            page = self.api(f"runs/demo/long/checkpoints?limit=300&before={before}")
            seqs += [entry["sequence"] for entry in page["checkpoints"]]
            self.assertLess(len(json.dumps(page)), 300 << 10)
            before = page["next"]
        self.assertEqual(seqs, list(range(700, 0, -1)))
        projects = self.api("projects?limit=4")
        self.assertEqual((len(projects["projects"]), projects["more"], projects["next"]), (4, True, "pc"))
        self.assertEqual([row["project"] for row in self.api("projects?after=pc")["projects"]], ["pd", "pe"])
        self.assertEqual([run["run"] for run in self.api("runs?project=pb")["runs"]], ["pb/r"])
        changes = self.api("live")["changes"]
        self.assertEqual(self.api(f"runs?since={changes}")["runs"], [])
        step = self.api("runs?project=pa&checkpoints=3")["runs"][0]["points"][0][0]
        cairn("pin", "pa/r", str(step), *self.server.online, check=0)
        wait_until("it is told", lambda: [run["run"] for run in self.api(f"runs?since={changes}")["runs"]] == ["pa/r"])

    def test_a_page_beside_open_saves_and_restores(self):
        """They have no sequence to go on from, so the first page has all of them, whatever its limit is."""
        self.start()
        self.fill().end()
        for _ in range(3):
            self.run_attempt(self.server, resumes="3")
        wait_until("its ranks are gone", lambda: self.api("runs/demo/run")["connected_ranks"] == 0)
        group = self.group(self.server)
        wait_until("its ranks are told", lambda: self.api("runs/demo/run")["connected_ranks"] == 2)
        group[0].send("save", 4, 60000)  # rank 1 does not come
        wait_until("it is open", lambda: self.api("runs/demo/run")["saves_open"] == 1)
        found = {"checkpoints": [], "log": []}
        for name, rows in found.items():
            before = 0
            while before is not None and len(rows) < 20:
                page = self.api(f"runs/demo/run/{name}?limit=1&before={before}")
                rows.append([(row.get("action"), row.get("step"), row["sequence"]) for row in page[name]])
                before = page["next"]
        self.assertEqual(found["checkpoints"], [[(None, 4, 0), (None, 3, 3)], [(None, 2, 2)], [(None, 1, 1)]])
        self.assertEqual(found["log"], [3 * [("restore", None, 0)] + [("commit", None, 3)], [("commit", None, 2)], [("commit", None, 1)]])
        group[1].do("save", 4, 60000)
        group[0].reply()
        group.end()

    def test_what_is_refused(self):
        self.start()
        for path, status, word in (("nothing", 404, "no such path"), ("runs/a", 404, "no such path"), ("runs/no/run", 404, "no run no/run"),
                                   ("runs/%3Cb%3E/x", 400, "INVALID"), ("runs?limit=0", 400, "limit"), ("runs?limit=1001", 400, "1000"),
                                   ("runs?size=1", 400, "no argument 'size'"), ("runs?after=x", 400, "INVALID"),
                                   ("live?ranks=x", 400, "ranks"), ("%zz", 400, "escape"), ("runs?checkpoints=501", 400, "500")):
            self.assertIn(word, json.dumps(self.api(path, status)["error"]), path)
        status, headers, body = self.get("/api/v1/runs", method="HEAD")
        self.assertEqual((status, body), (200, b""))
        self.assertGreater(int(headers["Content-Length"]), 50)
        for path in ("/healthz?a", "/metrics?%zz", "/?", "/page.js?x=1"):  # no question of its own
            self.assertEqual(self.get(path)[0], 200, path)
        self.assertEqual(self.get("/nothing?/api/v1/runs")[0], 404)
        status, headers, _ = self.get("/api/v1/runs", method="DELETE")
        self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"))
        self.assertIn("script-src 'self'", self.get("/")[1]["Content-Security-Policy"])
        script = self.get("/page.js")[2].decode()  # one module of all scripts: nothing is imported, no name is declared twice
        self.assertNotRegex(script, r"(?m)^(import|export)\b")
        names = re.findall(r"(?m)^(?:async )?(?:function|class|const|let) (\w+)", script)
        self.assertEqual(len(names), len(set(names)))
        self.assertIn("showProjects", names)
        for path in ("/api/v1/runs", "/metrics"):  # a name that points here, and what only looks like a number
            for host in ("evil.example", "evil.example:7422", "127.0.0.1.evil.example", "localhost.evil.example", "1.2.3", "x" * 99):
                self.assertEqual(self.get(path, Host=host)[0], 401, (path, host))
            for host in ("localhost", "127.0.0.1:1", "[::1]:7422", "LOCALHOST:1"):
                status, headers, _ = self.get(path, Host=host, Origin="http://evil.example")
                self.assertEqual((status, [name for name in headers if name.lower().startswith("access-control")]), (200, []), (path, host))

    def test_the_token(self):
        secret = self.bed.path / "token"
        secret.write_text(TOKEN + "\n")
        secret.chmod(0o600)
        self.start(listen_plain_tcp="no", http_token_file=secret)
        self.assertEqual((self.get("/")[0], self.get("/healthz")[0], self.get("/metrics")[0]), (200, 200, 200))
        for header in (None, "", "Bearer", "Bearer ", "Bearer x", f"Bearer {TOKEN}x", f"Basic {TOKEN}", f"Bearer {TOKEN[:-1]}"):
            self.assertEqual(self.get("/api/v1/status", **({"Authorization": header} if header is not None else {}))[0], 401, header)
        self.assertEqual(self.get("/api/v1/status", Authorization=f"Bearer {TOKEN}")[0], 200)
        self.assertNotIn(TOKEN, self.server.log())
        for keys, word in (({"http_listen": "0.0.0.0:0"}, "on-network"),
                           ({"http_listen": "0.0.0.0:0", "http_on_network": "yes"}, "in plain"),
                           ({"http_tls": "yes"}, "[tls] cert"), ({"http_token_file": self.bed.path / "none"}, "openssl rand")):
            self.refused(secret, keys, word)
        argv = self.server.argv(http_listen="{}:{}".format(*self.address))  # in use: refused, and nothing is leaked
        done = subprocess.run([str(one) for one in argv], capture_output=True, text=True, timeout=120, check=False)
        self.assertIn(":{}".format(self.address[1]), done.stderr)
        self.assertNotIn("Sanitizer", done.stderr)
        secret.chmod(0o644)
        self.refused(secret, {}, "chmod 600")

    def refused(self, secret, keys, word):
        argv = self.server.argv(**{"listen_plain_tcp": "no", "http_listen": "127.0.0.1:0", "http_token_file": secret, **keys})
        done = subprocess.run([str(one) for one in argv], capture_output=True, text=True, timeout=120, check=False)
        self.assertEqual(done.returncode, 2, done.stderr)
        self.assertIn(word, done.stderr)

    def test_tls(self):
        pki = self.bed.path / "pki"
        subprocess.run([str(SOURCE / "tools/make-test-pki"), str(pki)], check=True, capture_output=True)
        files = {name: next(pki.glob(pattern)) for name, pattern in
                 (("tls_ca", "ca.crt"), ("tls_cert", "server.crt"), ("tls_key", "server.key"))}
        self.start(listen_plain_tcp="no", http_tls="yes", **files)
        stranger = ssl.create_default_context(cafile=str(files["tls_ca"]))
        stranger.check_hostname = False
        friend = ssl.create_default_context(cafile=str(files["tls_ca"]))
        friend.check_hostname = False
        friend.load_cert_chain(str(pki / "client.crt"), str(pki / "client.key"))
        self.assertEqual([self.get(path, tls=stranger)[0] for path in ("/", "/healthz", "/metrics", "/api/v1/runs")], [200, 200, 401, 401])
        self.assertEqual([self.get(path, tls=friend)[0] for path in ("/metrics", "/api/v1/runs")], [200, 200])
        self.tell_of_the_certificate_in_use(pki, friend)
        old = ssl.create_default_context(cafile=str(files["tls_ca"]))
        old.check_hostname = False
        old.maximum_version = ssl.TLSVersion.TLSv1_2
        self.assertRaises(ssl.SSLError, self.get, "/healthz", tls=old)

    def tell_of_the_certificate_in_use(self, pki, friend):
        """Files that were renewed are read at the next start: a reload tells nothing else before."""
        told = lambda: float(re.search(rb"(?m)^cairn_certificate_expiry_timestamp_seconds (\S+)$", self.get("/metrics", tls=friend)[2])[1])
        before = told()
        new = self.bed.path / "new"
        subprocess.run([str(SOURCE / "tools/make-test-pki"), "--days", "90", str(new)], check=True, capture_output=True)
        for name in ("ca.crt", "server.crt", "server.key"):
            (pki / name).write_bytes((new / name).read_bytes())
        self.server.process.send_signal(signal.SIGHUP)
        wait_until("it is read again", lambda: "has read its configuration again" in self.server.log())
        time.sleep(0.6)  # an answer may be half a second old
        self.assertEqual(told(), before)
        self.assertEqual(self.server.stop(), 0)
        self.server.start()
        friend.load_verify_locations(str(new / "ca.crt"))
        friend.load_cert_chain(str(new / "client.crt"), str(new / "client.key"))
        self.find_address()
        self.assertGreater(told(), before + 50 * 86400)

    def test_a_slow_reader_ends(self):
        self.start()
        with socket.create_connection(self.address, timeout=1) as peer:
            began = time.monotonic()
            peer.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
            with self.assertRaises((ConnectionError, StopIteration)):
                while time.monotonic() - began < 200:  # a byte now and then keeps no connection
                    peer.sendall(b"y")
                    try:
                        if peer.recv(1) == b"":
                            raise ConnectionResetError
                    except TimeoutError:
                        pass
            self.assertLess(time.monotonic() - began, 60)  # the request has 30 s to come

    def test_two_hundred_pages_while_saves_commit(self):
        self.start()
        group = self.fill(steps=(1,))
        stop, errors, served = threading.Event(), [], [0]

        def page():
            peer = http.client.HTTPConnection(*self.address, timeout=60)
            while not stop.is_set():
                for path in ("live", "status", "runs?checkpoints=60"):
                    peer.request("GET", f"/api/v1/{path}")
                    answer = peer.getresponse()
                    json.loads(answer.read())
                    served[0] += answer.status == 200
                    if answer.status != 200:
                        errors.append(answer.status)
                stop.wait(1)
            peer.close()

        pages = [threading.Thread(target=page) for _ in range(200)]
        for one in pages:
            one.start()
        for step in range(2, 12):
            group.all("fill", step)
            group.save(step)
        wait_until("all pages were served", lambda: served[0] >= 600)
        stop.set()
        for one in pages:
            one.join()
        self.assertEqual(errors, [])
        group.end()
        self.assert_whole(self.server, [(step, 1) for step in range(1, 12)])
        self.assertEqual(self.server.stop(), 0)

    def test_many_that_asked_once_keep_nobody_out(self):
        self.start()
        peers = []
        for _ in range(600):  # more than there are places
            peers.append(socket.create_connection(self.address, timeout=60))
            self.addCleanup(peers[-1].close)
            peers[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
            self.assertIn(b" 200 OK", peers[-1].recv(4096))
        began = time.monotonic()
        self.assertEqual(self.get("/healthz")[0], 200)
        self.assertLess(time.monotonic() - began, 25)  # the idle ones end after 30 s

    def test_it_ends_while_others_ask(self):
        self.start()
        peers = [http.client.HTTPConnection(*self.address, timeout=120) for _ in range(50)]
        for peer in peers:
            peer.request("GET", "/api/v1/live")
        self.assertEqual(self.server.stop(), 0)
        for peer in peers:
            peer.close()


if __name__ == "__main__":
    main()
