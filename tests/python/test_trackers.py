# SPDX-License-Identifier: Apache-2.0
"""Each commit is told once, and the trackers have it, as their own readers say."""

import json
import logging
import struct
import time

import pytest
import torch

import cairn
import cairn.trackers
from bed import save
from cairn.torch import Checkpointer

NAMES = {"cairn/blocked_s", "cairn/durable_s", "cairn/plain_bytes", "cairn/stored_bytes"}


def train(url, on_commit, steps=(1, 2)):
    with Checkpointer(url, {"x": torch.arange(1000.0)}, on_commit=on_commit) as checkpointer:
        for step in steps:
            checkpointer.save(step)


def test_each_commit_is_told(url):
    told = []
    train(url, told.append)
    assert [(commit.step, commit.term) for commit in told] == [(1, 1), (2, 1)]
    for commit in told:
        assert commit.url == f"{url}/step-{commit.step}@1" and commit.plain_bytes >= 4000
        assert 0 < commit.blocked_s <= commit.durable_s < 60


def test_what_failed_is_not_told(url):
    """Only commits are told, and what the function raises does not end the training."""
    told = []
    save(url, {"x": torch.ones(3)}, step=1)
    with Checkpointer(url, {"x": torch.ones(3)}, on_commit=told.append) as checkpointer:
        with pytest.raises(cairn.CairnError):
            checkpointer.save(1, metadata={"x": object()})
    assert not told
    with pytest.raises(cairn.InvalidError, match="on_commit"):
        Checkpointer(url, {}, on_commit=5)


def test_what_it_raises_is_logged(url, caplog):
    def broken(_):
        raise ValueError("the tracker is away")

    with caplog.at_level(logging.ERROR, "cairn"):
        train(url, broken)
    assert caplog.text.count("on_commit raised for step") == 2 and "the tracker is away" in caplog.text


def test_tensorboard(url, tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(tmp_path)) as writer:
        train(url, cairn.trackers.tensorboard(writer))
    read = EventAccumulator(str(tmp_path)).Reload()
    assert NAMES <= set(read.Tags()["scalars"])
    assert [event.step for event in read.Scalars("cairn/durable_s")] == [1, 2]
    assert read.Tensors("cairn/checkpoint/text_summary")[1].tensor_proto.string_val[0].decode() == f"{url}/step-2@1"


def test_mlflow(url, tmp_path):
    mlflow = pytest.importorskip("mlflow")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    with pytest.raises(cairn.InvalidError, match="no run is active"):
        cairn.trackers.mlflow()
    with mlflow.start_run() as run:
        train(url, cairn.trackers.mlflow())
    client = mlflow.MlflowClient()
    assert [metric.step for metric in client.get_metric_history(run.info.run_id, "cairn/durable_s")] == [1, 2]
    data = client.get_run(run.info.run_id).data
    assert NAMES <= set(data.metrics) and data.tags["cairn.checkpoint"] == f"{url}/step-2@1"


def wandb_rows(path):
    """Returns the rows of a run's history, from the file that an offline run leaves: blocks of 32 KiB, in which each part of a record
    has a checksum, a length and a kind (1 whole, 2 first, 3 middle, 4 last) before it. wandb has no reader for Python. None if the
    record of the run's end is not there yet: a service writes it, which may do so after ``finish``."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, whole, rows = path.read_bytes(), 7, b"", []
    while at + 7 <= len(data):
        if 32768 - at % 32768 < 7:
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        if at + 7 + length > len(data):
            break
        whole += data[at + 7:at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            record, whole = Record.FromString(whole), b""
            if record.WhichOneof("record_type") == "history":
                rows.append({"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item})
            elif record.WhichOneof("record_type") == "exit":
                return rows
    return None


def test_wandb(url, tmp_path, monkeypatch):
    """Offline. The training's own rows keep their steps."""
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    with pytest.raises(cairn.InvalidError, match="no run is active"):
        cairn.trackers.wandb()
    with wandb.init(project="cairn", dir=str(tmp_path)) as run:
        run.log({"loss": 1.0}, step=7)
        train(url, cairn.trackers.wandb())
        run.log({"loss": 0.5}, step=9)
        assert run.summary["cairn/checkpoint"] == f"{url}/step-2@1"
    path, until = next(tmp_path.glob("wandb/offline-run-*/*.wandb")), time.monotonic() + 60
    while (rows := wandb_rows(path)) is None:
        assert time.monotonic() < until, "wandb does not end its file"
        time.sleep(0.1)
    assert [(row["_step"], row["loss"]) for row in rows if "loss" in row] == [(7, 1.0), (9, 0.5)]
    told = [row for row in rows if "cairn/step" in row]
    assert [row["cairn/step"] for row in told] == [1, 2] and all(NAMES <= set(row) for row in told)
