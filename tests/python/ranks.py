# SPDX-License-Identifier: Apache-2.0
"""A few processes joined by gloo that live as long as the test session and run cases: starting PyTorch takes longer
than a case. As a program: one of them; arguments: rank, world size, rendezvous file.

A case is a function ``case(rank, world, **arguments)`` of cases_*.py; arguments are JSON. What it returns goes back as
JSON, an exception as its text.
"""

import importlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import traceback

HERE = pathlib.Path(__file__).parent


class Ranks:
    """The parent's side. A case that fails on one rank or takes too long ends all processes; the next case starts
    others."""

    def __init__(self, world):
        self.world, self.processes = world, []
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-ranks-")
        self._starts = 0

    def start(self):
        self._starts += 1
        meet = pathlib.Path(self.folder.name) / f"meet-{self._starts}"
        env = dict(os.environ, OMP_NUM_THREADS="1", TORCH_NCCL_ASYNC_ERROR_HANDLING="0")
        for rank in range(self.world):
            log = open(pathlib.Path(self.folder.name) / f"log-{rank}", "w+")
            process = subprocess.Popen([sys.executable, __file__, str(rank), str(self.world), str(meet)],
                                       stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=env)
            process.log = log
            self.processes.append(process)

    def send(self, case, **arguments):
        """Starts a case ("module.function") on all ranks."""
        if not self.processes:
            self.start()
        for process in self.processes:
            process.stdin.write(json.dumps([case, arguments]) + "\n")
            process.stdin.flush()

    def answers(self, timeout=300):
        """What the ranks answered; AssertionError with all texts when one failed."""
        import threading
        watch = threading.Timer(timeout, self.kill)
        watch.start()
        lines = [process.stdout.readline() for process in self.processes]
        watch.cancel()
        answers = [json.loads(line) if line else {"error": self._last_words(rank)} for rank, line in enumerate(lines)]
        errors = [f"rank {rank}: {answer['error']}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            self.kill()
        assert not errors, "\n".join(errors)
        return [answer["result"] for answer in answers]

    def run(self, case, **arguments):
        self.send(case, **arguments)
        return self.answers()

    def _last_words(self, rank):
        log = self.processes[rank].log
        log.seek(0)
        return "it ended or took too long\n" + log.read()[-3000:]

    def kill(self):
        for process in self.processes:
            process.kill()
        if self.processes and all(process.wait() is not None for process in self.processes):
            self._ended, self.processes = self.processes, []

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.processes = []
        self.folder.cleanup()


def main():
    rank, world, meet = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a case prints is no answer
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    for line in sys.stdin:
        case, arguments = json.loads(line)
        module, _, name = case.rpartition(".")
        try:
            answer = {"result": getattr(importlib.import_module(module), name)(rank, world, **arguments)}
        except BaseException as error:  # noqa: B036 - the parent judges
            answer = {"error": "".join(traceback.format_exception(error))[-4000:]}
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
        if "error" in answer:
            os._exit(1)
    dist.destroy_process_group()


if __name__ == "__main__":
    sys.path.insert(0, str(HERE))
    main()
