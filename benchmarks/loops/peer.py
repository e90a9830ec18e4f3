"""What the peers share: the loader and the AdamW that their documentation shows."""

from collections.abc import Iterable

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.rules import LR, PEER_FUSED, WEIGHT_DECAY
from benchmarks.tasks import Task

Loader = DataLoader[tuple[torch.Tensor, ...]]


def make_loader(task: Task) -> Loader:
    """Shuffle the task's rows into whole batches."""
    dataset = TensorDataset(task.inputs, task.targets)
    pin = task.device == "cuda"
    size = task.batch_size
    return DataLoader(dataset, batch_size=size, shuffle=True, drop_last=True, pin_memory=pin)


def make_optimizer(parameters: Iterable[nn.Parameter]) -> torch.optim.AdamW:
    """Make PyTorch's fast AdamW, which any user of a peer can ask for with one word."""
    return torch.optim.AdamW(parameters, lr=LR, weight_decay=WEIGHT_DECAY, fused=PEER_FUSED)
