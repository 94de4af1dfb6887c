# SPDX-License-Identifier: Apache-2.0
"""cairn.transformers: the checkpoints of a Hugging Face Trainer in a run of Cairn.

    trainer = cairn.transformers.attach(Trainer(...), "cairn:///lab/run")
    trainer.train(resume_from_checkpoint=True)

The Trainer has no seam for storage: it writes files into ``output_dir``, one after the other, and looks for them there. So
the methods of one trainer that save and load are replaced, and the loop, the callbacks and the arguments stay as they are.
"""

from __future__ import annotations

import copy
import dataclasses
import logging
import os
import tempfile
from typing import Any, Optional, Union

from transformers import Trainer
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from .errors import UnsupportedError
from .names import is_url
from .training import Run, all_agree, check_folders

log = logging.getLogger("cairn")

_STATE_FILE = "trainer_state.json"


class _Attached:
    """What takes the place of a trainer's methods. ``folder`` holds what the Trainer itself reads at a resume."""

    def __init__(self, trainer: Trainer, run: Run) -> None:
        self.trainer, self.run = trainer, run
        self.run.decision.agree = lambda answer: all_agree(trainer.accelerator, answer)
        self.kept: list = []  # steps, oldest first
        self.best: tuple = ()  # metric and step of the best evaluation before the newest one
        self.folder: Optional[tempfile.TemporaryDirectory] = None
        self.restored: dict = {}
        self._train, self._load_best = trainer.train, trainer._load_best_model
        self._determine_best = trainer._determine_best_metric
        self._load_model, self._load_optimizer = trainer._load_from_checkpoint, trainer._load_optimizer_and_scheduler
        self._load_rng, self._load_scaler = trainer._load_rng_state, trainer._load_scaler

    def _is_ours(self, path: Any) -> bool:
        return self.folder is not None and path == self.folder.name

    def _path(self, step: int) -> str:
        return f"{self.run.url}/{PREFIX_CHECKPOINT_DIR}-{step}"

    # --- save ---------------------------------------------------------------------------------------

    def save(self, model: Any, trial: Any) -> None:
        """Takes the place of ``_save_checkpoint``. Every rank calls it."""
        trainer, args = self.trainer, self.trainer.args
        if trial is not None:
            raise UnsupportedError.of("cairn.transformers: a hyper-parameter search trains many models, and a run holds one training; "
                                      "attach no run to this trainer")
        self.run.decided()
        trainer.store_flos()
        state = trainer.state
        step, path, best = state.global_step, state.best_model_checkpoint, self.best
        kept = [item for item in self.kept if item < step]

        def undo() -> None:
            self.kept, state.best_model_checkpoint = kept, path
            if state.best_global_step == step:
                state.best_metric, state.best_global_step = best

        self.kept = [*kept, step]
        if state.best_global_step and state.best_global_step in self.kept:
            state.best_model_checkpoint = self._path(state.best_global_step)
        unwanted = self._rotate(args.save_total_limit, state.best_global_step if state.best_model_checkpoint else None)
        saved: dict = {"model": trainer.model, "trainer": {"state": self._export(), "kept": list(self.kept), "world_size": args.world_size}}
        if not args.save_only_model:
            saved["optimizer"] = trainer.optimizer.state_dict()
            saved["scheduler"] = trainer.lr_scheduler.state_dict()
            if trainer.accelerator.scaler is not None:
                saved["scaler"] = trainer.accelerator.scaler.state_dict()
        self.run.save(step, saved, _metrics_of(state), unwanted=unwanted, undo=undo)

    def determine_best(self, metrics: dict, trial: Any) -> bool:
        """Takes the place of ``_determine_best_metric``: what a lost save was the best of is no longer the best."""
        self.run.decided()
        self.best = self.trainer.state.best_metric, self.trainer.state.best_global_step
        return self._determine_best(metrics=metrics, trial=trial)

    def _export(self) -> dict:
        """Returns the trainer's state as plain values, with that of its callbacks."""
        trainer = self.trainer
        for callback in [*trainer.callback_handler.callbacks, trainer.control]:
            if isinstance(callback, ExportableState):
                name, held = type(callback).__name__, trainer.state.stateful_callbacks
                if isinstance(held[name], list):
                    held[name].append(callback.state())
                else:
                    held[name] = callback.state()
        return dataclasses.asdict(trainer.state)

    def _rotate(self, limit: Optional[int], best: Optional[int]) -> list:
        """Returns the steps that ``save_total_limit`` gives up: the oldest, but never the newest or the best one."""
        unwanted: list = []
        if limit is not None and limit > 0:
            guarded = {self.kept[-1], best if best is not None else self.kept[-1]}
            for step in self.kept:
                if len(self.kept) - len(unwanted) <= max(limit, len(guarded)):
                    break
                if step not in guarded:
                    unwanted.append(step)
            self.kept = [step for step in self.kept if step not in unwanted]
        return unwanted

    # --- resume -------------------------------------------------------------------------------------

    def train(self, resume_from_checkpoint: Union[str, bool, None] = None, *args: Any, **kwargs: Any) -> Any:
        """Takes the place of ``train``: True is the newest good checkpoint of the run, on all ranks."""
        path = self.run.url if resume_from_checkpoint is True else resume_from_checkpoint
        if path and is_url(str(path)):
            path = self._fetch(self.run.step_of(path))
        else:
            self.run.begin()
            self.kept = []
        try:
            result = self._train(path or None, *args, **kwargs)
        finally:
            self.restored = {}
            if self.folder is not None:
                self.folder.cleanup()
                self.folder = None
        self.run.close()
        return result

    def _fetch(self, step: Union[int, str]) -> Optional[str]:
        """Restores the model, and holds the rest until the Trainer asks for it. Returns the folder with the one file that the Trainer
        reads itself, or None for an empty run."""
        state: dict = {"model": self.trainer.model, "trainer": {}}
        if not self.trainer.args.save_only_model:
            state.update(optimizer={}, scheduler={})
            if self.trainer.accelerator.scaler is not None:
                state["scaler"] = {}
        self.kept = []
        if self.run.restore(state, step) is None:
            return None
        ranks, args = state["trainer"]["world_size"], self.trainer.args
        if ranks != args.world_size and not args.ignore_data_skip:
            raise UnsupportedError.of(f"cairn.transformers: the checkpoint is of {ranks} ranks, and the Trainer finds its place in the "
                                      f"data by counting steps, which {args.world_size} ranks count in another way; start with {ranks} "
                                      "ranks, or use TrainingArguments(ignore_data_skip=True), which begins an epoch's data anew")
        self.restored = state
        self.kept = list(state["trainer"]["kept"])
        self.run.decision.keep(self.kept)
        self.folder = tempfile.TemporaryDirectory(prefix="cairn-trainer-")
        # The Trainer drops a best checkpoint that is no folder; it is put back when the optimizer is loaded.
        TrainerState(**{**state["trainer"]["state"], "best_model_checkpoint": None}).save_to_json(
            os.path.join(self.folder.name, _STATE_FILE))
        return self.folder.name

    def load_model(self, path: str, model: Any = None) -> None:
        """Takes the place of ``_load_from_checkpoint``: the model is restored. ``model_init`` may have made another."""
        if not self._is_ours(path):
            self._load_model(path, model)
            return
        restored = self.restored.pop("model")
        if restored is not self.trainer.model:
            self.trainer.model.load_state_dict(restored.state_dict())

    def load_optimizer(self, path: Optional[str]) -> None:
        """Takes the place of ``_load_optimizer_and_scheduler``."""
        if not self._is_ours(path):
            self._load_optimizer(path)
            return
        state = self.restored["trainer"]["state"]
        best = state["best_model_checkpoint"]  # maybe by another address of the server
        self.trainer.state.best_model_checkpoint = self._path(state["best_global_step"]) if is_url(str(best)) else best
        if "optimizer" in self.restored:
            self.trainer.optimizer.load_state_dict(self._take("optimizer"))
            self.trainer.lr_scheduler.load_state_dict(self._take("scheduler"))

    def load_scaler(self, path: Optional[str]) -> None:
        """Takes the place of ``_load_scaler``."""
        if not self._is_ours(path):
            self._load_scaler(path)
        elif "scaler" in self.restored:
            self.trainer.accelerator.scaler.load_state_dict(self._take("scaler"))

    def _take(self, name: str) -> Any:
        """Returns a restored state. With auto_find_batch_size it is loaded again when memory has run out."""
        if self.trainer.args.auto_find_batch_size:
            return copy.deepcopy(self.restored[name])
        return self.restored.pop(name)

    def load_rng(self, path: Optional[str]) -> None:
        """Takes the place of ``_load_rng_state``."""
        if not self._is_ours(path):
            self._load_rng(path)
        elif not self.trainer.args.save_only_model:
            self.run.resume_rng()

    def load_best(self) -> None:
        """Takes the place of ``_load_best_model``."""
        self.run.wait()
        path = self.trainer.state.best_model_checkpoint
        if path is None:
            log.warning("%s: no best model is loaded, because none of its saves has become a checkpoint", self.run.url)
            return
        if not is_url(str(path)):
            self._load_best()
            return
        self.run.restore({"model": self.trainer.model}, self.run.step_of(path), ["model"])


def _metrics_of(state: TrainerState) -> dict:
    """Returns the newest numbers that the Trainer has logged."""
    found: dict = {}
    for entry in state.log_history[-2:]:
        found.update(entry)
    return {name: value for name, value in found.items() if isinstance(value, (int, float))}


def attach(trainer: Trainer, url: str, **options: Any) -> Trainer:
    """Lets a Trainer save to a run and resume from it. Every rank calls it, before ``train``.

    Saves are asynchronous; ``train`` returns when the last one is durable. ``save_strategy``, ``save_steps``, ``save_total_limit``,
    ``load_best_model_at_end`` and ``save_only_model`` mean what they always do. ``train(resume_from_checkpoint=True)`` takes the newest
    good checkpoint on all ranks, and starts at step 0 where the run is empty.

    Args:
        trainer: The trainer.
        url: The URL of the run.
        **options: As for cairn.torch.Checkpointer.

    Returns:
        The same trainer.

    Raises:
        InvalidError: The URL names no run.
        UnsupportedError: The trainer uses FSDP or DeepSpeed, or pushes checkpoints to a hub.
    """
    if trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled:
        raise UnsupportedError.of("cairn.transformers: a Trainer with FSDP or DeepSpeed saves shards in its own way; "
                                  "a single device and DDP are supported")
    if trainer.args.push_to_hub:
        raise UnsupportedError.of("cairn.transformers: push_to_hub pushes files of a checkpoint, and Cairn writes none; "
                                  "push the model after the training")
    check_folders("cairn.transformers", "the Trainer", trainer.args, ("output_dir", "logging_dir"))
    attached = _Attached(trainer, Run(url, **options))
    for name, method in (("train", attached.train), ("_save_checkpoint", attached.save), ("_load_from_checkpoint", attached.load_model),
                         ("_load_optimizer_and_scheduler", attached.load_optimizer), ("_load_scaler", attached.load_scaler),
                         ("_load_rng_state", attached.load_rng), ("_load_best_model", attached.load_best),
                         ("_determine_best_metric", attached.determine_best)):
        setattr(trainer, name, method)
    return trainer
