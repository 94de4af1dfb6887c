#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of a training loop that saves at every 10th step, one way or another; told what to do by bench_train.py.

A GPT with AdamW on the CPU, one thread a rank, DDP over gloo where there are several; or on a GPU, with autocast
to bf16. `segment N` is a save and then N steps, as they follow each other in a real loop; what of the save is not
over by then is waited for, and told apart. What a save costs is told by the steps of one process: those with the
save in flight against those after it. All ways train from the same seed: their losses must be the same to the bit.
"""

import json
import os
import resource
import shutil
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn.functional as F
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType

WORDS = 32768


class Block(torch.nn.Module):
    def __init__(self, width):
        super().__init__()
        self.heads = max(1, width // 64)
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        self.qkv, self.out = torch.nn.Linear(width, 3 * width), torch.nn.Linear(width, width)
        self.up, self.down = torch.nn.Linear(width, 4 * width), torch.nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, -1))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.ln_2(x))))


class Gpt(torch.nn.Module):
    def __init__(self, words, width, layers, length):
        super().__init__()
        self.words, self.places = torch.nn.Embedding(words, width), torch.nn.Embedding(length, width)
        self.blocks = torch.nn.Sequential(*(Block(width) for _ in range(layers)))
        self.ln = torch.nn.LayerNorm(width)
        self.head = torch.nn.Linear(width, words, bias=False)

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        return self.head(self.ln(self.blocks(x)))


class Nothing:
    """The same loop without saves; and what every way of saving has."""

    def __init__(self, job):
        self.job = job

    def save(self, step):
        pass

    def before_update(self):
        """Right before the optimizer changes anything."""

    def in_flight(self):
        """Whether what was saved last is not durable yet."""
        return False

    def finish(self):
        """Until what was saved is durable."""

    def close(self):
        pass


class CairnWay(Nothing):
    def __init__(self, job, mode):
        super().__init__(job)
        import cairn.torch  # not where only peers are measured
        self.checkpointer = cairn.torch.Checkpointer(
            job.target, {"model": job.model, "optim": job.optimizer}, on_error="raise", attempt=os.environ["BENCH_ATTEMPT"],
            **({"rank": 0, "world_size": 1} if job.world == 1 else {}), snapshot=mode)

    def save(self, step):
        self.handle = self.checkpointer.save(step)

    def in_flight(self):
        return not self.handle.durable.done()

    def finish(self):
        self.handle.durable.result(600)

    def close(self):
        self.checkpointer.close()


class DcpWay(Nothing):
    def __init__(self, job, mode):
        super().__init__(job)
        self.folder, self.mode, self.number = Path(job.target), mode, 0
        self.group = dist.new_group(backend="gloo")
        self.future = self.staging = self.stager = None
        if mode in ("cached stager", "async staging"):
            cuda = job.device == "cuda"  # what PyTorch advises there
            self.stager = DefaultStager(StagingOptions(
                use_pinned_memory=cuda, use_shared_memory=True, use_async_staging=mode == "async staging",
                use_non_blocking_copy=cuda))
            self.dispatch = dict(self.stager._state_dict_stager._deepcopy_dispatch)

    def state(self):
        return {"model": self.job.model.state_dict(), "optim": self.job.optimizer.state_dict()}

    def path(self):
        return self.folder / str(self.number)

    def where(self):
        return {"checkpoint_id": self.path()}

    def remove(self):
        shutil.rmtree(self.path())

    def save(self, step):
        self.number += 1
        if self.stager:  # PyTorch 2.11 empties it after each save
            self.stager._state_dict_stager._deepcopy_dispatch.update(self.dispatch)
        if self.mode == "sync":
            dcp.save(self.state(), **self.where(), process_group=self.group)
            return
        kind = AsyncCheckpointerType.PROCESS if self.mode == "process" else AsyncCheckpointerType.THREAD
        answer = dcp.async_save(self.state(), **self.where(), process_group=self.group,
                                async_checkpointer_type=kind, **({"async_stager": self.stager} if self.stager else {}))
        self.staging = getattr(answer, "staging_completion", None)
        self.future = getattr(answer, "upload_completion", answer)

    def before_update(self):
        if self.staging:
            self.staging.result()
            self.staging = None

    def in_flight(self):
        return self.future is not None and not self.future.done()

    def finish(self):
        if self.future:
            self.future.result()
            self.future = None
        if self.job.rank == 0:
            self.remove()

    def close(self):
        if self.stager:
            self.stager.close()


class CairnDcpWay(DcpWay):
    """dcp.async_save as it is, storing in Cairn: with the Writer as its stager, or PyTorch's; and cairn.dcp's own."""

    def __init__(self, job, mode):
        target, job.target = job.target, os.environ["BENCH_FOLDER"]
        super().__init__(job, mode)
        from cairn.dcp import Writer
        self.writer = Writer(target, process_group=self.group)

    def where(self):
        return {"checkpoint_id": f"step-{self.number}", "storage_writer": self.writer}

    def save(self, step):
        if self.mode != "arena":
            super().save(step)
            return
        import cairn.dcp
        self.number += 1
        self.future = cairn.dcp.async_save(self.state(), **self.where(), process_group=self.group)

    def remove(self):
        """The driver makes room in the store."""

    def close(self):
        super().close()
        self.writer.close()


class TorchWay(Nothing):
    """torch.save of rank 0 and fsync."""

    def save(self, step):
        if self.job.rank == 0:
            path = Path(self.job.target) / "state.pt"
            torch.save({"model": self.job.model.state_dict(), "optim": self.job.optimizer.state_dict()}, path)
            fd = os.open(path, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)
        if self.job.world > 1:
            dist.barrier()


WAYS = {"none": Nothing, "torch.save": TorchWay, "dcp.save": lambda job: DcpWay(job, "sync"),
        "dcp.async_save thread": lambda job: DcpWay(job, "thread"),
        "dcp.async_save process": lambda job: DcpWay(job, "process"),
        "dcp.async_save cached stager": lambda job: DcpWay(job, "cached stager"),
        "dcp.async_save async staging": lambda job: DcpWay(job, "async staging"),
        "cairn.dcp.Writer cached stager": lambda job: CairnDcpWay(job, "cached stager"),
        "cairn.dcp.Writer": lambda job: CairnDcpWay(job, "thread"),
        "cairn.dcp.async_save": lambda job: CairnDcpWay(job, "arena"),
        "cairn copy": lambda job: CairnWay(job, "copy"), "cairn lazy": lambda job: CairnWay(job, "lazy")}


class Job:
    def __init__(self, options):
        self.rank, self.world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        self.target, self.tokens, self.device = options["target"], options["tokens"], options["device"]
        torch.set_num_threads(1)
        torch.use_deterministic_algorithms(self.device == "cuda")
        torch.manual_seed(1)
        self.model = Gpt(WORDS if options["width"] >= 256 else 512, options["width"], options["layers"], options["tokens"])
        self.model.to(self.device)
        self.words = self.model.words.num_embeddings
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.loop = torch.nn.parallel.DistributedDataParallel(self.model) if self.world > 1 else self.model
        self.data = torch.Generator().manual_seed(2 + self.rank)
        self.batch, self.count, self.loss = options["batch"], 0, 0.0
        self.way = Nothing(self)
        self.free = self.train(2)[1][1:]  # the optimizer has all its state before the first save
        self.way = WAYS[options["way"]](self)

    def step(self):
        tokens = torch.randint(self.words, (self.batch, self.tokens + 1), generator=self.data).to(self.device)
        with torch.autocast(self.device, torch.bfloat16, enabled=self.device == "cuda"):
            loss = F.cross_entropy(self.loop(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        self.way.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.loss = loss.item()
        self.count += 1

    def train(self, steps):
        """Seconds of the steps that began with a save in flight, and of those that did not."""
        busy, free = [], []
        for _ in range(steps):
            begin, kind = time.monotonic(), busy if self.way.in_flight() else free
            self.step()
            kind.append(time.monotonic() - begin)
        return busy, free

    def state_bytes(self):
        tensors = [*self.model.parameters(), *(t for state in self.optimizer.state.values() for t in state.values())]
        return sum(t.numel() * t.element_size() for t in tensors)

    def segment(self, steps):
        begin = time.monotonic()
        self.way.save(self.count)
        blocked = time.monotonic()
        busy, free = self.train(steps)
        end = time.monotonic()
        self.way.finish()
        over = time.monotonic()
        self.free = free or self.free
        usual = statistics.median(self.free)
        return {"seconds": end - begin, "blocked_s": blocked - begin, "overrun_s": over - end, "step_s": usual,
                "lost_s": blocked - begin + sum(busy) - len(busy) * usual + (over - end), "busy_steps": len(busy)}

    def usage(self):
        """The greatest resident size of this process: arena and what a stager shares with others are in it."""
        return {"rss_peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}


def main():
    options = json.loads(sys.argv[1])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not meet the answers

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    dist.init_process_group("gloo", init_method=f"file://{os.environ['BENCH_RENDEZVOUS']}",
                            rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    job = Job(options)
    answer({"ready": True, "state_bytes": job.state_bytes()})
    for line in sys.stdin:
        words = line.split()
        if words[0] == "segment":
            answer(job.segment(int(words[1])))
        elif words[0] == "usage":
            answer(job.usage())
        elif words[0] == "loss":
            answer({"loss": job.loss.hex(), "steps": job.count})
        else:
            answer({"error": f"unknown command {words[0]}"})
    job.way.close()
    job.loop = None  # a group that DDP frees after the next call is freed under the GIL, where PyTorch can hang
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
