# SPDX-License-Identifier: Apache-2.0
"""A restore gives another type than the stored one when it is asked to, says which tensors, and never does it by itself."""

import numpy
import pytest
import torch

import cairn
from bed import assert_same, one_step, restore, save, small_model


def trained(dtype=torch.float32):
    model = small_model(1, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    one_step(model, optimizer)
    return model, optimizer


def test_a_model_of_another_type_is_refused_and_then_cast(url):
    model, optimizer = trained()
    save(url, {"model": model, "optim": optimizer})
    other, plain = trained(torch.bfloat16)
    before = [param.detach().clone() for param in other.parameters()]
    with pytest.raises(cairn.DtypeMismatchError, match=r"model\.0\.weight: .*float32.*bfloat16.*cast=True"):
        restore(url, {"model": other, "optim": plain})
    assert_same(before, list(other.parameters()))
    restored = restore(url, {"model": other, "optim": plain}, cast=True)
    for right, found in zip(model.parameters(), other.parameters()):
        assert torch.equal(found, right.bfloat16()) and found.dtype == torch.bfloat16
        for key in ("exp_avg", "exp_avg_sq"):
            assert torch.equal(plain.state[found][key], optimizer.state[right][key].bfloat16())
        assert plain.state[found]["step"].dtype == torch.float32
    assert {"model.0.weight", "model.2.bias", "optim.model.0.weight.exp_avg"} <= set(restored.cast)
    assert not any(name.endswith(".step") for name in restored.cast)
    one_step(other, plain)  # whose state fits its parameters


def test_wider_state_beside_narrow_parameters_stays_wide(url):
    model, optimizer = trained(torch.bfloat16)
    for param in model.parameters():
        optimizer.state[param]["exp_avg"] = optimizer.state[param]["exp_avg"].double() / 3
    save(url, {"model": model, "optim": optimizer})
    other, plain = trained(torch.bfloat16)
    assert restore(url, {"model": other, "optim": plain}, cast=True).cast == ()
    for right, found in zip(model.parameters(), other.parameters()):
        assert_same(optimizer.state[right]["exp_avg"], plain.state[found]["exp_avg"])


def test_values_follow_the_live_ones_where_no_number_is_lost(url):
    big = torch.tensor([1 << 40, -3])
    save(url, {"ema": {"w": torch.tensor([1.5, 1 / 3]), "n": big, "flag": torch.tensor([True, False])}})
    live = {"w": torch.zeros(2, dtype=torch.float16), "n": torch.zeros(2, dtype=torch.int8), "flag": torch.zeros(2)}
    kept = dict(live)
    restored = restore(url, {"ema": live}, cast=True)
    assert live["w"] is kept["w"] and torch.equal(live["w"], torch.tensor([1.5, 1 / 3]).half())
    assert live["flag"] is kept["flag"] and live["flag"].tolist() == [1.0, 0.0]
    assert torch.equal(live["n"], big) and live["n"].dtype == torch.int64  # not cut: a new tensor
    assert sorted(restored.cast) == ["ema.flag", "ema.w"]


def test_a_float_never_becomes_an_integer(url):
    class Counts(torch.nn.Module):
        def __init__(self, dtype):
            super().__init__()
            self.register_buffer("counts", torch.ones(3, dtype=dtype))

    save(url, {"model": Counts(torch.float32)})
    with pytest.raises(cairn.DtypeMismatchError, match="cannot be cast"):
        restore(url, {"model": Counts(torch.int64)}, cast=True)


def test_a_value_that_cannot_be_cast_is_named(url):
    save(url, {"i": torch.arange(4), "a": numpy.arange(3)})
    for cast, hint in ((True, "cannot be cast"), (False, "cast=True")):
        with pytest.raises(cairn.DtypeMismatchError, match=f"i: the stored tensor is int64 .*int32.*{hint}"):
            restore(url, {"i": torch.zeros(4, dtype=torch.int32), "a": numpy.zeros(3, numpy.int64)}, cast=cast)
    with pytest.raises(cairn.DtypeMismatchError, match="a: the stored tensor is int64 of numpy.*int32"):
        restore(url, {"i": torch.zeros(4, dtype=torch.int64), "a": numpy.zeros(3, numpy.int32)}, cast=True)
    with pytest.raises(cairn.ShapeMismatchError, match="i: "):
        restore(url, {"i": torch.zeros(5, dtype=torch.int64), "a": numpy.zeros(3, numpy.int64)})


def test_tied_and_strided_tensors_are_cast_too(url):
    model = small_model(2).double()
    save(url, {"model": model})
    other = small_model(3)
    other[0].weight.data = other[0].weight.data.t().contiguous().t()
    restore(url, {"model": other}, cast=True)
    assert all(torch.equal(found, right.float()) for found, right in zip(other.parameters(), model.parameters()))


def test_shards_are_cast_on_their_ranks(url, ranks2):
    import cases_doors as doors
    right = doors.build(1, 0)
    save(url, right, step=1)
    want = [param.detach().bfloat16() for param in right["model"].parameters()]
    assert ranks2.run("cases_doors.cast", url=url) == [doors.text(want)] * 2
