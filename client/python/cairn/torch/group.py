# SPDX-License-Identifier: Apache-2.0
"""Ranks: who am I, the attempt token for all, and agreement before anything is changed.

Everything goes over a gloo group of Cairn's own, so that it cannot meet the trainer's collectives. Errors are
exchanged as codes: no object is ever pickled.
"""

from __future__ import annotations

import os
from typing import Any, Optional

import torch

from ..client import new_attempt
from ..errors import InvalidError, from_code

try:
    import torch.distributed as dist
except ImportError:  # a PyTorch built without it
    dist = None  # type: ignore[assignment]


class Group:
    """The ranks that save together; a world of one needs no torch.distributed."""

    def __init__(self, process_group: Any, rank: Optional[int], world_size: Optional[int], read_only: bool) -> None:
        self._group: Any = None
        self.rank, self.world_size = 0, 1
        if rank is not None or world_size is not None:
            self.rank, self.world_size = rank or 0, world_size or 1
        elif dist is not None and dist.is_available() and dist.is_initialized():
            self._join(process_group, read_only)
        elif process_group is not None:
            raise InvalidError.of("process_group is given, but torch.distributed is not initialised")
        elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and not read_only:
            raise InvalidError.of(f"WORLD_SIZE is {os.environ['WORLD_SIZE']}, but torch.distributed is not initialised: "
                                  "call torch.distributed.init_process_group before Checkpointer, or give rank, "
                                  "world_size and attempt")

    def _join(self, process_group: Any, read_only: bool) -> None:
        base = process_group if process_group is not None else dist.group.WORLD
        self.rank, self.world_size = dist.get_rank(base), dist.get_world_size(base)
        if self.rank < 0:
            raise InvalidError.of("this process is not in the process_group")
        if self.world_size > 1 and not read_only:
            self._ranks = dist.get_process_group_ranks(base)
            self._group = dist.new_group(self._ranks, backend="gloo",
                                         use_local_synchronization=process_group is not None)

    def token(self, given: Optional[str]) -> Optional[str]:
        """The attempt token: the given one, or what rank 0 draws; None leaves it to the library."""
        if self._group is None:
            if given is None and self.world_size > 1 and "CAIRN_ATTEMPT" not in os.environ:
                raise InvalidError.of("attempt is needed with rank and world_size: draw one with cairn.new_attempt() on "
                                      "rank 0 and give it to all ranks")
            return given
        data = torch.zeros(32, dtype=torch.uint8)
        if self.rank == 0:
            text = given or new_attempt()
            if len(text) != 32 or not text.isascii():
                text = "?" * 32  # the library refuses it on every rank, with its own words
            data.copy_(torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8))
        dist.broadcast(data, src=self._ranks[0], group=self._group)
        return data.numpy().tobytes().decode() if given is None or self.rank == 0 else given

    def agree(self, error: Optional[BaseException], what: str) -> None:
        """Every rank calls it; raises on all ranks when one has an error: its own, or one that names the rank."""
        if self._group is not None:
            code = 0 if error is None else getattr(error, "code", -3)
            mine = torch.tensor([code], dtype=torch.int64)
            codes = [torch.zeros(1, dtype=torch.int64) for _ in range(self.world_size)]
            dist.all_gather(codes, mine, group=self._group)
            failed = [(rank, int(item)) for rank, item in enumerate(codes) if int(item) != 0]
            if failed and error is None:
                ranks = ", ".join(str(rank) for rank, _ in failed[:8])
                raise from_code(failed[0][1], f"{what} failed on rank {ranks}; the error there says why")
        if error is not None:
            raise error

    def close(self) -> None:
        if self._group is not None and dist.is_initialized():
            dist.destroy_process_group(self._group)
        self._group = None


