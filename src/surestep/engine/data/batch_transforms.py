"""Transforms of global batches for `Task(batch_transform=...)`: `surestep.batch_transforms`.

Each is a function of (inputs, targets) that draws from Python's and torch's default generators,
which are seeded by the step. You can write your own in the same way.

| transform | what it does |
|---|---|
| `mixup(alpha)` | blends each sample, and its target, with another of the batch |
| `cutmix(alpha)` | pastes a rectangle of another image into each, and mixes the targets by area |
"""

import math
import random
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from surestep.base.errors import TaskError
from surestep.engine.batch import flatten_tensors, map_tensors
from surestep.engine.device import sum_dtype
from surestep.engine.losses.adapt import Loss
from surestep.engine.losses.base import LossModule
from surestep.engine.losses.mixed import MixedTargets

__all__ = ["cutmix", "mixup"]


@dataclass(frozen=True)
class MixTransform:
    """What mixup and cutmix share: a partner for each sample, and targets mixed by share.

    Attributes:
        alpha: the share of a batch is drawn from Beta(alpha, alpha).
        classes: number of classes, if targets are class indices.
        pairs_indices: the loss gets both targets of a sample, if they are integers.
        pairs_numbers: likewise, if they are floating point numbers.
        counts_all: the mean is over all targets, as torch's over probabilities.
    """

    alpha: float
    classes: int | None = None
    pairs_indices: bool = False
    pairs_numbers: bool = False
    counts_all: bool = False
    name = "mix"

    def __post_init__(self) -> None:
        if not (self.alpha > 0 and math.isfinite(self.alpha)):
            raise TaskError(
                f"{self.name}(alpha={self.alpha}) has no shares to draw. Use an alpha above 0, "
                "such as 0.2."
            )

    def __str__(self) -> str:
        more = "" if self.classes is None else f", classes={self.classes}"
        return f"{self.name}({self.alpha:g}{more})"

    def for_loss(self, loss: Loss) -> "MixTransform":
        """Return the transform that gives a loss both targets where a blend is not the same.

        Integers cannot be blended. Nor can numbers that may be ignored, but probabilities of
        classes are never ignored.
        """
        is_known = loss.kind in ("classes", "known") and loss.is_sum
        module = loss.module
        ignores = isinstance(module, LossModule) and module.ignores_targets
        return replace(
            self,
            pairs_indices=is_known,
            pairs_numbers=is_known and ignores and loss.kind != "classes",
            counts_all=self.classes is not None and getattr(module, "weight", None) is not None,
        )

    def check(self, loss: Loss, targets: Any) -> None:
        """Check that the loss takes mixed targets, and that the first ones can be mixed."""
        if isinstance(targets, Tensor) and not targets.is_floating_point():
            ignored = getattr(loss.module, "ignore_index", None) if self.pairs_indices else None
            kept = targets if ignored is None else targets[targets != ignored]
            low, high = (int(kept.min()), int(kept.max())) if len(kept) else (0, 0)
            is_below = low < 0 and not self.pairs_indices
            if is_below or (self.classes is not None and high >= self.classes):
                raise TaskError(
                    f"{self.name} makes probabilities of class indices, and the targets run from "
                    f"{low} to {high}, with classes={self.classes}. Set the number of classes. If "
                    "some targets are ignored, use one of surestep's or torch's losses, which "
                    "gets both targets."
                )
        if loss.kind == "model":
            raise TaskError(
                f"{self.name} mixes targets into probabilities, which the loss that the model "
                "computes itself does not take. Use nn.CrossEntropyLoss(), and let the model "
                "return its logits."
            )

    def partners(self, inputs: Any, targets: Any) -> Tensor:
        """Draw another sample for each, on the host: the same for every device."""
        for tensor in flatten_tensors(inputs):
            if not tensor.is_floating_point():
                raise TaskError(
                    f"{self.name} blends numbers, and an input is {tensor.dtype}. Use x.float() "
                    "for images; token ids cannot be blended."
                )
        if not isinstance(targets, Tensor):
            raise TaskError(
                f"{self.name} mixes targets that are a tensor, and these are a "
                f"{type(targets).__name__}. Write a custom batch_transform."
            )
        drawn = torch.randperm(len(targets))
        return drawn.to(targets.device, non_blocking=True)

    def mix_targets(
        self, inputs: Any, targets: Tensor, partner: Tensor, share: float
    ) -> Tensor | MixedTargets:
        """Return share x targets + (1 - share) x the partners' targets, as probabilities.

        Class indices become one-hot rows; (samples, ...) becomes (samples, classes, ...). If the
        loss takes pairs, it gets both targets.
        """
        if self.pairs_numbers if targets.is_floating_point() else self.pairs_indices:
            dtype, device = sum_dtype(targets.device), targets.device
            shares = torch.full((len(targets),), share, dtype=dtype, device=device)
            return MixedTargets(targets, targets.index_select(0, partner), shares)
        if not targets.is_floating_point():
            if self.classes is None:
                raise TaskError(
                    f"{self.name} makes probabilities of class indices, and the number of classes "
                    f"is not set. Use {self.name}({self.alpha:g}, classes=10)."
                )
            shape = (len(targets), self.classes, *targets.shape[1:])
            row = torch.zeros(shape, dtype=flatten_tensors(inputs)[0].dtype, device=targets.device)
            targets = row.scatter_(1, targets.long().unsqueeze(1), 1.0)
        return _blend(targets, partner, share)


class Mixup(MixTransform):
    """Blend each sample and its target with another's."""

    name = "mixup"

    def __call__(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return share x batch + (1 - share) x partners, and the targets likewise."""
        share = random.betavariate(self.alpha, self.alpha)
        partner = self.partners(inputs, targets)
        mixed = map_tensors(inputs, lambda tensor: _blend(tensor, partner, share))
        return mixed, self.mix_targets(inputs, targets, partner, share)


class Cutmix(MixTransform):
    """Paste a rectangle of another image into each, and mix the targets by area."""

    name = "cutmix"

    def __call__(self, inputs: Any, targets: Any) -> tuple[Any, Any]:
        """Return the pasted images, and targets mixed by the area that is left."""
        share = random.betavariate(self.alpha, self.alpha)
        shapes = [tuple(tensor.shape) for tensor in flatten_tensors(inputs)]
        sizes = {shape[-2:] for shape in shapes}
        if len(sizes) != 1 or any(len(shape) < 4 for shape in shapes):
            raise TaskError(
                f"cutmix takes images of (samples, channels, height, width), and the inputs have "
                f"shapes {shapes}. Use mixup, or a custom batch_transform."
            )
        (height, width), partner = sizes.pop(), self.partners(inputs, targets)
        if targets.dim() > 2 or (targets.dim() > 1 and not targets.is_floating_point()):
            raise TaskError(
                f"cutmix mixes one target for each image, and the targets have shape "
                f"{tuple(targets.shape)}. Use mixup, or a custom batch_transform."
            )
        top, bottom, left, right = _box(height, width, share)

        def paste(images: Tensor) -> Tensor:
            pasted = images.clone()
            box = (..., slice(top, bottom), slice(left, right))
            pasted[box] = images[box].index_select(0, partner)
            return pasted

        share = 1 - (bottom - top) * (right - left) / (height * width)
        return map_tensors(inputs, paste), self.mix_targets(inputs, targets, partner, share)


def mixup(alpha: float = 0.2, *, classes: int | None = None) -> Mixup:
    """Return the transform x = s x_i + (1 - s) x_j, y = s y_i + (1 - s) y_j.

    One share s per batch is drawn from Beta(alpha, alpha), and one partner j per sample. If targets
    are integers or the loss ignores some, one of surestep's or torch's losses gets both targets:
    s loss(x, y_i) + (1 - s) loss(x, y_j), divided by its usual items. So an ignored target stays
    ignored. Your own loss gets class indices as probabilities.

    Args:
        alpha: parameter of the Beta distribution; larger values mix more.
        classes: number of classes, if targets are class indices and the loss is your own.

    Source: https://arxiv.org/abs/1710.09412
    """
    return Mixup(alpha, classes)


def cutmix(alpha: float = 1.0, *, classes: int | None = None) -> Cutmix:
    """Return a transform that pastes a rectangle of another image into each image.

    The rectangle has 1 - s of the area, with s from Beta(alpha, alpha), around a uniformly drawn
    center, and is clipped at the edges. Targets are mixed by its actual area, as by `mixup`.

    Args:
        alpha: parameter of the Beta distribution; 1 draws the area uniformly.
        classes: number of classes, if targets are class indices and the loss is your own.

    Source: https://arxiv.org/abs/1905.04899
    """
    return Cutmix(alpha, classes)


def _blend(tensor: Tensor, partner: Tensor, share: float) -> Tensor:
    return share * tensor + (1 - share) * tensor.index_select(0, partner)


def _box(height: int, width: int, share: float) -> tuple[int, int, int, int]:
    side = math.sqrt(1 - share)
    half_height, half_width = int(height * side) // 2, int(width * side) // 2
    row, column = random.randrange(height), random.randrange(width)
    return (
        max(row - half_height, 0),
        min(row + half_height, height),
        max(column - half_width, 0),
        min(column + half_width, width),
    )
