# SPDX-License-Identifier: Apache-2.0
"""The frameworks on PyTorch that bench_frameworks.py measures, with their own best asynchronous checkpoint and with Cairn."""

import itertools
import os
import types

import torch

from framework_worker import Way

WIDTH, BATCH = 512, 16


def net(size):
    """A model whose weights and Adam's state have about so many bytes."""
    layers = max(1, round(size / (12 * WIDTH * (WIDTH + 1))))
    return torch.nn.Sequential(*(part for _ in range(layers) for part in (torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh())))


def loss_of(model, batch):
    return model(batch).square().mean()


class TorchWay(Way):
    """A loop of PyTorch's own on one thread; frameworks that have a loop of their own ask ``wanted`` at each step."""

    def __init__(self, job):
        super().__init__(job)
        torch.set_num_threads(1)
        torch.manual_seed(1)
        self.model, self.batch = net(job["bytes"]), torch.randn(BATCH, WIDTH)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def join_group(self):
        torch.distributed.init_process_group("gloo", init_method=f"file://{self.folder}.meeting", rank=0, world_size=1)

    def before_update(self):
        """Right before the optimizer changes anything."""

    def step(self):
        loss_of(self.model, self.batch).backward()
        self.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def note_saves(self):
        """Takes note of the saves that an adapter makes."""
        import cairn.training

        save = cairn.training.Run.save

        def noted(*args, **keywords):
            self.handle = save(*args, **keywords)
            return self.handle

        cairn.training.Run.save = noted


class Lightning(TorchWay):
    name, own = "lightning", "AsyncCheckpointIO"

    def run(self, wanted):
        import lightning as L

        way = self

        class Module(L.LightningModule):
            def __init__(self):
                super().__init__()
                self.net = way.model

            def training_step(self, batch, _):
                return loss_of(self.net, batch)

            def configure_optimizers(self):
                return torch.optim.AdamW(self.parameters(), lr=1e-4)

        class Hook(L.Callback):
            def on_train_batch_end(self, trainer, *_):
                trainer.should_stop = next(wanted, self) is self

        options = {"every_n_train_steps": 1 << 30, "save_top_k": -1}
        if self.is_cairn:
            import cairn.lightning

            self.note_saves()
            self.checkpoints, plugins = cairn.lightning.ModelCheckpoint(self.url, **options), []
        else:
            self.io = L.pytorch.plugins.io.AsyncCheckpointIO()
            self.checkpoints, plugins = L.pytorch.callbacks.ModelCheckpoint(dirpath=self.folder, **options), [self.io]
        self.trainer = L.Trainer(max_epochs=1, callbacks=[Hook(), self.checkpoints], plugins=plugins, accelerator="cpu", devices=1,
                                 logger=False, enable_progress_bar=False, enable_model_summary=False)
        next(wanted)
        self.trainer.fit(Module(), itertools.repeat(self.batch))

    def save(self, number):  # as the callback itself does after a step
        name = self.checkpoints.format_checkpoint_name({"epoch": torch.tensor(0), "step": torch.tensor(self.trainer.global_step)})
        self.checkpoints._save_checkpoint(self.trainer, name)
        if not self.is_cairn:
            self.behind = self.io._executor.submit(int)  # its one thread comes to this after the save

    def is_done(self):
        if self.is_cairn:
            return super().is_done()
        if self.io._error:
            raise self.io._error
        return self.behind.done()


class Transformers(TorchWay):
    name, own = "transformers", "its synchronous save: it has no other"

    def run(self, wanted):
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Model(torch.nn.Module):
            def __init__(self, inner):
                super().__init__()
                self.inner = inner

            def forward(self, x):
                return {"loss": loss_of(self.inner, x)}

        class Hook(TrainerCallback):
            def on_step_end(self, args, state, control, **_):
                control.should_training_stop = next(wanted, self) is self

        arguments = TrainingArguments(output_dir=self.folder, max_steps=1000000, per_device_train_batch_size=BATCH, save_strategy="no",
                                      logging_strategy="no", use_cpu=True, report_to=[], disable_tqdm=True)
        self.trainer = Trainer(Model(self.model), arguments, train_dataset=[{"x": row} for row in self.batch] * 1000, callbacks=[Hook()])
        if self.is_cairn:
            import cairn.transformers

            self.note_saves()
            cairn.transformers.attach(self.trainer, self.url)
        next(wanted)
        self.trainer.train()

    def save(self, number):  # as the trainer itself does after a step
        self.trainer._save_checkpoint(self.trainer.model, None)


class Accelerate(TorchWay):
    name, own = "accelerate", "its synchronous save: it has no other"

    def __init__(self, job):
        super().__init__(job)
        from accelerate import Accelerator

        self.accelerator = Accelerator(cpu=True)
        self.model, self.optimizer = self.accelerator.prepare(self.model, self.optimizer)
        if self.is_cairn:
            import cairn.accelerate

            cairn.accelerate.attach(self.accelerator, self.url)

    def save(self, number):
        saved = self.accelerator.save_state(str(self.folder / f"step_{number}"))
        self.handle = saved if self.is_cairn else None

    def close(self):
        self.accelerator.end_training()


class DeepSpeed(TorchWay):
    name, own = "deepspeed", "its synchronous save: PyTorch refuses to send ZeRO's partitions to its decoupled engine"

    def __init__(self, job):
        super().__init__(job)
        import deepspeed

        # One rank reduces nothing, and a build that is killed leaves a lock behind, for which the next one waits for ever.
        deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
        self.join_group()
        deepspeed.init_distributed(dist_backend="gloo", auto_mpi_discovery=False)
        config = {"train_micro_batch_size_per_gpu": BATCH, "bf16": {"enabled": True}, "zero_optimization": {"stage": 2},
                  "zero_force_ds_cpu_optimizer": False, "steps_per_print": 1000000}
        self.engine, *_ = deepspeed.initialize(model=self.model, optimizer=self.optimizer, config=config)
        if self.is_cairn:
            import cairn.deepspeed

            cairn.deepspeed.attach(self.engine, self.url)

    def step(self):
        self.engine.backward(loss_of(self.engine, self.batch.bfloat16()))
        self.engine.step()

    def save(self, number):
        saved = self.engine.save_checkpoint(str(self.folder), tag=f"step_{number}")
        self.handle = saved if self.is_cairn else None

    def close(self):
        self.engine.destroy()


class Dcp(TorchWay):
    name, own = "dcp", "async_save with asynchronous staging"

    def __init__(self, job):
        super().__init__(job)
        self.join_group()
        os.environ["BENCH_FOLDER"] = str(self.folder)
        from train_worker import CairnDcpWay, DcpWay  # as bench_train.py measures them, there on a GPU, too

        of_job = types.SimpleNamespace(model=self.model, optimizer=self.optimizer, rank=0, world=1, device="cpu",
                                       target=self.url if self.is_cairn else str(self.folder))
        self.dcp = CairnDcpWay(of_job, "arena") if self.is_cairn else DcpWay(of_job, "async staging")

    def before_update(self):
        self.dcp.before_update()

    def save(self, number):
        self.dcp.save(number)

    def is_done(self):
        if not self.dcp.in_flight():
            self.dcp.future.result()
        return not self.dcp.in_flight()

    def close(self):
        self.dcp.close()


class Torchtitan(TorchWay):
    name, own = "torchtitan", 'CheckpointManager, async_mode="async"'

    def __init__(self, job):
        super().__init__(job)
        from torch.distributed.checkpoint.state_dict import StateDictOptions, get_optimizer_state_dict

        if self.is_cairn:
            from cairn.torchtitan import CheckpointManager
        else:
            from torchtitan.components.checkpointer.dcp import CheckpointManager

        class States:
            def __init__(self, ask):
                self.state_dict = ask

            def load_state_dict(self, state):
                pass

        self.join_group()
        flat = StateDictOptions(flatten_optimizer_state_dict=True)
        config = CheckpointManager.Config(enable=True, folder=self.url if self.is_cairn else str(self.folder), interval=1,
                                          async_mode="async", keep_latest_k=0, last_save_model_only=False)
        self.manager = CheckpointManager(
            config, dataloader=States(dict), model_parts=[self.model], lr_schedulers=States(dict), states={"train_state": States(dict)},
            optimizers=States(lambda: get_optimizer_state_dict(self.model, self.optimizer, options=flat)), sd_adapter=None)

    def before_update(self):
        self.manager.maybe_wait_for_staging()

    def save(self, number):
        self.manager.save(number + 1)
        self.future = self.manager.save_future

    def is_done(self):
        self.future.result()  # in the thread that asks
        return True

    def close(self):
        self.manager.close()


class TorchCheckpointing(TorchWay):
    name, own = "torch-checkpointing", "CheckpointManager, asynchronous"

    def __init__(self, job):
        super().__init__(job)
        from torch_checkpointing.checkpoint_process import CheckpointProcessConfig
        from torch_checkpointing.config import AsyncCheckpointSaverConfig

        self.join_group()
        if self.is_cairn:
            from cairn.torch_checkpointing import CheckpointManager, StorageConfig

            storage = StorageConfig(self.url)
        else:
            from torch_checkpointing import CheckpointManager
            from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

            storage = LocalFileSystemStorageConfig(use_direct_io=False)  # 0.1.1 fails with it where the last write is no whole block
        process = CheckpointProcessConfig(subprocess_init_timeout_secs=300)  # of the package's own way, on a busy machine
        config = CheckpointManager.Config(save=AsyncCheckpointSaverConfig(process_config=process), storage_config=storage)
        self.manager = CheckpointManager(config)

    def step(self):
        loss_of(self.model, self.batch).backward()
        with self.manager.lock():
            self.optimizer.step()
        self.optimizer.zero_grad()

    def save(self, number):
        where = f"step-{number}" if self.is_cairn else str(self.folder / f"step-{number}")
        self.future = self.manager.save(where, {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()})

    def is_done(self):
        self.future.result()  # in the thread that asks
        return True

    def close(self):
        self.manager.close()
