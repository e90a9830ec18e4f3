"""The target is one of the inputs.

The model copies it, and the loss falls to nearly 0 at once. With new data, in which the answer is
not known, the column is missing or wrong. Usual causes are a table whose label column was not
removed from the features, and a language model whose targets were not shifted by a token.

A target that is the complete input, as of an autoencoder, is not reported.

Source: https://arxiv.org/abs/2207.07048
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark

if TYPE_CHECKING:
    from surestep.doctor.data_case import DataCase

SEVERITY = "warning"
FIX = "Remove the column from the inputs; of tokens, let the target be the next one."
_FEWEST = 50  # samples
_FEWEST_OTHERS = 10  # samples whose target is not the most frequent one


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find a column of the inputs that is the target, and tokens that are their own targets."""
    train = data.train
    if train.inputs is None or train.targets is None or data.loop.loader.loss.kind == "model":
        return
    values, table = train.values, train.features
    if values is not None and table is not None and table.dim() == 2 and table.shape[1] > 1:
        others = len(values) - int((values == values.mode().values).sum())
        is_varied = len(values) >= _FEWEST and others >= _FEWEST_OTHERS
        equal = (table == values.float()[:, None]).all(0).nonzero().flatten().tolist()
        if is_varied and equal and train.inputs[0].dim() == 2:
            yield Remark(
                f"Column {equal[0]} of the inputs is the target, in all {len(values)} samples that "
                "were read.",
                {"columns": equal, "samples": len(values)},
            )
    if len(train.targets) == 1 and not train.targets[0].is_floating_point():
        (targets,) = train.targets
        for tensor in train.inputs:
            is_tokens = targets.dim() == 2 and targets.shape[1] > 1 and len(targets) >= 2
            if is_tokens and tensor.shape == targets.shape and bool((tensor == targets).all()):
                yield Remark(
                    f"The targets of all {len(targets)} samples that were read are the tokens of "
                    "their own inputs: the model is to predict what it is given.",
                    {"samples": len(targets)},
                    "Shift them by one: inputs tokens[:, :-1], targets tokens[:, 1:].",
                )


def bad_label_in_the_table():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[:, 2] = y
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_regression():
    import torch

    import surestep

    x = torch.randn(60, 4)
    y = x[:, 3:]
    task = surestep.Task(torch.nn.Linear(4, 1), "mse", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_tokens_not_shifted():
    import torch

    import surestep

    x = torch.randint(30, (60, 8))
    y = x
    net = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30))
    task = surestep.Task(net, surestep.losses.multiclass(class_dim=-1), train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_table():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_autoencoder():
    import torch

    import surestep

    x = torch.randn(60, 4)
    y = x
    task = surestep.Task(torch.nn.Linear(4, 4), "mse", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_tokens_shifted():
    import torch

    import surestep

    tokens = torch.randint(30, (60, 9))
    x, y = tokens[:, :-1], tokens[:, 1:]
    net = torch.nn.Sequential(torch.nn.Embedding(30, 8), torch.nn.Linear(8, 30))
    task = surestep.Task(net, surestep.losses.multiclass(class_dim=-1), train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_rare_class_and_rare_column():
    import torch

    import surestep

    x, y = torch.zeros(60, 4), torch.zeros(60, dtype=torch.long)
    x[7, 1] = 1
    y[7] = 1  # by chance, as with many rare columns
    x[::2, 0] = 1
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(
        max_steps=3,
        batch_size=8,
        doctor=surestep.Doctor(ignore=("SS610=it is rare", "SS609=rare columns")),
    )
    surestep.Trainer(task, config, run="run").fit()
