# SPDX-License-Identifier: Apache-2.0
"""Cairn: save and restore the state of a distributed training job.

``cairn.torch.Checkpointer`` for PyTorch; ``cairn.dcp`` for torch.distributed.checkpoint; ``cairn.lightning``,
``cairn.transformers``, ``cairn.accelerate``, ``cairn.deepspeed``, ``cairn.ray`` and ``cairn.horovod`` for these frameworks;
``cairn.jax`` and ``cairn.keras``, without PyTorch; ``cairn.Client`` for tensors and blobs of any kind; ``cairn.errors`` for what
can go wrong. What Cairn lists is complete, verified and durable; what it restores is exactly what was saved, or a named error.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from . import errors, tree
from ._cairn import version as __version__
from .client import DONE, DURABLE, HANDED_OVER, LATEST, RELEASED, STAGED, Checkpoint, Client, Operation, Result, new_attempt
from .errors import *  # noqa: F401,F403 - every exception is part of the package's face
from .errors import CairnError
from .tree import Ref, register_type

if TYPE_CHECKING:
    from . import dcp, fs, torch


def __getattr__(name: str) -> Any:
    """``cairn.torch``, ``cairn.dcp`` and ``cairn.fs`` are imported when they are first used: Cairn itself needs neither
    PyTorch nor fsspec."""
    if name in ("dcp", "fs", "torch"):
        return importlib.import_module("." + name, __name__)
    raise AttributeError(f"module 'cairn' has no attribute {name!r}")


__all__ = ["Checkpoint", "Client", "DONE", "DURABLE", "HANDED_OVER", "LATEST", "Operation", "RELEASED", "Ref", "Result", "STAGED",
           "__version__", "dcp", "errors", "fs", "new_attempt", "register_type", "torch", "tree", *errors.__all__]
