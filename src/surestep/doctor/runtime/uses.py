"""What a script does with the batches of its loaders: train on them, or evaluate them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from weakref import WeakKeyDictionary

from surestep.doctor.watcher import Script

if TYPE_CHECKING:
    from torch.utils.data import DataLoader


T = TypeVar("T")  # what is known of the samples of a batch, such as their digests


@dataclass(frozen=True)
class _Waiting(Generic[T]):
    """A batch, before it is known what the script does with it.

    Attributes:
        digests: of its samples.
        backwards: how many there had been before.
        models: how many modules had been called.
        evaluations: how many of them without gradients.
    """

    digests: T
    backwards: int
    models: int
    evaluations: int


@dataclass(frozen=True)
class Used(Generic[T]):
    """A batch that was trained on, or evaluated.

    Attributes:
        loader: that gave it.
        digests: of its samples.
        is_trained: whether a backward pass followed.
    """

    loader: DataLoader[Any]
    digests: T
    is_trained: bool


class BatchUses(Generic[T]):
    """Remembers the last batch of each loader until it is known what it was for."""

    def __init__(self) -> None:
        self._waiting: WeakKeyDictionary[DataLoader[Any], _Waiting[T]] = WeakKeyDictionary()
        self._models = self._evaluations = 0

    def count_forward(self) -> None:
        """Count a call of a module."""
        import torch

        self._models += 1
        self._evaluations += not torch.is_grad_enabled()

    def add(self, run: Script, loader: DataLoader[Any], digests: T) -> None:
        """Remember a batch that a loader gives."""
        counts = run.backwards, self._models, self._evaluations
        self._waiting[loader] = _Waiting(digests, *counts)

    def find(self, run: Script, loader: DataLoader[Any]) -> Iterator[Used[T]]:
        """Yield the batches that were used before a loader gives its next one, or ends.

        A loop that is left, or knows its number of batches, asks its loader for none after the
        last. The batch of another loader waits until it is certainly trained on or evaluated: a
        model may answer one batch before the script takes a second one to train on both.
        """
        for other, batch in list(self._waiting.items()):
            is_trained = run.backwards > batch.backwards
            if other is loader or is_trained or self._evaluations > batch.evaluations:
                del self._waiting[other]
                if is_trained or self._models > batch.models:
                    yield Used(other, batch.digests, is_trained)
