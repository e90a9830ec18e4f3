"""Sequences for truncated back-propagation: parallel lanes of windows in time order."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from surestep.base.errors import ConfigError, DataError, TaskError
from surestep.engine.model.stateful_rnn import StatefulRNN
from surestep.engine.plan.plan import Plan
from surestep.engine.task.task import Task


class BPTTDataset(Dataset[Any]):
    """One long sequence as parallel lanes, read window by window, for truncated back-propagation.

    Sample i is window i // lanes of lane i % lanes, so a batch of `lanes` samples is the same
    window of every lane. A sample is (inputs, lane, first, targets): `lane` is the index of its
    lane, `first` is True in the first window of the lane, where the model's state is reset.

    Args:
        inputs: the sequence, (time, ...).
        lanes: number of lanes. Elements that are left over at the end are not used.
        length: time steps of a window.
        targets: the target of each time step, (time, ...); the default is the next input.

    Raises:
        DataError: the sequence is too short, or the targets have a different length.
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
        """Return inputs of a window, its lane, whether it is the first of the lane, and targets."""
        window, lane = divmod(index, self.lanes)
        where = slice(window * self.length, (window + 1) * self.length)
        first = torch.tensor(window == 0)
        return self.inputs[lane, where], torch.tensor(lane), first, self.targets[lane, where]


def check_stateful_rnn(task: Task, model: nn.Module, plan: Plan) -> None:
    """Check that a model with recurrent state gets windows in time order, one of each lane."""
    rnn = next((module for module in model.modules() if isinstance(module, StatefulRNN)), None)
    if rnn is None:
        return
    if plan.data_shuffle:
        raise ConfigError(
            "The model carries its state from batch to batch, and data.shuffle mixes the windows. "
            "Give surestep.BPTTDataset(...) as data, or set data.shuffle=False for custom data."
        )
    parts = {"train": task.train, **task.val_sets()}
    for name, data in (parts if task.test is None else {**parts, "test": task.test}).items():
        lanes = data.lanes if isinstance(data, BPTTDataset) else rnn.lanes
        if lanes > rnn.lanes:
            raise TaskError(
                f"The {name} data has {lanes} lanes, and the model {rnn.lanes}. Use "
                f"surestep.StatefulRNN(..., lanes={lanes}), or split the data into fewer."
            )
        option = "batch_size" if name == "train" else "validation.batch_size"
        size = getattr(plan, option.replace(".", "_"))
        if size > lanes:
            raise ConfigError(
                f"{option}={size} holds several windows of each of the {lanes} lanes of the {name} "
                f"data, which follow each other. Set {option}={lanes}."
            )
