# SPDX-License-Identifier: Apache-2.0
"""DLIO's checkpoint mechanism (`checkpoint_mechanism_classname=dlio_cairn.Checkpointing`) for paths cairn://: what DLIO would write
into a folder of its checkpoint folder becomes a step of the run CAIRN_DLIO_RUN. What it loads is compared with what it saved.
"""

import os

import fsspec
import torch
import torch.distributed as dist
from dlio_benchmark.checkpointing.pytorch_checkpointing import PyTorchCheckpointing

import cairn.fs


def _is_same(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(_is_same(value, other[key]) for key, value in one.items())
    return one.dtype == other.dtype and torch.equal(one, other)


class Checkpointing(PyTorchCheckpointing):
    _instance = None

    @staticmethod
    def get_instance():
        if Checkpointing._instance is None:
            Checkpointing._instance = Checkpointing()
        return Checkpointing._instance

    def __init__(self):
        super().__init__()
        if self.comm.size > 1:  # cairn.fs's ranks meet there
            where = "file://" + os.path.abspath("ranks")
            dist.init_process_group("gloo", init_method=where, rank=self.comm.rank, world_size=self.comm.size)

    def get_name(self, suffix):
        folder, _, name = suffix.partition("/")
        return f"{os.environ['CAIRN_DLIO_RUN']}/step-{folder.rpartition('step')[2]}/{name}.{self.ext}"

    def save_state(self, suffix, state, fsync=False):
        with fsspec.open(self.get_name(suffix), "wb") as file:
            torch.save(state, file)

    def load_state(self, suffix, state):
        with fsspec.open(self.get_name(suffix), "rb") as file:
            if not _is_same(torch.load(file), state):
                raise ValueError(f"{self.get_name(suffix)} does not hold what was saved")

    def save_checkpoint(self, epoch, step_number):
        super().save_checkpoint(epoch, step_number)
        self.comm.barrier()  # each rank has closed its files
        if self.comm.rank == 0:
            cairn.fs.seal(f"{os.environ['CAIRN_DLIO_RUN']}/step-{step_number}")
        self.comm.barrier()
