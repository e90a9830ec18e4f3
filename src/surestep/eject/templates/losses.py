"""Losses that torch does not have, each summed over its items."""

from torch import Tensor
from torch.nn import functional

TEMPERATURE = 4.0  # divides the logits, so that the classes that are not the likeliest count too
ALPHA = 0.9  # weight of the teacher's classes; the labels have the rest
SMOOTH = 1.0  # added above and below the line, so that an empty region does not divide by zero
BCE_WEIGHT = 1.0  # weight of the cross-entropy; the overlap has 1


def sum_dice(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one minus the overlap of the predicted and the true region, summed over samples."""
    shares = outputs.sigmoid()
    both = (shares * targets).flatten(2).sum(2)
    sizes = (shares + targets).flatten(2).sum(2)
    overlap = (2 * both + SMOOTH) / (sizes + SMOOTH)
    return (1 - overlap.mean(1)).sum()


def sum_dice_bce(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the overlap and the mean cross-entropy of the pixels, summed over samples."""
    bce = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="sum")
    pixels = targets.numel() // len(targets)
    return sum_dice(outputs, targets) + BCE_WEIGHT * bce / pixels


def sum_distillation(outputs: Tensor, targets: Tensor, taught: Tensor) -> Tensor:
    """Return the distance from the teacher's classes and from the labels, summed over samples."""
    outputs, taught = outputs.float(), taught.float()  # ? half
    soft, wanted = (outputs / TEMPERATURE).log_softmax(1), (taught / TEMPERATURE).log_softmax(1)
    distance = functional.kl_div(soft, wanted, reduction="none", log_target=True).sum(1).sum()
    hard = functional.cross_entropy(outputs, targets, reduction="sum")
    # Division by the temperature makes the gradients smaller by its square.
    return ALPHA * TEMPERATURE**2 * distance + (1 - ALPHA) * hard
