# SPDX-License-Identifier: Apache-2.0
"""Tensors made of others (sparse, subclasses), and every element type, are stored or refused by name."""

import pytest
import torch

import cairn
from bed import assert_same, restore, save, seed
from cairn.torch import Checkpointer, register_subclass
from cairn.torch.arrays import TORCH_NAMES

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
REFUSED = {"quint8", "qint8", "qint32", "quint4x2", "quint2x4", "bits1x8", "bits2x4", "bits4x2", "bits8", "bits16",
           *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))}


def test_torch_12_every_dtype_is_stored_or_refused_by_name(url):
    """A new element type of PyTorch shows up here."""
    every = {str(value)[len("torch."):]: value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    assert set(every) == {str(dtype)[len("torch."):] for dtype in TORCH_NAMES} | REFUSED & set(every)
    for name in sorted(REFUSED & set(every)):
        try:
            value = torch.empty(2, dtype=every[name])
        except (RuntimeError, NotImplementedError):
            continue  # PyTorch itself makes none
        with Checkpointer(url, {"x": {name: value}}) as ck:
            with pytest.raises(cairn.UnsupportedValueError, match=rf"x\.{name}: the tensor .*{name}"):
                ck.save(1)


SPARSE = {
    "coo": lambda t: t.to_sparse(),
    "uncoalesced": lambda t: torch.sparse_coo_tensor([[0, 0], [1, 1]], [1.0, 2.0], t.shape),
    "hybrid": lambda t: t.to_sparse(1),
    "csr": lambda t: t.to_sparse_csr(),
    "csc": lambda t: t.to_sparse_csc(),
    "bsr": lambda t: t.to_sparse_bsr((2, 2)),
    "empty": lambda t: torch.zeros(4, 6).to_sparse(),
}


def parts_of(t):
    names = {torch.sparse_coo: ("_indices", "_values"), torch.sparse_csr: ("crow_indices", "col_indices", "values"),
             torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
             torch.sparse_csc: ("ccol_indices", "row_indices", "values")}[t.layout]
    coalesced = t.is_coalesced() if t.layout is torch.sparse_coo else None
    return [t.layout, tuple(t.shape), coalesced, *(getattr(t.detach(), name)() for name in names)]


class Holder(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("table", value)
        self.weight = torch.nn.Parameter(value.clone())


@pytest.mark.parametrize("kind", SPARSE)
def test_torch_12_sparse_as_components(url, kind):
    seed(1)
    dense = torch.randn(4, 6) * (torch.rand(4, 6) > 0.5)
    value = SPARSE[kind](dense)
    save(url, {"x": value, "in": {"y": [value]}, "model": Holder(value)})
    other = SPARSE[kind](torch.eye(4, 6))
    live, model = {"x": None, "in": {}}, Holder(other)
    table, weight = model.table, model.weight
    with Checkpointer(url, {**live, "model": model}) as ck:
        ck.restore()
        assert_same(parts_of(ck.state["x"]), parts_of(value))
        assert_same(parts_of(ck.state["in"]["y"][0]), parts_of(value))
    assert_same(parts_of(model.table), parts_of(value))
    assert_same(parts_of(model.weight), parts_of(value))
    assert model.table is table and model.weight is weight and weight.requires_grad  # the optimizer still knows it
    with pytest.raises(cairn.InvalidError, match=r"model\.\w+: a tensor made of others .* is stored, but the live one is plain"):
        restore(url, {**live, "model": Holder(torch.zeros(4, 6))})


class Scaled(torch.Tensor):
    """A wrapper subclass as torchao's are: bytes, a scale, and a context that is no tensor."""

    @staticmethod
    def __new__(cls, data, scale, note):
        return torch.Tensor._make_wrapper_subclass(cls, data.shape, dtype=torch.float32)

    def __init__(self, data, scale, note):
        self.data_, self.scale, self.note = data, scale, note

    def __tensor_flatten__(self):
        return ["data_", "scale"], {"note": self.note}

    @staticmethod
    def __tensor_unflatten__(inner, context, size, stride):
        return Scaled(inner["data_"], inner["scale"], context["note"])

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.detach.default:
            return Scaled(args[0].data_, args[0].scale, args[0].note)
        raise NotImplementedError(str(func))


def scaled(fill, note="a"):
    return Scaled(torch.full((3, 2), fill, dtype=torch.int8), torch.tensor([fill / 2]), note)


def test_torch_12_subclasses_through_tensor_flatten(url):
    def make(fill, note="a"):
        model = torch.nn.Module()
        model.weight = torch.nn.Parameter(scaled(fill, note), requires_grad=False)
        return model

    save(url, {"model": make(3), "x": {"y": scaled(4)}})
    model = make(1)
    data = model.weight.data_
    extra = {}
    restore(url, {"model": model, "x": extra})
    assert model.weight.data_ is data  # in place
    assert_same([data, model.weight.scale], [torch.full((3, 2), 3, dtype=torch.int8), torch.tensor([1.5])])
    assert type(extra["y"]) is Scaled and extra["y"].note == "a"
    assert_same(extra["y"].data_, torch.full((3, 2), 4, dtype=torch.int8))
    with pytest.raises(cairn.InvalidError, match=r"model\.weight: .*'note': 'a'.*'note': 'b'"):
        restore(url, {"model": make(1, "b"), "x": {}})
    with pytest.raises(cairn.InvalidError, match="no __tensor_flatten__"):
        register_subclass(torch.Tensor)
    with Checkpointer(url, {"x": {"y": scaled(1, note=object())}}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"x\.y: the tensor subclass .*Scaled.*context.*note"):
            ck.save(9)


def test_a_subclass_that_is_not_known_is_named(url, monkeypatch):
    from cairn.torch import special
    save(url, {"x": {"y": scaled(4)}})
    monkeypatch.setattr(special, "_classes", {})
    with pytest.raises(cairn.UnsupportedError, match=r"Scaled.*register_subclass"):
        restore(url, {"x": {}})
    register_subclass(Scaled)
    extra = {}
    restore(url, {"x": extra})
    assert_same(extra["y"].scale, torch.tensor([2.0]))
