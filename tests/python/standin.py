# SPDX-License-Identifier: Apache-2.0
"""A CUDA device for tests on machines without one.

libcairn gets the stand-in driver of tests/unit/gpu: device addresses that nobody can touch, so that whatever went another
way than through the driver ends the test. PyTorch gets DeviceTensor: its device is "cuda:N", its data_ptr() such an
address; its operations run on the bytes that are "there". Of torch.cuda it fakes events, streams and synchronize.

Copies are over when the stand-in's functions return, so the order of work on streams cannot be seen, but for one thing:
``Device.pending`` is work that the training's stream still has to do, which is done when somebody waits for an event
recorded behind it, or synchronizes.
"""

import contextlib
import ctypes
import os
import pathlib
import subprocess
import weakref

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "unit" / "gpu" / "standin_cuda.c"
_device = None  # the one that is in use


def build(folder):
    """The stand-in's path; compiled here, since a build of another kind (sanitizers) could not be loaded."""
    path = pathlib.Path(folder) / "libstandin_cuda.so"
    subprocess.run([os.environ.get("CC", "cc"), "-std=c17", "-D_GNU_SOURCE", "-O1", "-shared", "-fPIC", "-o", path, SOURCE,
                    "-lpthread"], check=True)
    return path


class Device:
    """The stand-in, seen from Python; ``synchronized``: devices that torch.cuda.synchronize was called for."""

    def __init__(self, path):
        self.path = str(path)
        lib = self.lib = ctypes.CDLL(self.path)
        lib.standin_alloc.restype = lib.standin_shadow.restype = lib.standin_event.restype = ctypes.c_void_p
        lib.standin_range_bytes.restype = ctypes.c_size_t
        lib.standin_alloc.argtypes = [ctypes.c_int, ctypes.c_size_t]
        lib.standin_shadow.argtypes = [ctypes.c_void_p]
        lib.standin_event.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
        self.fail_at = lib.standin_fail_at
        self.registered = lib.standin_registered
        self.range_bytes = lib.standin_range_bytes()
        self.bases = []  # of each device: address, where its bytes are
        for index in range(2):
            address = lib.standin_alloc(index, 512)
            self.bases.append((address, lib.standin_shadow(address)))
        self.put, self.get, self.thread = put, get, _Mode  # a mode belongs to a thread
        self.reset()

    def reset(self):
        self.synchronized, self.work = [], None  # devices that were waited for; what is pending
        self.alive = weakref.WeakSet()  # every DeviceTensor
        self.to_host = []  # bytes that PyTorch copied to the CPU's memory, each time
        self.room = None  # bytes that are left for further tensors; None: as many as there are
        self.fail_at(-1)

    def memory(self, index, nbytes):
        """Fresh bytes on a device, as a CPU tensor over what is there."""
        if self.room is not None:
            self.room -= nbytes
            if self.room < 0:
                raise torch.OutOfMemoryError(f"CUDA out of memory. Tried to allocate {nbytes} bytes")
        address = self.lib.standin_alloc(index, max(nbytes, 1))
        assert address, "the stand-in's memory is used up"
        there = self.lib.standin_shadow(address)
        return torch.frombuffer((ctypes.c_char * max(nbytes, 1)).from_address(there), dtype=torch.uint8)[:nbytes]

    def index_of(self, tensor):
        """The device whose memory a CPU tensor lies in, or None."""
        at = tensor.data_ptr()
        return next((i for i, (_, there) in enumerate(self.bases) if there <= at < there + self.range_bytes), None)

    def address(self, tensor, index):
        address, there = self.bases[index]
        return tensor.data_ptr() - there + address

    def pending(self, tensor, value):
        """The training's stream still has to fill a contiguous tensor with this byte."""
        self.work = (tensor.detach(), value)

    def do_pending(self):
        if self.work is not None:
            tensor, value = self.work
            tensor.shadow.reshape(-1).view(torch.uint8).fill_(value)
            self.work = None


class DeviceTensor(torch.Tensor):
    """A tensor on a stand-in device."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, shadow, index):
        made = torch.Tensor._make_wrapper_subclass(cls, shadow.shape, strides=shadow.stride(), dtype=shadow.dtype,
                                                   storage_offset=shadow.storage_offset(), device=torch.device("cuda", index))
        made.shadow, made.index = shadow, index
        _device.alive.add(made)
        return made

    __hash__ = torch.Tensor.__hash__

    def data_ptr(self):
        return _device.address(self.shadow, self.index) if self.shadow.numel() else 0

    def __repr__(self, **_):
        return f"DeviceTensor({self.shadow!r}, cuda:{self.index})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return run(func, args, dict(kwargs or {}))


def put(tensor, index=0):
    """A copy of a CPU tensor on a device, with the same strides where they are dense."""
    nbytes = tensor.numel() * tensor.element_size()
    like = torch.empty_like(tensor, device="meta", memory_format=torch.preserve_format)
    shadow = _device.memory(index, nbytes).view(tensor.dtype).as_strided(tensor.shape, like.stride()) if nbytes else (
        torch.empty(tensor.shape, dtype=tensor.dtype))
    shadow.copy_(tensor)
    return DeviceTensor(shadow, index)


def get(tensor):
    """What is there, as a CPU tensor of its own."""
    return tensor.detach().shadow.clone() if isinstance(tensor, DeviceTensor) else tensor.detach().clone()


def run(func, args, kwargs):
    wrappers = {}

    def unwrap(value):
        if isinstance(value, torch.Tensor):
            inner = value.shadow if isinstance(value, DeviceTensor) else value
            wrappers[id(inner)] = value  # what comes out again is what went in
            return inner
        return value

    if func in (torch.Tensor.copy_, torch.ops.aten.copy_.default) and isinstance(args[1], DeviceTensor) and not isinstance(
            args[0], DeviceTensor):
        _device.to_host.append(args[1].numel() * args[1].element_size())
    args, kwargs = tree_map(unwrap, args), tree_map(unwrap, kwargs)
    index = next((wrapper.index for wrapper in wrappers.values() if isinstance(wrapper, DeviceTensor)), 0)
    target = kwargs.get("device")
    if target is not None:
        target = torch.device(target)
        kwargs["device"] = torch.device("cpu")
        index = target.index or 0

    def wrap(value):
        if not isinstance(value, torch.Tensor):
            return value
        if id(value) in wrappers:
            return wrappers[id(value)]
        if target is not None and target.type == "cpu":
            _device.to_host.append(value.numel() * value.element_size())
            return value.clone() if _device.index_of(value) is not None else value
        here = _device.index_of(value) if value.numel() else index
        return DeviceTensor(value, here) if here is not None else put(value, index)

    return tree_map(wrap, func(*args, **kwargs))


_GUARDED = (torch.empty_like, torch.Tensor.contiguous, torch.Tensor.copy_, torch.Tensor.__getitem__, torch.Tensor.__setitem__)


class _Mode(TorchFunctionMode):
    """torch.empty(device="cuda") and its like; and what asks a PyTorch without CUDA for the current device before it
    asks DeviceTensor."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        on_device = any(isinstance(arg, DeviceTensor) for arg in args)
        if on_device and func in _GUARDED:
            return run(func, args, kwargs)
        if func is torch.empty:
            kwargs.pop("pin_memory", None)
        device = kwargs.get("device")
        if device is not None and torch.device(device).type == "cuda" and not on_device:
            kwargs["device"] = "cpu"
            return put(func(*args, **kwargs), torch.device(device).index or 0)
        return func(*args, **kwargs)


class _Stream:
    def __init__(self, device=0):
        self.index = torch.device("cuda", device).index if isinstance(device, int) else device.index
        self.waits_for_work = False

    def wait_event(self, event):
        self.waits_for_work = self.waits_for_work or event.behind_work


class _Event:
    """Recorded on the training's stream, or on one that waits for such an event, it is behind what is pending."""

    cuda_event = 0

    def record(self, stream):
        self.behind_work = getattr(stream, "is_training", stream.waits_for_work if isinstance(stream, _Stream) else False)
        tensor, value = _device.work if self.behind_work and _device.work else (None, 0)
        nbytes = tensor.numel() * tensor.element_size() if tensor is not None else 0
        address = tensor.data_ptr() if nbytes else _device.bases[0][0]
        self.cuda_event = _device.lib.standin_event(address, nbytes, value)


class _TrainingStream:
    is_training = True


def _synchronize(index):
    _device.synchronized.append(index)
    _device.do_pending()


@contextlib.contextmanager
def installed(device, monkeypatch):
    """PyTorch and libcairn use the stand-in."""
    global _device
    _device = device
    device.reset()
    from cairn.torch import arrays
    monkeypatch.setenv("CAIRN_LIBCUDA", device.path)
    monkeypatch.setattr(arrays, "_PLAIN", (*arrays._PLAIN, DeviceTensor))
    monkeypatch.setattr(torch.cuda, "Event", _Event)
    monkeypatch.setattr(torch.cuda, "Stream", _Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda index: _TrainingStream())
    monkeypatch.setattr(torch.cuda, "synchronize", _synchronize)
    with _Mode():
        yield device
