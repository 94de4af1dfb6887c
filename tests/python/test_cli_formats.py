# SPDX-License-Identifier: Apache-2.0
"""cairn import and export against the real programs: files that PyTorch, NumPy and safetensors wrote become
checkpoints, and the exports are read by them again, bit for bit, in every type; hostile files are named errors."""

import collections
import enum
import io
import json
import os
import pathlib
import pickle
import random
import struct
import subprocess
import sys
import zipfile

import numpy
import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp

from bed import assert_same, seed

CAIRN = pathlib.Path(os.environ["CAIRND"]).with_name("cairn")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.uint8, torch.int8, torch.int16,
          torch.int32, torch.int64, torch.bool, torch.uint16, torch.uint32, torch.uint64, torch.float8_e4m3fn,
          torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz, torch.float8_e8m0fnu, torch.complex32,
          torch.complex64, torch.complex128]


def random_tensor(dtype, *shape):
    """Random bits: NaNs of all kinds, denormals and infinities among them."""
    count = int(numpy.prod(shape)) * torch.empty((), dtype=dtype).element_size()
    data = torch.randint(0, 256, (count,), dtype=torch.uint8)
    return (data & 1 if dtype == torch.bool else data).view(dtype).reshape(shape)


@pytest.fixture
def tensors():
    seed(3)
    found = {str(dtype)[6:]: random_tensor(dtype, 5, 7) for dtype in DTYPES}
    return {**found, "scalar": torch.tensor(3.5), "empty": torch.empty(0, 4, dtype=torch.bfloat16),
            "large": random_tensor(torch.float32, 300, 1000), "β/ü.x": torch.arange(3)}


@pytest.fixture
def cli(daemon, tmp_path):
    def call(*words, check=0):
        done = subprocess.run([CAIRN, *map(str, words)], stdin=subprocess.DEVNULL, capture_output=True, timeout=120,
                              env={**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}"}, cwd=tmp_path, check=False)
        assert done.returncode == check, (words, done.stdout.decode(), done.stderr.decode())
        return done.stdout.decode() if check == 0 else done.stderr.decode()
    return call


@pytest.fixture
def run(request):
    return f"formats/{request.node.name.replace('[', '-').replace(']', '')}"


def dry_import(run, folder, *words):
    """One that may fail, but not break: (exit status, stderr)."""
    done = subprocess.run([CAIRN, "import", run, *words, "--dry-run"], cwd=folder, capture_output=True, timeout=60,
                          stdin=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, 1, 2, 6), (words, done.returncode, done.stderr)
    assert b"Sanitizer" not in done.stderr and b"runtime error" not in done.stderr, done.stderr
    assert (done.returncode == 0) == (done.stderr == b""), done.stderr
    return done.returncode, done.stderr


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


def assert_exports(cli, run, tmp_path, tensors, formats=("torch", "npz", "safetensors", "dcp")):
    for kind in formats:
        target = tmp_path / f"out-{kind}"
        cli("export", run, "--to", target, "--format", kind)
        assert_same(dict(sorted(readers(tmp_path, tensors)[kind](target).items())), dict(sorted(tensors.items())))


def test_torch_file_comes_back_in_every_format(cli, run, tmp_path, tensors):
    torch.save(tensors, tmp_path / "m.pt")
    cli("import", run, "m.pt", "--step", 7, "--tag", "imported")
    assert "7@1" in cli("ls", run)
    assert_exports(cli, run, tmp_path, tensors)
    cli("verify", run)
    for number, kind in enumerate(("torch", "npz", "safetensors", "dcp")):  # and what was exported is imported again
        source = {"torch": "model.pt", "npz": "model.npz", "safetensors": "model.safetensors", "dcp": ""}[kind]
        again = f"{run}-again-{kind}"
        cli("import", again, tmp_path / f"out-{kind}" / source, "--step", number + 1)
        target = tmp_path / f"again-{kind}"
        cli("export", again, "--to", target, "--format", "torch")
        assert_same(dict(sorted(torch.load(target / "model.pt").items())), dict(sorted(tensors.items())))


def test_safetensors_and_shards(cli, run, tmp_path, tensors):
    plain = {name: t for name, t in tensors.items() if not t.is_complex()}
    safetensors.torch.save_file(plain, tmp_path / "m.safetensors", metadata={"format": "pt"})
    cli("import", run, "m.safetensors")
    cli("export", run, "--to", "out", "--max-shard-size", "4KiB")
    index = json.loads((tmp_path / "out" / "model.safetensors.index.json").read_text())
    assert set(index["weight_map"]) == set(plain) and len(set(index["weight_map"].values())) > 1
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in plain.values())
    for name, file in index["weight_map"].items():
        with safetensors.safe_open(tmp_path / "out" / file, "pt") as opened:
            assert name in opened.keys()
    cli("import", f"{run}-set", "out")
    assert_exports(cli, f"{run}-set", tmp_path, plain, ("safetensors", "torch"))
    index["weight_map"]["scalar"] = "../out/" + index["weight_map"]["scalar"]
    (tmp_path / "out" / "model.safetensors.index.json").write_text(json.dumps(index))
    assert "FORMAT" in cli("import", f"{run}-bad", "out", check=6)


def test_a_set_of_many_tensors(cli, run, tmp_path):
    """An index as large models have it, in no order: looked up, not searched through."""
    count, shards = 40000, 37
    names = [f"model.layers.{i % 97}.experts.{i}.w" for i in range(count)]
    (tmp_path / "set").mkdir()
    for shard in range(shards):
        mine = names[shard::shards]
        header = {name: {"dtype": "U8", "shape": [1], "data_offsets": [i, i + 1]} for i, name in enumerate(mine)}
        (tmp_path / "set" / f"m-{shard}.safetensors").write_bytes(bad_safetensors(header, b"x" * len(mine)))
    where = {name: f"m-{i % shards}.safetensors" for i, name in enumerate(names)}
    index = tmp_path / "set" / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert f"{count} tensors" in cli("import", run, "set", "--dry-run")
    last = names[-1]
    for change, words in (({last: where[names[0]]}, "which the index does not say"), ({"one.more": where[last]}, "the index names"),
                          ({last: "../m-1.safetensors"}, "a file for"), ({last: "/etc/passwd"}, "a file for")):
        index.write_text(json.dumps({"weight_map": {**where, **change}}))
        assert words in cli("import", run, "set", "--dry-run", check=6)


def test_what_repeats_without_end(cli, run, tmp_path):
    """A kilobyte must not become a terabyte in the store; a view of a usual size is what it is."""
    torch.save({"a": torch.zeros(1).expand(1 << 20)}, tmp_path / "fine.pt")
    assert "4.00 MiB" in cli("import", run, "fine.pt", "--dry-run")
    torch.save({"a": torch.zeros(1).expand(1 << 38)}, tmp_path / "bomb.pt")
    for words in (("--dry-run",), ()):
        assert "repeat the same bytes" in cli("import", run, "bomb.pt", *words, check=1)
    cli("ls", run, check=4)


def test_broken_compression(run, tmp_path):
    """Any byte of a compressed archive flipped, or its end cut off: good, or a named error; memory stays bounded."""
    numpy.savez_compressed(tmp_path / "good.npz", a=numpy.arange(4000.0), b=numpy.zeros(300000))
    good = (tmp_path / "good.npz").read_bytes()
    assert dry_import(run, tmp_path, "good.npz")[0] == 0
    rng = random.Random(5)
    for number in range(40):
        bad = bytearray(good)
        if number < 35:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        else:
            del bad[rng.randrange(len(bad)):]
        (tmp_path / "bad.npz").write_bytes(bad)
        dry_import(run, tmp_path, "bad.npz")
    # The data of an entry, for certain: its crc tells.
    bad = bytearray(good)
    bad[200] ^= 4
    (tmp_path / "bad.npz").write_bytes(bad)
    assert dry_import(run, tmp_path, "bad.npz")[0] == 6
    # What is said to become larger than deflate can make it is not even begun.
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"x" * 1000)
    bomb = (tmp_path / "bomb.npz").read_bytes()
    (tmp_path / "bomb.npz").write_bytes(bomb.replace(struct.pack("<I", 1000), struct.pack("<I", 0xf0000000)))
    status, err = dry_import(run, tmp_path, "bomb.npz")
    assert status == 6 and b"so much of so little" in err


def test_entries_that_overlap(run, tmp_path):
    numpy.savez(tmp_path / "two.npz", a=numpy.arange(64), b=numpy.arange(64))
    data = bytearray((tmp_path / "two.npz").read_bytes())
    second = data.rindex(b"PK\x01\x02")  # of the directory: make it point at the first entry's bytes
    data[second + 42:second + 46] = struct.pack("<I", 0)
    (tmp_path / "two.npz").write_bytes(data)
    status, err = dry_import(run, tmp_path, "two.npz")
    assert status == 6 and b"overlap" in err


def test_npz(cli, run, tmp_path, tensors):
    arrays = {name: t.numpy() for name, t in tensors.items()
              if t.dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)}
    arrays["fortran"] = numpy.asfortranarray(numpy.arange(24.0).reshape(2, 3, 4))
    numpy.savez(tmp_path / "m.npz", **arrays)
    cli("import", run, "m.npz")
    assert_exports(cli, run, tmp_path, {name: torch.from_numpy(numpy.ascontiguousarray(a)).reshape(a.shape)
                                        for name, a in arrays.items()}, ("npz", "torch"))
    numpy.savez_compressed(tmp_path / "c.npz", **arrays)
    cli("import", f"{run}-c", "c.npz")
    (tmp_path / "c").mkdir()
    assert_exports(cli, f"{run}-c", tmp_path / "c",
                   {name: torch.from_numpy(numpy.ascontiguousarray(a)).reshape(a.shape) for name, a in arrays.items()},
                   ("npz",))
    with zipfile.ZipFile(tmp_path / "bz.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(tmp_path / "c.npz", "a.npy")
    assert "compressed in way 12" in cli("import", f"{run}-z", "bz.npz", check=2)
    numpy.savez(tmp_path / "object.npz", a=numpy.array([{}], dtype=object))
    assert "objects are pickles" in cli("import", f"{run}-o", "object.npz", check=2)
    numpy.savez(tmp_path / "big.npz", a=numpy.arange(3, dtype=">i4"))
    assert "'>i4'" in cli("import", f"{run}-b", "big.npz", check=2)


def test_state_of_a_training(cli, run, tmp_path):
    """Optimizer, views, ties, parameters, and what is no tensor."""
    seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 6))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach().t())  # a view of the same storage
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3, "name": "ü", "none": None,
             "flag": True, "big": 2**80, "negative": -(2**70), "lr": 0.1, "bytes": b"\x00\xff\x80", "dtype": torch.bfloat16,
             "size": torch.Size([1, 2]), "list": [1, (2, torch.arange(10)[2:8:2])], "param": torch.nn.Parameter(torch.ones(2)),
             "ordered": collections.OrderedDict(b=1, a=2), 5: "five"}
    torch.save(state, tmp_path / "m.pt")
    cli("import", run, "m.pt")
    cli("export", run, "--to", "out", "--format", "torch")
    loaded = torch.load(tmp_path / "out" / "model.pt")
    expected = {f"model.{name}": t for name, t in model.state_dict().items()}
    expected.update({f"optim.state.{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()})
    expected.update({"list.1.1": torch.arange(10)[2:8:2], "param": torch.ones(2)})
    assert_same(dict(sorted(loaded.items())), dict(sorted(expected.items())))
    cli("restore", run, "--to", "files", "--only", "torch.state")
    tree = json.loads((tmp_path / "files" / "torch.state.json").read_text())
    text = json.dumps(tree)
    assert str(2**80) in text and "torch.bfloat16" not in text and '"bfloat16"' in text and "list.1.1" in text


def test_dcp_of_two_ranks(cli, run, tmp_path):
    """Rectangles from two files come together."""
    worker = """
import os, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import distribute_tensor, Shard
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
mesh = init_device_mesh("cpu", (2,))
whole = torch.arange(7 * 5, dtype=torch.float64).reshape(7, 5)
dcp.save({"rows": distribute_tensor(whole, mesh, [Shard(0)]), "columns": distribute_tensor(whole, mesh, [Shard(1)]),
          "same": whole.bfloat16(), "epoch": 4, "nested": {"text": "x"}}, checkpoint_id=f"{folder}/dcp")
dist.barrier()
os._exit(0)  # the files are there; PyTorch's threads sometimes abort a process that ends in order
"""
    workers = [subprocess.Popen([sys.executable, "-c", worker, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [process.wait(90) for process in workers] == [0, 0]
    cli("import", run, "dcp")
    whole = torch.arange(7 * 5, dtype=torch.float64).reshape(7, 5)
    expected = {"rows": whole, "columns": whole, "same": whole.bfloat16()}
    assert_exports(cli, run, tmp_path, expected, ("torch", "dcp"))
    state = {"epoch": 0, "nested.text": ""}
    dcp.load(state, checkpoint_id=str(tmp_path / "out-dcp"), no_dist=True)
    assert state == {"epoch": 4, "nested.text": "x"}  # blobs of a DCP directory go back as they came


def test_dcp_of_many_rectangles(cli, run, tmp_path):
    """As of a large job: more rectangles than a process may have mappings, found by their order."""
    meta, fs = sys.modules["torch.distributed.checkpoint.metadata"], sys.modules["torch.distributed.checkpoint.filesystem"]
    count = 70000
    archive = io.BytesIO()
    torch.save(torch.ones(1), archive)
    (tmp_path / "dcp").mkdir()
    for rank in range(7):
        (tmp_path / "dcp" / f"__{rank}_0.distcp").write_bytes(archive.getvalue())
    whole = meta.TensorStorageMetadata(
        properties=meta.TensorProperties(dtype=torch.float32), size=torch.Size([count]),
        chunks=[meta.ChunkStorageMetadata(offsets=torch.Size([i]), sizes=torch.Size([1])) for i in range(count)])
    places = {meta.MetadataIndex("w", torch.Size([i]), i): fs._StorageInfo(f"__{i % 7}_0.distcp", 0, len(archive.getvalue()))
              for i in range(count)}
    write = lambda: (tmp_path / "dcp" / ".metadata").write_bytes(pickle.dumps(meta.Metadata({"w": whole}, storage_data=places)))
    write()
    assert "1 tensors" in cli("import", run, "dcp", "--dry-run")
    del places[meta.MetadataIndex("w", torch.Size([4711]), 4711)]
    write()
    assert "no place for it" in cli("import", run, "dcp", "--dry-run", check=6)
    places[meta.MetadataIndex("w", torch.Size([4711]), 4711)] = fs._StorageInfo("../dcp/__0_0.distcp", 0, 1)
    write()
    assert "no place for it" in cli("import", run, "dcp", "--dry-run", check=6)


class ByName(pickle.Pickler):
    """Pickles members of enums as Python 3.11.0 to 3.11.3 do (Debian 12 has 3.11.2): getattr(class, name)."""

    name = None  # in place of the member's own

    def reducer_override(self, value):
        return (getattr, (type(value), self.name or value.name)) if isinstance(value, enum.Enum) else NotImplemented


def test_dcp_with_enums_by_name(cli, run, tmp_path, monkeypatch):
    """As older Pythons wrote them. Of getattr nothing else is read."""
    meta, fs = sys.modules["torch.distributed.checkpoint.metadata"], sys.modules["torch.distributed.checkpoint.filesystem"]
    archive = io.BytesIO()
    torch.save(torch.ones(3), archive)
    (tmp_path / "dcp").mkdir()
    (tmp_path / "dcp" / "__0_0.distcp").write_bytes(archive.getvalue())
    chunk = meta.ChunkStorageMetadata(offsets=torch.Size([0]), sizes=torch.Size([3]))
    place = fs._StorageInfo("__0_0.distcp", 0, len(archive.getvalue()))

    def write(memory_format=torch.contiguous_format, planner_data=None):
        whole = meta.TensorStorageMetadata(
            properties=meta.TensorProperties(dtype=torch.float32, memory_format=memory_format), size=torch.Size([3]),
            chunks=[chunk])
        with open(tmp_path / "dcp" / ".metadata", "wb") as file:
            ByName(file).dump(meta.Metadata({"w": whole}, planner_data=planner_data,
                                            storage_data={meta.MetadataIndex("w", torch.Size([0]), 0): place}))

    for memory_format in (torch.channels_last, torch.preserve_format, torch.contiguous_format):
        write(memory_format)
        assert b"getattr" in (tmp_path / "dcp" / ".metadata").read_bytes()
        assert "1 tensors" in cli("import", run, "dcp", "--dry-run")
    cli("import", run, "dcp")
    assert_exports(cli, run, tmp_path, {"w": torch.ones(3)}, ("torch",))

    for name in ("__class__", "mro", "TORCH_CONTIGUOUS_FORMA", "TORCH_CONTIGUOUS_FORMAT.name", "x" * 300):
        monkeypatch.setattr(ByName, "name", name)
        write()
        assert "calls builtins.getattr" in cli("import", run, "dcp", "--dry-run", check=2), name
    monkeypatch.undo()
    for arguments in ((meta.Metadata, "__init__"), (meta._MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST", None), (),
                      (meta._MEM_FORMAT_ENCODING,), ("text", "upper"), ({}, "pop"), (torch.Size, "__new__")):
        write(planner_data=Call(arguments))
        assert "calls builtins.getattr" in cli("import", run, "dcp", "--dry-run", check=2), arguments
    torch.save({"x": Call((meta._MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"))}, tmp_path / "m.pt")
    assert "getattr, which is not among the few names" in cli("import", run, "m.pt", "--dry-run", check=2)


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
        for name, content in entries.items():
            archive.writestr(f"archive/{name}", content)
    return data.getvalue()


def test_pickles_are_never_run(cli, run, tmp_path):
    for number, state in enumerate(({"x": Evil()}, Evil(), {"x": [Evil()]})):
        torch.save(state, tmp_path / "m.pt")
        assert "posix.system" in cli("import", run, "m.pt", "--dry-run", check=2)
        (tmp_path / f"dcp{number}").mkdir(exist_ok=True)
        (tmp_path / f"dcp{number}" / ".metadata").write_bytes(pickle.dumps(state))
        assert "posix.system" in cli("import", run, f"dcp{number}", "--dry-run", check=2)
    torch.save({}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "bare pickle" in cli("import", run, "old.pt", check=2)
    assert not (tmp_path / "executed").exists()


def test_hostile_pickles(cli, run, tmp_path):
    deep = b"\x80\x02" + b"]" * 200 + b"a" * 199 + b"."
    cycle = b"\x80\x02]q\x00h\x00a."
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(40)) + b"."
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ"
    outside = b"\x80\x02" + tensor + b"K\x01(K\x04t(K\x01t\x89)R."
    negative = b"\x80\x02" + tensor + b"K\x00(K\x04t(J\xff\xff\xff\xfft\x89)tR."
    far = b"\x80\x02" + tensor + b"K\x01(K\x04t(K\x01t\x89)tR."
    huge = b"\x80\x02" + tensor + b"K\x00(\x8a\x08" + struct.pack("<q", 2**62) + b"K\x08t(K\x00K\x00t\x89)tR."
    cases = {"deep": (deep, 1), "cycle": (cycle, 1), "laughs": (laughs, 6), "outside": (outside, 6),
             "negative": (negative, 6), "far": (far, 6), "huge": (huge, None), "empty": (b"", 6), "stop": (b".", 6),
             "mark": (b"t.", 6), "memo": (b"h\x05.", 6), "memory": (b"X\xff\xff\xff\x7fabc.", 6), "two": (b"NN.", 6),
             "long": (b"\x8b\xff\xff\xff\xff.", 6), "instance": (b"(ios\nsystem\n.", 2)}
    for name, (pickled, status) in cases.items():
        (tmp_path / "m.pt").write_bytes(torch_zip(pickled, **{"data/0": b"\0" * 16}))
        found, err = dry_import(run, tmp_path, "m.pt")
        assert found in ((status,) if status else (1, 2, 6)), (name, found, err)


def test_broken_files(cli, run, tmp_path, tensors):
    """Cut off anywhere, a bit flipped anywhere: read, or a named error; never a signal."""
    small = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save({**small, "x": [1, "y"]}, tmp_path / "m.pt")
    safetensors.torch.save_file(small, tmp_path / "m.safetensors")
    numpy.savez(tmp_path / "m.npz", a=numpy.arange(3))
    chance = random.Random(1)
    for name in ("m.pt", "m.safetensors", "m.npz"):
        good = (tmp_path / name).read_bytes()
        kind = {"m.pt": "torch", "m.safetensors": "safetensors", "m.npz": "npz"}[name]
        variants = [good[:chance.randrange(len(good))] for _ in range(15)]
        for _ in range(35):
            changed = bytearray(good)
            for _ in range(chance.choice((1, 1, 3))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            variants.append(bytes(changed))
        for variant in variants:
            (tmp_path / f"v-{name}").write_bytes(variant)
            dry_import(run, tmp_path, f"v-{name}", "--format", kind)


def bad_safetensors(header, data=b""):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def test_rules_of_safetensors(cli, run, tmp_path):
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
    cases = [b"", b"\0" * 7, struct.pack("<Q", 2**63) + b"{}", bad_safetensors(b" {}"), bad_safetensors(b"[]"),
             bad_safetensors({"a": entry}), bad_safetensors({"a": entry}, b"\0" * 9),
             bad_safetensors({"a": {**entry, "shape": [3]}}, b"\0" * 8), bad_safetensors({"a": {**entry, "dtype": "F16"}}, b"\0" * 8),
             bad_safetensors({"a": {**entry, "data_offsets": [1, 9]}}, b"\0" * 9),
             bad_safetensors({"a": entry, "b": entry}, b"\0" * 8), bad_safetensors({"a": {**entry, "shape": [2.0]}}, b"\0" * 8),
             bad_safetensors({"a": {**entry, "shape": [-2]}}, b"\0" * 8), bad_safetensors({"a": {**entry, "shape": [2**62, 8]}}, b"\0" * 8),
             bad_safetensors({"__metadata__": {"a": 1}}), bad_safetensors(b'{"a":1,"a":2}'), bad_safetensors(b'{"\xff":1}'),
             bad_safetensors(b"{" + b'"a":[' * 100 + b"]" * 100 + b"}"), bad_safetensors(b'{"a":{}')]
    for number, content in enumerate(cases):
        (tmp_path / "m.safetensors").write_bytes(content)
        assert dry_import(run, tmp_path, "m.safetensors", "--format", "safetensors")[0] in (1, 2, 6), number
    (tmp_path / "m.safetensors").write_bytes(bad_safetensors({"a": {**entry, "dtype": "F6_E2M3"}}, b"\0" * 8))
    assert "F6_E2M3" in cli("import", run, "m.safetensors", "--dry-run", check=2)


def test_refusals(cli, run, tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    cli("import", run, "m.pt", "--dry-run")
    cli("ls", run, check=4)  # a dry run saves nothing
    cli("import", run, "m.pt", "--step", 1)
    assert "EXISTS" in cli("import", run, "m.pt", "--step", 2, check=1)
    cli("import", run, "m.pt", "--step", 2, "--new-lineage")
    cli("import", run, "nothing.pt", check=4)
    cli("import", run, tmp_path, check=2)
    cli("import", run, check=2)
    cli("export", run, check=2)
    cli("export", run, "--to", "out", "--format", "gguf", check=2)
    cli("export", run, "9", "--to", "out", check=4)
    assert "MISSING_TENSOR" in cli("export", run, "--to", "out", "--only", "b*", check=1)
    cli("export", run, "--to", "out", "--dry-run")
    assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    assert "NOT_EMPTY" in cli("export", run, "--to", "full", check=1)
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, tmp_path / "twice.pt")
    assert "two tensors are called a.b" in cli("import", f"{run}-twice", "twice.pt", check=2)
