# SPDX-License-Identifier: Apache-2.0
"""Ranks whose lists of tensors differ, and replicas that do, are saved whole or refused by name (cases for ranks.py), in
real processes."""

import array

import cairn
from cairn.client import DTYPES, REPLICATED

COUNT = 3000  # float32: less than one cell, which one of the ranks writes
WEIGHT = "weight." + "ä" * 100  # texts have its first 160 bytes, which end within a character


def _row(name, data, world):
    address, count = data.buffer_info()
    return (name, DTYPES["float32"], (count,), address, None, data, REPLICATED, None, None, None)


def _tensors(names, salt):
    return {name: array.array("f", [salt * 100 + len(name) + i % 7 for i in range(COUNT)]) for name in names}


def _save(client, world, step, names, **options):
    data = _tensors(names, step)
    client.set_tensors([_row(name, values, world) for name, values in data.items()])
    try:
        op = client.save(step, **options)
        op.result(60)
    except cairn.CairnError as error:
        return type(error).__name__, str(error)
    return "committed", op.warning or ""


def lists(rank, world, url, token):
    """Rank 1's list grows later than the others'; then it loses everything that was agreed."""
    told = []
    with cairn.Client(url, rank=rank, world_size=world, attempt=token) as client:
        late = rank == 1
        told.append(_save(client, world, 1, ["a", "b", "c"] if late else ["a", "b", "c", "d"]))
        told.append(_save(client, world, 2, ["a", "b", "c", "d", "e"] if late else ["a", "b", "c", "d"]))
        told.append(_save(client, world, 3, ["z"] if late else ["a", "b", "c", "d"]))
        told.append(_save(client, world, 4, ["z"] if late else ["a", "b", "c", "d"]))
        for step, names in ((2, "abcde"), (4, "abcdz")):
            data = {name: array.array("f", [0] * COUNT) for name in names}
            client.set_tensors([_row(name, values, world) for name, values in data.items()])
            client.restore(step).result(60)
            assert data == _tensors(names, step)
        client.set_tensors([_row("never", array.array("f", [0] * COUNT), world)])
        try:
            client.restore(4).result(60)
        except cairn.MissingTensorError as error:
            told.append(("MissingTensorError", str(error)))
    return told


def replicas(rank, world, url, token):
    """One bit of one element of rank 1's copy is another one."""
    told = []
    with cairn.Client(url, rank=rank, world_size=world, attempt=token) as client:
        for step, check, flipped in ((1, "fail", False), (2, "fail", True), (3, "warn", True), (4, "warn", False)):
            data = _tensors(["a", WEIGHT], 1)
            if flipped and rank == 1:
                raw = memoryview(data[WEIGHT]).cast("B")
                raw[17] ^= 1
            client.set_tensors([_row(name, values, world) for name, values in data.items()])
            try:
                op = client.save(step, check_replicas=check)
                op.result(60)
                told.append(("committed", op.warning or ""))
            except cairn.CairnError as error:
                told.append((type(error).__name__, str(error)))
    return told
