# SPDX-License-Identifier: Apache-2.0
"""With restore(share="broadcast") the store is read once for what many ranks hold."""

import pytest

from ranks import Ranks


def test_replicated_state_is_read_once(url, ranks4):
    answers = ranks4.run("cases_share.ddp", url=url)
    alone, shared = (sum(read[i] for read in answers) for i in (0, 1))
    alike = answers[0][2]
    trees = alone - 4 * alike  # and the loader of each rank, which nobody shares
    assert 0 < trees < 0.05 * alone and shared == alike + trees, answers
    assert max(read[1] for read in answers) < 0.4 * answers[0][0]  # each rank reads a part


def test_replicas_of_shards_are_read_once(url, ranks4):
    answers = ranks4.run("cases_share.hsdp", url=url)
    alone, shared = (sum(read[i] for read in answers) for i in (0, 1))
    assert alone - shared == 4 * 16000 * 2.5 - 3 * 16000, answers  # each of three tensors once, by all together


def test_tensors_on_a_device_are_handed_over(url, ranks2):
    read = ranks2.run("cases_share.on_device", url=url)
    assert 240000 < sum(read) < 360000, read  # 300 x 200 floats and the rest once, and trees on each rank


def test_ranks_must_ask_alike(url, ranks2):
    ranks2.run("cases_share.refused", url=url)


def test_a_bit_that_flips_on_the_way_is_found(url, ranks2):
    ranks2.run("cases_share.flipped", url=url)


def test_a_reader_that_dies_is_a_named_error_on_all_others(url, tmp_path):
    pool = Ranks(3)
    try:
        pool.send("cases_share.reader_dies", url=url, folder=str(tmp_path))
        with pytest.raises(AssertionError):
            pool.answers(60)
    finally:
        pool.kill()
        pool.close()
    for rank in (0, 2):
        text = (tmp_path / str(rank)).read_text()
        assert "rank 1 on " in text and "rank 0 on" not in text and "rank 2 on" not in text and "unusable" in text
