# SPDX-License-Identifier: Apache-2.0
"""A full save shares nothing with older ones, a metric that is NaN costs no checkpoint, and a restore, which takes
several sessions, counts once."""

import json
import math

import torch

import cairn
from bed import seed
from cairn.torch import Checkpointer


def test_a_full_save_shares_nothing(url, monkeypatch):
    monkeypatch.setenv("CAIRN_TRANSPORT", "socket")  # where saves refer to older ones
    seed(0)
    state = {"w": torch.randn(300_000), "b": torch.zeros(100)}
    with Checkpointer(url, state, on_error="raise", encoding="raw") as ck:
        first, second, third, fourth = (ck.save(step, full=step == 3).durable.result(60) for step in (1, 2, 3, 4))
    assert first.stored_bytes > 1_200_000 and third.stored_bytes > 1_200_000
    assert second.stored_bytes < 10_000 and fourth.stored_bytes < 10_000


def test_a_metric_that_is_nan_costs_no_checkpoint(url):
    """A loss that is NaN must not cost the save that was to keep what led there. It is kept as it is; a note after the fact
    is refused, since nothing is lost by that."""
    with Checkpointer(url, {"w": torch.ones(3)}, on_error="raise") as ck:
        ck.save(1, metrics={"loss": float("nan"), "acc": 0.5}).durable.result(60)
        try:
            ck.annotate(1, metrics={"loss": float("nan")})
        except cairn.InvalidError as error:
            assert '"loss" is not a number (NaN)' in str(error)
        else:
            raise AssertionError("annotate took NaN")
    with cairn.Client(url, read_only=True) as client:
        metrics = client.list()[0].metrics
    assert math.isnan(metrics["loss"]) and metrics["acc"] == 0.5


def test_a_restore_counts_once(url, cli):
    run, state = url.partition("run=")[2], {"w": torch.ones(3), "epoch": 1}
    for restores in range(2):
        with Checkpointer(url, state, on_error="raise") as ck:
            ck.restore()
            ck.save(1 + restores).durable.result(60)
        rows = json.loads(cli("stats", "--by", "run", "--json"))["rows"]
        assert [row["restores"] for row in rows if row["run"] == run] == [restores]
        assert cli("log", run).count("restore") == restores
