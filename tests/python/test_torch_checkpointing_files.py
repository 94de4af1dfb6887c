# SPDX-License-Identifier: Apache-2.0
"""cairn.torch_checkpointing.StorageConfig: PyTorch's package torch_checkpointing saves its files to a run and loads from it, by its own
CheckpointManager."""

import os
import pathlib
import re
import subprocess

import pytest
import torch

pytest.importorskip("torch_checkpointing")
pytest.importorskip("fsspec")

from torch_checkpointing import CheckpointManager  # noqa: E402
from torch_checkpointing.checkpoint_process import CheckpointProcessConfig  # noqa: E402
from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig  # noqa: E402
from torch_checkpointing.config import AsyncCheckpointSaverConfig, SyncCheckpointSaverConfig  # noqa: E402
from torch_checkpointing.staging import CheckpointStagerConfig  # noqa: E402
from torch_checkpointing.storage.base_storage import ReadArgs  # noqa: E402

import cairn  # noqa: E402
import together  # noqa: E402
from conftest import ROOT, steps_of  # noqa: E402
from ranks import break_once, run_once  # noqa: E402
from cairn.torch_checkpointing import StorageConfig, commit  # noqa: E402

WORKER = str(pathlib.Path(__file__).with_name("tc_worker.py"))
ASYNC = AsyncCheckpointSaverConfig(staging_config=CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False),
                                   process_config=CheckpointProcessConfig(subprocess_init_timeout_secs=240))  # also on a busy machine


def state(value):
    return {"model": {"w": torch.full((5, 4), float(value)), "b": torch.arange(3) + value}, "step": value}


def manager_of(storage, save=None, **config):
    save = save or SyncCheckpointSaverConfig()
    return CheckpointManager(CheckpointManager.Config(storage_config=storage, save=save, **config))


@pytest.mark.parametrize("save", [SyncCheckpointSaverConfig(), ASYNC], ids=["sync", "async"])
@pytest.mark.parametrize("use_url", [False, True], ids=["name", "url"])
def test_saved_and_loaded(url, save, use_url):
    """By the package's own manager, in this process and in the one that it starts; each checkpoint is one of Cairn's."""
    storage = StorageConfig(url)
    assert storage.latest() is None
    manager = manager_of(storage, save)
    head = f"{url}/" if use_url else ""
    for step in (1, 2):
        future = manager.save(f"{head}step-{step}", state(step))
        if future is not None:
            future.result()
        assert storage.latest() == f"step-{step}"
    for step in (2, 1):
        found = manager.load(f"{head}step-{step}", into=state(0), strict=True)
        assert found["step"] == step and torch.equal(found["model"]["w"], state(step)["model"]["w"])
    assert steps_of(url) == [2, 1]
    with pytest.raises(FileNotFoundError, match="step-3"):
        manager.load(f"{head}step-3", into=state(0))
    manager.close()


def test_the_lines_of_the_page(daemon, monkeypatch):
    """Those of docs/torch-checkpointing.md, as they stand there; what their storage holds is loaded by their manager."""
    page = (ROOT / "docs/torch-checkpointing.md").read_text(encoding="utf-8")
    lines, = re.findall(rf"^```python no-run tests/python/{pathlib.Path(__file__).name} runs it\n(.*?)^```$", page, re.M | re.S)
    monkeypatch.setenv("CAIRN_SERVER", f"unix:{daemon.socket}")
    names = {"cairn": cairn}
    exec(lines, names)  # pylint: disable=exec-used
    manager_of(names["storage"]).save("step-1", state(1))
    assert names["manager"].load("step-1", into=state(0))["step"] == 1
    names["manager"].close()


def test_what_is_committed_is_not_saved_again(url):
    """The package's contract of a rename; the committed checkpoint stays as it is."""
    manager = manager_of(StorageConfig(url))
    manager.save("step-1", state(1))
    with pytest.raises(cairn.ExistsError, match="already committed by this process"):
        manager.save("step-1", state(5))
    later = manager_of(StorageConfig(url), ASYNC)
    with pytest.raises(FileExistsError, match="cairn forget"):
        later.save("step-1", state(5)).result()
    assert manager.load("step-1", into=state(0))["step"] == 1
    manager.close()


def test_a_folder_in_the_run(url):
    storage = StorageConfig(url)
    manager = manager_of(storage)
    manager.save("exp/step-4", state(4))
    assert storage.latest() == "exp/step-4" and manager.load("exp/step-4", into=state(0))["step"] == 4
    manager.close()


def test_names_that_cannot_be(url):
    with pytest.raises(cairn.InvalidError, match="names something in a run"):
        StorageConfig(f"{url}/step-1")
    manager = manager_of(StorageConfig(url))
    with pytest.raises(cairn.InvalidError, match="no step in its name"):
        manager.save("best", state(1))
    with pytest.raises(cairn.InvalidError, match="not in the run"):
        manager.save(f"{url}x/step-1", state(1))
    assert steps_of(url) == []


def test_written_in_place(url):
    """Without a temporary folder there is no rename; the callback commits."""
    writer = CheckpointWriterConfig(write_to_temp_dir=False)
    manager = manager_of(StorageConfig(url), SyncCheckpointSaverConfig(writer_config=writer), finalize_callback=commit)
    manager.save("step-1", state(1))
    assert steps_of(url) == [1] and manager.load("step-1", into=state(0))["step"] == 1
    manager.close()


@pytest.fixture
def storage(url):
    return StorageConfig(url).create_storage()


def put(storage, path, data=b"data"):
    storage.mkdir(pathlib.Path(path).parent)
    storage.write(pathlib.Path(path), data)


# What the package demands of a rename, within a checkpoint that is being written: (source, target, whether it is refused).
RENAMES = [("folder", "absent", False), ("folder", "empty", False), ("folder", "populated", True), ("folder", "file", True),
           ("file", "absent", False), ("file", "file", False), ("file", "empty", True), ("file", "populated", True)]


@pytest.mark.parametrize("source, target, is_refused", RENAMES, ids=[f"{source}-{target}" for source, target, _ in RENAMES])
def test_rename(storage, source, target, is_refused):
    base = pathlib.Path("step-1")
    put(storage, base / "a/x" if source == "folder" else base / "a")
    if target == "populated":
        put(storage, base / "b/old", b"old")
    elif target == "empty":
        storage.mkdir(base / "b")
    elif target == "file":
        put(storage, base / "b", b"old")
    written = {"folder": base / "a/x", "file": base / "a"}[source]
    if is_refused:
        with pytest.raises(OSError, match="step-1/b"):
            storage.rename(base / "a", base / "b", is_directory=source == "folder")
        assert storage.read(written) == b"data"
        old = {"populated": "b/old", "file": "b"}.get(target)
        assert old is None or storage.read(base / old) == b"old"
    else:
        storage.rename(base / "a", base / "b", is_directory=source == "folder")
        assert not storage.exists(written)
        assert storage.read(base / ("b/x" if source == "folder" else "b")) == b"data"


def test_the_checkpoint_s_own_rename(storage, url):
    """It commits; a target that was begun under its own name is not merged with; nothing is listed before."""
    put(storage, "tmp_step-1/x")
    assert steps_of(url) == []
    put(storage, "step-1/y", b"old")
    with pytest.raises(FileExistsError, match="step-1"):
        storage.rename(pathlib.Path("tmp_step-1"), pathlib.Path("step-1"), is_directory=True)
    assert steps_of(url) == []
    storage.rmdir(pathlib.Path("step-1"))
    put(storage, "tmp_step-1/x")
    storage.rename(pathlib.Path("tmp_step-1"), pathlib.Path("step-1"), is_directory=True)
    assert steps_of(url) == [1] and storage.ls(pathlib.Path("step-1")) == ["x"]
    with pytest.raises(FileNotFoundError):
        storage.rename(pathlib.Path("tmp_step-2"), pathlib.Path("step-2"), is_directory=True)


def test_files(storage, url):
    """Reading by ranges, sizes, lists, and the URL of a file."""
    data = bytes(range(256)) * 40
    put(storage, "tmp_step-1/sub/x", memoryview(data))
    with pytest.raises(ZeroDivisionError):
        with storage.stream_write(pathlib.Path("tmp_step-1/torn")) as file:
            file.write(b"torn")
            raise ZeroDivisionError
    storage.rename(pathlib.Path("tmp_step-1"), pathlib.Path("step-1"), is_directory=True)
    at = pathlib.Path("step-1/sub/x")
    assert storage.ls(pathlib.Path("step-1")) == ["sub"] and storage.ls(pathlib.Path("")) == ["step-1"]
    assert storage.isdir(pathlib.Path("step-1/sub")) and not storage.isdir(at) and not storage.exists(pathlib.Path("step-1/torn"))
    assert storage.getsize(at) == len(data) and storage.read(at) == data and storage.remap_path(at).endswith("step-1/sub/x")
    assert storage.glob("step-1/*") == ["step-1/sub"]
    with storage.stream_read(at, ReadArgs(pre_read_full_file=False)) as file:
        part = bytearray(100)
        assert file.seek(1000) == 1000 and file.readinto(part) == 100 and bytes(part) == data[1000:1100]
    for call in (storage.getsize, storage.read, storage.stream_read):
        with pytest.raises(FileNotFoundError):
            call(pathlib.Path("step-1/missing"))
    with pytest.raises(cairn.UnsupportedError, match="whole checkpoint"):
        storage.delete(at)
    with pytest.raises(cairn.DeniedError, match="newest"):
        storage.rmdir(pathlib.Path("step-1"))


def test_forgotten_through_the_guard(storage, url):
    """The newest two stay; what is older goes."""
    for step in (1, 2, 3):
        put(storage, f"tmp_step-{step}/x")
        storage.rename(pathlib.Path(f"tmp_step-{step}"), pathlib.Path(f"step-{step}"), is_directory=True)
    storage.rmdir(pathlib.Path("step-1"))
    assert steps_of(url) == [3, 2]


def test_a_whole_file_of_many_pieces(url, monkeypatch):
    """Read by ranges into memory of the package's own, as torch.load by mmap would."""
    monkeypatch.setattr("cairn.torch_checkpointing.storage._PIECE", 1 << 16)
    big = {"model": torch.arange(1 << 16), "step": 1}
    manager = manager_of(StorageConfig(url))
    manager.save("step-1", big)
    found = manager.load("step-1", into={"model": torch.zeros(1 << 16, dtype=torch.int64), "step": 0})
    assert torch.equal(found["model"], big["model"])
    manager.close()


def test_ranks_commit_together(url):
    """Two ranks, whose files are written by processes of their own; resharded by the package to one rank, and back to two. The first
    ranks meet by a TCPStore, the others in a file. Of a save in which one rank's writer is killed nothing is listed, and the next
    start goes on."""
    done = subprocess.run([*together.torchrun(2), WORKER, url, "go"], capture_output=True, text=True, timeout=240, check=False,
                          env={**os.environ, "TMPDIR": "/tmp"})
    assert done.returncode == 0 and "rank 1 resumed from None" in done.stdout, done.stdout[-2000:] + done.stderr[-6000:]
    assert steps_of(url) == [2, 1]
    assert run_once("tc_worker.run", 1, url=url, action="go") == ["step-2"]
    break_once("tc_worker.run", 2, url=url, action="break")
    assert steps_of(url) == [4, 3, 2, 1]
    assert run_once("tc_worker.run", 2, url=url, action="go") == ["step-4", "step-4"]
    assert steps_of(url) == [6, 5, 4, 3, 2, 1]


def test_a_start_without_a_server_is_an_error(tmp_path):
    """And not an empty run; on all ranks, though the first one alone asks."""
    url = f"cairn+unix://{tmp_path}/none.sock?run=py/none"
    with pytest.raises(cairn.CairnError):
        StorageConfig(url, io_deadline=1.0).latest()
    first, second = run_once("tc_worker.run", 2, url=url, action="ask")
    assert first.split(":")[0] == second.split(":")[0] and first.split(":")[0].endswith("Error"), (first, second)
