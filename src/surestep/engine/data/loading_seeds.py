"""What the loading of the training data draws by, for the Plan."""

from collections.abc import Iterable

from torch.utils.data import DataLoader, default_collate

from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.open_source import is_in_memory
from surestep.engine.data.sources import batched_getter
from surestep.engine.data.stream import is_stream
from surestep.engine.generators import DatasetRNG, DatasetRNGs, LoadingSeedInfo
from surestep.engine.task.task import Task


def loading_seed_info(task: Task) -> LoadingSeedInfo:
    """Look through the training data.

    Raises:
        DataError: empty, or of no known kind.
    """
    if is_in_memory(task.train, task):
        return LoadingSeedInfo(sliced=True)
    if is_stream(task.train):
        return LoadingSeedInfo()
    dataset = dataset_of(task.train, "train")
    collate = task.collate_fn
    if collate is None and isinstance(task.train, DataLoader):
        collate = task.train.collate_fn
    plainly = collate is None or collate is default_collate
    together = {"__getitems__": batched_getter(dataset) is not None, "collate_fn": not plainly}
    found = DatasetRNGs(dataset=dataset, collate_fn=None if plainly else collate).found
    return LoadingSeedInfo(
        together=tuple(name for name, holds in together.items() if holds),
        own=_named(each for each in found if each.seed is not None),
        unseeded=_named(each for each in found if each.seed is None),
    )


def _named(generators: Iterable[DatasetRNG]) -> tuple[str, ...]:
    return tuple(f"{each.path} ({each.kind})" for each in generators)
