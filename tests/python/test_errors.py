# SPDX-License-Identifier: Apache-2.0
"""The exceptions are the error table's rows, and survive pickling."""

import pickle
import re

import pytest

import cairn
from cairn import _cairn, errors
from cairn.client import DTYPES
from conftest import ROOT

RETRY = ("never", "retry", "later", "resolve")
ROW = re.compile(r'^CAIRN_ERR\((\w+),\s*(-?\d+),\s*"([^"]*)",\s*(\w+),\s*\d+\)', re.M)


def all_classes(cls=errors.CairnError):
    yield cls
    for sub in cls.__subclasses__():
        yield from all_classes(sub)


def test_table_file():
    rows = ROW.findall((ROOT / "proto/base/err.def").read_text())
    assert len(rows) == len(errors.BY_CODE) >= 48
    for name, code, text, retry in rows:
        cls = errors.BY_CODE[int(code)]
        assert (cls.CODE, cls.NAME, cls.SUMMARY, cls.retry) == (int(code), name, text, retry.lower())
        assert cls.__name__ == "".join(word.capitalize() for word in name.split("_")) + "Error"
        assert getattr(cairn, cls.__name__) is cls


def test_table_of_the_library():
    for code, cls in errors.BY_CODE.items():
        name, text, retry = _cairn.error_row(code)
        assert (name, text, RETRY[retry]) == (cls.NAME, cls.SUMMARY, cls.retry)


@pytest.mark.parametrize("cls", sorted(set(all_classes()), key=lambda cls: cls.__name__), ids=lambda cls: cls.__name__)
def test_pickling(cls):
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        error = cls.of("what was tried")
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is cls and again.args == (cls.CODE, cls.NAME, "what was tried")
        assert (again.code, again.name, again.text, str(again)) == (error.code, error.name, error.text, str(error))


def test_from_code():
    assert type(errors.from_code(-14, "x")) is cairn.FencedError
    unknown = errors.from_code(-999, "x")
    assert type(unknown) is cairn.CairnError and unknown.code == -999


def test_dtypes_are_the_table():
    rows = re.findall(r'^CAIRN_DTYPE\(\w+,\s*(\d+),\s*\d+,\s*"(\w+)"', (ROOT / "proto/format/dtype.def").read_text(), re.M)
    assert DTYPES == {name: int(number) for number, name in rows}
