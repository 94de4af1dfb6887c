# SPDX-License-Identifier: Apache-2.0
"""State that belongs to one rank: generators, data loaders. It is stored under a logical coordinate (dp=3,tp=0), because
another launch may give the same rank number to another rank."""

from __future__ import annotations

import re
from typing import Any, Callable, Mapping, Optional, Sequence, Union

import torch

from ..errors import InvalidError, UnsupportedError


# Classes whose objects are at another place on each rank, by a word in the name of one of their bases: PyTorch's DataLoader and
# Sampler, torchdata's, those of frameworks, a user's own.
_OF_A_RANK = re.compile(r"(loader|sampler|dataset|generator)", re.IGNORECASE)


def rule_of(obj: Any) -> Optional[str]:
    """Returns ``on_reshape`` for an object that belongs to the rank without a per_rank(), or None for any other object."""
    if isinstance(obj, torch.Generator):
        return "reseed"
    if isinstance(obj, (torch.nn.Module, torch.optim.Optimizer)) or not callable(getattr(obj, "state_dict", None)):
        return None
    return "same" if any(_OF_A_RANK.search(base.__name__) for base in type(obj).__mro__) else None


class PerRank:
    """An object of ``state`` whose own state differs from rank to rank. ``per_rank`` makes it.

    Args:
        obj: As in ``per_rank``.
        on_reshape: As in ``per_rank``.
    """

    def __init__(self, obj: Any, on_reshape: Union[str, Callable]) -> None:
        if on_reshape not in ("error", "reseed") and not callable(on_reshape):
            raise InvalidError.of(f'per_rank: on_reshape is {on_reshape!r}; it must be "error", "reseed" or a callable')
        self.obj, self.on_reshape = obj, on_reshape


def per_rank(obj: Any, on_reshape: Union[str, Callable[[list, int, int], Any]] = "error") -> PerRank:
    """Marks an object whose state differs from rank to rank (a data loader, a sampler), for ``state``.

    Args:
        obj: The object, with ``state_dict`` and ``load_state_dict``.
        on_reshape: What happens when the ranks' coordinates have changed (another world size, another mesh): "error"
            raises; "reseed" leaves the object as it is, with a warning; a function of (states of all old ranks, rank,
            world size) returns this rank's state.

    Returns:
        A wrapper to put into ``state`` in place of the object.
    """
    return PerRank(obj, on_reshape)


def coordinate_text(coordinate: Any, rank: int) -> str:
    """Returns the text of a coordinate: a mapping (``{"dp": 3, "tp": 0}``), a DeviceMesh with names, or None for ``rank=3``."""
    if coordinate is None:
        return f"rank={rank}"
    names = getattr(coordinate, "mesh_dim_names", None)
    if hasattr(coordinate, "get_coordinate"):
        at = coordinate.get_coordinate()
        if names is None or at is None:
            raise InvalidError.of("coordinate: the device mesh must have mesh_dim_names and contain this rank")
        coordinate = dict(zip(names, at))
    if not isinstance(coordinate, Mapping) or not coordinate:
        raise InvalidError.of(f"coordinate is {coordinate!r}; it must be a mapping such as {{'dp': 3, 'tp': 0}}, or a "
                              "DeviceMesh with names")
    for name, at in coordinate.items():
        if not isinstance(name, str) or not name.isidentifier() or isinstance(at, bool) or not isinstance(at, int):
            raise InvalidError.of(f"coordinate: {name!r}: {at!r} is not a name with a number")
    text = ",".join(f"{name}={at}" for name, at in coordinate.items())
    if len(text) > 120:
        raise InvalidError.of(f"coordinate: {text!r} is longer than 120 characters")
    return text


def check_coordinates(coordinates: Sequence[str]) -> None:
    """Raises InvalidError if two ranks have the same coordinate."""
    seen: dict = {}
    for rank, text in enumerate(coordinates):
        if text in seen:
            raise InvalidError.of(f"coordinate: ranks {seen[text]} and {rank} are both {text}; give each rank its own coordinate")
        seen[text] = rank


def refuse_reshape(key: str, old: Sequence[str], new: Sequence[str]) -> UnsupportedError:
    """Returns the error for on_reshape="error"."""
    if len(old) != len(new):
        return UnsupportedError.of(f"{key}: its state belongs to {len(old)} ranks and cannot be given to {len(new)}; start "
                                   f"with {len(old)} ranks, or use per_rank(obj, on_reshape=\"reseed\", or a callable)")
    return UnsupportedError.of(f"{key}: its states belong to {old[0]} to {old[-1]}, and the ranks are now {new[0]} to "
                               f"{new[-1]}; start with the same mesh, or use per_rank(obj, on_reshape=\"reseed\", or a callable)")
