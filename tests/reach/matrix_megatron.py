# SPDX-License-Identifier: Apache-2.0
"""What one shape of tensor, pipeline and data parallelism has saved, others load: the same bits, tensor by tensor. And how saves and
loads fail: by name, on all ranks.

    tests/reach/run build/release megatron      # harness.py calls it after the kills
"""

import argparse
import functools
import os
import pathlib
import sys

import torch

from matrix import prove, run_worker

STEPS = 3
# The form of the optimizer's state, and (tensor, pipeline, data), that saves -> what loads it
CASES = {
    ("fully_reshardable", 2, 1, 2): [(1, 2, 1), (4, 1, 1), (1, 1, 1)],
    ("fully_reshardable", 1, 2, 1): [(2, 1, 1), (2, 2, 1)],
    ("fully_reshardable", 1, 1, 2): [(1, 1, 1), (1, 2, 2)],
    ("dp_reshardable", 1, 1, 2): [(1, 1, 1), (1, 1, 4)],  # Megatron's default
    ("dp_reshardable", 2, 1, 2): [(2, 1, 1)],
}


def make(tensor, pipeline, seed):
    """Returns (model, optimizer, step), with Megatron's own DDP and distributed optimizer."""
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
    from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.transformer import TransformerConfig

    parallel_state.initialize_model_parallel(tensor, pipeline)
    torch.manual_seed(seed)
    tensor_parallel.model_parallel_cuda_manual_seed(seed)
    config = TransformerConfig(num_layers=4, hidden_size=16, num_attention_heads=4, bf16=True, params_dtype=torch.bfloat16,
                               pipeline_dtype=torch.bfloat16, tensor_model_parallel_size=tensor, pipeline_model_parallel_size=pipeline,
                               use_cpu_initialization=True, gradient_accumulation_fusion=False,
                               finalize_model_grads_func=finalize_model_grads)
    model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=64, max_sequence_length=8,
                     pre_process=parallel_state.is_pipeline_first_stage(), post_process=parallel_state.is_pipeline_last_stage(),
                     share_embeddings_and_output_weights=False).bfloat16()
    model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
    optimizer = get_megatron_optimizer(OptimizerConfig(lr=0.01, bf16=True, params_dtype=torch.bfloat16, use_distributed_optimizer=True),
                                       [model])

    def forward(batches, model):
        tokens = next(batches)
        losses = model(tokens[:, :-1], torch.arange(8).expand(len(tokens), 8), None, labels=tokens[:, 1:])
        return losses, lambda losses: (losses.float().mean(), {})

    def step(number):
        drawn = torch.Generator().manual_seed(number * 100 + parallel_state.get_data_parallel_rank())
        model.zero_grad_buffer()
        get_forward_backward_func()(
            forward_step_func=forward, data_iterator=iter([torch.randint(0, 64, (2, 9), generator=drawn) for _ in range(2)]), model=model,
            num_microbatches=2, seq_length=8, micro_batch_size=2, forward_only=False)
        optimizer.step()

    return model, optimizer, step


def state_of(model, optimizer, form, is_loading):
    state = {"model": model.module.sharded_state_dict()}
    state["optimizer"] = optimizer.sharded_state_dict(state["model"], is_loading=is_loading, metadata={"distrib_optim_sharding_type": form})
    return state


def whole(url):
    """Returns the whole tensors of a checkpoint, as plain readers see them."""
    import cairn.megatron

    return {key: value for key, value in cairn.megatron.load_plain_tensors(url).items() if isinstance(value, torch.Tensor)}


def held(model, optimizer, form):
    """Returns the whole tensors that all ranks hold together, put together by hand of their own shards. Paddings are NaN."""
    from megatron.core.dist_checkpointing.mapping import ShardedTensor, apply_factories

    def shards(value):
        if isinstance(value, ShardedTensor):
            yield value.key, value.global_shape, value.global_slice(), value.data.detach().clone()
        elif isinstance(value, (dict, list)) and not (isinstance(value, dict) and "padding" in value and value["padding"].unwrap()):
            for item in value.values() if isinstance(value, dict) else value:
                yield from shards(item)

    state = state_of(model, optimizer, form, False)
    apply_factories(state)
    mine = list(shards(state))
    parts = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(parts, mine)
    found = {}
    for key, shape, where, data in (shard for of_rank in parts for shard in of_rank):
        tensor = found.setdefault(key, torch.full(shape, float("nan"), dtype=data.dtype))
        tensor[where] = data
    assert form == "dp_reshardable" or not any(tensor.isnan().any() for tensor in found.values())
    return found


def same(value, found):
    """Returns whether two tensors have the same bits, but for paddings of ``found``, which hold nothing."""
    known = ~found.isnan()
    return value.shape == found.shape and bool(known.any()) and torch.equal(value[known], found[known])


def common():
    return {"iteration": STEPS, "args": argparse.Namespace(hidden_size=16, lr=0.01, path=pathlib.PosixPath("x"), dtype=torch.bfloat16)}


def worker(action, form, shape, url, result):
    import on_cpu

    on_cpu.enter()
    import cairn.megatron as dist_checkpointing

    torch.distributed.init_process_group("gloo")
    is_saving = action == "save"
    model, optimizer, step = make(*shape, 3 if is_saving else 4)
    if action == "fail":
        return fail(dist_checkpointing, model, url)
    for part in optimizer.chained_optimizers if not is_saving else ():
        part._init_optimizer_states_with_dummy_values()
    if action == "refuse":
        named(lambda: dist_checkpointing.load(state_of(model, optimizer, form, True), f"{url}/latest"),
              "failed on rank", "optimizer.distributed")
        return torch.distributed.destroy_process_group()
    if is_saving:
        for number in range(STEPS):
            step(number)
        request = dist_checkpointing.save({**state_of(model, optimizer, form, False), **common()}, f"{url}/iter_{STEPS:07}",
                                          async_sharded_save=True, content_metadata={"layout": 1})
        found = held(model, optimizer, form)
        step(STEPS)  # the state is copied, and may change
        request.execute_sync()
    else:
        assert dist_checkpointing.check_is_distributed_checkpoint(f"{url}/latest")
        assert not dist_checkpointing.check_is_distributed_checkpoint(f"{url}/iter_0000099")
        loaded = dist_checkpointing.load(state_of(model, optimizer, form, True), f"{url}/latest")
        model.module.load_state_dict(loaded["model"])
        optimizer.load_state_dict(loaded["optimizer"])
        assert {key: loaded[key] for key in common()} == common(), loaded.keys()
        assert dist_checkpointing.load_content_metadata(f"{url}/latest") == {"layout": 1}
        found = held(model, optimizer, form)
    plain = whole(f"{url}/latest")
    assert plain.keys() == found.keys(), plain.keys() ^ found.keys()
    for key, value in plain.items():
        assert same(value, found[key]), key
    if torch.distributed.get_rank() == 0:
        torch.save(found, result)
    return torch.distributed.destroy_process_group()


def named(call, *words):
    """Raises AssertionError unless the call fails, and names all words."""
    try:
        call()
    except Exception as error:  # any error is looked at
        assert all(word in str(error) for word in words), (words, error)
    else:
        raise AssertionError(f"nothing was raised that names {words}")


class Unknown:
    """What nobody has told Cairn how to store."""


def fail(dist_checkpointing, model, url):
    """Raises AssertionError unless each failure is named on all ranks, and leaves what was there."""
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from test_client import damage

    rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()

    def state(**more):
        return {"model": model.module.sharded_state_dict(), "iteration": 1, **more}

    def extra(value):
        return ShardedObject("extra", value, (ranks,), (rank,))

    named(lambda: dist_checkpointing.load(state(), f"{url}/latest"), "no such checkpoint")
    named(lambda: dist_checkpointing.save(state(extra=extra(Unknown() if rank == 1 else 1)), f"{url}/iter_0000001"),
          "rank 1", "Unknown", "extra")
    named(lambda: dist_checkpointing.save(state(extra=ShardedObject("extra", 1, (ranks + 1,), (rank,))),
                                          f"{url}/iter_0000001"),
          "Invalid sharding")
    assert not dist_checkpointing.check_is_distributed_checkpoint(f"{url}/latest")
    dist_checkpointing.save(state(extra=extra(rank)), f"{url}/iter_0000001")
    named(lambda: dist_checkpointing.save(state(), f"{url}/iter_0000001"), "EXISTS", "step 1")
    named(lambda: dist_checkpointing.load(state(other=ShardedObject("other", None, (1,), (0,), replica_id=rank)), f"{url}/latest"), "other")
    dist_checkpointing.save(state(extra=extra(-rank)), f"{url}/iter_0000002")
    for number in (2, 1):
        torch.distributed.barrier()
        if rank == 0:
            damage(os.environ["REACH_STORE"], number)
        torch.distributed.barrier()
        named(lambda number=number: dist_checkpointing.load(state(extra=extra(None)), f"{url}/iter_{number:07}"),
              "failed", f"step-{number}@")
        if number == 2:
            found = dist_checkpointing.load(state(extra=extra(None)), f"{url}/latest")
            assert found["extra"] == rank, "the damaged one is passed over"
    named(lambda: dist_checkpointing.load(state(extra=extra(None)), f"{url}/latest"), "failed", "step-1@")
    torch.distributed.destroy_process_group()


def launch(daemon, number, saver, loader):
    """Runs the worker for a shape. Returns what it held."""
    form, *shape = saver
    shape, action = loader or shape, "save" if loader is None else "load"
    result = daemon.folder / "-".join(map(str, (action, number, *shape)))
    return run(daemon, (form, *shape), action, f"matrix{number}", result)


def run(daemon, case, action, name, result):
    form, tensor, pipeline, data = case
    return run_worker(__file__, tensor * pipeline * data, [action, form, tensor, pipeline, f"cairn:///py/{name}"], result,
                      CAIRN_SERVER=f"unix:{daemon.socket}", REACH_STORE=str(daemon.store))


def difference(_, held, found):
    """Returns the names of the tensors that differ, or None."""
    odd = [key for key in held.keys() | found.keys() if key not in held or key not in found or not same(held[key], found[key])]
    return ", ".join(odd) or None


def main():
    from conftest import running_daemon

    with running_daemon() as daemon:
        failed = prove("megatron, (form, tensor, pipeline, data)", CASES, functools.partial(launch, daemon), difference)
        number = list(CASES).index(("dp_reshardable", 1, 1, 2))
        run(daemon, ("dp_reshardable", 2, 1, 1), "refuse", f"matrix{number}", daemon.folder / "refuse")
        print("ok      megatron, the default form: another tensor parallelism is refused by name", flush=True)
        run(daemon, ("dp_reshardable", 1, 1, 2), "fail", "fail", daemon.folder / "fail")
        print("ok      megatron, 2 ranks: failures are named on all ranks", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    torch.set_num_threads(1)
    worker(sys.argv[1], sys.argv[2], tuple(map(int, sys.argv[3:5])), sys.argv[5], pathlib.Path(sys.argv[6]))
