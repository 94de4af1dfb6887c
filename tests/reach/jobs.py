# SPDX-License-Identifier: Apache-2.0
"""A training that the harness starts, and starts again, beside its daemon; and what the training tells of itself."""

import os
import re
import signal
import subprocess
import sys

import torch

from frameworks import FRAMEWORKS, IGNORED, ROOT
from kills import end_job, to_text

sys.path.insert(0, str(ROOT / "tests" / "python"))

from together import free_port, torchrun  # noqa: E402

ATTEMPT_S = 900  # many times what a start takes, for a machine that has much else to do


class Job:
    """One training, in a folder and a run of its own."""

    def __init__(self, daemon, framework, ranks, name):
        self.daemon, self.framework, self.ranks, self.name = daemon, framework, ranks, name
        self.attempts = 0
        self.folder = daemon.folder / name
        self.folder.mkdir()
        self.environment = {**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}", "REACH_RUN": f"cairn:///py/{name}",
                            "REACH_JOB": str(self.folder), "TMPDIR": str(self.folder), "RAY_TMPDIR": str(daemon.folder),
                            "RAY_AUTH_MODE": "disabled", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_VERBOSITY": "error",
                            **FRAMEWORKS[framework].environment}

    def attempt(self, kills=()):
        """Starts the program once, to be killed so. Returns its exit status."""
        self.attempts += 1
        words = [sys.executable, str(ROOT / "tests" / "reach" / "drive.py"), self.framework, str(self.folder / "result")]
        if (self.ranks > 1 and FRAMEWORKS[self.framework].in_workers is None) or FRAMEWORKS[self.framework].is_launched:
            words[:1] = torchrun(self.ranks)
        self._tell_daemon()
        with open(self.folder / "log", "ab") as log:
            log.write(f"tests/reach: start {self.attempts}, {list(kills)}\n".encode())
            log.flush()
            process = subprocess.Popen(words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True,
                                       env={**self.environment, "REACH_KILLS": to_text(kills), "REACH_RANKS": str(self.ranks),
                                            "COORDINATOR": f"127.0.0.1:{free_port()}" if self.ranks > 1 else ""})
            try:
                return self._watch(process)
            finally:
                end_job(self.environment["REACH_JOB"])  # what a killed job has left: an agent does so
                process.wait()

    def _tell_daemon(self):
        """Writes the process number of the daemon, for those who are to kill it."""
        (self.folder / "daemon.new").write_text(str(self.daemon.process.pid), encoding="utf-8")
        (self.folder / "daemon.new").rename(self.folder / "daemon")

    def _watch(self, process):
        """Waits for the program. The daemon is started again if it goes."""
        waited = 0.0
        while waited < ATTEMPT_S:
            try:
                return process.wait(0.1)
            except subprocess.TimeoutExpired:
                waited += 0.1
            if self.daemon.process.poll() is not None:
                self._revive()
        raise RuntimeError(f"an attempt of {self.framework} did not end within {ATTEMPT_S} s:\n{self.tail()}")

    def _revive(self):
        """Starts the daemon that was killed again, and keeps its log."""
        with open(self.folder / "cairnd.log", "ab") as log:
            log.write((self.daemon.folder / "cairnd.log").read_bytes())
        if self.daemon.process.returncode != -signal.SIGKILL:
            raise RuntimeError(f"cairnd ended with {self.daemon.process.returncode}, though nobody killed it; see cairnd.log")
        self.daemon.kill()
        self.daemon.start()
        self._tell_daemon()

    def tail(self):
        return (self.folder / "log").read_text(errors="replace")[-6000:]

    def finish(self):
        """Lets the program come to its end."""
        if self.attempt() != 0:
            raise RuntimeError(f"{self.framework} on {self.ranks} ranks failed:\n{self.tail()}")

    def notes(self, name, rank):
        """Returns what a rank has noted."""
        path = self.folder / f"{name}.{rank}"
        return path.read_text(encoding="utf-8").splitlines() if path.exists() else []

    def killed(self):
        """Returns the numbers of the kills that have hit."""
        return {int(number) for rank in range(self.ranks) for number in self.notes("killed", rank)}

    def restored(self):
        """Returns the steps that the ranks have resumed from at their starts, as texts, or "nothing". Raises AssertionError if a start has
        not asked for a checkpoint, if it has begun anew although there was one, if the ranks did not resume from the same step, or if an
        adapter has not logged it."""
        found = []
        for rank in range(self.ranks):
            notes = self.notes("restored", rank)
            assert len(notes) >= self.attempts, (
                f"{self.framework}: rank {rank} asked for a checkpoint {len(notes)} times in {self.attempts} starts")
            passed = [note for note in notes if IGNORED in note]
            assert not passed, f"{self.framework}: rank {rank} resumed from {', '.join(passed)}"
            found.append(notes)
        assert all(steps == found[0] for steps in found), f"{self.framework}: the ranks resumed from different steps: {found}"
        if FRAMEWORKS[self.framework].has_adapter:
            self._check_log(found[0])
        return found[0]

    def _check_log(self, restored):
        """Raises AssertionError unless the adapter has logged each restart from a checkpoint."""
        logged = "\n".join(line for rank in range(self.ranks) for line in self.notes("logged", rank))
        silent = [step for step in restored
                  if step != "nothing" and not re.search(rf"restored step {re.search('[0-9]+', step)[0]}\b", logged)]
        assert not silent, f"{self.framework}: nothing is logged of the restart from {silent}"

    def steps(self):
        """Returns how many steps the training has that came to its end."""
        return int(self.notes("steps", 0)[-1])

    def results(self):
        return [torch.load(self.folder / f"result.{rank}", weights_only=False) for rank in range(self.ranks)]
