# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own storage tests pass against Cairn. Their files are read from a source tree of PyTorch, with theirs.py
imported first.

    CAIRN_PYTORCH_SOURCE=~/pytorch tests/python/run BUILD-FOLDER test_dcp_theirs.py

The tree is of the release that is installed; their tests need ``pip install expecttest`` in BUILD-FOLDER/venv. What needs GPUs
skips itself. CAIRN_PYTORCH_MODULES names other files below test/distributed/checkpoint, with spaces between them. Without a
tree a few cases of the same kind run (theirs_sample.py).
"""

import os
import pathlib
import re
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).resolve().parent
SOURCE = os.environ.get("CAIRN_PYTORCH_SOURCE")
MODULES = os.environ.get("CAIRN_PYTORCH_MODULES", "test_file_system_checkpoint_cpu.py test_file_system_checkpoint.py").split()
DEADLINE_S = 900


def run(module, folder, daemon):
    """Its cases in a process of their own; each process that they start imports the same file. How many passed."""
    copy = folder / module.name
    copy.write_text(f"import theirs  # noqa\n{module.read_text(encoding='utf-8')}", encoding="utf-8")
    env = {**os.environ, "CAIRN_THEIRS_URL": daemon.url("theirs-"),
           "PYTHONPATH": os.pathsep.join([str(HERE), str(folder), os.environ.get("PYTHONPATH", "")])}
    done = subprocess.run([sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), copy.name],
                          cwd=folder, env=env, capture_output=True, text=True, timeout=DEADLINE_S, check=False)
    assert done.returncode == 0, f"{module.name}:\n{done.stdout[-8000:]}{done.stderr[-4000:]}"
    print(done.stdout.splitlines()[-1])
    passed = re.search(r"(\d+) passed", done.stdout)
    return int(passed.group(1)) if passed else 0


def test_cases_of_their_kind(tmp_path, daemon):
    assert run(HERE / "theirs_sample.py", tmp_path, daemon) == 5


@pytest.mark.skipif(not SOURCE, reason="CAIRN_PYTORCH_SOURCE names no source tree of PyTorch")
@pytest.mark.parametrize("name", MODULES)
def test_their_own(name, tmp_path, daemon):
    run(pathlib.Path(SOURCE).expanduser() / "test/distributed/checkpoint" / name, tmp_path, daemon)
