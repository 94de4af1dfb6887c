# SPDX-License-Identifier: Apache-2.0
"""cairn.jax: a pytree of arrays in a run of Cairn, with its shardings. Needs JAX and no PyTorch.

    with cairn.jax.Checkpointer("cairn:///lab/run") as checkpointer:
        restored = checkpointer.restore(state)  # None only for a run proven to be empty
        checkpointer.save(step, state)          # returns when all is copied; the arrays may be donated then

A leaf that is an array is a tensor under its path ("params.dense.kernel"), whatever its sharding: each process stores the
boxes that it owns and reads the boxes that it needs, so another mesh or another number of processes may go on. All other
leaves are values of the typed tree (cairn.tree).
"""

from __future__ import annotations

from typing import Any, Mapping, NamedTuple, Optional, Sequence

import jax
import numpy
from jax.experimental import multihost_utils

from .arrays import Restored, Saver, check_type, log, pack
from .client import DTYPES, REPLICATED, SHARDED, Client, Operation, new_attempt
from .errors import CairnError, InvalidError, UnsupportedError

_REASON_BYTES = 250  # of a reason that the server hands on


class _Box(NamedTuple):
    """A part of an array: the first element and the length in each dimension."""

    offset: tuple
    length: tuple


class _Piece(NamedTuple):
    """A part of an array, in memory."""

    box: _Box
    memory: numpy.ndarray


class _Leaf(NamedTuple):
    """A leaf that is an array. ``value`` is the data of a random key."""

    name: str
    value: Any
    key: str  # the implementation of a random key, or ""


def _box(index: Sequence[slice], shape: Sequence[int]) -> _Box:
    ends = [part.indices(size)[:2] for part, size in zip(index, shape)]
    return _Box(tuple(first for first, _ in ends), tuple(max(end - first, 0) for first, end in ends))


def _whole(shape: Sequence[int]) -> _Box:
    return _Box((0,) * len(shape), tuple(shape))


def _flatten(state: Any) -> tuple:
    """Returns (arrays by name, values by name, names in order, structure)."""
    found, structure = jax.tree_util.tree_flatten_with_path(state)
    arrays: dict = {}
    values: dict = {}
    names: list = []
    for path, value in found:
        name = jax.tree_util.keystr(path, simple=True, separator=".") or "state"
        if name in arrays or name in values:
            raise InvalidError.of(f"two leaves of the state are called {name!r}; rename a key")
        names.append(name)
        if isinstance(value, (jax.Array, jax.ShapeDtypeStruct, numpy.ndarray)):
            arrays[name] = _leaf(name, value)
        else:
            values[name] = value
    return arrays, values, names, structure


def _leaf(name: str, value: Any) -> _Leaf:
    key = ""
    if jax.dtypes.issubdtype(value.dtype, jax.dtypes.prng_key):
        if not isinstance(value, jax.Array):
            raise UnsupportedError.of(f"{name}: a random key cannot be described by a ShapeDtypeStruct; "
                                      "give a key, such as jax.random.key(0)")
        key, value = str(jax.random.key_impl(value)), jax.random.key_data(value)
    check_type(name, value)
    return _Leaf(name, value, key)


def _memory(value: Any) -> numpy.ndarray:
    """Returns a row-major view of memory that this process has; a copy only where there is no such view."""
    return numpy.asarray(value, order="C")


def _owned(array: jax.Array) -> dict:
    """Returns, by box, the shards that this process stores of an array whose parts lie on several processes. The processes
    that hold a box take turns."""
    holders: dict = {}
    for device, index in array.sharding.devices_indices_map(array.shape).items():
        holders.setdefault(_box(index, array.shape), set()).add(device.process_index)
    mine = {box for idx, (box, ranks) in enumerate(holders.items()) if sorted(ranks)[idx % len(ranks)] == jax.process_index()}
    shards = {_box(shard.index, array.shape): shard.data for shard in array.addressable_shards}
    return {box: shards[box] for box in shards if box in mine}


def _pieces(array: Any) -> tuple:
    """Returns (what this process stores of an array, the ranks that store the same or None for all)."""
    is_alone = not isinstance(array, jax.Array) or array.size == 0 or (array.is_fully_addressable and jax.process_count() > 1)
    if is_alone or array.is_fully_replicated:
        if is_alone:
            ranks, memory = None, [numpy.empty(array.shape, array.dtype) if array.size == 0 else array]
        else:
            ranks, memory = sorted({device.process_index for device in array.sharding.device_set}), [
                shard.data for shard in array.addressable_shards[:1]]
        return [_Piece(_whole(array.shape), _memory(data)) for data in memory], ranks
    return [_Piece(box, _memory(data)) for box, data in _owned(array).items()], None


def _row(leaf: _Leaf, pieces: Sequence[_Piece], ranks: Optional[list] = None) -> tuple:
    """Returns the row for Client.set_tensors."""
    shape = tuple(leaf.value.shape)
    kind = DTYPES[str(leaf.value.dtype)]
    memory = [piece.memory for piece in pieces]
    if len(pieces) == 1 and pieces[0].box == _whole(shape):
        return leaf.name, kind, shape, memory[0].ctypes.data, None, memory, REPLICATED, None, ranks, None
    boxes = [(piece.box.offset, piece.box.length, None, piece.memory.ctypes.data) for piece in pieces]
    return leaf.name, kind, shape, 0, None, memory, SHARDED, None, None, boxes


class _Target:
    """Memory for what this process needs of an array, and the array that is made of it."""

    def __init__(self, leaf: _Leaf) -> None:
        self.leaf, value = leaf, leaf.value
        self.sharding = getattr(value, "sharding", None)
        shape = tuple(value.shape)
        if isinstance(value, numpy.ndarray):
            self.places = {None: _whole(shape)}
        else:
            if self.sharding is None:
                self.sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            self.places = {device: _box(index, shape)
                           for device, index in self.sharding.addressable_devices_indices_map(shape).items()}
        self.pieces = {box: _Piece(box, numpy.empty(box.length, value.dtype)) for box in dict.fromkeys(self.places.values())}

    def row(self) -> tuple:
        pieces = list(self.pieces.values())
        if self.leaf.value.size == 0:
            pieces = [_Piece(_whole(self.leaf.value.shape), numpy.empty(self.leaf.value.shape, self.leaf.value.dtype))]
        return _row(self.leaf, pieces)

    def make(self, key: str) -> Any:
        """Returns the array. ``key`` is the stored implementation of a random key, or ""."""
        value, name = self.leaf.value, self.leaf.name
        if key != self.leaf.key:
            raise InvalidError.of(f"{name}: stored is {'a random key of ' + key if key else 'an array'}, and the state has "
                                  f"{'a random key of ' + self.leaf.key if self.leaf.key else 'an array'} there")
        if isinstance(value, numpy.ndarray):
            return self.pieces[self.places[None]].memory
        parts = [jax.device_put(self.pieces[box].memory, device) for device, box in self.places.items()]
        if parts and parts[0].dtype != value.dtype:
            raise UnsupportedError.of(f"{name}: JAX makes {parts[0].dtype} of {value.dtype}; set jax_enable_x64")
        array = jax.make_array_from_single_device_arrays(tuple(value.shape), self.sharding, parts, dtype=value.dtype)
        return jax.random.wrap_key_data(array, impl=key) if key else array


class Checkpointer(Saver):
    """Saves and restores a pytree. With jax.distributed every process makes one, and calls the same methods in the same order.

    One thread uses it. It is a context manager. A save that fails in the background is raised once, by the next ``save``, ``wait``
    or ``close``; one that was skipped, as ``when_full`` or ``when_down`` allow it, is logged.

    Args:
        url: The URL of the run.
        **options: As for cairn.Client, without ``rank``, ``world_size`` and ``attempt``.

    Raises:
        CairnError: What opening a Client raises.
    """

    def __init__(self, url: str, **options: Any) -> None:
        self._world = jax.process_count()
        attempt = None
        if self._world > 1:
            drawn = numpy.frombuffer(bytes.fromhex(new_attempt()), numpy.uint8)
            attempt = bytes(bytearray(multihost_utils.broadcast_one_to_all(drawn))).hex()
        super().__init__(Client(url, rank=jax.process_index(), world_size=self._world, attempt=attempt, **options))

    def save(self, step: int, state: Any, *, metrics: Optional[Mapping[str, float]] = None, tags: Sequence[str] = ()) -> Operation:
        """Saves a pytree. Every process calls it. Returns when all is copied.

        An array that each process made for itself (fully addressable, with several processes) counts as the same on all.

        Args:
            step: The step, 0 or more.
            state: A pytree of jax.Array, numpy.ndarray and values of the typed tree.
            metrics: Numbers by name.
            tags: Texts to keep with the checkpoint.

        Returns:
            The save in flight.

        Raises:
            UnsupportedError: An array has an element type that Cairn does not store; the text names it.
            UnsupportedValueError: A leaf is no array, and no value of the typed tree.
            ExistsError: The step was saved before, since the last restore.
            CairnError: What Client.save raises, or an earlier save has ended with.
        """
        try:
            self.settle()
            self.check_step(step)
            arrays, values, _, _ = _flatten(state)
            blob = pack(values, {name: leaf.key for name, leaf in arrays.items() if leaf.key})
            rows = [(leaf, *_pieces(leaf.value)) for leaf in arrays.values()]
            self.client.set_tensors([_row(leaf, pieces, ranks) for leaf, pieces, ranks in rows if pieces])
        except Exception as error:
            self._refuse(step, error)
            raise
        return self.put(step, blob, metrics=metrics, tags=tags)

    def _refuse(self, step: int, error: Exception) -> None:
        """Lets a save fail on all processes, so that the others do not wait for this one."""
        if self._world == 1:
            return
        reason = f"rank {self.client.rank} cannot save: {error}".encode()[:_REASON_BYTES].decode(errors="ignore")
        try:
            self.client.refuse(step, reason)
        except CairnError as refused:
            log.warning("step %s: the other processes wait for this one until the deadline, since it cannot be told to them: %s",
                        step, refused)

    def restore(self, state: Any, step: Optional[int] = None, *, term: int = 0) -> Optional[Restored]:
        """Restores a pytree. Every process calls it.

        Args:
            state: A pytree of the stored structure. Of its arrays (jax.Array, jax.ShapeDtypeStruct or numpy.ndarray), shape, type
                and sharding count. Nothing of it is changed.
            step: A step; None takes the newest good checkpoint, the same on all processes.
            term: The term of the step; 0 is the newest one that has it.

        Returns:
            What was restored; None only if ``step`` is None and the run is proven to be empty.

        Raises:
            InvalidError: The checkpoint holds more than the state, or a random key of another kind.
            UnsupportedError: Another door than this one has saved the checkpoint.
            MissingTensorError: The checkpoint holds less than the state.
            CairnError: What Client.restore raises.
        """
        arrays, values, names, structure = _flatten(state)
        targets = {name: _Target(leaf) for name, leaf in arrays.items()}
        self.client.set_tensors([target.row() for target in targets.values() if target.pieces])
        found = self.get(step, term)
        if found is None:
            return None
        result, stored, operation = found
        self.check_names(operation, stored["values"], set(arrays), set(values))
        made = {name: target.make(stored["keys"].get(name, "")) for name, target in targets.items()}
        leaves = [made[name] if name in made else stored["values"][name] for name in names]
        return Restored(result.step, result.term, jax.tree_util.tree_unflatten(structure, leaves), result.fell_back)
