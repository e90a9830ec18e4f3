"""The run that is killed: the same data, model and optimizer for every library."""

import random
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

SAMPLES, FEATURES, CLASSES, WIDTH = 1000, 64, 10, 512
BATCH, STEPS, SAVE_EVERY, SEED, LR = 25, 60, 5, 0, 1e-3
Setting = Literal["shuffled", "dropout", "augmented"]


@dataclass(frozen=True)
class Job:
    """A model and data to train, and the folder of its checkpoints.

    Attributes:
        setting: the sources of randomness. "shuffled" is the order of the samples, "dropout" adds
            dropout, and "augmented" adds dropout and random augmentation.
    """

    folder: Path
    setting: Setting

    def model(self) -> nn.Module:
        """Build the model, the same each time."""
        torch.manual_seed(SEED)
        return nn.Sequential(
            nn.Linear(FEATURES, WIDTH),
            nn.ReLU(),
            nn.Dropout(0.0 if self.setting == "shuffled" else 0.2),
            nn.Linear(WIDTH, WIDTH),
            nn.ReLU(),
            nn.Linear(WIDTH, CLASSES),
        )

    def data(self) -> "Rows":
        """Make the training data."""
        return Rows(augmented=self.setting == "augmented")


class Rows(Dataset[tuple[Tensor, Tensor]]):
    """Samples by index; augmented with noise from the three generators that datasets draw from."""

    def __init__(self, *, augmented: bool) -> None:
        generator = torch.Generator().manual_seed(SEED)
        self.inputs = torch.randn(SAMPLES, FEATURES, generator=generator)
        self.targets = torch.randint(0, CLASSES, (SAMPLES,), generator=generator)
        self.augmented = augmented

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        inputs = self.inputs[row]
        if self.augmented:
            shift = np.random.standard_normal() + random.gauss(0, 1)
            inputs = inputs + 0.1 * torch.randn(FEATURES) + 0.1 * shift
        return inputs, self.targets[row]
