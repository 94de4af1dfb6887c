# SPDX-License-Identifier: Apache-2.0
"""cairn.torch_checkpointing: PyTorch's package torch_checkpointing over a run of Cairn.

    storage = cairn.torch_checkpointing.StorageConfig("cairn:///lab/run")
    manager = cairn.torch_checkpointing.CheckpointManager(CheckpointManager.Config(storage_config=storage))
    manager.save("step-100", {"model": model.state_dict()})

Cairn's CheckpointManager copies the state once, into the arena. The package's own takes the same StorageConfig, and stores the files
that it writes.
"""

from __future__ import annotations

from .manager import CheckpointManager
from .storage import Storage, StorageConfig, commit

__all__ = ["CheckpointManager", "Storage", "StorageConfig", "commit"]
