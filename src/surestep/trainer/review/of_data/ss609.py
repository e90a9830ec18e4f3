"""SS609: inputs that are not finite, vary too little or have different scales."""

from collections.abc import Iterator

from torch import nn

from surestep.doctor.limits import FEWEST_ROWS, OTHER_SCALE, WIDEST_TABLE
from surestep.doctor.problem import Problem
from surestep.trainer.review.data_case import DataCase

_SHOWN = 6  # columns in a message


def find(data: DataCase) -> Iterator[Problem]:
    """Find samples with NaN, columns with one value, and columns of different scales."""
    for split in (data.train, *data.others):
        bad: set[int] = set()
        for tensor in split.inputs or ():
            if tensor.is_floating_point():
                finite = tensor.isfinite().reshape(len(tensor), -1).all(1)
                bad |= {split.rows[row] for row in (~finite).nonzero().flatten().tolist()}
        if bad:
            samples = sorted(bad)
            yield Problem(
                f"{len(samples)} of {len(split.rows)} samples of the {split.name} data that were "
                f"read have inputs that are NaN or infinite, such as sample {samples[0]}.",
                {"part": split.name, "samples": samples[:100]},
                "Fill in or leave out what is missing, or set exclude_samples.",
            )
    yield from _inspect_columns(data)


def _inspect_columns(data: DataCase) -> Iterator[Problem]:
    inputs = data.train.inputs
    if inputs is None or len(inputs) != 1 or not inputs[0].is_floating_point():
        return
    if data.train.share is None:  # the first samples may vary less than all do
        return
    (table,) = inputs
    if table.dim() != 2 or not 1 < table.shape[1] <= WIDEST_TABLE or len(table) < FEWEST_ROWS:
        return
    table = table.double()
    spread = table[table.isfinite().all(1)].std(0)
    constant = (spread == 0).nonzero().flatten().tolist()
    if constant and data.train.is_complete:
        shown = ", ".join(map(str, constant[:_SHOWN])) + (" ..." if constant[_SHOWN:] else "")
        yield Problem(
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
        if large > OTHER_SCALE * small:
            columns = [
                int((spread == value).nonzero()[0]) for value in (varied.max(), varied.min())
            ]
            yield Problem(
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
