# SPDX-License-Identifier: Apache-2.0
"""Trackers of experiments: each commit of a checkpoint as an event of TensorBoard, MLflow or Weights & Biases.

    cairn.torch.Checkpointer(url, state, on_commit=cairn.trackers.tensorboard(writer))

All doors that take the options of Checkpointer take ``on_commit``. The tracker's package is imported by its function alone.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Callable, Optional

from .errors import InvalidError

if TYPE_CHECKING:  # it imports PyTorch
    from .torch.commits import Commit

_FIELDS = ("blocked_s", "durable_s", "plain_bytes", "stored_bytes")


def _numbers(commit: Commit) -> dict:
    return {f"cairn/{name}": float(getattr(commit, name)) for name in _FIELDS}


def tensorboard(writer: Any) -> Callable[[Commit], None]:
    """Returns an ``on_commit`` that writes scalars, and the checkpoint's URL as a text.

    Args:
        writer: A torch.utils.tensorboard.SummaryWriter, or one with its methods.
    """
    def tell(commit: Commit) -> None:
        for name, value in _numbers(commit).items():
            writer.add_scalar(name, value, commit.step)
        writer.add_text("cairn/checkpoint", commit.url, commit.step)

    return tell


def mlflow(run_id: Optional[str] = None) -> Callable[[Commit], None]:
    """Returns an ``on_commit`` that logs metrics, and the newest checkpoint's URL as the tag ``cairn.checkpoint``.

    Args:
        run_id: The run; None takes the active one.

    Raises:
        InvalidError: No run is active.
    """
    from mlflow import MlflowClient, active_run
    from mlflow.entities import Metric, RunTag

    active = active_run() if run_id is None else None
    if run_id is None and active is None:
        raise InvalidError.of("cairn.trackers.mlflow: no run is active; call it within mlflow.start_run(), or give run_id")
    run = run_id if active is None else active.info.run_id
    client = MlflowClient()

    def tell(commit: Commit) -> None:
        now = int(time.time() * 1000)
        client.log_batch(run, metrics=[Metric(name, value, now, commit.step) for name, value in _numbers(commit).items()],
                         tags=[RunTag("cairn.checkpoint", commit.url)])

    return tell


def wandb(run: Any = None) -> Callable[[Commit], None]:
    """Returns an ``on_commit`` that logs numbers beside what the training logs next, and the newest checkpoint's URL in the run's
    summary.

    Args:
        run: What wandb.init has returned; None takes the active one.

    Raises:
        InvalidError: No run is active.
    """
    import wandb as package

    run = package.run if run is None else run
    if run is None:
        raise InvalidError.of("cairn.trackers.wandb: no run is active; call wandb.init first, or give the run")
    run.define_metric("cairn/step")
    run.define_metric("cairn/*", step_metric="cairn/step")
    last = [-1]  # the row of the last commit

    def tell(commit: Commit) -> None:
        # It goes into the row that the training fills: with a row of its own, wandb would drop what the training logs under the
        # same step afterwards. Two commits do not fit into one row.
        if run.step == last[0]:
            run.log({}, commit=True)
        last[0] = run.step
        run.log({"cairn/step": commit.step, **_numbers(commit)}, commit=False)
        run.summary["cairn/checkpoint"] = commit.url

    return tell
