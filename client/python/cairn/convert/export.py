# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as files of torch.save, a DCP directory or an npz archive.

Cairn restores into an unnamed file beside the result, which is mapped: memory stays bounded however large the checkpoint is,
and the disk needs room for it twice until the export has ended. Then the format's own library writes from the mapping.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import math
import mmap
import os
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from typing import Any, Optional

from .. import tree
from ..client import BYTES, DTYPES, LATEST, LOCAL, REPLICATED, TREE, Client, Local, Result
from ..errors import CairnError, DamagedError, IoError, MissingTensorError
from ..limits import NUMPY_NAMES
from .bundle import element_bytes
from .command import client, human, plural, selector, show
from .target import Target

_ALIGN = 64
_DEADLINE_S = 7 * 86400.0  # for as long as the server gives bytes
_STATE = "cairn.state"  # the tree that cairn.torch.Checkpointer saves


@dataclass
class Item:
    """What is exported: a tensor and the place of its bytes in the mapping, or a blob's bytes. ``tied`` is the item with
    the same bytes under another name."""

    name: str
    entry: Local
    tied: Optional["Item"] = None
    offset: int = 0
    blob: Optional[bytes] = None


def _find(viewer: Client, text: str) -> tuple:
    """Returns the result of a restore that names the checkpoint, all its entries, and the other names of its tied tensors.

    Raises NotFoundError if there is no such checkpoint, and DamagedError if ``latest`` would be an older one because the newest
    is damaged or lost.
    """
    step, term = selector(text)
    viewer.set_blobs([(_STATE, TREE, tree.encode(None), REPLICATED, None)])
    op = viewer.restore(step, term=term, allow_older=False, strict=False, only=(_STATE,), deadline=_DEADLINE_S)
    found: Result = op.result()
    rows = viewer.list() if step == LATEST else []
    mine = next((row for row in rows if (row.term, row.step) == (found.term, found.step)), None)
    if (step == LATEST and found.fell_back) or any(
            row.health == "damaged" and not row.superseded and (mine is None or row.sequence > mine.sequence) for row in rows):
        raise DamagedError.of(f"the newest checkpoint is damaged or lost (cairn status, cairn ls); name the newest good one, "
                              f"{found.step}@{found.term}")
    entries = op.entries()
    return found, entries, _tied(op.blob(_STATE)) if any(entry.name == _STATE for entry in entries) else {}


def _tied(data: bytes) -> dict:
    """The other names of tied tensors, by the name under which Checkpointer has stored them."""
    root, names = tree.decode(data, deferred=True), {}
    for key, part in root["parts"].items() if type(root) is dict and type(root.get("parts")) is dict else ():
        for name, first in part.get("aliases", {}).items():
            names.setdefault(f"{key}.{first}", []).append(f"{key}.{name}")
    return names


def _choose(args: argparse.Namespace, entries: list, tied: dict) -> tuple:
    """The items, and how many were left out. Bytes that torch.save made go back into a DCP directory; other blobs fit no
    format."""
    items: list = []
    left_out = 0
    for entry in entries:
        names = [name for name in (entry.name, *(() if entry.coordinate else tied.get(entry.name, ())))
                 if not args.only or any(fnmatch.fnmatchcase(name, pattern) for pattern in args.only)]
        if not names:
            continue
        if (entry.coordinate and not args.local) or (entry.kind and not (args.format == "dcp" and entry.kind == BYTES)):
            left_out += 1
            continue
        items.append(Item(names[0] + (f"@{entry.coordinate}" if entry.coordinate else ""), entry))
        items += [Item(name, entry, items[-1]) for name in names[1:]]
    if not items:
        raise MissingTensorError.of("the checkpoint has nothing to export" + (" that matches --only" if args.only else ""))
    return items, left_out


def _room(items: list, folder: str) -> Any:
    """A mapping with a place for each tensor, over an unnamed file that has its room already: no write to it can fail."""
    size = 0
    for item in items:
        if item.tied is not None:
            item.offset = item.tied.offset
            continue
        item.offset = size
        size += (item.entry.plain_bytes if item.entry.kind == 0 else 0) + -item.entry.plain_bytes % _ALIGN
    with tempfile.TemporaryFile(dir=folder) as file:
        os.posix_fallocate(file.fileno(), 0, max(size, 1))
        return mmap.mmap(file.fileno(), max(size, 1))


def _fill(args: argparse.Namespace, viewer: Client, found: Result, items: list, room: Any) -> None:
    import ctypes
    start = ctypes.addressof(ctypes.c_char.from_buffer(room))
    rows = []
    for item in items:
        entry = item.entry
        if entry.kind == 0 and item.tied is None:
            rows.append((entry.name, DTYPES[str(entry.dtype)], entry.shape, start + item.offset if entry.plain_bytes else 0, None, room,
                         LOCAL if entry.coordinate else REPLICATED, entry.coordinate or None, None, None))
    viewer.set_tensors(rows)
    op = viewer.restore(found.step, term=found.term, allow_older=False, all_local=args.local, deadline=_DEADLINE_S)
    op.result()
    for item in items:
        if item.entry.kind:
            item.blob = op.blob(item.entry.name, item.entry.coordinate)
    viewer.set_tensors([])


# --- the writers: each gets (name, dtype, shape, offset) of what lies in the mapping -------------------------------------


def _tensors(items: list, room: Any) -> dict:
    import torch
    from .torch_file import NAMES
    types = {name: dtype for dtype, name in NAMES.items()}
    found = {}
    for item in items:
        entry = item.entry
        if entry.kind:
            continue
        if item.tied is not None:
            found[item.name] = found[item.tied.name]
            continue
        dtype = types.get(str(entry.dtype))
        if dtype is None:
            raise IoError.of(f"{item.name}: PyTorch {torch.__version__} has no type {entry.dtype}; install a newer PyTorch")
        found[item.name] = (torch.frombuffer(room, dtype=torch.uint8, count=entry.plain_bytes, offset=item.offset).view(dtype)
                            .reshape(entry.shape) if entry.plain_bytes else torch.empty(entry.shape, dtype=dtype, device="cpu"))
    return found


def _write_torch(target: Target, items: list, room: Any) -> None:
    import torch
    with open(os.path.join(target.partial, "model.pt"), "xb") as file:
        torch.save(_tensors(items, room), file)


def _write_npz(target: Target, items: list, room: Any) -> None:
    import numpy
    from .npz_file import TYPES_ENTRY
    types = {}
    with zipfile.ZipFile(os.path.join(target.partial, "model.npz"), "x") as archive:
        for item in items:
            entry = item.entry
            name = str(entry.dtype)
            dtype = numpy.dtype(name if name in NUMPY_NAMES else f"V{element_bytes(name)}")
            if name not in NUMPY_NAMES:
                types[item.name] = name
            array = numpy.frombuffer(room, dtype, math.prod(entry.shape), item.offset).reshape(entry.shape)
            with archive.open(zipfile.ZipInfo(f"{item.name}.npy"), "w", force_zip64=True) as stream:
                numpy.lib.format.write_array(stream, array, allow_pickle=False)
        if types:
            archive.writestr(zipfile.ZipInfo(TYPES_ENTRY), json.dumps(types))


def _write_dcp(target: Target, items: list, room: Any) -> None:
    import io
    import torch.distributed.checkpoint as dcp

    class Planner(dcp.DefaultSavePlanner):
        """Writes the bytes of an object as they are."""

        def transform_object(self, write_item: Any, value: Any) -> Any:
            return io.BytesIO(value.blob) if isinstance(value, Item) else super().transform_object(write_item, value)

    state = {**_tensors(items, room), **{item.name: item for item in items if item.entry.kind}}
    dcp.save(state, storage_writer=dcp.FileSystemWriter(target.partial), planner=Planner(), no_dist=True)


_WRITERS = {"torch": _write_torch, "npz": _write_npz, "dcp": _write_dcp}


def _cause(error: BaseException) -> Optional[OSError]:
    """The operating system's error behind one of a library: PyTorch wraps it, or says something else after it."""
    seen: list = [error]
    for at in seen:
        if isinstance(at, OSError):
            return at
        more = [at.__cause__, at.__context__, *(pair[0] for pair in getattr(at, "failures", {}).values())]
        seen.extend(item for item in more if isinstance(item, BaseException) and item not in seen)
    return None


def _write(args: argparse.Namespace, viewer: Client, found: Result, items: list) -> None:
    with Target(args.to) as target:
        try:
            room = _room(items, target.partial)
            _fill(args, viewer, found, items, room)
            _WRITERS[args.format](target, items, room)
        except (CairnError, KeyboardInterrupt):
            raise
        except BaseException as error:  # DCP's CheckpointException is one
            sys.unraisablehook = lambda _: None  # PyTorch's streams, when they are dropped, complain of the same error again
            cause = _cause(error)
            raise (target.error(cause) if cause is not None
                   else IoError.of(f"--to {target.path}: {type(error).__name__}: {str(error)[:300]}")) from error


def export(args: argparse.Namespace) -> None:
    """Writes the files and says so."""
    with client(args, read_only=True) as viewer:
        found, entries, tied = _find(viewer, args.checkpoint)
        items, left_out = _choose(args, entries, tied)
        if not args.dry_run:
            _write(args, viewer, found, items)
    size = sum(item.entry.plain_bytes for item in items if item.tied is None)
    name = f"{found.step}@{found.term}"
    if left_out and not args.json:
        print(f"cairn-convert: {left_out} left out: what belongs to ranks (--local), and blobs", file=sys.stderr)
    show(args, {"checkpoint": {"step": found.step, "term": found.term}, "to": args.to, "format": args.format, "dry_run": args.dry_run,
                "exported": len(items), "left_out": left_out, "plain_bytes": size},
         f"{'would export' if args.dry_run else 'exported'} {name}: {plural(len(items), 'tensor')}, {human(size)}, "
         f"{'would go to' if args.dry_run else 'are in'} {args.to} ({args.format})")
