#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""One rank of the peers: torch.save, safetensors and DCP on the state that cairn_bench has.

Speaks like cairn_bench: a line in, a line of JSON out. Every rank writes its own shares; durable
means that every file and its directory were fsynced. DCP gets DTensors, as FSDP2 has them, so that it
can load in another world size, and runs on a gloo group of its own, which its asynchronous mode needs.
dcp.load reads into wiped tensors, the others make new ones. Loads are checked for sums of each tensor.
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
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

try:
    from safetensors.torch import load_file, save_file
except ImportError:
    load_file = save_file = None

RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
GIB = 1 << 30
LAYER = {"attn.qkv": (3, 1), "attn.out": (1, 1), "mlp.up": (4, 1), "mlp.down": (1, 4)}


def make_shapes(total):
    """An embedding and as many layers as fit, with two f32 moments to each bf16 weight."""
    width = 1024 if total >= GIB else 256
    layers = total // (12 * width * width * 10)
    rows = (total - layers * 12 * width * width * 10) // 10 // width
    shapes = {"embedding.weight": (max(rows // 16, 1) * 16, width)}  # the same on 1 to 16 ranks
    for i in range(layers):
        for name, (high, wide) in LAYER.items():
            shapes[f"h.{i}.{name}.weight"] = (high * width, wide * width)
    return {f"{prefix}.{name}": (shape, dtype) for name, shape in shapes.items()
            for prefix, dtype in (("model", torch.bfloat16), ("optim.exp_avg", torch.float32),
                                  ("optim.exp_avg_sq", torch.float32))}


def fill(tensor, name, rank, world):
    """This rank's rows; what they hold follows from the name and the place in the whole tensor."""
    seed = sum(name.encode()) * 7919 % 65521
    rows = torch.arange(rank * tensor.shape[0], (rank + 1) * tensor.shape[0], dtype=torch.float32)
    columns = torch.arange(tensor.shape[1], dtype=torch.float32)
    tensor.copy_(torch.sin(rows * 12.9898 + seed)[:, None] * torch.cos(columns * 78.233 + seed)[None, :])


def sums(state):
    """Of the bits, so that nothing is rounded away."""
    return {name: int(t.view(torch.int16 if t.element_size() == 2 else torch.int32).sum(dtype=torch.int64))
            for name, t in state.items()}


def fsync(path):
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


class Peers:
    def __init__(self, folder, total):
        mesh = init_device_mesh("cpu", (WORLD,))
        self.state, self.sharded = {}, {}
        for name, ((rows, columns), dtype) in make_shapes(total).items():
            local = torch.empty(rows // WORLD, columns, dtype=dtype)
            fill(local, name, RANK, WORLD)
            self.state[name] = local
            self.sharded[name] = DTensor.from_local(local, mesh, [Shard(0)], run_check=False)
        self.sums = sums(self.state)
        self.bytes = sum(t.numel() * t.element_size() for t in self.state.values())
        self.folder = folder
        self.stager = None
        self.group = dist.new_group(backend="gloo")
        self.kinds = {"torch.save": (self.save_torch, self.load_torch),
                      "dcp.save": (self.save_dcp, self.load_dcp),
                      "dcp.async_save": (self.save_async, None)}
        if save_file:
            self.kinds["safetensors"] = (self.save_safetensors, self.load_safetensors)

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
        dcp.save(self.sharded, checkpoint_id=self.folder / "dcp", process_group=self.group)
        return time.monotonic()  # its writer has fsynced the files

    def save_async(self):
        if self.stager is None:  # kept: its shared memory is what the first save pays for
            self.stager = DefaultStager(StagingOptions(
                use_pinned_memory=False, use_shared_memory=True, use_async_staging=False,
                use_non_blocking_copy=False))
        future = dcp.async_save(self.sharded, checkpoint_id=self.folder / "async",
                                process_group=self.group, async_stager=self.stager)
        blocked = time.monotonic()
        future.result()
        return blocked

    def load_torch(self):
        return torch.load(self.file("pt"), weights_only=True)

    def load_safetensors(self):
        return load_file(self.file("safetensors"))

    def load_dcp(self):
        dcp.load(self.sharded, checkpoint_id=self.folder / "dcp", process_group=self.group)
        return self.state

    def load(self, kind):
        if kind == "dcp.save":
            for tensor in self.state.values():
                tensor.view(torch.int16 if tensor.element_size() == 2 else torch.int32).fill_(0x5a5a)
        dist.barrier(self.group)
        begin = time.monotonic()
        loaded = self.kinds[kind][1]()
        end = time.monotonic()
        if sums(loaded) != self.sums:
            return {"error": "not what was saved"}
        return {"load_s": end - begin}

    def do(self, words):
        if words[0] == "save":
            dist.barrier(self.group)
            begin = time.monotonic()
            blocked = self.kinds[words[1]][0]()
            end = time.monotonic()
            return {"blocked_s": blocked - begin, "durable_s": end - begin}
        if words[0] == "load":
            return self.load(words[1])
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
    if peers.stager:
        peers.stager.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
