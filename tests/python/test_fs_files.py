# SPDX-License-Identifier: Apache-2.0
"""Files of a checkpoint that are written to cairn:// through fsspec are there all at once, when their marker is closed,
or never."""

import concurrent.futures
import contextlib
import io
import os
import resource
import subprocess
import sys
import textwrap
import threading

import fsspec
import numpy
import pytest
import torch
import torch.distributed.checkpoint as dcp

import cairn
import cairn.fs
from cairn.fs import process
from cairn.fs.paths import place_of, strip


def write(url, data, mode="wb"):
    with fsspec.open(url, mode) as file:
        file.write(data)


def elsewhere(code):
    """Runs code in another process; its output."""
    return subprocess.run([sys.executable, "-c", "import fsspec\n" + textwrap.dedent(code)], text=True, check=True,
                          stdout=subprocess.PIPE, timeout=60).stdout.strip()


def test_torch_16_open_until_the_marker_is_closed(url):
    fs = fsspec.filesystem("cairn")
    write(f"{url}/step-7/a.bin", b"abc")
    write(f"{url}/step-7/sub/b.bin", b"defgh")
    assert fs.exists(f"{url}/step-7/a.bin") and fs.cat(f"{url}/step-7/a.bin") == b"abc"
    look = f"fs = fsspec.filesystem('cairn'); print(fs.exists({url!r} + '/step-7/a.bin'), len(fs.ls({url!r})))"
    assert elsewhere(look) == "False 0"  # only the writing process sees it
    with fsspec.open(f"{url}/step-7/.metadata", "wb") as marker:
        marker.write(b"done")
        assert not cairn.Client(url, read_only=True).list()
    assert elsewhere(look) == "True 1"
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(1, 7)]
    assert fs.info(f"{url}/step-7/sub/b.bin")["size"] == 5 and fs.isdir(f"{url}/step-7/sub")
    assert [row["name"].rsplit("/", 1)[1] for row in fs.ls(f"{url}/step-7")] == [".metadata", "a.bin", "sub"]
    assert [name.rsplit("/", 1)[1] for name in fs.ls(url, detail=False)] == ["step-7"]
    assert sorted(name.split("step-7/")[1] for name in fs.find(f"{url}/step-7")) == [".metadata", "a.bin", "sub/b.bin"]
    with pytest.raises(cairn.ExistsError, match="committed"):
        write(f"{url}/step-7/c.bin", b"too late")
    with pytest.raises(cairn.UnsupportedError, match="only a whole checkpoint can be removed"):
        fs.rm(f"{url}/step-7/a.bin")
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{url}/step-99/a.bin")


def test_torch_16_marker_renamed_into_place(url):
    fs = fsspec.filesystem("cairn")
    fs.makedirs(f"{url}/step-1", exist_ok=True)
    write(f"{url}/step-1/data", b"x" * 100)
    write(f"{url}/step-1/.metadata.tmp", b"m")
    assert fs.exists(f"{url}/step-1/.metadata.tmp")
    fs.rename(f"{url}/step-1/.metadata.tmp", f"{url}/step-1/.metadata")
    assert elsewhere(f"print(fsspec.filesystem('cairn').cat({url!r} + '/step-1/.metadata'))") == "b'm'"


def test_torch_16_seal_and_markers_of_one_s_own(url):
    write(f"{url}/step-1/data", b"1")
    cairn.fs.seal(f"{url}/step-1")
    with pytest.raises(FileNotFoundError):
        cairn.fs.seal(f"{url}/step-1")
    with fsspec.open(f"{url}/step-2/data", "wb", markers=("DONE",)) as file:
        file.write(b"2")
    with fsspec.open(f"{url}/step-2/DONE", "w", markers=("DONE",)) as file:
        file.write("ok")
    write(f"{url}/tmp-checkpoint-3/data", b"3")
    fsspec.filesystem("cairn").mv(f"{url}/tmp-checkpoint-3", f"{url}/checkpoint-3", recursive=True)  # a folder's commit
    assert fsspec.filesystem("cairn").cat(f"{url}/checkpoint-3/data") == b"3"
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(1, 3), (1, 2), (1, 1)]


def test_torch_16_discarded_on_an_exception(url):
    fs = fsspec.filesystem("cairn")
    for mode, data in (("wb", b"torn"), ("w", "torn")):
        with pytest.raises(ZeroDivisionError):
            with fsspec.open(f"{url}/step-1/torn", mode) as file:
                file.write(data)
                1 / 0
        with pytest.raises(ZeroDivisionError):
            with fs.open(f"{url}/step-1/torn", mode) as file:
                file.write(data)
                1 / 0
        with pytest.raises(ZeroDivisionError):  # not even the marker
            with fs.open(f"{url}/step-1/.metadata", mode) as file:
                1 / 0
    file = fs.open(f"{url}/step-1/dropped", "wb")
    file.write(b"x")
    del file
    assert not fs.exists(f"{url}/step-1/torn") and not fs.exists(f"{url}/step-1")
    try:
        raise KeyboardInterrupt
    except KeyboardInterrupt:  # an emergency save in a handler is no torn file
        write(f"{url}/step-1/whole", b"whole")
        cairn.fs.seal(f"{url}/step-1")
    assert elsewhere(f"print(fsspec.filesystem('cairn').cat({url!r} + '/step-1/whole'))") == "b'whole'"


def test_torch_16_failed_commit_leaves_nothing(own_daemon):
    url = own_daemon.url("lost")
    fs = fsspec.filesystem("cairn", io_deadline=2, save_deadline=5)
    with fs.open(f"{url}/step-1/data", "wb") as file:
        file.write(b"x" * 10)
    own_daemon.kill()
    with pytest.raises(cairn.CairnError):
        fs.seal(f"{url}/step-1")
    # A server that is away is no proof that there is nothing.
    away = fsspec.filesystem("cairn", io_deadline=0.1)
    for look in (away.exists, away.isfile, away.isdir, away.info, away.ls, away.find, away.modified, away.is_taken):
        with pytest.raises(cairn.CairnError):
            look(f"{url}/step-1/data")
    own_daemon.start()
    assert not fs.exists(f"{url}/step-1/data")
    with fs.open(f"{url}/step-1/data", "wb") as file:
        file.write(b"again")
    fs.seal(f"{url}/step-1")
    assert fs.cat(f"{url}/step-1/data") == b"again"


def test_torch_16_fileno_is_a_private_memfd(url, monkeypatch):
    """So that fsync costs nothing, and torch does not fall back to os.sync."""
    monkeypatch.setattr(os, "sync", lambda: pytest.fail("os.sync was called"))
    with fsspec.open(f"{url}/step-1/data", "wb") as file:
        assert "memfd:" in os.readlink(f"/proc/self/fd/{file.fileno()}")
        file.write(b"x")
        os.fsync(file.fileno())
    with pytest.raises(FileExistsError):
        first = fsspec.filesystem("cairn").open(f"{url}/step-1/other", "wb")
        try:
            fsspec.filesystem("cairn").open(f"{url}/step-1/other", "wb")
        finally:
            first.discard()
    cairn.fs.seal(f"{url}/step-1")


def test_range_reads(url):
    data = os.urandom(300_000)
    write(f"{url}/step-1/big", data)
    write(f"{url}/step-1/empty", b"")
    fs = fsspec.filesystem("cairn")
    for _ in range(2):  # while it is being written, then committed
        assert fs.cat_file(f"{url}/step-1/big", 1000, 1010) == data[1000:1010]
        assert fs.cat_file(f"{url}/step-1/big", -5) == data[-5:] and fs.cat_file(f"{url}/step-1/big", 5, -5) == data[5:-5]
        assert fs.cat_file(f"{url}/step-1/big", 299_999, 400_000) == data[-1:]
        results = fs.cat_ranges([f"{url}/step-1/{name}" for name in ("big", "big", "big", "empty", "none")],
                                [0, 7, 7, 0, 0], [4, 9, 9, 10, 1])
        assert results[:4] == [data[:4], data[7:9], data[7:9], b""] and isinstance(results[4], FileNotFoundError)
        with fs.open(f"{url}/step-1/big", "rb") as file:
            assert file.seek(-10, 2) == 299_990 and file.read() == data[-10:]
            assert file.seek(100_000) == 100_000 and file.read(5) == data[100_000:100_005]
        assert fs.cat(f"{url}/step-1/empty") == b""
        if process.tree_at(place_of(f"{url}/step-1")):
            fs.seal(f"{url}/step-1")
    assert not process.tree_at(place_of(f"{url}/step-1"))


def test_get_put_and_text(url, tmp_path):
    fs = fsspec.filesystem("cairn")
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "a").write_bytes(b"a" * 100_000)
    (tmp_path / "tree" / "deep" / "b").write_text("käse")
    fs.put(f"{tmp_path}/tree/", f"{url}/step-3/", recursive=True)
    fs.pipe_file(f"{url}/step-3/c", b"c")
    with pytest.raises(FileExistsError):
        fs.put_file(f"{tmp_path}/tree/a", f"{url}/step-3/c", mode="create")
    fs.seal(f"{url}/step-3")
    fs.get(f"{url}/step-3/", f"{tmp_path}/back/", recursive=True)
    assert (tmp_path / "back" / "a").read_bytes() == b"a" * 100_000
    with fsspec.open(f"{url}/step-3/deep/b", "r", encoding="utf-8") as file:
        assert file.read() == "käse"


def test_one_file_as_a_checkpoint(url):
    """Lightning and plain torch.save write a file where the folder would stand; its step is in its name."""
    path, model = f"{url}/epoch=3-step=500.ckpt", {"w": torch.arange(10.)}
    with fsspec.open(path, "wb") as file:
        torch.save(model, file)
    with fsspec.open(path, "rb") as file:
        assert torch.equal(torch.load(file, weights_only=True)["w"], model["w"])
    fs = fsspec.filesystem("cairn")
    assert fs.isfile(path) and [row["name"].rsplit("/", 1)[1] for row in fs.ls(url)] == ["step-500"]
    with pytest.raises(cairn.InvalidError, match="has no step"):
        fs.open(f"{url}/last.ckpt/weights", "wb")
    assert not fs.exists(f"{url}/last.ckpt") and not fs.isdir(f"{url}/last.ckpt") and not fs.isfile(f"{url}/last.ckpt")
    for look in (fs.info, fs.ls, fs.open, fs.cat_file):
        with pytest.raises(FileNotFoundError, match="'last.ckpt' has no step"):
            look(f"{url}/last.ckpt")


def test_a_checkpoint_is_removed_through_retention_s_guard(url, cli, capfd):
    """Lightning keeps one (save_top_k=1): it removes the one before when the next is there, and cannot do without either."""
    fs, other = fsspec.filesystem("cairn"), "print(*(int(item['name'].rsplit('-', 1)[1]) for item in fsspec.filesystem('cairn').ls({!r})))"
    for step in range(1, 6):
        write(f"{url}/epoch=0-step={step}.ckpt", b"%d" % step)
        if step > 1:
            fs.rm(f"{url}/epoch=0-step={step - 1}.ckpt", recursive=True)
            assert not fs.exists(f"{url}/epoch=0-step={step - 1}.ckpt")
    assert [item["name"].rsplit("/", 1)[1] for item in fs.ls(url)] == ["step-5"] and fs.cat(f"{url}/step-5") == b"5"
    assert elsewhere(other.format(url)) == "4 5"  # the guard keeps two; the one before goes when step 6 is there
    with pytest.raises(cairn.DeniedError, match="newest"):
        fs.rm(f"{url}/step-5")
    write(f"{url}/step-6/a", b"1")
    cairn.fs.seal(f"{url}/step-6")
    assert elsewhere(other.format(url)) == "5 6"
    for step in (7, 8):
        write(f"{url}/step-{step}/a", b"1")
        cairn.fs.seal(f"{url}/step-{step}")
    with pytest.raises(IsADirectoryError):
        fs.rm(f"{url}/step-6")
    with cairn.Client(url) as client:  # not by paths: no path removes it, whatever it is called
        client.restore().result(30)
        for step in (20, 21, 22):
            client.save(step).result(30)
    with pytest.raises(cairn.UnsupportedError, match="was not written by paths"):
        fs.rm(f"{url}/foo-step=20.ckpt", recursive=True)
    cli("pin", url.partition("run=")[2], 6, "--reason", "a test")
    fs.rm(f"{url}/step-6", recursive=True)
    assert fs.exists(f"{url}/step-6") and "step 6 was not removed: " in capfd.readouterr().err  # an operator wants it


def test_a_step_that_was_removed_may_be_written_again(url):
    """Whether retention's guard has let it go (step 1) or still keeps it (step 2), and with other files than before."""
    fs = fsspec.filesystem("cairn")
    for step in (1, 2, 3):
        write(f"{url}/step-{step}/a", b"old")
        fs.seal(f"{url}/step-{step}")
    for step in (1, 2):
        fs.rm(f"{url}/step-{step}", recursive=True)
        write(f"{url}/step-{step}/b", b"new")
        fs.seal(f"{url}/step-{step}")
        for look in (fs, cairn.fs.CairnFileSystem(skip_instance_cache=True)):
            assert look.find(f"{url}/step-{step}") == [strip(f"{url}/step-{step}/b")] and look.cat(f"{url}/step-{step}/b") == b"new"


@pytest.mark.parametrize("name", ["a\0b", "ä" * 510, "\udc80"])
def test_a_name_that_no_checkpoint_can_hold_is_refused_before_it_is_written(url, name):
    fs = fsspec.filesystem("cairn")
    write(f"{url}/step-1/{'a' * 1019}", b"1")  # the longest one
    for path in (f"{url}/step-1/{name}", f"{url}/{name}/step-1/a", f"{url}/{'f' * 122}/{name}/step-2"):
        with pytest.raises(cairn.InvalidError, match="cannot be written: .* 1019 bytes"):
            fs.open(path, "wb")
    with pytest.raises(cairn.InvalidError, match="cannot be written"):
        fs.mv(f"{url}/step-1/{'a' * 1019}", f"{url}/step-1/{name}")
    fs.seal(f"{url}/step-1")
    assert fs.cat(f"{url}/step-1/{'a' * 1019}") == b"1"


def test_a_transaction_commits_at_its_end_or_discards_all(url):
    """Lightning's save of one file, and a folder with its marker."""
    fs, data = fsspec.filesystem("cairn"), os.urandom(100_000)
    with fs.transaction, fs.open(f"{url}/epoch=0-step=3.ckpt", "wb") as file:
        file.write(data)
    assert fs.cat(f"{url}/step-3") == data and not process.trees
    with pytest.raises(KeyError):
        with fs.transaction:
            with fs.open(f"{url}/epoch=0-step=4.ckpt", "wb") as file:
                file.write(data)
            write(f"{url}/step-5/.metadata", b"m")  # the same instance, so it is in the transaction
            assert not fs.isfile(f"{url}/step-4") and not fs.exists(f"{url}/step-5/.metadata")
            raise KeyError("the training's")
    assert not fs.exists(f"{url}/step-4") and not fs.exists(f"{url}/step-5") and not process.trees
    with fs.transaction:
        with fs.open(f"{url}/step-4/words.txt", "w", encoding="utf-8") as file:
            file.write("käse")
        with fs.open(f"{url}/step-4/.metadata", "wb") as file:
            file.write(b"m")
        assert elsewhere(f"print(fsspec.filesystem('cairn').exists({url!r} + '/step-4'))") == "False"
    assert elsewhere(f"print(fsspec.filesystem('cairn').cat({url!r} + '/step-4/words.txt').decode())") == "käse"


def test_a_name_that_was_never_written_is_not_there(url):
    """Lightning looks for a free name, `while fs.exists(f"{name}-v{n}.ckpt")`; every name with the step in it was taken."""
    fs = fsspec.filesystem("cairn")
    for name in ("epoch=1-step=4.ckpt", "step-7/weights.bin"):
        with fsspec.open(f"{url}/{name}", "wb") as file:
            file.write(b"weights")
        if name.startswith("step-7"):
            assert fs.exists(f"{url}/step-7") and not fs.exists(f"{url}/checkpoint-7")  # before its end
            fs.seal(f"{url}/step-7")
    for child in (fs, cairn.fs.CairnFileSystem(skip_instance_cache=True)):
        assert child.exists(f"{url}/epoch=1-step=4.ckpt") and child.exists(f"{url}/step-4")  # what it is, and what ls says
        assert not child.exists(f"{url}/epoch=1-step=4-v1.ckpt") and not child.exists(f"{url}/foo-step=4.bin")
        assert child.isdir(f"{url}/step-7") and not child.exists(f"{url}/checkpoint-7")
    elsewhere(f"""
        with fsspec.open({url!r} + "/epoch=1-step=4-v1.ckpt", "wb") as file:
            file.write(b"again")""")
    assert fs.cat(f"{url}/epoch=1-step=4-v1.ckpt") == fs.cat(f"{url}/step-4") == b"again"
    assert fs.cat(f"{url}/epoch=1-step=4.ckpt") == b"weights"  # the older version of the step, under its own name
    with pytest.raises(FileNotFoundError):
        fs.cat(f"{url}/foo-step=4.bin")
    with pytest.raises(FileNotFoundError):
        fs.mv(f"{url}/foo-step=4.bin", f"{url}/step-4")
    with pytest.raises(cairn.UnsupportedError, match="renamed"):
        fs.mv(f"{url}/step-7", f"{url}/checkpoint-7")


def test_copies_and_folders(url):
    fs = fsspec.filesystem("cairn")
    write(f"{url}/step-1/a.csv", b"1")
    fs.makedirs(f"{url}/step-1/sub")
    fs.cp(f"{url}/step-1/a.csv", f"{url}/step-1/b.csv")
    fs.cp(f"{url}/step-1/a.csv", f"{url}/step-1/sub/")
    assert sorted(name.split("step-1/")[1] for name in fs.find(f"{url}/step-1")) == ["a.csv", "b.csv", "sub/a.csv"]
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{url}/step-1/sub")
    fs.rm(f"{url}/step-1/sub/a.csv")
    fs.rmdir(f"{url}/step-1/sub")
    assert not fs.exists(f"{url}/step-1/sub")
    cairn.fs.seal(f"{url}/step-1")
    fs.cp(f"{url}/step-1/a.csv", f"{url}/step-2.csv")  # a file that is a checkpoint by itself
    assert fs.cat_file(f"{url}/step-2.csv") == b"1"
    with pytest.raises(cairn.UnsupportedError, match="cannot be removed by its path"):
        fs.rmdir(f"{url}/step-1")
    with pytest.raises(FileNotFoundError):
        fs.rmdir(f"{url}/step-9")
    for bad in ("../step-3/a", "x/../../a", "./a"):
        with pytest.raises(cairn.InvalidError, match="cannot be names of files"):
            write(f"{url}/step-3/{bad}", b"x")


def test_numpy_and_torch_save(url):
    with fsspec.open(f"{url}/step-1/x.npy", "wb") as file:
        numpy.save(file, numpy.arange(1000))
    with fsspec.open(f"{url}/step-1/sd.pt", "wb") as file:
        torch.save({"x": torch.ones(1000)}, file)
    cairn.fs.seal(f"{url}/step-1")
    with fsspec.open(f"{url}/step-1/x.npy", "rb") as file:
        assert (numpy.load(file) == numpy.arange(1000)).all()
    with fsspec.open(f"{url}/step-1/sd.pt", "rb") as file:
        assert torch.load(file, weights_only=True)["x"].sum() == 1000


def test_torch_16_dcp_by_url_alone(url):
    """dcp.save(checkpoint_id=URL): DCP finds fsspec, fsspec finds Cairn; nothing else changes."""
    state = {"w": torch.arange(5000.).reshape(50, 100), "lr": 0.5, "b": torch.ones(3, dtype=torch.bfloat16)}
    for step in (1, 2):
        dcp.save({**state, "lr": float(step)}, checkpoint_id=f"{url}/step-{step}")
    back = {"w": torch.zeros(50, 100), "lr": None, "b": torch.zeros(3, dtype=torch.bfloat16)}
    dcp.load(back, checkpoint_id=f"{url}/step-2")
    assert torch.equal(back["w"], state["w"]) and back["lr"] == 2.0 and back["b"].sum() == 3
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(1, 2), (1, 1)]


def test_a_step_is_overwritten_as_a_whole(url):
    """dcp.save does so by default; a training that goes back to an earlier checkpoint does, too."""
    for step in (1, 2):
        dcp.save({"w": torch.full((100,), float(step))}, checkpoint_id=f"{url}/step-{step}")
    for step in (2, 1):  # the newest, and one before it
        dcp.save({"w": torch.full((100,), step + 10.0)}, checkpoint_id=f"{url}/step-{step}")
        for reads in (fsspec.filesystem("cairn"), cairn.fs.CairnFileSystem(skip_instance_cache=True)):
            assert reads.exists(f"{url}/step-{step}/.metadata")
        back = {"w": torch.zeros(100)}
        dcp.load(back, checkpoint_id=f"{url}/step-{step}")
        assert back["w"].unique().tolist() == [step + 10.0]
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(3, 1), (2, 2), (1, 2), (1, 1)]
    with pytest.raises(FileExistsError):
        with fsspec.open(f"{url}/step-1/.metadata", "xb"):
            pass
    with pytest.raises(cairn.ExistsError, match="no file can be added"):
        write(f"{url}/step-1/more", b"more")
    assert fsspec.filesystem("cairn").exists(f"{url}/step-1/.metadata")


def test_a_folder_that_mkdir_made_is_there_until_it_is_removed(url):
    fs = fsspec.filesystem("cairn")
    fs.makedirs(f"{url}/step-1/a/b", exist_ok=True)
    assert fs.isdir(f"{url}/step-1") and fs.isdir(f"{url}/step-1/a") and fs.isdir(f"{url}/step-1/a/b")
    assert [row["name"].rsplit("/", 1)[1] for row in fs.ls(f"{url}/step-1")] == ["a"] and fs.ls(f"{url}/step-1/a/b") == []
    with pytest.raises(OSError, match="not empty"):
        fs.rmdir(f"{url}/step-1/a")
    fs.rmdir(f"{url}/step-1/a/b")
    assert not fs.exists(f"{url}/step-1")
    fs.mkdir(f"{url}/step-1/a")
    fs.rm(f"{url}/step-1", recursive=True)
    assert not fs.exists(f"{url}/step-1/a")
    fs.mkdir(f"{url}/step-1/empty")
    write(f"{url}/step-1/file", b"x")
    fs.seal(f"{url}/step-1")
    assert [row["name"].rsplit("/", 1)[1] for row in fs.ls(f"{url}/step-1")] == ["file"]  # a checkpoint consists of files


def test_a_new_process_goes_on_in_the_lineage(url):
    write(f"{url}/step-1/data", b"1")
    cairn.fs.seal(f"{url}/step-1")
    elsewhere(f"""
        import cairn.fs
        with fsspec.open({url!r} + "/step-2/data", "wb") as file:
            file.write(b"2")
        cairn.fs.seal({url!r} + "/step-2")
        """)
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step, item.parent, item.superseded) for item in client.list()] == [
            (2, 2, (1, 1), False), (1, 1, None, False)]
    with pytest.raises(cairn.FencedError):  # it has been succeeded
        write(f"{url}/step-3/.metadata", b"")
    assert not fsspec.filesystem("cairn").exists(f"{url}/step-3")


def last_words(code):
    """What a process that runs code and ends says on stderr; Python's own settings, so no warnings are asked for."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONWARNINGS"}
    done = subprocess.run([sys.executable, "-c", "import fsspec\nimport cairn.fs\n" + textwrap.dedent(code)], text=True,
                          stderr=subprocess.PIPE, stdout=subprocess.PIPE, timeout=60, env=environment)
    assert done.stdout == ""
    return done.returncode, done.stderr


def test_a_commit_after_one_that_came_too_late_stays_in_the_lineage(url, monkeypatch):
    """A first commit whose look at the newest checkpoint takes too long fails, and the next one looks again."""
    elsewhere(f"import cairn.fs; fsspec.filesystem('cairn').pipe({url!r} + '/step-1/a', b'1'); cairn.fs.seal({url!r} + '/step-1')")
    restore, ends = cairn.Client.restore, [cairn.TimedOutError.of("too late")]

    def late(client, *args, **options):
        if ends and not client.read_only:
            raise ends.pop()
        return restore(client, *args, **options)

    monkeypatch.setattr(cairn.Client, "restore", late)
    for error in cairn.TimedOutError, None:
        write(f"{url}/step-2/a", b"2")
        with pytest.raises(error) if error else contextlib.nullcontext():
            cairn.fs.seal(f"{url}/step-2")
    with cairn.Client(url, read_only=True) as client:
        assert [(item.step, item.superseded) for item in client.list()] == [(2, False), (1, False)]


def test_files_that_are_never_committed_are_named_at_exit(url):
    status, words = last_words(f"""
        fs = fsspec.filesystem("cairn")
        fs.pipe({url!r} + "/step-2/data", b"2")
        fs.pipe({url!r} + "/step-2/sub/with\\x1b[2Jcolour", b"3")
        still_open = fs.open({url!r} + "/step-2/torn", "wb")
        fs.pipe({{f"{url}/step-3/{{number:02}}": b"x" for number in range(10)}})
        fs.pipe({url!r} + "/step-4/data", b"4")
        cairn.fs.seal({url!r} + "/step-4")
        fs.pipe({url!r} + "/step-5/data", b"5")
        fs.rm({url!r} + "/step-5/data")
        """)
    second, third = words.splitlines()
    assert status == 1 and "\x1b" not in words
    assert "/step-2 was not committed: this process ended before the folder's marker was closed. 3 files are lost: " in second
    assert "'data', 'sub/with\\x1b[2Jcolour', 'torn'." in second
    seal = second[second.index("cairn.fs.seal("):]
    assert ".metadata" in second and place_of(seal.split("'")[1]) == place_of(f"{url}/step-2")
    assert "/step-3 was not committed" in third and "10 files are lost: '00', '01'" in third and "'07' and 2 more." in third
    with cairn.Client(url, read_only=True) as client:
        assert [(item.term, item.step) for item in client.list()] == [(1, 4)]


def test_files_that_are_never_committed_are_named_by_an_exception_s_end(url):
    status, words = last_words(f"""
        fsspec.filesystem("cairn").pipe({url!r} + "/step-1/data", b"1")
        raise ZeroDivisionError
        """)
    assert status == 1 and "ZeroDivisionError" in words and words.count("was not committed") == 1


def test_what_is_written_after_an_interrupted_commit_counts(url, monkeypatch):
    """The interrupted one goes on, or is given up; it is not what a later one of the step reports as its own."""
    def interrupted(*_):
        raise KeyboardInterrupt

    fs = fsspec.filesystem("cairn")
    write(f"{url}/step-1/a", b"first")
    monkeypatch.setattr(cairn.fs.runs.Runs, "_committed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        fs.seal(f"{url}/step-1")
    monkeypatch.undo()
    write(f"{url}/step-1/a", b"second")
    fs.seal(f"{url}/step-1")
    assert fs.cat(f"{url}/step-1/a") == b"second"


def test_what_is_being_committed_is_neither_removed_nor_renamed(url, monkeypatch):
    """libcairn reads the files' memory then. Method: another caller comes just before the save begins."""
    fs, step = fsspec.filesystem("cairn"), f"{url}/step-7"
    write(f"{step}/a.bin", b"abc")
    start = cairn.fs.remote.Committer.start

    def meet_another(self, step_number, files, index, name):
        addresses = [content.address() for content in files.values()]
        for change in (lambda: fs.rm(step, recursive=True), lambda: fs.rm(f"{step}/a.bin"),
                       lambda: fs.mv(f"{step}/a.bin", f"{step}/b.bin")):
            with pytest.raises(cairn.BusyError, match="being committed"):
                change()
        assert addresses == [content.address() for content in files.values()]
        return start(self, step_number, files, index, name)

    monkeypatch.setattr(cairn.fs.remote.Committer, "start", meet_another)
    fs.seal(step)
    assert fs.cat(f"{step}/a.bin") == b"abc"


def test_many_threads(url):
    fs, data = fsspec.filesystem("cairn"), {f"f{n}": os.urandom(5000 + n) for n in range(16)}
    threads = [threading.Thread(target=fs.pipe_file, args=(f"{url}/step-1/{name}", value))
               for name, value in data.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fs.seal(f"{url}/step-1")
    assert {name.rsplit("/", 1)[1]: value for name, value in fs.cat(fs.find(f"{url}/step-1")).items()} == data


def test_a_tree_that_another_rank_seals_is_not_read_before_the_end(url, monkeypatch):
    """The sealer may go on while this process has not heard yet: what it asks for then is not its own old files.

    Both calls wait for the end and then run in any order, so the second writes a file that the first does not read.
    """
    heard = {}

    class Meeting:
        def watch(self, on_seal, on_go):
            heard.update(on_seal=on_seal, on_go=on_go)

        def leave(self):
            pass

    monkeypatch.setattr(cairn.fs.runs, "meeting_of", lambda run_url, step: Meeting())
    fs = fsspec.filesystem("cairn")
    write(f"{url}/step-1/x", b"1")
    assert fs.exists(f"{url}/step-1/x") and heard["on_seal"]() == {"x": 1}
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        calls = [pool.submit(fs.cat, f"{url}/step-1/x"), pool.submit(write, f"{url}/step-1/y", b"22")]
        assert not concurrent.futures.wait(calls, 0.3).done
        heard["on_go"](None)  # nothing was committed
        with pytest.raises(FileNotFoundError):
            calls[0].result(60)
        calls[1].result(60)
    assert fs.cat(f"{url}/step-1/y") == b"22"
    fs.rm(f"{url}/step-1")


def test_rule_09_identity_is_the_run_s_name():
    assert strip("cairn+unix:///a/b.sock?run=p/r/step-1/x") == "unix%3A%2Fa%2Fb.sock/p/r/step-1/x"
    place = place_of("cairn+unix:///a/b.sock?run=p/r/step-1/x/y")
    assert (place.run_url, place.step, place.inner) == ("cairn+unix:///a/b.sock?run=p/r", 1, "x/y")
    place = place_of("cairn:///p/r/iter_0000100")
    assert (place.run_url, place.step, place.inner) == ("cairn:///p/r", 100, "")
    assert place_of("cairn://h:1,i:2/p/r/").step is None
    for bad in ("cairn://h:1/p", "cairn://h:1/p/r/latest/x"):
        with pytest.raises(cairn.InvalidError):
            place_of(bad)


def test_fsspec_finds_it_by_its_entry_point():
    assert elsewhere("""
        import sys
        print(fsspec.get_filesystem_class("cairn").__name__, fsspec.get_filesystem_class("cairn+unix").__name__,
              "torch" in sys.modules)
        """) == "CairnFileSystem CairnFileSystem False"


def test_folders_before_the_step(url):
    """A folder between the run and the checkpoints, as Ray and Lightning's loggers make one."""
    fs = fsspec.filesystem("cairn")
    assert not fs.exists(f"{url}/exp") and fs.exists(url)
    fs.makedirs(f"{url}/exp/trial")
    assert fs.isdir(f"{url}/exp/trial") and fs.ls(f"{url}/exp", detail=False) == [f"{fs._strip_protocol(url)}/exp/trial"]
    fs.rmdir(f"{url}/exp/trial")
    fs.pipe(f"{url}/exp/trial/epoch=1-step=5.ckpt", b"five")
    with fs.open(f"{url}/exp/step-6/model.pt", "wb") as file:
        file.write(b"six")
    assert fs.exists(f"{url}/exp/step-6/model.pt") and not fs.exists(f"{url}/step-6")  # not committed yet
    fs.seal(f"{url}/exp/step-6")
    fs.pipe(f"{url}/step=7.ckpt", b"seven")
    for look in (fs, cairn.fs.CairnFileSystem(skip_instance_cache=True)):  # the second knows what the server says alone
        root = look._strip_protocol(url)
        assert look.ls(url, detail=False) == [f"{root}/exp", f"{root}/step-7"]
        assert look.ls(f"{url}/exp", detail=False) == [f"{root}/exp/trial", f"{root}/exp/step-6"]
        assert look.cat(f"{url}/exp/trial/epoch=1-step=5.ckpt") == b"five" == look.cat(f"{url}/exp/trial/step-5")
        assert look.cat(f"{url}/exp/step-6/model.pt") == b"six"
        for absent in ("step-5", "exp/step-5", "exp/epoch=1-step=5.ckpt", "exp/trial/step-6", "other", "exp/other", "exp/step-7"):
            assert not look.exists(f"{url}/{absent}"), absent
        assert sorted(look.find(url)) == [f"{root}/exp/step-6/model.pt", f"{root}/exp/trial/step-5", f"{root}/step-7"]
    with pytest.raises(cairn.UnsupportedError, match="whole checkpoint"):
        fs.rm(f"{url}/exp", recursive=True)
    fs.rm(f"{url}/exp/trial/epoch=1-step=5.ckpt")
    assert not fs.exists(f"{url}/exp/trial")
    with pytest.raises(cairn.InvalidError, match="'exp/last.ckpt' has no step"):
        fs.pipe(f"{url}/exp/last.ckpt", b"")


def test_a_write_of_the_system_that_is_short_is_gone_on_with(url):
    """As one of more than 2 GiB is: torch.save does not look how much was written. Here a limit makes one short."""
    file = fsspec.filesystem("cairn").open(f"{url}/step-1/big", "wb")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="too large"):
            file.write(bytes(3 << 20))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        file.discard()
