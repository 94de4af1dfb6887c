# SPDX-License-Identifier: Apache-2.0
"""Ray Train for bench_frameworks.py: its asynchronous upload of what torch.save has written, and Cairn."""

import json
import os
import tempfile
import threading
from pathlib import Path

import torch

from framework_torch import TorchWay
from framework_worker import Way


class InWorker(TorchWay):
    """What the training function does, in a process that Ray starts."""

    def __init__(self, job):
        super().__init__(job)
        if self.is_cairn:
            import cairn.ray

            self.checkpointer = cairn.ray.Checkpointer(self.url, {"model": self.model, "optim": self.optimizer})

    def save(self, number):
        import ray.train

        if self.is_cairn:
            self.handle = self.checkpointer.report(number, {"loss": 0.0})
            return
        self.uploaded = Path(tempfile.mkdtemp(dir=self.folder))
        torch.save({"model": self.model.state_dict(), "optim": self.optimizer.state_dict()}, self.uploaded / "state.pt")
        ray.train.report({"loss": 0.0}, checkpoint=ray.train.Checkpoint.from_directory(self.uploaded),
                         checkpoint_upload_mode=ray.train.CheckpointUploadMode.ASYNC)

    def is_done(self):
        return super().is_done() if self.is_cairn else not self.uploaded.exists()  # Ray removes it when it is uploaded

    def close(self):
        if self.is_cairn:
            self.checkpointer.close()


def train(config):
    """Ray's training function. The driver's lines come and go through two named pipes."""
    way = InWorker(config)
    with open(config["lines"]) as lines, open(config["answers"], "w", buffering=1) as answers:
        way.serve(lines, lambda what: answers.write(json.dumps(what) + "\n"))
    way.close()


class Ray(Way):
    name, own = "ray", "torch.save, then its asynchronous upload"

    def serve(self, lines, answer):
        import ray
        import ray.train.torch

        pipes = {name: f"{self.folder}.{name}" for name in ("lines", "answers")}
        for path in pipes.values():
            os.mkfifo(path)
        for relay in (lambda: self.give(lines, pipes["lines"]), lambda: self.take(pipes["answers"], answer)):
            threading.Thread(target=relay, daemon=True).start()
        ray.init(num_cpus=1, include_dashboard=False)
        trainer = ray.train.torch.TorchTrainer(
            train, train_loop_config={**self.job, **pipes}, scaling_config=ray.train.ScalingConfig(num_workers=1),
            run_config=ray.train.RunConfig(name="bench", storage_path=str(self.folder)))
        trainer.fit()
        ray.shutdown()

    @staticmethod
    def give(lines, path):
        with open(path, "w", buffering=1) as pipe:
            for line in lines:
                pipe.write(line)

    def take(self, path, answer):
        with open(path) as pipe:
            for line in pipe:
                what = json.loads(line)
                answer({"own": self.own} if "own" in what else what)
