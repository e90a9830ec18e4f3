"""Numbers of a long run that stay on their device until its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Series(Generic[T]):
    """The numbers of some calls, each with a label: of all of them, or evenly spaced ones.

    All numbers are in one tensor. Small tensors that are kept break up the memory that the script
    uses again in each step: with a convolutional net on a CPU, that took 3% of the time.

    Args:
        most: numbers that are kept; an even number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._values: Tensor | None = None
        self._labels: list[T] = []
        self._calls, self._every = 0, 1

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, value: Tensor, label: T) -> None:
        """Copy a number, unless there are many and it is not its turn; nothing waits for it."""
        self._calls += 1
        if (self._calls - 1) % self._every:
            return
        if self._values is None:
            self._values = value.detach().new_zeros(self._most)
        if len(self._labels) == self._most:
            self._values[: self._most // 2] = self._values[::2].clone()
            self._labels = self._labels[::2]
            self._every *= 2
        self._values[len(self._labels)].copy_(value.detach())
        self._labels.append(label)

    def read(self) -> list[tuple[float, T]]:
        """Return the numbers with their labels, in one transfer."""
        if self._values is None:
            return []
        values = self._values[: len(self._labels)].tolist()
        return list(zip(values, self._labels, strict=True))
