# SPDX-License-Identifier: Apache-2.0
"""The programs of the guide's pages about frameworks. A page has one whole program; its fence says that tests/reach runs it."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FRAMEWORKS = ("lightning", "transformers", "accelerate")
_PROGRAM = re.compile(r"^```python no-run tests/reach [^\n]*\n(.*?)^```$", re.M | re.S)


def program_of(framework):
    """Returns the text of the framework's program."""
    program, = _PROGRAM.findall((ROOT / "docs" / f"{framework}.md").read_text(encoding="utf-8"))
    return program
