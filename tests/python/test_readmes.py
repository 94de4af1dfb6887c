# SPDX-License-Identifier: Apache-2.0
"""The Python in the READMEs runs as it stands there, against a server: only the URL of the run is another one."""

import pathlib
import re
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
RUN = re.compile(r"cairn\+unix:///[a-z/.]+\?run=[a-z]+/[a-z0-9]+")
NAMES = """
import os, tempfile
import fsspec, torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
os.chdir(tempfile.mkdtemp())
model = torch.nn.Linear(3, 2)
optim = optimizer = torch.optim.AdamW(model.parameters())
sched = scheduler = torch.optim.lr_scheduler.StepLR(optim, 1)
loss, n, state = 0.5, 3, model.state_dict()
state_dict = {"model": model.state_dict()}
def train(step):
    model(torch.ones(3)).sum().backward()
    optim.step()
"""
WORLD = 'dist.init_process_group("gloo", init_method="file://" + os.path.abspath("meet"), rank=0, world_size=1)\n'


@pytest.mark.parametrize("file, before", [("README.md", ""), ("client/python/README.md", ""),
                                          ("client/python/cairn/dcp/README.md", WORLD),
                                          ("client/python/cairn/fs/README.md", "")])
def test_the_examples_run(url, file, before):
    examples = re.findall(r"^```python\n(.*?)^```", (ROOT / file).read_text(), re.M | re.S)
    assert len(examples) == 1
    code = RUN.sub(lambda found: url, before + examples[0])
    assert url in code and "cairnd.sock?run=demo" not in code
    done = subprocess.run([sys.executable, "-c", NAMES + code], text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
