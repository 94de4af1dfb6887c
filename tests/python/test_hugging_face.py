# SPDX-License-Identifier: Apache-2.0
"""A cairn:// URL where Accelerate and the Hugging Face Trainer know folders only is refused by name, and what one of them has
written into a local folder "cairn:" is told of. A training that begins anew supersedes what was there; only what has
become a checkpoint counts as kept or as the best."""

import os
import warnings

import fsspec
import pytest
import torch

import cairn
import cairn.fs
from cairn.training import Run
from conftest import lineage, steps_of


@pytest.fixture
def nowhere(tmp_path, monkeypatch):
    """An empty working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_accelerate_writes_a_local_folder_for_a_url_and_cairn_tells_of_it(url, nowhere):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True)
    accelerator.prepare(torch.nn.Linear(2, 2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cairn.fs.CairnFileSystem(skip_instance_cache=True)
    accelerator.save_state("cairn:///lab/run/step-1")
    assert os.path.isdir("cairn:")  # what Accelerate does, and reports as success
    for make in (lambda: cairn.fs.CairnFileSystem(skip_instance_cache=True), lambda: Run(url)):
        with pytest.warns(UserWarning, match="cairn: is a local folder.*attach"):
            make()


def test_accelerate_is_refused_a_url_as_its_folder(url, nowhere):
    accelerate = pytest.importorskip("accelerate")
    import cairn.accelerate

    with pytest.raises(cairn.UnsupportedError, match="project_dir='cairn:///lab/run' is a URL"):
        cairn.accelerate.attach(accelerate.Accelerator(cpu=True, project_dir="cairn:///lab/run"), url)
    accelerator = cairn.accelerate.attach(accelerate.Accelerator(cpu=True), url)
    accelerator.prepare(torch.nn.Linear(2, 2))
    with pytest.raises(cairn.InvalidError, match="names no checkpoint of the run"):
        accelerator.save_state("cairn:///lab/other/step-1")
    accelerator.save_state(f"{url}/step-1").durable.result(60)
    accelerator.end_training()
    assert steps_of(url) == [1]
    assert not fsspec.filesystem("file").exists("cairn:")


@pytest.mark.parametrize("at, is_between", [(0, True), (3, False), (4, False), (4, True)],
                         ids=["before the first batch", "within an epoch", "at its last batch", "behind it"])
def test_a_resumed_accelerator_draws_and_reads_as_an_undisturbed_one(url, at, is_between):
    accelerate = pytest.importorskip("accelerate")
    pytest.importorskip("torchdata")
    import cairn.accelerate

    def train(is_resumed):
        """Returns what the steps have read and drawn. The first training saves step ``at``, within the loop over batches or outside."""
        loading = accelerate.utils.DataLoaderConfiguration(use_stateful_dataloader=True, use_seedable_sampler=True)
        accelerator = cairn.accelerate.attach(accelerate.Accelerator(cpu=True, dataloader_config=loading), url)
        accelerate.utils.set_seed(7)
        loader = accelerator.prepare(torch.utils.data.DataLoader(torch.arange(8), batch_size=2, shuffle=True))
        steps, step = [], accelerator.load_state().step if is_resumed else 0

        def save(is_outside):
            if (step, is_between, is_resumed) == (at, is_outside, False):
                accelerator.save_state(f"step_{step}")

        save(True)
        while step < 12:
            for batch in loader:
                steps.append((batch.tolist(), torch.rand(1).item()))
                step += 1
                save(False)
            save(True)
        accelerator.end_training()
        return steps

    whole = train(False)
    assert train(True) == whole[at:]


def test_the_trainer_is_refused_a_url_as_its_folder(url, nowhere):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import cairn.transformers

    arguments = transformers.TrainingArguments(output_dir="cairn:///lab/run", use_cpu=True, report_to=[])
    with pytest.raises(cairn.UnsupportedError, match="output_dir='cairn:///lab/run' is a URL"):
        cairn.transformers.attach(transformers.Trainer(torch.nn.Linear(2, 2), arguments), url)


class Valued(torch.nn.Module):
    """Its parameter has one value throughout, and the losses of its evaluations are given."""

    def __init__(self, value, losses=()):
        super().__init__()
        self.weight, self.losses = torch.nn.Parameter(torch.tensor([float(value)])), list(losses)

    def forward(self, x, labels=None):
        loss = (self.weight * x.float().mean() * 0).sum()
        return {"loss": loss if self.training else loss + self.losses.pop(0), "logits": x}


def trainer_of(url, folder, model=None, model_init=None, callbacks=(), **options):
    """A Trainer of four steps that saves and evaluates at each of them."""
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import cairn.transformers

    data = [{"x": torch.tensor([1]), "labels": torch.tensor([1])} for _ in range(4)]
    options = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "steps", "eval_steps": 1, **options}
    arguments = transformers.TrainingArguments(
        output_dir=str(folder), num_train_epochs=1, per_device_train_batch_size=1, per_device_eval_batch_size=4,
        learning_rate=0.0, use_cpu=True, report_to=[], disable_tqdm=True, **options)
    trainer = transformers.Trainer(model, arguments, train_dataset=data, eval_dataset=data, model_init=model_init,
                                   callbacks=list(callbacks))
    return cairn.transformers.attach(trainer, url)


def weight(url, step):
    model = Valued(0.0)
    with cairn.torch.Checkpointer(url, {"model": model}, read_only=True) as reader:
        reader.restore(step, only=["model"])
    return model.weight.item()


@pytest.mark.parametrize("skipped, failed", [([2, 4], []), ([], [2, 4])], ids=["skipped", "failed"])
def test_only_a_checkpoint_of_the_trainer_is_kept_or_the_best(skipped, failed, url, nowhere, lose):
    """The best saves are lost: the good one before stays, until a good one behind them is better."""
    lose(skipped, failed)
    model = Valued(1.0, [0.5, 0.1, 0.4, 0.2])
    trainer = trainer_of(url, nowhere, model, load_best_model_at_end=True, save_total_limit=1)
    trainer.train()
    assert trainer.state.best_model_checkpoint == f"{url}/checkpoint-3"
    assert trainer.state.best_metric == pytest.approx(0.4)
    assert lineage(url) == [3, 1] and lineage(url, "kept") == [3]


def test_a_lost_save_takes_no_room_among_those_that_are_kept(url, nowhere, lose):
    lose([3])
    trainer_of(url, nowhere, Valued(1.0, [1.0] * 4), save_total_limit=2).train()
    assert lineage(url, "kept") == [4, 2]


def test_a_trainer_that_goes_back_keeps_the_best_of_that_time(url, nowhere):
    """A better one behind it had taken its tag."""
    options = {"load_best_model_at_end": True, "save_total_limit": 1}
    trainer_of(url, nowhere, Valued(1.0, [0.5, 0.6, 0.1, 0.2]), **options).train()
    assert lineage(url, "kept") == [4, 3]
    trainer = trainer_of(url, nowhere, Valued(2.0, [0.9, 0.8]), **options)
    trainer.train(resume_from_checkpoint=f"{url}/checkpoint-2")
    assert trainer.state.best_model_checkpoint == f"{url}/checkpoint-1" and lineage(url, "kept") == [4, 1]


def test_a_trainer_takes_the_best_model_from_a_server_that_has_moved(url, daemon, nowhere, monkeypatch):
    options = {"load_best_model_at_end": True}
    trainer_of(url, nowhere, Valued(1.0, [0.5, 0.1, 0.4, 0.2]), **options).train()
    monkeypatch.setenv("CAIRN_SERVER", f"unix:{daemon.socket}")
    there = f"cairn:///{url.partition('?run=')[2]}"
    trainer = trainer_of(there, nowhere, Valued(2.0), **options)
    trainer.train(resume_from_checkpoint=True)  # at its end, which saves nothing
    assert trainer.state.best_model_checkpoint == f"{there}/checkpoint-2" and trainer.model.weight.item() == 1.0


class Interrupt(Exception):
    """Ends a training."""


def test_a_trainer_that_begins_anew_supersedes_what_was_there(url, nowhere):
    transformers = pytest.importorskip("transformers")

    class At3(transformers.TrainerCallback):
        def on_step_begin(self, args, state, control, **_):
            if state.global_step == 2 and not control.is_done:
                control.is_done = True
                raise Interrupt

    model, options = Valued(1.0, [0.1] * 8), {"load_best_model_at_end": True, "save_total_limit": 1}
    trainer = trainer_of(url, nowhere, model, callbacks=[At3()], **options)
    trainer.control.is_done = False
    with pytest.raises(Interrupt):
        trainer.train()
    trainer.model.weight.data.fill_(2.0)
    trainer.model.losses[:] = [0.9, 0.8, 0.7, 0.8]
    trainer.train()
    assert lineage(url) == [4, 3, 2, 1] and [weight(url, step) for step in (4, 3, 2, 1)] == [2.0] * 4
    assert lineage(url, "kept") == [4, 3] and trainer.state.best_model_checkpoint == f"{url}/checkpoint-3"


def test_a_trainer_that_makes_its_model_resumes_the_one_that_was_saved(url, nowhere):
    options = {"eval_strategy": "no"}
    trainer_of(url, nowhere, model_init=lambda: Valued(1.0), max_steps=2, **options).train()
    trainer = trainer_of(url, nowhere, model_init=lambda: Valued(2.0), max_steps=4, **options)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.model.weight.item() == 1.0 and weight(url, 4) == 1.0


def accelerator_of(url, folder, **options):
    accelerate = pytest.importorskip("accelerate")
    import cairn.accelerate

    config = accelerate.utils.ProjectConfiguration(project_dir=str(folder), **options)
    return cairn.accelerate.attach(accelerate.Accelerator(cpu=True, project_config=config), url)


def test_an_accelerator_that_begins_anew_supersedes_what_was_there(url, nowhere):
    accelerator, model = accelerator_of(url, nowhere), Valued(0.0)
    accelerator.prepare(model)
    accelerator.gradient_state._set_sync_gradients(False)
    with pytest.warns(cairn.torch.CairnWarning, match="step 9 is saved within gradient accumulation"):
        accelerator.save_state("step_9")
    accelerator.gradient_state._set_sync_gradients(True)
    for value, step in enumerate([1, 2, 3, 1, 2]):
        model.weight.data.fill_(value)
        accelerator.save_state(f"step_{step}")
    accelerator.end_training()
    assert lineage(url) == [2, 1] and [weight(url, step) for step in ("latest", 1)] == [4.0, 3.0]


def test_a_lost_save_takes_no_room_among_those_of_an_accelerator(url, nowhere, lose):
    lose(skipped=[2], failed=[4])
    for saves, kept in ((3, [1, 0]), (4, [5, 3])):
        accelerator = accelerator_of(url, nowhere, automatic_checkpoint_naming=True, total_limit=2)
        accelerator.prepare(Valued(0.0))
        accelerator.load_state()  # step 1, the second time
        for _ in range(saves):
            accelerator.save_state()
        accelerator.end_training()
        assert lineage(url, "kept") == kept
