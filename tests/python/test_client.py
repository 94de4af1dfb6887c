# SPDX-License-Identifier: Apache-2.0
"""A client's handles live and die in order: errors have their names, also with fencing, damage, a daemon that dies, fork
and Ctrl-C."""

import array
import concurrent.futures
import logging
import os
import pathlib
import signal
import subprocess
import sys
import threading
import time

import numpy
import pytest
import torch

import cairn
from bed import assert_same, small_model
from cairn.client import BYTES, DTYPES, LOCAL, RELEASED, REPLICATED, Local, Operation
from cairn.torch import Checkpointer


def floats(values, name="x"):
    data = array.array("f", values)
    address, count = data.buffer_info()
    return data, (name, DTYPES["float32"], (count,), address, None, data, REPLICATED, None, None, None)


def test_save_list_restore(url):
    data, row = floats(range(1000))
    with cairn.Client(url) as client:
        with pytest.raises(cairn.NotFoundError):
            client.restore().result(30)
        client.set_tensors([row])
        client.set_blobs([("note", 1, b"hello", REPLICATED, None)])
        result = client.save(5, metadata=b"m", metrics={"loss": 0.5}, tags=["a"]).result(30)
        assert (result.term, result.step, result.plain_bytes >= 4000) == (1, 5, True)
        checkpoint, = client.list()
        assert (checkpoint.step, checkpoint.state, checkpoint.latest, checkpoint.parent) == (5, "committed", True, None)
        assert client.status(1, 5) == checkpoint
        assert client.status(1, 6).state == "none" and client.status(1, 6).health is None
        assert (checkpoint.tags, checkpoint.metrics) == (("a",), {"loss": 0.5})
    other, row = floats([0] * 1000)
    with cairn.Client(url, read_only=True) as client:
        client.set_tensors([row])
        op = client.restore(5)
        assert op.result(30).step == 5 and other == data and op.blob("note") == b"hello" and op.metadata() == b"m"
        assert op.progress()["total"] >= 4000 and op.missing() == [] == op.unexpected()
        with pytest.raises(cairn.NotFoundError, match="the nearest saved steps: 5"):
            client.restore(99).result(30)
        with pytest.raises(cairn.CairnError):
            client.save(6)
    with pytest.raises(cairn.ClosedError):
        client.list()


def restored(client, **options):
    op = client.restore(**options)
    op.result(30)
    return op


def test_local_state_of_all_coordinates(url):
    """A rank of another mesh learns which coordinates there were, and reads what belonged to them."""
    with cairn.Client(url) as client:
        data = [floats([10.0 * i + k for k in range(5 + i)]) for i in range(3)]
        client.set_tensors([(*row[:6], LOCAL, f"dp={i}", None, None) for i, (_, row) in enumerate(data)])
        client.set_blobs([("loader", BYTES, f"at {i}".encode(), LOCAL, f"dp={i}") for i in range(3)]
                         + [("note", BYTES, b"all", REPLICATED, None)])
        client.save(1).result(30)
        client.set_tensors([])
        client.set_blobs([("loader", BYTES, b"", LOCAL, "dp=7")])
        op = client.restore()
        op.result(30)
        with pytest.raises(cairn.NotFoundError):
            op.blob("loader", "dp=1")  # of others nothing comes unasked
        assert [item for item in op.locals() if item.kind == BYTES] == [
            Local("loader", f"dp={i}", BYTES, None, (), 4) for i in range(3)]
        assert [item for item in op.locals() if item.kind == 0] == [
            Local("x", f"dp={i}", 0, "float32", (5 + i,), 4 * (5 + i)) for i in range(3)]
        assert op.entries()[3:] == [Local("note", "", BYTES, None, (), 3)] + op.locals()[3:] and len(op.entries()) == 7
        op = client.restore(all_local=True)
        op.result(30)
        assert [op.blob("loader", f"dp={i}") for i in range(3)] == [b"at 0", b"at 1", b"at 2"]
        with pytest.raises(cairn.NotFoundError):
            restored(client, all_local=True, only=["note"]).blob("loader", "dp=0")
        back = [floats([0] * item.shape[0]) for item in op.locals() if item.kind == 0]
        client.set_tensors([(*row[:6], LOCAL, f"dp={i}", None, None) for i, (_, row) in enumerate(back)])
        client.restore().result(30)
        assert [values for values, _ in back] == [values for values, _ in data]


def test_forget_goes_through_retention_s_guard(url):
    with cairn.Client(url) as client, cairn.Client(url, read_only=True) as viewer:
        data, row = floats([1, 2])
        client.set_tensors([row])
        for step in (5, 6, 7):
            client.save(step).result(30)
        viewer.forget(5, reason="a test")
        viewer.forget(5, term=1)  # again: nothing changes
        assert [item.step for item in client.list()] == [7, 6]
        with pytest.raises(cairn.NotFoundError, match="cannot forget step 9"):
            client.forget(9)
        for step in (6, 7):  # one of the last two good ones, the newest
            with pytest.raises(cairn.DeniedError, match=f"step {step} stays: "):
                client.forget(step, term=1)
        assert [item.step for item in client.list()] == [7, 6]


def test_annotate(url):
    with cairn.Client(url) as client:
        data, row = floats([1, 2])
        client.set_tensors([row])
        client.save(5, metrics={"loss": 0.5}, tags=["a"]).result(30)
        client.save(6).result(30)
        client.annotate(5, metrics={"acc": 0.75, "loss": 0.25}, tags=["best"], remove_tags=["a"])
        client.annotate(5, tags=["best"])
        client.annotate(tags=["newest"])
        newest, older = client.list()
        assert (older.tags, older.metrics) == (("best",), {"acc": 0.75, "loss": 0.25})
        assert (newest.tags, newest.metrics) == (("newest",), {})
        with pytest.raises(cairn.InvalidError, match='"loss" is not a number'):
            client.annotate(5, metrics={"loss": float("nan")})
        with pytest.raises(cairn.NotFoundError, match="cannot annotate step 7"):
            client.annotate(7, tags=["x"])
        with pytest.raises(cairn.InvalidError, match="annotate: the metric 'loss' is 'low', which is not a number"):
            client.annotate(5, metrics={"loss": "low"})
        with pytest.raises(cairn.InvalidError, match="the step must be an integer, but it is '8'"):
            client.save("8")
        with pytest.raises(cairn.InvalidError, match="one text"):
            client.annotate(5, tags="best")
        with pytest.raises(cairn.TooLargeError):
            client.annotate(5, tags=[str(number) for number in range(32)])
        with pytest.raises(cairn.InvalidError, match="tag 0"):
            client.annotate(5, tags=["x" * 200])
        for labels in ({"tags": ["good", ""]}, {"remove_tags": ["good", ""]}):
            with pytest.raises(cairn.InvalidError, match="tag 1: 1 to [0-9]+ bytes"):
                client.annotate(5, **labels)
        with pytest.raises(cairn.InvalidError, match="name of a metric 0: 1 to [0-9]+ bytes"):
            client.annotate(5, metrics={"": 1.0})
    with cairn.Client(url, read_only=True) as client:
        with pytest.raises(cairn.CairnError, match="read_only"):
            client.annotate(5, tags=["x"])


def test_restore_only(url):
    one, row_one = floats([1, 2])
    two, row_two = floats([3, 4])
    rows = [("model.one", *row_one[1:]), ("optim.two", *row_two[1:])]
    with cairn.Client(url) as client:
        client.set_tensors(rows)
        client.save(1).result(30)
        one[:], two[:] = array.array("f", [0, 0]), array.array("f", [0, 0])
        op = client.restore(only=["model.*"])
        assert op.result(30).step == 1 and op.unexpected() == []
        assert (list(one), list(two)) == ([1, 2], [0, 0])
        with pytest.raises(cairn.MissingTensorError, match="modle"):
            client.restore(only=["modle.*"]).result(30)
        assert client.restore(only=["modle.*"], strict=False).result(30).step == 1
        with pytest.raises(cairn.InvalidError, match="one text"):
            client.restore(only="model.*")


def test_bad_arguments(url):
    with cairn.Client(url) as client:
        data, row = floats([1, 2])
        for bad in ([1], [row[:9]], [(None, *row[1:])], [(row[0], 99, *row[2:])], [(*row[:2], "x", *row[3:])],
                    [row, row], [("a\0b", *row[1:])], [(*row[:8], (5,), None)]):
            with pytest.raises((cairn.InvalidError, TypeError, ValueError)):
                client.set_tensors(bad)
        with pytest.raises(cairn.InvalidError, match="tensor name ' ä.* is not valid: it must be 1 to 1024 bytes"):
            client.set_tensors([(" ä" * 512, *row[1:])])  # the text of the error has only a part of it
        with pytest.raises(cairn.InvalidError):
            client.save(-1)
        with pytest.raises(cairn.InvalidError):
            client.save(1, tags="text")
        with pytest.raises(ValueError, match="a name or a tag contains a NUL"):
            client.save(1, tags=["good\0bad"])
        with pytest.raises((cairn.InvalidError, cairn.TooLargeError)):
            client.save(1, metadata=b"x" * 17000)
        for metrics in ([1], {"a": 10 ** 400}, {"a": "x"}, {"a": None}):
            with pytest.raises(cairn.InvalidError, match="save: (metrics is|the metric 'a')"):
                client.save(1, metrics=metrics)
        for deadline in (-1, float("nan"), "x"):
            with pytest.raises(cairn.InvalidError, match="deadline is .*; it must be seconds, 0 or more"):
                client.save(1, deadline=deadline)
        client.save(1, deadline=float("inf")).result(30)
    for options in ({"io_deadline": -1}, {"save_deadline": float("nan")}, {"arena_bytes": -1}, {"arena_bytes": 2 ** 70},
                    {"arena_bytes": "1G"}, {"arena_bytes": 1e9}):
        with pytest.raises(cairn.InvalidError, match=f"{next(iter(options))} is "):
            cairn.Client(url, **options)
    with pytest.raises(cairn.InvalidError):
        cairn.Client("http://x")
    with pytest.raises(cairn.InvalidError):
        cairn.Client(url, rank=2, world_size=2)
    with pytest.raises(cairn.InvalidError):
        cairn.Client(url, attempt="abc")


def test_unreachable_is_an_error(tmp_path):
    """Never None: only a run proven empty is empty."""
    nowhere = f"cairn+unix://{tmp_path}/none?run=a/b"
    with pytest.raises(cairn.UnreachableError):
        cairn.Client(nowhere, io_deadline=1)
    with pytest.raises(cairn.UnreachableError):
        Checkpointer(nowhere, {"n": 1}, io_deadline=1)


def test_restore_of_an_empty_run_and_of_an_unknown_step(url):
    with Checkpointer(url, {"n": 1}) as ck:
        assert ck.restore() is None
        for step in (3, "3", "3@1"):
            with pytest.raises(cairn.NotFoundError):
                ck.restore(step)
        for step in ("newest", "3@", "@1", "3@0", -1, 1.5, True, None):
            with pytest.raises(cairn.InvalidError, match="STEP@TERM"):
                ck.restore(step)


def test_only_a_proof_makes_a_run_empty(url, monkeypatch):
    """NOT_FOUND without the server's proof is an error: never None, which means to begin at step 0."""
    with cairn.Client(url) as client:
        op = client.restore()
        with pytest.raises(cairn.NotFoundError):
            op.result(30)
        assert op.run_is_empty
    with Checkpointer(url, {"n": 1}) as ck:
        with monkeypatch.context() as patch:
            patch.setattr(cairn.client.Operation, "run_is_empty", False)
            with pytest.raises(cairn.NotFoundError, match="no checkpoint"):
                ck.restore()
        ck.save(1).durable.result(30)
    with cairn.Client(url) as client:
        op = client.restore(99)
        with pytest.raises(cairn.NotFoundError, match="the nearest saved steps: 1"):
            op.result(30)
        assert not op.run_is_empty


def test_restart_of_the_daemon(own_daemon):
    """With the daemon gone a restore raises; when it is back, the same Checkpointer goes on."""
    model = small_model(0)
    url = own_daemon.url("restart")
    with Checkpointer(url, {"model": model}, on_error="raise", io_deadline=2, restore_deadline=2) as ck:
        ck.save(1).durable.result(30)
        own_daemon.kill()
        with pytest.raises(cairn.CairnError) as caught:
            ck.restore()
        assert isinstance(caught.value, (cairn.UnreachableError, cairn.ConnectionLostError, cairn.TimedOutError))
        own_daemon.start()
        assert ck.restore().step == 1
        ck.save(2).durable.result(30)


def test_fenced_always_raises(url):
    state = {"n": 1}
    old = Checkpointer(url, state, on_error="warn")
    old.save(1).durable.result(30)
    with Checkpointer(url, state) as new:
        assert new.restore().step == 1
        new.save(2).durable.result(30)
        with pytest.raises(cairn.FencedError):
            old.save(2).durable.result(30)
        with pytest.raises(cairn.FencedError):
            old.save(3)
    with pytest.raises(cairn.FencedError):
        old.close()


def test_on_error(own_daemon, caplog):
    url = own_daemon.url("onerror")
    seen = []

    def make(on_error, **options):
        return Checkpointer(url, {"n": numpy.zeros(4)}, on_error=on_error, save_deadline=3, io_deadline=1,
                            when_down="wait", **options)

    warn = make("warn", max_failures=2)
    warn.save(1).durable.result(30)
    loud, told = make("raise"), make(lambda step, error: seen.append((step, error)))
    own_daemon.kill()
    with caplog.at_level(logging.WARNING, "cairn"):
        for step in (2, 3):
            handle = warn.save(step)
            assert handle.durable.wait(20)
            with pytest.raises(cairn.CairnError):
                handle.durable.result(0)
    with pytest.raises(cairn.CairnError, match="2 saves failed in a row"):
        warn.save(4)
    assert warn.failed_saves == 2 and "the save of step 3 failed" in caplog.text
    with pytest.raises(cairn.CairnError):
        loud.save(5).durable.wait(20)
        loud.save(6)
    told.save(7).durable.wait(20)
    told.wait()
    assert [step for step, _ in seen] == [7] and isinstance(seen[0][1], cairn.CairnError)
    for ck in (warn, told):
        ck.close(0.2)
    try:
        loud.close(0.2)
    except cairn.CairnError:
        pass  # a save may still have been in flight
    for wrong in ({"on_error": "shout"}, {"max_failures": 0}):
        with pytest.raises(cairn.InvalidError):
            Checkpointer(url, {}, **wrong)


def damage(store, step):
    """Flips a byte in every object of a step."""
    found = [path for path in pathlib.Path(store).rglob("*") if path.is_file() and "objects" in path.parts
             and path.parent.name.endswith(f"-{step}")]
    assert found, sorted(map(str, pathlib.Path(store).rglob("*")))
    for path in found:
        path.chmod(0o600)
        data = bytearray(path.read_bytes())
        data[100] ^= 1
        path.write_bytes(data)


def test_damaged_newest_falls_back(own_daemon, caplog):
    model = small_model(0)
    optimizer = torch.optim.Adam(model.parameters())
    url = own_daemon.url("damage")
    kept = {}
    with Checkpointer(url, {"model": model, "optim": optimizer}, on_error="raise") as ck:
        for step in range(3):
            model(torch.randn(2, 6)).sum().backward()
            optimizer.step()
            ck.save(step).durable.result(30)
            kept[step] = {name: p.detach().clone() for name, p in model.named_parameters()}
    damage(own_daemon.store, 2)
    model2 = small_model(1)
    caplog.set_level("INFO", "cairn")
    with Checkpointer(url, {"model": model2, "optim": torch.optim.Adam(model2.parameters())}) as ck:
        restored = ck.restore()
        assert (restored.step, restored.fell_back) == (1, True)
        assert f"{url}: restored step 1 of term 1, which is not the newest" in caplog.text  # adapters hand no Restored on
        assert_same({name: p.detach() for name, p in model2.named_parameters()}, kept[1])
        with pytest.raises((cairn.DamagedError, cairn.DigestMismatchError)):
            ck.restore(2)  # asked for by name: no other one will do
        ck.restore(0)
        assert caplog.messages[-1] == f"{url}: restored step 0 of term 1" and caplog.records[-1].levelno == logging.INFO


def test_failed_restore_leaves_an_unusable_state(own_daemon, monkeypatch):
    url = own_daemon.url("unusable")
    model = small_model(0)
    with Checkpointer(url, {"model": model}, on_error="raise") as ck:
        ck.save(1).durable.result(30)
        from cairn.torch.plan import Plan
        monkeypatch.setattr(Plan, "finish", lambda self: (_ for _ in ()).throw(cairn.DigestMismatchError.of("made up")))
        with pytest.raises(cairn.DigestMismatchError, match="made up; the state in memory is unusable"):
            ck.restore()
        with pytest.raises(cairn.InvalidError, match="unusable"):
            ck.save(2)
        monkeypatch.undo()
        ck.restore()
        ck.save(2).durable.result(30)


class Set(torch.utils.data.Dataset):
    """Says in the worker what the parent's Checkpointer answers there."""

    def __init__(self, ck, handle):
        self.ck, self.handle = ck, handle

    def __len__(self):
        return 4

    def __getitem__(self, idx):
        answers = []
        for call in (lambda: self.ck.save(9), lambda: self.handle.durable.result(0), lambda: self.ck.restore()):
            try:
                call()
                answers.append(0)
            except cairn.CairnError as error:
                answers.append(error.code)
        self.ck.close()
        return torch.tensor(answers)


def test_fork_with_data_loader_workers(url):
    with Checkpointer(url, {"n": torch.zeros(1000)}, on_error="raise") as ck:
        handle = ck.save(1)
        loader = torch.utils.data.DataLoader(Set(ck, handle), num_workers=2, batch_size=2, multiprocessing_context="fork")
        for batch in loader:
            assert (batch == cairn.ForkedError.CODE).all(), batch
        handle.durable.result(30)
        ck.save(2).durable.result(30)  # the parent goes on


def test_keyboard_interrupt(url, request):
    """A wait without end is left at once; the save goes on."""
    # Whoever started the tests may ignore SIGINT (a shell does for its background jobs): then Python has no handler.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    token = cairn.new_attempt()
    with cairn.Client(url, rank=0, world_size=2, attempt=token, save_deadline=60) as client:
        data, row = floats(range(10))
        client.set_tensors([row])
        op = client.save(1)  # rank 1 never comes
        timer = threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT))
        start = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            timer.start()
            op.wait()
        assert time.monotonic() - start < 20 and not op.done()
        op.abort()
        with pytest.raises(cairn.CairnError):
            op.result(30)


def test_ctrl_c_in_a_lazy_save_is_raised_when_all_is_copied(url, request):
    """The caller knows the save then, which goes on, and may change the state."""
    sent, data = threading.Event(), numpy.arange(1 << 21, dtype=numpy.float32)

    def handle(_, frame):
        if frame.f_locals.get("found") and not sent.is_set():  # the library has just returned to Client.save
            sent.set()
            raise KeyboardInterrupt

    def press():
        while not sent.wait(0.001):
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    before = signal.signal(signal.SIGINT, handle)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    with cairn.Client(url) as client:
        client.set_tensors([("x", DTYPES["float32"], data.shape, data.ctypes.data, None, data, REPLICATED, *(None,) * 3)])
        thread, step = threading.Thread(target=press), 0
        thread.start()
        try:
            with pytest.raises(KeyboardInterrupt):
                while True:
                    step, op = step + 1, Operation()
                    client.save(step, lazy=True, verify_staged="full", into=op)
        finally:
            sent.set()
            thread.join()
        assert op.has_begun and op.wait(RELEASED, 0)
        data[:] = 0
        assert op.result(60).step == step
        client.restore(step).result(60)
        assert (data == numpy.arange(1 << 21)).all()


def test_ctrl_c_as_a_lazy_save_is_noted_is_raised_when_all_is_copied(url, monkeypatch):
    data, op = numpy.arange(1 << 24, dtype=numpy.float32), Operation()
    with cairn.Client(url) as client:
        address = data.ctypes.data
        client.set_tensors([("x", DTYPES["float32"], data.shape, address, None, data, REPLICATED, *(None,) * 3)])
        add, pressed = client._ops.add, []

        def interrupted(item):
            add(item)
            if not pressed:
                pressed.append(item)
                raise KeyboardInterrupt

        monkeypatch.setattr(client._ops, "add", interrupted)
        with pytest.raises(KeyboardInterrupt):
            client.save(1, lazy=True, into=op)
        assert op.wait(RELEASED, 0) and op.result(60).step == 1


def test_gil_is_released(url):
    token = cairn.new_attempt()
    with cairn.Client(url, rank=0, world_size=2, attempt=token, save_deadline=60) as client:
        data, row = floats(range(10))
        client.set_tensors([row])
        op = client.save(1)  # rank 1 never comes
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            waiting = pool.submit(op.wait)
            for _ in range(100):
                time.sleep(0.001)  # lets the other thread run
            assert not waiting.done()
            op.abort()  # nobody would get here if the wait kept the GIL
            assert isinstance(waiting.exception(60), cairn.CairnError)


@pytest.mark.parametrize("first, second", [("torch", "cairn.torch"), ("cairn", "torch"), ("cairn.torch", "torch")])
def test_import_order(url, first, second):
    code = (f"import {first}, {second}, torch, cairn.torch\n"
            f"m = torch.nn.Linear(300, 300)\n"
            f"ck = cairn.torch.Checkpointer({url!r}, {{'m': m}}, on_error='raise')\n"
            f"ck.save(1).durable.result(30); torch.mm(m.weight, m.weight); ck.restore(); ck.close()\n")
    subprocess.run([sys.executable, "-W", "error::ResourceWarning", "-c", code], check=True, timeout=120)


def test_openssl_is_its_own(url, tmp_path):
    """TensorFlow exports functions of OpenSSL's names, which are BoringSSL's, to the whole process."""
    stub = tmp_path / "stub.so"
    source = "".join(f"void {name}(void) {{ __builtin_trap(); }}\n" for name in ("EVP_Digest", "EVP_MD_fetch", "SSL_CTX_new", "BIO_new"))
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-", "-o", stub], input=source, text=True, check=True)
    code = (f"import ctypes; ctypes.CDLL({str(stub)!r}, ctypes.RTLD_GLOBAL)\n"
            f"import cairn\nwith cairn.Client({url!r}) as c:\n"
            f"    c.set_blobs([('note', 1, b'hello', 1, None)]); c.save(1).result(30); op = c.restore(1); op.result(30)\n"
            f"    assert op.blob('note') == b'hello'\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


@pytest.mark.parametrize("value, tags", [("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
                                          ("trace:4bf92f3577b34da6a3ce929d0e0e4736",)), ("00-nonsense", ())])
def test_trace(url, value, tags):
    """A save takes the trace of its process; a value that is not valid is a warning and no error."""
    code = (f"import cairn, array\nfrom cairn.client import DTYPES\nc = cairn.Client({url!r})\n"
            "a = array.array('f', range(1000))\n"
            "c.set_tensors([('x', DTYPES['float32'], (1000,), a.buffer_info()[0], None, a, 1, None, None, None)])\n"
            "c.save(1).result(30)\nc.close()\n")
    done = subprocess.run([sys.executable, "-c", code], timeout=60, capture_output=True, text=True,
                          env={**os.environ, "TRACEPARENT": value})
    assert done.returncode == 0, done.stderr
    assert ("TRACEPARENT" in done.stderr) == (not tags), done.stderr
    with cairn.Client(url, read_only=True) as client:
        assert client.list()[0].tags == tags


def test_cairn_needs_no_torch():
    code = "import sys, cairn; assert 'torch' not in sys.modules; cairn.tree.encode({1: 2})"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
