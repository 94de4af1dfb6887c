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


def test_the_trainer_is_refused_a_url_as_its_folder(url, nowhere):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    import cairn.transformers

    arguments = transformers.TrainingArguments(output_dir="cairn:///lab/run", use_cpu=True, report_to=[])
    with pytest.raises(cairn.UnsupportedError, match="output_dir='cairn:///lab/run' is a URL"):
        cairn.transformers.attach(transformers.Trainer(torch.nn.Linear(2, 2), arguments), url)
