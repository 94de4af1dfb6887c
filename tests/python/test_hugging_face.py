# SPDX-License-Identifier: Apache-2.0
"""A cairn:// URL where Accelerate and the Hugging Face Trainer know folders only is refused by name, and what one of them has
written into a local folder "cairn:" is told of."""

import os
import warnings

import fsspec
import pytest
import torch

import cairn
import cairn.fs
from cairn.training import Run
from conftest import steps_of


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
