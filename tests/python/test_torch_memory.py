# SPDX-License-Identifier: Apache-2.0
"""Memory that is not what it seems is saved right or refused: shared by several live tensors, freed, or of a layout that
nothing can read."""

import warnings

import numpy
import pytest
import torch

import cairn
from bed import assert_same, one_step, optimizer_view, restore, save, small_model
from cairn.torch import Checkpointer, memory


class Ema:
    """As it is often written: the first shadow is the model's own tensors, each update makes new ones."""

    def __init__(self, model):
        self.shadow = dict(model.state_dict())

    def update(self, model):
        self.shadow = {name: 0.5 * self.shadow[name] + 0.5 * tensor for name, tensor in model.state_dict().items()}


def saved_with_ema(url):
    model = small_model(1)
    ema = Ema(model)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1)
    ema.update(model)
    with torch.no_grad():
        for param in model.parameters():
            param.add_(1)
    save(url, {"model": model, "ema": ema.shadow})
    return model, ema


@pytest.mark.parametrize("order", [("model", "ema"), ("ema", "model")])
def test_an_ema_that_was_begun_as_the_models_own_tensors(url, order):
    """Restoring both into one memory would leave the model with the EMA's weights, or the other way round."""
    model, ema = saved_with_ema(url)
    other = small_model(2)
    live = {"model": other, "ema": Ema(other).shadow}
    with pytest.warns(cairn.torch.CairnWarning, match=r"ema.*lay in the memory .*\(model\.0\.weight for the first\).*new memory"):
        restore(url, {key: live[key] for key in order})
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
    assert_same(live["ema"], ema.shadow)


def test_what_is_not_selected_keeps_its_memory(url):
    model, ema = saved_with_ema(url)
    other = small_model(2)
    before = {name: tensor.clone() for name, tensor in other.state_dict().items()}
    live = {"model": other, "ema": Ema(other).shadow}
    with pytest.warns(cairn.torch.CairnWarning, match="new memory"):
        restore(url, live, only=["ema"])
    assert_same(dict(other.state_dict()), before)
    assert_same(live["ema"], ema.shadow)


def test_one_memory_with_the_same_contents_stays_one(url):
    """A model under two keys, a tensor of it among plain values: what was one when it was saved is one afterwards."""
    def state(start):
        model = small_model(start)
        both = torch.nn.ModuleDict({"encoder": model, "head": torch.nn.Linear(3, 2)})
        return {"actor": both, "critic": torch.nn.ModuleDict({"encoder": model}), "extra": {"w": model[0].weight.detach()}}
    saved, live = state(1), state(2)
    save(url, saved)
    shared = live["extra"]["w"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        restore(url, live)
    assert live["extra"]["w"] is shared and shared.data_ptr() == live["actor"]["encoder"][0].weight.data_ptr()
    assert_same(dict(live["actor"].state_dict()), dict(saved["actor"].state_dict()))
    assert_same(shared, saved["extra"]["w"])


def test_one_live_model_for_two_stored_ones_is_an_error(url):
    save(url, {"a": small_model(1), "b": small_model(2)})
    model = small_model(3)
    with pytest.raises(cairn.DigestMismatchError, match=r"b\.0\.weight and a\.0\.weight share their memory in the live state.*unusable"):
        restore(url, {"a": model, "b": model})


def test_views_into_one_memory(url):
    whole = torch.arange(24.0)
    save(url, {"x": {"head": whole[:6].clone(), "all": whole.clone(), "left": whole.reshape(4, 6)[:, :3].clone(),
                     "right": whole.reshape(4, 6)[:, 3:].clone(), "back": numpy.arange(6.0)}})
    base, columns, line = torch.zeros(24), torch.zeros(4, 6), numpy.zeros(6)
    live = {"head": base[:6], "all": base, "left": columns[:, :3], "right": columns[:, 3:], "back": line[::-1]}
    parts = dict(live)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # they fit: the columns have nothing in common, the head is the whole one's
        restore(url, {"x": live})
    assert all(live[name] is parts[name] for name in parts)
    assert_same([base, columns, line], [whole, whole.reshape(4, 6), numpy.arange(6.0)[::-1].copy()])
    save(url, {"x": {"head": -whole[:6], "all": whole}}, 2)
    live = {"head": base[:6], "all": base}
    with pytest.warns(cairn.torch.CairnWarning, match="new memory"):
        restore(url, {"x": live})
    assert_same([live["head"].clone(), live["all"].clone()], [-whole[:6], whole])


def test_spans():
    def common(a, b):
        return memory.have_common_bytes(memory.span_of(1, "a", a), memory.span_of(2, "b", b))
    base = torch.zeros(6, 8)
    line = numpy.zeros(12)
    assert common(base, base[3]) and common(base[:, 1], base[2]) and common(base.t(), base.view(torch.uint8)[5])
    assert not common(base[0], base[1]) and not common(base[:, 1], base[:, 2]) and not common(base[::2], base[1::2])
    assert common(line[::-1], line[3:4]) and not common(line[::-2], line[::2]) and common(torch.from_numpy(line)[:2], line[1:])
    assert memory.span_of(1, "a", torch.zeros(0)) is None and memory.span_of(1, "a", torch.zeros(3, 0)) is None
    scalar = memory.span_of(1, "a", torch.tensor(1.0))
    assert scalar.end - scalar.begin == 4
    spans = [memory.span_of(owner, owner, tensor) for owner, tensor in (("a", base[0]), ("b", base), ("c", base[4]), ("d", line))]
    assert {frozenset((one.owner, other.owner)) for one, other in memory.shared(spans)} == {frozenset("ab"), frozenset("bc")}


# --- freed -------------------------------------------------------------------------------------------------------------

def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def test_a_freed_tensor_is_refused_by_name(url):
    """Its address is 0: nothing may be read from there, nor written."""
    model, value = small_model(1), {"t": freed(torch.ones(4))}
    optimizer = torch.optim.Adam(model.parameters())
    one_step(model, optimizer)
    save(url, {"model": model, "optim": optimizer, "x": {"t": torch.arange(4.0)}})
    saved = optimizer_view(optimizer)["state"][0]["exp_avg"].clone()
    with Checkpointer(url, {"x": value}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"x\.t: the tensor has no memory: its storage was freed"):
            ck.save(2)
    freed(optimizer.state[model[0].weight]["exp_avg"])
    with Checkpointer(url, {"model": model, "optim": optimizer}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"optim\.model\.0\.weight\.exp_avg: .*freed"):
            ck.save(2)
    restore(url, {"model": model, "optim": optimizer, "x": value})  # new memory, where a new tensor will do
    assert_same(value["t"], torch.arange(4.0))
    assert_same(optimizer.state[model[0].weight]["exp_avg"], saved)
    freed(model[0].weight.data)
    with pytest.raises(cairn.UnsupportedValueError, match=r"model\.0\.weight: the tensor has no memory") as caught:
        restore(url, {"model": model}, strict=False)
    assert "unusable" not in caught.value.text


def test_no_address_is_refused_by_name(url):
    with cairn.Client(url) as client:
        dtype = cairn.client.DTYPES["float32"]
        for stride, boxes in ((None, None), ((2,), None), (None, [((0,), (2,), None, 0)]), (None, [])):
            with pytest.raises(cairn.InvalidError, match="tensor 'w' has a box .* whose data is NULL"):
                client.set_tensors([("w", dtype, (4,), 0, stride, None, 1, None, None, boxes)])
        client.set_tensors([("w", dtype, (0, 4), 0, None, None, 1, None, None, None)])  # of nothing it is as good as any
        client.save(1).result(30)


# --- layouts -----------------------------------------------------------------------------------------------------------

@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("make, words", [
    (lambda: torch.randn(3).to_mkldnn(), r"has the layout torch\._mkldnn.*to_dense"),
    (lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged), "is nested.*values"),
])
def test_other_layouts_are_named(url, make, words):
    with Checkpointer(url, {"x": {"t": make()}}) as ck:
        with pytest.raises(cairn.UnsupportedValueError, match=r"x\.t: the tensor " + words):
            ck.save(1)


@pytest.mark.filterwarnings("ignore")
def test_modules_of_torchscript(url):
    model = torch.jit.script(small_model(1))
    save(url, {"model": model})
    plain = small_model(2)
    restore(url, {"model": plain})
    assert_same(dict(plain.state_dict()), dict(model.state_dict()))
    other = torch.jit.script(small_model(3))
    restore(url, {"model": other})
    assert_same(dict(other.state_dict()), dict(model.state_dict()))
