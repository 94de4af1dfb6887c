# SPDX-License-Identifier: Apache-2.0
"""cairn.orbax: Orbax's own CheckpointManager lists, keeps and removes steps, and Cairn has their bytes."""

import os
import pathlib
import re
import signal
import subprocess
import sys
import textwrap

import numpy
import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # before JAX is imported
jax = pytest.importorskip("jax")
ocp = pytest.importorskip("orbax.checkpoint")

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import cairn  # noqa: E402
import cairn.orbax  # noqa: E402
import together  # noqa: E402
from conftest import steps_of  # noqa: E402

WORKER = pathlib.Path(__file__).with_name("orbax_worker.py")


def state(value):
    mesh = jax.make_mesh((4,), ("x",))
    rows = jax.device_put(numpy.arange(32, dtype="float32").reshape(8, 4) + value, NamedSharding(mesh, PartitionSpec("x")))
    return {"params": {"w": rows}, "key": jax.random.key(value), "epoch": value}


def assert_is(found, value):
    wanted = state(value)
    assert numpy.array_equal(found["params"]["w"], wanted["params"]["w"])
    assert found["params"]["w"].sharding == wanted["params"]["w"].sharding
    assert jax.numpy.array_equal(jax.random.key_data(found["key"]), jax.random.key_data(wanted["key"])) and found["epoch"] == value


def manager_of(folder, url, **options):
    return ocp.CheckpointManager(folder, item_handlers=cairn.orbax.CheckpointHandler(url), options=ocp.CheckpointManagerOptions(**options))


@pytest.mark.parametrize("is_async", [True, False])
def test_saved_and_restored(url, tmp_path, is_async):
    """Orbax lists the steps, and each folder holds one small file; another manager goes on."""
    options = {"enable_async_checkpointing": is_async}
    with manager_of(tmp_path, url, **options) as manager:
        assert manager.latest_step() is None
        for step in (5, 10):
            assert manager.save(step, args=cairn.orbax.Save(state(step), metrics={"loss": 0.5}))
        manager.wait_until_finished()
        assert manager.all_steps() == [5, 10] and steps_of(url) == [10, 5]
        assert sum(path.stat().st_size for path in (tmp_path / "10").rglob("*") if path.is_file()) < 4096
    with manager_of(tmp_path, url, **options) as manager:
        assert manager.latest_step() == 10
        for step in (10, 5):
            assert_is(manager.restore(step, args=cairn.orbax.Restore(state(0))), step)
        manager.save(15, args=cairn.orbax.Save(state(15)))
    assert steps_of(url)[0] == 15
    with cairn.Client(url, read_only=True) as client:
        assert client.list()[1].metrics == {"loss": 0.5}


def test_what_a_listed_step_says_is_durable(url, tmp_path, monkeypatch):
    """A power failure behind Orbax's rename would leave an empty file of a step that it lists."""
    synced, fsync = [], os.fsync

    def note(fd):
        synced.append(pathlib.Path(os.readlink(f"/proc/self/fd/{fd}")))
        if synced[-1].name == "cairn.json":
            assert synced[-1].read_text().endswith("}")
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    with manager_of(tmp_path, url) as manager:
        manager.save(1, args=cairn.orbax.Save(state(1)))
    pointer = next(path for path in synced if path.name == "cairn.json")
    assert pointer.parent in synced and "orbax-checkpoint-tmp" in str(pointer)


def test_what_orbax_removes_is_forgotten(url, tmp_path):
    """max_to_keep counts; retention's guard keeps the last two good ones. Another manager's start forgets nothing."""
    with manager_of(tmp_path, url, max_to_keep=2) as manager:
        for step in range(1, 7):
            manager.save(step, args=cairn.orbax.Save(state(step)))
        manager.wait_until_finished()
        assert manager.all_steps() == [5, 6]
    assert steps_of(url) == [6, 5]
    with manager_of(tmp_path / "elsewhere", url) as manager:
        manager.save(7, args=cairn.orbax.Save(state(7)))
    assert steps_of(url) == [7, 6, 5]


@pytest.mark.parametrize("later", [0, 3])
def test_a_folder_that_is_away_forgets_nothing(url, tmp_path, later):
    """An unmounted folder looks so, also to the saves that follow. When it is back, what it holds is restored."""
    folder = tmp_path / "mounted"
    with manager_of(folder, url) as manager:
        for step in range(1, 6):
            manager.save(step, args=cairn.orbax.Save(state(step)))
        manager.wait_until_finished()
        folder.rename(tmp_path / "away")
        folder.mkdir()
        for step in range(6, 6 + later):
            manager.save(step, args=cairn.orbax.Save(state(step)))
    assert steps_of(url) == list(range(5 + later, 0, -1))
    with manager_of(tmp_path / "away", url, max_to_keep=2) as manager:
        assert_is(manager.restore(1, args=cairn.orbax.Restore(state(0))), 1)


def test_a_step_that_is_deleted_and_saved_again_is_refused(url, tmp_path):
    """The run still has it, and a second save would keep the first one's content. After a restore it is a newer version."""
    with manager_of(tmp_path, url) as manager:
        manager.save(1, args=cairn.orbax.Save(state(1)))
        manager.save(2, args=cairn.orbax.Save(state(2)))
        manager.wait_until_finished()
        manager.delete(2)
        with pytest.raises(cairn.ExistsError, match="step 2 was saved before"):
            manager.save(2, args=cairn.orbax.Save(state(3)))
        manager.restore(1, args=cairn.orbax.Restore(state(0)))
        manager.save(2, args=cairn.orbax.Save(state(3)))
        manager.wait_until_finished()
        assert_is(manager.restore(2, args=cairn.orbax.Restore(state(0))), 3)


def test_a_name_format(url, tmp_path):
    with manager_of(tmp_path, url, step_name_format=ocp.step.standard_name_format(step_prefix="step")) as manager:
        manager.save(3, args=cairn.orbax.Save(state(3)))
        manager.wait_until_finished()
        assert (tmp_path / "step_3" / "default" / "cairn.json").exists()
        assert_is(manager.restore(3, args=cairn.orbax.Restore(state(0))), 3)


def test_a_save_that_fails_is_not_listed(own_daemon, tmp_path):
    """The error comes from Orbax's own wait; no step appears, and the next save goes on."""
    handler = cairn.orbax.CheckpointHandler(own_daemon.url("failed"), save_deadline=1.5, io_deadline=1.0)
    manager = ocp.CheckpointManager(tmp_path, item_handlers=handler)
    os.kill(own_daemon.process.pid, signal.SIGSTOP)
    try:
        manager.save(1, args=cairn.orbax.Save(state(1)))
        with pytest.raises(cairn.CairnError):
            manager.wait_until_finished()
    finally:
        os.kill(own_daemon.process.pid, signal.SIGCONT)
    assert ocp.CheckpointManager(tmp_path, item_handlers=handler).all_steps() == []


def test_a_pointer_that_is_damaged_or_missing_is_named(url, tmp_path):
    with manager_of(tmp_path, url) as manager:
        manager.save(1, args=cairn.orbax.Save(state(1)))
        manager.wait_until_finished()
        pointer = tmp_path / "1" / "default" / "cairn.json"
        pointer.write_text("{")
        with pytest.raises(cairn.FormatError, match="cairn.json is damaged"):
            manager.restore(1, args=cairn.orbax.Restore(state(0)))
        pointer.unlink()
        with pytest.raises(cairn.NotFoundError, match="not saved by cairn.orbax"):
            manager.restore(1, args=cairn.orbax.Restore(state(0)))
    assert steps_of(url) == [1]


def test_a_folder_of_another_run_is_refused(daemon, url, tmp_path):
    """That run has a step of the same number and term, with other content."""
    other = daemon.url("other-orbax")
    for folder, run, value in (("mine", url, 1), ("other", other, 2)):
        with manager_of(tmp_path / folder, run) as manager:
            manager.save(1, args=cairn.orbax.Save(state(value)))
    with manager_of(tmp_path / "mine", other) as manager:
        with pytest.raises(cairn.InvalidError, match="names a checkpoint of the run .*py/t"):
            manager.restore(1, args=cairn.orbax.Restore(state(0)))


PROGRAM = """
    import os, signal, sys
    import jax
    import orbax.checkpoint as ocp
    import cairn.orbax

    url, folder, moment = sys.argv[1:]
    handler = cairn.orbax.CheckpointHandler(url)
    manager = ocp.CheckpointManager(folder, item_handlers=handler)
    manager.save(1, args=cairn.orbax.Save({"x": jax.numpy.arange(4)}))
    manager.wait_until_finished()
    finish = handler._finish

    def die(operation, directory):
        if moment != "before":
            operation.result()
        if moment == "renaming":
            finish(operation, directory)
        os.kill(os.getpid(), signal.SIGKILL)

    handler._finish = die
    manager.save(2, args=cairn.orbax.Save({"x": jax.numpy.arange(4) + 2}))
    manager.wait_until_finished()
"""


@pytest.mark.parametrize("moment", ["before", "committed", "renaming"])
def test_killed_on_the_way(url, tmp_path, moment):
    """Before the commit, between it and the pointer, and between the pointer and Orbax's rename: the step is not listed, step 1 is
    restored, and step 2 is saved again."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(PROGRAM), url, str(tmp_path), moment], capture_output=True, text=True,
                          timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    target = {"x": jax.numpy.zeros(4, "int32")}
    with manager_of(tmp_path, url) as manager:
        assert manager.all_steps() == [1]
        assert manager.restore(1, args=cairn.orbax.Restore(target))["x"].tolist() == [0, 1, 2, 3]
        manager.save(2, args=cairn.orbax.Save({"x": jax.numpy.arange(4) + 5}))
        manager.wait_until_finished()
        assert manager.restore(2, args=cairn.orbax.Restore(target))["x"].tolist() == [5, 6, 7, 8]
        assert manager.restore(1, args=cairn.orbax.Restore(target))["x"].tolist() == [0, 1, 2, 3]


def launch(url, folder, world, action, status=0):
    """Runs the worker on so many processes. Returns what each has printed."""
    port = together.free_port()
    statuses, outputs = together.end_together([[WORKER, url, folder, rank, world, port, action] for rank in range(world)], 120)
    assert statuses == [status] * world, "\n".join(outputs)
    return outputs


def test_other_numbers_of_processes(url, tmp_path):
    """Two processes save with one manager each; two and one go on."""
    launch(url, tmp_path, 2, "save")
    assert steps_of(url) == [4, 3]
    launch(url, tmp_path, 2, "restore")
    launch(url, tmp_path, 1, "restore")


def test_a_process_that_cannot_save_fails_all(url, tmp_path):
    """Both hear the reason, and the step is neither listed nor committed."""
    first, second = launch(url, tmp_path, 2, "fail", 1)
    assert "rank 1 cannot save: UNSUPPORTED: rows" in first and "UnsupportedError: " in second
    assert steps_of(url) == [4, 3]
    launch(url, tmp_path, 2, "restore")


def test_the_guide_s_program(daemon, tmp_path):
    """It trains, and a second start goes on with the newest step."""
    page = (pathlib.Path(__file__).parents[2] / "docs" / "jax.md").read_text(encoding="utf-8")
    program = re.search(r"^```python no-run tests/python/test_orbax.py[^\n]*\n(.*?)^```$", page, re.M | re.S).group(1)
    for _ in range(2):
        subprocess.run([sys.executable, "-c", program], cwd=tmp_path, env={**os.environ, "CAIRN_SERVER": f"unix:{daemon.socket}"},
                       timeout=120, check=True)
    with cairn.Client(f"cairn+unix://{daemon.socket}?run=lab/orbax", read_only=True) as client:
        assert client.list()[0].step == 45
    with manager_of(tmp_path / "orbax", daemon.url("other")) as manager:
        assert manager.latest_step() == 45
