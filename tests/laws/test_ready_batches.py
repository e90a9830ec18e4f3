"""Laws 1 to 4 for batches that a DataLoader collates: each step equals the plain step."""

from itertools import pairwise

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset

import surestep
from surestep.base.errors import ConfigError, DataError, Preempted, TaskError

SIZES = [5, 9, 2, 7, 7, 3, 8]
TOKENS = -100


def ready_batches(seed=0):
    """Return batches of several sizes, with some ignored targets."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for size in SIZES:
        y = torch.randint(3, (size,), generator=generator)
        y[::4] = TOKENS
        found.append((torch.randn(size, 10, generator=generator), y))
    return found


class Ready(Dataset):
    """Map-style, with noise on each batch."""

    def __init__(self, noise=0.0):
        self.found, self.noise = ready_batches(), noise

    def __len__(self):
        return len(self.found)

    def __getitem__(self, index):
        x, y = self.found[index]
        return x + self.noise * torch.randn(x.shape), y


class ReadyStream(IterableDataset):
    def __init__(self, noise=0.0):
        self.found, self.noise = ready_batches(), noise

    def __iter__(self):
        for x, y in self.found:
            yield x + self.noise * torch.randn(x.shape), y


def net(dropout=0.0):
    torch.manual_seed(1)
    hidden = nn.Sequential(nn.Linear(10, 16), nn.BatchNorm1d(16), nn.Dropout(dropout))
    return nn.Sequential(hidden, nn.ReLU(), nn.Linear(16, 3))


def config(**options):
    optim = surestep.Optim(name="sgd", lr=0.1, weight_decay=0.0)
    usual = {"max_steps": 14, "max_grad_norm": "off", "logging": {"progress": "quiet"}}
    return surestep.Config(**{**usual, "optim": optim, **options})


def task(data, **parts):
    usual = {"model": net(), "loss": nn.CrossEntropyLoss(), "train": data, "batched": True}
    return surestep.Task(**{**usual, **parts})


def fit(folder, made, *, callbacks=(), **options):
    surestep.Trainer(made, config(**options), run=folder, callbacks=callbacks).fit()
    return made.model


def plain_epoch(model, optimizer, per_step):
    """Train a plain loop: the mean over the targets of each step that are not ignored."""
    batches = ready_batches()
    for first in range(0, len(batches), per_step):
        step = batches[first : first + per_step]
        items = sum(int((y != TOKENS).sum()) for _, y in step)
        optimizer.zero_grad()
        for x, y in step:
            (nn.functional.cross_entropy(model(x), y, reduction="sum") / items).backward()
        optimizer.step()


def distance(one, other):
    a, b = (
        torch.cat([parameter.flatten() for parameter in net.parameters()]) for net in (one, other)
    )
    return float((a - b).norm().detach() / a.norm().detach())


def same(one, other):
    pairs = zip(one.state_dict().values(), other.state_dict().values(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", [Ready, ReadyStream, lambda: DataLoader(Ready(), batch_size=None)])
@pytest.mark.parametrize("per_step", [1, 3])
def test_step_equals_the_plain_step_over_ready_batches(tmp_path, kind, per_step):
    steps_per_epoch = -(-len(SIZES) // per_step)
    options = {"max_steps": 2 * steps_per_epoch}
    if kind is Ready:
        options["data"] = {"shuffle": False}
    if per_step > 1:
        options["batch_size"] = per_step
    trained, expected = fit(tmp_path / "run", task(kind()), **options), net()
    optimizer = torch.optim.SGD(expected.parameters(), lr=0.1)
    for _ in range(2):
        plain_epoch(expected, optimizer, per_step)
    assert distance(trained, expected) < 1e-6


def test_shuffling_uses_every_ready_batch_once_an_epoch(tmp_path):
    seen = []

    class Sizes(surestep.Callback):
        def on_batch(self, state, batch):
            (micro,) = batch.micro_batches
            seen.append(len(micro.targets))

    fit(tmp_path / "run", task(Ready()), callbacks=[Sizes()])
    first, second = seen[:7], seen[7:]
    assert sorted(first) == sorted(second) == sorted(SIZES)
    assert first != second


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Ready, ReadyStream])
def test_run_over_ready_batches_resumes_bit_for_bit(tmp_path, kind, workers):
    class PauseAtFive(surestep.Callback):
        def on_step(self, state, result):
            return surestep.Request.PAUSE if result.step == 5 else None

    def made():
        return task(kind(noise=0.3), model=net(dropout=0.2))

    options = {"data": {"num_workers": workers if kind is Ready else 0}}
    whole = fit(tmp_path / "whole", made(), **options)
    with pytest.raises(Preempted):
        fit(tmp_path / "interrupted", made(), callbacks=[PauseAtFive()], **options)
    assert same(fit(tmp_path / "interrupted", made()), whole)


def test_evaluation_is_the_mean_over_all_rows(tmp_path):
    def accuracy(logits, y):
        return (logits.argmax(1) == y)[y != TOKENS].float().mean()

    clean = [(x, y.clamp(min=0)) for x, y in ready_batches()]
    made = task(Ready(), val=clean, metrics={"accuracy": accuracy})
    run = surestep.Trainer(made, config(max_steps=2), run=tmp_path / "run").fit()
    model = made.model.eval().requires_grad_(False)
    x, y = (torch.cat(tensors) for tensors in zip(*clean, strict=True))
    loss, right = nn.functional.cross_entropy(model(x), y), accuracy(model(x), y)
    assert run.last.metrics["val/loss"] == pytest.approx(float(loss), rel=1e-6)
    assert run.last.metrics["val/accuracy"] == pytest.approx(float(right), rel=1e-6)


def test_predictions_have_one_row_per_row_of_the_batches(tmp_path):
    made = task(Ready(), test=Ready())
    trainer = surestep.Trainer(made, config(max_steps=2), run=tmp_path / "run")
    trainer.fit()
    with surestep.prepare(made, config(max_steps=2), run=tmp_path / "run") as session:
        found = session.predict("test")
    assert found.samples == sum(SIZES)
    index = found.arrays["index"].tolist()
    assert [index.count(batch_index) for batch_index in range(len(SIZES))] == SIZES
    assert all(a <= b for a, b in pairwise(index))


def test_mean_over_ignored_targets_is_detected_in_a_ready_batch(tmp_path):
    def mean(outputs, targets):
        return nn.functional.cross_entropy(outputs, targets, ignore_index=TOKENS)

    with pytest.raises(TaskError, match="items"):
        fit(tmp_path / "run", task(Ready(), loss=mean))


REJECTED = {
    "micro-batch": (
        lambda: (task(Ready()), {"micro_batch_size": 2}),
        ConfigError,
        "micro_batch_size=2, but the data comes in batches",
    ),
    "evaluation": (
        lambda: (task(Ready(), val=Ready()), {"validation": {"batch_size": 4}}),
        ConfigError,
        "validation.batch_size=4, but the data comes in batches",
    ),
    "loader that makes batches": (
        lambda: (task(DataLoader(Ready(), batch_size=2)), {}),
        DataError,
        "The DataLoader of the train data makes batches, and Task\\(batched=True\\)",
    ),
    "loader that makes none": (
        lambda: (task(DataLoader(Ready(), batch_size=None), batched=False), {}),
        DataError,
        "If its dataset yields batches, pass Task\\(batched=True\\)",
    ),
    "collate_fn": (
        lambda: (task(Ready(), collate_fn=list), {}),
        TaskError,
        "so collate_fn would never be called",
    ),
}


@pytest.mark.parametrize("case", REJECTED)
def test_parts_that_conflict_with_ready_batches_are_rejected(tmp_path, case):
    make, kind, says = REJECTED[case]

    def prepared():
        made, options = make()
        surestep.prepare(made, config(**options), run=tmp_path / "run")

    with pytest.raises(kind, match=says):
        prepared()


@pytest.mark.parametrize("kind", [Dataset, IterableDataset])
def test_undeclared_ready_batches_are_named_in_the_error(tmp_path, kind):
    even = [(torch.randn(8, 10), torch.randint(3, (8,))) for _ in range(6)]

    class Even(kind):
        def __len__(self):
            return len(even)

        def __getitem__(self, index):
            return even[index]

        def __iter__(self):
            return iter(even)

    with pytest.raises(TaskError, match=r"is a batch already, pass Task\(batched=True\)"):
        surestep.prepare(task(Even(), batched=False), config(batch_size=4), run=tmp_path / "run")


def test_batch_size_that_counts_samples_causes_a_warning(tmp_path):
    even = [(torch.randn(8, 10), torch.randint(3, (8,))) for _ in range(16)]
    with pytest.warns(UserWarning, match="takes 8 batches of the data for each step"):
        surestep.prepare(task(even), config(batch_size=8), run=tmp_path / "run").close()
