# SPDX-License-Identifier: Apache-2.0
"""What the harness knows of each framework: a row of FRAMEWORKS. The program is the one whole program of its page in docs/,
whose fence says that tests/reach runs it. A row whose name has a dash (lightning-paths) is a further program of the page.
"""

import dataclasses
import operator
import os
import pathlib
import random
import re
import sys
from typing import Any, Callable, Optional

ROOT = pathlib.Path(__file__).resolve().parents[2]
IGNORED = ", though there was step "  # in the note of a restart that passes over what is committed


def after_torch_step(call: Callable) -> None:
    """Lets ``call`` be called after each step of an optimizer of PyTorch, with the number of its steps, which its state has."""
    from torch.optim.optimizer import register_optimizer_step_post_hook

    register_optimizer_step_post_hook(lambda optimizer, *_: call(max(int(state["step"]) for state in optimizer.state.values())))


def after_jitted_call(call: Callable) -> None:
    """Lets ``call`` be called after each call of what the program gives to ``jax.jit``, with the number of the steps in its result. JAX
    itself gives it functions whose results have none."""
    import jax
    import optax

    jit = jax.jit

    def noted(*args: Any, **kwargs: Any) -> Callable:
        compiled = jit(*args, **kwargs)

        def run(*values: Any) -> Any:
            result = compiled(*values)
            counts = optax.tree_utils.tree_get_all_with_path(result, "count")
            if counts:
                call(int(counts[0][1]))
            return result

        return run

    jax.jit = noted


def after_keras_batch(call: Callable) -> None:
    """Lets ``call`` be called after each batch of a ``fit``, with the number of batches behind it."""
    import keras

    callbacks = keras.callbacks.CallbackList
    begin, end = callbacks.on_epoch_begin, callbacks.on_train_batch_end
    epoch = 0

    def began(self: Any, number: int, *args: Any, **kwargs: Any) -> None:
        nonlocal epoch
        epoch = number
        begin(self, number, *args, **kwargs)

    def ended(self: Any, batch: int, *args: Any, **kwargs: Any) -> None:
        end(self, batch, *args, **kwargs)
        call(epoch * self.params["steps"] + batch + 1)

    callbacks.on_epoch_begin, callbacks.on_train_batch_end = began, ended


def in_ray_workers(begin: Callable, end: Callable) -> None:
    """Lets ``begin`` be called in each worker of Ray before the training function, and ``end`` behind it with the state that the
    training's Checkpointer held last."""
    import ray.train.torch

    class Trainer(ray.train.torch.TorchTrainer):
        def __init__(self, train: Callable, **options: Any) -> None:
            def run(config: dict) -> None:
                import cairn.ray

                names: dict = {}
                close = cairn.ray.Checkpointer.close

                def noted(checkpointer: Any, *args: Any) -> None:
                    names.update(checkpointer.state)
                    close(checkpointer, *args)

                cairn.ray.Checkpointer.close = noted
                begin()
                train(config)
                end(names)

            super().__init__(run, **options)

    ray.train.torch.TorchTrainer = Trainer


def in_horovod_workers(begin: Callable, end: Callable) -> None:
    """Starts the program again under horovodrun, unless that has started it. Lets ``begin`` be called in each worker before the program,
    and ``end`` with the state that it closes. Each worker is on a host of its own, which Horovod gives up when the worker dies; a
    spare one takes its place."""
    if "HOROVOD_HOSTNAME" not in os.environ:
        ranks = os.environ["REACH_RANKS"]
        hosts = "printf '%s:1\\n' localhost 127.0.0.1 127.1"  # names of this machine
        horovodrun = pathlib.Path(sys.executable).with_name("horovodrun")
        os.execv(horovodrun, [str(horovodrun), "--gloo", "-np", ranks, "--min-np", ranks, "--max-np", ranks, "--network-interfaces", "lo",
                              "--host-discovery-script", hosts, sys.executable, *sys.argv])
    import cairn.horovod

    close = cairn.horovod.TorchState.close

    def noted(state: Any) -> None:
        close(state)
        end(vars(state))

    cairn.horovod.TorchState.close = noted
    begin()


def ready_horovod(_: Callable) -> None:
    """Gives this worker its number, again when Horovod has given out others."""
    import horovod.torch as hvd
    import horovod.torch.elastic as elastic

    init = hvd.init

    def numbered(*args: Any, **kwargs: Any) -> None:
        init(*args, **kwargs)
        os.environ["RANK"] = str(hvd.rank())

    hvd.init = elastic.init = numbered
    numbered()


def ready_megatron(watch: Callable) -> None:
    """Lets Megatron-Core run without a GPU. Its program asks before it loads, so a start from nothing is noted there."""
    from on_cpu import enter

    enter()
    import cairn.megatron

    watch(cairn.megatron, "check_is_distributed_checkpoint", operator.not_)


@dataclasses.dataclass(frozen=True)
class Framework:
    """One framework.

    Attributes:
        kept: How many checkpoints of an undisturbed training have the tag "kept" at its end; None where the framework says nothing
            of retention.
        final: Returns what must be the same at the end, given the names of the program that has run. It imports what it needs.
        ranks: Numbers of ranks to train on.
        after_step: Takes a function, which is then called after each step of the framework's optimizer, with the number of steps behind
            it; those before a restart count.
        is_refused: Whether one rank refuses what two have saved within an epoch.
        is_launched: Whether one rank is started by torchrun as well.
        in_workers: Where the program starts its ranks by itself, in other processes: takes what is to be called in each of them before
            and behind the training.
        restarts: How many dead ranks the program's framework replaces by itself in one start, given the ranks.
        needs: The distribution without which the row is left out, where it may be missing; "" where it may not.
        matrix: A program beside this one that proves resumes on other ranks; "" where there is none.
        tests: A file of tests/python that is run as well; "" where there is none.
        page: The page of docs/ that has the program; "" for that of the framework's name.
        environment: Variables for the program.
        prepare: Called before the program runs, with drive.py's ``watch`` of this framework.
        beside: What follows the URL of the run in that of the run that a restart reads.
        restores: The module, the class and the method that the framework's restart calls; its result is a step, or has one.
    """

    kept: Optional[int]
    final: Callable[[dict], dict]
    ranks: tuple = (1, 2)
    after_step: Callable[[Callable[[], Any]], None] = after_torch_step
    is_refused: bool = True
    is_launched: bool = False
    in_workers: Optional[Callable] = None
    restarts: Callable = lambda ranks: 0
    needs: str = ""
    matrix: str = ""
    tests: str = ""
    page: str = ""
    environment: dict = dataclasses.field(default_factory=dict)
    prepare: Callable[[Callable], None] = lambda watch: None
    beside: str = ""
    restores: tuple = ("cairn.training", "Run", "restore")

    @property
    def has_adapter(self) -> bool:
        """Whether the program uses an adapter, and not paths alone."""
        return self.restores[0].startswith("cairn.")


def _torch_state(model: Any, optimizer: Any, scheduler: Any) -> dict:
    import numpy
    import torch

    return {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "scheduler": scheduler.state_dict(),
            "rng": [torch.get_rng_state(), random.getstate(), numpy.random.get_state(legacy=False)]}


def _torch_rng() -> Any:
    import torch

    return torch.get_rng_state()


def _lightning(names: dict) -> dict:
    trainer = names["trainer"]
    return _torch_state(trainer.lightning_module, trainer.optimizers[0], trainer.lr_scheduler_configs[0].scheduler)


def _lightning_paths(names: dict) -> dict:
    state = _lightning(names)
    del state["rng"]  # Lightning's own files hold no generators
    return state


def _transformers(names: dict) -> dict:
    trainer = names["trainer"]
    return _torch_state(trainer.model, trainer.optimizer, trainer.lr_scheduler)


def _accelerate(names: dict) -> dict:
    return _torch_state(names["accelerator"].unwrap_model(names["model"]), names["optimizer"], names["scheduler"])


def _deepspeed(names: dict) -> dict:
    engine = names["engine"]
    zero = engine.optimizer
    return {**_torch_state(engine.module, zero.optimizer, engine.lr_scheduler), "master": zero.single_partition_of_fp32_groups,
            "counters": [engine.global_steps, engine.global_samples, engine.skipped_steps]}


def _torchtitan(names: dict) -> dict:
    optimizer = names["optimizer"]
    params = [param.to_local() for param in names["model"].parameters()]
    states = [{key: getattr(value, "to_local", lambda value=value: value)() for key, value in state.items()}
              for state in optimizer.state.values()]
    return {"model": params, "optimizer": states, "step": names["progress"].step}


def _torch_checkpointing(names: dict) -> dict:
    return {**_torch_state(names["model"], names["optimizer"], names["scheduler"]), "rng": _torch_rng()}


def _ray(names: dict) -> dict:
    return _torch_state(names["model"], names["optim"], names["sched"])


def _horovod(names: dict) -> dict:
    return _torch_state(names["model"], names["optimizer"], names["scheduler"])


def _megatron(names: dict) -> dict:
    import torch

    inner = names["optimizer"].chained_optimizers[0].optimizer
    state = [[param, inner.state[param]] for group in inner.param_groups for param in group["params"]]
    return {"model": names["model"].state_dict(), "optimizer": state, "rng": torch.get_rng_state(),
            "tracker": names["tensor_parallel"].get_cuda_rng_tracker().get_states()}


def _jax(names: dict) -> dict:
    import jax
    import numpy

    leaves = jax.tree.leaves({**names["state"], "key": jax.random.key_data(names["state"]["key"])})
    return {"state": [numpy.asarray(shard.data) for leaf in leaves for shard in leaf.addressable_shards]}


def _keras(names: dict) -> dict:
    import keras
    import numpy

    model = names["model"]
    return {"variables": [keras.ops.convert_to_numpy(item.value) for item in (*model.variables, *model.optimizer.variables)],
            "rng": [random.getstate(), numpy.random.get_state(legacy=False)]}


def _on_keras(backend: str, module: str) -> Framework:
    return Framework(None, _keras, ranks=(1,), after_step=after_keras_batch, is_refused=False, page="keras", tests="test_keras.py",
                     environment={"KERAS_BACKEND": backend, "TF_CPP_MIN_LOG_LEVEL": "3"}, restores=(module, "Checkpointer", "restore"))


FRAMEWORKS = {
    "lightning": Framework(3, _lightning, tests="test_lightning.py"),
    "lightning-paths": Framework(None, _lightning_paths, ranks=(1,), is_refused=False, page="lightning", beside=".last.ckpt", restores=(
        "lightning.pytorch.trainer.connectors.checkpoint_connector", "_CheckpointConnector", "_parse_ckpt_path")),
    "transformers": Framework(2, _transformers),
    "accelerate": Framework(9, _accelerate),
    "deepspeed": Framework(9, _deepspeed, is_refused=False, is_launched=True, matrix="matrix_deepspeed.py"),
    "torchtitan": Framework(None, _torchtitan, is_refused=False, is_launched=True, tests="test_torchtitan.py",
                            restores=("cairn.torchtitan", "CheckpointManager", "_find_load_step")),
    "torch-checkpointing": Framework(None, _torch_checkpointing, is_refused=False, is_launched=True,
                                     restores=("cairn.torch_checkpointing", "StorageConfig", "latest")),
    "ray": Framework(None, _ray, in_workers=in_ray_workers, restarts=lambda ranks: 3, restores=("cairn.ray", "Checkpointer", "restore")),
    "horovod": Framework(None, _horovod, is_refused=False, in_workers=in_horovod_workers, restarts=lambda ranks: ranks - 1, needs="horovod",
                         tests="test_horovod.py", prepare=ready_horovod, restores=("cairn.horovod", "TorchState", "_resume")),
    "megatron": Framework(None, _megatron, is_refused=False, is_launched=True, needs="megatron-core", matrix="matrix_megatron.py",
                          prepare=ready_megatron, restores=("cairn.megatron", "_Run", "loaded")),
    "jax": Framework(None, _jax, after_step=after_jitted_call, is_refused=False, restores=("cairn.jax", "Checkpointer", "restore")),
    "keras": _on_keras("jax", "cairn.jax"),
    "keras-tensorflow": _on_keras("tensorflow", "cairn.arrays"),
    "keras-torch": _on_keras("torch", "cairn.arrays"),
}


def program_of(framework: str) -> str:
    """Returns the text of the framework's program: the one that its page names so, or else the page's only one without a name."""
    text = (ROOT / "docs" / f"{FRAMEWORKS[framework].page or framework}.md").read_text(encoding="utf-8")
    programs = dict(re.findall(r"^```python no-run tests/reach runs it(?: as ([a-z-]+))?,[^\n]*\n(.*?)^```$", text, re.M | re.S))
    return programs.get(framework) or programs[""]
