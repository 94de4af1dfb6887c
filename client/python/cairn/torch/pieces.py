# SPDX-License-Identifier: Apache-2.0
"""A model that a framework has cut into flat tensors in its own way, as plain PyTorch would have it: every parameter under its
name, with this rank's piece of it. FSDP1's flat tensors are found by fsdp.py; DeepSpeed's are given as Pieces."""

from __future__ import annotations

from typing import Iterable, Iterator, Mapping, NamedTuple, Sequence

import torch

from .fsdp import FlatParam
from .sharded import Layouts, Sharded


class Piece(NamedTuple):
    """This rank's range of a parameter's row-major elements.

    Attributes:
        name: The parameter's name in its model.
        shape: The parameter's whole shape.
        begin: The first element of the range; 0 if the range is empty.
        local: The elements, of dimension 1; its memory is what a save reads and a restore fills.
        holders: The global ranks that have elements of this parameter, each a range of its own.
    """

    name: str
    shape: Sequence[int]
    begin: int
    local: torch.Tensor
    holders: Sequence[int]


class Pieces(torch.nn.Module):
    """The model as a value of a state.

    Args:
        pieces: What this rank has of each parameter that is cut.
        whole: Parameters that each rank has as a whole, by name.
        buffers: (buffer, whether it is persistent) by name. The first rank's values are saved.
        ranks: The global ranks of all replicas.

    Attributes:
        piece_params: The parameter of each piece by its name, to be given to an optimizer.
        first_ranks: What naming.Walk calls ``synced``.
    """

    def __init__(self, pieces: Iterable[Piece], whole: Mapping[str, torch.Tensor], buffers: Mapping[str, tuple],
                 ranks: Sequence[int]) -> None:
        super().__init__()
        self._pieces = list(pieces)
        self.piece_params = {piece.name: torch.nn.Parameter(piece.local, requires_grad=False) for piece in self._pieces}
        for name, param in self.piece_params.items():
            self._home(name).register_parameter(name.rpartition(".")[2], param)
        for name, param in whole.items():
            self._home(name).register_parameter(name.rpartition(".")[2], torch.nn.Parameter(param.detach(), requires_grad=False))
        for name, (buffer, persistent) in buffers.items():
            self._home(name).register_buffer(name.rpartition(".")[2], buffer, persistent=persistent)
        self.first_ranks = {id(buffer): ranks for buffer, _ in buffers.values()}

    def _home(self, name: str) -> torch.nn.Module:
        """Returns the module that has the parameter or buffer of this name, made where it is new."""
        module: torch.nn.Module = self
        for part in name.split(".")[:-1]:
            if part not in module._modules:
                module.add_module(part, torch.nn.Module())
            module = module._modules[part]  # type: ignore[assignment]
        return module

    def flat_params(self, key: str, layouts: Layouts) -> Iterator[FlatParam]:
        """Yields the pieces, as fsdp.flat_params does."""
        for piece in self._pieces:
            path, count = f"{key}.{piece.name}", piece.local.numel()
            layout = layouts.flat(path, piece.shape, piece.begin, piece.begin + count, [layouts.me])
            yield FlatParam(self.piece_params[piece.name], Sharded(piece.local, layout),
                            layouts.whole(path, (), piece.holders) if count else None)
