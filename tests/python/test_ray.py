# SPDX-License-Identifier: Apache-2.0
"""Ray learns of a checkpoint when it is durable, keeps what its own rules keep, and no row comes twice without an error. Ray's own
controller and workers run; tests/reach kills them."""

import os
import pathlib
import tempfile

os.environ.update(RAY_USAGE_STATS_ENABLED="0", RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER="0", RAY_AUTH_MODE="disabled")

import pytest

ray = pytest.importorskip("ray", reason="Ray cannot be had; tests/python/run installs it where it can")
pytest.importorskip("ray.train", reason="ray[train] cannot be had")

import ray.train.torch
import torch

import cairn
import cairn.ray
from cairn.torch import Checkpointer


@pytest.fixture(scope="module")
def cluster():
    # Not under pytest's folder: a Unix socket's path has 107 bytes at most.
    with tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True) as folder:
        ray.init(num_cpus=2, include_dashboard=False, _temp_dir=folder, log_to_driver=False, ignore_reinit_error=False)
        yield
        ray.shutdown()


@pytest.fixture
def fit(cluster, tmp_path):
    """Trains with one worker, which gets what is given by name."""
    def call(train, keep=None, datasets=None, **given):
        config = ray.train.RunConfig(name="lab", storage_path=str(tmp_path),
                                     checkpoint_config=ray.train.CheckpointConfig(num_to_keep=keep))
        return ray.train.torch.TorchTrainer(train, train_loop_config=given, datasets=datasets, run_config=config,
                                            scaling_config=ray.train.ScalingConfig(num_workers=1)).fit()
    return call


@pytest.mark.parametrize("pause, steps", [(0, 8), (0.5, 4)], ids=["Ray is late", "Ray's thread is late"])
def test_ray_keeps_durable_checkpoints_and_the_run_keeps_the_same(fit, url, tmp_path, pause, steps):
    """Also those that Ray learns of when the training has ended, or that a killed job has left; and only the training's own thread is
    told of commits. Ray takes note of one report in about two seconds."""
    def train(config):
        import threading
        import time
        publish, mine, told = cairn.ray.Checkpointer._publish, threading.get_ident(), []
        cairn.ray.Checkpointer._publish = lambda *args: time.sleep(config["pause"]) or publish(*args)
        with cairn.ray.Checkpointer(config["url"], {"x": torch.zeros(1000)},
                                    on_commit=lambda commit: told.append((commit.step, threading.get_ident() == mine))) as checkpointer:
            restored = checkpointer.restore(config.get("source") or "latest")
            for step in range(restored.step + 1 if restored else 1, config["steps"] + 1):
                checkpointer.state["x"].fill_(step)
                checkpointer.report(step, {"loss": 1.0 / step, "note": "text"})
        cairn.ray.Checkpointer._publish = publish
        return restored.step if restored else None, told

    result = fit(train, keep=2, url=url, steps=steps, pause=pause)
    assert result.return_value == (None, [(step, True) for step in range(1, steps + 1)])
    assert cairn.ray.url_of(result.checkpoint) == f"{url}/step-{steps}@1" and result.metrics == {"loss": 1.0 / steps, "note": "text"}
    assert sorted(path.name for path in (tmp_path / "lab").glob("step-*")) == [f"step-{steps - 1}@1", f"step-{steps}@1"]
    with Checkpointer(url, {"x": torch.zeros(1000)}, read_only=True) as checkpointer:
        found = {item.step: item for item in checkpointer.list()}
        assert [step for step, item in found.items() if "kept" in item.tags] == [steps, steps - 1]
        assert found[steps].metrics == {"loss": 1.0 / steps}
        assert checkpointer.restore(steps - 1).step == steps - 1 and checkpointer.state["x"][0] == steps - 1

    with cairn.Client(url) as client:
        client.annotate(1, tags=["kept"])  # as a job leaves it that is killed just then
    # From a checkpoint that Ray gives out, which need not be the newest. There is nothing left to report.
    assert fit(train, keep=2, url=url, steps=steps - 1, source=result.best_checkpoints[0][0], pause=0).return_value == (steps - 1, [])
    with cairn.Client(url, read_only=True) as client:
        assert [item.step for item in client.list() if "kept" in item.tags] == [steps, steps - 1]


def test_a_failed_save_is_reported_without_a_checkpoint(fit, own_daemon, tmp_path):
    """And leaves no folder on the worker's disk, as the one that succeeds does not."""
    def train(config):
        import signal
        tempfile.tempdir = config["temporary"]
        with cairn.ray.Checkpointer(config["url"], {"x": torch.ones(1000)}, save_deadline=2, io_deadline=1) as checkpointer:
            checkpointer.report(1, {"loss": 1.0}).durable.result(60)
            os.kill(config["pid"], signal.SIGSTOP)
            saves = [checkpointer.report(step, {"loss": 0.5}) for step in (2, 3)]
            ended = [save.durable.exception(60) for save in saves]
            os.kill(config["pid"], signal.SIGCONT)
        return [type(error).__name__ for error in ended]

    temporary = tmp_path / "temporary"
    temporary.mkdir()
    result = fit(train, url=own_daemon.url("failed"), pid=own_daemon.process.pid, temporary=str(temporary))
    assert not list(temporary.iterdir())
    assert len(result.return_value) == 2 and "NoneType" not in result.return_value
    assert cairn.ray.url_of(result.checkpoint).endswith("/step-1@1") and len(result.best_checkpoints) == 1


def test_rows_of_ray_data_come_once_or_there_is_an_error(fit, url):
    def train(config):
        shard = ray.train.get_dataset_shard("train")
        with cairn.ray.Checkpointer(config["url"], {"x": torch.ones(10)}) as checkpointer:
            for epoch in range(2):
                for _ in shard.iter_batches(batch_size=8):
                    with pytest.raises(cairn.UnsupportedError, match="report within an epoch of the data set 'train'"):
                        checkpointer.report(epoch)
                checkpointer.report(epoch)

    result = fit(train, datasets={"train": ray.data.range(32)}, url=url)
    assert cairn.ray.url_of(result.checkpoint) == f"{url}/step-1@1"


def test_other_ranks_take_a_loader_between_epochs_only():
    assert cairn.ray._begin_again([{"_iterator_finished": True, "_num_yielded": 8}] * 2, 0, 1) == {}
    with pytest.raises(cairn.UnsupportedError, match="within an epoch of 2 ranks"):
        cairn.ray._begin_again([{"_iterator_finished": False, "_num_yielded": 3}] * 2, 0, 1)


def test_what_is_no_checkpoint_of_cairn_is_named(tmp_path):
    with pytest.raises(cairn.InvalidError, match="names no checkpoint of Cairn"):
        cairn.ray.url_of(ray.train.Checkpoint.from_directory(tmp_path))
    (tmp_path / "pointer_ckpt.json").write_text("[]")
    with pytest.raises(cairn.InvalidError, match="names no checkpoint of Cairn"):
        cairn.ray.url_of(ray.train.Checkpoint.from_directory(tmp_path))


def test_a_run_as_storage_path_is_refused_by_name(daemon, monkeypatch):
    """Ray keeps files of its own there, which are in no checkpoint."""
    fs = pytest.importorskip("pyarrow.fs")
    import fsspec

    monkeypatch.setenv("CAIRN_SERVER", f"unix:{daemon.socket}")
    system = fs.PyFileSystem(fs.FSSpecHandler(fsspec.filesystem("cairn")))
    with pytest.raises(cairn.InvalidError, match="validate_storage_marker.* has no step.*folder on a disk"):
        ray.train.RunConfig(name="lab", storage_path="/py/storage", storage_filesystem=system).storage_context
    with pytest.raises(Exception, match="cairn:///py/storage"):
        ray.train.RunConfig(name="lab", storage_path="cairn:///py/storage").storage_context


def test_outside_of_a_worker_and_in_the_drivers_process_it_is_refused(tmp_path):
    with pytest.raises(RuntimeError, match="outside of a Ray Train training function"):
        cairn.ray.Checkpointer("cairn:///py/none", {})

    def train():
        with pytest.raises(cairn.UnsupportedError, match="num_workers=0"):
            cairn.ray.Checkpointer("cairn:///py/none", {})
    ray.train.torch.TorchTrainer(train, scaling_config=ray.train.ScalingConfig(num_workers=0),
                                 run_config=ray.train.RunConfig(storage_path=str(pathlib.Path(tmp_path)))).fit()
