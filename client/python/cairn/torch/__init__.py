# SPDX-License-Identifier: Apache-2.0
"""cairn.torch: checkpoints of PyTorch training.

    ck = cairn.torch.Checkpointer(url, state={"model": model, "optim": optimizer, "sched": scheduler})
    r = ck.restore()
    for step in range(r.step + 1 if r else 0, n):
        train(step)
        handle = ck.save(step)
    ck.close()
"""

from __future__ import annotations

from .checkpointer import Checkpointer, warm_ddp
from .commits import Commit
from .futures import Future, Outage, Restored, SaveHandle
from .local import PerRank, per_rank
from .part import CairnWarning
from .special import register_subclass

__all__ = ["CairnWarning", "Checkpointer", "Commit", "Future", "Outage", "PerRank", "Restored", "SaveHandle", "per_rank",
           "register_subclass", "warm_ddp"]
