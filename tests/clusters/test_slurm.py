# SPDX-License-Identifier: Apache-2.0
"""deploy/launch/train.sbatch under a real Slurm: preempted, and at its time limit, it saves, is requeued, and ends with the same bits.

slurmctld, slurmd and munged are this test's own, on free ports of loopback, with all their files in its folder.
"""

import os
import shutil
import socket
import subprocess
import time

from harness import SOURCE, main, wait_until
from training import Training, free_port

CONF = """ClusterName=cairn
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={where}/munge.socket,cred_expire=5
StateSaveLocation={where}/state
SlurmdSpoolDir={where}/spool
SlurmctldPidFile={where}/slurmctld.pid
SlurmdPidFile={where}/slurmd.pid
SlurmctldLogFile={where}/slurmctld.log
SlurmdLogFile={where}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0,sched_interval=2,sched_min_interval=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
ReturnToService=2
KillWait=30
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} State=UNKNOWN
PartitionName=low Nodes=ALL Default=YES PriorityTier=1 PreemptMode=REQUEUE GraceTime=60 OverSubscribe=NO
PartitionName=high Nodes=ALL PriorityTier=10 PreemptMode=OFF
"""


class Slurm(Training):
    def setUp(self):
        super().setUp()
        if os.geteuid() != 0 or not all(map(shutil.which, ("slurmctld", "slurmd", "sbatch", "munged"))):
            self.skipTest("needs root, and Debian's slurmctld, slurmd, slurm-client and munge")
        self.where = self.bed.sockets  # short enough for a socket, and root's alone
        for name in ("state", "spool"):
            (self.where / name).mkdir()
        (self.where / "slurm.conf").write_text(CONF.format(host=socket.gethostname().split(".")[0], where=self.where, cpus=os.cpu_count(),
                                                           controller=free_port(), node=free_port()))
        (self.where / "munge.key").write_bytes(os.urandom(128))
        (self.where / "munge.key").chmod(0o600)
        self.slurm = {"SLURM_CONF": str(self.where / "slurm.conf")}
        munge = {name: self.where / f"munge.{name}" for name in ("socket", "pid", "log", "seed")}
        self.service("munged", "--foreground", "--force", "--key-file", self.where / "munge.key", "--socket", munge["socket"], "--pid-file",
                     munge["pid"], "--log-file", munge["log"], "--seed-file", munge["seed"])
        wait_until("munged listens", munge["socket"].exists)
        self.service("slurmctld", "-D", "-i")
        self.service("slurmd", "-D")
        wait_until("the node is idle", lambda: self.ask("sinfo", "-h", "-p", "low", "-o", "%T") == "idle", 60)

    def service(self, *words):
        with open(self.bed.path / f"{words[0]}.out", "ab") as log:
            process = self.bed.start(words, stdout=log, stderr=log, env={**os.environ, **self.slurm})
        self.addCleanup(self.end, process)
        return process

    def end(self, process):
        process.terminate()
        process.wait(30)

    def ask(self, *words):
        return subprocess.run(words, capture_output=True, text=True, check=False, env=self.env(**self.slurm), cwd=self.work).stdout.strip()

    def submit(self, *words):
        got = subprocess.run(["sbatch", "--parsable", *words], capture_output=True, text=True, check=True, cwd=self.work,
                             env=self.env(**self.slurm))
        return got.stdout.strip()

    def field(self, job, name):
        text = self.ask("scontrol", "show", "job", "-o", job)
        return dict(word.split("=", 1) for word in text.split() if "=" in word).get(name, "")

    def log(self):
        path = self.work / "job.out"
        return path.read_text() if path.exists() else ""

    def train(self, name, *words):
        self.program(name)
        return self.submit("--output", "job.out", "--partition", "low", *words, SOURCE / "deploy" / "launch" / "train.sbatch")

    def assert_ends_as(self, job, name, digest):
        wait_until("the job is done", lambda: self.field(job, "JobState") == "COMPLETED", 300)
        self.assert_resumed(self.log())
        self.assertEqual(self.field(job, "Restarts"), "1")
        self.assertEqual(self.digest(name), digest)

    def test_a_preempted_job_goes_on(self):
        digest = self.undisturbed()
        job = self.train("preempted")
        self.saved("preempted")
        urgent = self.submit("--output", "urgent.out", "--partition", "high", "--exclusive", "--wrap", "true")
        wait_until("the urgent job ran", lambda: self.field(urgent, "JobState") == "COMPLETED", 120)
        self.assert_ends_as(job, "preempted", digest)

    def test_a_job_at_its_time_limit_goes_on(self):
        """Slurm counts in minutes and may send USR1 a minute early: with a limit of two it comes within the first minute."""
        steps = 4000  # more than fit into the limit
        self.program("limit", steps)
        job = self.submit("--output", "job.out", "--time", "2", SOURCE / "deploy" / "launch" / "train.sbatch")
        wait_until("the job left in order", lambda: "stopped at step" in self.log(), 150)
        wait_until("it runs again", lambda: self.log().count("starting at step") == 2, 120)
        self.assert_resumed(self.log())
        self.assertEqual(self.field(job, "Restarts"), "1")
        self.ask("scancel", job)
        wait_until("it is gone", lambda: self.field(job, "JobState") in ("CANCELLED", ""), 120)


if __name__ == "__main__":
    main()
