# SPDX-License-Identifier: Apache-2.0
"""Training goes on while the server is away (cases for ranks.py, which follow each other: the Checkpointer stays)."""

import logging
import time

import torch
import torch.distributed as dist

import cairn
from cairn.torch import Checkpointer

_kept: dict = {}


class Count(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def begin(rank, world, url, options):
    """Makes the Checkpointer; the error of a restore that no server answers."""
    torch.manual_seed(1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
    optimizer = torch.optim.AdamW(model.parameters())
    count = Count()
    logging.getLogger("cairn").addHandler(count)
    ck = Checkpointer(url, {"model": model, "optim": optimizer}, save_deadline=240, **options)
    _kept.update(ck=ck, model=model, optimizer=optimizer, count=count, step=0, handles=[])
    if options.get("when_down") != "train":
        return ck.restore() is None
    try:
        ck.restore()
    except cairn.CairnError as error:
        return error.text
    return ""


def _train():
    _kept["step"] += 1
    _kept["optimizer"].zero_grad()
    _kept["model"](torch.randn(4, 64)).pow(2).mean().backward()
    began = time.monotonic()
    _kept["optimizer"].step()  # of lazy saves: waits for the copy
    handle = _kept["ck"].save(_kept["step"])
    _kept["handles"].append(handle)
    return handle, time.monotonic() - began


def saved(rank, world, count):
    """Every save is durable."""
    for _ in range(count):
        _train()[0].durable.result(60)
    ck = _kept["ck"]
    return [ck.outage is None, ck.skipped_saves, ck.failed_saves]


def away(rank, world, count):
    """[the longest time that a step was held up, saves that this rank has skipped by now, the outage's text, warnings]"""
    longest = max(_train()[1] for _ in range(count))
    ck = _kept["ck"]
    outage = ck.outage
    return [longest, ck.skipped_saves, outage.error.text if outage else "", outage.skipped if outage else 0,
            len([line for line in _kept["count"].lines if "training goes on" in line])]


def back(rank, world):
    """Trains until a save is durable; [steps that are durable, steps that were skipped, failures]."""
    ck, good = _kept["ck"], False
    while not good:
        dist.barrier()
        try:
            _train()[0].durable.result(240)
            good = True
        except cairn.SkippedError:
            pass
    good = ck.outage is None
    ck.close()
    handles = _kept["handles"]
    _kept.clear()
    return [[h.step for h in handles if h.is_good()], [h.step for h in handles if h.skipped], good, ck.failed_saves]
