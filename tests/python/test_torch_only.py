# SPDX-License-Identifier: Apache-2.0
"""A partial restore brings back what the patterns select, and all else stays as it is to the bit."""

import random

import pytest
import torch

import cairn
from bed import assert_same, one_step, optimizer_view, restore, save, seed, small_model


def make(start):
    model = small_model(start)
    optimizer = torch.optim.Adam([{"params": model[0].parameters(), "lr": 0.1 * (start + 1)},
                                  {"params": model[2].parameters(), "lr": 0.2 * (start + 1)}])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    for _ in range(start + 1):
        one_step(model, optimizer, scheduler)
    return {"model": model, "optim": optimizer, "sched": scheduler,
            "extra": {"epoch": start, "ema": {"w": torch.full((4,), float(start)), "n": start}}, "gen": torch.Generator()}


def view(state):
    return {"model": {k: v.clone() for k, v in state["model"].state_dict().items()},
            "optim": {k: {n: t.clone() if isinstance(t, torch.Tensor) else t for n, t in v.items()}
                      for k, v in optimizer_view(state["optim"])["state"].items()},
            "groups": [dict(g) for g in optimizer_view(state["optim"])["groups"]],
            "sched": dict(state["sched"].state_dict()),
            "extra": {"epoch": state["extra"]["epoch"], "w": state["extra"]["ema"]["w"].clone(), "n": state["extra"]["ema"]["n"]},
            "gen": state["gen"].get_state().clone(), "rng": torch.get_rng_state(), "python": random.getstate()}


# pattern -> (keys of view that must be the stored ones, whole), or a function that mends the expected view
CASES = {
    "model": lambda e, s: e.update(model=s["model"]),
    "model.*": lambda e, s: e.update(model=s["model"]),
    "model.0.weight": lambda e, s: e["model"].update({"0.weight": s["model"]["0.weight"]}),
    "*.bias": lambda e, s: (e["model"].update({k: s["model"][k] for k in ("0.bias", "2.bias")}),
                            e["optim"].update({1: s["optim"][1], 3: s["optim"][3]})),
    "optim.model.2.*": lambda e, s: e["optim"].update({2: s["optim"][2], 3: s["optim"][3]}),
    "optim.groups[[]1]": lambda e, s: e["groups"].__setitem__(1, s["groups"][1]),
    "sched": lambda e, s: e.update(sched=s["sched"]),
    "sched.*": lambda e, s: e.update(sched=s["sched"]),
    "extra.epoch": lambda e, s: e["extra"].update(epoch=s["extra"]["epoch"]),
    "extra.ema.*": lambda e, s: e["extra"].update(w=s["extra"]["w"], n=s["extra"]["n"]),
    "gen": lambda e, s: e.update(gen=s["gen"]),
    "cairn.rng": lambda e, s: e.update(rng=s["rng"], python=s["python"]),
}


def test_what_is_selected_comes_back_and_all_else_stays(url):
    seed(1)
    stored_state = make(0)
    stored = view(stored_state)
    with cairn.torch.Checkpointer(url, stored_state) as ck:
        ck.save(7).durable.result(60)
    live = make(1)
    live["gen"].manual_seed(5)
    with cairn.torch.Checkpointer(url, live, read_only=True) as ck:
        for pattern, mend in CASES.items():
            before = view(live)
            assert ck.restore(only=[pattern]).step == 7, pattern
            mend(before, stored)
            after = view(live)
            assert_same(after, before)
        ck.restore(only=["*"])
        assert_same(view(live), stored)


def test_a_state_may_hold_less_and_more_than_was_saved(url):
    """Fine-tuning: the body of a model whose head is another one, without the optimizer."""
    save(url, make(0))
    model = small_model(3)
    model[2] = torch.nn.Linear(8, 5)
    head = model[2].weight.detach().clone()
    restored = restore(url, {"model": model, "novel": {"a": 1}}, only=["model.0.*"])
    assert restored.missing == restored.unexpected == ()
    assert_same(model[0].weight, make_weight(0)) and torch.equal(model[2].weight, head)


def make_weight(start):
    return make(start)["model"][0].weight


def test_what_meets_nothing_is_named(url):
    state = make(0)
    save(url, state)
    before = view(state)
    with cairn.torch.Checkpointer(url, state) as ck:
        with pytest.raises(cairn.MissingTensorError, match=r"'modle\.0\.\*'.*perhaps.*model\.0"):
            ck.restore(only=["model.2.*", "modle.0.*"])
        assert ck.restore(only=["modle.*"], strict=False).step == 1
        for bad in ("model", [], [""], [3], 5):
            with pytest.raises(cairn.InvalidError, match="only"):
                ck.restore(only=bad)
    assert_same(view(state), before)
    bigger = {"model": torch.nn.Sequential(*small_model(1), torch.nn.Linear(3, 3))}
    with cairn.torch.Checkpointer(url, bigger) as ck:
        with pytest.raises(cairn.MissingTensorError, match=r"lacks model\.3\.weight, model\.3\.bias"):
            ck.restore(only=["model.*"])
        assert ck.restore(only=["model.*"], strict=False).missing == ("model.3.weight", "model.3.bias")
        with pytest.raises(cairn.MissingTensorError, match="state lacks sched"):
            ck.restore(only=["model.0.*", "sched"])


def test_a_part_that_does_not_fit_is_no_matter_where_it_is_not_wanted(url):
    save(url, make(0))
    model = small_model(1)
    state = {"model": model, "optim": torch.optim.SGD(model.parameters(), lr=1), "sched": {"a": 1}}
    with cairn.torch.Checkpointer(url, state) as ck:
        with pytest.raises(cairn.InvalidError, match="stored optimizer is Adam"):
            ck.restore()
        assert ck.restore(only=["model"]).step == 1
    assert_same(model.state_dict(), make(0)["model"].state_dict())


def test_a_partial_restore_does_not_mend_a_broken_state(url, monkeypatch):
    """A whole restore failed in the middle: what a partial one brings is good, the rest is still unusable."""
    from cairn.torch import restore as module
    state = make(0)
    with cairn.torch.Checkpointer(url, state) as ck:
        ck.save(1).durable.result(60)
        with monkeypatch.context() as patch:
            patch.setattr(module.Restore, "_apply_all", lambda self, plan: (_ for _ in ()).throw(cairn.IoError.of("broken")))
            with pytest.raises(cairn.IoError, match="unusable"):
                ck.restore()
        ck.restore(only=["model"])
        with pytest.raises(cairn.InvalidError, match="unusable"):
            ck.save(2)
        ck.restore()
        ck.save(2).durable.result(60)
