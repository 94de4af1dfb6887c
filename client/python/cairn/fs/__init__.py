# SPDX-License-Identifier: Apache-2.0
"""cairn.fs: whatever takes a path takes Cairn, through fsspec: ``cairn://host:port/project/run/step-100/file``.

    with fsspec.open("cairn://host:7421/project/run/step-100/model.bin", "wb") as f:
        f.write(data)
    cairn.fs.seal("cairn://host:7421/project/run/step-100")       # now it is a checkpoint

Registered under fsspec's entry points, so ``fsspec.open`` and the like find it by the URL.
"""

from __future__ import annotations

from .filesystem import CairnFileSystem, seal

__all__ = ["CairnFileSystem", "seal"]
