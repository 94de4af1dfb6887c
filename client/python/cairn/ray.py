# SPDX-License-Identifier: Apache-2.0
"""cairn.ray: a Checkpointer for the training function of Ray Train.

    checkpointer = cairn.ray.Checkpointer("cairn:///lab/run", state={"model": model, "optim": optimizer})
    restored = checkpointer.restore()                 # None only for a run proven to be empty
    checkpointer.report(step, {"loss": loss.item()})  # in place of ray.train.report

Ray keeps checkpoints as folders in its storage, and takes note of those that a report names. Each report saves the state to
the run. When the save is durable on all ranks, Ray gets a folder with one small file that names the checkpoint in the run,
which is what Ray recommends for checkpoints that are stored elsewhere. A save that fails is reported without a checkpoint.
"""

from __future__ import annotations

import functools
import json
import pathlib
import tempfile
from typing import Any, Mapping, Optional, Union

import ray.train
import torch.distributed
from ray.data._internal.iterator.stream_split_iterator import StreamSplitDataIterator
from ray.exceptions import RayError
from ray.train.v2._internal.execution.context import get_train_context
from torch.utils.data import DataLoader

from .doors import numbers
from .errors import CairnError, InvalidError, UnsupportedError
from .kept import KEPT, remove_kept_tag
from .names import checkpoint_name
from .torch import Checkpointer as _Checkpointer
from .torch import Restored, SaveHandle, per_rank
from .torch.futures import log
from .training import Run, between_epochs

_POINTER = "pointer_ckpt.json"  # the name that Ray's own messages recommend
_SETTLE_S = 30.0  # how long the end of a training waits for Ray to note one more report; Ray looks every two seconds


class _Nothing(ray.train.Checkpoint):
    """Stands for the checkpoint of a failed save. Ray demands a checkpoint of what uploads one; its controller, to which this is
    sent, receives None, which is a report without a checkpoint."""

    def __bool__(self) -> bool:
        return False

    def __reduce__(self) -> Any:
        return type(None), ()


def url_of(checkpoint: ray.train.Checkpoint) -> str:
    """Returns the URL of the checkpoint in its run, such as ``cairn:///lab/run/step-100@1``. Any process may call it.

    Args:
        checkpoint: What Ray gives out, as ``Result.checkpoint`` or ``ray.train.get_checkpoint()``.

    Raises:
        InvalidError: The checkpoint was not reported by cairn.ray.
    """
    path = pathlib.PurePosixPath(checkpoint.path, _POINTER).as_posix()
    try:
        with checkpoint.filesystem.open_input_stream(path) as file:
            return str(json.loads(file.read())["uri"])
    except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
        raise InvalidError.of(f"{checkpoint!r} names no checkpoint of Cairn ({path}: {error}); give one that cairn.ray.Checkpointer.report "
                              "has reported, or load this one from its files") from error


def _begin_again(states: list, rank: int, world: int) -> dict:
    """Returns where a data loader of torchdata begins when the ranks have changed: at the beginning, between two epochs only."""
    between_epochs([{"is_inside": not state.get("_iterator_finished")} for state in states], rank, world)
    return {}


def _with_loaders(state: Mapping[str, Any]) -> dict:
    """Returns the state with its data loaders marked as the ranks' own. Their positions count batches of one rank, so they look alike
    on all ranks and yet mean nothing to another number of them."""
    return {name: per_rank(value, _begin_again) if isinstance(value, DataLoader) and hasattr(value, "state_dict") else value
            for name, value in state.items()}


def _check_world() -> None:
    """Raises UnsupportedError unless the ranks of torch.distributed are Ray's workers."""
    workers = ray.train.get_context().get_world_size()
    ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    if workers != ranks:
        raise UnsupportedError.of(f"cairn.ray: Ray has {workers} workers, and torch.distributed has {ranks} ranks here; start the training "
                                  "function by ray.train.torch.TorchTrainer")


def _check_datasets() -> None:
    """Raises UnsupportedError within an epoch of a data set that Ray Data has split among the workers."""
    for name, shard in get_train_context().dataset_shard_provider._cached_dataset_shards.items():
        if isinstance(shard, StreamSplitDataIterator) and shard._active_epoch is not None:
            raise UnsupportedError.of(f"report within an epoch of the data set {name!r}: Ray Data cannot say where it stands, so after a "
                                      "restart rows would come twice; report when the loop over its batches has ended, or train from a "
                                      "StatefulDataLoader in the state")


class Checkpointer(_Checkpointer):
    """cairn.torch.Checkpointer in the training function of a TorchTrainer. Every worker makes one.

    Args:
        url: The URL of the run.
        state: As for cairn.torch.Checkpointer.
        **options: As for cairn.torch.Checkpointer.

    Raises:
        InvalidError: The URL names no run.
        UnsupportedError: Ray's workers are not the ranks of torch.distributed, or Ray trains in the driver's process.
    """

    def __init__(self, url: str, state: Mapping[str, Any], **options: Any) -> None:
        self._run = Run(url)
        self._names: set = set()  # of the folders that this process has given to Ray, in Ray's thread
        try:
            self._storage = ray.train.get_context().get_storage()
        except NotImplementedError:
            raise UnsupportedError.of("cairn.ray: ScalingConfig(num_workers=0) trains in the driver's process, where Ray keeps no "
                                      "checkpoints; use num_workers=1, or cairn.torch.Checkpointer") from None
        _check_world()
        self._is_first = ray.train.get_context().get_world_rank() == 0
        super().__init__(self._run.url, _with_loaders(state), **options)

    def restore(self, step: Union[str, int, ray.train.Checkpoint] = "latest", *args: Any, **options: Any) -> Optional[Restored]:
        """Fills the state from a checkpoint of the run. Every worker calls it, and all get the same one.

        Args:
            step: As for cairn.torch.Checkpointer, or a checkpoint that Ray gives out. "latest" is the newest good one of the run, which
                may be newer than what Ray knows of.
            *args: As for cairn.torch.Checkpointer.
            **options: As for cairn.torch.Checkpointer.

        Returns:
            What was restored; None only for a run that is proven to be empty.
        """
        if isinstance(step, ray.train.Checkpoint):
            step = self._run.step_of(url_of(step))
        return super().restore(step, *args, **options)

    def report(self, step: int, metrics: Optional[Mapping[str, Any]] = None, validation: Any = False) -> SaveHandle:
        """Saves the state as ``step`` and reports it to Ray, in place of ``ray.train.report``. Every worker calls it.

        Returns when the state is copied and may change. Ray takes note of the checkpoint when it is durable on all ranks. A save that
        fails or is skipped is reported without a checkpoint; Checkpointer's ``on_error`` says what becomes of it.

        Args:
            step: The step.
            metrics: As for ``ray.train.report``. Those that are numbers are the checkpoint's metrics in the run as well.
            validation: As for ``ray.train.report``.

        Returns:
            The save in flight.

        Raises:
            UnsupportedError: A data set of Ray Data is within an epoch, where it cannot be resumed.
        """
        _check_datasets()
        metrics = dict(metrics or {})
        handle = self.save(step, metrics=numbers(metrics), tags=[KEPT])
        stand_in = None  # of the first rank, for what _publish returns
        if self._is_first:
            stand_in = ray.train.Checkpoint(self._storage.experiment_fs_path, self._storage.storage_filesystem)
        ray.train.report(metrics, checkpoint=stand_in, checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC,
                         delete_local_checkpoint_after_upload=False, checkpoint_upload_fn=functools.partial(self._publish, handle),
                         validation=validation if stand_in else False)
        return handle

    def _publish(self, handle: SaveHandle, *_: Any) -> ray.train.Checkpoint:
        """Gives the checkpoint to Ray once it is durable. Ray calls this on the first rank, in a thread for its uploads, one after the
        other in the order of the reports."""
        handle.durable.wait()
        result = handle.durable.result(0) if handle.is_good() else None
        name = checkpoint_name(result.step, result.term) if result is not None else ""
        if not name or name in self._names:
            return _Nothing(self._storage.experiment_fs_path, self._storage.storage_filesystem)
        with tempfile.TemporaryDirectory(prefix="cairn-ray-") as folder:
            pathlib.Path(folder, _POINTER).write_text(json.dumps({"uri": f"{self._run.url}/{name}"}), encoding="utf-8")
            published = self._storage.persist_current_checkpoint(ray.train.Checkpoint.from_directory(folder), name)
        self._names.add(name)
        self._settle(0)
        return published

    @staticmethod
    def _wanted(seconds: float) -> set:
        """Returns the names of the checkpoints that Ray keeps. Waits until Ray has noted the reports that have been
        made, or until so many seconds pass without a report that changes the list."""
        before: Optional[set] = None
        while True:
            reported = ray.train.get_all_reported_checkpoints(ray.train.CheckpointConsistencyMode.COMMITTED, timeout_s=seconds)
            wanted = {pathlib.PurePosixPath(item.checkpoint.path).name for item in reported}
            if not seconds or wanted == before:
                return wanted
            before = wanted

    def _settle(self, seconds: float) -> None:
        """Takes the tag from checkpoints older than the newest one that Ray knows of, if Ray does not keep them any
        more. ``seconds`` is as for ``_wanted``."""
        try:
            wanted = self._wanted(seconds)
            items = {checkpoint_name(item.step, item.term): item for item in self.list()}
            newest = max((items[name].sequence for name in wanted if name in items), default=0)
            for name, item in items.items():
                if name not in wanted and item.sequence < newest and KEPT in (item.tags or ()):
                    remove_kept_tag(self._live().annotate, item.step, term=item.term)  # of any thread; the Checkpointer's own is of one
        except (CairnError, RayError) as error:
            log.warning("checkpoints that Ray no longer keeps have the tag %r until a later report: %s", KEPT, error)

    def close(self, timeout: Optional[float] = None) -> None:
        """Waits for saves in flight, then leaves. May be repeated.

        Args:
            timeout: Seconds to wait; None waits as long as their deadlines.
        """
        try:
            if self._client is not None and self._is_first and not self._read_only:  # Ray may not have asked for any of the reports yet
                self.wait(timeout)
                self._settle(_SETTLE_S)
        finally:
            super().close(timeout)
