# SPDX-License-Identifier: Apache-2.0
"""cairn.jax: what comes back is what was saved, in the shardings that are asked for, also on another number of processes."""

import os
import pathlib
import signal
import socket
import subprocess
import sys

import numpy
import pytest

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # before JAX is imported
jax = pytest.importorskip("jax")

from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

import cairn  # noqa: E402
import cairn.jax  # noqa: E402
from test_client import damage  # noqa: E402

WORKER = str(pathlib.Path(__file__).with_name("jax_worker.py"))


@pytest.fixture
def mesh():
    return jax.make_mesh((2, 2), ("x", "y"))


def bits(array):
    return array.dtype, array.shape, numpy.asarray(array).tobytes()


def round_trip(url, state, target=None):
    with cairn.jax.Checkpointer(url) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.wait()
        return checkpointer.restore(state if target is None else target).state


def test_every_kind_of_leaf(url):
    """Arrays of several types and shapes, NumPy's, random keys, and values."""
    state = {"bf16": jax.numpy.arange(7, dtype="bfloat16"), "fp8": jax.numpy.ones((2, 3), "float8_e4m3fn"),
             "nan": jax.numpy.asarray([float("nan"), -0.0, 1.0]), "bool": jax.numpy.asarray([True, False]),
             "scalar": jax.numpy.asarray(3, "int32"), "empty": jax.numpy.zeros((0, 4)), "complex": jax.numpy.ones(2, "complex64") * 1j,
             "numpy": [numpy.arange(6.0).reshape(2, 3).T, numpy.asarray(2.5)], "values": (1, 2.5, "text", True, b"bytes"), "none": None}
    found = round_trip(url, {**state, "key": jax.random.key(5), "keys": jax.random.split(jax.random.key(6, impl="rbg"), 3)})
    assert bits(jax.random.key_data(found.pop("key"))) == bits(jax.random.key_data(jax.random.key(5)))
    assert str(jax.random.key_impl(found["keys"])) == "rbg"
    assert bits(jax.random.key_data(found.pop("keys"))) == bits(jax.random.key_data(jax.random.split(jax.random.key(6, impl="rbg"), 3)))
    assert jax.tree.structure(found) == jax.tree.structure(state)
    for left, right in zip(jax.tree.leaves(state), jax.tree.leaves(found)):
        assert type(left) is type(right)
        assert bits(left) == bits(right) if hasattr(left, "dtype") else left == right


@pytest.mark.parametrize("saved", [(), ("x",), ("y", "x"), (("x", "y"),), (None, "y")])
@pytest.mark.parametrize("wanted", [(), ("y",), (None, ("x", "y")), None])
def test_another_sharding(url, mesh, saved, wanted):
    """The sharding of the restore is the one that is asked for, by an array or by its description; None is no sharding."""
    values = numpy.arange(96, dtype="float32").reshape(8, 12)
    array = jax.device_put(values, NamedSharding(mesh, PartitionSpec(*saved)))
    sharding = None if wanted is None else NamedSharding(mesh, PartitionSpec(*wanted))
    found = round_trip(url, [array], [jax.ShapeDtypeStruct(values.shape, values.dtype, sharding=sharding)])[0]
    assert bits(found) == bits(values) and (sharding is None or found.sharding == sharding)


def test_donated_after_the_save(url):
    """What is saved are the values at the call, though the arrays are given away right after it."""
    state = jax.numpy.arange(1 << 18, dtype="float32")
    step = jax.jit(lambda array: array * 2 + 1, donate_argnums=0)
    with cairn.jax.Checkpointer(url) as checkpointer:
        for number in range(3):
            before = numpy.array(state)
            checkpointer.save(number, {"array": state})
            given, state = state, step(state)
            assert given.is_deleted()  # nothing of Cairn holds it
            checkpointer.wait()
            assert bits(checkpointer.restore({"array": state}).state["array"]) == bits(before)


def test_a_step_is_saved_once(url):
    """A second save of the step would keep the first one's content. After a restore it is a newer version."""
    with cairn.jax.Checkpointer(url) as checkpointer:
        checkpointer.save(1, [jax.numpy.zeros(3)])
        checkpointer.wait()
        with pytest.raises(cairn.ExistsError, match="step 1 was saved before"):
            checkpointer.save(1, [jax.numpy.ones(3)])
        checkpointer.restore([jax.numpy.zeros(3)])
        checkpointer.save(1, [jax.numpy.ones(3)])
        checkpointer.wait()
        assert bits(checkpointer.restore([jax.numpy.zeros(3)]).state[0]) == bits(jax.numpy.ones(3))


def test_a_restore_sees_the_save_before_it(url):
    """It would find an empty run otherwise, or an older checkpoint, and what is saved next would begin a lineage beside that save."""
    state = [numpy.arange(1 << 22)]
    with cairn.jax.Checkpointer(url) as checkpointer:
        for step in range(3):
            checkpointer.save(step, state)
            assert checkpointer.restore(state).step == step
        assert [(item.step, item.superseded) for item in checkpointer.client.list()] == [(2, False), (1, False), (0, False)]


def test_an_interrupted_save_is_waited_for_like_others(url, monkeypatch):
    """It goes on, so that a second save of its step would keep its content."""
    def interrupted(*args, **options):
        save(*args, **options)
        raise KeyboardInterrupt

    with cairn.jax.Checkpointer(url) as checkpointer:
        save = checkpointer.client.save
        monkeypatch.setattr(checkpointer.client, "save", interrupted)
        with pytest.raises(KeyboardInterrupt):
            checkpointer.save(1, [jax.numpy.zeros(3)])
        monkeypatch.undo()
        checkpointer.wait()
        with pytest.raises(cairn.ExistsError, match="step 1 was saved before"):
            checkpointer.save(1, [jax.numpy.ones(3)])
        checkpointer.save(2, [jax.numpy.ones(3)])


def test_an_interrupted_restore_ends(url, monkeypatch):
    """The interrupt is raised, and not an error of the memory that the restore still fills."""
    state = [numpy.arange(1 << 22)]
    with cairn.jax.Checkpointer(url) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.wait()
        with monkeypatch.context() as patch:
            patch.setattr(cairn.client.Operation, "result", lambda *_: signal.default_int_handler(signal.SIGINT, None))
            with pytest.raises(KeyboardInterrupt):
                checkpointer.restore(state)
        assert checkpointer.restore(state).step == 1


def test_a_damaged_newest_is_passed_over_and_told(own_daemon, caplog):
    url = own_daemon.url("damaged")
    with cairn.jax.Checkpointer(url) as checkpointer:
        for step in (1, 2):
            checkpointer.save(step, [numpy.full(1000, step)])
    damage(own_daemon.store, 2)
    with cairn.jax.Checkpointer(url) as checkpointer:
        restored = checkpointer.restore([numpy.zeros(1000, int)])
    assert restored.step == 1 and restored.fell_back and "restored step 1 of term 1, which is not the newest" in caplog.text


def test_what_differs_is_named(url):
    """A state of another structure, shape, type or kind is an error that names the leaf, and nothing is dropped silently."""
    state = {"a": jax.numpy.zeros(3), "key": jax.random.key(1), "epoch": 4}
    with cairn.jax.Checkpointer(url) as checkpointer:
        checkpointer.save(1, state)
        checkpointer.wait()
        for change, kind in (({"a": jax.numpy.zeros(4)}, cairn.CairnError), ({"a": jax.numpy.zeros(3, "int32")}, cairn.CairnError),
                             ({"b": jax.numpy.zeros(3)}, cairn.MissingTensorError), ({"b": 5}, cairn.InvalidError),
                             ({"key": jax.random.key(1, impl="rbg")}, cairn.CairnError),
                             ({"key": jax.random.key_data(state["key"])}, cairn.InvalidError)):
            with pytest.raises(kind, match=next(iter(change))):
                checkpointer.restore({**state, **change})
        for name in state:
            with pytest.raises(cairn.InvalidError, match=f"{name}.*which the state has not"):
                checkpointer.restore({key: value for key, value in state.items() if key != name})
        assert checkpointer.restore(state).state["epoch"] == 4
        with pytest.raises(cairn.NotFoundError):
            checkpointer.restore(state, step=2)


@pytest.mark.parametrize("leaf", [numpy.asarray(["text"]), numpy.zeros(2, ">f4"), numpy.ma.masked_equal([1.0, 2.0], 2.0),
                                  numpy.matrix([[1.0]]), object()])
def test_what_cannot_be_stored_is_named(url, leaf):
    with cairn.jax.Checkpointer(url) as checkpointer:
        with pytest.raises((cairn.UnsupportedError, cairn.UnsupportedValueError), match="odd"):
            checkpointer.save(1, {"odd": leaf})
        with pytest.raises(cairn.InvalidError, match="a.b"):
            checkpointer.save(1, {"a.b": 1, "a": {"b": 2}})
        checkpointer.save(1, {"even": 1})


def test_another_door_is_named(url):
    """A checkpoint that cairn.Client has saved has no pytree. A step that is none is not taken for the newest."""
    ones = numpy.ones(3, "float32")
    with cairn.Client(url) as client:
        client.set_tensors([("x", cairn.client.DTYPES["float32"], (3,), ones.ctypes.data, None, ones, cairn.client.REPLICATED,
                             None, None, None)])
        client.save(1).result()
        for call in (client.restore, client.annotate):
            with pytest.raises(cairn.InvalidError, match="-1"):
                call(-1)
    with cairn.jax.Checkpointer(url) as checkpointer:
        with pytest.raises(cairn.UnsupportedError, match="cairn.jax"):
            checkpointer.restore({"x": jax.numpy.zeros(3)})


def test_doubles_need_their_switch(url):
    """JAX without jax_enable_x64 would make floats of stored doubles: that is an error."""
    with pytest.raises(cairn.UnsupportedError, match="jax_enable_x64"):
        round_trip(url, [numpy.ones(3)], [jax.ShapeDtypeStruct((3,), numpy.dtype("float64"))])


def test_a_failed_save_is_raised_once(own_daemon):
    """By the next call, and not again."""
    checkpointer = cairn.jax.Checkpointer(own_daemon.url("failed"), save_deadline=1.5, io_deadline=1.0)
    os.kill(own_daemon.process.pid, signal.SIGSTOP)
    try:
        checkpointer.save(1, [jax.numpy.ones(3)])
        with pytest.raises(cairn.CairnError):
            checkpointer.wait()
    finally:
        os.kill(own_daemon.process.pid, signal.SIGCONT)
    checkpointer.save(2, [jax.numpy.ones(3)])
    checkpointer.close()


def launch(url, world, action):
    """Runs the worker on so many processes. Returns what each has printed."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    processes = [subprocess.Popen([sys.executable, WORKER, url, str(rank), str(world), str(port), action], stdout=subprocess.PIPE,
                                  stderr=subprocess.PIPE, text=True) for rank in range(world)]
    results = [process.communicate(timeout=120) for process in processes]
    for process, (_, errors) in zip(processes, results):
        assert process.returncode == 0, errors
    return [output for output, _ in results]


def test_other_numbers_of_processes(url):
    """Saved by two processes with two devices each, restored by two, and by one."""
    launch(url, 2, "save")
    launch(url, 2, "restore")
    launch(url, 1, "restore")


@pytest.mark.parametrize("why", ["refuse", "late"])
def test_a_rank_that_cannot_save_fails_all(url, why):
    """The other ranks hear the reason at once, also where it is an earlier save's error; nothing is committed."""
    first, second = launch(url, 2, why)
    assert "rank 1 cannot save: UNSUPPORTED: rows" in first and "UnsupportedError: " in second
    with cairn.Client(url, read_only=True) as client:
        assert client.list() == []
