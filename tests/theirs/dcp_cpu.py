# SPDX-License-Identifier: Apache-2.0
"""Where there is no accelerator: DCP's cases that ask for some run on CPU with gloo. A case that calls CUDA itself is skipped."""

import functools
import importlib.util
import unittest

import torch


def _on_cpu(*_, **__):
    def decorate(case):
        @functools.wraps(case)
        def run(*args, **kwargs):
            try:
                return case(*args, **kwargs)
            except AssertionError as error:
                if "Torch not compiled with CUDA" not in str(error):
                    raise
                raise unittest.SkipTest("calls CUDA itself") from error
        return run
    return decorate


# PyTorch's own test cases cannot be imported without expecttest; others need nothing of this.
if importlib.util.find_spec("expecttest") is not None and not torch.accelerator.is_available():
    from torch.testing._internal import common_distributed
    from torch.testing._internal.distributed._tensor import common_dtensor

    for _module in (common_distributed, common_dtensor):
        _module.skip_if_lt_x_gpu = _on_cpu
