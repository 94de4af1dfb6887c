# SPDX-License-Identifier: Apache-2.0
"""cairn.training.Run, the run behind a framework's checkpoints: which ones keep their tag when a save fails."""

import os
import signal

import pytest
import torch

import cairn
from cairn.training import Run


def kept(url):
    with cairn.Client(url, read_only=True) as client:
        return [item.step for item in client.list() if "kept" in item.tags]


def test_a_failed_successor_is_told_and_the_next_save_takes_its_place(own_daemon):
    url, state = own_daemon.url("successor"), {"x": torch.ones(3)}
    run = Run(url, on_error="raise", when_down="wait", save_deadline=6.0, io_deadline=3.0)
    run.save(1, state).durable.result(60)
    os.kill(own_daemon.process.pid, signal.SIGSTOP)
    try:
        second = run.save(2, state)
        run.remove(1, second)
        second.durable.wait()
    finally:
        os.kill(own_daemon.process.pid, signal.SIGCONT)
    with pytest.raises(cairn.CairnError):
        run.save(3, state)
    assert kept(url) == [1]
    run.remove(2, run.save(4, state))
    run.close()
    assert kept(url) == [4]
