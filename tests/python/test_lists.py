# SPDX-License-Identifier: Apache-2.0
"""Ranks that register different tensors are saved whole, and replicas that are not equal are named, in real processes."""

import cairn


def test_additions_go_to_their_holders_and_a_loss_is_named(url, ranks2):
    answers = ranks2.run("cases_lists.lists", url=url, token=cairn.new_attempt())
    for told in answers:
        assert [name for name, _ in told[:2]] == ["committed", "committed"]
        name, text = told[2]
        assert name == "ListMismatchError" and "rank 1" in text and any(f"'{t}'" in text for t in "abcde")
        assert told[3][0] == "committed"  # agreed anew
        assert told[4][0] == "MissingTensorError"


def test_one_flipped_bit_is_found_by_tensor_and_rank(url, ranks2):
    answers = ranks2.run("cases_lists.replicas", url=url, token=cairn.new_attempt())
    for told in answers:
        assert [name for name, _ in told] == ["committed", "ReplicasDifferError", "committed", "committed"]
        for _, text in told[1:3]:
            assert "'weight.ää" in text and "holds other bytes than rank" in text and "rank 0" in text and "rank 1" in text
        assert told[0][1] == told[3][1] == ""
