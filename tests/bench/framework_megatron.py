# SPDX-License-Identifier: Apache-2.0
"""Megatron-Core for bench_frameworks.py: its own asynchronous save, which forks a process, and cairn.megatron."""

import logging
import sys

import torch
from benchlib import SOURCE

sys.path.insert(0, str(SOURCE / "tests/reach"))

from framework_torch import TorchWay  # noqa: E402
from framework_worker import Way  # noqa: E402

WORDS, LENGTH, WIDTH, BATCH = 1024, 32, 512, 2


class Megatron(TorchWay):
    name, own = "megatron", 'asynchronous, async_strategy="mcore"'

    def __init__(self, job):
        Way.__init__(self, job)
        from on_cpu import enter

        enter()
        from megatron.core import parallel_state, tensor_parallel
        from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
        from megatron.core.models.gpt import GPTModel
        from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
        from megatron.core.optimizer import OptimizerConfig, get_megatron_optimizer
        from megatron.core.transformer import TransformerConfig

        torch.set_num_threads(1)
        self.join_group()
        parallel_state.initialize_model_parallel()
        tensor_parallel.model_parallel_cuda_manual_seed(7)
        layers = max(1, round(job["bytes"] / (14 * 12 * WIDTH * WIDTH)))
        config = TransformerConfig(num_layers=layers, hidden_size=WIDTH, num_attention_heads=8, bf16=True, params_dtype=torch.bfloat16,
                                   use_cpu_initialization=True, gradient_accumulation_fusion=False,
                                   finalize_model_grads_func=finalize_model_grads)
        model = GPTModel(config, get_gpt_layer_local_spec(), vocab_size=WORDS, max_sequence_length=LENGTH).bfloat16()
        self.model = DistributedDataParallel(config, DistributedDataParallelConfig(use_distributed_optimizer=True), model)
        self.optimizer = get_megatron_optimizer(OptimizerConfig(lr=1e-4, bf16=True, params_dtype=torch.bfloat16,
                                                                use_distributed_optimizer=True), [self.model])
        self.tokens, self.places = torch.randint(0, WORDS, (BATCH, LENGTH + 1)), torch.arange(LENGTH).expand(BATCH, LENGTH)
        if self.is_cairn:
            import cairn.megatron as dist_checkpointing
        else:
            from megatron.core import dist_checkpointing
            from megatron.core.dist_checkpointing.strategies.async_utils import AsyncCallsQueue

            dist_checkpointing.AsyncCallsQueue = AsyncCallsQueue
        self.checkpointing, self.queue = dist_checkpointing, dist_checkpointing.AsyncCallsQueue()
        logging.disable(logging.WARNING)

    def step(self):
        from megatron.core.pipeline_parallel import get_forward_backward_func

        def forward(batches, model):
            tokens = next(batches)
            losses = model(tokens[:, :-1], self.places, None, labels=tokens[:, 1:])
            return losses, lambda losses: (losses.float().mean(), {})

        self.model.zero_grad_buffer()
        get_forward_backward_func()(forward_step_func=forward, data_iterator=iter([self.tokens]), model=self.model, num_microbatches=1,
                                    seq_length=LENGTH, micro_batch_size=BATCH, forward_only=False)
        self.optimizer.step()
        self.queue.maybe_finalize_async_calls()

    def save(self, number):
        state = {"model": self.model.module.sharded_state_dict(), "iteration": number}
        state["optimizer"] = self.optimizer.sharded_state_dict(state["model"], metadata={"distrib_optim_sharding_type": "dp_reshardable"})
        if not self.is_cairn:
            (self.folder / f"iter_{number:07}").mkdir()
        where = f"{self.url}/iter_{number:07}" if self.is_cairn else str(self.folder / f"iter_{number:07}")
        request = self.checkpointing.save(state, where, async_sharded_save=True, async_strategy="mcore")
        self.queue.schedule_async_request(request)

    def is_done(self):  # the training's loop finalizes it
        return self.queue.get_num_unfinalized_calls() == 0

    def finish(self):
        self.queue.maybe_finalize_async_calls(blocking=True)

    def close(self):
        self.queue.close()
