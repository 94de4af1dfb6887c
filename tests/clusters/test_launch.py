# SPDX-License-Identifier: Apache-2.0
"""torchrun and mpirun start the ranks as deploy/launch has it; a job that is told to stop saves, leaves, and goes on with the same bits."""

import os
import shutil
import signal
import subprocess
import time

from harness import SOURCE, cairn_json, main
from training import Training

LAUNCH = SOURCE / "deploy" / "launch"


class Launch(Training):
    def launch(self, script, name, signum=None, status=None):
        """Runs a script, and sends it a signal when a step is durable."""
        log = self.bed.path / f"{name}.out"
        with open(log, "ab") as out:
            process = self.bed.start([LAUNCH / script], cwd=self.work, stdout=out, stderr=out, env=self.env(
                CAIRN_RUN=f"lab/{name}", OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1",
                OMPI_MCA_rmaps_base_oversubscribe="1"))
        if signum:
            self.saved(name)
            process.send_signal(signum)
        self.assertEqual(process.wait(300), status or 0, log.read_text())
        return log.read_text()

    def test_torchrun(self):
        digest = self.undisturbed()
        self.program("torchrun")
        self.launch("torchrun.sh", "torchrun", signal.SIGTERM, 143)
        self.assert_resumed(self.launch("torchrun.sh", "torchrun"))
        self.assertEqual(self.digest("torchrun"), digest)

    def test_torchrun_starts_a_killed_rank_again(self):
        digest = self.undisturbed()
        self.program("killed")
        log = self.bed.path / "killed.out"
        with open(log, "ab") as out:
            process = self.bed.start([LAUNCH / "torchrun.sh"], cwd=self.work, stdout=out, stderr=out, env=self.env(CAIRN_RUN="lab/killed"))
        self.saved("killed")
        ranks = subprocess.run(["ps", "-eo", "pid,sid,args"], capture_output=True, text=True, check=True).stdout.splitlines()
        [victim, *_] = [int(line.split()[0]) for line in ranks if line.endswith("-u train.py") and self.belongs(int(line.split()[0]))]
        os.kill(victim, signal.SIGKILL)
        self.assertEqual(process.wait(300), 0, log.read_text())
        self.assertEqual(self.digest("killed"), digest)

    def test_torchrun_leaves_when_memory_fails(self):
        """The kernel counts an uncorrected error: the job saves, leaves, is started again, and ends with the same bits."""
        digest = self.undisturbed(200)
        self.program("failing", 200)
        counter = self.bed.path / "root/sys/devices/system/edac/mc/mc0/ue_count"
        counter.parent.mkdir(parents=True)
        counter.write_text("0\n")
        log = self.bed.path / "failing.out"
        with open(log, "ab") as out:
            process = self.bed.start([LAUNCH / "torchrun.sh"], cwd=self.work, stdout=out, stderr=out, env=self.env(
                CAIRN_RUN="lab/failing", CAIRN_WATCH="edac", CAIRN_WATCH_ROOT=str(self.bed.path / "root"), CAIRN_NODE="node07"))
        self.saved("failing")
        counter.write_text("1\n")
        self.assertEqual(process.wait(300), 0, log.read_text())
        self.assert_resumed(log.read_text())
        self.assertEqual(self.digest("failing"), digest)
        found = cairn_json("ls", "lab/failing", "--server", f"unix:{self.daemon.socket}")["checkpoints"]
        self.assertEqual([tag for one in found for tag in one["tags"]], ["notice on node07, edac: mc0/ue_count was 0, now 1"])

    def belongs(self, pid):
        """Whether a process works in this test's folder."""
        return os.readlink(f"/proc/{pid}/cwd") == str(self.work)

    def test_mpirun(self):
        if not shutil.which("mpirun"):
            self.skipTest("needs Debian's openmpi-bin")
        digest = self.undisturbed()
        self.program("mpirun")
        self.launch("mpirun.sh", "mpirun", signal.SIGUSR1, os.EX_TEMPFAIL)
        self.assert_resumed(self.launch("mpirun.sh", "mpirun"))
        self.assertEqual(self.digest("mpirun"), digest)


if __name__ == "__main__":
    main()
