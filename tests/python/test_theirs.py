# SPDX-License-Identifier: Apache-2.0
"""The command for other projects' tests (tests/theirs): a few cases of the kind of PyTorch's run through it by both doors of DCP,
and it tells what has not passed."""

import pathlib
import sys

import pytest

THEIRS = pathlib.Path(__file__).resolve().parents[1] / "theirs"
sys.path.insert(0, str(THEIRS))

import suites  # noqa: E402


@pytest.fixture
def tree(tmp_path):
    """A source tree as PyTorch's, with the sample in it."""
    folder = tmp_path / "source" / suites.SUITES["pytorch-writer"].folder
    folder.mkdir(parents=True)
    (folder / "test_sample.py").write_text((THEIRS / "dcp_sample.py").read_text(encoding="utf-8"), encoding="utf-8")
    (tmp_path / "copies").mkdir()
    return tmp_path / "source"


def cases_of(name, tree, daemon, module="test_sample.py"):
    return suites.run(name, tree, daemon.url("theirs-"), [module], tree.parent / "copies")


@pytest.mark.parametrize("name", ["pytorch-writer", "pytorch-path"])
def test_cases_of_their_kind(name, tree, daemon, capsys):
    assert suites.tell(name, cases_of(name, tree, daemon))
    assert f"{name}: 5 passed, 0 failed, 0 skipped" in capsys.readouterr().out


def test_it_tells_what_has_not_passed(tree, daemon, capsys):
    """A failure, a skip, and a module that cannot be imported; nothing of this counts as passed."""
    folder = tree / suites.SUITES["pytorch-writer"].folder
    (folder / "test_odd.py").write_text("import pytest\ndef test_a(): assert 1 == 2, 'odd'\ndef test_b(): pytest.skip('no GPU')\n"
                                        "def test_c(): pass\n", encoding="utf-8")
    assert not suites.tell("pytorch-writer", cases_of("pytorch-writer", tree, daemon, "test_odd.py"))
    said = capsys.readouterr().out
    assert "failed   test_odd::test_a: AssertionError: odd" in said and "skipped  test_odd::test_b: no GPU" in said
    assert "1 passed, 1 failed, 1 skipped" in said
    (folder / "test_torn.py").write_text("import nowhere_to_be_found\n", encoding="utf-8")
    assert not suites.tell("pytorch-writer", cases_of("pytorch-writer", tree, daemon, "test_torn.py"))
    assert "nowhere_to_be_found" in capsys.readouterr().out


def test_a_list_that_is_out_of_date_is_told(monkeypatch, capsys):
    monkeypatch.setitem(suites.SUITES, "pytorch-writer", suites.Suite("", (), cannot={"test_x": "because"}))
    assert not suites.tell("pytorch-writer", [suites.Case("test_x", "passed", ""), suites.Case("test_y", "passed", "")])
    assert "PASSED   test_x" in capsys.readouterr().out
    assert suites.tell("pytorch-writer", [suites.Case("test_x", "failed", "it did"), suites.Case("test_y", "passed", "")])
    assert "cannot   test_x: because" in capsys.readouterr().out
