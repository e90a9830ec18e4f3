"""Micro-batch sizes that fit in memory: where `micro_batch_size="fit"` starts, and its changes."""

import math
from collections.abc import Iterable
from typing import Final, NamedTuple

FIT: Final = "fit"
DROPOUT: Final = "dropout draws for each micro-batch"  # of the reasons why a batch does not split


class FoundSize(NamedTuple):
    """A size to start with.

    Attributes:
        why: where it comes from, as a part of a sentence.
        is_recorded: the run that resumes has recorded it.
    """

    size: int
    why: str
    is_recorded: bool = False


ALL = "all of a batch"  # where a size comes from if nothing is known
AS_IN_TRAINING = "as many as in training"  # the same of an evaluation


class SizeChange(NamedTuple):
    """A smaller micro-batch size.

    Attributes:
        step: the first step with it; of an evaluation, the steps before it.
        before: the size that ran out of memory.
        error: the first line of the error.
        allocated: bytes of tensors on the CUDA device at the error; None on other devices.
        reserved: bytes that torch's allocator had reserved there: the difference is fragmented.
    """

    step: int
    size: int
    before: int
    error: str
    allocated: int | None = None
    reserved: int | None = None


class SizesByStep:
    """The micro-batch size of each step of a run: the smallest that is known up to that step.

    So the order in which the changes were found does not matter: a run that resumes from an earlier
    checkpoint may find a size before the step at which it found one the first time.

    Args:
        changes: a step, from 1, and the size from that step on.
    """

    def __init__(self, changes: Iterable[tuple[int, int]]) -> None:
        self._changes = list(changes)

    def at(self, step: int) -> int | None:
        """Return the size of a step; None if none is known."""
        return min((size for first, size in self._changes if first <= step), default=None)

    def last_before_change(self, step: int) -> float:
        """Return the last step with the size of this one; infinity if it does not change again."""
        own = self.at(step) or math.inf
        later = (first for first, size in self._changes if first > step and size < own)
        return min(later, default=math.inf) - 1

    def add(self, step: int, size: int) -> None:
        """Use a size from a step on."""
        self._changes.append((step, size))
