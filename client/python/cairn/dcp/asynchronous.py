# SPDX-License-Identifier: Apache-2.0
"""async_save: DCP's plan at once, one copy into the arena, and the rest behind the training.

torch.distributed.checkpoint.async_save copies the state first and plans in a thread, so libcairn has to copy the copy. Here the
ranks plan before they copy, which costs milliseconds, and libcairn copies the state itself.
"""

from __future__ import annotations

import traceback
from typing import Any, Callable, Mapping, Optional

import torch.distributed as dist
from torch.distributed.checkpoint import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlanner
from torch.distributed.checkpoint.stateful import Stateful

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

    def meet(mine: Callable, of_all: Callable) -> Any:
        return _meet(storage_writer, process_group, mine, of_all)

    return storage_writer.begin(meet, state, planner if planner is not None else DefaultSavePlanner())


def _meet(writer: Writer, group: Any, mine: Callable[[], Any], of_all: Callable[[list], list]) -> Any:
    """``mine()`` on each rank, then ``of_all(values)`` on rank 0, which gives an answer for each rank. Its errors are all ranks'."""
    said = _try(mine)
    found: list = [said]
    if writer.world_size > 1:
        found = [None] * writer.world_size if writer.rank == 0 else None  # type: ignore[assignment]
        first = dist.get_global_rank(group, 0) if group is not None else 0
        dist.gather_object(said, found, dst=first, group=group)
    answers: list = [None] * writer.world_size
    if writer.rank == 0:
        failures = {rank: error for rank, (_, error) in enumerate(found) if error is not None}
        values, error = (None, None) if failures else _try(lambda: of_all([value for value, _ in found]))
        failures.update({} if error is None else {0: error})
        answers = [(None, failures)] * writer.world_size if failures else [(value, None) for value in values]
    answer: list = [answers[0]]
    if writer.world_size > 1:
        dist.scatter_object_list(answer, answers if writer.rank == 0 else None, src=first, group=group)
    value, failures = answer[0]
    if failures:
        raise CheckpointException("async_save", failures)
    return value


def _try(call: Callable[[], Any]) -> tuple:
    """(value, None), or (None, what CheckpointException holds of an error)."""
    try:
        return call(), None
    except Exception as error:
        return None, (error, traceback.extract_tb(error.__traceback__))
