# SPDX-License-Identifier: Apache-2.0
"""The files of torch_checkpointing in a run: its Storage plug-in, for the package's own CheckpointManager.

The package writes its files into ``tmp_step-100`` and renames that folder when all ranks are through. The files are those of
cairn.fs, and the rename is the commit: of all ranks at once, verified and durable. The package writes in processes of its own,
which have no process group; so the configuration takes the address of the group's store along.
"""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path
from typing import Any, Optional, Union

from torch import distributed as dist
from torch_checkpointing.storage import base_storage

from ..doors import tell_restored
from ..errors import InvalidError
from ..fs import CairnFileSystem, ranks
from ..fs.paths import joined, place_to_read, strip
from ..names import checkpoint_name, run_of

_PIECE = 16 << 20  # bytes of one read, when a whole file is read into memory of the package's own
_asked = itertools.count()  # calls of ``latest``; the ranks call alike


class StorageConfig(base_storage.StorageConfig):
    """Where a CheckpointManager stores, that of the package or Cairn's: a run of Cairn.

    Args:
        url: The URL of the run. A checkpoint's id is its name in the run, such as "step-100", or that URL with the name behind it.
        **options: As for cairn.Client.

    Raises:
        InvalidError: The URL names no run, or something in a run.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self.url = run_of(url)
        self.options = options
        self._meeting_point: Optional[tuple] = None

    def __getstate__(self) -> dict:
        """Takes along where the ranks meet, since the process that this goes to has no process group."""
        return {**self.__dict__, "_meeting_point": self._meeting_point or ranks.meeting_point()}

    def create_storage(self) -> "Storage":
        """Returns the storage. torch_checkpointing calls it, in each process that reads or writes."""
        if self._meeting_point is not None:
            ranks.meet_at(self._meeting_point)
        return Storage(self)

    def latest(self) -> Optional[str]:
        """Returns the id of the newest committed checkpoint, the same on all ranks, or None if the run is empty. Every rank calls it.

        Raises:
            CairnError: The server cannot be reached, or the id cannot be found out for another reason. All ranks raise it.
        """
        return ranks.ask_first(f"cairn.torch_checkpointing/{next(_asked)}", self._newest)

    def _newest(self) -> Optional[str]:
        rows = CairnFileSystem(**self.options).steps(self.url)
        return joined(rows[0][1], checkpoint_name(rows[0][0])) if rows else None


class Storage(base_storage.Storage):
    """The files of a run, for torch_checkpointing. StorageConfig.create_storage makes one.

    Args:
        config: The URL of the run, and the options of its file system.
    """

    def __init__(self, config: StorageConfig) -> None:
        self._fs = CairnFileSystem(**config.options)
        self._url, self._root = config.url, strip(config.url)
        self._read: set = {None}  # the steps of which something was read; None is a file that belongs to no checkpoint

    def _at(self, path: Union[Path, str]) -> str:
        """Returns the path of the file system. Path makes one slash of the two in an id that is a URL."""
        text, run = os.fspath(path), str(Path(self._url))
        if text == run or text.startswith(run + "/"):
            text = text[len(run):]
        elif text.startswith(("cairn:", "cairn+unix:")):
            raise InvalidError.of(f"{text!r} is not in the run {self._url} of this storage; "
                                  "give the checkpoint's name alone, such as step-100")
        return joined(self._root, text.strip("/")) if text.strip("/.") else self._root

    @property
    def mmap_fill_workers(self) -> int:
        """Reads at the same time, of a whole file."""
        return 2

    @property
    def mmap_fill_chunk_bytes(self) -> int:
        """Bytes of each of them."""
        return _PIECE

    def stream_read(self, path: Path, read_args: Optional[base_storage.ReadArgs] = None) -> Any:
        """Returns a file to read from; its whole content is in memory already unless ``read_args`` says otherwise."""
        at = self._at(path)
        file = io.BytesIO(self._fs.cat_file(at)) if read_args is None or read_args.pre_read_full_file else self._fs.open(at, "rb")
        place = place_to_read(at)
        if place.step not in self._read:
            self._read.add(place.step)
            tell_restored(place.run_url, place.step, 0, dist.get_rank() if dist.is_initialized() else 0)
        return file

    def stream_write(self, path: Path) -> io.IOBase:
        """Returns a file to write to. An exception in its ``with`` block discards it.

        Raises InvalidError if the path is not inside a checkpoint.
        """
        if not place_to_read(self._at(path)).inner:  # or a file such as step_0.pt would be a checkpoint by itself
            raise InvalidError.of(f"{os.fspath(path)!r}: the checkpoint has no step in its name; save it as step-100, for example")
        return self._fs.open(self._at(path), "wb")

    def write(self, path: Path, data: Any) -> None:
        """Writes a file."""
        with self.stream_write(path) as file:
            file.write(data)

    def delete(self, path: Path) -> None:
        """Removes a file of a checkpoint that is not committed."""
        self._fs.rm_file(self._at(path))

    def mkdir(self, path: Path, recursive: bool = True) -> None:
        """Makes a folder. It is there for this process alone, until there is a file in it."""
        if self._at(path) != self._root:
            self._fs.makedirs(self._at(path), exist_ok=True)

    def rmdir(self, path: Path) -> None:
        """Removes a folder with all in it. A committed checkpoint is forgotten, through the guard of retention."""
        self._fs.rm(self._at(path), recursive=True)

    def rename(self, src_path: Path, dst_path: Path, is_directory: bool = False, **_: Any) -> None:
        """Renames a file or a folder. The folder of a checkpoint is committed so, and this returns when it is durable.

        Raises:
            FileNotFoundError: There is nothing at ``src_path``.
            OSError: The destination is occupied: only a file onto a file takes its place.
            CairnError: The commit failed, and nothing of it is kept.
        """
        source, target = self._at(src_path), self._at(dst_path)
        if self._fs.is_checkpoint(source) and self._fs.is_checkpoint(target):
            if self._fs.is_taken(target):
                raise FileExistsError(f"{self._fs.unstrip_protocol(target)} is there already, and stays as it is; resume from it, or "
                                      "forget it with `cairn forget` before it is saved again")
            self._fs.mv(source, target)
            return
        is_folder = self._fs.info(source)["type"] == "directory"  # FileNotFoundError where there is nothing
        if self._fs.isdir(target) and not (is_folder and not self._fs.ls(target)):
            raise IsADirectoryError(f"{self._fs.unstrip_protocol(target)} is a folder, which cannot be replaced; remove it first")
        if is_folder and self._fs.isfile(target):
            raise FileExistsError(f"{self._fs.unstrip_protocol(target)} is a file, which a folder cannot replace; remove it first")
        for file in self._fs.find(source) if is_folder else [source]:
            self._fs.mv(file, target + file[len(source):])

    def ls(self, path: Path) -> list:
        """Returns the names in a folder."""
        return [name.rpartition("/")[2] for name in self._fs.ls(self._at(path), detail=False)]

    def exists(self, path: Path) -> bool:
        """Returns whether there is a file or a folder. The package asks for its temporary folder on every rank, when all have met
        and the first is about to rename it; the others wait here for the commit, so that no process ends before its files are
        durable, and every rank's save ends with the commit.
        """
        if self._fs.is_checkpoint(self._at(path)):
            self._fs.wait_for_ranks(self._at(path))
        return self._fs.exists(self._at(path))

    def getsize(self, path: Path) -> int:
        """Returns the size of a file in bytes. Raises FileNotFoundError if there is none."""
        return self._fs.info(self._at(path))["size"]

    def isdir(self, path: Path) -> bool:
        """Returns whether there is a folder."""
        return self._fs.isdir(self._at(path))

    def commit(self, path: Path) -> None:
        """Commits a checkpoint that was written in place, and returns when it is durable."""
        self._fs.seal(self._at(path))

    def remap_path(self, path: Path) -> str:
        """Returns the URL of a file or folder."""
        return self._fs.unstrip_protocol(self._at(path))


def commit(args: Any) -> None:
    """Commits a checkpoint that was written in place, without a temporary folder: the ``finalize_callback`` for one rank.

    Args:
        args: What torch_checkpointing gives to its callbacks.
    """
    args.storage.commit(args.path)
