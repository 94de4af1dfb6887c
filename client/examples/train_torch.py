# SPDX-License-Identifier: Apache-2.0
"""Trains a small character transformer with DDP and saves it with Cairn.

The example of `./quickstart`, and a start for your own: the lines that concern Cairn are marked. It trains on any
text (default: the licence texts that every Debian machine has), saves every few steps without waiting, resumes from
the newest checkpoint, and ends by printing a digest of weights, optimizer state and RNG of every rank, so that two
runs can be compared bit for bit.

    RANK=0 WORLD_SIZE=1 python train_torch.py --url 'cairn+unix:///run/cairn/cairnd.sock?run=demo/run1' --steps 60
"""

from __future__ import annotations

import argparse
import hashlib
import os
import pathlib
import random
import signal
import sys
import time

import torch
import torch.distributed as dist
from torch import nn

import cairn.torch  # Cairn

CONTEXT = 64


class Block(nn.Module):
    """One transformer block: causal self-attention and a feed-forward layer, with dropout (so that RNG matters)."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=2))
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    """Predicts the next byte of a text."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(256, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, 4) for _ in range(layers)))
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        return self.head(self.blocks(x))


def read_text(path: str) -> torch.Tensor:
    source = pathlib.Path(path)
    files = sorted(f for f in source.iterdir() if f.is_file()) if source.is_dir() else [source]
    data = b"".join(f.read_bytes() for f in files)
    if len(data) < 10 * CONTEXT:
        raise SystemExit(f"train_torch: {path} holds {len(data)} bytes: too little to train on")
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def batch_of(text: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(0, len(text) - CONTEXT - 1, (count,)).tolist()
    rows = torch.stack([text[s : s + CONTEXT + 1] for s in starts]).long()
    return rows[:, :-1], rows[:, 1:]


def digest(model: nn.Module, optim: torch.optim.Optimizer) -> str:
    """Of everything that decides how training goes on: weights, optimizer state, RNG of this rank."""
    h = hashlib.sha256()
    for name, p in sorted(model.state_dict().items()):
        h.update(name.encode() + p.contiguous().numpy().tobytes())
    for i, p in enumerate(p for g in optim.param_groups for p in g["params"]):
        for key, value in sorted(optim.state[p].items()):
            h.update(f"{i} {key}".encode() + torch.as_tensor(value).contiguous().numpy().tobytes())
    h.update(torch.get_rng_state().numpy().tobytes())
    h.update(repr(random.getstate()).encode())
    return h.hexdigest()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--url", required=True, help="cairn://HOST:PORT/project/run or cairn+unix:///path?run=project/run")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--text", default="/usr/share/common-licenses")
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rendezvous", help="a file that the ranks meet at; without it, MASTER_ADDR and MASTER_PORT say where")
    parser.add_argument("--digest", help="write the final digests of all ranks to this file")
    return parser.parse_args()


def main() -> int:
    args = parse()
    rank, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    torch.set_num_threads(1)  # the order of sums, and so the last bits, must not depend on the machine's load
    if world > 1:
        where = f"file://{args.rendezvous}" if args.rendezvous else "env://"  # MASTER_ADDR and MASTER_PORT, as torchrun sets them
        dist.init_process_group("gloo", init_method=where, rank=rank, world_size=world)
    torch.manual_seed(0)  # equal weights everywhere ...
    model = Model(args.width, args.layers)
    ddp = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    optim = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(optim, args.steps)
    torch.manual_seed(1000 + rank)  # ... but own batches and own dropout for each rank
    random.seed(1000 + rank)
    text = read_text(args.text)

    ck = cairn.torch.Checkpointer(args.url, state={"model": ddp, "optim": optim, "sched": sched},  # Cairn
                                  stop_signals=(signal.SIGTERM, signal.SIGUSR1))
    restored = ck.restore()  # Cairn: the newest good checkpoint, the same on all ranks; None for an empty run
    first = restored.step + 1 if restored else 1
    if rank == 0:
        print(f"starting at step {first}" + (f", restored {restored.step}@{restored.term}" if restored else ""), flush=True)
    stopped = False
    for step in range(first, args.steps + 1):
        x, y = batch_of(text, 8)
        loss = nn.functional.cross_entropy(ddp(x).flatten(0, 1), y.flatten())
        optim.zero_grad(set_to_none=True)
        loss.backward()
        optim.step()
        sched.step()
        if step % args.save_every == 0:
            begin, value = time.monotonic(), loss.item()
            ck.save(step, metrics={"loss": value})  # Cairn: returns when copied; the rest runs beside training
            if rank == 0:
                print(f"step {step} loss {value:.4f} saving ({1000 * (time.monotonic() - begin):.0f} ms blocked)", flush=True)
        if step < args.steps and ck.should_stop(step):  # Cairn: true on all ranks at one step after a signal
            if step % args.save_every:
                ck.save(step)
            stopped = True
            break
    ck.wait()  # Cairn
    ck.close()  # Cairn
    digests = [digest(model, optim)]
    if world > 1:
        gathered: list[str] = [""] * world
        dist.all_gather_object(gathered, digests[0])
        digests = gathered
    if rank == 0 and stopped:
        print(f"stopped at step {step}", flush=True)
    elif rank == 0:
        if args.digest:
            pathlib.Path(args.digest).write_text("".join(f"rank {r} {d}\n" for r, d in enumerate(digests)))
        print(f"finished at step {args.steps}", flush=True)
    if world > 1:
        del ck, ddp  # first: a group that DDP frees after this call is freed under the GIL, where PyTorch can hang
        dist.destroy_process_group()
    return os.EX_TEMPFAIL if stopped else 0  # a scheduler may start it again


if __name__ == "__main__":
    sys.exit(main())
