# SPDX-License-Identifier: Apache-2.0
"""cairn.megatron: Megatron-Core's dist_checkpointing, in a run of Cairn.

    import cairn.megatron as dist_checkpointing  # instead of: from megatron.core import dist_checkpointing
    dist_checkpointing.save(sharded_state_dict, "cairn:///lab/run/iter_0000010")
    state = dist_checkpointing.load(sharded_state_dict, "cairn:///lab/run/latest")

Megatron's own save and load do their work, with strategies that write and read through ``cairn.dcp``. So each shard is copied once,
into Cairn's arena, and stored as a box of the whole tensor. Paths that are no URL of Cairn go to Megatron-Core as they are.
"""

from __future__ import annotations

import argparse
import contextlib
import enum
import pathlib
import tempfile
import types
from typing import Any, Iterator, Optional, Union

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as torch_dcp
from megatron.core import dist_checkpointing as theirs
from megatron.core import enums
from megatron.core.dist_checkpointing import core, serialization
from megatron.core.dist_checkpointing.dict_utils import nested_values
from megatron.core.dist_checkpointing.mapping import ShardedObject, ShardedTensor
from megatron.core.dist_checkpointing.strategies import async_utils
from megatron.core.dist_checkpointing.strategies import torch as torch_dist
from megatron.core.dist_checkpointing.validation import StrictHandling
from megatron.core.transformer import enums as transformer_enums
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata

from . import dcp, tree
from .client import Client
from .dcp.session import note_load
from .doors import settle
from .errors import CairnError, DamagedError, DigestMismatchError, InvalidError, NotFoundError, from_code
from .names import checkpoint_name, is_url, parse_id
from .torch.group import Group

_COMMON = ShardedObject("common_state", None, (1,), (0,)).unique_key
_DAMAGE = (DamagedError, DigestMismatchError)

tree.register_type(argparse.Namespace, vars, lambda items: argparse.Namespace(**items))
tree.register_type(types.SimpleNamespace, vars, lambda items: types.SimpleNamespace(**items))
tree.register_type(pathlib.PosixPath, str, pathlib.PosixPath)
for _module in (enums, transformer_enums):
    for _kind in vars(_module).values():
        if isinstance(_kind, type) and issubclass(_kind, enum.Enum) and _kind.__module__ == _module.__name__:
            tree.register_type(_kind, lambda value: value.name, _kind.__getitem__)


def __getattr__(name: str) -> Any:
    """What this module does not have is Megatron's own."""
    return getattr(theirs, name)


class _Run:
    """What a process keeps of a run: the Writer, and the ranks that save and load together."""

    def __init__(self, url: str) -> None:
        self.url, self.group = url, Group(None, None, None, False)
        self.writer = dcp.Writer(url)

    def loaded(self, url: str, fell_back: bool) -> tuple:
        """Notes that this process goes on from a checkpoint. Returns its step and term."""
        found = parse_id(url, latest=True)
        note_load(self.url, self.group.world_size, found.term, found.step, fell_back)
        return found.step, found.term


_runs: dict = {}  # URL -> (default group, _Run)


def _run_of(url: str) -> _Run:
    """Returns the run that a URL is in. The first call is collective."""
    run_url = parse_id(url, latest=True).run_url
    world = dist.group.WORLD
    for old in [url for url, known in _runs.items() if known[0] is not world]:  # torch.distributed was initialised anew
        del _runs[old]
    if run_url not in _runs:
        _runs[run_url] = world, _Run(run_url)
    return _runs[run_url][1]


def _plain(error: BaseException, what: str) -> BaseException:
    """Returns the error that DCP has wrapped, with the rank it is of. What a planner of Megatron says of a name is an InvalidError."""
    rank = ""
    if isinstance(error, CheckpointException) and error.failures:
        number, (error, _) = min(error.failures.items())
        rank = f" on rank {number}"
    if isinstance(error, CairnError):
        return from_code(error.code, f"{what} failed{rank}: {error.text}")
    if isinstance(error, (KeyError, ValueError, RuntimeError, core.CheckpointingException)):
        said = error.args[0] if isinstance(error, KeyError) and error.args else error
        return InvalidError.of(f"{what} failed{rank}: {said}")
    return error


class _ByType:
    """A dict with a torch.dtype in a key, as pairs: the tree of a checkpoint has no such keys, but such values."""

    def __init__(self, pairs: list) -> None:
        self.pairs = pairs


tree.register_type(_ByType, lambda value: value.pairs, dict, "cairn.megatron.dict")
_IN_KEYS = frozenset((torch.dtype, type(None), bool, int, float, str))


def _storable(value: Any) -> Any:
    """Returns a value with a _ByType for each dict that has a torch.dtype in a key. Megatron's distributed optimizer has some."""
    if type(value) is dict:
        found = {key: _storable(item) for key, item in value.items()}
        kinds = {type(part) for key in found for part in (key if type(key) is tuple else (key,))}
        return _ByType(list(found.items())) if torch.dtype in kinds and kinds <= _IN_KEYS else found
    if type(value) in (list, tuple):
        return type(value)(map(_storable, value))
    return value


class _Planner(torch_dist.MCoreSavePlanner):
    """Megatron's planner, which gives objects as the tree of a checkpoint can hold them, instead of their pickles."""

    transform_object = DefaultSavePlanner.transform_object

    def lookup_object(self, index: Any) -> Any:
        return _storable(super().lookup_object(index))


class _Save(torch_dist.TorchDistSaveShardedStrategy):
    """Saves into a run. ``request`` is the save in flight."""

    def __init__(self, url: str, keep_only_main_replica: bool) -> None:
        super().__init__(keep_only_main_replica=keep_only_main_replica)
        self.url, self.run = url, _run_of(url)
        self.request: Optional[async_utils.AsyncRequest] = None
        self._has_met = False

    def meet(self, error: Optional[BaseException]) -> None:
        """Raises on all ranks if one of them has failed before the save began. Every rank calls it, once."""
        if not self._has_met:
            self._has_met = True
            self.run.group.agree(error, f"preparing the save of {self.url}")

    def async_save(self, sharded_state_dict: dict, checkpoint_dir: Any, async_strategy: str = "") -> async_utils.AsyncRequest:
        self.meet(None)
        grouped, _, _ = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded_state_dict, self.keep_only_main_replica)
        state = torch_dist.mcore_to_pyt_state_dict({key: items for key, items in grouped.items() if isinstance(items[0], ShardedTensor)})
        state.update((key, [item.data for item in items]) for key, items in grouped.items() if key not in state)
        planner = _Planner(dedup_replicated_tensors=not self.keep_only_main_replica, flatten_state_dict=False,
                           flatten_sharded_tensors=False)
        try:
            saving = dcp.async_save(state, checkpoint_id=self.url, storage_writer=self.run.writer, planner=planner)
        except CheckpointException as error:
            raise _plain(error, f"saving {self.url}") from error

        def finish() -> None:
            error = None
            try:
                saving.result()
            except CairnError as failure:
                error = failure
            self.run.group.agree(error, f"saving {self.url}")

        self.request = async_utils.AsyncRequest(None, (saving, self.run.group), [finish])
        return self.request


class _Load(torch_dist.TorchDistLoadShardedStrategy):
    """Loads from a checkpoint, which every rank reads alone. All ranks fail if one does."""

    def __init__(self, url: str, given: Any = None) -> None:
        super().__init__(stream_ckpt_dequant=getattr(given, "stream_ckpt_dequant", True))
        self.url, self._run, self._reader = url, _run_of(url), dcp.Reader(url, resume=False)

    def load(self, sharded_state_dict: dict, checkpoint_dir: Any, async_strategy: str = "") -> dict:
        error, result = None, {}
        try:
            result = self._read(sharded_state_dict)
        except (Exception, CheckpointException) as failure:
            error = _plain(self._reader.failure or failure, f"loading {self.url}")
        self._run.group.agree(error, f"loading {self.url}")
        return result

    def _read(self, sharded_state_dict: dict) -> dict:
        tensors = [item for item in nested_values(sharded_state_dict) if isinstance(item, ShardedTensor)]
        grouped, paths, names = torch_dist._replace_state_dict_keys_with_sharded_keys(sharded_state_dict)
        state = torch_dist.mcore_to_pyt_state_dict(grouped, True)
        planner = torch_dist.MCoreLoadPlanner(
            shapes_validation_sharded_tensors=[item for item in tensors if not item.allow_shape_mismatch],
            allow_shape_mismatch_sharded_tensors={item.key: item for item in tensors if item.allow_shape_mismatch},
            stream_ckpt_dequant=self.stream_ckpt_dequant, flatten_state_dict=False, flatten_sharded_tensors=False)
        torch_dcp.load(state, storage_reader=self._reader, planner=planner, no_dist=True)
        found = {key: torch_dist._unwrap_pyt_sharded_tensor(value) for key, value in state.items()}
        result = torch_dist._replace_sharded_keys_with_state_dict_keys(found, paths, names)
        torch_dist._restore_dict_types(result, sharded_state_dict)
        return result

    def load_tensors_metadata(self, checkpoint_dir: Any, metadata: Any = None) -> dict:
        return super().load_tensors_metadata(checkpoint_dir, metadata or dcp.Reader(self.url).read_metadata())

    def load_sharded_metadata(self, checkpoint_dir: Any) -> dict:
        metadata = dcp.Reader(self.url).read_metadata()
        objects = [ShardedObject.empty_from_unique_key(key) for key, entry in metadata.state_dict_metadata.items()
                   if isinstance(entry, BytesStorageMetadata)]
        return {**{item.unique_key: item for item in objects}, **self.load_tensors_metadata(checkpoint_dir, metadata)}


@contextlib.contextmanager
def _above(given: Any, mine: Any) -> Iterator[Any]:
    """Yields the strategy to give to Megatron: the caller's fully parallel one, with ours beneath, or ours alone."""
    if not hasattr(given, "base_strategy"):
        yield mine
        return
    base, given.base_strategy = given.base_strategy, mine
    try:
        yield given
    finally:
        given.base_strategy = base


def save(sharded_state_dict: dict, checkpoint_dir: Any, sharded_strategy: Any = None, validate_access_integrity: bool = True,
         async_sharded_save: bool = False, preprocess_common_before_consistancy_check: Any = None, content_metadata: Optional[dict] = None,
         async_strategy: str = "nvrx", verify_integrity: bool = False) -> Optional[async_utils.AsyncRequest]:
    """Saves as ``megatron.core.dist_checkpointing.save`` does. Every rank calls it.

    Args:
        sharded_state_dict: As for Megatron.
        checkpoint_dir: The URL of a step in a run, ``cairn:///lab/run/iter_0000010``; another path goes to Megatron.
        sharded_strategy: As for Megatron. A FullyParallelSaveStrategyWrapper shares the work as it does elsewhere.
        validate_access_integrity: As for Megatron.
        async_sharded_save: Whether to return when the state is copied and may change.
        preprocess_common_before_consistancy_check: As for Megatron.
        content_metadata: As for Megatron.
        async_strategy: Without meaning for a URL: no process is started.
        verify_integrity: Without meaning for a URL: Cairn verifies all that it reads.

    Returns:
        With async_sharded_save the save in flight, for ``AsyncCallsQueue``.

    Raises:
        CairnError: The save failed, on this rank or another one; on all ranks, with the number of the rank.
    """
    if not is_url(str(checkpoint_dir)):
        return serialization.save(sharded_state_dict, checkpoint_dir, sharded_strategy, validate_access_integrity, async_sharded_save,
                                  preprocess_common_before_consistancy_check, content_metadata, async_strategy, verify_integrity)
    base = getattr(sharded_strategy, "base_strategy", sharded_strategy)
    mine = _Save(str(checkpoint_dir), getattr(base, "keep_only_main_replica", True))
    with tempfile.TemporaryDirectory(prefix="cairn-megatron-") as folder, _above(sharded_strategy, mine) as strategy:
        try:
            request = serialization.save(sharded_state_dict, folder, strategy, validate_access_integrity, True,
                                         preprocess_common_before_consistancy_check, content_metadata)
        except BaseException as error:  # Ctrl-C too: the other ranks wait for this one
            mine.meet(error if isinstance(error, CairnError) else InvalidError.of(str(error) or type(error).__name__))
            raise
    del request.finalize_fns[1:]  # what is left would write metadata.json
    if async_sharded_save:
        return request
    request.execute_sync()
    return None


class AsyncCallsQueue(async_utils.AsyncCallsQueue):
    """Megatron's queue of saves in flight, for saves into a run: it starts no process, and needs no GPU."""

    def schedule_async_request(self, async_request: async_utils.AsyncRequest) -> int:
        if not async_request.async_fn_args or not isinstance(async_request.async_fn_args[0], dcp.writer.Saving):
            return super().schedule_async_request(async_request)
        self.call_idx += 1
        self.async_calls.append(async_utils._ActiveAsyncRequest(self.call_idx, self, async_request.freeze()))
        return self.call_idx

    def maybe_finalize_async_calls(self, blocking: bool = False, no_dist: bool = False) -> list:
        """Finalizes the saves that are durable on all ranks; with ``blocking`` waits for all. Every rank calls it."""
        done = []
        while self.async_calls and self.async_calls[0].async_caller is self and (blocking or self._is_durable(no_dist)):
            call = self.async_calls.popleft()
            for finalize in call.async_request.finalize_fns:
                finalize()
            done.append(call.idx)
        if self.async_calls and self.async_calls[0].async_caller is not self:
            done += super().maybe_finalize_async_calls(blocking, no_dist)
        return done

    def _is_durable(self, no_dist: bool) -> bool:
        saving, group = self.async_calls[0].async_request.async_fn_args
        if no_dist or dist.get_world_size() == 1:
            return saving.done()
        what = "asking for the end of a save"
        running, = group.max_result(group.max_start([int(not saving.done())], what), what)
        return not running


def _first(run: _Run, url: str) -> list:
    """Returns the checkpoints to try, as rank 0 found them, on all ranks: URLs with their terms, none where the run is empty."""
    names, error = [], None
    if run.group.rank == 0:
        try:
            names = _find(run, url)
        except CairnError as failure:
            error = _plain(failure, f"looking for {url}")
    run.group.agree(error, f"looking for {url}")
    return run.group.gather("\n".join(names).encode())[0].decode().split()


def _find(run: _Run, url: str) -> list:
    wanted = parse_id(url, latest=True)
    settle(wanted.run_url)
    with Client(run.url, read_only=True) as client:
        listed = client.list()
    found = [(item.term, item.step) for item in listed if not item.superseded]
    if not url.rstrip("/").endswith("/latest"):
        found = [(item.term, item.step) for item in listed if item.step == wanted.step and wanted.term in (0, item.term)][:1]
    return [f"{run.url}/{checkpoint_name(step, term)}" for term, step in sorted(found, reverse=True)]


def _common(run: _Run, url: str) -> dict:
    """Returns the common state of a checkpoint, on all ranks."""
    state: dict = {_COMMON: None}
    error, reader = None, dcp.Reader(url, resume=False)
    try:
        torch_dcp.load(state, storage_reader=reader, no_dist=True)
    except (Exception, CheckpointException) as failure:
        error = _plain(reader.failure or failure, f"loading {url}")
    run.group.agree(error, f"loading {url}")
    return state[_COMMON][0]


def load(sharded_state_dict: dict, checkpoint_dir: Any, sharded_strategy: Any = None, validate_access_integrity: bool = True,
         strict: Union[str, StrictHandling] = StrictHandling.ASSUME_OK_UNEXPECTED, verify_integrity: bool = False,
         process_group: Any = None) -> Any:
    """Loads as ``megatron.core.dist_checkpointing.load`` does. Every rank calls it.

    Args:
        sharded_state_dict: As for Megatron.
        checkpoint_dir: The URL of a step in a run, or ``cairn:///lab/run/latest``: the newest one that can be read on all ranks.
        sharded_strategy: As for Megatron.
        validate_access_integrity: As for Megatron.
        strict: As for Megatron.
        verify_integrity: Without meaning for a URL: Cairn verifies all that it reads.
        process_group: As for Megatron.

    Returns:
        As Megatron's.

    Raises:
        NotFoundError: There is no such checkpoint.
        CairnError: It cannot be read, or lacks what is wanted; on all ranks.
    """
    if not is_url(str(checkpoint_dir)):
        return serialization.load(sharded_state_dict, checkpoint_dir, sharded_strategy, validate_access_integrity, strict, verify_integrity,
                                  process_group)
    run = _run_of(str(checkpoint_dir))
    urls = _first(run, str(checkpoint_dir))
    for url in urls:
        try:
            common = _common(run, url)
            mine = _Load(url, getattr(sharded_strategy, "base_strategy", sharded_strategy))
            with _folder(common) as folder, _above(sharded_strategy, mine) as strategy:
                result = serialization.load(sharded_state_dict, folder, strategy, validate_access_integrity, strict, False, process_group)
        except _DAMAGE:
            if url == urls[-1]:
                raise
            continue
        run.loaded(url, url != urls[0])
        return result
    raise NotFoundError.of(f"{checkpoint_dir}: there is no such checkpoint; cairn ls shows those that there are")


@contextlib.contextmanager
def _folder(common: dict) -> Iterator[str]:
    """Makes a folder in which Megatron finds the common state, in its own format."""
    with tempfile.TemporaryDirectory(prefix="cairn-megatron-") as folder:
        torch_dcp.save({_COMMON: [common]}, checkpoint_id=folder, planner=DefaultSavePlanner(False, False), no_dist=True)
        pathlib.Path(folder, core.CONFIG_FNAME).write_text('{"sharded_backend": "torch_dist"}', encoding="utf-8")
        yield folder


def _one(url: Any) -> tuple:
    """Returns (run, URL) of the checkpoint that a URL names. Every rank calls it. Raises NotFoundError."""
    run = _run_of(str(url))
    for found in _first(run, str(url))[:1]:
        return run, found
    raise NotFoundError.of(f"{url}: there is no such checkpoint; cairn ls shows those that there are")


def check_is_distributed_checkpoint(checkpoint_dir: Any) -> bool:
    """Returns whether there is a checkpoint. Every rank calls it.

    Args:
        checkpoint_dir: The URL of a checkpoint, ``cairn:///lab/run/latest`` for the newest; another path goes to Megatron.

    Raises:
        CairnError: The server cannot be reached, so that nobody knows.
    """
    if not is_url(str(checkpoint_dir)):
        return bool(core.check_is_distributed_checkpoint(checkpoint_dir))
    return bool(_first(_run_of(str(checkpoint_dir)), str(checkpoint_dir)))


def load_common_state_dict(checkpoint_dir: Any) -> dict:
    """Loads what is no tensor and no sharded object, as Megatron does. Every rank calls it.

    Args:
        checkpoint_dir: The URL of a checkpoint, ``cairn:///lab/run/latest`` for the newest; another path goes to Megatron.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    return _common(*_one(checkpoint_dir)) if is_url(str(checkpoint_dir)) else serialization.load_common_state_dict(checkpoint_dir)


def load_content_metadata(checkpoint_dir: Any = None, *, preloaded_state_dict: Optional[dict] = None) -> Optional[dict]:
    """Loads the content metadata, as Megatron does. Every rank calls it.

    Args:
        checkpoint_dir: As in ``load_common_state_dict``.
        preloaded_state_dict: The common state, if it is loaded already; then nothing is read.

    Returns:
        What ``save`` was given as ``content_metadata``, or None if it was given none.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    if preloaded_state_dict is None and is_url(str(checkpoint_dir)):
        preloaded_state_dict = load_common_state_dict(checkpoint_dir)
    return serialization.load_content_metadata(checkpoint_dir, preloaded_state_dict=preloaded_state_dict)


def load_tensors_metadata(checkpoint_dir: Any, sharded_strategy: Any = None) -> dict:
    """Loads the shapes and types of the tensors, as Megatron does. Every rank calls it.

    Args:
        checkpoint_dir: As in ``load_common_state_dict``.
        sharded_strategy: Megatron's, for a path.

    Returns:
        A ShardedTensor without data for each tensor, by its name.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    if not is_url(str(checkpoint_dir)):
        return serialization.load_tensors_metadata(checkpoint_dir, sharded_strategy)
    return _Load(_one(checkpoint_dir)[1]).load_tensors_metadata(checkpoint_dir)


def load_sharded_metadata(checkpoint_dir: Any, sharded_strategy: Any = None) -> dict:
    """Loads what there is of tensors and sharded objects, as Megatron does. Every rank calls it.

    Args:
        checkpoint_dir: As in ``load_common_state_dict``.
        sharded_strategy: Megatron's, for a path.

    Returns:
        A ShardedTensor or ShardedObject without data for each, by its name.

    Raises:
        NotFoundError: There is no such checkpoint.
    """
    if not is_url(str(checkpoint_dir)):
        return serialization.load_sharded_metadata(checkpoint_dir, sharded_strategy)
    return _Load(_one(checkpoint_dir)[1]).load_sharded_metadata(checkpoint_dir)


def load_plain_tensors(checkpoint_dir: Any) -> dict:
    """Loads all tensors, each whole, as Megatron does. Every rank calls it, and holds them all.

    Args:
        checkpoint_dir: As in ``load_common_state_dict``.

    Returns:
        The tensors by name, on the CPU.

    Raises:
        NotFoundError: There is no such checkpoint.
        DamagedError: Its bytes are not those that were saved.
    """
    return load(load_tensors_metadata(checkpoint_dir), checkpoint_dir, validate_access_integrity=False)
