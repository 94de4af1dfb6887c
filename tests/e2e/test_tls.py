# SPDX-License-Identifier: Apache-2.0
"""Only clients with the right certificate come in over TLS, and logs are JSON that carries run, term, step and rank, and
no secret (I10)."""

import json
import re
import shutil
import signal
import subprocess

from harness import SOURCE, Case, Group, Rank, cairn, main, verified, wait_until


class Tls(Case):
    def setUp(self):
        super().setUp()
        self.pki = self.bed.path / "pki"
        subprocess.run([str(SOURCE / "tools" / "make-test-pki"), "--expired", "--other-ca", str(self.pki)],
                       check=True, capture_output=True, timeout=60)
        self.server = self.daemon(listen_tcp="127.0.0.1:0", tls_cert=self.pki / "server.crt",
                                  tls_key=self.pki / "server.key", tls_ca=self.pki / "ca.crt",
                                  log_format="json")

    def files(self, name="client", ca="ca"):
        return self.pki / f"{ca}.crt", self.pki / f"{name}.crt", self.pki / f"{name}.key"

    def flags(self, name="client", ca="ca"):
        ca_file, cert, key = self.files(name, ca)
        return "--ca-file", ca_file, "--cert-file", cert, "--key-file", key

    def where(self):
        return "--server", f"localhost:{self.server.port()}"

    def test_save_restore_and_command_line(self):
        url = f"cairn://localhost:{self.server.port()}/demo/run"
        group = Group(self.bed, url, 2, open_words=(10000, *self.files()))
        group.all("fill", 5)
        group.save(1)
        group.all("fill", 6)
        self.assert_restores(group, (1, 1, False), 5)
        group.end()
        _, out, _ = cairn("ls", "demo/run", *self.where(), *self.flags(), check=0)
        self.assertIn("1@1", out)
        cairn("verify", "demo/run", *self.where(), *self.flags(), check=0)
        cairn("restore", "demo/run", "--to", self.bed.path / "out", *self.where(), *self.flags(), check=0)
        self.assertTrue((self.bed.path / "out" / "model.safetensors").exists())
        cairn("pin", "demo/run", "1", *self.where(), *self.flags(), check=0)
        _, out, _ = cairn("status", "demo/run", "1@1", *self.where(), *self.flags(), check=0)
        self.assertIn("pinned by cn=cairn-client claimed=", out)
        self.check_logs(group.attempt)

    def check_logs(self, attempt):
        lines = [json.loads(line) for line in self.server.log().splitlines()]
        opened = [line for line in lines if "save opened" in line["msg"]]
        self.assertEqual(len(opened), 1)
        self.assertEqual((opened[0]["run"], opened[0]["term"], opened[0]["step"], opened[0]["rank"]),
                         ("demo/run", 1, 1, 0))
        for line in lines:
            for key in ("time", "level", "msg"):
                self.assertTrue({key, "ts", "component"} & set(line), line)
        text = self.server.log()
        self.assertNotIn(attempt, text)
        for path in self.pki.glob("*.key"):
            for secret in re.findall(r"^[A-Za-z0-9+/=]{20,}$", path.read_text(), re.M):
                self.assertNotIn(secret, text)
        self.assertNotIn("PRIVATE KEY", text)

    def test_refused_certificates(self):
        for name, why in (("other", "another authority"), ("expired", "expired")):
            status, _, err = cairn("ls", *self.where(), *self.flags(name), "--timeout", 5)
            self.assertEqual(status, 12, f"{why}: {err}")
            self.assertIn("AUTH", err)
        status, _, err = cairn("ls", *self.where(), "--ca-file", self.pki / "ca.crt", "--timeout", 5)
        self.assertEqual(status, 12, f"none: {err}")
        self.assertIn("certificate", err)
        rank = Rank(self.bed)
        url = f"cairn://localhost:{self.server.port()}/demo/run"
        self.assert_error(rank.refused("open", url, 0, 1, "-", "rank", 5000, *self.files("expired")), "AUTH")
        self.still_serves()

    def test_a_server_that_is_not_trusted(self):
        status, _, err = cairn("ls", *self.where(), *self.flags(ca="other-ca"), "--timeout", 5)
        self.assertEqual(status, 12, err)
        self.assertIn("AUTH", err)
        status, _, err = cairn("ls", "--server", f"127.0.0.2:{self.server.port()}", *self.flags(), "--timeout", 5)
        self.assertIn(status, (5, 12), err)  # the certificate is not for 127.0.0.2, and nobody listens there
        self.still_serves()

    def test_plain_client_at_a_tls_port(self):
        status, _, err = cairn("ls", *self.where(), "--timeout", 3)
        self.assertNotEqual(status, 0)
        self.assertRegex(err, "TLS|--ca-file")
        self.still_serves()

    def test_tls_client_at_a_plain_port(self):
        plain = self.daemon("plain", listen_tcp="127.0.0.1:0")
        status, _, err = cairn("ls", "--server", f"localhost:{plain.port()}", *self.flags(), "--timeout", 3)
        self.assertNotEqual(status, 0)
        self.assertIn("TLS", err)
        self.assertEqual(verified(plain, "server")["damaged"], 0)

    def reload(self, expected):
        before = len(self.server.log())
        self.server.process.send_signal(signal.SIGHUP)
        wait_until(f"the log says '{expected}'", lambda: expected in self.server.log()[before:])
        return self.server.log()[before:]

    def test_a_reload_takes_renewed_certificates(self):
        """SIGHUP renews them for new connections, and those that are there go on; files that do not fit change nothing."""
        group = Group(self.bed, f"cairn://localhost:{self.server.port()}/demo/run", 1, open_words=(10000, *self.files()))
        group.save(1)
        new = self.bed.path / "new"
        subprocess.run([SOURCE / "tools" / "make-test-pki", new], check=True, capture_output=True, timeout=60)
        shutil.copytree(self.pki, self.bed.path / "old")
        shutil.copy(new / "server.crt", self.pki)  # the key of another
        said = self.reload("keeps its old configuration")
        self.assertRegex(said, "server.key does not belong to the certificate")
        self.still_serves()
        for name in ("server.key", "ca.crt"):
            shutil.copy(new / name, self.pki)
        self.reload("new connections get what the files of [tls] hold now")
        self.pki = self.bed.path / "old"
        cairn("ls", *self.where(), *self.flags(), "--timeout", 5, check=12)
        self.pki = new
        self.still_serves()
        group.save(2)
        group.end()

    def still_serves(self):
        cairn("ls", *self.where(), *self.flags(), check=0)

    def test_a_key_that_everybody_may_read(self):
        loose = self.pki / "server.key"
        loose.chmod(0o644)
        self.assertEqual(self.server.stop(), 0)
        self.server.launch()
        status = self.server.process.wait(120)
        self.assertNotEqual(status, 0, "a private key that everybody can read should be refused")
        self.assertIn("server.key", self.server.log())


if __name__ == "__main__":
    main()
