# SPDX-License-Identifier: Apache-2.0
"""Which names a restore brings back: patterns with the meaning that they have in cairn.h.

Names are those of errors and of `cairn show`: ``model.0.weight``, ``model.head.extra_state``, ``optim.model.0.weight`` (all
state of that parameter), ``optim.groups[0]``, ``optim.other``, the keys of a dict (``extra.epoch``), and ``cairn.rng``.
A pattern that matches the name of a part ("model") or of anything above a name selects all below it.
"""

from __future__ import annotations

import difflib
import fnmatch
import re
from typing import Any, Iterable, Optional, Sequence

from ..errors import InvalidError, MissingTensorError

RNG = "cairn.rng"
_PATTERNS_MAX = 4096


class Only:
    """Selects names by ``patterns``; None selects everything. Remembers which patterns have matched a name."""

    def __init__(self, patterns: Optional[Sequence[str]] = None) -> None:
        self.is_all = patterns is None
        self._patterns = self._check(patterns) if patterns is not None else []
        self._compiled = [re.compile(fnmatch.translate(pattern)) for pattern in self._patterns]
        self._unused = set(self._patterns)
        self._known: dict = {}  # name -> whether it is selected

    @staticmethod
    def _check(patterns: Any) -> list:
        if isinstance(patterns, (str, bytes)) or not isinstance(patterns, Iterable):
            raise InvalidError.of("restore: only must be a sequence of patterns, such as ['model.*'], not one text")
        patterns = list(patterns)
        for pattern in patterns:
            if not isinstance(pattern, str) or not pattern:
                raise InvalidError.of(f"restore: only has {pattern!r}, which is not a pattern; write a text such as 'model.*'")
        if not patterns or len(patterns) > _PATTERNS_MAX:
            raise InvalidError.of(f"restore: only has {len(patterns)} patterns; it may have 1 to {_PATTERNS_MAX}, and None "
                                  "stands for everything")
        return patterns

    def has(self, name: str, above: str = "") -> bool:
        """Returns whether the name is selected, by itself or by ``above``, the name of the object that it belongs to."""
        if self.is_all:
            return True
        found = self._known.get(name)
        if found is None:
            found = False
            for pattern, compiled in zip(self._patterns, self._compiled):
                if pattern == name or compiled.match(name):
                    self._unused.discard(pattern)
                    found = True
            self._known[name] = found
        by_above = bool(above) and self.has(above)  # asked in any case, so that its pattern counts as used
        return found or by_above

    def check_used(self) -> None:
        """Raises MissingTensorError, with similar names, if a pattern has matched no name."""
        for pattern in self._patterns:
            if pattern in self._unused:
                plain = re.sub(r"[*?]+|\[[^]]*\]", "", pattern)
                close = difflib.get_close_matches(plain, list(self._known)[:4000], 3, 0.5)
                raise MissingTensorError.of(
                    f"restore: only has {pattern!r}, but no name in the state or in the checkpoint matches it"
                    + (f"; perhaps {', '.join(close)}?" if close else "") + "; strict=False ignores it")
