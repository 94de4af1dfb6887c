# SPDX-License-Identifier: Apache-2.0
"""fsspec's own suite for file systems, as its package ships it: inside a checkpoint that is being written, and in a folder
whose path holds no step, where each file is committed when it is closed."""

import os

import fsspec
import pytest
from fsspec.tests import abstract


class Cairn(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("cairn")

    # Each file of "exp" is a commit of its own, so that takes minutes: tests/reach runs it.
    @pytest.fixture(params=os.environ.get("CAIRN_FSSPEC_FOLDERS", "step-1").split())
    def fs_path(self, fs, url, request):
        folder = f"{fs._strip_protocol(url)}/{request.param}"
        yield folder
        if fs.exists(folder):
            fs.rm(folder, recursive=True)


class TestCopy(Cairn, abstract.AbstractCopyTests):
    pass


class TestGet(Cairn, abstract.AbstractGetTests):
    pass


class TestOpen(Cairn, abstract.AbstractOpenTests):
    pass


class TestPipe(Cairn, abstract.AbstractPipeTests):
    pass


class TestPut(Cairn, abstract.AbstractPutTests):
    pass
