#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Trains a small GPT for real, saves it through Cairn, then LoRA adapters on it; told what to do by bench_stored.py.

The text is Python's own standard library, as bytes. Weights are f32 while training; what is saved
is what mixed-precision training keeps: bf16 weights and Adam's moments in f32, with and without the f32 masters.
"""

import json
import math
import os
import sys
import sysconfig
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.func import functional_call

from cairn.torch import Checkpointer
from train_worker import Gpt

TEXT_BYTES_MAX = 12 << 20


def corpus():
    """The same bytes wherever this Python is; nothing is downloaded."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py")) + sorted(
        path for folder in ("asyncio", "email", "http", "json", "logging", "unittest", "xml")
        for path in Path(sysconfig.get_paths()["stdlib"], folder).rglob("*.py"))
    text = b"".join(path.read_bytes() for path in files)[:TEXT_BYTES_MAX]
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


class Lora(torch.nn.Module):
    """A frozen linear layer and a low-rank addition to it that is trained."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base
        self.a = torch.nn.Parameter(torch.randn(rank, base.in_features) / math.sqrt(base.in_features))
        self.b = torch.nn.Parameter(torch.zeros(base.out_features, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.a.to(x.dtype)), self.b.to(x.dtype))


class Job:
    def __init__(self, options):
        self.options, self.text = options, corpus()
        torch.set_num_threads(1)  # always the same sums; and two spin for each other where others work, too
        torch.manual_seed(5)
        self.model = Gpt(256, options["width"], options["layers"], options["tokens"])
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
        self.places = torch.Generator().manual_seed(6)
        self.steps = self.saves = 0
        self.lora = None

    def batch(self):
        length = self.options["tokens"]
        starts = torch.randint(len(self.text) - length - 1, (self.options["batch"],), generator=self.places)
        rows = torch.stack([self.text[at:at + length + 1] for at in starts.tolist()]).long()
        return rows[:, :-1], rows[:, 1:]

    def train(self, steps):
        model, optimizer = self.lora or (self.model, self.optimizer)
        total = 0.0
        for _ in range(steps):
            self.steps += 1
            for group in optimizer.param_groups:
                group["lr"] = optimizer.defaults["lr"] * min(1, self.steps / 50)
            tokens, wanted = self.batch()
            # Sums in f32 whatever the parameters are kept in: a processor without bf16 takes 20 s for one step in it.
            parameters = {name: p.float() for name, p in model.named_parameters()}
            loss = F.cross_entropy(functional_call(model, parameters, (tokens,)).flatten(0, 1), wanted.flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
            optimizer.step()
            optimizer.zero_grad()
            total += loss.item()
        return {"loss": total / steps, "steps": self.steps}

    def state(self, masters):
        named = dict(self.model.named_parameters())
        state = {"model": {name: p.detach().bfloat16() for name, p in named.items()},
                 "optim": {kind: {name: self.optimizer.state[p][kind] for name, p in named.items()}
                           for kind in ("exp_avg", "exp_avg_sq")}}
        if masters:
            state["masters"] = {name: p.detach() for name, p in named.items()}
        return state

    def save(self, run, how, state):
        """Into a run of its own, so that nothing can be referenced."""
        url = self.options["url"].replace("RUN", run)
        with Checkpointer(url, state, on_error="raise", rank=0, world_size=1, encoding=how) as checkpointer:
            result = checkpointer.save(1).durable.result(600)
        return {"plain_bytes": result.plain_bytes, "stored_bytes": result.stored_bytes}

    def kinds(self):
        """How much each kind of tensor weighs, to be stored apart."""
        state = self.state(False)
        return {"weights bf16": {"model": state["model"]}, "exp_avg f32": {"optim": state["optim"]["exp_avg"]},
                "exp_avg_sq f32": {"optim": state["optim"]["exp_avg_sq"]}}

    def start_lora(self):
        for p in self.model.parameters():
            p.requires_grad_(False)
        self.model.to(torch.bfloat16)
        for block in self.model.blocks:
            block.qkv = Lora(block.qkv, self.options["lora_rank"])
        adapters = [p for p in self.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(adapters, lr=1e-3)
        self.lora = (self.model, optimizer)
        self.train(1)
        self.checkpointer = Checkpointer(self.options["url"].replace("RUN", "lora"),
                                         {"model": self.model, "optim": optimizer}, on_error="raise", rank=0, world_size=1)
        state = sum(p.numel() for p in adapters)
        return {"adapters": state, "parameters": sum(p.numel() for p in self.model.parameters())}

    def save_lora(self):
        self.saves += 1
        result = self.checkpointer.save(self.saves).durable.result(600)
        return {"plain_bytes": result.plain_bytes, "stored_bytes": result.stored_bytes}


def main():
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    job = Job(json.loads(sys.argv[1]))
    parameters = sum(p.numel() for p in job.model.parameters())
    answer({"ready": True, "parameters": parameters, "text_bytes": len(job.text)})
    for line in sys.stdin:
        words = line.split()
        if words[0] == "train":
            answer(job.train(int(words[1])))
        elif words[0] == "save":  # save HOW masters|plain
            answer(job.save(f"{words[2]}-{words[1]}", words[1], job.state(words[2] == "masters")))
        elif words[0] == "kind":  # kind HOW NUMBER
            name, state = list(job.kinds().items())[int(words[2])]
            answer({"kind": name, **job.save(f"kind{words[2]}-{words[1]}", words[1], state)})
        elif words[0] == "lora":
            answer(job.start_lora())
        elif words[0] == "save-lora":
            answer(job.save_lora())
        else:
            answer({"error": f"unknown command {words[0]}"})
    if job.lora:
        job.checkpointer.close()


if __name__ == "__main__":
    main()
