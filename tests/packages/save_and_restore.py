# SPDX-License-Identifier: Apache-2.0
"""What an installed package does for a program: one save and one restore over the server of CAIRN_SERVER, the entry points of
the package, and where its libraries come from. Needs cairn and fsspec alone."""

import array
import importlib.metadata
import pathlib
import re

import cairn
import fsspec
from cairn.client import DTYPES, REPLICATED


def row(data):
    """The row of `Client.set_tensors` for an array of floats."""
    address, count = data.buffer_info()
    return ("x", DTYPES["float32"], (count,), address, None, data, REPLICATED, None, None, None)


def main():
    saved, restored = array.array("f", range(1 << 16)), array.array("f", bytes(1 << 18))
    with cairn.Client("cairn:///packages/wheel") as client:
        client.set_tensors([row(saved)])
        client.save(7, metrics={"loss": 0.5}).result(30)
    with cairn.Client("cairn:///packages/wheel", read_only=True) as client:
        client.set_tensors([row(restored)])
        assert client.restore().result(30).step == 7
    assert restored == saved

    points = importlib.metadata.entry_points(group="fsspec.specs")
    assert {"cairn", "cairn+unix"} <= set(points.names), points
    assert fsspec.filesystem("cairn").ls("cairn:///packages/wheel", detail=False)

    folder = pathlib.Path(cairn.__file__).parent
    assert "build" not in folder.parts and folder.name == "cairn"
    maps = pathlib.Path("/proc/self/maps").read_text()
    mapped = set(re.findall(r"(/\S+/(lib(?:uv|protobuf-c|isal|xxhash|zstd)[-.]\S+))", maps))
    assert len(mapped) == 5, mapped
    outside = [path for path, _ in mapped if folder.parent / "cairn.libs" not in pathlib.Path(path).parents]
    assert not outside, f"these libraries are not the wheel's own: {outside}"
    print(f"cairn {cairn.__version__}: saved and restored, with its own {len(mapped)} libraries")


main()
