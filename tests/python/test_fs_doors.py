# SPDX-License-Identifier: Apache-2.0
"""Nothing that was written by a path is lost silently. By each door a file is committed, or its loss is told on stderr and the
process fails; only a process that is killed, or that calls os._exit, ends without a word, and then nothing is listed."""

import os
import subprocess
import sys
import textwrap

import pytest

from conftest import steps_of

DOORS = {
    "pipe": "fs.pipe(url + '/step-1/data', b'1')",
    "open and close": "f = fs.open(url + '/step-1/data', 'wb'); f.write(b'1'); f.close()",
    "open as text": "f = fsspec.open(url + '/step-1/data', 'w').open(); f.write('1'); f.close()",
    "left open": "f = fs.open(url + '/step-1/data', 'wb'); f.write(b'1')",
    "put": "fs.put(here, url + '/step-1/data')",
    "a folder put": "fs.put(os.path.dirname(here) + '/fs', url + '/step-1/', recursive=True)",
    "touch": "fs.touch(url + '/step-1/data')",
    "copy": "fs.pipe(url + '/last', b'1'); fs.cp(url + '/last', url + '/step-1/data')",
    "rename": "fs.pipe(url + '/step-1/tmp', b'1'); fs.mv(url + '/step-1/tmp', url + '/step-1/data')",
    "transaction": "fs.start_transaction(); fs.pipe(url + '/step-1/data', b'1'); fs.end_transaction()",
}


def end_of(url, code):
    """(exit status, stderr) of a process that runs code."""
    head = f"import os, sys, fsspec, cairn.fs\nfs, url, here = fsspec.filesystem('cairn'), {url!r}, cairn.__file__\n"
    done = subprocess.run([sys.executable, "-c", head + textwrap.dedent(code)], text=True, timeout=60, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, env=os.environ)
    return done.returncode, done.stderr


@pytest.mark.parametrize("door", DOORS)
def test_a_folder_that_is_not_sealed_fails_the_process(url, door):
    status, words = end_of(url, DOORS[door])
    assert status == 1 and words.count("/step-1 was not committed") == 1 and "lost: '" in words, words
    assert steps_of(url) == []


@pytest.mark.parametrize("door", [door for door in DOORS if door != "left open"])
def test_a_folder_that_is_sealed_is_durable(url, door):
    status, words = end_of(url, f"{DOORS[door]}\ncairn.fs.seal(url + '/step-1')\nos._exit(0)")
    assert (status, words) == (0, "") and steps_of(url) == [1]


def test_a_file_by_itself_is_durable_when_it_is_closed(url):
    code = "fs.pipe({url + '/last.ckpt': b'1', url + '/step=3.ckpt': b'3'})\nos._exit(0)"
    assert end_of(url, code) == (0, "") and steps_of(url) == [3] and steps_of(f"{url}.last.ckpt") == [1]


def test_what_is_not_wanted_is_no_loss(url):
    assert end_of(url, "fs.makedirs(url + '/step-1/sub')") == (0, "")
    assert end_of(url, "fs.pipe(url + '/step-1/data', b'1')\nfs.rm(url + '/step-1', recursive=True)") == (0, "")
    assert end_of(url, "with fs.open(url + '/step-1/data', 'wb') as f:\n  f.discard()") == (0, "")
    assert steps_of(url) == []


def test_a_failure_s_own_status_stays(url):
    write = DOORS["pipe"]
    for end, expected in (("sys.exit(3)", 3), ("raise KeyError('the program')", 1), ("sys.exit(0)", 1)):
        status, words = end_of(url, f"{write}\n{end}")
        assert status == expected and words.count("was not committed") == 1
    status, words = end_of(url, "with fs.open(url + '/step-1/data', 'wb') as f:\n  raise KeyError('torn')")
    assert status == 1 and "was not committed" not in words and "KeyError" in words  # the exception tells of it
    assert end_of(url, f"{write}\nos._exit(0)") == (0, "")  # nobody hears of that end
    assert steps_of(url) == []


def test_output_that_is_not_flushed_comes_out(url):
    code = f"import fsspec\nprint('the last line')\nfsspec.filesystem('cairn').pipe({url!r} + '/step-1/a', b'1')"
    done = subprocess.run([sys.executable, "-c", code], text=True, timeout=60, capture_output=True)
    assert (done.returncode, done.stdout) == (1, "the last line\n")


def test_a_child_that_loses_files_fails(url):
    for method in ("fork", "spawn"):
        status, words = end_of(url, f"""
            import multiprocessing
            write = "import fsspec; print('said'); fsspec.filesystem('cairn').pipe('{url}/step-1/data', b'1')"
            child = multiprocessing.get_context({method!r}).Process(target=exec, args=(write, {{}}))
            child.start()
            child.join()
            print(child.exitcode, file=sys.stderr)
            """)
        assert status == 0 and words.count("was not committed") == 1 and words.endswith("\n1\n"), (method, words)
    status, words = end_of(url, f"""
        if os.fork() == 0:
            fsspec.filesystem('cairn', skip_instance_cache=True).pipe(url + '/step-1/data', b'1')
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.wait()[1]), file=sys.stderr)
        """)
    assert status == 0 and words.count("was not committed") == 1 and words.endswith("\n1\n")
    status, words = end_of(url, f"{DOORS['pipe']}\nif os.fork() == 0:\n  sys.exit(0)\nos.wait()\ncairn.fs.seal(url + '/step-1')")
    assert (status, words) == (0, "") and steps_of(url) == [1]  # the parent's files are the parent's
