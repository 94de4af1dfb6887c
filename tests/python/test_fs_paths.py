# SPDX-License-Identifier: Apache-2.0
"""What frameworks do with paths: names that they look for, transactions, removal, files without a step, folders above and
below a checkpoint, a folder that is written again."""

import subprocess
import sys

import fsspec
import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
import cairn.fs


@pytest.fixture
def fs():
    return fsspec.filesystem("cairn")


def names(fs, url):
    return [name.rsplit("/", 1)[1] for name in fs.ls(url, detail=False)]


def committed(url):
    with cairn.Client(url, read_only=True) as client:
        return [(item.term, item.step) for item in client.list()]


def seen(url, path):
    """Whether another process finds it."""
    code = f"import fsspec; print(fsspec.filesystem('cairn').exists({url!r} + {'/' + path!r}))"
    return subprocess.run([sys.executable, "-c", code], text=True, check=True, stdout=subprocess.PIPE,
                          timeout=60).stdout == "True\n"


def test_a_name_that_was_never_written_does_not_exist(url, fs):
    """Lightning's search for a free name ends: each name is its own, though they hold the same step."""
    for number in range(3):
        path, version = f"{url}/foo-step=4.bin", 0
        while fs.exists(path):
            version += 1
            path = f"{url}/foo-step=4-v{version}.bin"
        fs.pipe(path, b"%d" % number)
    assert names(fs, url) == ["foo-step=4-v1.bin", "foo-step=4-v2.bin", "foo-step=4.bin"]
    assert [fs.cat(f"{url}/foo-step=4{end}.bin") for end in ("", "-v1", "-v2")] == [b"0", b"1", b"2"]
    assert seen(url, "foo-step=4-v2.bin") and not seen(url, "foo-step=4-v3.bin") and not fs.exists(f"{url}/step-4")
    long = "step-5-" + "ä" * 90
    fs.pipe(f"{url}/{long}", b"long")
    assert fs.exists(f"{url}/{long}") and long in names(fs, url) and not fs.exists(f"{url}/{long}x")


def test_what_cannot_be_asked_is_no_answer(own_daemon, fs):
    url = own_daemon.url("down")
    fs = fsspec.filesystem("cairn", io_deadline=1)
    assert not fs.exists(f"{url}/step-1")
    own_daemon.kill()
    with pytest.raises(cairn.CairnError):
        fs.exists(f"{url}/step-1")


def test_checkpoints_that_others_wrote_are_step_n(url, fs):
    with cairn.Client(url) as client:
        client.save(7).result(30)
    assert names(fs, url) == ["step-7"] and fs.isdir(f"{url}/step-7") and not fs.exists(f"{url}/foo-step=7.bin")


def test_a_transaction_commits_at_its_end(url, fs):
    """As Lightning's _atomic_save does, and for a folder without a marker."""
    with fs.transaction:
        with fs.open(f"{url}/epoch=0-step=5.ckpt", "wb") as file:
            file.write(b"5")
        fs.pipe(f"{url}/step-6/a", b"6")
        with fs.open(f"{url}/step-6/b", "w") as file:
            file.write("6")
        with fs.open(f"{url}/last.ckpt", "wb") as file:
            file.write(b"l")
        assert committed(url) == [] and fs.exists(f"{url}/last.ckpt") and not seen(url, "last.ckpt")
    assert committed(url) == [(1, 6), (1, 5)] and fs.cat(f"{url}/last.ckpt") == b"l" and seen(url, "last.ckpt")
    with pytest.raises(ZeroDivisionError):
        with fs.transaction:
            fs.pipe(f"{url}/step-7/a", b"7")
            fs.pipe(f"{url}/step=8.ckpt", b"8")
            1 / 0
    assert committed(url) == [(1, 6), (1, 5)] and not fs.exists(f"{url}/step-7") and not fs.exists(f"{url}/step=8.ckpt")


def test_removal_is_forget_through_the_guard(url, fs):
    """save_top_k=1: what is removed is gone for the program at once, and in Cairn when two newer ones are there."""
    for step in range(1, 5):
        fs.pipe(f"{url}/step={step}.ckpt", b"x")
        if step > 1:
            fs.rm(f"{url}/step={step - 1}.ckpt")
        assert names(fs, url) == [f"step={step}.ckpt"]
    assert committed(url) == [(1, 4), (1, 3)]  # the guard keeps two
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{url}/step=3.ckpt")
    fs.pipe(f"{url}/step-5/a", b"a")
    fs.pipe(f"{url}/step-5/b", b"b")
    fs.seal(f"{url}/step-5")
    fs.rm(f"{url}/step-5/a")
    assert fs.find(f"{url}/step-5") == [fs._strip_protocol(f"{url}/step-5/b")] and fs.cat(f"{url}/step-5/b") == b"b"
    fs.rm(f"{url}/step-5", recursive=True)
    assert not fs.exists(f"{url}/step-5")
    with pytest.raises(cairn.UnsupportedError, match="a run cannot be removed"):
        fs.rm(url, recursive=True)


def test_files_without_a_step(url, fs):
    """save_last=True: each is committed when it is closed, beside the others, in a run of their own."""
    for number in range(4):
        fs.pipe(f"{url}/last.ckpt", b"%d" % number)
    fs.pipe(f"{url}/exp/trial/state.json", b"{}")
    fs.pipe(f"{url}/step-1/.metadata", b"m")
    assert fs.cat(f"{url}/last.ckpt") == b"3" and fs.cat(f"{url}/exp/trial/state.json") == b"{}"
    assert names(fs, url) == ["exp", "last.ckpt", "step-1"] and names(fs, f"{url}/exp") == ["trial"]
    assert seen(url, "last.ckpt") and seen(url, "exp/trial") and committed(url) == [(1, 1)]
    assert len(committed(url + ".paths")) == 2  # what was replaced is forgotten
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{url}/last.ckpt", b"", mode="create")
    fs.mv(f"{url}/last.ckpt", f"{url}/best.ckpt")
    assert names(fs, url) == ["best.ckpt", "exp", "step-1"] and fs.cat(f"{url}/best.ckpt") == b"3"
    fs.rm(f"{url}/exp", recursive=True)
    assert names(fs, url) == ["best.ckpt", "step-1"]


def test_files_without_a_step_of_two_processes(url, fs):
    code = f"import fsspec; fs = fsspec.filesystem('cairn'); [fs.pipe('{url}/%s-' + str(n), b'x') for n in range(4)]"
    others = [subprocess.Popen([sys.executable, "-c", code % name]) for name in ("a", "b")]
    assert [process.wait(120) for process in others] == [0, 0]
    assert names(fs, url) == sorted(f"{name}-{n}" for name in "ab" for n in range(4))


def test_levels_above_a_checkpoint(url, fs):
    """Ray's layout, and two experiments that count alike."""
    for exp in ("one", "two"):
        fs.pipe(f"{url}/{exp}/checkpoint_000007/model.pt", exp.encode())
        fs.seal(f"{url}/{exp}/checkpoint_000007")
    assert names(fs, url) == ["one", "two"] and names(fs, f"{url}/one") == ["checkpoint_000007"]
    assert fs.isdir(f"{url}/one") and not fs.exists(f"{url}/thr") and not fs.exists(f"{url}/checkpoint_000007")
    assert [fs.cat(f"{url}/{exp}/checkpoint_000007/model.pt") for exp in ("one", "two")] == [b"one", b"two"]
    assert committed(url) == [(2, 7), (1, 7)]
    fs.rm(f"{url}/one", recursive=True)
    assert names(fs, url) == ["two"]


def test_folders_are_remembered_before_their_first_file(url, fs):
    for folder in ("step-1/sub", "exp/deep"):
        fs.mkdir(f"{url}/{folder}")
        assert fs.isdir(f"{url}/{folder}") and fs.isdir(f"{url}/{folder}".rsplit("/", 1)[0])
        assert fs.ls(f"{url}/{folder}") == []
        fs.rmdir(f"{url}/{folder}")
        assert not fs.exists(f"{url}/{folder}")


def test_a_folder_that_is_written_again_is_its_next_version(url, fs):
    for number in range(4):
        fs.pipe(f"{url}/step-1/a", b"a%d" % number)
        if number == 0:
            fs.pipe(f"{url}/step-1/b", b"b")
        assert fs.cat(f"{url}/step-1/b") == b"b"  # of the version before
        fs.seal(f"{url}/step-1")
        assert fs.cat(f"{url}/step-1/a") == b"a%d" % number and fs.cat(f"{url}/step-1/b") == b"b"
    assert committed(url) == [(4, 1), (3, 1)]
    fs.mv(f"{url}/step-1", f"{url}/step-2")
    assert names(fs, url) == ["step-2"] and fs.cat(f"{url}/step-2/b") == b"b"


def test_a_bulk_call_commits_at_its_end(url, fs, tmp_path):
    """A marker in the midst of a folder that is put as a whole: the files behind it belong to it."""
    for name in ("a.bin", "model.safetensors.index.json", "trainer_state.json", "z.bin"):
        (tmp_path / name).write_text(name)
    fs.put(f"{tmp_path}/", f"{url}/checkpoint-3/", recursive=True)
    assert committed(url) == [(1, 3)] and len(names(fs, f"{url}/checkpoint-3")) == 4


def test_dcp_overwrites_by_path(url):
    """overwrite=True is DCP's default."""
    state = {"w": torch.arange(100.), "lr": 0.0}
    for number in range(3):
        dcp.save({**state, "lr": float(number)}, checkpoint_id=f"{url}/step-1")
    back = {"w": torch.zeros(100), "lr": None}
    dcp.load(back, checkpoint_id=f"{url}/step-1")
    assert torch.equal(back["w"], state["w"]) and back["lr"] == 2.0
    assert committed(url) == [(3, 1), (2, 1)]
