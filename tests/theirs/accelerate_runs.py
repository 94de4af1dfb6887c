# SPDX-License-Identifier: Apache-2.0
"""Puts runs of Cairn in the place of the folders of Accelerate's tests: the folder around a state is a run, and a state
without a step in its name is the next step of this process. A save is waited for, since these tests look at once from
another accelerator."""

import os

from accelerate import Accelerator

import cairn.accelerate
from cairn.names import parse_step
from dcp_names import run_of

_steps = {}  # by path


def _name(path):
    if path is None or parse_step(str(path)) is not None:
        return path
    return f"step_{_steps.setdefault(str(path), len(_steps))}"


def _attach(accelerator, path):
    folder = os.path.join(accelerator.project_dir, "checkpoints") if accelerator.project_dir else os.path.dirname(path)
    cairn.accelerate.attach(accelerator, run_of(os.path.abspath(folder)))
    save, load = accelerator.save_state, accelerator.load_state
    accelerator.save_state = lambda path=None, **options: save(_name(path), **options).durable.result()
    accelerator.load_state = lambda path=None, **options: load(_name(path), **options)


def _door(name):
    """Returns the method that an accelerator has until it is first called."""
    def call(accelerator, path=None, **options):
        _attach(accelerator, path)
        return getattr(accelerator, name)(path, **options)
    return call


Accelerator.save_state, Accelerator.load_state = _door("save_state"), _door("load_state")
