# SPDX-License-Identifier: Apache-2.0
"""Ranks that hold different tensors, as in pipeline and expert parallel, save and restore one checkpoint."""

import pytest

import cairn


@pytest.mark.parametrize("sharded", [False, True])
def test_pipeline_stages(url, ranks4, sharded):
    ranks4.run("cases_stages.pipeline", url=url, sharded=sharded)


def test_strict_looks_at_all_stages(url, ranks4):
    ranks4.run("cases_stages.strict", url=url)


def test_experts(url, ranks4):
    written = ranks4.run("cases_stages.experts", url=url)
    with cairn.Client(url, read_only=True) as client:
        (checkpoint,) = client.list()
    assert checkpoint.world_size == 4 and sum(written) == checkpoint.plain_bytes


def test_stages_keep_what_is_their_own(url, ranks4):
    ranks4.run("cases_stages.own_schedules", url=url)
