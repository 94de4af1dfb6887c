# SPDX-License-Identifier: Apache-2.0
"""One state, saved in any layout over ranks, restores into every other: FSDP2, HSDP, tensor parallel, FSDP1, ZeRO, DDP,
compiled, under activation checkpointing, plain; on 4 ranks, on 2, in one process. Also single DTensors."""

import itertools
import math

import pytest
import torch

import cairn.torch
from bed import assert_same
from cairn.torch.sharded import flat_boxes, product_boxes, shard_runs

pytestmark = pytest.mark.filterwarnings("ignore::cairn.torch.CairnWarning")
AT_4 = ["fsdp2", "hsdp", "fsdp2+tp", "tp", "fsdp1", "hybrid1", "zero"]
AT_2 = ["plain", "ddp", "compile", "ac", "fsdp2", "fsdp2+compile+ac", "ddp+compile", "fsdp1+ac", "zero", "tp"]


def restore_into(pool, targets, url, file, fresh):
    for i, target in enumerate(targets):
        pool.run("cases_layouts.restore", layout=target, url=url, path=file, fresh=(i % 2 == 0) == fresh)


def restore_here(url, file, layout="plain"):
    """Into this process alone."""
    import cases_layouts
    model, optimizer = cases_layouts.make(layout, 1, 3)
    with cairn.torch.Checkpointer(url, {"model": model, "optim": optimizer}, read_only=True) as ck:
        assert ck.restore().step == 2
    params, states = torch.load(file, weights_only=False)
    assert_same({**dict(model.named_parameters()), **dict(model.named_buffers())}, params)
    assert_same(dict(sorted((name, dict(optimizer.state[p])) for name, p in model.named_parameters())), states)


@pytest.mark.parametrize("layout", AT_4)
def test_saved_at_4_ranks(url, ranks4, ranks2, tmp_path, layout):
    """Into all layouts at 4 ranks, two at 2 ranks, and one process."""
    file = str(tmp_path / "state.pt")
    ranks4.run("cases_layouts.save", layout=layout, url=url, path=file)
    restore_into(ranks4, AT_4, url, file, True)
    restore_into(ranks2, ["fsdp2", "zero"], url, file, True)
    restore_here(url, file)


@pytest.mark.parametrize("layout", AT_2)
def test_torch_10_names_are_canonical(url, ranks2, ranks4, tmp_path, layout):
    """The matrix {plain, DDP, compile, FSDP2, activation checkpointing, ...}, each into each other; and at 4 ranks."""
    file = str(tmp_path / "state.pt")
    ranks2.run("cases_layouts.save", layout=layout, url=url, path=file)
    restore_into(ranks2, AT_2, url, file, False)
    restore_into(ranks4, ["fsdp2", "fsdp1"], url, file, False)
    restore_here(url, file)


@pytest.mark.parametrize("layout", ["fsdp2", "fsdp1", "zero"])
def test_lazy_snapshots_of_shards(url, ranks2, tmp_path, layout):
    file = str(tmp_path / "state.pt")
    ranks2.run("cases_layouts.save_lazily", layout=layout, url=url, path=file)
    restore_into(ranks2, ["ddp"], url, file, True)


# --- boxes ------------------------------------------------------------------------------------------------------

def cells(box):
    return itertools.product(*(range(o, o + n) for o, n in zip(box.offset, box.length)))


@pytest.mark.parametrize("shape", [(), (1,), (7,), (3, 4), (2, 3, 5), (1, 4, 1, 3)])
def test_flat_ranges_are_boxes(shape):
    """Every range of every shape: the boxes' elements, in order, are the range's; there are few boxes."""
    total = math.prod(shape)
    order = list(itertools.product(*(range(n) for n in shape)))
    for begin in range(total + 1):
        for end in range(begin, total + 1):
            boxes = flat_boxes(shape, begin, end)
            assert [cell for box in boxes for cell in cells(box)] == order[begin:end]
            assert len(boxes) <= max(1, 2 * len(shape) - 1)
            at = 0
            for box in boxes:
                assert box.start == (at,)
                at += math.prod(box.length)


def placements_of(*kinds):
    from torch.distributed.tensor import Shard
    from torch.distributed.tensor.placement_types import _StridedShard
    return [Shard(0) if factor == 1 else _StridedShard(0, split_factor=factor) for factor in kinds]


@pytest.mark.parametrize("factors", [(1,), (2,), (1, 1), (1, 2), (2, 1), (3, 2), (2, 2, 2), (1, 3, 2)])
def test_runs_are_those_of_pytorch(factors):
    """Intervals of every rank against PyTorch's own split of the indices, for all lengths to 30."""
    sizes = (2, 3, 2)[:len(factors)]
    for length in range(31):
        for at in itertools.product(*(range(n) for n in sizes)):
            part = torch.arange(length)
            for placement, count, idx in zip(placements_of(*factors), sizes, at):
                part = placement._split_tensor(part, count, with_padding=False)[0][idx]
            runs = shard_runs(length, list(zip(factors, sizes, at)))
            assert [i for start, n in runs for i in range(start, start + n)] == part.tolist()
            assert len(product_boxes([runs, [(0, 2)]])) == len(runs)


# --- DTensors -----------------------------------------------------------------------------------------------------

def test_torch_08_placements(url, ranks4, tmp_path):
    """HSDP on 2 x 2, strided shards, two dimensions at once, 1 to 9 rows, empty shards, other memory orders: the values
    are those of the whole tensors that they were cut from, in each layout again, and whole in one process."""
    ranks4.run("cases_dtensors.save", url=url)
    ranks4.run("cases_dtensors.restore", url=url)
    import cases_dtensors
    live = {"t": {name: torch.zeros_like(value) for name, value in cases_dtensors.values().items()}}
    with cairn.torch.Checkpointer(url, live, read_only=True) as ck:
        ck.restore()
    assert_same(live["t"], cases_dtensors.values())


def test_torch_08_what_no_rank_holds_is_refused(url, ranks4):
    ranks4.run("cases_dtensors.refused", url=url)


def test_torch_09_models_that_differ_are_refused_by_name(url, ranks2):
    ranks2.run("cases_dtensors.differ", url=url)


def test_dtensors_in_objects_and_gathered_parameters(url, ranks2):
    ranks2.run("cases_dtensors.objects", url=url)


def test_a_plain_state_beside_a_shard_is_refused(url, ranks2):
    ranks2.run("cases_dtensors.plain_state_beside_a_shard", url=url)
