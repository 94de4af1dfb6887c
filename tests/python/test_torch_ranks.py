# SPDX-License-Identifier: Apache-2.0
"""Readers are a group without an attempt, a rank that does not come is named in time, one that refuses ends the step on all,
and what is changed or differs is kept."""

import socket

import pytest

from ranks import Ranks


@pytest.fixture
def pool():
    """Processes of the test's own, which need not end well."""
    pools = []

    def make(world):
        pools.append(Ranks(world))
        return pools[-1]
    yield make
    for made in pools:
        made.kill()
        made.close()


# --- 1: readers -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("tokens", [None, ["a" * 32, "b" * 32]])
def test_readers_are_a_group_without_an_attempt(url, ranks2, tokens):
    ranks2.send("cases_ranks.read_only", url=url, tokens=tokens)
    ranks2.answers(90)


def test_readers_agree_on_latest(own_daemon, ranks4):
    """Only one reader meets the damage; all take the older checkpoint."""
    url = own_daemon.url("damaged")
    ranks4.run("cases_life.shards_save", url=url)
    found = [path for path in own_daemon.store.rglob("3-*") if path.parent.parent.name == "objects"
             and path.parent.name == "1-2"]
    found[0].chmod(0o600)
    data = bytearray(found[0].read_bytes())
    data[100] ^= 1
    found[0].write_bytes(data)
    assert ranks4.run("cases_ranks.read_damaged", url=url) == [[1, True]] * 4


# --- 2: ranks that do not come ----------------------------------------------------------------------------------

@pytest.mark.parametrize("where, how", [("Checkpointer", "stop"), ("Checkpointer", "raise"), ("restore", "stop"), ("restore", "kill"),
                                        ("share", "stop"), ("should_stop", "stop"), ("should_stop", "kill"), ("should_save", "raise")])
def test_a_rank_that_does_not_come_is_named(url, pool, where, how):
    """Within the caller's deadline, with its host and what it was last seen doing; and so in each call after that."""
    ranks = pool(3)
    ranks.send("cases_ranks.absent", url=url, where=where, how=how)
    for answer in ranks.answers(90, count=2):
        name, text, seconds = answer[:3]
        assert name == "MissingRanksError", answer
        assert "rank 2 " in text and "rank 0 " not in text and "rank 1 " not in text, text
        assert socket.gethostname() in text and seconds < 60, answer
        if where != "Checkpointer":
            assert "last seen" in text and "in save of step 4" in text, text
            assert answer[3] == "MissingRanksError" and "rank 2 " in answer[4] and answer[5] < 4, answer  # at once: no second wait
        else:
            assert "has called nothing of Cairn's yet" in text, text


def test_a_rank_may_be_late_within_the_deadline(url, ranks2):
    assert ranks2.run("cases_ranks.late", url=url) == [True, True]


# --- 3: ranks that refuse ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("who", [0, 1])
def test_a_refusal_ends_the_step_on_all_ranks(url, ranks2, who, first):
    """At once, with the reason; the same step and the next can be saved then."""
    answers = ranks2.run("cases_ranks.refuses", url=url, who=who, first=first)
    text, seconds = answers[1 - who]
    assert f"rank {who} on {socket.gethostname()} cannot save" in text and "extra.bad" in text, text
    assert seconds < 120, answers  # half of the deadline


def test_a_failure_of_the_states_own_code_ends_the_step(url, ranks2):
    answers = ranks2.run("cases_ranks.refuses_otherwise", url=url)
    assert "rank 1 on" in answers[0] and "KeyError" in answers[0]


# --- 4: the default device --------------------------------------------------------------------------------------

def test_the_default_device_is_no_matter(url, ranks2):
    ranks2.send("cases_ranks.default_device", url=url)
    ranks2.answers(90)


# --- 5: ck.state ------------------------------------------------------------------------------------------------

def test_what_is_put_into_the_state_is_saved(url, ranks2):
    ranks2.send("cases_ranks.replaced", url=url)
    ranks2.answers(90)


def test_a_change_on_one_rank_is_named(url, ranks2):
    """At once, with all deadlines as they are by default (600 s), and not only the first time."""
    for answers in ranks2.run("cases_ranks.replaced_on_one", url=url):
        for (name, text, seconds), what in zip(answers, ("save of step 2", "save of step 3", "restore")):
            assert name == "InvalidError" and seconds < 60, answers
            assert f"{what}: the tensors that ck.state holds were changed here, on rank 1, but not on rank 0" in text, answers


def test_a_value_that_cannot_be_stored_is_refused_when_the_checkpointer_is_made(url, ranks2):
    for name, text, _ in ranks2.run("cases_ranks.unstorable", url=url):
        assert name.startswith("Unsupported") and "extra.a[1]: a value of type builtins.object cannot be stored" in text, text


@pytest.mark.parametrize("where", ["restore", "should_stop", "should_save"])
def test_a_rank_that_was_late_once_does_not_end_the_group(url, pool, where):
    """All ranks hear who was waited for, the late one too, and the next call of all goes on."""
    ranks = pool(3)
    ranks.send("cases_ranks.late_once", url=url, where=where)
    for name, text, _ in ranks.answers(200):
        assert name == "MissingRanksError" and "rank 2 did not come within 4 s" in text and "rank 0 " not in text, text
        assert socket.gethostname() in text and "in save of step 1)" in text, text


# --- 6: states that differ --------------------------------------------------------------------------------------

@pytest.mark.parametrize("idle", [[[], [1]], [[1], []], [[0, 1], [2]], [[0, 1, 2], []]])
def test_what_differs_between_ranks_comes_back_to_each(url, ranks2, idle):
    ranks2.run("cases_ranks.differs", url=url, idle=idle)
    ranks2.run("cases_ranks.differs_elsewhere", url=url)


def test_the_first_save_names_what_differs_once(url, ranks2):
    first, others = ranks2.run("cases_ranks.differs_told", url=url)
    assert others == [[]] * 4 and first[0] == []
    for told in first[1:]:
        assert [text.partition(":")[0] for text in told] == ["big", "extra", "long", "optim", "plan"], told
        assert all("rank 1 holds other contents than rank 0" in text for text in told), told
        assert [("REPLICAS_DIFFER" in text, "Each rank gets its own back" in text) for text in told] == [
            (True, False), (False, True), (True, False), (False, True), (False, True)], told


def test_tensors_and_long_values_that_differ(url, ranks2):
    assert any(ranks2.run("cases_ranks.tensors_differ", url=url))


def test_an_older_checkpoint_still_restores(url, ranks2):
    ranks2.send("cases_ranks.older", url=url)
    ranks2.answers(60)
