# SPDX-License-Identifier: Apache-2.0
"""Wrapped and plain models restore into each other by canonical names, ties included; what is missing or unexpected is
named."""

import pytest
import torch

import cairn
from bed import assert_same, one_step, optimizer_view, restore, save, seed, small_model
from cairn.torch import CairnWarning


@pytest.fixture(scope="module")
def world_of_one(tmp_path_factory):
    store = tmp_path_factory.mktemp("dist") / "store"
    torch.distributed.init_process_group("gloo", init_method=f"file://{store}", rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def wrap(model, form):
    if form in ("ddp", "compiled ddp"):
        model = torch.nn.parallel.DistributedDataParallel(model)
    if form in ("compiled", "compiled ddp"):
        model = torch.compile(model, backend="eager")
    if form == "ddp of compiled":
        model = torch.nn.parallel.DistributedDataParallel(torch.compile(model, backend="eager"))
    if form == "inner compiled":
        model[0] = torch.compile(model[0], backend="eager")
    if form == "checkpointed":
        from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
        model[2] = checkpoint_wrapper(model[2])
    return model


FORMS = ["plain", "ddp", "compiled", "compiled ddp", "ddp of compiled", "inner compiled", "checkpointed"]


@pytest.mark.parametrize("source", FORMS)
def test_torch_10_forms_restore_into_each_other(url, world_of_one, source):
    base = small_model(0)
    model = wrap(base, source)
    optimizer = torch.optim.AdamW(model.parameters())
    one_step(model, optimizer)
    values = [p.detach().clone() for p in base.parameters()]
    save(url, {"model": model, "optim": optimizer})
    for target in FORMS:
        base2 = small_model(1)
        model2 = wrap(base2, target)
        optimizer2 = torch.optim.AdamW(model2.parameters())
        restored = restore(url, {"model": model2, "optim": optimizer2})
        assert restored.missing == () and restored.unexpected == ()
        assert_same([p.detach() for p in base2.parameters()], values)
        assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))


def test_a_module_that_is_called_module_keeps_its_name(url):
    class Owner(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.module = torch.nn.Linear(2, 2)

    owner = Owner()
    save(url, {"model": owner})
    with pytest.raises(cairn.MissingTensorError, match=r"model\.module\.weight"):
        restore(url, {"model": owner.module})


class Tied(torch.nn.Module):
    def __init__(self, tied=True, head_first=False):
        super().__init__()
        if head_first:
            self.head = torch.nn.Linear(4, 9, bias=False)
        self.embed = torch.nn.Embedding(9, 4)
        if not head_first:
            self.head = torch.nn.Linear(4, 9, bias=False)
        if tied:
            self.head.weight = self.embed.weight

    def forward(self, x):
        return self.head(self.embed(x))


def test_torch_10_ties_are_stored_once(url):
    seed(0)
    model = Tied()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.tensor([1, 2])).sum().backward()
    optimizer.step()
    result = save(url, {"model": model, "optim": optimizer})
    with cairn.Client(url, read_only=True) as client:
        client.set_tensors([])
        op = client.restore()
        op.wait()
        assert [name for name in op.unexpected() if name.startswith("model.")] == ["model.embed.weight"]
    assert result.step == 1
    for head_first in (False, True):  # another canonical name, the same tensor
        model2 = Tied(head_first=head_first)
        optimizer2 = torch.optim.Adam(model2.parameters())
        restore(url, {"model": model2, "optim": optimizer2})
        assert model2.head.weight is model2.embed.weight
        assert_same(model2.embed.weight.detach(), model.embed.weight.detach())
        assert_same(optimizer_view(optimizer2), optimizer_view(optimizer))


def test_torch_10_tied_into_untied_warns_and_untied_into_tied_is_refused(url):
    tied = Tied()
    save(url, {"model": tied}, 1)
    untied = Tied(tied=False)
    with pytest.warns(CairnWarning, match="tied when they were saved"):
        restore(url, {"model": untied})
    assert_same([untied.head.weight.detach(), untied.embed.weight.detach()], [tied.embed.weight.detach()] * 2)
    other = Tied(tied=False)
    save(url + "-untied", {"model": other}, 1)
    before = tied.embed.weight.detach().clone()
    with pytest.raises(cairn.InvalidError, match="tied in the live model"):
        restore(url + "-untied", {"model": tied})
    assert_same(tied.embed.weight.detach(), before)


def test_strict(url):
    model = small_model(0)
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    one_step(model, optimizer)
    save(url, {"model": model, "optim": optimizer, "gone": 1})

    class More(torch.nn.Sequential):
        def __init__(self):
            super().__init__(*small_model(1))
            self.extra = torch.nn.Parameter(torch.full((2,), 7.0))

    bigger = More()
    smaller = torch.nn.Sequential(*list(small_model(1))[:1])
    before = {name: p.detach().clone() for name, p in bigger.named_parameters()}
    with pytest.raises(cairn.MissingTensorError, match=r"lacks model\.extra.*lacks optim, gone.*strict=False"):
        restore(url, {"model": bigger})
    assert_same(dict((n, p.detach()) for n, p in bigger.named_parameters()), before)  # nothing was touched
    restored = restore(url, {"model": bigger}, strict=False)
    assert restored.missing == ("model.extra",) and "gone" in restored.unexpected
    assert_same(bigger[0].weight.detach(), model[0].weight.detach())
    assert bigger.extra.tolist() == [7.0, 7.0]
    restored = restore(url, {"model": smaller}, strict=False)
    assert {"model.2.weight", "model.2.bias", "optim", "gone"} == set(restored.unexpected)


def test_shape_and_dtype_mismatch_name_the_tensor(url):
    save(url, {"model": small_model(0)})
    wide = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Tanh(), torch.nn.Linear(9, 3))
    before = [p.detach().clone() for p in wide.parameters()]
    with pytest.raises(cairn.ShapeMismatchError, match=r"model\.0\.weight: .*\[8, 6\].*\[9, 6\]"):
        restore(url, {"model": wide})
    assert_same([p.detach() for p in wide.parameters()], before)
    with pytest.raises(cairn.DtypeMismatchError, match=r"model\.0\.weight: .*float32.*bfloat16"):
        restore(url, {"model": small_model(0, torch.bfloat16)})
    with pytest.raises(cairn.InvalidError, match="model: it was stored as module"):
        restore(url, {"model": 3})


def test_wrong_optimizer(url):
    model = small_model(0)
    save(url, {"model": model, "optim": torch.optim.Adam(model.parameters())})
    with pytest.raises(cairn.InvalidError, match="optim: the stored optimizer is Adam, but the live one is SGD"):
        restore(url, {"model": model, "optim": torch.optim.SGD(model.parameters())})
    split = [{"params": [p]} for p in model.parameters()]
    save(url, {"model": model, "optim": torch.optim.Adam(split)}, 2)
    with pytest.raises(cairn.InvalidError, match="different groups"):
        restore(url, {"model": model, "optim": torch.optim.Adam(model.parameters())})
