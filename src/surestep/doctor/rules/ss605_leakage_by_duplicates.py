"""The same samples are in the training data and in the validation data.

The model has seen their answers, so the metric shows what it remembers, and not how it does on new
data. It looks good until the model is used.

Ignore it if you validate on the training data on purpose, such as to see whether a model can learn
a few samples.

Source: https://arxiv.org/abs/2207.07048
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from surestep.doctor.remark import Remark, list_names

if TYPE_CHECKING:
    from surestep.doctor.case import Case

SEVERITY = "warning"
FIX = (
    "Hold samples out, such as torch.utils.data.random_split(data, [0.9, 0.1]): a metric on "
    "training data does not show how the model does on new data."
)


def review(case: Case) -> Iterator[Remark]:
    """Find validation sets with the samples of training, by a digest of some of them."""
    from surestep.engine.data.dataset import count_samples
    from surestep.engine.data.make_source import dataset_fingerprint
    from surestep.engine.data.stream import is_stream

    task, plan = case.task, case.loop.plan
    if not case.is_finished or is_stream(task.train):
        return
    same = [name for name, data in task.val_sets().items() if _same_samples(case, data, name)]
    if not same:
        return
    count = count_samples(task.train, "train")
    digest = dataset_fingerprint(task.train, "train", task=task, plan=plan)
    yield Remark(
        f"The validation data {list_names(same)} has the same {count} "
        f"{'batches' if case.loop.loader.is_ready else 'samples'} as the training data.",
        {"parts": same, "samples": count, "digest": digest},
    )


def _same_samples(case: Case, data: Any, name: str) -> bool:
    """Compare a set with the training data; a dataset that draws at random is never the same."""
    from surestep.engine.data.dataset import count_samples
    from surestep.engine.data.make_source import dataset_fingerprint
    from surestep.engine.data.stream import is_stream

    task, plan = case.task, case.loop.plan
    if data is task.train:
        return True
    if is_stream(data) or count_samples(data, name) != count_samples(task.train, "train"):
        return False
    digest = dataset_fingerprint(data, name, task=task, plan=plan)
    train = dataset_fingerprint(task.train, "train", task=task, plan=plan)
    return digest is not None and digest == train


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
