# SPDX-License-Identifier: Apache-2.0
"""DIR of an export: it appears when all of it is written and synced, and never in part."""

from __future__ import annotations

import errno
import os
import shutil
import sys
from typing import Any

from ..errors import CairnError, ExistsError, InvalidError, NotEmptyError
from .bundle import os_error

_ROOM = "free some room, or name another place"
_REMEDIES = {errno.ENOSPC: _ROOM, errno.EDQUOT: _ROOM, errno.EACCES: "name a place where you may write",
             errno.EPERM: "name a place where you may write", errno.EROFS: "name a place that is not mounted read-only",
             errno.ENAMETOOLONG: "name a shorter one", errno.EFBIG: "files may not be as large (ulimit -f, or the file system's limit)"}


def _sync(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Target:
    """A context manager: files go into ``partial``, which becomes DIR at the end, or is removed after an error."""

    def __init__(self, path: str) -> None:
        self.path = path.rstrip("/") or "/"
        self.partial = self.path + ".partial"

    def error(self, error: OSError) -> CairnError:
        return os_error(f"--to {self.path}", error, _REMEDIES.get(error.errno or 0, ""))

    def __enter__(self) -> "Target":
        try:
            if os.listdir(self.path):
                raise NotEmptyError.of(f"{self.path} is not empty; export into a directory that is absent or empty")
        except FileNotFoundError:
            pass
        except NotADirectoryError:
            raise NotEmptyError.of(f"{self.path} is not a directory; export into a directory that is absent or empty") from None
        except OSError as error:
            raise self.error(error) from None
        try:
            os.mkdir(self.partial, 0o700)
        except FileExistsError:
            raise ExistsError.of(f"{self.partial} is left from another export; remove it first") from None
        except (FileNotFoundError, NotADirectoryError):
            why = ("no directory can be created there; name one on a disk" if os.path.isdir(os.path.dirname(self.path) or ".")
                   else "the directory above it does not exist; create it first")
            raise InvalidError.of(f"--to {self.path}: {why}") from None
        except OSError as error:
            raise self.error(error) from None
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        try:
            if error is None:
                for name in os.listdir(self.partial):
                    _sync(os.path.join(self.partial, name))
                _sync(self.partial)
                os.rename(self.partial, self.path)  # replaces an empty directory, nothing else
                _sync(os.path.dirname(self.path) or ".")
                return
        except OSError as failure:
            error = failure
        shutil.rmtree(self.partial, ignore_errors=True)
        if os.path.exists(self.partial):
            print(f"cairn-convert: {self.partial} stays behind: remove it", file=sys.stderr)
        if isinstance(error, OSError):
            raise self.error(error) from None
