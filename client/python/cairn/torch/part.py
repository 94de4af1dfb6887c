# SPDX-License-Identifier: Apache-2.0
"""What every part of a state has in common; parts.py and optim.py hold the kinds.

Each part has five steps, called in this order: ``collect`` (save) gives a tree with live tensors in it;
``plan`` (restore) says where stored arrays go and touches nothing; ``apply`` runs after the arrays have come;
``verify`` holds the live state against what was stored.
"""

from __future__ import annotations

from typing import Any, Callable, Optional

from ..errors import FormatError
from ..tree import Ref
from .naming import Names
from .plan import Plan
from .sharded import Layouts


class CairnWarning(UserWarning):
    """A warning of a restore about a result that may surprise: a reseeded RNG, tied weights restored into an untied model."""


class Part:
    """One key of the state. ``coordinate`` is set for parts that belong to the rank; ``layouts`` knows the ranks."""

    kind = ""

    def __init__(self, key: str, obj: Any, layouts: Layouts, coordinate: Optional[str] = None) -> None:
        self.key, self.obj, self.layouts, self.coordinate = key, obj, layouts, coordinate

    def _field(self, stored: dict, name: str, kind: Optional[type] = None) -> Any:
        """Returns a field of the stored part, of this type if one is given. Raises FormatError."""
        if name not in stored or (kind is not None and type(stored[name]) is not kind):
            raise FormatError.of(f"{self.key}: the stored state has no {name!r}: another version of Cairn wrote it")
        return stored[name]

    def live_names(self, names: Names) -> list:
        """Returns the names that a restore may select in this part, beside its key."""
        return []

    def collect(self, names: Names) -> dict:
        raise NotImplementedError

    def with_own(self, stored: dict, own: dict, find: Callable[[str], Optional[Ref]]) -> dict:
        """Returns ``stored`` as this rank had it. ``find`` returns the array that the checkpoint holds under a name."""
        return own

    def plan(self, stored: dict, plan: Plan, names: Names) -> None:
        raise NotImplementedError

    def apply(self, plan: Plan) -> None:
        raise NotImplementedError

    def verify(self, plan: Plan) -> None:
        raise NotImplementedError
