# SPDX-License-Identifier: Apache-2.0
"""cairn.torchtitan: the checkpoints of torchtitan in a run of Cairn.

    checkpoint = cairn.torchtitan.CheckpointManager.Config(enable=True, folder="cairn:///lab/run", async_mode="async")

torchtitan's own manager takes the URL as well and writes DCP's files by paths, for which DCP copies the state first. This one
gives the state to cairn.dcp, which copies it once, into the arena. When to save, what to save, what to load and which
checkpoints to keep is decided by torchtitan's own code.
"""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Optional

import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torchtitan.components.checkpointer import dcp as titan
from torchtitan.components.checkpointer.base import MODEL
from torchtitan.tools import filesystem

from .dcp import Reader, Writer, async_save
from .errors import CairnError, UnsupportedError
from .fs import CairnFileSystem
from .names import is_url, run_of
from .torch.futures import log, standard


class CheckpointManager(titan.CheckpointManager):
    """torchtitan's CheckpointManager over a run of Cairn.

    Args:
        config: The manager's Config.
        parts: As for torchtitan's own manager, which the trainer gives.

    Raises:
        InvalidError: ``folder`` is not the URL of a run.
        UnsupportedError: ``async_mode`` is "async_with_pinned_mem".
    """

    _writer: Optional[Writer] = None

    @dataclass(kw_only=True, slots=True)
    class Config(titan.CheckpointManager.Config):
        """As torchtitan's. ``folder`` is the URL of a run."""

    def __init__(self, config: "CheckpointManager.Config", **parts: Any) -> None:
        if config.enable and config.async_mode == "async_with_pinned_mem":
            self.enable = False  # torchtitan's __del__ asks for it
            raise UnsupportedError.of('cairn.torchtitan: async_mode="async_with_pinned_mem" stages a copy of the state before it is saved, '
                                      'and Cairn copies it straight into its arena; use async_mode="async"')
        super().__init__(config, **parts)
        if self.enable:
            self.folder = run_of(self.folder)
            self._writer = Writer(self.folder, process_group=self.pg)

    def dcp_save(self, state_dict: dict, checkpoint_id: str, async_mode: titan.AsyncMode, enable_garbage_collection: bool = False,
                 to_hf: bool = False) -> Optional[Future]:
        """Takes the place of torchtitan's. With ``async_mode`` it returns when the state is copied."""
        assert self._writer is not None and not to_hf  # which torchtitan refuses for a URL
        if async_mode == titan.AsyncMode.ASYNC:
            saving = async_save(state_dict, checkpoint_id=checkpoint_id, storage_writer=self._writer, process_group=self.pg)
            return standard(saving, self._forget_older)
        dcp.save(state_dict, checkpoint_id=checkpoint_id, storage_writer=self._writer, process_group=self.pg)
        self._forget_older()
        if enable_garbage_collection:
            titan.GarbageCollection.collect("GC collection invoked by checkpointer.")
        return None

    def _forget_older(self) -> None:
        """Forgets what ``keep_latest_k`` gives up, after a save that is durable."""
        if self.keep_latest_k > 0 and dist.get_rank() == 0:
            try:
                CairnFileSystem().forget_older(self.folder, self.keep_latest_k)
            except CairnError as error:
                log.warning("%s: older checkpoints than the newest %d stay until a later save: %s", self.folder, self.keep_latest_k, error)

    def _purge_stale_checkpoints(self) -> None:
        """Does nothing. torchtitan calls it when a save has begun, and here older checkpoints go when it is durable."""

    def dcp_load(self, state_dict: dict, checkpoint_id: str, from_hf: bool, from_quantized: bool) -> None:
        """Takes the place of torchtitan's, for checkpoints of Cairn that hold no files of DCP."""
        if from_hf or not is_url(checkpoint_id) or filesystem.isfile(filesystem.join(checkpoint_id, ".metadata")):
            super().dcp_load(state_dict, checkpoint_id, from_hf, from_quantized)
            return
        dcp.load(state_dict, storage_reader=Reader(checkpoint_id), process_group=self.pg)
        if MODEL in self.states:
            self.states[MODEL].load_state_dict(state_dict)

    def _find_load_step(self, folder: str = "") -> int:
        """Returns the newest committed step, or -1 for a run without one."""
        rows = CairnFileSystem().steps(folder or self.folder)
        return rows[0][0] if rows else -1

    def _close(self) -> None:
        super()._close()
        if self._writer is not None:
            self._writer.close()
        last, self.save_future = self.save_future, None
        if last is not None and last.exception() is not None:  # nobody may have asked for it
            log.error("%s: the last asynchronous save has failed: %s", self.folder, last.exception())
