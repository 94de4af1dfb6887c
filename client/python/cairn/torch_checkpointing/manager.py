# SPDX-License-Identifier: Apache-2.0
"""CheckpointManager: that of torch_checkpointing, whose saver and reader are Cairn's.

The package's own saver copies the state into memory that it shares with a process of its own, which pickles it, and a Storage
copies the pickles. Here the state goes straight into the arena, without another process. The schema of items, ``load`` into live
tensors and ``close`` are the package's own code.
"""

from __future__ import annotations

import contextlib
import dataclasses
from typing import Any, Iterator, Optional

import torch
from torch.utils import _pytree as pytree
import torch_checkpointing
from torch_checkpointing.checkpoint_base import CheckpointBase, CheckpointReadInfo
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.walk_utils import walk_checkpoint_structure

from ..errors import InvalidError, NotFoundError, SkippedError, UnsupportedError
from ..torch.futures import standard
from ..torch.local import PerRank
from ..training import Run
from .storage import StorageConfig

_FILES = "give it to torch_checkpointing's own CheckpointManager, which writes files to the same StorageConfig"


class _Saver(torch_checkpointing.CheckpointSaver):
    """What the manager saves with. ``is_async``: whether ``save`` returns before the checkpoint is durable."""

    def __init__(self, run: Run, is_async: bool) -> None:
        self._run, self._is_async = run, is_async

    def save(self, path: str, checkpoint: CheckpointBase) -> Optional[tuple]:
        """Returns (future of the copy, future of the commit), or None once it is durable."""
        step = self._run.step_of(path)
        if not isinstance(step, int):
            raise InvalidError.of(f"{path!r} cannot be saved; give the checkpoint's name with its step, such as step-100")
        handle = self._run.save(step, {key: item.value for key, item in checkpoint.get_items().items()}, is_kept=False)
        if self._is_async:
            return handle.released, standard(handle.durable)
        handle.durable.result()
        return None

    def close(self) -> None:
        self._run.close()


class _Reader:
    """What the package's CheckpointLoader reads with."""

    def __init__(self, run: Run) -> None:
        self._run = run

    def read(self, path: Any, checkpoint_info: CheckpointReadInfo, map_location: Any = None, *, metadata_format: Any = None) -> tuple:
        """Returns (items, names of what they have and the checkpoint has not). Live tensors that have the stored type and shape are filled
        in place; the package's own code merges the rest."""
        if metadata_format is not None:
            raise UnsupportedError.of(f"load({path!r}, metadata_format={metadata_format.__name__}): the checkpoint holds no files; "
                                      "leave it out")
        if not isinstance(map_location, (type(None), str, torch.device)):
            raise UnsupportedError.of(f"load({path!r}): map_location is a {type(map_location).__name__}; give the name of a device")
        live = {key: item.value for key, item in checkpoint_info.checkpoint_items.items()}
        state = {key: _mirror(value) for key, value in live.items()}
        try:
            restored = self._run.restore(state, self._run.step_of(path), only=state)
        except NotFoundError as error:
            raise FileNotFoundError(str(error)) from error
        if restored is None:
            raise FileNotFoundError(f"load({path!r}): the run {self._run.url} has no checkpoint yet")
        items, missing = {}, []
        for key, value in live.items():
            found = _inner(state[key])
            if map_location is not None:
                found = pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(map_location), found)
            items[key], paths = walk_checkpoint_structure(item_key=key, source=found, target=_inner(value))
            missing += map(str, paths)
        return items, missing


def _inner(value: Any) -> Any:
    return value.obj if isinstance(value, PerRank) else value


def _mirror(value: Any) -> Any:
    """Returns new containers around the same tensors: a restore replaces what is in them."""
    if isinstance(value, PerRank):
        return PerRank(_mirror(value.obj), value.on_reshape)
    return pytree.tree_map(lambda leaf: leaf, value)


def _check(config: torch_checkpointing.CheckpointManager.Config) -> None:
    """Raises UnsupportedError for what is about files, or about the process that writes them."""
    for name in ("subprocess_init_fn", "pre_finalize_callback", "finalize_callback"):
        if getattr(config, name) is not None:
            raise UnsupportedError.of(f"cairn.torch_checkpointing: {name} is called in a process that writes files, and here is none; "
                                      f"leave it out, or {_FILES}")
    for key, spec in {**config.items, "default": config.default}.items():
        if spec is not None and spec.layout is not None:
            raise UnsupportedError.of(f"cairn.torch_checkpointing: {key} has a layout of files; leave it out, or {_FILES}")
        resharder = type(getattr(spec, "resharder", None))
        if resharder is not type(None) and (resharder.__module__, resharder.__name__) != _RESHARDER:
            raise UnsupportedError.of(f"cairn.torch_checkpointing: {key} has a {resharder.__name__}, which reads files; "
                                      f"use DefaultResharder, in whose place Cairn reshards, or {_FILES}")


_RESHARDER = ("torch_checkpointing.default_resharder", "DefaultResharder")  # by name, which spares an import


class CheckpointManager(torch_checkpointing.CheckpointManager):
    """torch_checkpointing's CheckpointManager, which copies the state once, into Cairn's arena.

    ``save`` returns a future of the commit by all ranks, with an asynchronous ``Config.save``; else it returns when the checkpoint is
    durable. The parameters and the state of optimizers of torch.optim are copied behind the training, and their next step waits
    for that; all else is copied before ``save`` returns. Who changes parameters by other means does so under ``lock``, which
    waits too. ``load`` takes "latest" as well, which is the newest good checkpoint on all ranks.

    Args:
        config: The package's Config, with a StorageConfig of Cairn.
        **options: As for cairn.torch.Checkpointer.

    Raises:
        InvalidError: ``storage_config`` is not Cairn's.
        UnsupportedError: The Config is about files: a layout, a resharder of one's own, a callback.
    """

    class Config(torch_checkpointing.CheckpointManager.Config):
        """As torch_checkpointing's."""

        def build(self) -> "CheckpointManager":
            return CheckpointManager(self)

    def __init__(self, config: Optional[torch_checkpointing.CheckpointManager.Config] = None, **options: Any) -> None:
        config = config or self.Config()
        storage = config.storage_config
        if not isinstance(storage, StorageConfig):
            raise InvalidError.of('cairn.torch_checkpointing: give Config a storage_config=StorageConfig("cairn:///lab/run") '
                                  "of this module")
        _check(config)
        no_process = torch_checkpointing.CheckpointWriterConfig(barrier_config=None, write_to_temp_dir=False)
        super().__init__(dataclasses.replace(config, save=SyncCheckpointSaverConfig(writer_config=no_process)))
        self._config = config
        run = Run(storage.url, **{"snapshot": "lazy", **storage.options, **options})
        self._saver = _Saver(run, not isinstance(config.save, SyncCheckpointSaverConfig))
        self._loader = torch_checkpointing.CheckpointLoader(_Reader(run))

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Waits until the save in flight is copied. What is in the block may change the state."""
        if self._staging_future is not None:
            self._staging_future.wait()
        yield

    def close(self) -> None:
        """Waits for the saves in flight. Raises the error of the last one if it has failed; a save that was skipped has not."""
        last, self._write_future = self._write_future, None
        super().close()
        error = last.exception() if last is not None else None
        if error is not None and not isinstance(error, SkippedError):
            raise error
