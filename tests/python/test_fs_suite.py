# SPDX-License-Identifier: Apache-2.0
"""fsspec's own abstract suite, over a checkpoint that is being written: copy, get, put, open and pipe do what fsspec documents."""

import fsspec
import pytest
from fsspec.tests.abstract import AbstractFixtures
from fsspec.tests.abstract.copy import AbstractCopyTests
from fsspec.tests.abstract.get import AbstractGetTests
from fsspec.tests.abstract.open import AbstractOpenTests
from fsspec.tests.abstract.pipe import AbstractPipeTests
from fsspec.tests.abstract.put import AbstractPutTests


class Fixtures(AbstractFixtures):
    @pytest.fixture
    def fs(self):
        return fsspec.filesystem("cairn")

    @pytest.fixture
    def fs_path(self, url):
        fs = fsspec.filesystem("cairn")
        yield fs._strip_protocol(f"{url}/step-1")
        if fs.exists(f"{url}/step-1"):
            fs.rm(f"{url}/step-1", recursive=True)  # what is left unsealed fails the process


class TestCopy(AbstractCopyTests, Fixtures):
    pass


class TestGet(AbstractGetTests, Fixtures):
    pass


class TestOpen(AbstractOpenTests, Fixtures):
    pass


class TestPipe(AbstractPipeTests, Fixtures):
    pass


class TestPut(AbstractPutTests, Fixtures):
    pass
