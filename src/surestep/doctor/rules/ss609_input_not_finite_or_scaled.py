"""Inputs are not finite, are constant, or have very different scales.

A NaN or an infinite number in a sample makes the loss of its batch NaN. A column with one value
holds no information. If one column is thousands of times larger than another one, a step that
suits the one is too large or too small for the other, so training is slow. To standardize the
columns, with the statistics of the training data, mends it.

Columns are reported of tables of up to 64 columns only, and scales if the model does not begin with
a normalization.

Source: https://developers.google.com/machine-learning/crash-course/numerical-data/normalization
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from surestep.doctor.remark import Remark

if TYPE_CHECKING:
    from torch import nn

    from surestep.doctor.data_case import DataCase

SEVERITY = "warning"
FIX = "Standardize the columns: subtract their mean and divide by their standard deviation."
_TIMES = 1e4  # the largest standard deviation by the smallest
_FEWEST = 50  # samples
_WIDEST = 64  # columns of a table: wider ones are often flat images, or counts of words
_SHOWN = 6  # columns in a message


def inspect(data: DataCase) -> Iterator[Remark]:
    """Find samples with NaN, columns with one value, and columns of different scales."""
    for split in (data.train, *data.others):
        bad: set[int] = set()
        for tensor in split.inputs or ():
            if tensor.is_floating_point():
                finite = tensor.isfinite().reshape(len(tensor), -1).all(1)
                bad |= {split.rows[row] for row in (~finite).nonzero().flatten().tolist()}
        if bad:
            samples = sorted(bad)
            yield Remark(
                f"{len(samples)} of {len(split.rows)} samples of the {split.name} data that were "
                f"read have inputs that are NaN or infinite, such as sample {samples[0]}.",
                {"part": split.name, "samples": samples[:100]},
                "Fill in or leave out what is missing, or set exclude_samples.",
            )
    yield from _inspect_columns(data)


def _inspect_columns(data: DataCase) -> Iterator[Remark]:
    inputs = data.train.inputs
    if inputs is None or len(inputs) != 1 or not inputs[0].is_floating_point():
        return
    (table,) = inputs
    if table.dim() != 2 or not 1 < table.shape[1] <= _WIDEST or len(table) < _FEWEST:
        return
    table = table.double()
    spread = table[table.isfinite().all(1)].std(0)
    constant = (spread == 0).nonzero().flatten().tolist()
    if constant and data.train.is_complete:
        shown = ", ".join(map(str, constant[:_SHOWN])) + (" ..." if constant[_SHOWN:] else "")
        yield Remark(
            f"{len(constant)} of {table.shape[1]} columns of the inputs have one value in all "
            f"{len(table)} samples: {shown}.",
            {"columns": constant[:100]},
            "Check that they are read from the right columns; if they are, leave them out.",
            "info",
        )
    is_binary = ((table == table.amin(0)) | (table == table.amax(0))).all(0)
    varied = spread[(spread > 0) & ~is_binary]
    if len(varied) > 1 and not _begins_with_norm(data.loop.state.model):
        large, small = float(varied.max()), float(varied.min())
        if large > _TIMES * small:
            columns = [
                int((spread == value).nonzero()[0]) for value in (varied.max(), varied.min())
            ]
            yield Remark(
                f"Column {columns[0]} of the inputs has a standard deviation of {large:.3g}, and "
                f"column {columns[1]} of {small:.3g}.",
                {"largest": large, "smallest": small, "columns": columns},
                severity="info",
            )


def _begins_with_norm(model: nn.Module) -> bool:
    """Return whether the first layer of a model with parameters or buffers normalizes."""
    for module in model.modules():
        if not list(module.children()) and module.state_dict():
            return "Norm" in type(module).__name__ or "Scale" in type(module).__name__
    return False


def bad_not_a_number():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[50, 2] = torch.nan
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=2, batch_size=8, data=surestep.Data(shuffle=False))
    surestep.Trainer(task, config, run="run").fit()


def bad_scales():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[:, 1] *= 1e-6  # a column in other units
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=2, batch_size=8, max_grad_norm="off")
    surestep.Trainer(task, config, run="run").fit()


def bad_constant_column():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[:, 3] = 7.0
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_standardized():
    import torch

    import surestep

    x, y = 1e6 * torch.randn(60, 4), torch.arange(60) % 3
    x = (x - x.mean(0)) / x.std(0)
    task = surestep.Task(torch.nn.Linear(4, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_normalized_by_the_model():
    import torch

    import surestep

    x, y = torch.randn(60, 4), torch.arange(60) % 3
    x[:, 1] *= 1e-6
    net = torch.nn.Sequential(torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_images():
    import torch

    import surestep

    x, y = torch.rand(60, 1, 4, 4), torch.arange(60) % 3
    x[:, :, 0] = 0  # the border
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(16, 3))
    task = surestep.Task(net, "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()


def good_flat_images():
    import torch

    import surestep

    images, y = torch.rand(60, 12, 12), torch.arange(60) % 3
    images[:, 0] = 0  # the border
    images[:, 1] *= 1e-6
    x = images.flatten(1)
    task = surestep.Task(torch.nn.Linear(144, 3), "multiclass", train=(x, y))
    config = surestep.Config(max_steps=3, batch_size=8)
    surestep.Trainer(task, config, run="run").fit()
