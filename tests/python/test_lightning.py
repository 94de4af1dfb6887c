# SPDX-License-Identifier: Apache-2.0
"""A training of Lightning that is resumed reads and draws as an undisturbed one, also where the checkpoint was made at the end of an
epoch. One that begins anew supersedes what was there, and only what has become a checkpoint is the best one.
tests/reach runs it, whose packages have Lightning."""

import pytest
import torch

lightning = pytest.importorskip("lightning")
torchdata = pytest.importorskip("torchdata.stateful_dataloader")

import cairn.lightning  # noqa: E402
from conftest import lineage, steps_of  # noqa: E402

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


class Valued(Net):
    """Its parameter has one value throughout, and its losses are given."""

    def __init__(self, value, losses=(8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0), until=None):
        super().__init__(until)
        torch.nn.init.constant_(self.net.weight, value)
        self.losses = losses

    def training_step(self, batch, batch_idx):
        self.log("loss", self.losses[len(self.seen)])
        return super().training_step(batch, batch_idx) * 0

    def validation_step(self, batch, _):
        pass


def trainer_of(*checkpoints, **options):
    return lightning.Trainer(**{"max_epochs": 1, **options}, callbacks=list(checkpoints), accelerator="cpu",
                             logger=False, enable_progress_bar=False, enable_model_summary=False)


def every_step(url, **options):
    return cairn.lightning.ModelCheckpoint(url, every_n_train_steps=1, **options)


def stored(url, step):
    """The value of the model in a checkpoint."""
    state = {"lightning": {}}
    with cairn.torch.Checkpointer(url, state, read_only=True) as reader:
        reader.restore(step, only=["lightning"])
    return state["lightning"]["state_dict"]["net.weight"].item()


@pytest.mark.parametrize("is_new", [False, True], ids=["the same callback", "another callback"])
@pytest.mark.parametrize("until", [3, None], ids=["after an interruption", "after an end"])
def test_a_training_that_begins_anew_supersedes_the_one_before(is_new, until, url):
    attempt = cairn.new_attempt()

    def make():
        return cairn.lightning.ModelCheckpoint(url, monitor="loss", every_n_train_steps=2, save_top_k=1, cairn={"attempt": attempt})

    checkpoints = make()
    try:
        trainer_of(checkpoints).fit(Valued(1.0, losses=[0.1] * 4, until=until), loader("plain"))
    except InterruptedError:
        assert until
    checkpoints = make() if is_new else checkpoints
    trainer_of(checkpoints).fit(Valued(2.0), loader("plain"))
    assert lineage(url) == [4, 2] and [stored(url, step) for step in (4, 2)] == [2.0, 2.0]
    assert checkpoints.best_model_score == 5.0


def test_a_fit_that_goes_on_follows_the_one_before(url):
    checkpoints = every_step(url, monitor="loss", save_top_k=2, save_last=True)
    trainer = trainer_of(checkpoints)
    net = Valued(1.0, losses=[0.4, 0.3, 0.2, 0.1, 1.0, 1.0, 1.0, 1.0])
    trainer.fit(net, loader("plain"))
    trainer.validate(net, loader("plain"), ckpt_path="best", verbose=False)
    trainer.fit_loop.max_epochs = 2
    trainer.fit(net, loader("plain"))
    assert lineage(url) == [8, 7, 6, 5, 4, 3, 2, 1] and lineage(url, "kept") == [8, 4, 3]
    assert checkpoints.best_model_path == f"{url}/step-4"


@pytest.mark.parametrize("skipped, failed", [([2, 4], []), ([], [2, 4])], ids=["skipped", "failed"])
def test_only_a_checkpoint_is_the_best_or_the_last_one(skipped, failed, url, lose):
    """The best saves are lost: the good one before stays, until a good one behind them is better."""
    lose(skipped, failed)
    checkpoints = every_step(url, monitor="loss", save_last=True)
    trainer_of(checkpoints).fit(Valued(1.0, losses=[0.5, 0.1, 0.4, 0.2]), loader("plain"))
    assert (checkpoints.best_model_path, checkpoints.last_model_path) == (f"{url}/step-3",) * 2
    assert checkpoints.best_model_score == pytest.approx(0.4)
    assert lineage(url) == [3, 1] and lineage(url, "kept") == [3]
    trainer_of(checkpoints).fit(Valued(2.0), loader("plain"), ckpt_path=checkpoints.best_model_path)


def test_a_fit_that_goes_back_keeps_the_best_of_that_time(url):
    """A better one behind it had taken its tag."""
    trainer_of(every_step(url, monitor="loss")).fit(Valued(1.0, losses=[0.5, 0.4, 0.3, 0.2]), loader("shuffled"))
    assert lineage(url, "kept") == [4]
    checkpoints = every_step(url, monitor="loss", save_last=True)
    trainer_of(checkpoints).fit(Valued(1.0), loader("shuffled"), ckpt_path=f"{url}/step-2")
    assert checkpoints.best_model_path == f"{url}/step-2" and lineage(url, "kept") == [4, 2]


def test_a_server_that_has_moved_leaves_the_best_what_it_is(url, daemon, monkeypatch):
    trainer_of(every_step(url, monitor="loss", save_top_k=2)).fit(Valued(1.0, losses=[0.5, 0.1, 0.4, 0.2]), loader("shuffled"))
    monkeypatch.setenv("CAIRN_SERVER", f"unix:{daemon.socket}")
    there = f"cairn:///{url.partition('?run=')[2]}"
    checkpoints = every_step(there, monitor="loss", save_top_k=2)
    trainer_of(checkpoints, max_epochs=2).fit(Valued(2.0), loader("shuffled"), ckpt_path="last")
    assert checkpoints.best_model_path == f"{there}/step-2" and [*checkpoints.best_k_models] == [f"{there}/step-2", f"{there}/step-4"]
    assert lineage(url, "kept") == [4, 2]


def test_all_are_kept_where_all_are_wanted(url):
    checkpoints = every_step(url, save_top_k=-1, save_last=True)
    trainer_of(checkpoints).fit(Valued(1.0), loader("plain"))
    assert lineage(url, "kept") == [4, 3, 2, 1]


def interrupt(net, *checkpoints, **options):
    """Trains until the net's failure."""
    with pytest.raises(InterruptedError):
        trainer_of(*checkpoints, **options).fit(net, loader("shuffled"))


def test_each_of_two_callbacks_goes_on_in_its_run(url):
    def make():
        return every_step(f"{url}-a", save_last=True), every_step(f"{url}-b", monitor="loss", save_top_k=2)

    interrupt(Valued(1.0, until=3), *make())
    checkpoints = make()
    trainer, net = trainer_of(*checkpoints), Valued(2.0, losses=[1.0] * 4)
    trainer.fit(net, loader("shuffled"), ckpt_path="last")
    assert len(net.seen) == 1 and lineage(f"{url}-a") == [4, 3, 2, 1]
    assert lineage(f"{url}-b") == [4, 3, 2, 1] and checkpoints[1].best_model_path == f"{url}-b/step-4"
    trainer.validate(net, loader("plain"), ckpt_path=checkpoints[1].kth_best_model_path, verbose=False)


def test_a_resumed_step_is_not_saved_again_before_the_next_one(url):
    """Within gradient accumulation: a checkpoint holds no gradients."""
    interrupt(Valued(1.0, until=3), every_step(url), accumulate_grad_batches=2)
    trainer_of(every_step(url), accumulate_grad_batches=2).fit(Valued(1.0), loader("shuffled"), ckpt_path="last")
    assert steps_of(url) == [2, 1]
