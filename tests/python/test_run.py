# SPDX-License-Identifier: Apache-2.0
"""tests/python/run chooses its interpreter: --newest takes the newest one that runs and for which PyTorch can be had."""

import pathlib
import shutil
import subprocess

import pytest

RUN = pathlib.Path(__file__).with_name("run")
TOOLS = ("bash", "cat", "dirname", "env", "realpath", "rm", "sort", "timeout", "mkdir", "chmod")


@pytest.fixture
def machine(tmp_path):
    """A function that adds a command to a PATH without any Python, and one that runs the script on it."""
    folder, build = tmp_path / "path", tmp_path / "build"
    for made in (folder, build / "bin"):
        made.mkdir(parents=True)
    shutil.copy(shutil.which("true"), build / "bin" / "cairnd")
    for tool in TOOLS:
        (folder / tool).symlink_to(shutil.which(tool))

    def add(name, script):
        (folder / name).write_text(f"#!/bin/bash\n{script}\n")
        (folder / name).chmod(0o755)

    def run():
        done = subprocess.run([RUN, "--newest", build], env={"PATH": str(folder)}, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
        return done, build

    return add, run


def interpreter(version):
    """One that can make a venv, in which pip installs nothing."""
    return f"""
[ "$1" != -c ] || {{ echo {version} "$0"; exit; }}
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho no wheel >&2; exit 1\\n' >"$3/bin/pip"
chmod 755 "$3/bin/pip"
"""


def test_the_newest_that_runs_is_tried_first(machine):
    add, run = machine
    add("python3.97", interpreter("3.97.1"))
    add("python3.99", interpreter("3.99.0"))
    add("python3.98", "echo 'python3.98: command not found' >&2; exit 127")  # as pyenv's are that are not selected
    add("python3", interpreter("3.11.0"))  # older than the system's, or no newer
    done, build = run()
    assert done.returncode == 77, done.stderr
    tried = [line.split()[2] for line in done.stdout.splitlines() if ": Python " in line]
    assert tried == ["3.99.0", "3.97.1"]
    assert "pip cannot install torch==" in (build / "venv-newest.skipped").read_text()
    assert "no wheel" in (build / "python-install-newest.log").read_text()


def test_the_system_s_alone_is_said(machine):
    _, run = machine
    done, build = run()
    assert done.returncode == 77 and "no Python here is newer than the system's 3." in done.stderr
    assert "no Python here is newer" in (build / "venv-newest.skipped").read_text()
