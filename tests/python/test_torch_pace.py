# SPDX-License-Identifier: Apache-2.0
"""Checkpointer(interval=...) says when a save is due, and all ranks think so."""

import logging
import math
from dataclasses import replace

import pytest
import torch

import cairn
from cairn import _cairn
from cairn.client import Checkpoint
from cairn.torch import Checkpointer, pace
from cairn.torch.group import Group


class Durable:
    def __init__(self):
        self.is_done = False

    def done(self):
        return self.is_done


class Handle:
    """A save that becomes durable when the test says so."""

    def __init__(self):
        self.durable = Durable()

    def is_good(self):
        return self.durable.is_done


class Clock:
    def __init__(self):
        self.now = 1000.0

    def __call__(self):
        return self.now


def make(interval, **options):
    clock = Clock()
    options = {"overhead_max": 0.05, "mtbf": None, "in_flight": 1, **options}
    return clock, pace.Pacer(Group(None, 0, 1, False), interval, clock=clock, **options)


def one_save(clock, pacer, blocked, persist):
    began, handle = clock.now, Handle()
    clock.now += blocked
    pacer.saved(handle, began)
    clock.now = began + persist
    handle.durable.is_done = True


def test_fixed_interval():
    clock, pacer = make(30)
    clock.now += 29
    assert not pacer.should_save(1)
    clock.now += 1
    assert pacer.should_save(2)
    one_save(clock, pacer, 2, 2)
    clock.now += 29
    assert not pacer.should_save(3)
    clock.now += 1
    assert pacer.should_save(4)


def test_auto_follows_what_is_measured(caplog):
    clock, pacer = make("auto", mtbf=10_000)
    assert pacer.should_save(1)  # the first measures
    with caplog.at_level(logging.INFO, "cairn"):
        one_save(clock, pacer, 2, 5)
        assert not pacer.should_save(2)
    daly = math.sqrt(2 * 2 * 10_000)
    assert daly * 0.95 < pacer.advice.durable < daly * 1.05 and "a failure costs" in caplog.text
    assert len(pacer.advice.text.splitlines()) == 3
    clock.now += pacer.advice.durable - 5
    assert not pacer.should_save(3)
    clock.now += 4
    assert pacer.should_save(4)
    for _ in range(5):  # copying has become slow
        one_save(clock, pacer, 40, 60)
        pacer.should_save(5)
    assert 40 * 19 - 1 < pacer.advice.durable  # 5 % of the time
    assert pacer.advice.overhead < 0.0501


def test_auto_waits_for_what_is_slow_to_be_durable():
    clock, pacer = make("auto", mtbf=100)
    one_save(clock, pacer, 0.1, 300)
    assert pacer.should_save(2)  # there is room again, and more than enough time has passed
    assert pacer.advice.durable == pytest.approx(299.9) and pacer.advice.staged < 10
    clock, pacer = make("auto", mtbf=100)
    began, handle = clock.now, Handle()
    pacer.saved(handle, began)
    clock.now += 10_000
    assert not pacer.should_save(2)  # the first one is still on its way


def test_restarts_are_counted_from_the_record():
    def row(term, step, at):
        return Checkpoint(term, step, step, 0, 0, None, float(at), 1, "committed", "verified", False, False)
    found = [row(1, 1, 100), row(1, 2, 400), row(3, 3, 1000), row(3, 5, 1600), row(2, 3, 700)]
    assert pace.failures_of(found) == (2, 900.0)
    assert pace.failures_of([]) == (0, 0)
    calm = [row(1, 1, 100), replace(row(2, 3, 700), planned=True), replace(row(2, 4, 800), planned=True), row(3, 3, 1000)]
    assert pace.failures_of(calm)[0] == 1  # the second attempt followed an orderly end
    clock, often = make("auto", mtbf=1e6)
    often.seen(found)
    one_save(clock, often, 2, 3)
    often.should_save(1)
    clock, never = make("auto", mtbf=1e6)
    one_save(clock, never, 2, 3)
    never.should_save(1)
    assert often.advice.durable < never.advice.durable / 3


def test_bad_words_are_refused(url):
    for bad in ({"interval": "often"}, {"interval": 0}, {"interval": float("nan")}, {"interval": True}, {"interval": 5, "overhead_max": 1},
                {"interval": "auto", "mtbf": -1}):
        with pytest.raises(cairn.InvalidError, match="interval|overhead_max|mtbf"):
            Checkpointer(url, {}, **bad)
    with Checkpointer(url, {}) as ck:
        with pytest.raises(cairn.InvalidError, match='give interval="auto"'):
            ck.should_save(1)
    with pytest.raises(cairn.InvalidError, match="blocked_s is -1"):
        _cairn.interval(-1, 1, 1, 1, 0, 0, 0, 1, 1)


def test_auto_on_a_real_run(url):
    with Checkpointer(url, {"w": torch.ones(1000)}, on_error="raise", interval="auto") as ck:
        assert ck.should_save(1)
        ck.save(1).durable.result(60)
        assert not ck.should_save(2)
        assert ck.advice.durable > 1 and ck.advice.mtbf > 1e8


def test_ranks_save_at_the_same_step(url, ranks2):
    """One rank's clock is far ahead: rank 0's counts, and its answer comes a step later."""
    assert ranks2.run("cases_life.paced", url=url) == [[10, 21, 32, 43, 54]] * 2
