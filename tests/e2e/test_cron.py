# SPDX-License-Identifier: Apache-2.0
"""Debian's cron runs the shipped crontab on a store that a training run saves to.

A mount namespace of its own: the crontab, cron's spool, /run and the mailer are this test's, and the system
sees none of it. Cron works by the minute, so the test takes about one. Everything that can go wrong with a cron
job runs in the same minute, each as one line of a crontab, and each sends one line of mail.
"""

import os
import re
import shlex
import shutil
import signal
import subprocess
import time

from harness import BIN, SOURCE, Case, cairn, cairn_json, flip, listed, main, wait_until

SHIPPED = SOURCE / "deploy" / "cron" / "cairn"
MAILER = """#!/bin/sh
exec cat > "$CAIRN_TEST_MAIL/$$"
"""


def can_isolate():
    return (os.geteuid() == 0 and shutil.which("cron", path="/usr/sbin") and
            subprocess.run(["unshare", "-m", "true"], capture_output=True).returncode == 0)


class Cron(Case):
    def setUp(self):
        super().setUp()
        if not can_isolate():
            self.skipTest("needs root, a mount namespace and Debian's cron")
        for name in ("cron.d", "sbin", "mail"):
            (self.bed.path / name).mkdir()
        mailer = self.bed.path / "sbin" / "sendmail"
        mailer.write_text(MAILER.replace("$CAIRN_TEST_MAIL", str(self.bed.path / "mail")))
        mailer.chmod(0o755)

    def install(self, name, server, keep=lambda line: True, change=lambda line: line):
        """The shipped file for this server, as root, at every minute, and only the jobs that keep() names."""
        lines = []
        for line in SHIPPED.read_text().splitlines():
            job = re.match(r"^[0-9*/]+ \S+ \S+ \S+ \S+ cairn (cairn .*)$", line)
            if job and not keep(job.group(1)):
                continue
            line = f"* * * * * root {change(job.group(1))}" if job else line
            line = re.sub(r"^PATH=.*", f"PATH={BIN}:/usr/bin:/bin", line)
            lines.append(re.sub(r"^CAIRN_SERVER=.*", f"CAIRN_SERVER={server}", line))
        path = self.bed.path / "cron.d" / name
        path.write_text("\n".join(lines) + "\n")
        path.chmod(0o644)

    def start_cron(self):
        where = self.bed.path
        script = (f"mount -t overlay overlay -o lowerdir={where}/sbin:/usr/sbin /usr/sbin && "
                  f"mount --bind {where}/cron.d /etc/cron.d && mount -t tmpfs t /run && "
                  "mount -t tmpfs t /var/spool/cron && mkdir /var/spool/cron/crontabs && exec /usr/sbin/cron -f")
        with open(where / "cron.log", "wb") as log:
            return self.bed.start(["unshare", "-m", "sh", "-c", script], stdin=subprocess.DEVNULL,
                                  stdout=log, stderr=log, start_new_session=True)

    def mails(self):
        """{(the command that the subject names, the lines of the body)}: the same mail again counts once"""
        found = set()
        for path in (self.bed.path / "mail").iterdir():
            head, _, body = path.read_text(errors="replace").partition("\n\n")
            subject = re.search(r"^Subject: Cron <[^>]*> (.*)$", head, re.M)
            if subject and body.strip():
                found.add((subject.group(1), tuple(body.strip().splitlines())))
        return found

    def test_an_hour_of_a_year(self):
        good = self.daemon("good")
        gone = self.daemon("gone")
        locked = self.daemon("locked")
        damaged = self.daemon("damaged")
        training = self.group(good, world=2)
        for step in range(1, 13):
            training.save(step)
        for daemon in (locked, damaged):
            self.run_attempt(daemon, *range(1, 5), world=1)
        for path in damaged.files("**/objects/**/*"):
            os.chmod(path, 0o644)
            flip(path, 0)
        for term, step in [key[::-1] for key in listed(damaged, how="server")]:
            restore = self.group(damaged, world=1)
            restore.finish_any(restore.try_all("restore", f"{step}@{term}"))
            restore.end()
        gone.stop()

        for daemon, last in ((good, 3), (damaged, 5)):  # the jobs carry no rules
            cairn("policy", "set", "*", "--keep-last", last, "--keep-daily", 7, "--keep-weekly", 4,
                  *daemon.online, check=0)
        self.install("good", f"unix:{good.socket}")
        self.install("gone", f"unix:{gone.socket}", keep=lambda job: "forget" in job)
        self.install("locked", f"unix:{locked.socket}", keep=lambda job: "forget" in job,
                     change=lambda job: job.replace("--quiet", f"--quiet --store dir:{locked.store}"))
        self.install("damaged", f"unix:{damaged.socket}", keep=lambda job: "cairn gc" not in job)
        cron = self.start_cron()

        expected = ((f"{locked.store}", "STORE_LOCKED"), ("UNREACHABLE", str(gone.socket)),
                    ("DAMAGED", "nothing is forgotten"), ("scrub has found", "verify --repair"))

        def about(words):
            return [lines for subject, lines in self.mails() if words in subject + " ".join(lines)]

        def all_expected():
            self.assertIsNone(cron.poll(), (self.bed.path / "cron.log").read_text())
            training.save(all_expected.step)  # the run goes on saving, at its own pace
            all_expected.step += 1
            time.sleep(3)
            return all(about(words) for words, _ in expected) and (2, 1) not in listed(good, how="server")
        all_expected.step = 13
        wait_until("cron has run every line", all_expected, timeout_s=130)
        os.killpg(cron.pid, signal.SIGTERM)
        cron.wait(120)

        mails = self.mails()
        for words, fragment in expected:
            lines, = about(words)
            self.assertEqual(len(lines), 1, lines)
            self.assertIn(fragment, lines[0])
        self.assertEqual(len(mails), len(expected), mails)
        kept = sorted(listed(good, how="server"))
        self.assertEqual(kept[-1], (all_expected.step - 1, 1), "the newest")
        self.assertNotIn((2, 1), kept)
        self.assertEqual(training.restore()[2], False)
        training.end()
        self.assertEqual(len(listed(damaged, how="server")), 4, "nothing is lost where nothing is good")
        self.assertEqual(cairn_json("verify", *good.offline)["damaged"], 0)


class Shipped(Case):
    """What is shipped for the three schedulers says the same."""

    def test_the_jobs_are_the_same_everywhere(self):
        cron = [shlex.split(job.removesuffix(" >/dev/null"))
                for job in re.findall(r"^[0-9*/]+ \S+ \S+ \S+ \S+ cairn (cairn .*)$", SHIPPED.read_text(), re.M)]
        units = [shlex.split(re.search(r"^ExecStart=/usr/local/bin/(.*)$", path.read_text(), re.M).group(1))
                 for path in sorted((SOURCE / "deploy").glob("cairn-*.service"))]
        pods = [shlex.split(words) for words in
                re.findall(r'\(list ((?:"[^"]+" ?)+)\)', (SOURCE / "deploy/kubernetes/chart/templates/jobs.yaml").read_text())]
        self.assertEqual(len(cron), 3)
        self.assertEqual(sorted(units), sorted(cron))
        self.assertEqual(sorted(pods), sorted(cron))
        for path in (SOURCE / "deploy").glob("cairn-*.service"):
            self.assertTrue(path.with_suffix(".timer").exists(), path)
        for words in cron:  # the program knows every word: nothing but the server is missing
            cairn(*words[1:], "--server", f"unix:{self.bed.path}/none", "--timeout", "1s", check=5)

    def test_a_server_without_a_run_sends_no_mail(self):
        """The crontab is installed with the server, before the first job: nothing is printed, and every job is good."""
        server = ("--server", f"unix:{self.daemon().socket}")
        for job in re.findall(r"^[0-9*/]+ \S+ \S+ \S+ \S+ cairn (cairn .*)$", SHIPPED.read_text(), re.M):
            words = shlex.split(job.removesuffix(" >/dev/null"))[1:]
            _, _, err = cairn(*words, *server, check=0)
            self.assertEqual(err, "", words)
        _, _, err = cairn("forget", "--run", "*", "--keep-last", "1", *server, check=0)
        self.assertIn("there is no run yet", err)
        self.assertEqual(cairn_json("forget", "--run", "*", "--keep-last", "1", *server)["runs"], [])


if __name__ == "__main__":
    main()
