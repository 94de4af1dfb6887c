# SPDX-License-Identifier: Apache-2.0
"""Collectives over the CPU for some ranks, apart from all groups that torch.distributed knows.

PyTorch's new_group(use_local_synchronization=True) names a group after the number of groups that a process has made, which
differs between processes where groups do: such ranks wait for each other for ever. And destroy_process_group ends every group
that it knows, Cairn's as well. So these meet in the default store under a name of their own, and nobody else ends them.
"""

from __future__ import annotations

import hashlib
from datetime import timedelta
from typing import Any, Sequence

import torch

try:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d
except ImportError:  # a PyTorch built without it
    dist = None  # type: ignore[assignment]

TIMEOUT_S = 1800.0


class Gloo:
    """``ranks``: global ranks, the same list on all of them; every one of them makes it, in the same order where there are
    several. Errors are gloo's RuntimeError: another rank has gone."""

    def __init__(self, ranks: Sequence[int], me: int) -> None:
        name = "cairn/" + hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:24]
        store = distributed_c10d._get_default_store()
        self.rank, self.size = list(ranks).index(me), len(ranks)
        # The store counts for each rank, so that a process that began anew agrees with those that did not.
        turn = store.add(f"{name}/made-by-{self.rank}", 1)
        self._pg = distributed_c10d.ProcessGroupGloo(dist.PrefixStore(f"{name}/{turn}", store), self.rank, self.size,
                                                     timeout=timedelta(seconds=TIMEOUT_S))

    def broadcast(self, data: torch.Tensor, root: int) -> None:
        options = distributed_c10d.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._pg.broadcast([data], options).wait()

    def all_reduce(self, data: torch.Tensor, op: Any, wait: bool = True) -> Any:
        """The work in flight where ``wait`` is False."""
        options = distributed_c10d.AllreduceOptions()
        options.reduceOp = op
        work = self._pg.allreduce([data], options)
        return work.wait() if wait else work

    def all_gather(self, data: torch.Tensor) -> list:
        """One tensor of this shape from each rank."""
        found = [torch.zeros_like(data) for _ in range(self.size)]
        self._pg.allgather([found], [data]).wait()
        return found
