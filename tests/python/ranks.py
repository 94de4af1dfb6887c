# SPDX-License-Identifier: Apache-2.0
"""A few processes joined by gloo that run cases. They are forked from one that has imported PyTorch, because importing it
takes longer than most cases.

A case is a function ``case(rank, world, **arguments)`` of cases_*.py; arguments are JSON. What it returns goes back as
JSON, an exception as its text.
"""

import importlib
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
import traceback

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(["pytest", "torch.distributed.checkpoint.state_dict", "torch.distributed.fsdp"])


class Ranks:
    """The parent's side. A case that fails on one rank or takes too long ends all processes; the next case starts
    others."""

    def __init__(self, world):
        self.world, self.processes, self.pipes = world, [], []
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-ranks-")
        self._starts = 0

    def start(self):
        self._starts += 1
        meet = pathlib.Path(self.folder.name) / f"meet-{self._starts}"
        for rank in range(self.world):
            ours, theirs = _CONTEXT.Pipe()
            process = _CONTEXT.Process(target=serve, args=(rank, self.world, str(meet), self._log(rank), theirs))
            process.start()
            theirs.close()
            self.processes.append(process)
            self.pipes.append(ours)

    def send(self, case, **arguments):
        """Starts a case ("module.function") on all ranks."""
        if not self.processes:
            self.start()
        for pipe in self.pipes:
            pipe.send_bytes(json.dumps([case, arguments]).encode())

    def answers(self, timeout=300, count=None):
        """What the ranks answered, or the first ``count`` of them; AssertionError with all texts when one failed."""
        end = time.monotonic() + timeout
        answers = [self._answer(rank, end) for rank in range(count or self.world)]
        errors = [f"rank {rank}: {answer['error']}\n{self._tail(rank)}" for rank, answer in enumerate(answers) if "error" in answer]
        if errors:
            self.kill()
        assert not errors, "\n".join(errors)
        return [answer["result"] for answer in answers]

    def run(self, case, **arguments):
        self.send(case, **arguments)
        return self.answers()

    def _log(self, rank):
        return os.path.join(self.folder.name, f"log-{rank}")

    def _answer(self, rank, end):
        try:
            if self.pipes[rank].poll(max(end - time.monotonic(), 0)):
                return json.loads(self.pipes[rank].recv_bytes())
            how = "it took too long"
        except (EOFError, ConnectionResetError):
            how = "it ended"
        return {"error": how}

    def _tail(self, rank):
        return pathlib.Path(self._log(rank)).read_text(errors="replace")[-3000:]

    def kill(self):
        for process in self.processes:
            process.kill()
        self._join(None)

    def close(self):
        for pipe in self.pipes:
            pipe.close()
        self._join(20)
        self.folder.cleanup()

    def _join(self, patience):
        """Waits for the processes to end; kills those that have not when patience, in seconds, is over."""
        for process in self.processes:
            process.join(patience)
            process.kill()
            process.join()
            process.close()
        self.processes, self.pipes = [], []


def run_once(case, world, **arguments):
    """What the case returned on ranks of its own: as a job that starts, ends, and leaves no process behind."""
    ranks = Ranks(world)
    try:
        return ranks.run(case, **arguments)
    finally:
        ranks.close()


def break_once(case, world, **arguments):
    """The same with a case that ends the last rank's process; the other ranks are killed then, as torchrun does."""
    ranks = Ranks(world)
    try:
        ranks.send(case, **arguments)
        ranks.processes[-1].join(240)
        assert ranks.processes[-1].exitcode, "the rank was to die"
    finally:
        ranks.kill()
        ranks.close()


def serve(rank, world, meet, log, pipe):
    """The life of one process."""
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(out, 1)
    os.dup2(out, 2)
    import torch
    import torch.distributed as dist
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{meet}", rank=rank, world_size=world)
    while True:
        try:
            case, arguments = json.loads(pipe.recv_bytes())
        except EOFError:
            break
        module, _, name = case.rpartition(".")
        try:
            answer = {"result": getattr(importlib.import_module(module), name)(rank, world, **arguments)}
        except BaseException as error:  # noqa: B036 - the parent judges
            answer = {"error": "".join(traceback.format_exception(error))[-4000:]}
        pipe.send_bytes(json.dumps(answer).encode())
        if "error" in answer:
            os._exit(1)
    dist.destroy_process_group()
    sys.stdout.flush()
