# SPDX-License-Identifier: Apache-2.0
"""Packages that write by fsspec write to Cairn by a URL alone, and the files of one folder are committed together. Those that know
local folders only go by way of one, whole."""

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

import cairn
import cairn.fs
from conftest import steps_of


def test_pandas_writes_a_folder_that_is_committed_as_a_whole(url):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"n": [1, 2, 3], "x": [0.5, 0.25, 0.125], "name": ["a", "b", "käse"]})
    frame.to_csv(f"{url}/step-1/table.csv", index=False)
    frame.to_json(f"{url}/step-1/table.json")
    frame.to_pickle(f"{url}/step-1/table.pkl")
    assert steps_of(url) == []  # neither is, before all are
    cairn.fs.seal(f"{url}/step-1")
    for back in (pandas.read_csv(f"{url}/step-1/table.csv"), pandas.read_json(f"{url}/step-1/table.json"),
                 pandas.read_pickle(f"{url}/step-1/table.pkl")):
        pandas.testing.assert_frame_equal(back, frame)
    frame.to_csv(f"{url}/table.csv", index=False)  # a file by itself
    pandas.testing.assert_frame_equal(pandas.read_csv(f"{url}/table.csv"), frame)


def test_parquet(url):
    pandas, _ = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"n": range(1000), "x": [number / 7 for number in range(1000)]})
    frame.to_parquet(f"{url}/step-1/part-a.parquet")
    frame.to_parquet(f"{url}/step-1/part-b.parquet", compression="gzip")
    cairn.fs.seal(f"{url}/step-1")
    for part in "ab":
        pandas.testing.assert_frame_equal(pandas.read_parquet(f"{url}/step-1/part-{part}.parquet"), frame)
    assert list(pandas.read_parquet(f"{url}/step-1/part-a.parquet", columns=["x"])) == ["x"]


def test_dcp_to_torch_save_by_way_of_a_folder(url, tmp_path):
    state = {"w": torch.arange(1000.), "lr": 0.5}
    dcp.save(state, checkpoint_id=f"{url}/step-1")
    fs = fsspec.filesystem("cairn")
    fs.get(f"{url}/step-1/", f"{tmp_path}/dcp/", recursive=True)
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "model.pt")
    fs.put(f"{tmp_path}/model.pt", f"{url}/step-2.pt")
    with fs.open(f"{url}/step-2.pt", "rb") as file:
        back = torch.load(file, weights_only=True)
    assert torch.equal(back["w"], state["w"]) and back["lr"] == 0.5


def test_safetensors_are_consolidated_by_way_of_a_folder(url, tmp_path):
    pytest.importorskip("safetensors")
    from safetensors.torch import load_file
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    state = {"a": torch.arange(600.).reshape(30, 20), "b": torch.ones(7, dtype=torch.bfloat16)}
    writer = HuggingFaceStorageWriter(str(tmp_path / "hf"), save_distributed=True, enable_consolidation=True)
    dcp.save(state, storage_writer=writer)
    fs = fsspec.filesystem("cairn")
    fs.put(f"{tmp_path}/hf/", f"{url}/step-1/", recursive=True)
    if steps_of(url) == []:  # no model.safetensors.index.json was among them
        fs.seal(f"{url}/step-1")
    fs.get(f"{url}/step-1/", f"{tmp_path}/back/", recursive=True)
    found = {}
    for path in (tmp_path / "back").glob("*.safetensors"):
        found.update(load_file(path))
    assert steps_of(url) == [1] and all(torch.equal(found[name], state[name]) for name in state)


def test_a_marker_among_many_files_comes_last(url, tmp_path):
    """fsspec writes many files at the same time, in any order."""
    fs = fsspec.filesystem("cairn")
    names = [".metadata", *(f"part-{number:02}" for number in range(40))]
    for name in names:
        (tmp_path / name).write_bytes(name.encode() * 1000)
    fs.put([f"{tmp_path}/{name}" for name in names], [f"{url}/step-1/{name}" for name in names])
    fs.pipe({f"{url}/step-2/{name}": name.encode() for name in names})
    fs.cp(f"{url}/step-1/", f"{url}/step-3/", recursive=True)
    assert steps_of(url) == [3, 2, 1] and all(len(fs.find(f"{url}/step-{step}")) == 41 for step in (1, 2, 3))
    with pytest.raises(FileNotFoundError):
        fs.put([f"{tmp_path}/.metadata", f"{tmp_path}/none"], [f"{url}/step-4/.metadata", f"{url}/step-4/none"])
    assert steps_of(url) == [3, 2, 1]
    fs.rm(f"{url}/step-4", recursive=True)


def test_text_is_appended(url):
    fs = fsspec.filesystem("cairn")
    for word in ("one\n", "two\n"):
        for name in ("log.txt", "step-1/log.txt"):
            with fs.open(f"{url}/{name}", "a") as file:
                file.write(word)
    fs.seal(f"{url}/step-1")
    assert fs.cat(f"{url}/log.txt") == fs.cat(f"{url}/step-1/log.txt") == b"one\ntwo\n"
    with pytest.raises(cairn.UnsupportedError, match="nothing can be appended"):
        fs.open(f"{url}/step-1/log.txt", "ab")


def test_tensorboard_logs(url):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_file_loader import EventFileLoader
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(url, max_queue=1) as writer:
        for step in range(4):
            writer.add_scalar("loss", 1 / (step + 1), step)
            writer.flush()
    fs = fsspec.filesystem("cairn")
    row, = fs.ls(url)
    events = [event for event in EventFileLoader(fs.unstrip_protocol(row["name"])).Load() if event.summary.value]
    assert [event.step for event in events] == [0, 1, 2, 3]
