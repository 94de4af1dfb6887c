# SPDX-License-Identifier: Apache-2.0
"""A training that is killed at any batch and goes on from its newest checkpoint has had each sample once, with the data loaders of
torchdata and of datasets themselves. Another number of ranks goes on between two epochs, and is an error by name within one."""

import itertools

import pytest
import torch

import cairn
from cairn.torch import Checkpointer
from cairn.training import Loaders

torchdata = pytest.importorskip("torchdata")
from torchdata.stateful_dataloader import StatefulDataLoader  # noqa: E402
from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler  # noqa: E402

SAMPLES, EPOCHS = 24, 2


class Place:
    """How far a training has come, and what it has seen."""

    def __init__(self):
        self.epoch, self.step, self.seen = 0, 0, []

    def state_dict(self):
        return {"epoch": self.epoch, "step": self.step, "seen": list(self.seen)}

    def load_state_dict(self, state):
        self.epoch, self.step, self.seen = state["epoch"], state["step"], list(state["seen"])


def shuffled(workers):
    """A loader of torchdata with a sampler that shuffles, as rank 0 of one."""
    data = list(range(SAMPLES))
    sampler = StatefulDistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
    return StatefulDataLoader(data, batch_size=4, sampler=sampler, num_workers=workers), sampler.set_epoch


def distributed(workers):
    """The same with PyTorch's own sampler, which keeps no state: the loader counts."""
    data = list(range(SAMPLES))
    sampler = torch.utils.data.DistributedSampler(data, num_replicas=1, rank=0, shuffle=True, seed=3)
    return StatefulDataLoader(data, batch_size=4, sampler=sampler, num_workers=workers), sampler.set_epoch


def streamed(workers):
    """datasets' IterableDataset, in shards."""
    datasets = pytest.importorskip("datasets")
    data = datasets.Dataset.from_dict({"n": list(range(SAMPLES))}).to_iterable_dataset(num_shards=4).with_format("torch")
    return StatefulDataLoader(data, batch_size=4, num_workers=workers), data.set_epoch


def numbers(batch):
    return (batch["n"] if isinstance(batch, dict) else batch).tolist()


def train(url, make, workers, batches, every):
    """Goes on from the newest checkpoint for at most so many batches, and is gone, as if it were killed. What it has seen once the
    training is through, else None."""
    loader, set_epoch = make(workers)
    place = Place()
    with Checkpointer(url, {"loader": loader, "place": place}, on_error="raise") as ck:
        ck.restore()
        while place.epoch < EPOCHS:
            set_epoch(place.epoch)
            for batch in loader:
                if batches == 0:
                    return None
                batches -= 1
                place.seen += numbers(batch)
                place.step += 1
                if place.step % every == 0:
                    ck.save(place.step).durable.result(60)
            place.epoch += 1
        return place.seen


@pytest.mark.parametrize("make", [shuffled, distributed, streamed])
@pytest.mark.parametrize("workers", [0, 1])
def test_no_sample_is_lost_or_repeated_after_a_kill_at_any_batch(url, make, workers):
    whole = train(f"{url}-whole", make, workers, -1, 1)
    assert sorted(whole) == sorted([*range(SAMPLES)] * EPOCHS)
    moments = (1, 6, 11) if workers == 0 else (7,)
    for moment, every in itertools.product(moments, (1, 3) if workers == 0 else (2,)):
        run = f"{url}-{moment}-{every}"
        assert train(run, make, workers, moment, every) is None
        assert train(run, make, workers, -1, every) == whole, (moment, every)


def test_a_loader_without_a_state_is_refused_by_name(url):
    with pytest.raises(cairn.CairnError, match="DataLoader"):
        Checkpointer(url, {"loader": torch.utils.data.DataLoader([1, 2])}, on_error="raise")


def loaders_of(rank, world):
    data = list(range(SAMPLES))
    sampler = StatefulDistributedSampler(data, num_replicas=world, rank=rank, shuffle=False)
    return StatefulDataLoader(data, batch_size=2, sampler=sampler)


def split(rank, world, url, batches, save):
    """One rank's part: goes on, gives so many batches, and saves."""
    loader, state, seen = loaders_of(rank, world), Loaders(), []
    with Checkpointer(url, {"loaders": state.for_state()}, on_error="raise") as ck:
        try:
            ck.restore()
        except cairn.UnsupportedError as error:
            return str(error)
        if state.states:
            loader.load_state_dict(state.states[0])
        for batch in itertools.islice(loader, batches):
            seen += batch.tolist()
        if save:
            state.states, state.is_inside = [loader.state_dict()], len(seen) < SAMPLES // world
            ck.save(1).durable.result(60)
    return seen


def test_another_number_of_ranks_is_an_error_within_an_epoch_and_none_between_two(ranks2, url):
    halves = ranks2.run("test_loaders.split", url=f"{url}-within", batches=3, save=True)
    assert sorted(halves[0] + halves[1]) == sorted(range(12))
    assert "within an epoch of 2 ranks" in split(0, 1, f"{url}-within", None, False)
    rest = ranks2.run("test_loaders.split", url=f"{url}-within", batches=None, save=False)
    assert sorted(rest[0] + rest[1]) == list(range(12, SAMPLES))  # the same number goes on
    ranks2.run("test_loaders.split", url=f"{url}-between", batches=None, save=True)
    assert split(0, 1, f"{url}-between", None, False) == list(range(SAMPLES))
