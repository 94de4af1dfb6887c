# SPDX-License-Identifier: Apache-2.0
"""cairn.lightning: Lightning's checkpoints in a run of Cairn.

    trainer = Trainer(callbacks=[cairn.lightning.ModelCheckpoint("cairn:///lab/run", every_n_train_steps=100)])
    trainer.fit(model, ckpt_path="last")

Lightning gives a checkpoint to its CheckpointIO on rank 0 alone. Here the callback saves on all ranks, so that each rank
keeps its generators and its data loader, and the checkpoint is committed for all of them at once.
"""

from __future__ import annotations

import copy
import datetime
import weakref
from typing import Any, Optional

import fsspec
from lightning.fabric.plugins import CheckpointIO
from lightning.fabric.utilities.data import _set_sampler_epoch
from lightning.fabric.utilities.distributed import DistributedSamplerWrapper
from lightning.pytorch import __version__ as _lightning_version
from lightning.pytorch import callbacks
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy
from lightning.pytorch.trainer.states import TrainerFn
from lightning.pytorch.utilities.rank_zero import rank_zero_info

from .errors import UnsupportedError
from .names import is_url, name_of, parse_id, split_url
from .training import Loaders, Run

_KEY = "lightning"  # of the state; it holds the dict that Lightning calls a checkpoint
_LOADERS = "loaders"  # of the state; the states of the data loaders, which belong to the rank
_LAST = "cairn+last"  # scheme of what ckpt_path="last" stands for
# What Lightning's ModelCheckpoint notes of a checkpoint.
_CHOICES = ("best_k_models", "best_model_path", "best_model_score", "current_score", "kth_best_model_path", "kth_value",
            "last_model_path", "_last_checkpoint_saved", "_last_global_step_saved")


class _Nothing(dict):
    """A checkpoint of a run that is proven to be empty: Lightning restores nothing from what is false."""

    def __bool__(self) -> bool:
        return False


class _Last(fsspec.AbstractFileSystem):
    """Answers for ``ckpt_path="last"``. Lightning asks a file system which last checkpoint is the newest, on each rank alone and
    before the ranks are joined. That it is there can be decided only later, by all ranks together, in the restore."""

    protocol = _LAST

    def exists(self, path: str, **_: Any) -> bool:
        return True

    def modified(self, path: str) -> datetime.datetime:
        return datetime.datetime.max.replace(tzinfo=datetime.timezone.utc)


fsspec.register_implementation(_LAST, _Last, clobber=True)


class _RunIO(CheckpointIO):
    """Takes what Lightning loads from the callbacks' runs; all else goes to the CheckpointIO that was there."""

    def __init__(self, inner: CheckpointIO, trainer: Any) -> None:
        self._inner, self._trainer = inner, trainer
        self.runs: dict = {}  # by URL
        self.restored: Optional[Run] = None  # the run that this fit has resumed from
        self.loaders: list = []  # states of the data loaders there

    def save_checkpoint(self, checkpoint: dict, path: Any, storage_options: Optional[Any] = None) -> None:
        if is_url(str(path)):
            raise UnsupportedError.of(f"trainer.save_checkpoint({str(path)!r}): Lightning calls this on one rank only, and Cairn commits a "
                                      "checkpoint of all ranks; let cairn.lightning.ModelCheckpoint save, or give a path of a file")
        self._inner.save_checkpoint(checkpoint, path, storage_options)

    def load_checkpoint(self, path: Any, map_location: Any = None, weights_only: Optional[bool] = None) -> dict:
        text = str(path)
        if not is_url(text) and not text.startswith(_LAST):
            return self._inner.load_checkpoint(path, map_location, weights_only)
        text = text.removeprefix(f"{_LAST}://")
        run = self.runs.get(split_url(text)[0]) or next(iter(self.runs.values()))  # which names itself in its error
        loaders = Loaders()
        state: dict = {_KEY: {}, _LOADERS: loaders.for_state()}
        fits = self._trainer.state.fn == TrainerFn.FITTING
        if run.restore(state, run.step_of(text), None if fits else [_KEY]) is None:
            rank_zero_info(f"{run.url} has no checkpoint yet, so nothing is restored")
            return _Nothing({"pytorch-lightning_version": _lightning_version})
        self.restored, self.loaders = run, loaders.states
        _loop_state(state[_KEY])["combined_loader"] = loaders.states
        return state[_KEY]

    def remove_checkpoint(self, path: Any) -> None:
        self._inner.remove_checkpoint(path)

    def teardown(self) -> None:
        self._inner.teardown()


def _loop_state(checkpoint: dict) -> dict:
    """Returns the part of Lightning's checkpoint that holds the states of the data loaders."""
    return checkpoint["loops"]["fit_loop"]["state_dict"]


class ModelCheckpoint(callbacks.ModelCheckpoint):
    """Lightning's ModelCheckpoint over a run of Cairn. A run takes one of them.

    Saves are asynchronous. The trainer resumes with ``ckpt_path="last"``, the newest good checkpoint on all ranks, or with the path of a
    checkpoint. An empty run starts at step 0.

    Args:
        url: The URL of the run.
        cairn: Options for cairn.torch.Checkpointer, by name.
        **options: As for Lightning's ModelCheckpoint, but for ``dirpath`` and ``filename``: a checkpoint is known by its step.

    Raises:
        InvalidError: The URL names no run.
        UnsupportedError: An option has no meaning for a run.
    """

    def __init__(self, url: str, *, cairn: Optional[dict] = None, **options: Any) -> None:
        for name in ("dirpath", "filename"):
            if options.pop(name, None) is not None:
                raise UnsupportedError.of(f"cairn.lightning.ModelCheckpoint: {name} has no meaning for a run, whose checkpoints are known "
                                          "by their steps; leave it out")
        if options.get("save_last") == "link":
            raise UnsupportedError.of('cairn.lightning.ModelCheckpoint: save_last="link" makes links between files; save_last=True writes '
                                      "nothing twice")
        self._run = Run(url, **(cairn or {}))
        super().__init__(enable_version_counter=False, **options)
        self.dirpath = self._run.url
        self._first = self._before = self._choices()

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        strategy = trainer.strategy
        if type(strategy) not in (DDPStrategy, SingleDeviceStrategy):
            raise UnsupportedError.of(f"cairn.lightning.ModelCheckpoint: the strategy {type(strategy).__name__} writes its checkpoints "
                                      "by itself; a single device and DDP are supported")
        if not isinstance(strategy.checkpoint_io, _RunIO):
            strategy.checkpoint_io = _RunIO(strategy.checkpoint_io, trainer)
        strategy.checkpoint_io.runs[self._run.url] = self._run
        strategy.checkpoint_io.restored = None  # of an earlier fit
        self._run.decision.agree = strategy.reduce_boolean_decision
        self._settle()

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        self._run.close()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        super().on_train_start(trainer, pl_module)
        io = trainer.strategy.checkpoint_io
        if io.restored is not None:
            self._last_global_step_saved = trainer.global_step  # not again, within gradient accumulation
            if io.restored is not self._run:
                self._run.lineage.join(trainer.global_step)
            self._run.decision.keep(self._wanted(self._choices()))
        elif trainer.global_step == 0 or trainer.global_step < self._run.lineage.newest:
            self._run.begin()
            self._choose(self._first)
        for loader in trainer.fit_loop._combined_loader.flattened:
            if hasattr(loader, "state_dict") and isinstance(getattr(loader, "sampler", None), DistributedSamplerWrapper):
                raise UnsupportedError.of(f"cairn.lightning: Lightning wraps the {type(loader).__name__}'s sampler for DDP in one whose "
                                          "order cannot be resumed; give the loader a StatefulDistributedSampler "
                                          "(torchdata.stateful_dataloader.sampler) and the Trainer use_distributed_sampler=False")
        if io.restored is self._run:
            self._resume_data(trainer, io.loaders)

    def _resume_data(self, trainer: Any, states: list) -> None:
        """Makes the iterator that the epoch begins or goes on with. Lightning has made it already, but before it told the sampler which
        epoch it is, and with draws from the generators; and where a checkpoint was made at the last batch of an epoch, that iterator is at
        its end, so that Lightning would take the next epoch for an empty one."""
        loop = trainer.fit_loop
        is_inside = loop.restarted_mid_epoch and not loop.epoch_loop.batch_progress.is_last_batch
        if loop.epoch_loop.restarted_on_last and not is_inside:
            return  # saved after the validation behind an epoch: Lightning ends that epoch first, and then makes an iterator
        for loader in loop._combined_loader.flattened:
            _set_sampler_epoch(loader, loop.epoch_progress.current.processed)
        if states:
            loop._combined_loader._load_state_dicts(states)
            iter(loop._data_fetcher)
            if not is_inside:
                next(loop._data_fetcher, None)  # the loaders leave the epoch that has ended
        self._run.resume_rng()
        if not is_inside:
            iter(loop._data_fetcher)  # draws as in a training that was not interrupted

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._settle()
        super().on_train_end(trainer, pl_module)
        self._run.wait()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._run.decision.agree = bool  # the other ranks may be in the middle of a step
        if self._should_save_on_exception(trainer):
            self._settle()
        super().on_exception(trainer, pl_module, exception)

    def load_state_dict(self, state_dict: dict) -> None:
        """Takes what Lightning had noted. The URLs in it may have another address of the server, from before it moved."""
        folder = str(state_dict.get("dirpath"))
        if is_url(folder) and folder != self._run.url and name_of(folder) == name_of(self._run.url):
            def here(path: str) -> str:
                return self._run.path(parse_id(path).step) if is_url(path) else path

            paths = {name: here(state_dict[name]) for name in ("best_model_path", "kth_best_model_path", "last_model_path")}
            best = {here(path): score for path, score in state_dict["best_k_models"].items()}
            state_dict = {**state_dict, **paths, "best_k_models": best, "dirpath": self._run.url}
        super().load_state_dict(state_dict)

    def _choices(self) -> dict:
        """Returns what Lightning notes of a checkpoint before it is saved."""
        return {name: copy.copy(getattr(self, name)) for name in _CHOICES}

    def _choose(self, choices: dict) -> None:
        for name, value in choices.items():
            setattr(self, name, copy.copy(value))

    def _wanted(self, choices: dict) -> set:
        """Returns the steps of the checkpoints that Lightning keeps by its choices. A resumed training may have begun with files."""
        paths = {*choices["best_k_models"], choices["best_model_path"], choices["last_model_path"] if self.save_last else ""}
        return {self._run.step_of(path) for path in paths if is_url(path)}

    def _settle(self) -> None:
        """Waits for the save before, since only what has become a checkpoint is ever the best or the last one:
        Lightning compares the next one with it, and notes it in the state that is saved."""
        self._run.decided()
        self._before = self._choices()

    def _save_topk_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        self._settle()
        super()._save_topk_checkpoint(trainer, monitor_candidates)

    def format_checkpoint_name(self, metrics: Any, *_: Any, **__: Any) -> str:
        return self._run.path(int(metrics["step"]))

    def file_exists(self, filepath: Any, trainer: Any) -> bool:
        return False  # a step is written once

    def _find_last_checkpoints(self, trainer: Any) -> set:
        first = next(item for item in trainer.checkpoint_callbacks if isinstance(item, ModelCheckpoint))
        return {f"{_LAST}://{self._run.url}"} if self is first else set()

    def _save_checkpoint(self, trainer: Any, filepath: str) -> None:
        before = self._before
        if self.save_last:
            self.last_model_path = filepath  # is in the state that is saved
        checkpoint = trainer._checkpoint_connector.dump_checkpoint(self.save_weights_only)
        states = _loop_state(checkpoint).pop("combined_loader", [])
        loaders = Loaders(states, bool(states) and not trainer.fit_loop.epoch_loop.batch_progress.is_last_batch)
        unwanted = self._wanted(before) - self._wanted(self._choices()) if self.save_top_k != -1 else set()
        self._run.save(trainer.global_step, {_KEY: checkpoint, _LOADERS: loaders.for_state()},
                       self._monitor_candidates(trainer), unwanted=sorted(unwanted), undo=lambda: self._choose(before))
        self._last_global_step_saved = trainer.global_step
        self._last_checkpoint_saved = filepath
        for logger in trainer.loggers if trainer.is_global_zero else ():
            logger.after_save_checkpoint(weakref.proxy(self))

    def _save_last_checkpoint(self, trainer: Any, monitor_candidates: Any) -> None:
        path = self._run.path(trainer.global_step)
        if self.save_last and self._last_checkpoint_saved != path:
            self._settle()
            self._save_checkpoint(trainer, path)

    def _should_remove_checkpoint(self, trainer: Any, previous: str, current: str) -> bool:
        return False  # it goes when its successor is durable
