# SPDX-License-Identifier: Apache-2.0
"""Tensors made of others (sparse, subclasses), and every element type, are stored or refused by name."""

import pytest
import torch

import cairn
from bed import assert_same, restore, save, seed
from cairn.torch import Checkpointer, register_subclass
from cairn.torch.arrays import TORCH_NAMES

pytestmark = pytest.mark.filterwarnings("ignore:Sparse")
BITS = {"bits1x8", "bits2x4", "bits4x2", "bits8", "bits16", *(f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8))}
QUANTIZED = {"quint8", "qint8", "qint32", "quint4x2", "quint2x4"}
EVERY = {str(value)[len("torch."):]: value for value in vars(torch).values() if isinstance(value, torch.dtype)}


def test_torch_12_every_dtype_is_known():
    """A new element type of PyTorch shows up here."""
    assert set(EVERY) == {str(dtype)[len("torch."):] for dtype in TORCH_NAMES} | (BITS | QUANTIZED) & set(EVERY)


def raw(tensor):
    """Type, shape and bytes of a tensor that PyTorch does not compare."""
    plain = tensor.detach().view(torch.uint8 if tensor.element_size() == 1 else torch.int16)
    return tensor.dtype, tuple(tensor.shape), plain.tolist()


class Table(torch.nn.Module):
    def __init__(self, value):
        super().__init__()
        self.register_buffer("table", value)


LOW = sorted((BITS & set(EVERY)) | {name for name in EVERY if name.startswith("float") and name[5] in "48"})


@pytest.mark.parametrize("name", LOW)
def test_torch_12_low_bit_types_come_back_to_the_bit(url, name):
    """In a model in place, in values anew; every pattern of bits, any strides, no dimension and no element."""
    def make(data, shape=(4, -1)):
        return torch.tensor(data, dtype=torch.uint8).view(EVERY[name]).reshape(shape) if data else torch.empty(0, 3, dtype=EVERY[name])

    value = make(list(range(256)))
    state = {"model": Table(value), "x": {"strided": value.t()[::3], "one": make([7, 9][:value.element_size()], ()), "none": make([]),
                                          "in": [make([1, 2], (-1,))]}}
    save(url, state)
    model, extra = Table(make([0] * 256)), {}
    table = model.table
    restore(url, {"model": model, "x": extra})
    assert model.table is table and raw(table) == raw(value)
    assert raw(extra["strided"]) == raw(state["x"]["strided"]) and raw(extra["one"]) == raw(state["x"]["one"])
    assert raw(extra["none"]) == raw(state["x"]["none"]) and raw(extra["in"][0]) == raw(state["x"]["in"][0])
    with pytest.raises((cairn.DtypeMismatchError, cairn.InvalidError), match=r"model\.table: "):
        restore(url, {"model": Table(make([0] * 256).view(torch.int16 if name == "bits16" else torch.int8)), "x": {}})


def quantized(name, seed_of):
    seed(seed_of)
    dense, scales = torch.randn(4, 6), torch.rand(4, dtype=torch.float64) + 0.1
    if name in ("quint4x2", "quint2x4"):
        return torch.quantize_per_channel(dense, scales.float(), torch.rand(4), 0, EVERY[name])
    return {"tensor": torch.quantize_per_tensor(dense, 0.1 + seed_of, 3, EVERY[name]),
            "channel": torch.quantize_per_channel(dense, scales, torch.arange(4), 0, EVERY[name])}


def of_quantized(value):
    found = [value.dtype, value.qscheme(), value.int_repr(), tuple(value.shape)]
    if value.qscheme() is torch.per_tensor_affine:
        return [*found, value.q_scale(), value.q_zero_point()]
    return [*found, value.q_per_channel_scales(), value.q_per_channel_zero_points(), value.q_per_channel_axis()]


@pytest.mark.parametrize("name", sorted(QUANTIZED & set(EVERY)))
def test_torch_12_quantized_tensors_come_back_to_the_bit(url, name):
    found, other = quantized(name, 1), quantized(name, 2)
    found, other = (found, other) if isinstance(found, dict) else ({"channel": found}, {"channel": other})
    models = {key: Table(value) for key, value in found.items()}
    save(url, {**{f"m_{key}": model for key, model in models.items()}, "x": {"q": [*found.values()]}})
    back, extra = {key: Table(value) for key, value in other.items()}, {}
    tables = {key: model.table for key, model in back.items()}
    restore(url, {**{f"m_{key}": model for key, model in back.items()}, "x": extra})
    for idx, (key, value) in enumerate(found.items()):
        assert_same(of_quantized(back[key].table), of_quantized(value))
        assert_same(of_quantized(extra["q"][idx]), of_quantized(value))
        assert back[key].table is tables[key]


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


def test_components_of_low_bit_types(url):
    def make(fill):
        model = torch.nn.Module()
        data = torch.full((3, 2), fill, dtype=torch.uint8).view(torch.uint4)
        model.weight = torch.nn.Parameter(Scaled(data, torch.tensor([fill / 2]).to(torch.float8_e5m2), "a"), requires_grad=False)
        return model

    save(url, {"model": make(3)})
    model = make(1)
    restore(url, {"model": model})
    assert raw(model.weight.data_) == raw(make(3).weight.data_) and model.weight.scale.float() == 1.5


def test_torchao_quantized_weights(url):
    """A real subclass of torchao, of which the tests do without where it cannot be had."""
    torchao = pytest.importorskip("torchao.quantization")

    def make(start):
        seed(start)
        model = torch.nn.Sequential(torch.nn.Linear(64, 32, dtype=torch.bfloat16), torch.nn.Linear(32, 16, dtype=torch.bfloat16))
        torchao.quantize_(model, torchao.Int8WeightOnlyConfig())
        return model

    right, model, x = make(1), make(2), torch.randn(3, 64, dtype=torch.bfloat16)
    save(url, {"model": right})
    weight = model[0].weight
    assert type(weight) is not torch.nn.Parameter and not torch.equal(model(x), right(x))
    restore(url, {"model": model})
    assert model[0].weight is weight and torch.equal(model(x), right(x))
