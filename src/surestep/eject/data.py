"""The data of an ejected script: tensors in memory, or samples that a Dataset loads."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset, IterableDataset, default_collate

from surestep.base.errors import RecipeError
from surestep.eject.choices import Choices, flags_of
from surestep.engine.data.sources import batched_getter, find_with_epoch
from surestep.engine.own_generators import OwnGenerators
from surestep.engine.rng import preserve_rng
from surestep.engine.task.task import Task

# In a script that loads samples, a micro-batch is there already, and is not selected by rows.
_LOADED = {
    "    for part in rows.split(MICRO_BATCH_SIZE):\n": "    for x, y in batch:\n",
    "    for rows in torch.arange(len(x)).split(EVALUATION_BATCH_SIZE):\n": (
        "    for x, y in read_evaluation(parts):\n"
    ),
    "sums[name] / len(x)": "sums[name] / len(parts.val)",
    **{f"{name}[{rows}]": name for name in "xy" for rows in ("rows", "part")},
    **{f"len({rows})": "len(y)" for rows in ("rows", "part")},
}


def loads(task: Task) -> bool:
    """Return whether samples are loaded and collated; else rows of tensors are selected."""
    splits = [data for data in (task.train, task.val) if data is not None]
    return task.collate_fn is not None or not all(map(is_pair, splits))


def is_pair(data: Any) -> bool:
    """Return whether data is a pair of tensors on the host."""
    return (
        isinstance(data, tuple)
        and len(data) == 2
        and all(isinstance(part, Tensor) and part.device.type == "cpu" for part in data)
    )


def data_problems(task: Task) -> Iterator[str]:
    """Yield what a script cannot have of the data of a Task."""
    for split, data in (("train", task.train), ("val", task.val)):
        if is_pair(data) or (split == "val" and data is None):
            continue
        kind = type(data).__name__
        if not isinstance(data, (Dataset, list)) or isinstance(data, IterableDataset):
            yield (
                f"Task({split}=...) is a {kind}, and eject prints a pair of tensors, a list of "
                f"samples, or a Dataset with a length. Write {split}=(x, y) or {split}=dataset."
            )
        elif find_with_epoch(data) or batched_getter(data) is not None:
            yield (
                f"Task({split}=...) has set_epoch or __getitems__, which eject does not print. "
                "Load each sample by __getitem__ alone."
            )
    parts = ("train", task.train), ("val", task.val), ("collate_fn", task.collate_fn)
    owned = OwnGenerators(*(part for part in parts if part[1] is not None)).found
    if loads(task) and owned:
        yield (
            f"The data draws from {owned[0]}, and eject prints the seeds of the global generators "
            "alone. Draw from torch, numpy.random or random."
        )


def load_first(data: Any, collate_fn: Callable[..., Any] | None, count: int) -> tuple[Any, Any]:
    """Return the first inputs and targets of a split as one batch.

    Raises:
        RecipeError: samples are not inputs with targets.
    """
    if is_pair(data) and collate_fn is None:
        return data[0][:count], data[1][:count]
    size = len(data[0] if is_pair(data) else data)
    with preserve_rng():
        samples = [
            tuple(part[index] for part in data) if is_pair(data) else data[index]
            for index in range(min(count, size))
        ]
        batch = (collate_fn or default_collate)(samples)
    if (
        not isinstance(batch, (tuple, list))
        or len(batch) != 2
        or not all(isinstance(part, Tensor) for part in batch)
    ):
        raise RecipeError(
            "eject prints batches of two tensors, inputs and targets, and the data gives "
            f"{type(batch).__name__}. Return (x, y) from the Dataset or from collate_fn."
        )
    return batch[0], batch[1]


def list_targets(task: Task, count: int) -> list[Tensor]:
    """Return the targets of each split, training first: all in memory, else the first ones."""
    splits: Sequence[Any] = [data for data in (task.train, task.val) if data is not None]
    if not loads(task):
        return [data[1] for data in splits]
    return [load_first(data, task.collate_fn, count)[1] for data in splits]


def choose_loading(task: Task, *, calls_loss: bool) -> Choices:
    """Return what the data chooses of `templates/program.py`.

    Args:
        task: whose data it is.
        calls_loss: a step calls a function of the recipe as the loss.
    """
    if not loads(task):
        return Choices(flags_of(takes_parts=True), renamed={"next(batches), ": ""})
    collates = task.collate_fn is not None
    renamed = dict(_LOADED)
    if not collates:
        renamed |= {", self.collate_fn)": ")", ", parts.collate_fn)": ")"}
    if not calls_loss:
        renamed["parts, next(batches)"] = "next(batches)"
    has_pair = is_pair(task.train) or is_pair(task.val)
    code = ("from torch.utils.data import TensorDataset\n",) if has_pair else ()
    flags = flags_of(loads=True, collates=collates, takes_parts=calls_loss)
    return Choices(flags, renamed=renamed, code=code)
