#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""CUDA tensors through cairn.torch.Checkpointer: saved behind work that the device still has to do, changed at once, restored,
the same to the bit; and without more device memory than a contiguous copy of what is not contiguous takes.

    VENV/bin/python tests/bench/gpu_smoke.py --build build/release      # VENV has torch; the package is installed aside

Without CUDA it prints SKIP and exits with 77. With it, seconds and rates are printed for orientation only; "pinned" is
what PyTorch takes to copy as many bytes from the device to page-locked memory.
"""

import argparse
import os
import sys
import time
from pathlib import Path

from benchlib import GIB, MIB, SOURCE, Daemon, Place, install_package, python_env


def model_of(torch, width, layers, seed):
    torch.manual_seed(seed)
    blocks = [torch.nn.Sequential(torch.nn.Linear(width, width), torch.nn.GELU(), torch.nn.LayerNorm(width))
              for _ in range(layers)]
    model = torch.nn.Sequential(torch.nn.BatchNorm1d(width), *blocks).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    return model, optimizer


def extras_of(torch, seed):
    """Shapes and layouts that a copy from the device can get wrong."""
    make = torch.Generator("cuda").manual_seed(seed)
    base = torch.randn(257, 129, device="cuda", generator=make)
    special = torch.tensor([float("nan"), -0.0, float("inf"), -float("inf")], device="cuda")
    return {"transposed": base.t(), "strided": base[::3, ::2], "offset": base[5:6, 7:100].clone()[0, 3:],
            "scalar": base.sum(), "empty": torch.empty(0, 3, device="cuda"), "bf16": base.bfloat16(), "special": special,
            "int64": torch.arange(1000, device="cuda"), "bool": base > 0, "cpu": torch.randn(11)}


def bits(torch, tensor):
    tensor = tensor.detach().cpu().contiguous()
    return tensor.dtype, tuple(tensor.shape), tensor.reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""


def picture(torch, model, optimizer, extras):
    """Everything that must come back, as bytes."""
    params = list(model.parameters())
    return {**{f"model.{name}": bits(torch, t) for name, t in model.state_dict().items()},
            **{f"optim.{i}.{kind}": bits(torch, t) for i, p in enumerate(params)
               for kind, t in optimizer.state[p].items() if isinstance(t, torch.Tensor)},
            **{f"extra.{name}": bits(torch, t) for name, t in extras.items()},
            "rng.cuda": bits(torch, torch.cuda.get_rng_state())}


def train(torch, model, optimizer, width, steps):
    for _ in range(steps):
        loss = model(torch.randn(64, width, device="cuda")).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loss


def pinned_seconds(torch, nbytes):
    """The best of three copies, in pieces of one buffer."""
    piece = min(nbytes, 256 * MIB)
    source = torch.empty(piece, dtype=torch.uint8, device="cuda")
    target = torch.empty(piece, dtype=torch.uint8, pin_memory=True)
    best = None
    for _ in range(3):
        torch.cuda.synchronize()
        begin = time.monotonic()
        for _ in range(-(-nbytes // piece)):
            target.copy_(source, non_blocking=True)
        torch.cuda.synchronize()
        best = min(time.monotonic() - begin, best or 1e9)
    return best


def strided_bytes(torch, values):
    return sum(t.numel() * t.element_size() for t in values if t.is_cuda and not t.is_contiguous())


def check_mode(torch, url, mode, options):
    from cairn.torch import Checkpointer
    how = {"snapshot": mode}
    model, optimizer = model_of(torch, options.width, options.layers, 1)
    train(torch, model, optimizer, options.width, 3)
    extras = extras_of(torch, 7)
    with Checkpointer(url, {"model": model, "optim": optimizer, "extras": extras}, on_error="raise", **how) as checkpointer:
        for step in (1, 2):  # the first one makes the arena
            torch.cuda.synchronize()
            wanted = picture(torch, model, optimizer, extras)
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            begin = time.monotonic()
            handle = checkpointer.save(step)
            blocked = time.monotonic() - begin
            took = torch.cuda.max_memory_allocated() - before
            train(torch, model, optimizer, options.width, 3)  # what was saved must not see it
            handle.durable.result(600)
            seconds = time.monotonic() - begin
        size = handle.durable.result(0).plain_bytes
        allowed = strided_bytes(torch, extras.values()) + (64 * MIB if mode == "lazy" else 0) + MIB
        if took > allowed:
            raise SystemExit(f"gpu_smoke: {mode}: a save took {took / MIB:.1f} MiB of device memory, at most {allowed / MIB:.1f} "
                             "were to be expected")
        # What a stream still has to do belongs to the save.
        late = extras["int64"]
        torch.cuda._sleep(500_000_000)
        late.add_(1)
        checkpointer.save(3).durable.result(600)
        wanted = picture(torch, model, optimizer, extras)
    model, optimizer = model_of(torch, options.width, options.layers, 99)
    train(torch, model, optimizer, options.width, 1)
    extras = extras_of(torch, 8)
    with Checkpointer(url, {"model": model, "optim": optimizer, "extras": extras}, on_error="raise", **how) as checkpointer:
        begin = time.monotonic()
        assert checkpointer.restore().step == 3
        torch.cuda.synchronize()
        restored = time.monotonic() - begin
        extras = checkpointer.state["extras"]
    found = picture(torch, model, optimizer, extras)
    wrong = sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))
    if wrong:
        raise SystemExit(f"gpu_smoke: {mode}: {len(wrong)} of {len(wanted)} differ: {', '.join(wrong[:10])}")
    print(f"gpu_smoke: {mode}: {size / MIB:.0f} MiB, {len(wanted)} tensors the same to the bit; blocked {blocked:.3f} s (pinned "
          f"{pinned_seconds(torch, size):.3f} s), {took / MIB:.1f} MiB of device memory; durable {seconds:.3f} s "
          f"({size / seconds / 1e9:.2f} GB/s), restored {restored:.3f} s")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=Path, default=SOURCE / "build/release")
    parser.add_argument("--width", type=int, default=2048)
    parser.add_argument("--layers", type=int, default=8)
    options = parser.parse_args()
    options.build = options.build.resolve()
    try:
        import torch
    except ImportError:
        print("gpu_smoke: SKIP: this Python has no torch")
        raise SystemExit(77) from None
    if not torch.cuda.is_available():
        print("gpu_smoke: SKIP: torch sees no CUDA device")
        raise SystemExit(77)
    if os.environ.get("PYTHONPATH") != python_env(options.build)["PYTHONPATH"] and "BENCH_READY" not in os.environ:
        install_package(sys.executable, options.build)
        os.execve(sys.executable, [sys.executable, *sys.argv],
                  {**os.environ, **python_env(options.build), "BENCH_READY": "1"})
    print(f"gpu_smoke: {torch.cuda.get_device_name()}, {torch.cuda.get_device_properties(0).total_memory / GIB:.0f} GiB")
    place = Place(options.build / "bench")
    daemon = Daemon(place, options.build, "store")
    for mode in ("copy", "lazy"):
        check_mode(torch, daemon.url("unix", f"gpu/{mode}"), mode, options)
    daemon.end()
    place.close()


if __name__ == "__main__":
    main()
