"""What the loading of the training data draws by, for the Plan."""

from collections.abc import Iterable

from torch.utils.data import DataLoader, default_collate

from surestep.engine.data.dataset import dataset_of
from surestep.engine.data.generators import Draws, OwnGenerator, OwnGenerators
from surestep.engine.data.open import slices_in_memory
from surestep.engine.data.source import loads_many
from surestep.engine.data.stream import is_stream
from surestep.engine.task import Task


def draws_of(task: Task) -> Draws:
    """Look through the training data.

    Raises:
        DataError: empty, or of no known kind.
    """
    if slices_in_memory(task.train, task):
        return Draws(sliced=True)
    if is_stream(task.train):
        return Draws()
    dataset = dataset_of(task.train, "train")
    collate = task.collate_fn
    if collate is None and isinstance(task.train, DataLoader):
        collate = task.train.collate_fn
    plainly = collate is None or collate is default_collate
    together = {"__getitems__": loads_many(dataset) is not None, "collate_fn": not plainly}
    found = OwnGenerators(dataset=dataset, collate_fn=None if plainly else collate).found
    return Draws(
        together=tuple(name for name, holds in together.items() if holds),
        own=_named(each for each in found if each.seed is not None),
        unseeded=_named(each for each in found if each.seed is None),
    )


def _named(generators: Iterable[OwnGenerator]) -> tuple[str, ...]:
    return tuple(f"{each.path} ({each.kind})" for each in generators)
