# SPDX-License-Identifier: Apache-2.0
"""DCP's FileSystemWriter and FileSystemReader by name, DCP's own file writer on a path cairn:// by nature: as dcp_writer.py, for the
door of paths. A folder is a step of a run of its own; what is written again is a newer version of it.
"""

import os

import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import _storage_utils, filesystem
from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader, FsspecWriter

from dcp_names import is_path, run_of


def url_of(path):
    return f"{run_of(path)}/step-1" if is_path(path) else os.fspath(path)


class _ByUrl:
    """What the writer and the reader do alike: a folder becomes a URL."""

    def __init__(self, path, *args, **options):
        super().__init__(url_of(path), *args, **options)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return is_path(checkpoint_id)

    def reset(self, checkpoint_id=None):
        super().reset(None if checkpoint_id is None else url_of(checkpoint_id))


class FileSystemWriter(_ByUrl, FsspecWriter):
    pass


class FileSystemReader(_ByUrl, FsspecReader):
    pass


for _module in (dcp, _storage_utils, filesystem):
    _module.FileSystemWriter, _module.FileSystemReader = FileSystemWriter, FileSystemReader
