# SPDX-License-Identifier: Apache-2.0
"""A state may hold element types, strides, buffers, plain values, objects and RNG, and gets them back; anything else is
refused by name."""

import collections
import random

import numpy
import pytest
import torch

import cairn
from bed import assert_same, restore, save, seed, small_model
from cairn.torch import CairnWarning, Checkpointer, per_rank
from cairn.torch.arrays import TORCH_NAMES
from cairn.torch.restore import Restore

DTYPES = sorted((dtype for dtype in TORCH_NAMES), key=str)


def raw(dtype, shape):
    """A tensor of random bits: NaNs, infinities, everything."""
    count = int(numpy.prod(shape)) * dtype.itemsize
    data = torch.randint(0, 2 if dtype == torch.bool else 256, (count,), dtype=torch.uint8)
    return data.view(dtype).reshape(shape)


def test_there_are_dtypes():
    assert {torch.bool, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.uint64, torch.complex64} <= set(DTYPES)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_dtypes_and_shapes(url, dtype):
    seed(3)
    state = {f"t{i}": raw(dtype, shape) for i, shape in enumerate([(), (1,), (5,), (0,), (3, 0, 2), (2, 3, 4), (1,) * 8])}
    save(url, state)
    fresh = {key: torch.zeros(value.shape, dtype=torch.uint8).to(dtype) if dtype.itemsize == 1 and value.numel() == 0
             else torch.empty(value.shape, dtype=dtype) for key, value in state.items()}
    live = dict(fresh)
    restore(url, live)
    assert_same(fresh, state)  # in place


@pytest.mark.parametrize("case", ["transposed", "sliced", "channels_last", "expanded", "conj", "neg", "storage_offset"])
def test_strides_and_views(url, case):
    seed(4)
    base = torch.randn(4, 6, 5, 3)
    value = {
        "transposed": lambda: base.transpose(0, 2),
        "sliced": lambda: base[::2, 1:5:3],
        "channels_last": lambda: base.to(memory_format=torch.channels_last),
        "expanded": lambda: torch.randn(1, 3).expand(4, 3),
        "conj": lambda: torch.randn(3, 2, dtype=torch.complex64).conj(),
        "neg": lambda: torch.randn(3, 2, dtype=torch.complex64).conj().imag,
        "storage_offset": lambda: base.reshape(-1)[17:],
    }[case]()
    save(url, {"x": value, "nested": {"y": [value]}})
    live = torch.full_like(value, 0, memory_format=torch.contiguous_format)
    nested = {"y": []}
    restore(url, {"x": live, "nested": nested})
    assert_same(live, value)
    assert_same(nested, {"y": [value]})
    if case in ("transposed", "sliced", "channels_last"):
        strided = torch.empty_strided(value.shape, value.stride()).fill_(9)
        restore(url, {"x": strided, "nested": nested})
        assert_same(strided, value)


def test_model_with_strided_parameters(url):
    model = torch.nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.randn(1, 3, 5, 5)).sum().backward()
    optimizer.step()
    save(url, {"model": model, "optim": optimizer})
    model2 = torch.nn.Conv2d(3, 4, 3)
    optimizer2 = torch.optim.Adam(model2.parameters())
    restore(url, {"model": model2, "optim": optimizer2})
    assert_same(model2.state_dict(), model.state_dict())
    assert_same(optimizer2.state[model2.weight], optimizer.state[model.weight])


def test_buffers_and_extra_state(url):
    class Module(torch.nn.Module):
        def __init__(self, note):
            super().__init__()
            self.norm = torch.nn.BatchNorm1d(3)
            self.register_buffer("rope", torch.arange(4.0), persistent=False)
            self.register_buffer("nothing", None)
            self.note = note

        def get_extra_state(self):
            return {"note": self.note, "t": torch.tensor([1.5])}

        def set_extra_state(self, state):
            self.note, self.t = state["note"], state["t"]

    model = Module("a")
    model.norm(torch.randn(8, 3))
    save(url, {"model": model})
    model2 = Module("b")
    restore(url, {"model": model2})
    assert_same(model2.state_dict()["norm.running_var"], model.state_dict()["norm.running_var"])
    assert model2.norm.num_batches_tracked == 1 and model2.note == "a" and model2.t.item() == 1.5
    model2.rope.add_(1)
    with pytest.warns(CairnWarning, match=r"model\.rope: this non-persistent buffer"):
        restore(url, {"model": model2})


def test_plain_values(url):
    value = {"n": 1, "d": collections.OrderedDict(a=1), "c": collections.Counter([3, 3]), "ema": torch.ones(3),
             "arr": numpy.arange(6, dtype=numpy.int16).reshape(2, 3).T, "l": [torch.tensor(2), {"x": numpy.float64(0.1)}],
             "s": {1, 2}, "dt": torch.bfloat16, 5: None}
    save(url, {"extra": value, "list": [1, torch.zeros(2)], "n": 7, "text": "x"})
    ema = torch.zeros(3)
    live = {"extra": {"ema": ema, "junk": 1}, "list": [], "n": 0, "text": ""}
    extra = live["extra"]
    with Checkpointer(url, live) as ck:
        ck.restore()
        assert ck.state["extra"] is extra and extra["ema"] is ema  # in place
        assert_same(extra, value)
        assert_same(ck.state["list"], [1, torch.zeros(2)])
        assert ck.state["n"] == 7 and ck.state["text"] == "x"
        ck.state["n"] = 8
        ck.save(2).durable.result(30)
        ck.state["n"] = 0
        ck.restore()
        assert ck.state["n"] == 8


def test_objects(url):
    class Loader:
        def __init__(self):
            self.state = {"epoch": 0, "perm": torch.zeros(0)}

        def state_dict(self):
            return self.state

        def load_state_dict(self, state):
            self.state = state

    class Liar(Loader):
        def load_state_dict(self, state):
            self.state = {"epoch": -1}

    loader = Loader()
    loader.state = {"epoch": 3, "perm": torch.arange(5), "np": numpy.ones(2)}
    save(url, {"loader": loader})
    again = Loader()
    restore(url, {"loader": again})
    assert_same(again.state, loader.state)
    with pytest.warns(CairnWarning, match="loader: state_dict.* differs"):
        restore(url, {"loader": Liar()})


def test_staged_is_a_copy(url):
    """What is saved is the state at the call, whatever comes after."""
    model = torch.nn.Linear(400, 400)
    before = model.weight.detach().clone()
    with Checkpointer(url, {"model": model}, on_error="raise") as ck:
        handles = []
        for step in range(5):
            handles.append(ck.save(step))
            assert handles[-1].released.wait(60)
            with torch.no_grad():
                model.weight.add_(1)
        assert ck.wait(60) and all(h.durable.done() for h in handles)
        ck.restore(2)
    with torch.no_grad():
        expected = before + 1
        expected += 1
    assert_same(model.weight.detach(), expected)


def draw():
    return (random.random(), random.gauss(0, 1), numpy.random.rand(2).tolist(), numpy.random.randn(), torch.rand(2).tolist(),
            torch.randperm(5).tolist())


def test_rng(url):
    seed(5)
    random.gauss(0, 1)  # leaves a second one behind
    numpy.random.randn()
    save(url, {})
    expected = draw()
    seed(6)
    restore(url, {})
    assert draw() == expected


def test_generator(url):
    generator = torch.Generator().manual_seed(3)
    torch.rand(5, generator=generator)
    save(url, {"gen": generator})
    expected = torch.rand(3, generator=generator)
    again = torch.Generator()
    restore(url, {"gen": again})
    assert_same(torch.rand(3, generator=again), expected)


def test_another_world_size(url):
    """What belongs to ranks is refused, reseeded or handed to a callable; the rest comes bit for bit."""
    token, model = cairn.new_attempt(), small_model(0)
    local = [{"pos": rank, "t": torch.full((2,), rank)} for rank in range(2)]
    cks = [Checkpointer(url, {"model": model, "loader": per_rank(local[rank])}, on_error="raise", rank=rank, world_size=2,
                        attempt=token) for rank in range(2)]
    handles = [ck.save(4) for ck in cks]
    assert [h.durable.result(60).step for h in handles] == [4, 4]
    for ck in cks:
        ck.close()
    other = small_model(1)
    with pytest.raises(cairn.UnsupportedError, match=r"loader: its state belongs to 2 ranks.*start with 2 ranks"):
        restore(url, {"model": other, "loader": per_rank({})})

    def merge(states, rank, world):
        assert (rank, world) == (0, 1)
        return {"pos": sum(state["pos"] for state in states), "t": torch.cat([state["t"] for state in states])}

    with Checkpointer(url, {"model": other, "loader": per_rank({}, on_reshape=merge)}) as ck:
        with pytest.warns(CairnWarning, match="2 ranks, now there are 1"):
            assert ck.restore().step == 4
        assert_same(ck.state["loader"].obj, {"pos": 1, "t": torch.tensor([0, 0, 1, 1])})
    assert_same(other.state_dict(), model.state_dict())
    first = torch.rand(1)
    with pytest.warns(CairnWarning, match="left as it is"):
        restore(url, {"model": other, "loader": per_rank({}, on_reshape="reseed")})
    assert torch.equal(torch.rand(1), first)  # seeded from the checkpoint, not from the clock


class Subclass(torch.Tensor):
    pass


REFUSED = {
    "subclass": lambda: torch.ones(2).as_subclass(Subclass),
    "nested": lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
    "meta": lambda: torch.empty(2, device="meta"),
    "dimensions": lambda: torch.zeros((1,) * 9),
    "object array": lambda: numpy.array([object()]),
    "text array": lambda: numpy.array(["a"]),
    "big endian": lambda: numpy.zeros(2, ">i4"),
    "masked": lambda: numpy.ma.zeros(2),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name_before_the_save_starts(url, case):
    bad = {"list": [1, REFUSED[case]()]}
    hint = r"^UNSUPPORTED: bad\.list\[1\]: the (tensor|ndarray) "
    if isinstance(bad["list"][1], numpy.ndarray):
        with pytest.raises(cairn.UnsupportedValueError, match=hint):
            Checkpointer(url, {"ok": torch.ones(2), "bad": bad})
    with Checkpointer(url, {"ok": torch.ones(2), "bad": {}}) as ck:
        ck.state["bad"] = bad
        with pytest.raises(cairn.UnsupportedValueError, match=hint) as caught:
            ck.save(1)
        if case == "meta":
            assert "to_empty" in caught.value.text
        assert ck.restore() is None  # nothing was saved


def test_expanded_tensors_come_back_as_new_ones(url):
    """Their elements share memory, so nothing can be restored into them."""
    save(url, {"extra": {"mask": torch.arange(4.0)}, "whole": torch.arange(4.0)})
    state = {"extra": {"mask": torch.zeros(1).expand(4)}, "whole": torch.zeros(1).expand(4)}
    with Checkpointer(url, state) as ck:
        ck.restore()
        assert torch.equal(ck.state["extra"]["mask"], torch.arange(4.0)) and torch.equal(ck.state["whole"], torch.arange(4.0))


def test_a_state_is_a_mapping(url):
    with pytest.raises(cairn.InvalidError, match="state is a list; it must be a mapping"):
        Checkpointer(url, [torch.ones(2)])


def test_torch_10_meta_and_lazy_models(url):
    with torch.device("meta"):
        model = torch.nn.Linear(2, 2)
    with Checkpointer(url, {"model": model}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"model\.weight: .*to_empty"):
            ck.save(1)
    save(url, {"model": torch.nn.Linear(2, 2)})
    with pytest.raises(cairn.UnsupportedValueError, match=r"model\.weight: .*to_empty"):
        restore(url, {"model": model})
    with Checkpointer(url, {"model": torch.nn.LazyLinear(2)}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"model\.weight: .*lazy"):
            ck.save(1)


def test_unsupported_value_names_its_path(url):
    for bad, hint in (({"extra": {"a": [1, {"f": lambda: 0}]}}, r"extra\.a\[1\]\.f: .*function.*register_type"),
                      ({"models": {"g": torch.nn.Linear(2, 2)}}, r"models\.g: .*Linear.* a name of its own in the state")):
        with pytest.raises(cairn.UnsupportedValueError, match=hint):
            Checkpointer(url, bad)
        with Checkpointer(url, {}) as ck:
            ck.state.update(bad)
            with pytest.raises(cairn.UnsupportedValueError, match=hint):
                ck.save(1)
        with Checkpointer(url, bad, read_only=True) as ck:  # it is only replaced there
            assert ck.restore() is None
    with pytest.raises(cairn.InvalidError, match="model: the state holds the class Linear; give an object of that class"):
        Checkpointer(url, {"model": torch.nn.Linear})
    for key in ("a.b", "", "cairn.x", 3):
        with pytest.raises(cairn.InvalidError, match="state: the key"):
            Checkpointer(url, {key: 1})


def test_registered_types_with_tensors(url):
    class Ema:
        def __init__(self, shadow):
            self.shadow = shadow
            self.total = float(shadow.sum())  # computed from the content, so that it must be there

    cairn.register_type(Ema, lambda e: {"shadow": e.shadow}, lambda v: Ema(v["shadow"]), name="test.Ema")
    save(url, {"extra": {"ema": Ema(torch.full((3,), 2.0))}})
    live = {}
    restore(url, {"extra": live})
    assert type(live["ema"]) is Ema and live["ema"].total == 6.0


def test_metadata_that_is_lost():
    class Op:
        def metadata(self):
            raise cairn.DamagedError.of("the manifest was made again")

    with pytest.warns(CairnWarning, match="metadata of this checkpoint is lost"):
        assert Restore._metadata(Op()) is None


def test_metadata_metrics_tags(url):
    meta = {"loss": 0.5, "config": {"lr": [1e-3, None]}}
    save(url, {"n": 1}, 3, metadata=meta, metrics={"loss": 0.5}, tags=("good",))
    restored = restore(url, {"n": 0})
    assert restored.metadata == meta and (restored.term, restored.step, restored.fell_back) == (1, 3, False)
    with Checkpointer(url, {"n": 1}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"metadata\.f"):
            ck.save(4, metadata={"f": object()})
        with pytest.raises(cairn.InvalidError, match="metadata is a list; it must be a mapping"):
            ck.save(4, metadata=[1])
