# SPDX-License-Identifier: Apache-2.0
"""How the benchmarks ask Checkpointer for a mode of the snapshot or an encoding; Absent where this build has none."""

import inspect


class Absent(Exception):
    pass


def _knows(method, keyword):
    from cairn.torch import Checkpointer  # not where only peers are measured
    return keyword in inspect.signature(getattr(Checkpointer, method)).parameters


def snapshot(mode):
    """Options of Checkpointer for "copy" or "lazy"."""
    if mode == "copy":
        return {}
    if _knows("__init__", "snapshot"):
        return {"snapshot": mode}
    raise Absent(f"cairn.torch.Checkpointer of this build has no {mode} mode")


def encoding(name):
    """Options of Checkpointer for "default", "raw", "auto" or "dense"."""
    if name == "default":
        return {}
    if _knows("__init__", "encoding"):
        return {"encoding": name}
    raise Absent("cairn.torch.Checkpointer of this build has no encodings to choose from")
