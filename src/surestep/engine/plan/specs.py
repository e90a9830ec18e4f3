"""Values of the Plan that packages above it compute with."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor


@dataclass(frozen=True)
class AveragingSpec:
    """An average with every option decided; lengths are in optimizer steps."""

    kind: Literal["none", "ema", "swa"]
    decay: float | None
    warmup: bool | None
    start: int
    interval: int
    buffers: Literal["copy", "average", "recompute"]
    lr: float | None
    anneal: int


def raw_name(part: str) -> str:
    """Return what a set is called when it is measured by the raw weights beside their average."""
    return f"{part}_raw"


class WrapUnits(NamedTuple):
    """The blocks of a model, or what is wrong with the choice.

    Attributes:
        names: of the modules, outer ones before those inside them.
        text: what they are, in words.
        problem: why they cannot be, with what to type instead; empty where they can.
    """

    names: tuple[str, ...] = ()
    text: str = ""
    problem: str = ""


def no_blocks(_: str) -> WrapUnits:
    """Choose nothing, where there is no model."""
    return WrapUnits()


@dataclass(frozen=True)
class ExcludedSamples:
    """Which samples are left out.

    Attributes:
        samples: their indices, sorted, each once.
        count: how many samples the data has, with those.
        source: the file that names them; empty where they were said one by one.
    """

    samples: tuple[int, ...]
    count: int
    source: str = ""

    def __str__(self) -> str:
        return f"{len(self.samples):,} of {self.count:,} samples"

    @property
    def left(self) -> int:
        """How many samples stay."""
        return self.count - len(self.samples)

    def kept(self) -> Tensor:
        """Say of each sample whether it stays, (count,) bool."""
        kept = torch.ones(self.count, dtype=torch.bool)
        kept[list(self.samples)] = False
        return kept
