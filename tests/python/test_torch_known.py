# SPDX-License-Identifier: Apache-2.0
"""A save uses what the save before it found, and notices everything that is not as it was: what is restored is what was live."""

import contextlib
import gc
import warnings

import pytest
import torch
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper

import cairn
from bed import assert_same, optimizer_view
from cairn.torch import Checkpointer


class Average:
    """state_dict() gives new tensors each time."""

    def __init__(self):
        self.values = torch.arange(4.0)

    def state_dict(self):
        return {"mean": self.values * 1, "step": 7}

    def load_state_dict(self, state):
        self.values = state["mean"]


class Bed:
    """A model with a buffer, a tied weight and a constant; its optimizer, with state; a value, an object."""

    def __init__(self, extra=True):
        torch.manual_seed(3)
        self.model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Linear(6, 6), torch.nn.Linear(6, 6))
        self.model[3].weight = self.model[2].weight
        self.model.register_buffer("table", torch.ones(3), persistent=False)
        self.optim = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.extra = {"ema": torch.ones(3), "n": 1}
        self.average = Average()
        self.state = {"model": self.model, "optim": self.optim}
        if extra:
            self.state.update(extra=self.extra, average=self.average)
        self.train()

    def train(self):
        self.optim.zero_grad()
        self.model(torch.randn(8, 4)).pow(2).mean().backward()
        self.optim.step()

    def view(self):
        held = {"model": dict(self.model.state_dict()), "optim": optimizer_view(self.optim), "extra": self.extra,
                "average": self.average.values}
        return torch.utils._pytree.tree_map(lambda x: x.detach().clone() if isinstance(x, torch.Tensor) else x, held)

    def spoil(self):
        with torch.no_grad():
            for tensor in [*self.model.state_dict().values(), self.extra["ema"], self.average.values,
                           *(x for entry in self.optim.state.values() for x in entry.values() if isinstance(x, torch.Tensor))]:
                tensor.zero_()


def a_parameter(bed):
    bed.model[0].bias = torch.nn.Parameter(torch.full((6,), 5.0))
    bed.optim = bed.state["optim"] = torch.optim.AdamW(bed.model.parameters())


def its_data(bed):
    bed.model[0].weight.data = torch.full((6, 4), 6.0)


def its_shape(bed):
    bed.model[0] = torch.nn.Linear(5, 6)
    bed.optim.param_groups[0]["params"] = [p for p in bed.model.parameters()]
    bed.optim.state.clear()


def its_strides(bed):
    bed.model[0].weight.data = torch.arange(24.0).reshape(4, 6).t()


def its_type(bed):
    bed.model.double()


def its_storage(bed):
    with torch.no_grad():
        bed.model[0].weight.set_(torch.arange(100.0).untyped_storage(), 10, (6, 4), (4, 1))


def resized(bed):
    with torch.no_grad():
        bed.model[1].running_mean.resize_(2).fill_(3.0)


def a_buffer(bed):
    bed.model[1].running_mean = torch.full((6,), 8.0)


def a_removed_buffer(bed):
    bed.model[1].running_mean = None


def an_added_layer(bed):
    bed.model.append(torch.nn.Linear(2, 2))


def an_added_parameter(bed):
    bed.model[0].register_parameter("scale", torch.nn.Parameter(torch.ones(2)))
    bed.optim.add_param_group({"params": [bed.model[0].scale], "lr": 0.5})


def a_removed_layer(bed):
    del bed.model[2:]
    bed.optim.state = type(bed.optim.state)(dict, {p: bed.optim.state[p] for p in bed.model.parameters()})
    bed.optim.param_groups[0]["params"] = list(bed.model.parameters())


def two_exchanged(bed):
    """Their shapes are the same, and each has memory that was known."""
    bed.model[2].bias, bed.model[3].bias = bed.model[3].bias, bed.model[2].bias


def exchanged_memory(bed):
    a, b = bed.model[2].bias, bed.model[3].bias
    a.data, b.data = b.data, a.data


def untied(bed):
    bed.model[3].weight = torch.nn.Parameter(torch.full((6, 6), 2.0))


def tied(bed):
    del bed.optim.state[bed.model[2].bias]
    bed.model[2].bias = bed.model[3].bias
    bed.optim.param_groups[0]["params"] = list(bed.model.parameters())


def state_of_a_parameter(bed):
    bed.optim.state[bed.model[0].bias]["exp_avg"] = torch.full((6,), 4.0)


def a_new_entry(bed):
    bed.optim.state[bed.model[0].bias]["more"] = torch.full((2,), 4.0)


def no_state(bed):
    del bed.optim.state[bed.model[0].bias]


def a_plain_entry(bed):
    bed.optim.state[bed.model[0].bias]["step"] = 12


def an_option(bed):
    bed.optim.param_groups[0]["lr"] = 0.25


def a_tensor_option(bed):
    bed.optim.param_groups[0]["lr"] = torch.tensor(0.5)


def the_order_of_groups(bed):
    bed.optim.param_groups[0]["params"].reverse()


def a_value(bed):
    bed.extra["n"] = 2


def a_value_s_tensor(bed):
    bed.extra["ema"] = torch.full((3,), 7.0)


def an_added_value(bed):
    bed.extra["more"] = torch.full((2,), 7.0)


def an_object_s_state(bed):
    bed.average.values = torch.full((4,), 9.0)


def contents(bed):
    bed.train()


def nothing(bed):
    pass


CHANGES = [a_parameter, its_data, its_shape, its_strides, its_type, its_storage, resized, a_buffer, a_removed_buffer, an_added_layer,
           an_added_parameter, a_removed_layer, two_exchanged, exchanged_memory, untied, tied, state_of_a_parameter, a_new_entry,
           no_state, a_plain_entry, an_option, a_tensor_option, the_order_of_groups, a_value, a_value_s_tensor, an_added_value,
           an_object_s_state, contents, nothing]
# The models and optimizers are where they were, so the save before is used.
IN_PLACE = [an_option, a_tensor_option, a_value, a_value_s_tensor, an_added_value, an_object_s_state, contents, nothing]


@contextlib.contextmanager
def saved(url, bed, **keys):
    """The bed, and a Checkpointer that has saved it as step 1."""
    with Checkpointer(url, bed.state, on_error="raise", **keys) as ck:
        ck.save(1).durable.result(60)
        yield bed, ck


@pytest.mark.parametrize("snapshot", ["copy", "lazy"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_save_notices_what_has_changed(url, change, snapshot):
    with saved(url, Bed(), snapshot=snapshot) as (bed, ck):
        before = ck._state._last
        assert before is not None
        change(bed)
        if ck.state["optim"] is not bed.optim:
            ck.state["optim"] = bed.optim
        ck.save(2).durable.result(60)
        assert (ck._state._last is before) == (change in IN_PLACE)
        ck.save(3).durable.result(60)
        live = bed.view()
        for step in (3, 2):
            bed.spoil()
            ck.restore(step)
            assert_same(bed.view(), live)
        bed.train() if change in IN_PLACE else None  # and after a restore, which has put other rows in place
        live = bed.view()
        ck.save(4).durable.result(60)
        bed.spoil()
        ck.restore(4)
        assert_same(bed.view(), live)


def test_what_has_changed_back_is_noticed(url):
    with saved(url, Bed()) as (bed, ck):
        kept = bed.model[0].bias.data
        for step, data in enumerate([torch.full((6,), 5.0), kept, torch.full((6,), 6.0), kept], 2):
            bed.model[0].bias.data = data
            live = bed.view()
            ck.save(step).durable.result(60)
            bed.spoil()
            ck.restore(step)
            assert_same(bed.view(), live)


def test_a_constant_that_is_not_stored_is_looked_at(url):
    """Its digest is in the tree; a restore warns where it differs."""
    with saved(url, Bed(extra=False)) as (bed, ck):
        bed.model.table.fill_(2.0)
        ck.save(2).durable.result(60)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            ck.restore(2)
        with pytest.warns(cairn.torch.CairnWarning, match="table"):
            ck.restore(1)


def test_lazy_rows_follow_the_optimizers_hooks(url):
    """An optimizer whose steps pass the hook by makes its tensors eager."""
    with saved(url, Bed(), snapshot="lazy") as (bed, ck):
        before = ck._state._last
        bed.optim.param_groups[0]["capturable"] = True
        handle = ck.save(2)
        assert ck._state._last is not before
        live = bed.view()
        with torch.no_grad():
            for param in bed.model.parameters():
                param.fill_(9.0)  # nobody waits
        handle.durable.result(60)
        bed.spoil()
        ck.restore(2)
        assert_same(bed.view(), live)


def test_what_is_known_keeps_no_tensor_alive(url):
    bed = Bed()
    with Checkpointer(url, bed.state, on_error="raise") as ck:
        for step in range(3):
            ck.save(step).durable.result(60)
        gone = torch._C._WeakTensorRef(bed.optim.state[bed.model[0].bias]["exp_avg"])
        bed.optim.state.clear()
        gc.collect()
        assert gone.expired()


def test_the_garbage_collector_is_as_it_was(url):
    with saved(url, Bed()) as (bed, ck):
        assert gc.isenabled()
        gc.disable()
        try:
            ck.save(2).durable.result(60)
            assert not gc.isenabled()
        finally:
            gc.enable()


class WithExtra(torch.nn.Linear):
    def get_extra_state(self):
        return {"n": self.n}

    def set_extra_state(self, state):
        self.n = state["n"]


class Metric(torch.nn.Module):
    def _save_to_state_dict(self, destination, prefix, keep_vars):
        destination[f"{prefix}total"] = torch.ones(1)


class Lookahead(torch.optim.SGD):
    def state_dict(self):
        return {**super().state_dict(), "slow": [torch.ones(3)]}


def add_hook(model, change):
    model.register_state_dict_post_hook(lambda module, found, prefix, _: change(found, prefix))


def group_state(found):
    """As bitsandbytes' 8-bit optimizers do."""
    found["state"] = {number: {"group": dict(entry)} for number, entry in found["state"].items()}


class Narrow(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Conv2d(3, 3, 2).to(memory_format=torch.channels_last)

    def state_dict(self):
        return self.inner.state_dict()


class Wrapped(torch.nn.Linear):
    """Half as wide, and one level down, as some models give their weights away."""

    def state_dict(self):
        return {"model": {name: value.half() for name, value in super().state_dict().items()}}


OWN = {
    "copy by another name": (lambda model: add_hook(model[1], lambda d, at: d.update({at + "slow": d[at + "weight"].clone()})),
                             r"model\.1\.slow: a method"),
    "copies in a dict": (lambda model: add_hook(model, lambda d, at: d.update(slow={name: value.clone() for name, value in d.items()})),
                         r"model\.slow\.0\.weight: a method"),
    "more in a wrapped one": (lambda model: add_hook(model, lambda d, at: d.update(more={7: 3})), r"model\.more\.7: a method"),
    "itself": (lambda model: add_hook(model, lambda d, at: d.update(own=d)), r"model\.own\.own\.own"),
    "other weights by half": (lambda model: add_hook(model, lambda d, at: d.update({at + "0.bias": torch.ones(3).half()})),
                              r"model\.0\.bias: "),
    "module": (lambda model: model.append(Metric()), "model.2.total: a method or a hook of Metric"),
    "hook that adds": (lambda model: add_hook(model[1], lambda d, at: d.update({at + "n": 1})), r"model\.1\.n: a method"),
    "hook that replaces": (lambda model: add_hook(model, lambda d, at: d.update({at + "0.bias": torch.ones(3)})),
                           r"model\.0\.bias: "),
    "hidden buffer": (lambda model: add_hook(model, lambda d, at: d.update(rope=model.rope)), r"model\.rope: "),
    "optimizer": (lambda model: Lookahead(model.parameters()), r"optim\.slow: Lookahead puts this"),
    "optimizer's state": (lambda model: with_hook(model, lambda found: found["state"].update({0: {"slow": {"w": 1.5}}})),
                          r"optim\.state\.slow: SGD"),
    "optimizer's group": (lambda model: with_hook(model, lambda found: found["param_groups"][0].update(k=1)),
                          r"optim\.param_groups\.k: SGD"),
}


def with_hook(model, change):
    optimizer = torch.optim.SGD(model.parameters())
    optimizer.register_state_dict_post_hook(lambda _, found: change(found))
    return optimizer


@pytest.mark.parametrize("case", OWN)
def test_what_only_its_own_state_dict_has_is_refused_by_name(url, case):
    """Also where it comes between two saves; the next save without it is whole."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    model.register_buffer("rope", torch.ones(2), persistent=False)
    change, text = OWN[case]
    state = {"model": model, "optim": torch.optim.SGD(model.parameters())}
    with Checkpointer(url, state, on_error="raise") as ck:
        for step in (1, 2):
            ck.save(step).durable.result(60)
        made = change(model)
        if isinstance(made, torch.optim.Optimizer):
            ck.state["optim"] = made
        with pytest.raises(cairn.UnsupportedValueError, match=text + ".*state_dict and load_state_dict"):
            ck.save(3)
        assert [item.step for item in ck.list()] == [2, 1]


def test_modules_and_optimizers_that_add_nothing_of_their_own_are_saved(url):
    """Hooks that rename, shape, copy or round what is stored, those of PyTorch's wrappers, and observers of a quantization."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), checkpoint_wrapper(torch.nn.Linear(3, 3)), WithExtra(3, 3))
    model[2].n = 1
    add_hook(model[2], lambda *_: None)
    add_hook(model[0], lambda d, at: d.update({at + "w": d.pop(at + "weight").view(-1), at + "bias": d[at + "bias"].clone()}))
    model.qconfig = torch.ao.quantization.get_default_qat_qconfig()
    model = torch.ao.quantization.prepare_qat(model).append(Narrow()).append(Wrapped(3, 3))
    optimizer = with_hook(model, group_state)
    for param in model.parameters():
        optimizer.state[param] = {"state1": torch.ones(2), "absmax1": torch.ones(1)}
    with Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise") as ck:
        ck.save(1).durable.result(60)


def test_what_a_fingerprint_does_not_describe_is_made_anew(url):
    """Scales of quantized tensors, extra state, nested state of an optimizer."""
    bed = Bed()
    bed.model.append(WithExtra(2, 2))
    bed.model[4].n = 1
    with Checkpointer(url, bed.state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        assert ck._state._last is None
        bed.model[4].n = 2
        ck.save(2).durable.result(60)
        bed.model[4].n = 0
        ck.restore(2)
        assert bed.model[4].n == 2
        del bed.model[4]
        bed.optim.state[bed.model[0].bias]["nested"] = [torch.ones(2), 1]
        ck.save(3).durable.result(60)
        assert ck._state._last is None
        bed.optim.state[bed.model[0].bias]["nested"] = None
        ck.save(4).durable.result(60)
        assert ck._state._last is not None
        bed.model.register_buffer("packed", torch.quantize_per_tensor(torch.ones(3), 0.5, 0, torch.qint8))
        ck.save(5).durable.result(60)
        assert ck._state._last is None
