# SPDX-License-Identifier: Apache-2.0
"""cairn-convert reads a hostile or broken file or names an error. Nothing in it is run, memory stays bounded, and what
does not belong together is never put together."""

import io
import os
import pickle
import random
import resource
import struct
import zipfile

import numpy
import pytest
import torch
import torch.distributed.checkpoint.metadata as meta

from cairn.convert import dcp_metadata
from cairn.errors import CairnError
from foreign import ByName, Call, Evil, torch_zip
from test_convert import Directory


def test_pickles_are_never_run(convert, run, tmp_path):
    for number, state in enumerate(({"x": Evil()}, Evil(), {"x": [Evil()]})):
        torch.save(state, tmp_path / "m.pt")
        assert "posix.system" in convert("import", run, "m.pt", "--dry-run", check=2)
        (tmp_path / f"dcp{number}").mkdir()
        (tmp_path / f"dcp{number}" / ".metadata").write_bytes(pickle.dumps(state))
        assert "posix.system" in convert("import", run, f"dcp{number}", "--dry-run", check=2)
    made = Directory(tmp_path / "inside", 3, tensor=torch.ones(3))
    archive = io.BytesIO()
    torch.save(Evil(), archive)
    (tmp_path / "inside" / "__0_0.distcp").write_bytes(archive.getvalue())
    for place in made.places.values():
        place.length = len(archive.getvalue())
    made.write()
    assert "posix.system" in convert("import", run, "inside", "--dry-run", check=2)
    numpy.savez(tmp_path / "object.npz", a=numpy.array([Evil()], dtype=object))
    assert "objects are pickles" in convert("import", run, "object.npz", check=2)
    torch.save({}, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    assert "bare pickle" in convert("import", run, "old.pt", check=2)
    assert not (tmp_path / "executed").exists()


def test_getattr_of_metadata(convert, run, tmp_path, monkeypatch):
    """Of getattr nothing is read but the members of one enum."""
    made = Directory(tmp_path / "dcp", 3, tensor=torch.ones(3))
    for name in ("__class__", "mro", "TORCH_CONTIGUOUS_FORMA", "TORCH_CONTIGUOUS_FORMAT.name", "x" * 300):
        monkeypatch.setattr(ByName, "name", name)
        made.write(ByName)
        assert "calls builtins.getattr" in convert("import", run, "dcp", "--dry-run", check=2), name
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    for arguments in ((meta.Metadata, "__init__"), (meta._MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST", None), (),
                      (meta._MEM_FORMAT_ENCODING,), ("text", "upper"), ({}, "pop"), (torch.Size, "__new__")):
        made.planner_data = Call(arguments)
        made.write(ByName)
        assert "calls builtins.getattr" in convert("import", run, tmp_path / "dcp", "--dry-run", check=2), arguments
    torch.save({"x": Call((meta._MEM_FORMAT_ENCODING, "TORCH_CHANNELS_LAST"))}, tmp_path / "m.pt")
    assert "getattr, which is not among the names" in convert("import", run, tmp_path / "m.pt", "--dry-run", check=2)


def test_metadata_makes_nothing(tmp_path):
    """Whatever a pickle does to the stand-ins, they keep it or refuse it; opcodes that make memory or objects are unknown."""
    metadata = b"ctorch.distributed.checkpoint.metadata\nMetadata\n"
    chunk = b"ctorch.distributed.checkpoint.metadata\nChunkStorageMetadata\n"
    cases = {
        "the class itself": b"\x80\x04" + metadata + b"N}\x8c\x04evilK\x01s\x86b.",
        "a type of Python": b"\x80\x04ctorch\nSize\nN}\x8c\x04evilK\x01s\x86b.",
        "a dict": b"\x80\x04}N}\x8c\x04evilK\x01s\x86b.",
        "getattr": b"\x80\x04cbuiltins\ngetattr\n}\x8c\x04evilK\x01sb.",
        "a call of text": b"\x80\x04ctorch\nfloat32\n)R.",
        "a call of an object": b"\x80\x04" + chunk + b")\x81)R.",
        "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 40) + b".",
        "extension": b"\x80\x04\x82\x01.", "instance": b"(ios\nsystem\n.", "object": b"\x80\x04(" + metadata + b"o.",
        "persistent": b"\x80\x04K\x01Q.", "long text": b"\x80\x04X\xff\xff\xff\x7fabc.", "long": b"\x80\x04\x8b\xff\xff\xff\x7f.",
        "long bytes": b"\x80\x04\x8e" + struct.pack("<Q", 1 << 50) + b"abc.", "frame": b"\x80\x04\x95" + struct.pack("<Q", 1 << 50) + b".",
        "protocol": b"\x80\x09.", "empty": b"", "stop": b".", "mark": b"t.", "memo": b"h\x05.", "number": b"K\x01.",
        "huge memo": b"\x80\x04Nr\xff\xff\xff\x7f.",
    }
    limits = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as statm:
        now = int(statm.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + (256 << 20), limits[1]))
    try:
        for name, data in cases.items():
            (tmp_path / ".metadata").write_bytes(data)
            with pytest.raises(CairnError) as caught:
                dcp_metadata.read(str(tmp_path / ".metadata"))
            assert caught.value.name in ("FORMAT", "UNSUPPORTED"), name
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)
    assert not hasattr(dcp_metadata.Metadata, "evil") and not hasattr(dcp_metadata.Made, "evil")


def test_hostile_pickles(convert, run, tmp_path):
    deep = b"\x80\x02" + b"]" * 200 + b"a" * 199 + b"."
    deeper = b"\x80\x02" + b"]" * 50000 + b"a" * 49999 + b"."
    cycle = b"\x80\x02]q\x00h\x00a."
    laughs = b"\x80\x02]q\x00" + b"".join(
        b"](h" + bytes([i]) + b"h" + bytes([i]) + b"eq" + bytes([i + 1]) for i in range(40)) + b"."
    laughs2 = b"\x80\x02]q\x00" + b"".join(
        b"(h" + bytes([i]) + b"h" + bytes([i]) + b"tq" + bytes([i + 1]) for i in range(40)) + b"."
    tensor = (b"ctorch._utils\n_rebuild_tensor_v2\n"
              b"((X\x07\x00\x00\x00storagectorch\nFloatStorage\nX\x01\x00\x00\x000X\x03\x00\x00\x00cpuK\x04tQ")
    hooks = b"\x89ccollections\nOrderedDict\n)R"
    outside = b"\x80\x02" + tensor + b"K\x01(K\x04t(K\x01t" + hooks + b"tR."
    negative = b"\x80\x02" + tensor + b"K\x00(K\x04t(J\xff\xff\xff\xfft" + hooks + b"tR."
    huge = b"\x80\x02" + tensor + b"K\x00(\x8a\x08" + struct.pack("<q", 2**62) + b"K\x08t(K\x00K\x00t" + hooks + b"tR."
    longer = b"\x80\x02" + tensor.replace(b"cpuK\x04", b"cpuK\x08") + b"K\x00(K\x08t(K\x01t" + hooks + b"tR."
    good = b"\x80\x02" + tensor + b"K\x00(K\x04t(K\x01t" + hooks + b"tR."
    cases = {"good": (good, 0), "deep": (deep, 1), "deeper": (deeper, 1), "cycle": (cycle, 1), "laughs": (laughs, None),
             "laughs2": (laughs2, 1), "outside": (outside, 6), "negative": (negative, 6), "huge": (huge, None), "longer": (longer, 6),
             "empty": (b"", 6), "stop": (b".", 6), "mark": (b"t.", 6), "memo": (b"h\x05.", 6),
             "memory": (b"X\xff\xff\xff\x7fabc.", 6), "two": (b"NN.", None), "long": (b"\x8b\xff\xff\xff\xff.", 6),
             "instance": (b"(ios\nsystem\n.", None)}
    for name, (pickled, status) in cases.items():
        (tmp_path / "m.pt").write_bytes(torch_zip(pickled, **{"data/0": b"\0" * 16, "data/1": b"\0" * 64}))
        found, err = convert("import", run, "m.pt", "--dry-run", check=None)
        assert found == status or (status is None and found in (0, 1, 2, 6)), (name, found, err)


def test_entries_that_overlap(convert, run, tmp_path):
    numpy.savez(tmp_path / "two.npz", a=numpy.arange(64), b=numpy.arange(64))
    torch.save({"a": torch.zeros(4), "b": torch.ones(4)}, tmp_path / "two.pt")
    for name in ("two.npz", "two.pt"):
        data = bytearray((tmp_path / name).read_bytes())
        second = data.rindex(b"PK\x01\x02")  # of the directory: make it point at the first entry's bytes
        data[second + 42:second + 46] = struct.pack("<I", 0)
        (tmp_path / name).write_bytes(data)
        status, err = convert("import", run, name, "--dry-run", check=None)
        assert status == 6 and "overlap" in err, (name, err)


def test_archives_of_other_kinds(convert, run, tmp_path):
    """What torch.load with mmap would take for the bytes of a tensor, though it is not."""
    torch.save({"a": torch.ones(1000)}, tmp_path / "good.pt")
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "z.pt", "w", zipfile.ZIP_DEFLATED) as archive:
        for info in good.infolist():
            archive.writestr(info.filename, good.read(info))
    assert "is compressed" in convert("import", run, "z.pt", "--dry-run", check=2)
    with zipfile.ZipFile(tmp_path / "good.pt") as good, zipfile.ZipFile(tmp_path / "big.pt", "w") as archive:
        for info in good.infolist():
            archive.writestr(info.filename, b"big" if info.filename.endswith("byteorder") else good.read(info))
    assert "not little-endian" in convert("import", run, "big.pt", "--dry-run", check=2)
    numpy.savez(tmp_path / "big.npz", a=numpy.arange(3, dtype=">i4"))
    assert "'>i4'" in convert("import", run, "big.npz", check=2)
    numpy.savez_compressed(tmp_path / "c.npz", a=numpy.arange(3))
    with zipfile.ZipFile(tmp_path / "bz.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.write(tmp_path / "c.npz", "a.npy")
    assert "compressed by method 12" in convert("import", run, "bz.npz", check=2)
    numpy.savez(tmp_path / "field.npz", a=numpy.zeros(3, dtype=[("x", "<f4")]))
    assert "cannot be read" in convert("import", run, "field.npz", check=2)
    with zipfile.ZipFile(tmp_path / "other.npz", "w") as archive:
        archive.writestr("read.me", "text")
    assert "is not a .npy file" in convert("import", run, "other.npz", check=6)
    for types in ("[]", "{", '{"a": 1}', "[" * 100000):
        with zipfile.ZipFile(tmp_path / "types.npz", "w") as archive:
            archive.writestr("cairn.json", types)
        assert "cairn.json" in convert("import", run, "types.npz", check=6)


def test_broken_compression(convert, run, tmp_path):
    """Any byte of a compressed archive flipped, or its end cut off: good, or a named error; memory stays bounded."""
    numpy.savez_compressed(tmp_path / "good.npz", a=numpy.arange(4000.0), b=numpy.zeros(300000))
    good = (tmp_path / "good.npz").read_bytes()
    assert convert("import", run, "good.npz", "--dry-run", check=None)[0] == 0
    rng = random.Random(5)
    for number in range(60):
        bad = bytearray(good)
        if number < 50:
            bad[rng.randrange(len(bad))] ^= 1 << rng.randrange(8)
        else:
            del bad[rng.randrange(len(bad)):]
        (tmp_path / "bad.npz").write_bytes(bad)
        convert("import", run, "bad.npz", "--dry-run", "--format", "npz", check=None)
    # The data of an entry, for certain: its crc tells.
    bad = bytearray(good)
    bad[200] ^= 4
    (tmp_path / "bad.npz").write_bytes(bad)
    assert convert("import", run, "bad.npz", "--dry-run", check=None)[0] == 6
    # What is said to become larger than deflate can make it is not even begun.
    with zipfile.ZipFile(tmp_path / "bomb.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.npy", b"x" * 1000)
    bomb = (tmp_path / "bomb.npz").read_bytes()
    (tmp_path / "bomb.npz").write_bytes(bomb.replace(struct.pack("<I", 1000), struct.pack("<I", 0xf0000000)))
    status, err = convert("import", run, "bomb.npz", "--dry-run", check=None)
    assert status == 6 and "deflate cannot expand" in err


def test_broken_files(convert, run, tmp_path):
    """Cut off anywhere, a bit flipped anywhere: read, or a named error; never a signal. A flip in an array is never read."""
    small = {"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)}
    torch.save({**small, "x": [1, "y"]}, tmp_path / "m.pt")
    numpy.savez(tmp_path / "m.npz", a=numpy.arange(3))
    made = Directory(tmp_path / "dcp", 3, tensor=torch.arange(3.0))
    made.write()
    chance = random.Random(1)
    for name, kind in (("m.pt", "torch"), ("m.npz", "npz"), ("dcp/__0_0.distcp", "dcp"), ("dcp/.metadata", "dcp")):
        good = (tmp_path / name).read_bytes()
        variants = [good[:chance.randrange(len(good))] for _ in range(15)]
        for _ in range(45):
            changed = bytearray(good)
            for _ in range(chance.choice((1, 1, 3))):
                changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
            variants.append(bytes(changed))
        for variant in variants:
            (tmp_path / name).write_bytes(variant)
            status, err = convert("import", run, "dcp" if kind == "dcp" else name, "--format", kind, "--dry-run",
                                  check=None)
            assert "Traceback" not in err, (name, status, err)
        (tmp_path / name).write_bytes(good)


def test_sizes_of_headers(convert, run, tmp_path):
    """Shapes that do not fit the bytes, and headers that are no headers."""
    def npz(head, body=b"\0" * 24):
        text = head if isinstance(head, bytes) else (head + " " * 10).encode() + b"\n"
        with zipfile.ZipFile(tmp_path / "h.npz", "w") as archive:
            archive.writestr("a.npy", b"\x93NUMPY\x01\0" + struct.pack("<H", len(text)) + text + body)
        return convert("import", run, "h.npz", "--dry-run", check=None)[0]

    good = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }"
    assert npz(good) == 0 and npz(good.replace("False", "True")) == 0
    for bad in (good.replace("(2, 3)", "(2, 4)"), good.replace("(2, 3)", "(-2, -3)"), good.replace("(2, 3)", f"({2**62}, 8)"),
                good.replace("(2, 3)", "(2, 3"), good.replace("'shape'", "'form'"), good.replace("'<f4'", "__import__('os').system('x')"),
                good.replace("(2, 3)", "(True, 3.5)"), b"{" * 9000, b"(" * 9000, good.replace(", }", ", 'more': 1}"), b""):
        assert npz(bad) == 6, bad
    assert npz(good.replace("(2, 3)", "(1, 1, 1, 1, 1, 1, 1, 1, 1)")) == 2
    assert npz(good, b"\0" * 23) == 6
    assert not os.path.exists(tmp_path / "executed")
