# SPDX-License-Identifier: Apache-2.0
"""async_save: DCP's plan at once, one copy into the arena, and the rest behind the training.

torch.distributed.checkpoint.async_save plans in a thread, while its caller waits for the copy (stager.py). Here the caller itself
plans and copies, nobody needs a thread, and what comes back is a future of Cairn's.
"""

from __future__ import annotations

from typing import Any, Callable, Mapping, Optional

from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.stateful import Stateful
from torch.distributed.checkpoint.utils import _DistWrapper

from .writer import Saving, Writer


def async_save(state_dict: Mapping[str, Any], *, checkpoint_id: Any = None, storage_writer: Writer,
               planner: Optional[SavePlanner] = None, process_group: Any = None) -> Saving:
    """Saves as ``torch.distributed.checkpoint.async_save`` does, with one copy of the state, into Cairn's arena.

    Every rank calls it. When it returns the state is copied and may change. A save that this Writer has begun before is waited for
    first.

    Args:
        state_dict: What to save, as for dcp.save.
        checkpoint_id: As for dcp.save.
        storage_writer: The Writer.
        planner: The planner; None is DefaultSavePlanner.
        process_group: The ranks that save together, the one that the Writer was made with; a gloo group of its own.

    Returns:
        A future: ``result()``, ``add_done_callback``, ``await``. It ends when all ranks' parts are committed.

    Raises:
        CheckpointException: A rank could not plan or collect its state: on all ranks, with the errors by rank. Nothing is saved.
    """
    state = {key: value.state_dict() if isinstance(value, Stateful) else value for key, value in state_dict.items()}
    storage_writer.reset(checkpoint_id)
    ranks = _DistWrapper(process_group, storage_writer.world_size > 1, 0)  # DCP's own rounds, and its errors on all ranks

    def meet(mine: Callable, of_all: Callable) -> Any:
        return ranks.reduce_scatter("async_save", mine, of_all)

    return storage_writer.begin(meet, state, planner if planner is not None else DefaultSavePlanner())
