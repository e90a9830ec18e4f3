"""Where samples come from, as the Task says: their groups, such as patients, and their times."""

from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor

from surestep.base.errors import DataError
from surestep.engine.data.dataset import count_samples, unwrap_loader
from surestep.engine.data.stream import is_stream
from surestep.engine.task.task import Task


def check_origins(task: Task) -> None:
    """Check that `groups` and `times` have an entry for each sample of the data that they name.

    Raises:
        DataError: they name data that the Task does not have, or a stream, or they are too many or
            too few.
    """
    test = {} if task.test is None else {"test": task.test}
    parts = {"train": task.train, **task.val_sets(), **test}
    for option in ("groups", "times"):
        for part, entries in getattr(task, option).items():
            if part not in parts:
                raise DataError(
                    f"{option} names {part!r}, which is not data of the Task: {list(parts)}."
                )
            data = unwrap_loader(parts[part])
            count = None if is_stream(data) else count_samples(data, part)
            if count is None:
                raise DataError(
                    f"{option} names {part!r}, which is a stream. Only the samples of a dataset "
                    f"have positions: leave it out of {option}."
                )
            if len(entries) != count:
                raise DataError(
                    f"{option}[{part!r}] has {len(entries)} entries, and the data {count} samples. "
                    "Give one for each sample, in the order of the data."
                )


def list_entries(entries: Collection[Any], rows: Sequence[int] | None = None) -> list[Any]:
    """Return the groups or times of samples, as values that can be compared and hashed.

    Args:
        entries: one for each sample: a list, an array, a column or a tensor.
        rows: indices of the samples; None for all.
    """
    values = entries.tolist() if isinstance(entries, Tensor) else list(entries)
    return values if rows is None else [values[row] for row in rows]
