#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of the peers: torch.save, safetensors and DCP on the state that cairn_bench has.

Speaks like cairn_bench: a line in, a line of JSON out. Every rank writes its own shares; durable
means that every file and its directory were fsynced. DCP runs on a gloo group of its own, which its
asynchronous mode needs. Loads are checked for their first tensor only: what is measured is reading.
"""

import json
import os
import resource
import shutil
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GIB = 1 << 30
LAYER = {"attn.qkv": (3, 1), "attn.out": (1, 1), "mlp.up": (4, 1), "mlp.down": (1, 4)}


def make_state(total):
    """Weights in bf16 with two f32 moments, cut along the first dimension."""
    width = 1024 if total >= GIB else 256
    layers = total // (12 * width * width * 10)
    rows = max((total - layers * 12 * width * width * 10) // 10 // width, WORLD)
    shapes = {"embedding.weight": (rows, width)}
    for i in range(layers):
        for name, (high, wide) in LAYER.items():
            shapes[f"h.{i}.{name}.weight"] = (high * width, wide * width)
    state = {}
    for name, (high, wide) in shapes.items():
        mine = high * (RANK + 1) // WORLD - high * RANK // WORLD
        for prefix, dtype in (("model", torch.bfloat16), ("optim.exp_avg", torch.float32),
                              ("optim.exp_avg_sq", torch.float32)):
            tensor = torch.empty(mine, wide, dtype=dtype)
            state[f"rank{RANK}.{prefix}.{name}"] = tensor.normal_()
    return state


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Peers:
    def __init__(self, folder, total):
        torch.manual_seed(RANK)
        self.state = make_state(total)
        self.first = next(iter(self.state))
        self.bytes = sum(t.numel() * t.element_size() for t in self.state.values())
        self.folder = folder
        self.stager = DefaultStager(StagingOptions(
            use_pinned_memory=False, use_shared_memory=True, use_async_staging=False,
            use_non_blocking_copy=False))
        self.group = dist.new_group(backend="gloo")
        self.kinds = {"torch.save": (self.save_torch, self.load_torch),
                      "safetensors": (self.save_safetensors, self.load_safetensors),
                      "dcp.save": (self.save_dcp, self.load_dcp),
                      "dcp.async_save": (self.save_async, None)}

    def file(self, suffix):
        return self.folder / f"rank{RANK}.{suffix}"

    def save_torch(self):
        torch.save(self.state, self.file("pt"))
        return self.synced(self.file("pt"))

    def save_safetensors(self):
        save_file(self.state, self.file("safetensors"))
        return self.synced(self.file("safetensors"))

    def synced(self, file):
        blocked = time.monotonic()
        fsync(file)
        fsync(self.folder)
        return blocked

    def save_dcp(self):
        dcp.save(self.state, checkpoint_id=self.folder / "dcp", process_group=self.group)
        return time.monotonic()  # its writer has fsynced the files

    def save_async(self):
        future = dcp.async_save(self.state, checkpoint_id=self.folder / "async",
                                process_group=self.group, async_stager=self.stager)
        blocked = time.monotonic()
        future.result()
        return blocked

    def load_torch(self):
        return torch.load(self.file("pt"), weights_only=True)

    def load_safetensors(self):
        return load_file(self.file("safetensors"))

    def load_dcp(self):
        into = {name: torch.empty_like(tensor) for name, tensor in self.state.items()}
        dcp.load(into, checkpoint_id=self.folder / "dcp", process_group=self.group)
        return into

    def do(self, words):
        if words[0] == "save":
            dist.barrier(self.group)
            begin = time.monotonic()
            blocked = self.kinds[words[1]][0]()
            end = time.monotonic()
            return {"blocked_s": blocked - begin, "durable_s": end - begin}
        if words[0] == "load":
            dist.barrier(self.group)
            begin = time.monotonic()
            loaded = self.kinds[words[1]][1]()
            end = time.monotonic()
            if not torch.equal(loaded[self.first], self.state[self.first]):
                return {"error": "not what was saved"}
            return {"load_s": end - begin}
        if words[0] == "clear":
            dist.barrier(self.group)
            if RANK == 0:
                for path in self.folder.iterdir():
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
            dist.barrier(self.group)
            return {"ok": True}
        if words[0] == "usage":
            usage = resource.getrusage(resource.RUSAGE_SELF)
            return {"cpu_s": usage.ru_utime + usage.ru_stime, "rss_peak": usage.ru_maxrss * 1024}
        return {"error": f"unknown command {words[0]}"}


def main():
    folder, total = Path(sys.argv[1]), int(sys.argv[2])
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print must not meet the answers
    dist.init_process_group("gloo", init_method=f"file://{os.environ['PEERS_RENDEZVOUS']}",
                            rank=RANK, world_size=WORLD)
    peers = Peers(folder, total)

    def answer(what):
        answers.write(json.dumps(what) + "\n")
        answers.flush()

    answer({"ready": True, "bytes": peers.bytes, "kinds": list(peers.kinds)})
    for line in sys.stdin:
        answer(peers.do(line.split()))
    peers.stager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
