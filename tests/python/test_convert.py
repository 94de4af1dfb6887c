# SPDX-License-Identifier: Apache-2.0
"""cairn-convert agrees with the real programs: files that PyTorch and NumPy wrote become checkpoints, and the exports are
read by them again, bit for bit, in every type; it takes the words of cairn and ends with its exit statuses."""

import collections
import io
import json
import os
import pathlib
import pickle
import random
import re
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import zipfile

import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp
import torch.distributed.checkpoint.filesystem as filesystem
import torch.distributed.checkpoint.metadata as meta

from bed import assert_same, seed
from cairn import tree
from cairn.client import BYTES, DTYPES, LOCAL, REPLICATED, TREE, Client
from cairn.convert import command
from cairn.torch import Checkpointer
from conftest import ROOT
from test_client import damage
from foreign import ByName, assert_exports, sample_tensors


@pytest.fixture
def tensors():
    return sample_tensors()


def test_torch_file_comes_back_in_every_format(cli, convert, run, tmp_path, tensors):
    torch.save(tensors, tmp_path / "m.pt")
    convert("import", run, "m.pt", "--step", 7, "--tag", "imported")
    assert "7@1" in cli("ls", run) and "imported" in cli("show", run, "7")
    assert_exports(cli, convert, run, tmp_path, tensors)
    cli("verify", run)
    for number, kind in enumerate(("torch", "npz", "safetensors", "dcp")):  # and what was exported is imported again
        source = {"torch": "model.pt", "npz": "model.npz", "safetensors": "model.safetensors", "dcp": ""}[kind]
        again = f"{run}-again-{kind}"
        (cli if kind == "safetensors" else convert)("import", again, tmp_path / f"out-{kind}" / source, "--step", number + 1)
        target = tmp_path / f"again-{kind}"
        convert("export", again, "--to", target, "--format", "torch")
        assert_same(dict(sorted(torch.load(target / "model.pt").items())), dict(sorted(tensors.items())))


def test_what_is_installed(daemon, run, tmp_path):
    """The console script and ``python -m`` are one program; without PyTorch it says what is missing."""
    numpy.savez(tmp_path / "m.npz", a=numpy.arange(3.0))
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    script = pathlib.Path(sys.executable).with_name("cairn-convert")
    server = ("--server", f"unix:{daemon.socket}")

    def call(*words):
        done = subprocess.run([*map(str, words)], cwd=tmp_path, capture_output=True, timeout=120, check=False)
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    assert call(script, "import", run, "m.npz", *server) == (
        0, "imported 1 tensor and 0 blobs, 24 B, from m.npz (npz) as 0@1\n", "")
    status, out, err = call(sys.executable, "-m", "cairn.convert", "export", run, "--to", "out", "--format", "torch", *server, "--json")
    assert (status, err) == (0, ""), err
    assert json.loads(out) == {"schema_version": 1, "checkpoint": {"step": 0, "term": 1}, "to": "out", "format": "torch",
                               "dry_run": False, "exported": 1, "left_out": 0, "plain_bytes": 24}
    without = "import sys; sys.modules['torch'] = None; from cairn.convert.command import main; sys.exit(main(sys.argv[1:]))"
    status, _, err = call(sys.executable, "-c", without, "import", run, "m.pt", *server)
    assert status == 2 and "UNSUPPORTED: the format torch needs PyTorch" in err and "-m pip install torch" in err
    assert call(sys.executable, "-c", without, "import", f"{run}-npz", "m.npz", *server)[0] == 0  # which needs NumPy alone
    assert call(sys.executable, "-c", without, "export", f"{run}-npz", "--to", "npz", "--format", "npz", *server)[0] == 0
    assert numpy.load(tmp_path / "npz" / "model.npz")["a"].tolist() == [0, 1, 2]


def test_the_manual_has_every_option():
    page = (ROOT / "client/python/cairn-convert.1").read_text().replace("\\-", "-")
    sections = dict(re.findall(r"^\.SS Of (\w+)(.*?)(?=^\.S)", page, re.M | re.S))
    said = {name: set(re.findall(r"--[a-z-]+", text)) for name, text in sections.items()}
    helps = {name: words.format_help() for name, words in command._parser()._subparsers._group_actions[0].choices.items()}
    assert {name: said[name] | said["both"] | {"--help"} for name in helps} == {
        name: set(re.findall(r"^  (?:-\w, |-n, )?(--[a-z-]+)", text, re.M)) for name, text in helps.items()}


def test_exit_statuses_are_those_of_the_table():
    rows = re.findall(r'^CAIRN_ERR\((\w+),\s*-?\d+,\s*"[^"]*",\s*\w+,\s*(\d+)\)', (ROOT / "proto/base/err.def").read_text(), re.M)
    assert len(rows) > 40
    assert command.STATUSES == {name: int(status) for name, status in rows if status != "1"}


def test_what_repeats_without_end(cli, convert, run, tmp_path):
    """A kilobyte must not become a terabyte in the store, by one view or by many."""
    torch.save({"a": torch.zeros(1).expand(1 << 38)}, tmp_path / "bomb.pt")
    one = torch.zeros(1 << 20)
    torch.save({str(i): one for i in range(1100)}, tmp_path / "many.pt")
    torch.save({str(i): one for i in range(200)}, tmp_path / "fine.pt")
    torch.save({"a": torch.zeros(2, 1).expand(2, 1 << 10)}, tmp_path / "shared.pt")
    for words in (("--dry-run",), ()):
        assert "repeat the same bytes" in convert("import", run, "bomb.pt", *words, check=1)
        assert "repeat the same bytes" in convert("import", run, "many.pt", *words, check=1)
        assert "share memory" in convert("import", run, "shared.pt", *words, check=2)
    cli("ls", run, check=4)
    assert "800.03 MiB" in convert("import", run, "fine.pt", "--dry-run")


def test_npz(cli, convert, run, tmp_path, tensors):
    arrays = {name: t.numpy() for name, t in tensors.items()
              if t.dtype in (torch.float32, torch.float64, torch.float16, torch.int64, torch.bool, torch.complex64)}
    arrays["fortran"] = numpy.asfortranarray(numpy.arange(24.0).reshape(2, 3, 4))
    expected = {name: torch.from_numpy(numpy.ascontiguousarray(a)).reshape(a.shape) for name, a in arrays.items()}
    numpy.savez(tmp_path / "m.npz", **arrays)
    convert("import", run, "m.npz")
    assert_exports(cli, convert, run, tmp_path, expected, ("npz", "torch"))
    numpy.savez_compressed(tmp_path / "c.npz", **arrays)
    convert("import", f"{run}-c", "c.npz")
    (tmp_path / "c").mkdir()
    assert_exports(cli, convert, f"{run}-c", tmp_path / "c", expected, ("npz",))
    for number, version in enumerate(((1, 0), (2, 0), (3, 0))):
        data = io.BytesIO()
        numpy.lib.format.write_array(data, arrays["float32"], version=version)
        numpy.savez(tmp_path / "v.npz", a=arrays["float32"])
        with command.zips.zipfile.ZipFile(tmp_path / "v.npz", "w") as archive:
            archive.writestr("a.npy", data.getvalue())
        convert("import", f"{run}-v{number}", "v.npz", "--dry-run")


def test_state_of_a_training(cli, convert, run, tmp_path):
    """Optimizer, views, ties, parameters, and what is no tensor."""
    seed(5)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Linear(8, 6))
    model[1].weight = torch.nn.Parameter(model[0].weight.detach().t())  # a view of the same storage
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 6)).sum().backward()
    optimizer.step()
    turned = torch.arange(4).to(torch.complex64).mul(1 + 2j).conj()
    state = {"model": model.state_dict(), "optim": optimizer.state_dict(), "epoch": 3, "name": "ü", "none": None,
             "flag": True, "big": 2**80, "negative": -(2**70), "lr": 0.1, "bytes": b"\x00\xff\x80", "dtype": torch.bfloat16,
             "size": torch.Size([1, 2]), "list": [1, (2, torch.arange(10)[2:8:2])], "param": torch.nn.Parameter(torch.ones(2)),
             "ordered": collections.OrderedDict(b=1, a=2), 5: "five", (1, 2): torch.zeros(1), "device": torch.device("cpu"),
             "turned": turned}
    torch.save(state, tmp_path / "m.pt")
    convert("import", run, "m.pt")
    convert("export", run, "--to", "out", "--format", "torch")
    loaded = torch.load(tmp_path / "out" / "model.pt")
    expected = {f"model.{name}": t for name, t in model.state_dict().items()}
    expected.update({f"optim.state.{i}.{k}": v for i, s in optimizer.state_dict()["state"].items() for k, v in s.items()})
    expected.update({"list.1.1": torch.arange(10)[2:8:2], "param": torch.ones(2), "16": torch.zeros(1),
                     "turned": turned.resolve_conj()})
    assert_same(dict(sorted(loaded.items())), dict(sorted(expected.items())))
    cli("restore", run, "--to", "files", "--only", "torch.state")
    text = json.dumps(json.loads((tmp_path / "files" / "torch.state.json").read_text()))
    assert str(2**80) in text and "torch.bfloat16" not in text and '"bfloat16"' in text and "list.1.1" in text
    with Client(command.run_url(os.environ["CAIRN_SERVER"], run), read_only=True) as client:
        op = client.restore()
        op.result(30)
        found = tree.decode(op.blob("torch.state"))
    assert list(found) == list(state) and type(found["ordered"]) is collections.OrderedDict and list(found["ordered"]) == ["b", "a"]
    assert found["list"] == [1, (2, tree.Ref("list.1.1", "torch", "int64", (3,)))]
    plain = ("epoch", "name", "none", "flag", "big", "negative", "lr", "bytes", "dtype", "size", "ordered", 5, "device")
    assert_same({key: found[key] for key in plain}, {key: state[key] for key in plain})
    torch.save(torch.imag(turned), tmp_path / "alone.pt")
    convert("import", f"{run}-alone", "alone.pt")
    assert_exports(cli, convert, f"{run}-alone", tmp_path, {"tensor": torch.imag(turned).resolve_neg()}, ("npz",))


def test_values_that_cannot_be_stored(convert, run, tmp_path):
    for number, (value, words) in enumerate((
            (torch.ones(3).to_sparse(), "is sparse"), (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "is quantized"),
            (torch.ones((1,) * 9), "9 dimensions"), (bytearray(b"x"), "torch.state.x"), (numpy.float64(1), "numpy"),
            (torch.ones(1).untyped_storage(), "Storage cannot be stored; save tensors"), (frozenset((1,)), "frozenset"))):
        torch.save({"x": value}, tmp_path / f"{number}.pt")
        assert words in convert("import", run, f"{number}.pt", "--dry-run", check=2), number
    torch.save({"x": {1, 2}, "c": 1 + 2j, "counts": collections.Counter("aab")}, tmp_path / "m.pt")
    convert("import", run, "m.pt", "--dry-run")


def test_dcp_of_two_ranks(cli, convert, run, tmp_path):
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
    convert("import", run, "dcp")
    whole = torch.arange(7 * 5, dtype=torch.float64).reshape(7, 5)
    expected = {"rows": whole, "columns": whole, "same": whole.bfloat16()}
    assert_exports(cli, convert, run, tmp_path, expected, ("torch", "dcp"))
    state = {"epoch": 0, "nested.text": ""}
    dcp.load(state, checkpoint_id=str(tmp_path / "out-dcp"), no_dist=True)
    assert state == {"epoch": 4, "nested.text": "x"}  # blobs of a DCP directory go back as they came


def test_dcp_of_every_type(cli, convert, run, tmp_path, tensors):
    views = {"turned": torch.arange(12.0).reshape(3, 4).t(), "part": torch.arange(40)[3:30:3]}
    dcp.save({**tensors, **views}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    convert("import", run, "dcp")
    assert_exports(cli, convert, run, tmp_path, {**tensors, **views}, ("torch", "dcp"))


@pytest.mark.parametrize("kind", ["torch", "npz", "dcp"])
def test_tied_tensors_have_all_their_names(daemon, convert, run, tmp_path, kind):
    """As ``load_state_dict`` of the model wants them, and each alone."""
    model = torch.nn.Sequential(torch.nn.Embedding(4, 4), torch.nn.Linear(4, 4, bias=False))
    model[1].weight = model[0].weight
    with Checkpointer(f"cairn+unix://{daemon.socket}?run={run}", {"model": model}, on_error="raise") as ck:
        ck.save(1)
    for only, words in ((["model.0.weight", "model.1.weight"], ()), (["model.1.weight"], ("--only", "*.1.*"))):
        said = convert("export", run, "--to", f"out-{len(only)}", "--format", kind, *words)
        assert f"{len(only)} tensor" in said and "64 B" in said
        found = {name: torch.zeros(4, 4) for name in only}
        if kind == "torch":
            found = torch.load(tmp_path / f"out-{len(only)}" / "model.pt")
        elif kind == "npz":
            with numpy.load(tmp_path / f"out-{len(only)}" / "model.npz") as archive:
                found = {name: torch.from_numpy(archive[name]) for name in archive.files}
        else:
            dcp.load(found, checkpoint_id=str(tmp_path / f"out-{len(only)}"), no_dist=True)
        assert_same(found, {name: model[0].weight.detach() for name in only})


class Directory:
    """A DCP directory of one float32 tensor ``w`` that is made by hand; ``dump`` pickles."""

    def __init__(self, folder, count, files=1, tensor=None):
        archive = io.BytesIO()
        torch.save(torch.ones(1) if tensor is None else tensor, archive)
        self.folder, self.data = folder, archive.getvalue()
        folder.mkdir()
        for rank in range(files):
            (folder / f"__{rank}_0.distcp").write_bytes(self.data)
        length = 1 if tensor is None else count
        begins = range(0, count, length)
        self.chunks = [meta.ChunkStorageMetadata(offsets=torch.Size([i]), sizes=torch.Size([length])) for i in begins]
        self.size, self.memory_format, self.planner_data = torch.Size([count]), torch.contiguous_format, None
        self.places = {meta.MetadataIndex("w", torch.Size([i]), i): filesystem._StorageInfo(f"__{i % files}_0.distcp", 0, len(self.data))
                       for i in begins}

    def write(self, pickler=pickle.Pickler):
        whole = meta.TensorStorageMetadata(
            properties=meta.TensorProperties(dtype=torch.float32, memory_format=self.memory_format), size=self.size, chunks=self.chunks)
        with open(self.folder / ".metadata", "wb") as file:
            pickler(file).dump(meta.Metadata({"w": whole}, planner_data=self.planner_data, storage_data=self.places))


def test_dcp_of_many_rectangles(cli, convert, run, tmp_path):
    """As of a large job: found by their place, and each file mapped once; a rectangle too much or too few is an error."""
    made = Directory(tmp_path / "dcp", 1000, files=7)
    made.write()
    assert "1 tensor " in convert("import", run, "dcp")
    assert_exports(cli, convert, run, tmp_path, {"w": torch.ones(1000)}, ("torch",))
    place = made.places.pop(meta.MetadataIndex("w", torch.Size([471]), 471))
    made.write()
    assert "no place for it" in convert("import", run, "dcp", "--dry-run", check=6)
    made.places[meta.MetadataIndex("w", torch.Size([471]), 471)] = filesystem._StorageInfo("../dcp/__0_0.distcp", 0, 1)
    made.write()
    assert "no place for it" in convert("import", run, "dcp", "--dry-run", check=6)
    made.places[meta.MetadataIndex("w", torch.Size([471]), 471)] = place
    chunk = made.chunks.pop(471)
    made.write()
    assert "leave a gap or overlap" in convert("import", run, "dcp", "--dry-run", check=6)
    made.chunks.append(made.chunks[0])
    made.write()
    assert "overlap" in convert("import", run, "dcp", "--dry-run", check=6)
    made.chunks[-1] = chunk
    for info in (filesystem._StorageInfo("__0_0.distcp", 8, len(made.data)), filesystem._StorageInfo("__0_0.distcp", -1, 8),
                 filesystem._StorageInfo("__0_0.distcp", 0, len(made.data) - 30), filesystem._StorageInfo("__0_0.distcp", 0, 0)):
        made.places[meta.MetadataIndex("w", torch.Size([471]), 471)] = info
        made.write()
        assert "FORMAT" in convert("import", run, "dcp", "--dry-run", check=6)
    made.places[meta.MetadataIndex("w", torch.Size([471]), 471)] = filesystem._StorageInfo("__9_0.distcp", 0, len(made.data))
    made.write()
    assert "__9_0.distcp" in convert("import", run, "dcp", "--dry-run", check=4)


def test_dcp_that_is_not_what_its_metadata_says(convert, run, tmp_path):
    for number, tensor in enumerate((torch.ones(3, dtype=torch.float64), torch.ones(4), torch.ones(3, 1), [1, 2, 3],
                                     torch.ones(3).to_sparse())):
        Directory(tmp_path / f"dcp{number}", 3, tensor=tensor).write()
        assert "is not what the metadata says" in convert("import", run, f"dcp{number}", "--dry-run", check=6), number


def test_dcp_with_enums_by_name(cli, convert, run, tmp_path):
    """As older Pythons wrote them."""
    made = Directory(tmp_path / "dcp", 3, tensor=torch.ones(3))
    for made.memory_format in (torch.channels_last, torch.preserve_format, torch.contiguous_format):
        made.write(ByName)
        assert b"getattr" in (tmp_path / "dcp" / ".metadata").read_bytes()
        assert "1 tensor " in convert("import", run, "dcp", "--dry-run")
    convert("import", run, "dcp")
    assert_exports(cli, convert, run, tmp_path, {"w": torch.ones(3)}, ("torch",))


def test_refusals(cli, convert, run, tmp_path):
    torch.save({"a": torch.ones(3)}, tmp_path / "m.pt")
    convert("import", run, "m.pt", "--dry-run")
    cli("ls", run, check=4)  # a dry run saves nothing
    convert("import", run, "m.pt", "--step", 1)
    assert "EXISTS" in convert("import", run, "m.pt", "--step", 2, check=1)
    convert("import", run, "m.pt", "--step", 2, "--new-lineage")
    convert("import", run, "nothing.pt", check=4)
    assert "no .metadata" in convert("import", run, tmp_path, check=2)
    (tmp_path / "m.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")
    assert "cairn import reads safetensors" in convert("import", run, "m.safetensors", check=2)
    for words in (("import", run), ("import", run, "m.pt", "--step", "-1"), ("import", run, "m.pt", "--arena", "x"),
                  ("import", run, "m.pt", "--deadline", "1y"), ("import", "Run", "m.pt"), ("export", run), ("export", run, "--to", "out"),
                  ("export", run, "--to", "out", "--format", "gguf"), ("export", run, "x@y", "--to", "out", "--format", "npz"),
                  ("export", run, "--to", "none/out", "--format", "npz"), ("export", run, "--to", "/proc/x", "--format", "npz"), ()):
        convert(*words, check=2)
    assert "start cairnd over the store" in convert("export", run, "--to", "out", "--format", "npz", "--store", "dir:/x", check=2)
    convert("export", run, "9", "--to", "out", "--format", "npz", check=4)
    convert("export", f"{run}-none", "--to", "out", "--format", "npz", check=4)
    assert "MISSING_TENSOR" in convert("export", run, "--to", "out", "--format", "npz", "--only", "b*", check=1)
    convert("export", run, "--to", "out", "--dry-run", "--format", "npz")
    assert not (tmp_path / "out").exists() and not (tmp_path / "out.partial").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    for kind in command.FORMATS:
        assert "NOT_EMPTY" in convert("export", run, "--to", "full", "--format", kind, check=1)
        assert "NOT_EMPTY" in convert("export", run, "--to", "m.pt", "--format", kind, check=1)
    assert os.listdir(tmp_path / "full") == ["mine"]
    torch.save({"a.b": torch.ones(1), "a": {"b": torch.ones(1)}}, tmp_path / "twice.pt")
    assert "two tensors are called a.b" in convert("import", f"{run}-twice", "twice.pt", check=2)
    document = json.loads(convert("import", run, "nothing.pt", "--json", check=4))
    assert (document["message_type"], document["code"], document["error"]) == ("exit_error", 4, "NOT_FOUND")
    assert convert("import", run, "m.pt", "--server", "unix:/nowhere/at/all", "--timeout", "1s", check=5).startswith(
        "cairn-convert: UNREACHABLE: ")


def test_the_words_of_cairn(cli, convert, run, tmp_path):
    """cairn import and export of these formats end with the command line that does it: a shell runs the one with the most
    quotes as it stands, and this process the others as a shell would split them."""
    torch.save({"a": torch.ones(3)}, tmp_path / "my model.pt")
    numpy.savez(tmp_path / "m.npz", a=numpy.ones(3))
    dcp.save({"a": torch.ones(3)}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    (tmp_path / "old.pt").write_bytes(pickle.dumps({}))
    lines = []
    for number, words in enumerate((("import", f"{run}-1", "my model.pt", "--step", 7, "--tag", "a b"), ("import", f"{run}-2", "m.npz"),
                                    ("--timeout", "20s", "import", f"{run}-3", "dcp", "--arena", "64MiB", "--deadline", "5m"),
                                    ("import", f"{run}-4", "m.npz", "--format", "npz", "--new-lineage"),
                                    ("export", f"{run}-1", "--to", "out-torch", "--format", "torch"),
                                    ("export", f"{run}-1", "7@1", "--to", "out-npz", "--format=npz", "--only", "a*"),
                                    ("export", f"{run}-1", "--to", "out-dcp", "--format", "dcp", "--json"))):
        said = cli(*words, check=2)
        text = json.loads(said)["message"] if "--json" in words else said.removeprefix("cairn: UNSUPPORTED: ")
        line = text.strip().partition("; run: ")[2]
        assert line.startswith("cairn-convert "), said
        if number == 0:
            subprocess.run(["/bin/sh", "-c", line], cwd=tmp_path, timeout=120, check=True,
                           env={**os.environ, "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}"})
        else:
            convert(*shlex.split(line)[1:])
        lines.append(line)
    assert "--tag 'a b'" in lines[0] and "'my model.pt'" in lines[0]
    assert "7@1" in cli("ls", f"{run}-1") and torch.load(tmp_path / "out-torch" / "model.pt")["a"].tolist() == [1, 1, 1]
    assert "cairn-convert import" in cli("import", run, "old.pt", check=2)


def test_tensors_of_ranks(convert, run, tmp_path):
    """And blobs: only a DCP directory has a place for bytes."""
    data = [numpy.arange(6, dtype=numpy.float32) + i for i in range(2)]
    with Client(command.run_url(os.environ["CAIRN_SERVER"], run)) as client:
        client.set_tensors([("x", DTYPES["float32"], (6,), data[i].ctypes.data, None, data[i], LOCAL, f"dp={i}", None, None)
                            for i in range(2)])
        client.set_blobs([("note", BYTES, b"bytes", REPLICATED, None), ("tree", TREE, tree.encode(1), REPLICATED, None)])
        client.save(1).result(30)
        op = client.restore()
        op.result(30)
        assert [(item.name, item.coordinate, item.kind, item.dtype, item.shape, item.plain_bytes) for item in op.entries()] == [
            ("note", "", BYTES, None, (), 5), ("tree", "", TREE, None, (), len(tree.encode(1))),
            ("x", "dp=0", 0, "float32", (6,), 24), ("x", "dp=1", 0, "float32", (6,), 24)]
    convert("export", run, "--to", "out", "--format", "npz", check=1)
    document = json.loads(convert("export", run, "--to", "out", "--format", "npz", "--local", "--json"))
    assert (document["exported"], document["left_out"]) == (2, 2)
    found = numpy.load(tmp_path / "out" / "model.npz")
    assert [found[f"x@dp={i}"].tolist() for i in range(2)] == [item.tolist() for item in data]


def test_a_limit_on_the_size_of_files(convert, run, tmp_path):
    """Wherever the room ends: a named error, and nothing is left behind."""
    torch.save({"w": torch.zeros(1 << 18)}, tmp_path / "m.pt")
    numpy.savez_compressed(tmp_path / "m.npz", w=numpy.zeros(1 << 18))
    convert("import", run, "m.pt")

    def limited(limit, *words):
        done = subprocess.run([sys.executable, "-m", "cairn.convert", *words], cwd=tmp_path, capture_output=True, timeout=120, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        assert done.returncode == 1 and done.stdout == b"", (limit, words, done)
        return done.stderr.decode()

    for kind in command.FORMATS:
        for limit in (4096, 1 << 20):
            said = limited(limit, "export", run, "--to", "out", "--format", kind)
            assert said.startswith("cairn-convert: TOO_LARGE: --to out") and "ulimit -f" in said, (kind, limit, said)
            assert len(said.splitlines()) == 1 and list(tmp_path.glob("out*")) == [], said
        convert("export", run, "--to", "out", "--format", kind)
        os.rename(tmp_path / "out", tmp_path / kind)
    assert "need room in $TMPDIR" in limited(4096, "import", f"{run}-c", "m.npz")
    convert("import", f"{run}-c", "m.npz")


def test_a_disk_that_becomes_full(convert, daemon, run, tmp_path):
    """A file system in memory, without room for bytes, for a file, for the directory."""
    torch.save({"w": torch.zeros(1 << 18)}, tmp_path / "m.pt")
    numpy.savez_compressed(tmp_path / "m.npz", w=numpy.frombuffer(random.Random(1).randbytes(1 << 20), numpy.uint8))
    convert("import", run, "m.pt")
    (tmp_path / "disk").mkdir()
    script = ('mount -t tmpfs -o "$1" none "$2" || exit 77; where=$2; shift 2; "$@"; status=$?; '
              'ls -A "$where" | sed "s/^/left: /"; exit $status')

    def small(options, *words):
        done = subprocess.run(["unshare", "-m" if os.geteuid() == 0 else "-rm", "sh", "-c", script, "sh", options, str(tmp_path / "disk"),
                               sys.executable, "-m", "cairn.convert", *words, "--server", f"unix:{daemon.socket}"], cwd=tmp_path,
                              capture_output=True, timeout=120, check=False, env={**os.environ, "TMPDIR": str(tmp_path / "disk")})
        if done.returncode == 77 or done.stderr.startswith(b"unshare"):
            pytest.skip("no file system can be mounted here")
        assert (done.returncode, done.stdout) == (1, b"") and done.stderr.startswith(b"cairn-convert: NO_SPACE: "), (options, words, done)
        return done.stderr.decode()

    for kind, options in (("npz", "nr_inodes=1"), ("torch", "nr_inodes=2"), *((kind, f"size={size}") for kind in command.FORMATS
                                                                              for size in ("256k", "1536k"))):
        assert "name another place" in small(options, "export", run, "--to", "disk/out", "--format", kind)
    assert "need room in $TMPDIR" in small("size=256k", "import", f"{run}-c", "m.npz")


def test_a_file_that_shrinks_while_it_is_imported(own_daemon, tmp_path):
    """It is mapped: the process ends by a signal, and there is no checkpoint."""
    with open(tmp_path / "m.npz", "wb") as file:
        numpy.savez(file, w=numpy.zeros(64 << 20, numpy.uint8))
    # The bytes are checked when the file is opened and read again for the save; in between it loses them.
    code = """
import os, sys
from cairn.convert import command, npz_file
read = npz_file.read
def shrink(path):
    bundle = read(path)
    os.truncate(path, 4096)
    return bundle
npz_file.read = shrink
sys.exit(command.script())
"""
    done = subprocess.run([sys.executable, "-c", code, "import", "py/shrinks", "m.npz", "--server", f"unix:{own_daemon.socket}"],
                          cwd=tmp_path, capture_output=True, timeout=120, check=False)
    # Several threads read: the second one's signal may end the process before the first one's is described.
    assert done.returncode == -signal.SIGBUS, done
    assert '"committed"' not in subprocess.run(
        [pathlib.Path(os.environ["CAIRND"]).with_name("cairn"), "ls", "py/shrinks", "--json", "--server", f"unix:{own_daemon.socket}"],
        capture_output=True, timeout=60, check=False).stdout.decode()


def test_damaged_newest_is_refused(convert, own_daemon, tmp_path):
    """An export is of the newest checkpoint, or of the one that is named: never of another one."""
    server = ("--server", f"unix:{own_daemon.socket}")
    for step in (1, 2):
        torch.save({"a": torch.arange(1000.0) + step}, tmp_path / "m.pt")
        convert("import", "py/damaged", "m.pt", "--step", step, "--new-lineage", *server)
    damage(own_daemon.store, 2)
    for words in ((), ("2",)):
        said = convert("export", "py/damaged", *words, "--to", "out", "--format", "npz", *server, check=6)
        assert "DAMAGED" in said or "DIGEST" in said
        assert list(tmp_path.glob("out*")) == []
    convert("export", "py/damaged", "1@1", "--to", "out", "--format", "npz", *server)
    assert numpy.load(tmp_path / "out" / "model.npz")["a"].tolist() == [1.0 + i for i in range(1000)]


def test_lost_newest_is_refused(convert, own_daemon, tmp_path):
    """As `cairn export` does: the run's record has lost its end, and whoever wants the newest is told."""
    server = ("--server", f"unix:{own_daemon.socket}")
    with Client(f"cairn+unix://{own_daemon.socket}?run=py/lost") as client:
        data = numpy.arange(10.0)
        client.set_tensors([("x", DTYPES["float64"], (10,), data.ctypes.data, None, data, REPLICATED, None, None, None)])
        for step in (1, 2):
            client.save(step).result(30)
    own_daemon.kill()
    updates = sorted((own_daemon.store / "runs" / "py" / "lost" / "record").glob("*.update"))
    last = [path for path in updates if b"chain/" in path.read_bytes()][-1]  # the end of the client may be noted behind it
    last.chmod(0o600)
    content = bytearray(last.read_bytes())
    content[40] ^= 1
    last.write_bytes(content)
    shutil.rmtree(own_daemon.store / "copy")
    own_daemon.start()
    said = convert("export", "py/lost", "--to", "out", "--format", "npz", *server, check=6)
    assert "name the newest good one, 1@1" in said and not (tmp_path / "out").exists()
    convert("export", "py/lost", "1", "--to", "out", "--format", "npz", *server)


def test_memory_stays_bounded(daemon, run, tmp_path):
    """Neither reading nor saving brings the tensors into memory of the process; what is mapped is not counted, nor is the arena."""
    size = 192 << 20
    tensor = torch.arange(size // 8)
    torch.save({"w": tensor}, tmp_path / "m.pt")
    dcp.save({"w": tensor}, checkpoint_id=str(tmp_path / "dcp"), no_dist=True)
    numpy.savez(tmp_path / "m.npz", w=tensor.numpy())
    with zipfile.ZipFile(tmp_path / "m.npz") as stored, \
            zipfile.ZipFile(tmp_path / "c.npz", "w", zipfile.ZIP_DEFLATED, compresslevel=1) as packed:
        with stored.open("w.npy") as source, packed.open("w.npy", "w") as target:
            shutil.copyfileobj(source, target)
    code = """
import re, sys, threading
from cairn.convert import command
def anonymous():
    with open("/proc/self/status", encoding="ascii") as status:
        return int(re.search(r"RssAnon:\\s*(\\d+)", status.read())[1]) >> 10
kind, ended, most = sys.argv.pop(1), threading.Event(), 0
command.module(kind)
if kind == "dcp":
    import torch.distributed.checkpoint
before = anonymous()
def sample():
    global most
    while not ended.wait(0.002):
        most = max(most, anonymous() - before)
sampler = threading.Thread(target=sample)
sampler.start()
status = command.main(sys.argv[1:])
ended.set()
sampler.join()
print("MiB", most)
sys.exit(status)
"""
    server = ("--server", f"unix:{daemon.socket}")

    def grown(kind, *words):
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", code, kind, *words, *server], cwd=tmp_path, capture_output=True,
                              timeout=300, check=False)
        assert done.returncode == 0, done
        return int(done.stdout.split()[-1])

    for number, (kind, path) in enumerate((("torch", "m.pt"), ("dcp", "dcp"), ("npz", "m.npz"), ("npz", "c.npz"))):
        found = grown(kind, "import", f"{run}-{number}", path, "--arena", "32MiB")
        assert found < 64, (path, found)
    for kind in command.FORMATS:
        found = grown(kind, "export", f"{run}-0", "--to", f"out-{kind}", "--format", kind)
        assert found < 64, (kind, found)
