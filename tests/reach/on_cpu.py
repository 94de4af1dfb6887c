# SPDX-License-Identifier: Apache-2.0
"""Lets a program that asks for a GPU by name run on the CPU: Megatron-Core does so even where nothing needs one."""

import torch
from megatron.core.optimizer.distrib_optimizer import DistributedOptimizer
from megatron.core.tensor_parallel import random
from torch.overrides import TorchFunctionMode


class _OnCpu(TorchFunctionMode):
    """Takes the device "cuda" for the CPU, wherever a function of PyTorch is given one."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if function is torch.Tensor.cuda:
            return args[0]
        if function is torch.Tensor.type and len(args) == 1 and not kwargs:  # the text that Megatron's optimizer compares
            return function(*args).replace("torch.", "torch.cuda.")
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


def enter():
    """Takes effect for the rest of the process, in this thread."""
    torch.cuda.current_device = lambda: torch.device("cpu")
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.current_stream = lambda *_: None
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.get_rng_state = torch.cuda.random.get_rng_state = lambda *_, **__: torch.get_rng_state()
    torch.cuda.set_rng_state = torch.set_rng_state
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    _OnCpu().__enter__()
    _mend(DistributedOptimizer)


def _mend(optimizer):
    """Goes around faults of Megatron 0.19.2 with PyTorch's Adam, which it uses for want of Apex."""
    place, load = optimizer._set_main_param_and_optimizer_states, optimizer.load_state_dict

    def load_state_dict(self, state):
        load(self, state)
        for of_param in self.optimizer.state.values():  # all of them have got one and the same tensor, which Adam then counts up for each
            of_param["step"] = of_param["step"].clone()

    optimizer.load_state_dict = load_state_dict
    # It looks for a tensor "step" that the one form leaves out, and of which the other has what stood here before the load.
    optimizer._set_main_param_and_optimizer_states = lambda self, param, tensors: place(self, param, {**tensors, "step": None})
