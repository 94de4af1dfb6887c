# SPDX-License-Identifier: Apache-2.0
"""A file whose name holds no step (last.ckpt) is durable when it is closed: reading it gives what was written last, by any
process, and retention never takes that."""

import subprocess
import sys
import textwrap
import threading

import fsspec
import pytest

import cairn
import cairn.fs
from conftest import steps_of


def write(url, data, mode="wb", **options):
    with fsspec.open(url, mode, **options) as file:
        file.write(data)


def elsewhere(code):
    """Runs code in another process; its output."""
    code = "import fsspec, cairn.fs\nfs = fsspec.filesystem('cairn')\n" + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", code], text=True, check=True, stdout=subprocess.PIPE, timeout=60).stdout.strip()


def names(rows):
    return [row["name"].rsplit("/", 1)[1] for row in rows]


def test_what_was_written_last_is_read(url):
    fs, path = fsspec.filesystem("cairn"), f"{url}/last.ckpt"
    assert not fs.exists(path) and fs.ls(url) == []
    for number in range(3):
        write(path, b"%d" % number)
        assert fs.cat(path) == b"%d" % number and elsewhere(f"print(fs.cat({path!r}))") == f"b'{number}'"
    assert fs.isfile(path) and fs.size(path) == 1 and fs.modified(path) >= fs.modified(path)
    write(f"{url}/step-7/a", b"x")
    cairn.fs.seal(f"{url}/step-7")
    assert names(fs.ls(url)) == ["step-7", "last.ckpt"] and elsewhere(f"print(len(fs.ls({url!r})))") == "2"
    assert steps_of(url) == [7]  # the run's own checkpoints are what they were
    assert steps_of(f"{url}.last.ckpt") == [3, 2, 1]
    elsewhere(f"fs.pipe({path!r}, b'by another')")
    assert fs.cat(path) == b"by another"
    with pytest.raises(cairn.FencedError):  # a process that another one has succeeded does not write over its file
        write(path, b"too late")
    assert fs.cat(path) == b"by another"


def test_a_listed_name_finds_its_file_system_by_itself(url):
    """Lightning resumes from ``last`` by what os.path.normpath leaves of it."""
    write(f"{url}/last.ckpt", b"1")
    name, = fsspec.filesystem("cairn").ls(url, detail=False)
    child, path = fsspec.core.url_to_fs(name)
    assert isinstance(child, cairn.fs.CairnFileSystem) and child.cat(name) == b"1" and child.modified(name).year > 2000
    assert child.unstrip_protocol(name).startswith("cairn://") and child.cat(child.unstrip_protocol(name)) == b"1"


def test_torn_files_leave_what_was_there(url):
    fs, path = fsspec.filesystem("cairn"), f"{url}/last.ckpt"
    with pytest.raises(ZeroDivisionError):
        with fs.open(path, "wb") as file:
            file.write(b"torn")
            1 / 0
    assert not fs.exists(path)
    write(path, b"whole")
    with pytest.raises(KeyError):
        with fs.transaction, fs.open(path, "wb") as file:
            file.write(b"torn")
            raise KeyError
    with pytest.raises(FileExistsError):
        write(path, b"x", "xb")
    first = fs.open(path, "wb")
    with pytest.raises(FileExistsError, match="already open"):
        fs.open(path, "wb")
    first.discard()
    assert fs.cat(path) == b"whole"
    with fs.transaction:
        write(path, b"newer")
        assert fs.cat(path) == b"whole"
    assert fs.cat(path) == b"newer"


def test_removed_renamed_and_copied(url):
    fs = fsspec.filesystem("cairn")
    write(f"{url}/last.ckpt.tmp", b"1")
    fs.mv(f"{url}/last.ckpt.tmp", f"{url}/last.ckpt")
    fs.mv(f"{url}/last.ckpt", f"{url}/last.ckpt")
    assert names(fs.ls(url)) == ["last.ckpt"] and fs.cat(f"{url}/last.ckpt") == b"1"
    fs.cp(f"{url}/last.ckpt", f"{url}/names")  # the list's own name is a file's as well
    fs.rm(f"{url}/last.ckpt")
    assert not fs.exists(f"{url}/last.ckpt") and elsewhere(f"print([fs.cat(row['name']) for row in fs.ls({url!r})])") == "[b'1']"
    with pytest.raises(FileNotFoundError):
        fs.rm(f"{url}/last.ckpt")
    write(f"{url}/last.ckpt", b"again")
    assert fs.cat(f"{url}/last.ckpt") == b"again"


@pytest.mark.parametrize("name", ["v" * 200, "käse & co.txt", "-"])
def test_any_name_is_a_file(url, name):
    fs = fsspec.filesystem("cairn")
    write(f"{url}/{name}", name.encode())
    assert fs.cat(f"{url}/{name}") == name.encode() and names(fs.ls(url)) == [name]


def test_files_of_one_folder_need_a_step(url):
    """They would be committed one by one."""
    with pytest.raises(cairn.InvalidError, match="stands in the run itself"):
        write(f"{url}/best/model.bin", b"x")
    write(f"{url}/exp/step-1", b"x")
    with pytest.raises(cairn.InvalidError, match="is a folder"):
        write(f"{url}/exp", b"x")


def test_names_that_processes_add_at_the_same_time_are_all_listed(url):
    """Each of six processes commits a list that may lack the others' names."""
    errors = []

    def one(number):
        try:
            elsewhere(f"fs.pipe('{url}/{chr(97 + number)}', b'x')")
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors and names(fsspec.filesystem("cairn").ls(url)) == list("abcdef")


def test_the_newest_content_is_kept_by_retention(url, cli):
    """One list of names, and the newest content of each file, whatever a policy says."""
    fs = fsspec.filesystem("cairn")
    for number in range(5):
        write(f"{url}/last.ckpt", b"%d" % number)
    write(f"{url}/other", b"o")
    for beside in (f"{url}.last.ckpt", f"{url}.other", f"{url}.names"):
        cli("forget", beside.partition("run=")[2], "--keep-last", "1", "--keep-least", "1", "--now")
    assert len(steps_of(f"{url}.last.ckpt")) < 5
    assert elsewhere(f"print(fs.cat('{url}/last.ckpt'), fs.cat('{url}/other'))") == "b'4' b'o'"
    assert names(fs.ls(url)) == ["last.ckpt", "other"]
