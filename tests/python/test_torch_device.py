# SPDX-License-Identifier: Apache-2.0
"""Tensors on CUDA devices are saved and restored through the driver alone. Most tests run twice: over the stand-in driver
(standin.py), anywhere, and on a real GPU, which is skipped by name where there is none. Over the stand-in whatever did
not go through the driver would end the process."""

import contextlib
import logging
import tempfile

import pytest
import torch
import torch.distributed.checkpoint as dcp

import standin
from bed import assert_same, seed
from cairn.dcp import Reader, Writer
from cairn.errors import CairnError, InvalidError, UnsupportedError
from cairn.torch import Checkpointer, arrays, device, lazy, sharded
from cairn.tree import Ref
from test_torch_lazy import Blocked, saving_lazily


class Real:
    """A real GPU behind the names of standin.Device."""

    index_max = torch.cuda.device_count() - 1
    thread = contextlib.nullcontext

    def __init__(self):
        self.to_host = []

    def put(self, tensor, index=0):
        return tensor.to(torch.device("cuda", min(index, self.index_max)))

    def get(self, tensor):
        return tensor.detach().clone().cpu()  # a copy also of what is on the CPU, as Adam's step is

    def do_pending(self):
        torch.cuda.synchronize()

    def pending(self, tensor, value):
        torch.cuda._sleep(200_000_000)
        tensor.view(torch.uint8).fill_(value)


@pytest.fixture(scope="module")
def driver():
    with tempfile.TemporaryDirectory(prefix="cairn-standin-") as folder:
        yield standin.Device(standin.build(folder))


@pytest.fixture
def fake(driver, monkeypatch):
    with standin.installed(driver, monkeypatch):
        yield driver


@pytest.fixture(params=["standin", "gpu"])
def cuda(request):
    if request.param == "standin":
        yield request.getfixturevalue("fake")
    elif not torch.cuda.is_available() or torch.version.hip is not None:
        pytest.skip("no CUDA device here")
    else:
        yield Real()


def extras_of(cuda, start):
    """Shapes and layouts that a copy from a device can get wrong."""
    seed(start)
    base = torch.randn(57, 29)
    put = cuda.put(base)
    return {"whole": put, "transposed": put.t(), "sliced": put[::3, ::2], "rows": put[5:9], "row": cuda.put(base[7])[3:],
            "expanded": put[:1].expand(4, 29), "scalar": cuda.put(base.sum()), "empty": cuda.put(torch.empty(0, 3)),
            "bf16": cuda.put(base.bfloat16()), "int64": cuda.put(torch.arange(1000) * (start + 1)), "bool": put > 0,
            "bits": cuda.put(torch.tensor([float("nan"), -0.0, float("inf"), start])), "other": cuda.put(base * 2, 1), "cpu": base}


def state_of(cuda, start):
    """A model and its optimizer on the device after a step, and the extras."""
    seed(start)
    layers = [torch.nn.Linear(32, 16), torch.nn.Linear(16, 8).bfloat16()]
    model = torch.nn.Sequential(*layers)
    for layer in layers:
        for name, param in list(layer.named_parameters()):
            setattr(layer, name, torch.nn.Parameter(cuda.put(param.detach())))
    model.register_buffer("seen", cuda.put(torch.full((3,), float(start))))
    optim = torch.optim.AdamW(model.parameters(), lr=0.1, foreach=False)
    step(cuda, optim)
    return {"model": model, "optim": optim, "extras": extras_of(cuda, start)}


def step(cuda, optim):
    for param in (p for group in optim.param_groups for p in group["params"]):
        param.grad = cuda.put(torch.randn(param.shape).to(param.dtype))
    optim.step()


def view(cuda, state):
    """All of it as CPU tensors of its own."""
    params = list(state["model"].parameters())
    return [{name: cuda.get(tensor) for name, tensor in state["model"].state_dict().items()},
            [{key: cuda.get(value) for key, value in state["optim"].state[param].items()} for param in params],
            {name: cuda.get(tensor) for name, tensor in state["extras"].items()}]


def test_a_state_on_a_device_comes_back(url, cuda):
    """Saved twice, changed at once, restored into another one; nothing whole passes through the CPU's memory."""
    state = state_of(cuda, 1)
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1)
        step(cuda, state["optim"])
        wanted = view(cuda, state)
        cuda.to_host.clear()
        handle = ck.save(2)
        assert cuda.to_host == []
        step(cuda, state["optim"])
        state["extras"]["whole"].fill_(9)
        state["model"].seen.fill_(9)
        handle.durable.result(60)
    assert not torch.equal(cuda.get(state["model"][0].weight), wanted[0]["0.weight"])
    back = state_of(cuda, 5)
    before = {name: param.data_ptr() for name, param in back["model"].named_parameters()}
    with Checkpointer(url, back, on_error="raise") as ck:
        cuda.to_host.clear()
        assert ck.restore().step == 2
        assert cuda.to_host == []
    assert_same(view(cuda, back), wanted)
    assert before == {name: param.data_ptr() for name, param in back["model"].named_parameters()}  # in place
    assert all(tensor.is_cuda == (name != "cpu") for name, tensor in back["extras"].items() if name not in ("expanded",))


def test_a_save_sees_what_the_streams_still_have_to_do(url, cuda):
    state = {"x": {"a": cuda.put(torch.zeros(5000)), "b": cuda.put(torch.zeros(7), 1)}}
    with Checkpointer(url, state, on_error="raise") as ck:
        for at, name in enumerate(("a", "b")):
            cuda.pending(state["x"][name], 0x40 + at)
            ck.save(at + 1).durable.result(60)
    wanted = torch.full((4,), 0x40, dtype=torch.uint8).view(torch.float32)
    back = {"x": {"a": cuda.put(torch.ones(5000)), "b": cuda.put(torch.ones(7), 1)}}
    with Checkpointer(url, back, on_error="raise") as ck:
        ck.restore(1)
        assert_same(cuda.get(back["x"]["a"]), wanted.expand(5000).contiguous())
        assert_same(cuda.get(back["x"]["b"]), torch.zeros(7))
        ck.restore(2)
        assert_same(cuda.get(back["x"]["b"]), torch.full((28,), 0x41, dtype=torch.uint8).view(torch.float32))


def test_a_restore_waits_until_the_devices_are_idle(url, cuda):
    live = {"x": {"a": cuda.put(torch.arange(5000.0))}}
    with Checkpointer(url, live, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        cuda.pending(live["x"]["a"], 0x33)
        ck.restore(1)
        cuda.do_pending()  # what was left undone would come too late
    assert_same(cuda.get(live["x"]["a"]), torch.arange(5000.0))


def test_what_was_made_for_a_save_is_given_back_when_it_is_staged(url, fake):
    state = {"x": {"turned": fake.put(torch.randn(40, 30)).t()}}
    with Checkpointer(url, state, on_error="raise") as ck:
        before = len(fake.alive)
        handle = ck.save(1)
        assert len(fake.alive) == before
        handle.durable.result(60)
        assert fake.registered() == 1  # the arena is page-locked
    assert fake.registered() == 0


def test_a_device_without_room_for_copies(url, fake, caplog):
    state = state_of(fake, 1)
    wanted = view(fake, state)
    with Checkpointer(url, state, on_error="raise") as ck, caplog.at_level(logging.WARNING, "cairn.torch"):
        fake.room = 0
        ck.save(1).durable.result(60)
        fake.room = None
    assert any("no room on cuda:0" in text for text in caplog.messages)
    back = state_of(fake, 5)
    with Checkpointer(url, back, on_error="raise") as ck:
        fake.room = 0
        ck.restore()
        fake.room = None
    assert_same(view(fake, back), wanted)


def make_wide(cuda):
    """More than the arena of test_torch_lazy, and a buffer that no optimizer guards."""
    seed(3)
    model = torch.nn.Module()
    model.w = torch.nn.Parameter(cuda.put(torch.randn(1 << 10, 3 << 10)))
    model.register_buffer("mean", cuda.put(torch.randn(500)))
    return {"model": model, "optim": torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9, foreach=False)}


def test_lazy_steps_wait_and_buffers_are_copied_on_the_device(own_daemon, cuda):
    state = make_wide(cuda)
    step(cuda, state["optim"])
    before = {name: cuda.get(tensor) for name, tensor in state["model"].state_dict().items()}
    gradient = cuda.put(torch.ones(state["model"].w.shape))
    with saving_lazily(own_daemon, state) as (_, handle):
        state["model"].mean.fill_(7)  # as a forward pass does
        state["model"].w.grad = gradient

        def one_step():
            with cuda.thread():
                state["optim"].step()

        stepping = Blocked(one_step)
    stepping.end()
    handle.durable.result(60)
    assert not torch.equal(cuda.get(state["model"].w), before["w"])
    back = make_wide(cuda)
    with Checkpointer(own_daemon.url("lazy"), back, on_error="raise") as ck:
        assert ck.restore().step == 2
    assert_same({name: cuda.get(tensor) for name, tensor in back["model"].state_dict().items()}, before)


def test_what_is_too_large_to_be_copied_on_the_device_is_eager(fake, monkeypatch):
    monkeypatch.setattr(device, "CLONES_BYTES", 100)
    loan = device.Loan(is_lazy=True)
    assert loan.cloned(fake.put(torch.zeros(20))) is not None  # 80 bytes of the 100
    assert loan.cloned(fake.put(torch.zeros(20))) is None
    assert loan.cloned(torch.zeros(1)) is None
    assert device.Loan().cloned(fake.put(torch.zeros(1))) is None  # not lazy: copied before save returns


def test_torch_04_an_optimizer_that_was_captured_is_not_lazy(url, fake, monkeypatch):
    state = make_wide(fake)
    optim = state["optim"]
    with Checkpointer(url, state, on_error="raise", snapshot="lazy") as ck:
        assert lazy.guarded_memory([optim])
        with monkeypatch.context() as patch:
            patch.setattr(torch.cuda, "is_initialized", lambda: True)
            patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
            step(fake, optim)
            with pytest.raises(InvalidError, match="graph is being captured"):
                ck.save(1)
        assert not lazy.guarded_memory([optim])
        ck.save(1).durable.result(60)


def test_sharded_boxes_with_strides_become_dense(fake):
    """What a strided shard of columns leaves: two boxes side by side in one local tensor."""
    base = torch.arange(32.0).reshape(8, 4)
    boxes = tuple(sharded.Box((0, at), (8, 2), (0, start)) for at, start in ((0, 0), (4, 2)))
    array = sharded.Sharded(fake.put(base), sharded.Layout((8, 8), (8, 4), boxes, (0,), False))
    ref = Ref("x", "torch", "float32", (8, 8), "cuda:0")
    assert not arrays.is_direct(array)
    row = arrays.row(ref, arrays.flat(array), None)
    assert row[11] == 1 and [box[2] for box in row[9]] == [None, None]
    parts = row[5][1:]
    assert [part.data_ptr() for part in parts] == [box[3] for box in row[9]]
    assert_same([fake.get(part) for part in parts], [base[:, :2].contiguous(), base[:, 2:].contiguous()])
    fake.room = 0
    assert arrays.row(ref, arrays.flat(array), None)[11] == 0  # and no room for that: as on the CPU


def test_a_driver_that_fails_is_named_and_the_next_save_is_none_the_worse(url, fake):
    state = {"x": {"a": fake.put(torch.arange(1000.0))}}
    with Checkpointer(url, state, on_error="raise") as ck:
        ck.save(1).durable.result(60)
        failures = []
        for call in range(2, 16):  # those before are the registration's
            fake.fail_at(call)
            try:
                ck.save(call).durable.result(60)
            except CairnError as error:
                failures.append(str(error))
            fake.fail_at(-1)
        ck.save(100).durable.result(60)
    assert failures
    for text in failures:
        assert "x.a" in text and ("illegal memory access" in text or "not device memory" in text)


def test_without_a_driver_the_save_says_so(url, fake, monkeypatch):
    monkeypatch.setenv("CAIRN_LIBCUDA", "/nowhere/libcuda.so.1")
    with Checkpointer(url, {"x": {"a": fake.put(torch.zeros(3))}}, on_error="raise") as ck:
        with pytest.raises(UnsupportedError, match="/nowhere/libcuda.so.1"):
            ck.save(1)


def test_dcp_saves_and_loads_tensors_on_a_device(url, cuda):
    def state(scale):
        seed(3)
        base = cuda.put(torch.randn(8, 6) * scale)
        return {"w": base, "t": cuda.put(torch.randn(4, 6) * scale).t(), "cpu": torch.arange(5) * int(scale), "empty": cuda.put(
            torch.empty(0, 3)), "lr": 0.1 * scale}

    saved = state(1.0)
    dcp.save(saved, checkpoint_id="step-100", storage_writer=Writer(url))
    back = state(3.0)
    dcp.load(back, checkpoint_id="step-100", storage_reader=Reader(url))
    assert back["t"].is_cuda and back["w"].is_cuda
    assert_same({k: cuda.get(v) if isinstance(v, torch.Tensor) else v for k, v in back.items()},
                {k: cuda.get(v) if isinstance(v, torch.Tensor) else v for k, v in saved.items()})
