# SPDX-License-Identifier: Apache-2.0
"""What one stage of ZeRO has saved on some ranks, another stage resumes on others, and plain PyTorch as well: the same bits,
tensor by tensor. What the adapter takes for a parameter is held against what DeepSpeed itself says. All flat tensors have
moved before the save (``offload_states``), and in ZeRO 3 they are offloaded in it.

    tests/reach/run build/release deepspeed      # harness.py calls it after the kills

The program below trains in plain PyTorch or in DeepSpeed (``worker``), and writes all that it holds. What a restore has
brought is compared with what the save held.
"""

import functools
import sys

import torch

from matrix import prove, run_worker

STEPS = 3
# (ranks, stage, type) that saves -> what resumes it; stage -1 is plain PyTorch. In bf16 the frozen weights are bf16, and plain
# PyTorch casts them.
CASES = {
    (1, 1, "fp32"): [(1, 3, "fp32"), (1, -1, "fp32")],
    (1, 3, "fp32"): [(2, 2, "fp32"), (1, -1, "fp32")],
    (2, 2, "bf16"): [(2, 2, "bf16"), (1, 3, "bf16"), (3, 1, "bf16"), (1, -1, "fp32")],
    (3, 2, "fp32"): [(2, 3, "fp32"), (1, 0, "fp32"), (1, -1, "fp32")],
    (2, 3, "bf16"): [(3, 3, "bf16"), (2, 1, "bf16")],
    (1, -1, "fp32"): [(2, 3, "fp32"), (1, 1, "fp32")],
}


class Net(torch.nn.Module):
    """Odd sizes, so that parts begin within a row; two groups of parameters, frozen ones, and a buffer."""

    def __init__(self):
        super().__init__()
        self.hidden, self.norm = torch.nn.Linear(7, 13), torch.nn.LayerNorm(13)
        self.out, self.frozen = torch.nn.Linear(13, 5, bias=False), torch.nn.Linear(5, 3)
        self.frozen.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([2.0]))

    def forward(self, x):
        return self.frozen(self.out(torch.tanh(self.norm(self.hidden(x)))) * self.scale.to(x.dtype))

    def groups(self):
        trained = [param for param in self.parameters() if param.requires_grad]
        return [{"params": [param for param in trained if param.dim() > 1], "weight_decay": 0.1},
                {"params": [param for param in trained if param.dim() == 1], "weight_decay": 0.0}]


def batch(step, rank, ranks):
    drawn = torch.Generator().manual_seed(step)
    x, y = torch.randn(6, 7, generator=drawn), torch.randn(6, 3, generator=drawn)
    return x[rank::ranks], y[rank::ranks]


def worker_plain(url, is_saving, result):
    import cairn.torch

    torch.manual_seed(3 if is_saving else 4)
    net = Net()
    optimizer = torch.optim.AdamW(net.groups(), lr=1e-2)
    with cairn.torch.Checkpointer(url, {"model": net, "optimizer": optimizer}) as checkpointer:
        if is_saving:
            for step in range(STEPS):
                optimizer.zero_grad()
                x, y = batch(step, 0, 1)
                torch.nn.functional.mse_loss(net(x), y).backward()
                optimizer.step()
            checkpointer.save(STEPS)
        else:
            checkpointer.restore(only=["model", "optimizer"], cast=True)
    held = {name: value.detach() for name, value in net.state_dict().items()}
    for name, param in net.named_parameters():
        held.update({f"{name} {key}": value for key, value in optimizer.state.get(param, {}).items()})
    torch.save(held, result)


def worker(url, stage, kind, action, result):
    import deepspeed
    from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

    import cairn.deepspeed

    is_saving, is_plain = action == "save", action == "weights"
    deepspeed.ops.adam.fused_adam.FusedAdam = torch.optim.AdamW  # offload_states asks for it, which the CPU has not
    deepspeed.init_distributed(dist_backend="gloo")
    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
    torch.manual_seed(3 if is_saving else 4)
    net = Net()
    config = {"train_micro_batch_size_per_gpu": 6 // ranks, "bf16": {"enabled": kind == "bf16"}, "steps_per_print": 1000,
              "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 20}, "zero_force_ds_cpu_optimizer": False}
    engine, *_ = deepspeed.initialize(model=net, optimizer=torch.optim.AdamW(net.groups(), lr=1e-2), config=config)
    cairn.deepspeed.attach(engine, url)
    if is_saving:
        moved = [OffloadStateTypeEnum.hp_params, OffloadStateTypeEnum.optim_states]  # the weights only where none is frozen
        for step in range(STEPS):
            x, y = (part.bfloat16() if kind == "bf16" else part for part in batch(step, rank, ranks))
            engine.backward(torch.nn.functional.mse_loss(engine(x), y))
            engine.step()
            if stage and step == 0:
                engine.offload_states(include=moved)
                engine.reload_states()
                engine.optimizer._hp_optimizer_states_linked = False  # or DeepSpeed itself shows no state any more
        if stage == 3:  # of ZeRO 1 and 2 DeepSpeed shows no state then before the next step
            engine.offload_states(include=moved)
        engine.save_checkpoint(client_state={"rank": rank})
        if stage == 3:
            engine.reload_states()
    else:
        found, client_state = engine.load_checkpoint(load_module_only=is_plain)
        assert found.endswith(f"step-{STEPS}") and (is_plain or (engine.global_steps == STEPS and "rank" in client_state))
    held = everything(engine)
    if is_saving:
        check_names(engine, held)
    if rank == 0:
        torch.save(held, result)
    engine.destroy()


def everything(engine):
    """Returns the whole tensors, put together of all ranks' parts by hand."""
    zero = engine.save_checkpoint.__self__.zero
    if zero is None:
        held = {name: value.detach() for name, value in engine.module.state_dict().items()}
        for name, param in engine.module.named_parameters():
            held.update({f"{name} {key}": value for key, value in engine.optimizer.state.get(param, {}).items()})
        return held
    mine = {}
    for item in zero.slices:
        for key, flat in (("", item.flat), *zero.base.state.get(item.flat, {}).items()):
            if not isinstance(flat, torch.Tensor) or not item.piece.local.numel():
                continue
            part = flat if flat.dim() == 0 else flat.detach()[item.start:item.start + item.piece.local.numel()]
            mine[f"{item.piece.name} {key}".strip()] = (tuple(item.piece.shape), item.piece.begin, part.clone())
    parts = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    held = {}
    for of_rank in parts:
        for key, (shape, begin, part) in of_rank.items():
            if part.dim() == 0:
                held[key] = part
                continue
            whole = held.setdefault(key, torch.full((torch.Size(shape).numel(),), float("nan"), dtype=part.dtype))
            whole[begin:begin + part.numel()] = part
            held[key] = whole
    shapes = {item.piece.name: tuple(item.piece.shape) for item in zero.slices}
    held = {key: value if value.dim() == 0 else value.reshape(shapes[key.split(" ")[0]]) for key, value in held.items()}
    held.update({name: value.detach() for name, value in engine.module.state_dict().items() if name not in held})
    return held


def check_names(engine, held):
    """DeepSpeed's own view of each parameter. Of the state, ZeRO 1 and 2 show that of the first group alone."""
    from deepspeed.utils import safe_get_full_fp32_param, safe_get_full_optimizer_state

    for name, param in engine.module.named_parameters():
        if param.requires_grad:
            assert torch.equal(safe_get_full_fp32_param(param).reshape(held[name].shape), held[name]), name
        if param.requires_grad and len(held[name].shape) > 1:
            for key in ("exp_avg", "exp_avg_sq"):
                assert torch.equal(safe_get_full_optimizer_state(param, key).reshape(held[name].shape), held[f"{name} {key}"]), (name, key)


def difference(saver, left, right):
    """Returns what differs: a name, or None. Frozen weights may have another type of the same values. Of plain PyTorch's checkpoint the
    weights are loaded alone."""
    if saver[1] == -1:
        left, right = weights(left), weights(right)
    if left.keys() != right.keys():
        return f"the names {sorted(left.keys() ^ right.keys())}"
    for name, value in left.items():
        other = right[name]
        if name.startswith(("frozen", "scale")) and value.dtype != other.dtype:
            value, other = value.float(), other.float()
        if value.dtype != other.dtype or not torch.equal(value, other):
            return f"{name} ({value.dtype}, {other.dtype})"
    return None


def weights(held):
    return {name: value for name, value in held.items() if " " not in name}


def launch(daemon, number, saver, resumer):
    """Runs the worker of a case. Returns what it held."""
    ranks, stage, kind = resumer or saver
    action = "save" if resumer is None else "weights" if saver[1] == -1 else "resume"  # plain PyTorch has no counters of an engine
    result = daemon.folder / f"matrix{number}-{action}-{ranks}-{stage}"
    return run_worker(__file__, ranks if stage >= 0 else 0, [daemon.url(f"matrix{number}"), stage, kind, action], result,
                      DS_ACCELERATOR="cpu")


def main():
    from conftest import running_daemon

    with running_daemon() as daemon:
        return 1 if prove("deepspeed, (ranks, stage, type)", CASES, functools.partial(launch, daemon), difference) else 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    torch.set_num_threads(1)
    if sys.argv[2] == "-1":
        worker_plain(sys.argv[1], sys.argv[4] == "save", sys.argv[5])
    else:
        worker(sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4], sys.argv[5])
