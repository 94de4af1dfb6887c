# SPDX-License-Identifier: Apache-2.0
"""A few cases written like PyTorch's storage tests, for a folder and with PyTorch's file writers. test_theirs.py runs them where
PyTorch's source is not at hand, as suites.py would PyTorch's own."""

import os
import tempfile
import unittest

import torch
from torch.distributed.checkpoint import CheckpointException, FileSystemReader, FileSystemWriter, load, save


class TestFolder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = folder.name

    def test_read_write_only_tensor(self):
        model, other = torch.nn.Linear(5, 3), torch.nn.Linear(5, 3)
        save(model.state_dict(), storage_writer=FileSystemWriter(path=self.path, thread_count=2))
        state = other.state_dict()
        self.assertFalse(torch.equal(state["weight"], model.weight))
        load(state, storage_reader=FileSystemReader(path=self.path))
        self.assertTrue(torch.equal(state["weight"], model.weight))
        self.assertTrue(torch.equal(state["bias"], model.bias))

    def test_overwrite(self):
        writer = FileSystemWriter(self.path)
        for value in (1.0, 2.0):
            save({"x": torch.full((4,), value)}, checkpoint_id=self.path, storage_writer=writer)
            back = {"x": torch.zeros(4)}
            load(back, checkpoint_id=self.path)
            self.assertTrue(torch.equal(back["x"], torch.full((4,), value)))

    def test_two_folders_are_two_runs(self):
        for name in ("first", "second"):
            save({"name": name}, checkpoint_id=f"{self.path}/{name}")
        for name in ("first", "second"):
            back = {"name": ""}
            load(back, checkpoint_id=f"{self.path}/{name}")
            self.assertEqual(back["name"], name)

    def test_an_empty_folder_has_nothing_to_load(self):
        with self.assertRaises(CheckpointException):
            load({"x": torch.zeros(4)}, checkpoint_id=self.path)

    def test_they_are_not_files(self):
        self.assertIn(FileSystemWriter.__module__, ("dcp_writer", "dcp_paths"))
        save({"x": torch.zeros(4)}, checkpoint_id=self.path)
        self.assertEqual(os.listdir(self.path), [])
