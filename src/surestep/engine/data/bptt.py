"""Sequences cut for truncated back-propagation: lanes side by side, in windows, in time order."""

from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from surestep.base.errors import DataError


class BPTTDataset(Dataset[Any]):
    """One long sequence as parallel lanes, read window by window.

    Sample i is window i // lanes of lane i % lanes, so a batch of as many samples as there are
    lanes is the same moment in all of them. A sample is (inputs, lane, first, targets): `lane` is
    its lane's number, `first` says that its window is the first; what is carried starts anew there.

    Args:
        inputs: the sequence, (time, ...).
        lanes: how many parts it is cut into; what is left over at the end is not used.
        length: of a window.
        targets: of each moment, (time, ...); not said, the next input.

    Raises:
        DataError: the sequence is too short, or the targets are not as long.
    """

    def __init__(
        self, inputs: Tensor, lanes: int, length: int, targets: Tensor | None = None
    ) -> None:
        if targets is None:
            inputs, targets = inputs[:-1], inputs[1:]
        if len(targets) != len(inputs):
            raise DataError(f"There are {len(inputs)} inputs and {len(targets)} targets.")
        self.lanes, self.length = lanes, length
        self.windows = len(inputs) // (lanes * length) if lanes > 0 and length > 0 else 0
        if not self.windows:
            raise DataError(
                f"A sequence of {len(inputs)} is too short for {lanes} lanes with windows of "
                f"{length}. Use fewer lanes or shorter windows."
            )
        used = self.windows * length
        self.inputs = inputs[: lanes * used].reshape(lanes, used, *inputs.shape[1:])
        self.targets = targets[: lanes * used].reshape(lanes, used, *targets.shape[1:])

    def __len__(self) -> int:
        return self.lanes * self.windows

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        window, lane = divmod(index, self.lanes)
        where = slice(window * self.length, (window + 1) * self.length)
        first = torch.tensor(window == 0)
        return self.inputs[lane, where], torch.tensor(lane), first, self.targets[lane, where]
