# SPDX-License-Identifier: Apache-2.0
"""The random number generators of the process: those of Python, NumPy, and PyTorch on the CPU and on each CUDA device."""

from __future__ import annotations

import hashlib
import random
import struct
from typing import Any

import torch

from ..errors import FormatError

try:
    import numpy
except ImportError:
    numpy = None  # type: ignore[assignment]


def _cuda() -> bool:
    return torch.cuda.is_available() and torch.cuda.is_initialized()


def _to_plain(value: Any) -> Any:
    """Returns the state of NumPy's generator with bytes in place of arrays."""
    if isinstance(value, dict):
        return {key: _to_plain(item) for key, item in value.items()}
    if numpy is not None and isinstance(value, numpy.ndarray):
        return {"dtype": value.dtype.str, "shape": tuple(value.shape), "data": value.tobytes()}
    return value


def _from_plain(value: Any) -> Any:
    if isinstance(value, dict):
        if set(value) == {"dtype", "shape", "data"}:
            return numpy.frombuffer(value["data"], dtype=value["dtype"]).reshape(value["shape"]).copy()
        return {key: _from_plain(item) for key, item in value.items()}
    return value


def collect() -> dict:
    """Returns the state of all generators as a tree of plain values."""
    version, words, gauss = random.getstate()
    state = {
        "python": {"version": version, "words": struct.pack(f"<{len(words)}I", *words), "gauss": gauss},
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if numpy is not None:
        state["numpy"] = _to_plain(numpy.random.get_state(legacy=False))
    if _cuda():
        state["cuda"] = [item.numpy().tobytes() for item in torch.cuda.get_rng_state_all()]
    return state


def _tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def apply(state: dict) -> None:
    """Restores the state that ``collect`` returned, but for generators that do not exist in this process. Raises FormatError."""
    try:
        python = state["python"]
        words = struct.unpack(f"<{len(python['words']) // 4}I", python["words"])
        random.setstate((python["version"], words, python["gauss"]))
        torch.set_rng_state(_tensor(state["torch"]))
        if numpy is not None and "numpy" in state:
            numpy.random.set_state(_from_plain(state["numpy"]))
    except (KeyError, TypeError, ValueError, struct.error, RuntimeError) as error:
        raise FormatError.of(f"the stored RNG state does not fit this Python, NumPy or PyTorch: {error}") from error
    if "cuda" in state and torch.cuda.is_available():
        for device, data in enumerate(state["cuda"][:torch.cuda.device_count()]):
            torch.cuda.set_rng_state(_tensor(data), device)


def reseed(text: str) -> None:
    """Seeds all generators from a text. The same text gives the same streams."""
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")
    random.seed(seed)
    torch.manual_seed(seed)  # CUDA devices too
    if numpy is not None:
        numpy.random.seed(seed & 0xFFFFFFFF)
