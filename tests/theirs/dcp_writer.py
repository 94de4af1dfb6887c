# SPDX-License-Identifier: Apache-2.0
"""DCP's FileSystemWriter and FileSystemReader by name, Cairn's Writer and Reader by nature: whoever imports this first runs
tests that were written for a folder against the server of CAIRN_THEIRS_URL.

A path becomes a run of its own, each save of it the next step, a load reads the newest: a folder that is written again
holds what was written last. Options of the file writers (threads, files, extensions) mean nothing here and are left out.
"""

import os

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _storage_utils, filesystem

from cairn.dcp import Reader, Writer
from dcp_names import is_path, run_of

_saves = {}  # path -> saves of this process; the ranks save together, so all count alike


class FileSystemWriter(Writer):
    def __init__(self, path, *_, **__):
        super().__init__(run_of(path), step=1)
        self.path = os.fspath(path)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return is_path(checkpoint_id)

    @property
    def checkpoint_id(self):
        return None  # the run and the step say it all

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)
            self._run_url = run_of(self.path)
        super().reset(None)

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        self._step = _saves[self.path] = _saves.get(self.path, 0) + 1
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)


class FileSystemReader(Reader):
    def __init__(self, path, *_, **__):
        super().__init__(run_of(path), resume=False, cast=True)  # as DCP casts

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return is_path(checkpoint_id)

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self._run_url = run_of(checkpoint_id)
        super().reset(None)


for _module in (dcp, _storage_utils, filesystem):
    _module.FileSystemWriter, _module.FileSystemReader = FileSystemWriter, FileSystemReader
