# SPDX-License-Identifier: Apache-2.0
"""cairn.accelerate: what Accelerate calls a state, in a run of Cairn.

    cairn.accelerate.attach(accelerator, "cairn:///lab/run")
    restored = accelerator.load_state()         # None only for a run proven to be empty
    accelerator.save_state(f"step_{step}")      # any name with the step in it

Accelerate writes folders of pickles, without a word on whether they are whole. Here ``save_state`` and ``load_state`` of one
accelerator are replaced; what is prepared and registered is asked of the accelerator at each call.
"""

from __future__ import annotations

import functools
import warnings
from typing import Any, Optional

from accelerate import Accelerator
from accelerate.utils import DistributedType

from .errors import InvalidError, UnsupportedError
from .names import is_url, parse_step
from .torch import CairnWarning, Restored, SaveHandle, rng
from .training import Loaders, Run, all_agree, check_folders

_KEY = "accelerate"
_WHERE = (DistributedType.NO, DistributedType.MULTI_CPU, DistributedType.MULTI_GPU)


def _keep_rng(loader: Any) -> None:
    """Lets a stateful data loader go to where its state stands without a draw from the generators. Before an epoch the loader makes one
    more iterator than in the training that was saved: one of the epoch that has ended, or the first one, which was made before the save."""
    make = loader._get_iterator

    def first() -> Any:
        del loader._get_iterator
        before = rng.collect()
        try:
            return make()
        finally:
            rng.apply(before)

    loader._get_iterator = first


class _Attached:
    """What takes the place of an accelerator's methods."""

    def __init__(self, accelerator: Accelerator, run: Run) -> None:
        self.accelerator, self.run = accelerator, run
        self.run.decision.agree = functools.partial(all_agree, accelerator)
        self.kept: list = []  # steps, oldest first
        self._end = accelerator.end_training

    def _state(self) -> dict:
        """Returns what the accelerator holds, by name, as it stands now."""
        accelerator, config = self.accelerator, self.accelerator.project_configuration
        if accelerator._save_model_state_pre_hook or accelerator._load_model_state_pre_hook:
            raise UnsupportedError.of("cairn.accelerate: a hook of register_save_state_pre_hook or register_load_state_pre_hook expects a "
                                      "folder, and Cairn has none; register an object with state_dict by register_for_checkpointing")
        state: dict = {_KEY: {"step": accelerator.step, "iteration": config.iteration, "kept": list(self.kept)}}
        for name, objects in (("model", accelerator._models), ("optimizer", [item.optimizer for item in accelerator._optimizers]),
                              ("scheduler", accelerator._schedulers), ("custom", accelerator._custom_objects)):
            state.update({f"{name}{idx or ''}": item for idx, item in enumerate(objects)})
        for idx, loader in enumerate(accelerator._dataloaders):
            # A loader counts its epoch when it is asked for more than the last batch.
            is_used = any(item is loader for item in accelerator.gradient_state.dataloader_references)
            state[_KEY][f"epoch{idx or ''}"] = loader.iteration + (is_used and loader.end_of_dataloader)
            if getattr(loader, "use_stateful_dataloader", False):
                state[f"loader{idx or ''}"] = Loaders([loader.state_dict()], is_used and not loader.end_of_dataloader).for_state()
        if accelerator.scaler is not None:
            state["scaler"] = accelerator.scaler
        return state

    def _step(self, output_dir: Any) -> int:
        config = self.accelerator.project_configuration
        if output_dir is not None and is_url(str(output_dir)):
            self.run.step_of(output_dir)  # InvalidError for another run
        step = config.iteration if config.automatic_checkpoint_naming else parse_step(str(output_dir)) if output_dir is not None else None
        if step is None:
            raise InvalidError.of(f'save_state({output_dir!r}): the name has no step in it; write save_state(f"step_{{step}}"), or use '
                                  "ProjectConfiguration(automatic_checkpoint_naming=True)")
        return step

    def save_state(self, output_dir: Any = None, safe_serialization: bool = True, **kwargs: Any) -> SaveHandle:
        """Takes the place of ``save_state``. Every rank calls it.

        Args:
            output_dir: A name with the step in it; without meaning where names are automatic.
            safe_serialization: Without meaning: nothing is pickled.
            **kwargs: Not supported.

        Returns:
            The save in flight.
        """
        if kwargs:
            raise UnsupportedError.of(f"save_state: {', '.join(kwargs)} is meant for writers of files; leave it out")
        config, step = self.accelerator.project_configuration, self._step(output_dir)
        if not self.accelerator.sync_gradients:
            warnings.warn(f"step {step} is saved within gradient accumulation, and a checkpoint holds no gradients: save "
                          "when accelerator.sync_gradients is true", CairnWarning, stacklevel=2)
        config.iteration += 1
        self.run.decided()
        before = [item for item in self.kept if item < step]
        kept = [*before, step] if config.automatic_checkpoint_naming and config.total_limit else []
        unwanted = kept[:-config.total_limit] if kept else []
        self.kept = kept[len(unwanted):]

        def undo() -> None:
            self.kept = before

        return self.run.save(step, self._state(), unwanted=unwanted, undo=undo if kept else None)

    def load_state(self, input_dir: Any = None, load_kwargs: Optional[dict] = None, **kwargs: Any) -> Optional[Restored]:
        """Takes the place of ``load_state``. Every rank calls it.

        Args:
            input_dir: A name with the step in it; None takes the newest good checkpoint on all ranks.
            load_kwargs: Not supported.
            **kwargs: Not supported.

        Returns:
            What was restored; None only for a run that is proven to be empty.
        """
        if load_kwargs or kwargs:
            raise UnsupportedError.of(f"load_state: {', '.join(['load_kwargs', *kwargs])} is meant for readers of files; leave it out")
        state = self._state()
        restored = self.run.restore(state, "latest" if input_dir is None else self.run.step_of(input_dir))
        if restored is None:
            self.kept = []
            return None
        values = state[_KEY]
        self.kept = list(values.get("kept", [restored.step]))
        self.run.decision.keep(self.kept)
        self.accelerator.step = values["step"]
        self.accelerator.project_configuration.iteration = values["iteration"]
        for idx, loader in enumerate(self.accelerator._dataloaders):
            loader.iteration = values[f"epoch{idx or ''}"]
            if f"loader{idx or ''}" not in state:
                continue
            found = state[f"loader{idx or ''}"].obj
            if found.states:
                loader.load_state_dict(found.states[0])
            if found.is_inside:
                self._resume_rng_inside(loader)
            elif found.states:
                _keep_rng(loader.base_dataloader)
        return restored

    def _resume_rng_inside(self, loader: Any) -> None:
        """Puts the generators back when the loader has its first batch. The save was made while the loader held one batch more than
        it had given; a new iterator draws from the generators until it holds that batch, too."""
        noted = loader._update_state_dict

        def resumed() -> None:
            loader._update_state_dict = noted
            self.run.resume_rng()
            noted()

        loader._update_state_dict = resumed

    def end_training(self) -> None:
        """Takes the place of ``end_training``: waits for the saves in flight first."""
        self.run.close()
        self._end()


def attach(accelerator: Accelerator, url: str, **options: Any) -> Accelerator:
    """Lets ``save_state`` and ``load_state`` of an accelerator use a run. Every rank calls it, once.

    What was prepared is saved (models, optimizers, schedulers, stateful data loaders, the scaler), with the objects of
    ``register_for_checkpointing``, the accelerator's step, and the random number generators of every rank. ``save_state`` returns when
    the state is copied. ``end_training`` waits until all is durable.

    Args:
        accelerator: The accelerator.
        url: The URL of the run.
        **options: As for cairn.torch.Checkpointer.

    Returns:
        The same accelerator.

    Raises:
        InvalidError: The URL names no run.
        UnsupportedError: The accelerator shards in a way of its own (FSDP, DeepSpeed, Megatron-LM, XLA).
    """
    if accelerator.distributed_type not in _WHERE:
        raise UnsupportedError.of(f"cairn.accelerate: {accelerator.distributed_type} saves shards in its own way; "
                                  "one process and DDP are supported")
    check_folders("cairn.accelerate", "Accelerate", accelerator.project_configuration, ("project_dir", "logging_dir"))
    attached = _Attached(accelerator, Run(url, **options))
    for name in ("save_state", "load_state", "end_training"):
        setattr(accelerator, name, getattr(attached, name))
    return accelerator
