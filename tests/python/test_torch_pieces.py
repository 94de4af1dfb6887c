# SPDX-License-Identifier: Apache-2.0
"""Pieces: flat tensors of another framework are stored as the parameters that they hold, and come back in place. Several ranks and
DeepSpeed itself: tests/reach/matrix_deepspeed.py."""

import pytest
import torch

from bed import assert_same, optimizer_view, restore, save
from cairn.torch.pieces import Piece, Pieces


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.params = torch.nn.ModuleDict({"first": torch.nn.Linear(3, 5)})  # a name that Pieces must not have itself
        self.norm, self.frozen = torch.nn.BatchNorm1d(5), torch.nn.Linear(5, 2).requires_grad_(False)
        self.register_buffer("scratch", torch.zeros(2), persistent=False)

    def forward(self, x):
        return self.frozen(self.norm(self.params["first"](x)))


def trained(seed):
    torch.manual_seed(seed)
    net = Net()
    optimizer = torch.optim.AdamW([param for param in net.parameters() if param.requires_grad], lr=0.1 * seed)
    for _ in range(2):
        net(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    return net, optimizer


def cut(net, optimizer):
    """Returns (Pieces, an optimizer over them, the flat tensor): copies of what the net has, each parameter behind two of padding."""
    named = [(name, param) for name, param in net.named_parameters() if param.requires_grad]
    flat = torch.zeros(sum(param.numel() + 2 for _, param in named))
    moments = {key: torch.zeros_like(flat) for key in ("exp_avg", "exp_avg_sq")}
    pieces, states, at = [], [], 2
    for name, param in named:
        part = slice(at, at + param.numel())
        flat[part] = param.detach().reshape(-1)
        for key, moment in moments.items():
            moment[part] = optimizer.state[param][key].reshape(-1)
        pieces.append(Piece(name, param.shape, 0, flat[part], [0]))
        states.append({"step": optimizer.state[param]["step"].clone(), **{key: moment[part] for key, moment in moments.items()}})
        at += param.numel() + 2
    model = Pieces(pieces, {name: param.detach().clone() for name, param in net.named_parameters() if not param.requires_grad},
                   {name: (buffer.clone(), name != "scratch") for name, buffer in net.named_buffers()}, [0])
    shadow = torch.optim.AdamW([model.piece_params[piece.name] for piece in pieces], lr=optimizer.param_groups[0]["lr"])
    for piece, state in zip(pieces, states):
        shadow.state[model.piece_params[piece.name]] = state
    return model, shadow, flat


def test_plain_pytorch_goes_on(url):
    net, optimizer = trained(1)
    save(url, dict(zip(("model", "optimizer"), cut(net, optimizer))))
    other, theirs = trained(2)
    restore(url, {"model": other, "optimizer": theirs})
    assert_same(dict(net.state_dict()), dict(other.state_dict()))
    assert_same(optimizer_view(optimizer), optimizer_view(theirs))


def test_it_goes_on_in_place(url):
    """What plain PyTorch has saved comes into the flat tensors, and nothing into the padding."""
    net, optimizer = trained(1)
    save(url, {"model": net, "optimizer": optimizer})
    model, shadow, flat = cut(*trained(2))
    wanted, there, want_flat = cut(net, optimizer)
    restore(url, {"model": model, "optimizer": shadow})
    assert torch.equal(flat, want_flat)
    for name, param in wanted.piece_params.items():
        assert_same(shadow.state[model.piece_params[name]], there.state[param])
    for name, buffer in net.named_buffers():
        assert name == "scratch" or torch.equal(model.get_buffer(name), buffer)


def test_a_piece_that_lacks_elements_is_refused(url):
    """A range that does not tile the parameter is an error by its name, not a checkpoint with a hole."""
    model = Pieces([Piece("weight", torch.Size([4, 2]), 0, torch.ones(7), [0])], {}, {}, [0])
    with pytest.raises(Exception, match="model.weight"):
        save(url, {"model": model})
