# SPDX-License-Identifier: Apache-2.0
"""Lists of names for messages, and the stored name that resembles a missing one most."""

from __future__ import annotations

import difflib
from typing import Sequence

_SHOWN_MAX = 10
_COMPARED_MAX = 2000  # names; comparing is quadratic


def listed(names: Sequence[str]) -> str:
    """Returns a text with the first names and the number of the others."""
    shown = ", ".join(names[:_SHOWN_MAX])
    return shown + (f" and {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else "")


def pairs(missing: Sequence[str], unexpected: Sequence[str]) -> list:
    """Returns pairs of a missing name and the stored name that it resembles, for the names that a message will show.

    The part of the state (before the first dot) must be the same. If just one whole part is missing and just one is
    unexpected, they are a pair whatever they are called.
    """
    found, left = [], list(unexpected[:_COMPARED_MAX])
    keys = [name for name in missing if "." not in name]
    for name in missing[:_SHOWN_MAX]:
        part = name.partition(".")[0]
        if name == part:
            others = [other for other in left if "." not in other]
            close = difflib.get_close_matches(name, others, 1, 0.5) or (others if len(keys) == len(others) == 1 else [])
            if close:
                found.append((name, close[0]))
                left.remove(close[0])
            continue
        same_part = [other for other in left if other.partition(".")[0] == part and other != part]
        close = difflib.get_close_matches(name, same_part, 1, 0.7)
        if not close:  # a prefix more or less: the same tail
            close = [other for other in same_part if other.endswith(name.partition(".")[2])
                     or name.endswith(other.partition(".")[2])][:1]
        if close:
            found.append((name, close[0]))
            left.remove(close[0])
    return found


def explain(missing: Sequence[str], unexpected: Sequence[str]) -> str:
    """Returns the text of the error of a strict restore."""
    text = "the state and the checkpoint hold different things: "
    placed = [name for name in missing if name in unexpected]
    if placed:
        text += (f"{listed(placed)}: a rank's own in the one (per_rank, torch.Generator) and everybody's in the other: say it as it "
                 "was said in the save; ")
        missing = [name for name in missing if name not in placed]
        unexpected = [name for name in unexpected if name not in placed]
    if missing:
        text += f"the checkpoint lacks {listed(missing)}"
    if missing and unexpected:
        text += "; "
    if unexpected:
        text += f"the state lacks {listed(unexpected)}"
    if placed and not missing and not unexpected:
        text = text.removesuffix("; ")
    renamed = pairs(missing, unexpected)
    if renamed:
        text += "; renamed? " + ", ".join(f"{name} is perhaps the stored {other}" for name, other in renamed)
    return text + "; strict=False restores what both have"


def ranks_text(ranks: Sequence[int]) -> str:
    """Returns the ranks for people, the first eight of them by number."""
    shown = ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
