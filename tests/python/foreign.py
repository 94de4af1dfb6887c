# SPDX-License-Identifier: Apache-2.0
"""Files of other programs, good and hostile, and readers of what was exported; for the tests of cairn and of cairn-convert."""

import enum
import io
import json
import os
import pickle
import struct
import zipfile

import numpy
import safetensors
import torch
import torch.distributed.checkpoint as dcp

from bed import assert_same, seed

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex32,
          torch.complex64, torch.complex128]


def random_tensor(dtype, *shape):
    """Random bits: NaNs of all kinds, denormals and infinities among them."""
    count = int(numpy.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    data = torch.randint(0, 256, (count,), dtype=torch.uint8)
    return (data & 1 if dtype == torch.bool else data).view(dtype).reshape(shape)


def sample_tensors():
    """Every type, and shapes without dimensions and without elements."""
    seed(3)
    found = {str(dtype)[6:]: random_tensor(dtype, 5, 7) for dtype in DTYPES}
    return {**found, "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4, dtype=torch.bfloat16),
            "large": random_tensor(torch.float32, 300, 1000), "β/ü.x": torch.arange(3)}


def read_npz(path, types=None):
    """Arrays as tensors; numpy has the types it lacks as V1, V2 ..."""
    loaded = numpy.load(path)
    names = json.loads(loaded["cairn.json"]) if "cairn.json" in loaded.files else {}
    out = {}
    for name in loaded.files:
        if name != "cairn.json":
            array = loaded[name]
            out[name] = (torch.frombuffer(bytearray(array.tobytes()), dtype=getattr(torch, names[name])).reshape(array.shape)
                         if name in names and array.size else torch.empty(array.shape, dtype=getattr(torch, names[name]))
                         if name in names else torch.from_numpy(array))
    return out


def read_dcp(path, like):
    state = {name: torch.empty_like(tensor) for name, tensor in like.items()}
    dcp.load(state, checkpoint_id=str(path), no_dist=True)
    return state


def read_safetensors(path):
    """Types that the format lacks are bytes, named in the metadata."""
    out = {}
    for file in sorted(path.glob("*.safetensors")):
        with safetensors.safe_open(file, "pt") as opened:
            metadata = opened.metadata() or {}
            for name in opened.keys():
                tensor, hidden = opened.get_tensor(name), metadata.get(f"cairn.dtype.{name}")
                if hidden:
                    tensor = tensor.reshape(-1).view(getattr(torch, hidden)).reshape(tensor.shape[:-1])
                out[name] = tensor
    return out


def readers(tmp_path, tensors):
    return {"torch": lambda d: torch.load(d / "model.pt", weights_only=True), "npz": lambda d: read_npz(d / "model.npz"),
            "safetensors": read_safetensors, "dcp": lambda d: read_dcp(d, tensors)}


def assert_exports(cli, convert, run, tmp_path, tensors, formats=("torch", "npz", "safetensors", "dcp")):
    for kind in formats:
        target = tmp_path / f"out-{kind}"
        (cli if kind == "safetensors" else convert)("export", run, "--to", target, "--format", kind)
        assert_same(dict(sorted(readers(tmp_path, tensors)[kind](target).items())), dict(sorted(tensors.items())))


class ByName(pickle.Pickler):
    """Pickles members of enums as Python 3.11.0 to 3.11.3 do (Debian 12 has 3.11.2): getattr(class, name)."""

    name = None  # in place of the member's own

    def reducer_override(self, value):
        return (getattr, (type(value), self.name or value.name)) if isinstance(value, enum.Enum) else NotImplemented


class Call:
    """Pickled as a call of getattr."""

    def __init__(self, arguments):
        self.arguments = arguments

    def __reduce__(self):
        return getattr, self.arguments


class Evil:
    def __reduce__(self):
        return os.system, ("touch executed",)


def torch_zip(pickled, **entries):
    data = io.BytesIO()
    with zipfile.ZipFile(data, "w") as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/version", "3\n")
        for name, content in entries.items():
            archive.writestr(f"archive/{name}", content)
    return data.getvalue()


def bad_safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data
