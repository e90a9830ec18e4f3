"""The same samples are in the training data and in the validation data.

The model has seen their answers, so the metric shows what it remembers, and not how it does on new
data. It looks good until the model is used. Usual causes are a table that has rows twice,
oversampling or augmentation before the split, and several pictures of one object.

Samples are compared by a hash, and then by their distance: numbers and images to the nearest sample
of the training data, texts by the tokens that they share. Before training, samples of both sets are
read for about a second, so a share is an estimate; `--doctor.check-data all` reads all. Data whose
rows are equal by chance, such as rows of a few categories, is not compared.

Ignore it if you validate on the training data on purpose, such as to see whether a model can learn
a few samples.

Source: https://arxiv.org/abs/2207.07048
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark, list_names

if TYPE_CHECKING:
    from surestep.doctor.data_case import DataCase

SEVERITY = "warning"
_FEWEST = 2  # samples in both
_SHARE = 0.01  # of a set, below which nothing is reported
_SHOWN = 20  # pairs in the evidence
FIX = (
    "Hold samples out, such as torch.utils.data.random_split(data, [0.9, 0.1]): a metric on "
    "training data does not show how the model does on new data."
)


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find sets with samples of the training data."""
    from surestep.doctor.duplicates import find_duplicates, is_same

    is_ready = data.loop.loader.is_ready
    equal = [split.name for split in data.others if is_same(data.train, split)]
    if same := [*data.same, *equal]:
        yield Remark(
            f"The {_describe(same)} has the same {data.train.count} "
            f"{'batches' if is_ready else 'samples'} as the training data.",
            {"parts": same, "samples": data.train.count},
        )
    for split in data.others:
        found = None if split.name in same else find_duplicates(data.train, split)
        if found is None or len(found.pairs) < _FEWEST or found.share < _SHARE:
            continue
        row, of_train = found.pairs[0]
        how = "is also" if found.is_exact else "is nearly equal to a sample"
        yield Remark(
            f"About {found.share:.0%} of the {_describe([split.name])} {how} in the training data: "
            f"of {len(split.rows)} samples that were read, {len(found.pairs)}, such as sample "
            f"{row} there and sample {of_train} here.",
            {
                "part": split.name,
                "share": found.share,
                "read": len(split.rows),
                "exact": found.is_exact,
                "pairs": [list(pair) for pair in found.pairs[:_SHOWN]],
            },
        )


def _describe(names: list[str]) -> str:
    return f"{'test' if names == ['test'] else 'validation'} data {list_names(names)}"


def bad_same_tensors() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    data = (x, x.sum(1, keepdim=True))
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data, val=data)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_copy() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    val = (x.clone(), y.clone())
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y), val=val)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_same_dataset() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    val = {"old": torch.utils.data.Subset(data, range(64)), "new": data}
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=data, val=val)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_oversampled_before_the_split() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4).repeat(2, 1)
    order = torch.randperm(128)
    x, y = x[order], x[order].sum(1, keepdim=True)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:96], y[:96]), val=(x[96:], y[96:]))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_augmented_before_the_split() -> None:
    import torch

    import surestep

    images = torch.rand(40, 3, 8, 8).repeat(2, 1, 1, 1)
    images += 1e-4 * torch.randn_like(images)
    labels = torch.arange(2).repeat(40)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(192, 2))
    train, val = (images[:60], labels[:60]), (images[60:], labels[60:])
    task = surestep.Task(net, "multiclass", train=train, val=val)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_texts_with_a_changed_word() -> None:
    import torch

    import surestep

    texts = torch.randint(2, 500, (40, 120)).repeat(2, 1)
    texts[40:, 7] = 1
    labels = torch.arange(2).repeat(40)
    net = torch.nn.Sequential(
        torch.nn.Embedding(500, 4), torch.nn.Flatten(), torch.nn.Linear(480, 2)
    )
    train, val = (texts[:50], labels[:50]), (texts[50:], labels[50:])
    task = surestep.Task(net, "multiclass", train=train, val=val)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_categories() -> None:
    import torch

    import surestep

    x = torch.randint(3, (96, 4)).float()  # 81 possible rows
    y = x.sum(1, keepdim=True)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:64], y[:64]), val=(x[64:], y[64:]))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_augmented_when_read():
    import torch

    import surestep

    class Noisy(torch.utils.data.Dataset):
        def __init__(self, rows):
            self.rows = rows

        def __len__(self):
            return len(self.rows)

        def __getitem__(self, index):
            row = self.rows[index] + 0.1 * torch.randn(4)
            return row, row.sum(0, keepdim=True)

    rows = torch.randn(96, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=Noisy(rows[:64]), val=Noisy(rows[64:]))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_split() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    y = x.sum(1, keepdim=True)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x[:48], y[:48]), val=(x[48:], y[48:]))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_random_split() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    data = torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    train, val = torch.utils.data.random_split(data, [48, 16])
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=train, val=val)
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_no_validation() -> None:
    import torch

    import surestep

    x = torch.randn(64, 4)
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, x.sum(1, keepdim=True)))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
