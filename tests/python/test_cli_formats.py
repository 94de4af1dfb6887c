# SPDX-License-Identifier: Apache-2.0
"""`cairn import` and `cairn export` agree with the real programs: safetensors files become checkpoints, and the exports
are read by safetensors again, bit for bit, in every type; hostile files are named errors; other formats are
cairn-convert's."""

import json
import os
import pathlib
import random
import struct
import subprocess

import pytest
import safetensors.torch
import torch

from foreign import assert_exports, bad_safetensors, sample_tensors

CAIRN = pathlib.Path(os.environ["CAIRND"]).with_name("cairn")


@pytest.fixture
def tensors():
    return sample_tensors()


def dry_import(run, folder, *words):
    """One that may fail, but not break: (exit status, stderr)."""
    done = subprocess.run([CAIRN, "import", run, *words, "--dry-run"], cwd=folder, capture_output=True, timeout=60,
                          stdin=subprocess.DEVNULL, check=False)
    assert done.returncode in (0, 1, 2, 6), (words, done.returncode, done.stderr)
    assert b"Sanitizer" not in done.stderr and b"runtime error" not in done.stderr, done.stderr
    assert (done.returncode == 0) == (done.stderr == b""), done.stderr
    return done.returncode, done.stderr

def test_safetensors_and_shards(cli, convert, run, tmp_path, tensors):
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
    assert_exports(cli, convert, f"{run}-set", tmp_path, plain, ("safetensors", "torch"))
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

def test_broken_files(run, tmp_path):
    """Cut off anywhere, a bit flipped anywhere: read, or a named error; never a signal."""
    safetensors.torch.save_file({"a": torch.arange(6.0).reshape(2, 3), "b": torch.ones(2, dtype=torch.bfloat16)},
                                tmp_path / "m.safetensors")
    chance = random.Random(1)
    good = (tmp_path / "m.safetensors").read_bytes()
    variants = [good[:chance.randrange(len(good))] for _ in range(15)]
    for _ in range(35):
        changed = bytearray(good)
        for _ in range(chance.choice((1, 1, 3))):
            changed[chance.randrange(len(changed))] ^= 1 << chance.randrange(8)
        variants.append(bytes(changed))
    for variant in variants:
        (tmp_path / "v.safetensors").write_bytes(variant)
        dry_import(run, tmp_path, "v.safetensors", "--format", "safetensors")


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
    safetensors.torch.save_file({"a": torch.ones(3)}, tmp_path / "m.safetensors")
    cli("import", run, "m.safetensors", "--dry-run")
    cli("ls", run, check=4)  # a dry run saves nothing
    cli("import", run, "m.safetensors", "--step", 1)
    assert "EXISTS" in cli("import", run, "m.safetensors", "--step", 2, check=1)
    cli("import", run, "m.safetensors", "--step", 2, "--new-lineage")
    cli("import", run, "nothing.safetensors", check=4)
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
