"""BatchNorm trains on a last batch of one or two samples.

If the number of samples is not a multiple of the batch size, the last batch of an epoch has the
rest. With one value per channel BatchNorm cannot compute a variance, and torch raises an error.
With one image or with two samples it computes one of so few values that the outputs and the
running statistics are noise.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.BatchNorm1d.html
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark, list_names

if TYPE_CHECKING:
    from surestep.doctor.data_case import DataCase

SEVERITY = "warning"
FIX = "Set data.drop_last=True, or another batch_size."
_FEW = 2  # samples


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find BatchNorm layers that train on a last micro-batch of one or two samples."""
    from surestep.engine.state.average import BATCH_NORM

    plan, loader, model = data.plan, data.loop.loader, data.loop.state.model
    layout = loader.layout
    if loader.is_ready or layout.samples is None or layout.ranks > 1 or layout.drop_last:
        return
    if layout.limit is not None or layout.samples <= layout.batch_size:
        return
    rest = layout.samples % layout.batch_size % layout.micro_batch_size
    norms = [
        name
        for name, module in model.named_modules()
        if isinstance(module, BATCH_NORM) and module.training and module not in data.task.keep_eval
    ]
    if 0 < rest <= min(_FEW, layout.micro_batch_size - 1) and norms and plan.steps_per_epoch:
        yield Remark(
            f"The last batch of an epoch has {layout.samples % layout.batch_size} of "
            f"{layout.samples} samples, with batch_size={layout.batch_size}, so the BatchNorm "
            f"layers {list_names(norms)} train on {rest} of them.",
            {"samples": layout.samples, "rest": rest, "layers": norms},
        )


def bad_one_image():
    import torch

    import surestep

    x, y = torch.randn(33, 3, 4, 4), torch.arange(33) % 3
    net = torch.nn.Sequential(
        torch.nn.Conv2d(3, 4, 3),
        torch.nn.BatchNorm2d(4),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_two_rows():
    import torch

    import surestep

    x, y = torch.randn(34, 4), torch.arange(34) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def bad_micro_batch():
    import torch

    import surestep

    x, y = torch.randn(38, 4), torch.arange(38) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=16, micro_batch_size=4)
    surestep.Trainer(task, config, run="run").fit()


def good_dropped():
    import torch

    import surestep

    x, y = torch.randn(33, 4), torch.arange(33) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8, data=surestep.Data(drop_last=True))
    surestep.Trainer(task, config, run="run").fit()


def good_multiple():
    import torch

    import surestep

    x, y = torch.randn(40, 4), torch.arange(40) % 3
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_without_batch_norm():
    import torch

    import surestep

    x, y = torch.randn(33, 4), torch.arange(33) % 3
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
