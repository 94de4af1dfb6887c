# SPDX-License-Identifier: Apache-2.0
"""cairn.horovod: the elastic TorchState of Horovod, whose commits outlive the job.

    state = cairn.horovod.TorchState("cairn:///lab/run", model=model, optimizer=optimizer, epoch=0)
    train(state)                                      # the function under @hvd.elastic.run
    state.close()                                     # waits until all is durable

Horovod keeps commits in the memory of the workers, for those that live on when one dies. Here each commit is a checkpoint of a
run as well. While a worker holds a commit, that memory goes on; a checkpoint is read only when no worker holds one.
"""

from __future__ import annotations

from typing import Any, Mapping, Optional

import horovod.torch as hvd
import torch
from horovod.torch.elastic.state import SamplerStateHandler, get_handler_registry, set_handler_registry

from .errors import CairnError, InternalError, InvalidError, TimedOutError, UnreachableError, from_code
from .torch import rng
from .torch.futures import log
from .torch.group import text_of
from .training import Run

# Horovod has no handler for schedules: it would send a copy, with an optimizer of its own, to each worker.
set_handler_registry([*get_handler_registry(), (torch.optim.lr_scheduler.LRScheduler, SamplerStateHandler)])

_OWN = ("commits", "generators")  # attributes that this class adds


def _said(error: Exception) -> tuple:
    """Returns what other workers are told of an error."""
    return (error.code if isinstance(error, CairnError) else InternalError.CODE), text_of(error)


class TorchState(hvd.elastic.TorchState):
    """Takes the place of ``hvd.elastic.TorchState``. Every worker makes one.

    Rank 0 saves, since all workers hold the same. The random number generators of every worker are part of a commit; on another
    number of workers they are seeded anew, from the commit.

    Args:
        url: The URL of the run.
        model: As for ``hvd.elastic.TorchState``.
        optimizer: As for ``hvd.elastic.TorchState``.
        every: Every how many commits a checkpoint is made. All others stay in memory alone.
        options: Options of cairn.torch.Checkpointer, by name.
        **attributes: As for ``hvd.elastic.TorchState``: more modules, optimizers, an ``ElasticSampler``, schedulers of PyTorch, and plain
            values that cairn.tree can store.

    Attributes:
        commits: How many commits there were since the beginning of the training; the step of a checkpoint.

    Raises:
        InvalidError: The URL names no run, ``every`` is no number from 1 on, or an attribute has a name that this class needs.
    """

    def __init__(self, url: str, model: Any = None, optimizer: Any = None, *, every: int = 1,
                 options: Optional[Mapping[str, Any]] = None, **attributes: Any) -> None:
        taken = [name for name in attributes if name in _OWN or hasattr(hvd.elastic.TorchState, name) or hasattr(TorchState, name)]
        if taken:
            raise InvalidError.of(f"cairn.horovod.TorchState: the attribute {taken[0]!r} has the name of one of its own; take another name")
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise InvalidError.of(f"cairn.horovod.TorchState: every is {every!r}; it must be a number of commits, 1 or more")
        self._run, self._every = Run(url, rank=0, world_size=1, **(options or {})), every
        self._leads = False  # whether it is this worker that saves to the run
        self._failure: Optional[tuple] = None  # of a save, which the next commit tells to all workers
        super().__init__(model=model, optimizer=optimizer, commits=0, generators=[], **attributes)

    def commit(self) -> None:
        """Commits the state to memory, and makes a checkpoint of it. Every worker calls it, after the same batch.

        Returns when the state is copied and may change. A save that fails is warned of, as ``on_error`` of the Checkpointer says; an
        error that it raises is raised by the next commit, on all workers.

        Raises:
            HostsUpdatedInterrupt: As for ``hvd.elastic.TorchState``.
            FencedError: Another job saves to the run: stop.
            CairnError: An earlier save failed, and ``on_error`` does not allow that.
        """
        found = hvd.allgather_object((rng.collect(), self._failure))
        if found[0][1] is not None:
            code, text = found[0][1]
            raise from_code(code, f"rank 0 could not save: {text}")
        self.commits += 1
        self.generators = [generators for generators, _ in found]
        self.save()
        if hvd.rank() == 0:
            if self.commits % self._every == 0:
                self._make_checkpoint()
        else:
            self._leave()
        self.check_host_updates()

    def sync(self) -> None:
        """Gives all workers the state of one that holds a commit in memory, or, where none does, of the newest good checkpoint of the run.
        ``hvd.elastic.run`` calls it.

        Raises:
            CairnError: The checkpoint cannot be read, or the server cannot be reached. All workers raise it.
        """
        held = hvd.allgather_object(self.commits)
        if not any(held):
            self._resume()
        self._broadcast(held.index(max(held)))
        self.save()
        if len(self.generators) == hvd.size():
            rng.apply(self.generators[hvd.rank()])
        elif self.generators:
            rng.reseed(f"commit {self.commits} rank {hvd.rank()} of {hvd.size()}")

    def close(self) -> None:
        """Waits until the saves in flight are durable, and leaves the run. May be repeated.

        Raises:
            CairnError: A save failed, and ``on_error`` does not allow that.
        """
        self._leads = False
        self._run.close()

    def _state(self) -> dict:
        """Returns the state as it is now."""
        return {**{name: handler.value for name, handler in self._handlers.items()},
                **{name: getattr(self, name) for name in self._saved_state}}

    def _leave(self) -> None:
        try:
            self.close()
        except CairnError as error:
            log.warning("a save of this worker, which was rank 0 before, failed: %s", error)

    def _make_checkpoint(self) -> None:
        """Begins a save of this commit. A server that is away holds up no training: a later commit tries again.

        In a worker that has become rank 0 with a commit in memory, it follows the checkpoint from which that commit came, and not the
        run's newest one, which the other rank 0 may have saved behind it."""
        try:
            if not self._leads:
                self._leads = True
                self._run.lineage.join(self.commits - 1)
            self._run.save(self.commits, self._state(), is_kept=False)
        except (UnreachableError, TimedOutError) as error:
            log.warning("commit %d is in memory only: %s", self.commits, error)
        except Exception as error:  # whatever it is, all workers must hear of it
            self._failure = _said(error)

    def _resume(self) -> Optional[int]:
        """Fills the state of rank 0 from the newest good checkpoint. Every worker calls it, and all raise its error.

        Returns:
            The step; None only for a run that is proven to be empty.
        """
        error: Optional[Exception] = None
        step = None
        if hvd.rank() == 0:
            try:
                state, self._leads = self._state(), True
                if self._run.restore(state) is not None:
                    self._saved_state = {name: state[name] for name in self._saved_state}
                    self._set_attrs()
                    self.save()  # or Horovod, when a worker dies now, would put the first weights back and keep the count of commits
                    step = self.commits
            except Exception as failure:  # whatever it is, the other workers must not wait for this one
                error = failure
        step, said = hvd.broadcast_object((step, None if error is None else _said(error)))
        if error is not None:
            raise error
        if said is not None:
            raise from_code(said[0], f"rank 0 could not resume: {said[1]}")
        return step

    def _broadcast(self, root: int) -> None:
        """Copies the state of a worker to all others. Horovod's own ``sync`` takes rank 0, which may be new. An optimizer goes before the
        modules, since Horovod lets one without state make a step, which changes weights. If that worker's has no state, Horovod would
        change the weights that are to be copied, and copy no option."""
        values = [handler.value for handler in self._handlers.values()]
        for value in sorted(values, key=lambda value: not isinstance(value, torch.optim.Optimizer)):
            if isinstance(value, torch.optim.Optimizer) and hvd.broadcast_object(bool(value.state), root_rank=root):
                hvd.broadcast_optimizer_state(value, root_rank=root)
            elif isinstance(value, torch.nn.Module):
                hvd.broadcast_parameters(value.state_dict(), root_rank=root)
            else:
                value.load_state_dict(hvd.broadcast_object(value.state_dict(), root_rank=root))
        self._saved_state = hvd.broadcast_object(self._saved_state, root_rank=root)
        self._set_attrs()
