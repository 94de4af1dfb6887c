# SPDX-License-Identifier: Apache-2.0
"""A training of Lightning that is resumed reads and draws as an undisturbed one, also where the checkpoint was made at the end of an
epoch. tests/reach runs it, whose packages have Lightning."""

import pytest
import torch

lightning = pytest.importorskip("lightning")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")

import cairn.lightning  # noqa: E402

BATCHES = 4  # of an epoch


class Net(lightning.LightningModule):
    """Notes what its steps have read and drawn."""

    def __init__(self, until):
        super().__init__()
        self.net, self.until, self.seen = torch.nn.Linear(1, 1), until, []

    def training_step(self, batch, _):
        if len(self.seen) == self.until:
            raise InterruptedError
        self.seen.append((batch[0].flatten().tolist(), torch.rand(1).item()))
        return self.net(batch[0]).sum()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.1)


def loader(kind):
    data = torch.utils.data.TensorDataset(torch.arange(8.0).view(8, 1))
    if kind == "plain":
        return torch.utils.data.DataLoader(data, batch_size=2, shuffle=True)
    if kind == "shuffled":
        return torchdata.StatefulDataLoader(data, batch_size=2, shuffle=True)
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    return torchdata.StatefulDataLoader(data, batch_size=2, sampler=StatefulDistributedSampler(data, 1, 0, shuffle=True, seed=7))


def train(kind, url, saves, until=None):
    """Trains three epochs, or until a failure. Returns what the steps have read and drawn."""
    lightning.seed_everything(7)
    net = Net(until)
    trainer = lightning.Trainer(max_epochs=3, callbacks=[cairn.lightning.ModelCheckpoint(url, save_last=True, **saves)], accelerator="cpu",
                                logger=False, enable_progress_bar=False, enable_model_summary=False, use_distributed_sampler=False)
    try:
        trainer.fit(net, loader(kind), ckpt_path="last")
    except InterruptedError:
        assert len(net.seen) == until
    return net.seen


@pytest.mark.parametrize("kind", ["plain", "shuffled", "distributed"])
@pytest.mark.parametrize("saves, at", [({"every_n_train_steps": 4}, 4), ({"every_n_epochs": 1}, 4), ({"every_n_train_steps": 3}, 3)],
                         ids=["at the last batch", "at the end of an epoch", "within an epoch"])
def test_a_resumed_training_reads_and_draws_as_an_undisturbed_one(kind, saves, at, url):
    if (kind, at) == ("plain", 3):
        pytest.skip("a DataLoader without a state begins an epoch anew")
    whole = train(kind, f"{url}-whole", saves)
    assert len(whole) == 3 * BATCHES
    train(kind, url, saves, until=5)
    assert train(kind, url, saves) == whole[at:]
