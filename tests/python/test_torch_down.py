# SPDX-License-Identifier: Apache-2.0
"""While the server is away training goes on: saves are skipped on all ranks alike and told of, and the first that can go goes."""

import os
import signal

import pytest

BOUND_S = 40.0  # a save that waits holds up a step for the deadline of the one before, 240 s


def check_away(answers, skipped):
    for longest, count, text, of_outage, warnings in answers:
        assert longest < BOUND_S and count >= skipped and of_outage >= skipped, answers
        assert "the server is away" in text and 1 <= warnings <= 2, answers  # one a minute


def check_back(answers, kept):
    """All ranks have the same checkpoints; what had been copied when the server went is among them."""
    for durable, skipped, is_over, failed in answers:
        assert set(durable) >= kept and is_over and failed == 0 and not set(durable) & set(skipped), answers
    assert answers[0][:2] == answers[1][:2], answers


@pytest.mark.parametrize("how, snapshot", [("kill", "copy"), ("stop", "copy"), ("kill", "lazy")])
def test_training_goes_on_while_the_server_is_away(own_daemon, ranks2, how, snapshot):
    ranks2.run("cases_down.begin", url=own_daemon.url("down"), options={"snapshot": snapshot})
    assert ranks2.run("cases_down.saved", count=3) == [[True, 0, 0]] * 2
    if how == "kill":
        own_daemon.kill()
    else:
        os.kill(own_daemon.process.pid, signal.SIGSTOP)
    check_away(ranks2.run("cases_down.away", count=30), skipped=25)
    if how == "kill":
        own_daemon.start()
    else:
        os.kill(own_daemon.process.pid, signal.SIGCONT)
    check_back(ranks2.run("cases_down.back"), kept={1, 2, 3, 4})


def test_a_job_starts_without_a_server(own_daemon, ranks2):
    own_daemon.kill()
    options = {"when_down": "train", "restore_deadline": 1.0}
    for text in ranks2.run("cases_down.begin", url=own_daemon.url("late"), options=options):
        assert "there was no connection" in text, text
    check_away(ranks2.run("cases_down.away", count=5), skipped=5)
    own_daemon.start()
    check_back(ranks2.run("cases_down.back"), kept=set())
