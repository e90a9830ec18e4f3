"""Numbers of a long run, of which no device is waited for until its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")


class Series(Generic[T]):
    """The numbers of some calls, each with a label: of all of them, or evenly spaced ones.

    Numbers of the CPU are read at once. Those of a device are in one tensor, as reading them waits.

    Args:
        most: numbers that are kept; an even number.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._read: list[float] = []  # of the CPU
        self._values: Tensor | None = None  # of a device
        self._labels: list[T] = []
        self._calls, self._every = 0, 1

    def __len__(self) -> int:
        return len(self._labels)

    def add(self, value: Tensor, label: T) -> None:
        """Copy a number, unless there are many and it is not its turn; nothing waits for it."""
        self._calls += 1
        if (self._calls - 1) % self._every:
            return
        is_read = value.device.type == "cpu" and not hasattr(value, "to_local")
        if self._labels and is_read != (self._values is None):
            return  # the model was moved: the numbers before it stay
        if len(self._labels) == self._most:
            self._drop_half()
        if is_read:
            self._read.append(value.detach().item())
        else:
            if self._values is None:
                self._values = value.detach().new_zeros(self._most)
            self._values[len(self._labels)].copy_(value.detach())
        self._labels.append(label)

    def _drop_half(self) -> None:
        self._labels, self._read = self._labels[::2], self._read[::2]
        self._every *= 2
        if self._values is not None:
            self._values[: self._most // 2] = self._values[::2].clone()

    def read(self) -> list[tuple[float, T]]:
        """Return the numbers with their labels, in one transfer."""
        values = self._read
        if self._values is not None:
            values = self._values[: len(self._labels)].tolist()
        return list(zip(values, self._labels, strict=True))
