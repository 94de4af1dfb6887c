# SPDX-License-Identifier: Apache-2.0
"""cairn.deepspeed: save_checkpoint and load_checkpoint of a DeepSpeed engine, in a run of Cairn.

    engine = cairn.deepspeed.attach(engine, "cairn:///lab/run")
    _, client_state = engine.load_checkpoint()  # (None, None) only for a run proven to be empty
    engine.save_checkpoint(client_state={"epoch": epoch})

ZeRO's flat partitions are stored as boxes of the parameters, under the names that plain PyTorch gives them: "model" has the
fp32 master weights, "optimizer" their state. So another stage, another number of ranks and plain PyTorch may go on.
"""

from __future__ import annotations

import itertools
from typing import Any, Iterator, NamedTuple, Optional, Union

import torch
import torch.distributed as dist
from deepspeed.runtime.engine import DeepSpeedEngine
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer

from .errors import InvalidError, UnsupportedError
from .names import parse_step
from .torch import SaveHandle
from .torch.beyond import check_module, check_optimizer
from .torch.pieces import Piece, Pieces
from .training import Run

_COUNTERS = ("global_steps", "global_samples", "skipped_steps")


class _Slice(NamedTuple):
    """Where a parameter's piece lies: ``start`` in the flat master weights ``flat`` of a parameter group."""

    piece: Piece
    flat: torch.Tensor
    start: int
    group: int


def _slice(name: str, shape: tuple, offset: int, size: int, flat: torch.Tensor, group: int, ranks: list) -> _Slice:
    """Returns the slice of a parameter that begins at ``offset`` of a tensor of which each rank has ``size`` elements in turn."""
    end, at = offset + shape.numel(), ranks.index(dist.get_rank()) * size
    first, last = max(offset, at), min(end, at + size)
    first, last = (first, last) if first < last else (max(offset, at), max(offset, at))
    start = first - at if first < last else 0
    holders = [rank for idx, rank in enumerate(ranks) if idx * size < end and offset < (idx + 1) * size]
    return _Slice(Piece(name, shape, first - offset if first < last else 0, flat.detach()[start:start + last - first], holders),
                  flat, start, group)


class _Zero:
    """ZeRO 1 and 2: the weights are whole on each rank, the master weights and their state are cut."""

    def __init__(self, engine: DeepSpeedEngine) -> None:
        self.zero, self.module = engine.optimizer, engine.module
        self.base: torch.optim.Optimizer = self.zero.optimizer
        self.names = {id(param): name for name, param in engine.module.named_parameters()}
        self.slices = list(self._slices())
        buffers = {name: (buffer, self._is_persistent(name)) for name, buffer in engine.module.named_buffers()}
        ranks = dist.get_process_group_ranks(self._group())
        self.model = Pieces([item.piece for item in self.slices], self._whole(), buffers, ranks)
        self.optimizer = self._optimizer()

    def _is_persistent(self, name: str) -> bool:
        home, _, last = name.rpartition(".")
        return last not in self.module.get_submodule(home)._non_persistent_buffers_set

    def _group(self) -> Any:
        return self.zero.dp_process_group

    def _slices(self) -> Iterator[_Slice]:
        for idx, group in enumerate(self.zero.round_robin_bit16_groups):
            ranks = dist.get_process_group_ranks(self.zero.real_dp_process_group[idx])
            size = self.zero.bit16_groups_flat[idx].numel() // len(ranks)
            for param, offset in zip(group, self.zero.round_robin_bit16_offsets[idx]):
                yield _slice(self.names[id(param)], param.shape, offset, size, self.zero.single_partition_of_fp32_groups[idx], idx, ranks)

    def _whole(self) -> dict:
        cut = {item.piece.name for item in self.slices}
        return {name: param for name, param in self.module.named_parameters() if name not in cut}

    def _optimizer(self) -> torch.optim.Optimizer:
        """Returns an optimizer of the base's class and options, over the pieces. It takes no step."""
        check_optimizer("optimizer", self.base)
        groups: list = [{key: value for key, value in group.items() if key not in ("params", "param_names")}
                        for group in self.base.param_groups]
        for idx, group in enumerate(groups):
            group["params"] = [self.model.piece_params[item.piece.name] for item in self.slices if item.group == idx]
        kind = type(type(self.base).__qualname__, (torch.optim.Optimizer,), {})
        return kind(groups, {})

    def before(self) -> None:
        """Makes the memory hold what is current, before a save or a restore."""

    def after(self) -> None:
        """Takes back what ``before`` did."""

    def take(self) -> None:
        """Lets the optimizer show the state of the base as it stands now."""
        self.optimizer.state.clear()
        for mine, group in zip(self.optimizer.param_groups, self.base.param_groups):
            mine.update({key: value for key, value in group.items() if key not in ("params", "param_names")})
        for item in self.slices:
            found = self.base.state.get(item.flat) if item.piece.local.numel() else None
            if found:
                self.optimizer.state[self.model.piece_params[item.piece.name]] = {
                    key: self._part(item, key, value) for key, value in found.items()}

    @staticmethod
    def _part(item: _Slice, key: str, value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        if value.dim() == 0:
            return value.clone()  # each parameter has its own in plain PyTorch
        if value.shape != item.flat.shape:
            raise UnsupportedError.of(f"cairn.deepspeed: the optimizer's {key!r} has the shape {list(value.shape)} beside "
                                      f"{item.flat.numel()} flat weights, and it is not known to which parameter it belongs")
        return value[item.start:item.start + item.piece.local.numel()]

    def give(self) -> None:
        """Takes over what a restore has put into ``model`` and ``optimizer``."""
        for mine, group in zip(self.optimizer.param_groups, self.base.param_groups):
            group.update({key: value for key, value in mine.items() if key not in ("params", "param_names")})
        by_flat = itertools.groupby((item for item in self.slices if item.piece.local.numel()), lambda item: id(item.flat))
        for _, items in by_flat:
            self._give_state(list(items))
        self.update_weights()

    def _give_state(self, items: list) -> None:
        states = [self.optimizer.state.get(self.model.piece_params[item.piece.name]) for item in items]
        flat, first = items[0].flat, states[0]
        if not any(states):
            self.base.state.pop(flat, None)
            return
        made: dict = self.base.state[flat]
        for item, state in zip(items, states):
            name = item.piece.name
            if not state or state.keys() != first.keys():
                raise UnsupportedError.of(f"optimizer.{name}: its state has not the entries that {items[0].piece.name} has, and ZeRO "
                                          "keeps one state for both; put it into a parameter group of its own")
            for key, value in state.items():
                if isinstance(value, torch.Tensor) and value.dim() == 1:
                    if key not in made:
                        made[key] = torch.zeros(flat.shape, dtype=value.dtype, device=value.device)
                    made[key][item.start:item.start + value.numel()] = value
                elif bool(value != first[key]):
                    raise UnsupportedError.of(f"optimizer.{name}: its {key!r} is {value}, that of {items[0].piece.name} is {first[key]}, "
                                              "and ZeRO keeps one for both; put it into a parameter group of its own")
                else:
                    made[key] = value
        for key in [key for key in made if key not in first]:
            del made[key]

    def update_weights(self) -> None:
        """Computes the weights of the model from the master weights."""
        self.zero._hp_optimizer_states_linked = False  # the state's tensors may be new
        self.zero.update_lp_params()


class _Zero3(_Zero):
    """ZeRO 3: the weights are cut as well. Those that are frozen have no master weights; their own pieces are stored."""

    def _slices(self) -> Iterator[_Slice]:
        ranks = dist.get_process_group_ranks(self._group())
        for idx, group in enumerate(self.zero.fp16_groups):
            flat = self.zero.fp32_partitioned_groups_flat[idx]
            for param in group:
                _, start, size = self.zero.grad_position[self.zero.get_param_id(param)]
                piece = _slice(self.names[id(param)], param.ds_shape, 0, size, flat[start:start + size], 0, ranks).piece
                yield _Slice(piece, flat, start, self.zero.sub_group_to_group_id[idx])
        for name, param in self.module.named_parameters():
            if not param.requires_grad:
                yield _slice(name, param.ds_shape, 0, param.ds_tensor.ds_numel, param.ds_tensor, -1, ranks)

    def before(self) -> None:
        self.zero.checkpoint_event_prologue()

    def after(self) -> None:
        self.zero.checkpoint_event_epilogue()

    def update_weights(self) -> None:
        zero = self.zero
        for flat, weights, group in zip(zero.fp32_partitioned_groups_flat, zero.fp16_partitioned_groups_flat, zero.fp16_partitioned_groups):
            weights.data.copy_(flat.data)
            for param, part in zip(group, zero.unflatten(weights, group)):
                param.data = part.data


def _zero_of(engine: DeepSpeedEngine) -> Optional[_Zero]:
    """Returns the parts of a supported engine; None where nothing is cut. Raises UnsupportedError, which names the reason."""
    for is_on, what in ((engine.has_moe_layers, "mixture-of-experts layers"), (engine.mp_world_size > 1, "model parallelism"),
                        (type(engine) is not DeepSpeedEngine, f"a {type(engine).__name__}"),
                        (engine.random_ltd_enabled(), "random_ltd"), (engine.curriculum_learning_enabled(), "curriculum learning"),
                        (engine.zero_nvme_offload_optimizer(), "offload of the optimizer to NVMe"),
                        (engine.zero_quantized_weights() or engine.zero_hpz_partition_size() > 1, "ZeRO++")):
        if is_on:
            raise UnsupportedError.of(f"cairn.deepspeed: {what} cannot be saved; use DeepSpeed's own save_checkpoint for it")
    check_module("model", engine.module)
    for name, module in engine.module.named_modules():
        if type(module).get_extra_state is not torch.nn.Module.get_extra_state:
            raise UnsupportedError.of(f"cairn.deepspeed: {name} has an extra state ({type(module).__name__}), which cannot be saved")
    if type(engine.optimizer) is DeepSpeedZeroOptimizer:
        return _Zero(engine)
    if type(engine.optimizer) is DeepSpeedZeroOptimizer_Stage3:
        if any(weights is None for weights in engine.optimizer.fp16_partitioned_groups_flat):
            raise UnsupportedError.of("cairn.deepspeed: offload of parameters to NVMe cannot be saved")
        return _Zero3(engine)
    if not isinstance(engine.optimizer, torch.optim.Optimizer):
        raise UnsupportedError.of(f"cairn.deepspeed: the optimizer is a {type(engine.optimizer).__name__}; "
                                  "use ZeRO, from stage 1 on, or fp32")
    return None


class _Attached:
    """What ``attach`` gives to an engine."""

    def __init__(self, engine: DeepSpeedEngine, run: Run) -> None:
        self.engine, self.run, self.zero = engine, run, _zero_of(engine)
        self._destroy = engine.destroy
        self._scaler = getattr(engine.optimizer, "loss_scaler", None)

    def _state(self, client_state: Any) -> dict:
        """Returns the state as it stands now. ZeRO's tensors are looked for each time: ``offload_states`` moves them, and a
        module may replace its buffers."""
        engine = self.engine
        zero = self.zero = _zero_of(engine)
        state = {"model": engine.module if zero is None else zero.model, "optimizer": engine.optimizer if zero is None else zero.optimizer,
                 "deepspeed": {**{name: getattr(engine, name) for name in _COUNTERS},
                               "loss_scaler": {} if self._scaler is None else
                               {key: value for key, value in vars(self._scaler).items() if type(value) in (bool, int, float)}},
                 "client_state": dict(client_state)}
        if engine.lr_scheduler is not None:
            state["scheduler"] = engine.lr_scheduler
        if zero is not None:
            zero.before()
            zero.take()
        return state

    def _after(self) -> None:
        if self.zero is not None:
            self.zero.after()

    def save_checkpoint(self, save_dir: Any = None, tag: Any = None, client_state: Any = None, save_latest: bool = True,
                        exclude_frozen_parameters: bool = False) -> SaveHandle:
        """Takes the place of ``save_checkpoint``. Every rank calls it, between two steps of the optimizer.

        Args:
            save_dir: Without meaning; the run has been given to ``attach``.
            tag: A name with the step in it; None takes the number of the engine's step.
            client_state: Values to keep with the checkpoint, each rank's own.
            save_latest: True; the newest good checkpoint is always the one that is resumed.
            exclude_frozen_parameters: False.

        Returns:
            The save in flight. The state is copied and may change.

        Raises:
            InvalidError: The tag has no step in it, or gradients are being accumulated.
            UnsupportedError: A flag is not supported, or the state_dict of a module or the optimizer has more than can be saved.
        """
        if exclude_frozen_parameters or not save_latest:
            raise UnsupportedError.of("save_checkpoint: exclude_frozen_parameters and save_latest=False are not supported; leave them out")
        engine = self.engine
        if engine.micro_steps % engine.gradient_accumulation_steps():
            raise InvalidError.of("save_checkpoint: gradients are being accumulated, and no checkpoint has them; "
                                  "save after a step of the optimizer")
        step = engine.global_steps if tag is None else parse_step(str(tag))
        if step is None:
            raise InvalidError.of(f'save_checkpoint: the tag {tag!r} has no step in it; write tag=f"global_step{{step}}", or leave it out')
        try:
            return self.run.save(step, self._state(client_state or {}))
        finally:
            self._after()

    def load_checkpoint(self, load_dir: Any = None, tag: Any = None, load_module_strict: bool = True, load_optimizer_states: bool = True,
                        load_lr_scheduler_states: bool = True, load_module_only: bool = False, custom_load_fn: Any = None) -> tuple:
        """Takes the place of ``load_checkpoint``. Every rank calls it.

        Args:
            load_dir: Without meaning; the run has been given to ``attach``.
            tag: A name with the step in it; None takes the newest good checkpoint on all ranks.
            load_module_strict: True.
            load_optimizer_states: Whether the state of the optimizer is restored.
            load_lr_scheduler_states: Whether the state of the scheduler is restored.
            load_module_only: Restores the weights alone.
            custom_load_fn: Not supported.

        Returns:
            (name of the checkpoint, client state); (None, None) only for a run that is proven to be empty.

        Raises:
            InvalidError: The states are offloaded.
            UnsupportedError: A flag is not supported.
        """
        if custom_load_fn is not None or not load_module_strict:
            raise UnsupportedError.of("load_checkpoint: custom_load_fn and load_module_strict=False are not supported; leave them out")
        if getattr(self.engine.optimizer, "offloaded_states", None):
            raise InvalidError.of("load_checkpoint: the engine's states are offloaded; call engine.reload_states() "
                                  "before it")
        state, engine = self._state({}), self.engine
        left_out = {"optimizer": load_optimizer_states, "scheduler": load_lr_scheduler_states}
        only = ["model"] if load_module_only else [key for key in state if left_out.get(key, True)]
        try:
            restored = self.run.restore(state, "latest" if tag is None else self._step_of(tag), None if len(only) == len(state) else only)
            if restored is None:
                return None, None
            if self.zero is not None:
                self.zero.give()
        finally:
            self._after()
        if not load_module_only:
            for name in _COUNTERS:
                setattr(engine, name, state["deepspeed"][name])
            if self._scaler is not None:
                vars(self._scaler).update(state["deepspeed"]["loss_scaler"])
        return self.run.path(restored.step), {} if load_module_only else state["client_state"]

    def _step_of(self, tag: Any) -> Union[int, str]:
        step = parse_step(str(tag))
        if step is None:
            raise InvalidError.of(f"load_checkpoint: the tag {tag!r} has no step in it")
        return step

    def destroy(self) -> None:
        """Takes the place of ``destroy``: waits for the saves in flight first."""
        self.run.close()
        self._destroy()


def attach(engine: DeepSpeedEngine, url: str, **options: Any) -> DeepSpeedEngine:
    """Lets ``save_checkpoint`` and ``load_checkpoint`` of an engine use a run. Every rank calls it, once.

    ``save_checkpoint`` returns when the state is copied. ``destroy`` waits until all is durable.

    Args:
        engine: What ``deepspeed.initialize`` has returned. ZeRO 1, 2 and 3 are supported, with offload to the CPU, and fp32 without ZeRO.
        url: The URL of the run.
        **options: As for cairn.torch.Checkpointer.

    Returns:
        The same engine.

    Raises:
        InvalidError: The URL names no run.
        UnsupportedError: The engine uses what cannot be saved; the text names it.
    """
    if options.get("snapshot", "copy") != "copy":
        raise UnsupportedError.of('cairn.deepspeed: snapshot="lazy" is not supported; leave it out')
    attached = _Attached(engine, Run(url, **options))
    for name in ("save_checkpoint", "load_checkpoint", "destroy"):
        setattr(engine, name, getattr(attached, name))
    return engine
